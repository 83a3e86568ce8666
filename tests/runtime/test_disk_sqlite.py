"""SQLite on the seeded disk: what was committed with syncing on survives any crash; without it, not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import apsw
import pytest

from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.runtime.sqlite_vfs import DiskVFS

ROLLBACK = ("pragma journal_mode=delete",)
WAL = ("pragma locking_mode=exclusive", "pragma journal_mode=wal", "pragma wal_autocheckpoint=8")
SEEDS = range(50)


@pytest.fixture
def disk() -> SeededDisk:
    return SeededDisk(1)


@pytest.fixture
def vfs(disk: SeededDisk) -> Iterator[DiskVFS]:
    vfs = DiskVFS("test-disk", disk)
    yield vfs
    vfs.unregister()


def _connect(vfs: DiskVFS, pragmas: tuple[str, ...]) -> apsw.Connection:
    connection = apsw.Connection("test.db", vfs=vfs.vfs_name)
    for pragma in pragmas:
        connection.execute(pragma)
    return connection


def _committed_until_the_power_fails(seed: int, pragmas: tuple[str, ...]) -> tuple[int, int, str]:
    """Commit numbered rows until the power fails; the last acknowledged, the rows found, the check's word."""
    disk = SeededDisk(seed)
    vfs = DiskVFS(f"crash-{seed}", disk)
    connection = _connect(vfs, pragmas)
    connection.execute("create table if not exists rows (n integer primary key, filling blob)")
    chooser = random.Random(seed)
    disk.power_off_after(chooser.randint(1, 400))
    acknowledged = 0
    with suppress(apsw.Error):
        for n in range(1, 61):
            with connection:
                connection.execute("insert into rows values (?, ?)", (n, bytes([n]) * chooser.randint(1, 9000)))
            acknowledged = n
    with suppress(apsw.Error):
        connection.close()
    disk.crash()
    try:
        found, word = _inspect(vfs, pragmas)
    finally:
        vfs.unregister()
    return acknowledged, found, word


def _inspect(vfs: DiskVFS, pragmas: tuple[str, ...]) -> tuple[int, str]:
    try:
        connection = _connect(vfs, pragmas)
        word: Any = connection.execute("pragma integrity_check").fetchall()[0][0]
        rows: list[Any] = connection.execute("select n, filling from rows order by n").fetchall()
    except apsw.Error as error:
        return 0, type(error).__name__
    assert all(filling == bytes([n]) * len(filling) for n, filling in rows)
    connection.close()
    return len(rows), word


@pytest.mark.parametrize(
    "pragmas",
    [(*ROLLBACK, "pragma synchronous=extra"), (*WAL, "pragma synchronous=full")],
    ids=["rollback", "wal"],
)
def test_what_was_committed_survives_every_crash(pragmas: tuple[str, ...]) -> None:
    interrupted = 0
    for seed in SEEDS:
        acknowledged, found, word = _committed_until_the_power_fails(seed, pragmas)
        assert word == "ok", f"seed {seed}"
        assert found in (acknowledged, acknowledged + 1), f"seed {seed}"
        interrupted += acknowledged < 60
    assert interrupted > len(SEEDS) // 2, "most seeds must lose the power on the way"


@pytest.mark.parametrize(
    "pragmas",
    [
        (*ROLLBACK, "pragma synchronous=off"),
        (*ROLLBACK, "pragma synchronous=full"),  # does not sync the journal's removal
        (*WAL, "pragma synchronous=off"),
        (*WAL, "pragma synchronous=normal"),  # syncs at checkpoints only
    ],
)
def test_with_less_syncing_something_is_lost(pragmas: tuple[str, ...]) -> None:
    outcomes = [_committed_until_the_power_fails(seed, pragmas) for seed in SEEDS]
    assert any(found < acknowledged or word != "ok" for acknowledged, found, word in outcomes)


def test_connections_of_one_process_exclude_one_another(vfs: DiskVFS) -> None:
    writer, reader = _connect(vfs, ROLLBACK), _connect(vfs, ROLLBACK)
    writer.execute("create table t (a)")
    writer.execute("begin immediate; insert into t values (1)")
    assert reader.execute("select count(*) from t").fetchall() == [(0,)]
    with pytest.raises(apsw.BusyError):
        reader.execute("begin immediate")
    reading = reader.execute("select * from (values (1), (2)), (select count(*) from t)")
    next(reading)
    with pytest.raises(apsw.BusyError):
        writer.execute("commit")
    reading.close()
    writer.execute("commit")
    assert reader.execute("select count(*) from t").fetchall() == [(1,)]
    writer.close()
    reader.close()


def test_a_full_disk_is_named_and_leaves_the_database_whole(disk: SeededDisk, vfs: DiskVFS) -> None:
    connection = _connect(vfs, ROLLBACK)
    connection.execute("create table t (a)")
    disk.fill(5000)
    with pytest.raises(apsw.FullError):
        connection.execute("insert into t values (zeroblob(50000))")
    disk.fill(None)
    connection.execute("insert into t values (zeroblob(50000))")
    assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_temporary_files_leave_nothing_behind(disk: SeededDisk, vfs: DiskVFS) -> None:
    connection = _connect(vfs, (*ROLLBACK, "pragma temp_store=file", "pragma cache_size=1"))
    connection.execute("create temp table t (a)")
    connection.execute(
        "insert into t with recursive n(i) as (select 1 union all select i+1 from n where i < 300) "
        "select zeroblob(4000) from n"
    )
    connection.close()
    assert all("temporary" not in name for name in disk.listdir(""))


def test_a_missing_database_is_not_made_for_a_reader(vfs: DiskVFS) -> None:
    with pytest.raises(apsw.CantOpenError):
        apsw.Connection("none.db", vfs=vfs.vfs_name, flags=apsw.SQLITE_OPEN_READONLY)
