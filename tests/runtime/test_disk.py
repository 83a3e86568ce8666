"""Both disks obey one contract: what is written is seen, what leaves the folder is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.errors import Misuse
from tallystick.runtime.disk import Disk, RealDisk, read_all, write_atomic
from tallystick.runtime.seeded_disk import SeededDisk


@pytest.fixture(params=["real", "seeded"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path / "root") if request.param == "real" else SeededDisk(1)


def test_what_is_written_is_read_at_once(disk: Disk) -> None:
    file = disk.open("a", create=True)
    file.pwrite(3, b"defg")
    assert file.pread(0, 100) == b"\0\0\0defg"
    assert disk.open("a").pread(4, 2) == b"ef"
    file.truncate(5)
    assert (file.size(), disk.size("a")) == (5, 5)
    file.sync()
    file.close()
    assert read_all(disk, "a") == b"\0\0\0de"


def test_a_large_memoryview_is_written_whole(disk: Disk) -> None:
    data = bytes(range(256)) * 4096
    file = disk.open("a", create=True)
    file.pwrite(0, memoryview(data))
    assert file.pread(0, len(data) + 1) == data
    file.close()


def test_names(disk: Disk) -> None:
    disk.mkdir("x/y")
    disk.mkdir("x/y")
    for name in ("x/y/b", "x/y/a"):
        disk.open(name, create=True).close()
    disk.rename("x/y/a", "x/y/c")
    assert disk.listdir("x/y") == ["b", "c"]
    assert disk.listdir("") == ["x"]
    disk.remove("x/y/b")
    disk.sync_dir("x/y")
    assert not disk.exists("x/y/b")
    assert disk.exists("x/y")
    assert disk.free_bytes() > 0


def test_what_is_missing_is_named(disk: Disk) -> None:
    for act in (
        lambda: disk.open("nothing"),
        lambda: disk.open("no/folder", create=True),
        lambda: disk.remove("nothing"),
        lambda: disk.rename("nothing", "b"),
        lambda: disk.size("nothing"),
        lambda: disk.listdir("nothing"),
    ):
        with pytest.raises(FileNotFoundError):
            act()


@pytest.mark.parametrize("path", ["../a", "/a", "a/../../b", "a//b", "./a"])
def test_a_path_that_leaves_the_folder_is_refused(disk: Disk, path: str) -> None:
    with pytest.raises(Misuse, match="plain relative path"):
        disk.open(path, create=True)


def test_write_atomic_replaces(disk: Disk) -> None:
    write_atomic(disk, "a", b"a long first version")
    write_atomic(disk, "a", b"second")
    assert read_all(disk, "a") == b"second"
    assert disk.listdir("") == ["a"]


def unseen(path: Path) -> bool:
    return False


def test_a_folder_that_another_makes_at_the_same_moment_serves_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of one executor open the same folder; between the look and the making lies the other's making."""
    write_atomic(RealDisk(tmp_path / "lanes" / "a"), "file", b"here")
    with monkeypatch.context() as late:
        late.setattr(Path, "exists", unseen)
        disk = RealDisk(tmp_path / "lanes" / "a")
    assert read_all(disk, "file") == b"here"
