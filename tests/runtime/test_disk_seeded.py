"""The seeded disk keeps what was synced, and really loses, tears and reorders what was not."""

from __future__ import annotations

import errno

import pytest

from tallystick.runtime.disk import read_all, write_atomic
from tallystick.runtime.seeded_disk import SECTOR_BYTES, PowerLost, SeededDisk

SEEDS = range(200)


def _two_writes(seed: int) -> bytes:
    """A synced sector, then three sectors and a change of the first, unsynced."""
    disk = SeededDisk(seed)
    file = disk.open("a", create=True)
    disk.sync_dir("")
    file.pwrite(0, b"0" * SECTOR_BYTES)
    file.sync()
    file.pwrite(SECTOR_BYTES, b"1" * 3 * SECTOR_BYTES)
    file.pwrite(0, b"2" * 10)
    disk.crash()
    return read_all(disk, "a")


def test_synced_contents_and_names_survive() -> None:
    for seed in SEEDS:
        disk = SeededDisk(seed)
        file = disk.open("a", create=True)
        file.pwrite(0, b"sure" * 1000)
        file.sync()
        disk.sync_dir("")
        file.pwrite(4000, b"perhaps" * 1000)
        disk.crash()
        assert read_all(disk, "a")[:4000] == b"sure" * 1000


def test_unsynced_writes_are_dropped_torn_kept_and_reordered() -> None:
    outcomes = {_two_writes(seed) for seed in SEEDS}
    first, second = b"0" * SECTOR_BYTES, b"2" * 10 + b"0" * (SECTOR_BYTES - 10)
    ones = b"1" * SECTOR_BYTES
    assert first in outcomes, "both dropped"
    assert second + ones * 3 in outcomes, "both kept"
    assert second in outcomes, "the later kept, the earlier dropped"
    assert first + ones + bytes(SECTOR_BYTES) + ones in outcomes, "torn in the middle"
    assert all(content[: len(first)] in (first, second) for content in outcomes), "sectors are whole"


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert [_two_writes(seed) for seed in range(20)] == [_two_writes(seed) for seed in range(20)]


def test_unsynced_names_are_kept_or_dropped_one_by_one() -> None:
    outcomes = set()
    for seed in SEEDS:
        disk = SeededDisk(seed)
        disk.open("old", create=True)
        disk.open("gone", create=True)
        disk.sync_dir("")
        disk.open("made", create=True).sync()
        disk.rename("old", "new")
        disk.remove("gone")
        disk.crash()
        outcomes.add(tuple(disk.listdir("")))
    assert len(outcomes) == 8
    assert all(("old" in names) != ("new" in names) for names in outcomes)


def test_write_atomic_leaves_the_old_or_the_new_wherever_the_power_fails() -> None:
    found = set()
    for seed in SEEDS:
        disk = SeededDisk(seed)
        write_atomic(disk, "a", b"old" * 1000)
        disk.power_off_after(seed % 7 + 1)
        try:
            write_atomic(disk, "a", b"newer" * 1000)
            expected = {b"newer" * 1000}
        except PowerLost:
            expected = {b"old" * 1000, b"newer" * 1000}
        disk.crash()
        content = read_all(disk, "a")
        assert content in expected
        found.add(content)
    assert len(found) == 2


def test_nothing_works_between_the_loss_of_power_and_the_crash() -> None:
    disk = SeededDisk(1)
    file = disk.open("a", create=True)
    disk.power_off_after(1)
    with pytest.raises(PowerLost):
        file.pwrite(0, b"x")
    for act in (lambda: file.pread(0, 1), lambda: disk.listdir(""), lambda: disk.open("a")):
        with pytest.raises(PowerLost):
            act()
    disk.crash()
    disk.listdir("")
    with pytest.raises(OSError, match="before the crash"):
        file.size()


def test_a_full_disk_writes_what_fits_and_says_so() -> None:
    disk = SeededDisk(1)
    file = disk.open("a", create=True)
    disk.fill(10)
    with pytest.raises(OSError, match="No space") as caught:
        file.pwrite(0, b"x" * 11)
    assert caught.value.errno == errno.ENOSPC
    assert (file.size(), disk.free_bytes()) == (10, 0)
    file.pwrite(0, b"y" * 10)
    file.truncate(5)
    file.pwrite(5, b"z" * 5)
    disk.fill(None)
    file.pwrite(0, b"x" * 11)


def test_a_failed_sync_forgets_and_the_next_one_lies() -> None:
    disk = SeededDisk(1)
    file = disk.open("a", create=True)
    disk.sync_dir("")
    file.pwrite(0, b"lost")
    disk.fail_sync()
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    assert file.pread(0, 4) == b"lost"
    file.sync()
    disk.crash()
    assert read_all(disk, "a") == b""


def test_bit_rot_is_permanent() -> None:
    disk = SeededDisk(1)
    write_atomic(disk, "a", b"\x00\x01")
    disk.flip("a", 1)
    disk.crash()
    assert read_all(disk, "a") == b"\x00\xfe"
