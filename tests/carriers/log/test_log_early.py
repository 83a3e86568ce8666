"""Readers see a group while it is being synced, and the power fails: what they saw may be gone, but no other entry ever
gets its offset, however often that happens.

To replay a failure: pytest with SEEDS narrowed to the seed it names.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from log_parcels import SMALL, A, B, C, opaque, put, read_through
from without import without

from tallystick.carriers.carrier import is_void
from tallystick.carriers.log.report import UnsureLog
from tallystick.carriers.log.store import LogStore
from tallystick.carriers.storage import Place
from tallystick.errors import Unavailable
from tallystick.runtime.seeded_disk import SeededDisk

SEEDS = range(24)
LIVES = 4
EARLY_MAX = 8
LIMITS = replace(SMALL, segment_bytes_max=3000, journal_file_bytes_max=1500, early_max=EARLY_MAX)


class Witness:
    """What readers have seen, over all lives of a store."""

    def __init__(self) -> None:
        self.seen: dict[tuple[Place, int], bytes] = {}
        self.early = 0  # times at which something was seen before it was durable

    def look(self, store: LogStore) -> None:
        for place in (A, B, C):
            for entry in read_through(store, place, headers_only=True):
                self.seen.setdefault((place, entry.offset), entry.parcel_hash)

    def watch(self, store: LogStore) -> None:
        def look() -> None:
            self.early += 1
            self.look(store)

        store.on_early = look

    def holds(self, store: LogStore) -> bool:
        """Whether at each offset that was seen lies what was seen there, or nothing."""
        found = {(place, one.offset): one for place in (A, B, C) for one in read_through(store, place, True)}
        lies = [(found.get(at), name) for at, name in self.seen.items()]
        return all(one is not None and (one.parcel_hash == name or is_void(one.header)) for one, name in lies)


def live_on(seed: int) -> tuple[bool, int]:
    """Whether what was seen held through some lives, and how often something was seen early."""
    chooser, disk, witness, n = random.Random(seed), SeededDisk(seed), Witness(), 0
    for _ in range(LIVES):
        store = LogStore(disk, LIMITS)
        assert not store.recovery.damages
        if not witness.holds(store):
            return False, witness.early
        witness.look(store)
        witness.watch(store)
        disk.power_off_after(chooser.randint(1, 60))
        try:
            while True:
                for _ in range(chooser.randint(1, EARLY_MAX)):
                    n += 1
                    put(store, *chooser.sample([A, B, C], chooser.randint(1, 3)), n=n)
                store.sync()
                witness.look(store)
        except Unavailable:
            disk.crash()
    return witness.holds(LogStore(disk, LIMITS)), witness.early


@pytest.mark.parametrize("seed", SEEDS)
def test_no_offset_that_was_seen_goes_to_another_entry(seed: int) -> None:
    held, early = live_on(seed)
    assert held
    assert early


def test_without_room_for_what_was_seen_an_offset_is_given_twice() -> None:
    with without("the offsets that were seen early"):
        assert not all(live_on(seed)[0] for seed in SEEDS)


def started(disk: SeededDisk) -> LogStore:
    store = LogStore(disk, LIMITS)
    put(store, A, n=0)
    store.sync()
    return store


def test_a_log_that_was_closed_goes_on_where_it_ended() -> None:
    disk = SeededDisk(1)
    started(disk).close()
    disk.crash()
    assert LogStore(disk, LIMITS).end(A) == 1
    assert LogStore(disk, LIMITS).end(A) == 1 + EARLY_MAX  # the one before was not closed


def test_the_first_entries_of_a_partition_and_large_groups_are_seen_when_they_are_durable() -> None:
    disk, ends = SeededDisk(1), list[int]()
    store = LogStore(disk, LIMITS)
    store.on_early = lambda: ends.append(store.end(A))
    for n in range(2 + EARLY_MAX + 1):
        put(store, A, n=n)
        if n in (0, 1):
            store.sync()
    store.sync()
    assert ends == [2]
    assert store.end(A) == 3 + EARLY_MAX


@pytest.mark.parametrize("trouble", ["sync", "room"])
def test_what_was_seen_and_cannot_be_stored_stops_the_log(trouble: str) -> None:
    disk = SeededDisk(1)
    store = started(disk)

    def spoil() -> None:
        if trouble == "sync":
            disk.fail_sync()
        else:
            disk.fill(0)  # the journal's frame has no room

    store.on_early = spoil
    put(store, A, n=1)
    with pytest.raises(UnsureLog):
        store.sync()
    assert store.end(A) == 2
    with pytest.raises(UnsureLog):
        store.stage([A], *opaque(2), now_ms=2)
    disk.fill(None)
    disk.crash()
    assert LogStore(disk, LIMITS).end(A) > 2
