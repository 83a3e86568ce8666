"""A full or failing disk is an error to the publisher, not a loss, and a full one is survived."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace

import pytest
from log_parcels import SMALL, A, B, opaque, put, read_through

from tallystick.carriers.log.report import UnsureLog
from tallystick.carriers.log.store import LogStore
from tallystick.errors import Unavailable
from tallystick.runtime.seeded_disk import SeededDisk


@pytest.mark.parametrize("free", [*range(0, 1200, 50), 1500, 1800])
def test_a_full_disk_stores_all_or_nothing_and_recovers(free: int) -> None:
    disk = SeededDisk(free)
    store = LogStore(disk, SMALL)
    put(store, A, n=0)
    store.sync()
    disk.fill(free)
    staged = [put(store, A, B, n=n) for n in range(1, 4)]
    store.journal.append(b"operation")
    with suppress(Unavailable):
        store.sync()
    stored = store.end(A)
    assert stored in (1, 4)
    for parcel in staged:
        with pytest.raises(Unavailable, match="disk full") if stored == 1 else nullcontext():
            assert parcel.offsets == parcel.planned
    assert (store.end(A), store.end(B)) == (stored, stored - 1)
    assert len(store.journal.replay()) == (stored > 1)
    disk.fill(None)
    again = put(store, A, B, n=9)
    store.sync()
    assert again.offsets == (stored, stored - 1)
    disk.crash()
    reopened = LogStore(disk, SMALL)
    assert not reopened.recovery.damages
    assert [entry.body for entry in read_through(reopened, A)] == [opaque(n).body for n in [*range(stored), 9]]


def test_failed_groups_that_reappear_after_a_crash_are_cut() -> None:
    """The undoing of a failed group is itself not synced: a crash may bring its frames back."""
    cuts = 0
    for seed in range(60):
        disk = SeededDisk(seed)
        store = LogStore(disk, SMALL)
        put(store, A, n=0)
        put(store, B, n=0)
        store.sync()
        disk.fill(230)  # room for the segment's frame, not for the journal's
        put(store, A, n=1)
        store.journal.append(bytes(100))
        with pytest.raises(Unavailable, match="disk full"):
            store.sync()
        disk.fill(None)
        put(store, B, n=2)
        store.sync()
        disk.crash()
        reopened = LogStore(disk, SMALL)
        assert not reopened.recovery.damages
        assert (reopened.end(A), reopened.end(B)) == (1, 2)
        cuts += len(reopened.recovery.cuts)
    assert cuts


def test_the_reserve_is_left_alone() -> None:
    disk = SeededDisk(1)
    store = LogStore(disk, replace(SMALL, reserve_bytes=10_000))
    disk.fill(10_100)
    put(store, A, n=1)
    with pytest.raises(Unavailable, match="10000 kept in reserve"):
        store.sync()
    assert disk.free_bytes() == 10_100


class BusyDisk(SeededDisk):
    """A disk that lets something else happen while a commit asks it for free space."""

    meanwhile: Callable[[], object] | None = None

    def free_bytes(self) -> int:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return super().free_bytes()


def test_what_was_staged_behind_a_failed_group_fails_with_it() -> None:
    """Its offsets counted on the group before; its owner learns of it, whoever called sync."""
    disk = BusyDisk(1)
    store = LogStore(disk, SMALL)
    disk.fill(0)
    parcels = [put(store, A, n=1)]
    disk.meanwhile = lambda: parcels.append(put(store, A, n=2))
    with pytest.raises(Unavailable):
        store.sync()
    assert [parcel.planned for parcel in parcels] == [(0,), (1,)]
    disk.fill(None)
    store.sync()
    for parcel in parcels:
        with pytest.raises(Unavailable, match="disk full"):
            _ = parcel.offsets
    third = put(store, A, n=3)
    store.sync()
    assert third.offsets == (0,)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_failing_sync_stops_the_store_until_it_is_opened_anew(failing: int) -> None:
    """A second sync would succeed without having written anything."""
    disk = SeededDisk(1)
    store = LogStore(disk, SMALL)
    put(store, A, n=0)
    store.sync()
    store.journal.append(b"operation")
    if failing == 1:
        put(store, A, n=1)
    disk.fail_sync()
    with pytest.raises(UnsureLog, match="could not be synced"):
        store.sync()
    with pytest.raises(UnsureLog):
        put(store, A, n=2)
    store.journal.append(b"operation")
    with pytest.raises(UnsureLog):
        store.sync()
    disk.crash()
    reopened = LogStore(disk, SMALL)
    assert not reopened.recovery.damages
    put(reopened, A, n=2)
    reopened.sync()
    assert [entry.body for entry in read_through(reopened, A)] == [opaque(0).body, opaque(2).body]


def test_a_closed_store_takes_nothing() -> None:
    store = LogStore(SeededDisk(1), SMALL)
    store.close()
    with pytest.raises(Unavailable, match="closed"):
        put(store, A, n=1)


def test_what_the_node_notes_may_use_the_reserve() -> None:
    """Else nothing stored before could be anchored, nor anything refused be told."""
    disk = SeededDisk(1)
    store = LogStore(disk, replace(SMALL, reserve_bytes=2_000))
    disk.fill(1_500)
    parcel = put(store, A, n=1)
    with pytest.raises(Unavailable, match="kept in reserve"):
        store.sync()
    with pytest.raises(Unavailable):
        assert parcel.offsets
    store.journal.append(b"operation")
    store.sync()
    assert [record for _, record in store.journal.replay()] == [b"operation"]
