"""The journal keeps the node's records until they are trimmed, in a file that does not grow for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest
from log_parcels import SMALL, A, contents, put

from tallystick.carriers.log.store import LogStore
from tallystick.errors import Misuse, Unavailable
from tallystick.runtime.seeded_disk import SeededDisk


def test_records_are_replayed_until_they_are_trimmed() -> None:
    disk = SeededDisk(1)
    store = LogStore(disk, SMALL)
    assert [store.journal.append(b"%d" % n) for n in range(3)] == [0, 1, 2]
    assert store.journal.replay() == []
    store.sync()
    assert LogStore(disk, SMALL).journal.replay() == [(0, b"0"), (1, b"1"), (2, b"2")]
    store.journal.trim(2)
    assert store.journal.append(b"3") == 3
    store.sync()
    assert LogStore(disk, SMALL).journal.replay() == store.journal.replay() == [(2, b"2"), (3, b"3")]
    with pytest.raises(Misuse, match="4 is the end"):
        store.journal.trim(5)


def test_the_file_is_replaced_and_keeps_marks_and_pending_records() -> None:
    disk = SeededDisk(1)
    limits = replace(SMALL, journal_file_bytes_max=1000)
    store = LogStore(disk, limits)
    for n in range(200):
        put(store, A, n=n)
        store.journal.append(b"operation %d" % n)
        store.sync()
        if n > 3:
            store.journal.trim(n - 3)
    assert len(contents(disk)["journal"]) < 2000
    reopened = LogStore(disk, limits)
    assert not reopened.recovery.lines()
    assert reopened.end(A) == 200
    assert reopened.journal.replay()[-4:] == [(n, b"operation %d" % n) for n in range(196, 200)]


def test_a_ledger_that_takes_nothing_stops_the_log() -> None:
    store = LogStore(SeededDisk(1), replace(SMALL, journal_pending_bytes_max=100))
    store.journal.append(bytes(60))
    store.sync()
    with pytest.raises(Unavailable, match="60 bytes of operations wait for the ledger"):
        store.journal.append(bytes(60))
    store.journal.trim(1)
    store.journal.append(bytes(60))
    store.sync()


def test_a_torn_last_group_is_cut_and_reported() -> None:
    disk = SeededDisk(1)
    store = LogStore(disk, SMALL)
    for n in range(3):
        store.journal.append(b"operation %d" % n)
        store.sync()
    store.close()
    file = disk.open("journal")
    file.truncate(file.size() - 1)
    file.sync()
    reopened = LogStore(disk, SMALL)
    assert [str(cut) for cut in reopened.recovery.cuts] == [
        "journal: cut 32 bytes behind offset 2 (0 whole entries, none of them acknowledged)"
    ]
    assert len(reopened.journal.replay()) == 2
