"""The power fails at any moment, again and again: nothing acknowledged is lost, nothing half-done is kept.

Each seed drives one store through several lives. A model keeps what was acknowledged, and the one group that
was on its way when the power failed: after the crash that group must be there in all its partitions, blobs and
records, or in none. To replay a failure: pytest -k "crash and every" with SEEDS narrowed to the seed it names.
"""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import dataclass, field, replace

import pytest
from log_parcels import SMALL, A, B, C, Opaque, opaque, read_through

from tallystick.carriers.log.store import LogStore
from tallystick.carriers.storage import Place
from tallystick.errors import Unavailable
from tallystick.runtime.disk import File
from tallystick.runtime.seeded_disk import SeededDisk

SEEDS = range(300)
LIVES = 4
LIMITS = replace(SMALL, segment_bytes_max=3000, journal_file_bytes_max=1500)


@dataclass
class Model:
    """What a store must hold."""

    entries: dict[Place, list[Opaque]] = field(default_factory=lambda: {A: [], B: [], C: []})
    blobs: dict[bytes, bytes] = field(default_factory=dict)
    records: list[bytes] = field(default_factory=list)
    below: dict[Place, int] = field(default_factory=dict)


class Driver:
    """One store driven by a seed, with its model."""

    def __init__(self, seed: int, disk: SeededDisk) -> None:
        self.chooser = random.Random(seed)
        self.disk = disk
        self.sure = Model()  # acknowledged
        self.possible = self.sure  # what else the disk may hold: the group on its way as well
        self.parcels = 0
        self.trimmed = 0

    def live(self) -> None:
        """One life: open (the power may fail in that, too), compare, work until the power fails."""
        if self.chooser.random() < 0.3:
            self.disk.power_off_after(self.chooser.randint(1, 4))
        try:
            store = LogStore(self.disk, LIMITS)
        except Unavailable:
            self.disk.crash()
            return
        self.compare(store)
        self.disk.power_off_after(self.chooser.randint(1, 60))
        try:
            while True:
                self.act(store)
        except Unavailable:
            self.disk.crash()

    def act(self, store: LogStore) -> None:
        roll = self.chooser.random()
        if roll < 0.1:
            self.retire(store)
        elif roll < 0.15:
            self.trimmed = store.journal.replay_end
            store.journal.trim(self.trimmed)
        else:
            self.commit(store)

    def commit(self, store: LogStore) -> None:
        self.possible = deepcopy(self.sure)
        for _ in range(self.chooser.randint(1, 8)):
            self.stage(store)
        store.sync()
        self.sure = self.possible

    def stage(self, store: LogStore) -> None:
        self.parcels += 1
        parcel = opaque(self.parcels, body_bytes=self.chooser.choice((0, 40, 700, 2500)))
        places = self.chooser.sample([A, B, C], self.chooser.randint(1, 3))
        with store.staging:
            staged = store.stage(places, *parcel, now_ms=self.parcels)
            store.journal.append(b"operation %d" % self.parcels)
            store.deposit(parcel.parcel_hash, parcel.header)
        for place, offset in zip(staged.places, staged.planned, strict=True):
            assert offset == len(self.possible.entries[place])
            self.possible.entries[place].append(parcel)
        self.possible.records.append(b"operation %d" % self.parcels)
        self.possible.blobs[parcel.parcel_hash] = parcel.header

    def retire(self, store: LogStore) -> None:
        place = self.chooser.choice([place for place in (A, B, C) if self.sure.entries[place]] or [None])
        if place is None:
            return
        below = store.retirable(place, max(0, len(self.sure.entries[place]) - 15))
        self.possible = deepcopy(self.sure)
        self.possible.below[place] = below
        store.retire(place, below)
        self.sure = self.possible

    def compare(self, store: LogStore) -> None:
        assert not store.recovery.damages, store.recovery.lines()
        found = [model for model in (self.sure, self.possible) if self.holds(store, model)]
        assert found, "neither what was acknowledged nor that with the last group"
        self.sure = self.possible = found[0]

    def holds(self, store: LogStore, model: Model) -> bool:
        records = [record for _, record in store.journal.replay()]
        return (
            len(store.blobs) == len(model.blobs)
            and all(store.blobs.get(name) == data for name, data in model.blobs.items())
            and records == model.records[len(model.records) - len(records) :]
            and store.journal.replay_end == len(model.records)
            and len(records) >= len(model.records) - self.trimmed
            and all(self.holds_partition(store, model, place) for place in model.entries)
        )

    def holds_partition(self, store: LogStore, model: Model, place: Place) -> bool:
        expected, below = model.entries[place], model.below.get(place, 0)
        if not expected:
            return store.end(place) == 0
        partition = store.tree(place)
        if (partition.end_offset, partition.below) != (len(expected), below):
            return False
        heads = read_through(store, place, headers_only=True)
        whole = read_through(store, place, first=below)
        return [(e.parcel_hash, e.header) for e in heads] == [p[:2] for p in expected] and [e.body for e in whole] == [
            p.body for p in expected[below:]
        ]


@pytest.mark.parametrize("start", range(0, len(SEEDS), 50))
def test_a_crash_loses_nothing_acknowledged_whatever_every_seed_does(start: int) -> None:
    for seed in SEEDS[start : start + 50]:
        driver = Driver(seed, SeededDisk(seed))
        try:
            for _ in range(LIVES):
                driver.live()
            driver.compare(LogStore(driver.disk, LIMITS))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_crashes_leave_tails_to_cut_and_groups_to_keep() -> None:
    """The seeds above do reach both outcomes of a group on its way, and cuts of whole and torn entries."""
    cuts = kept = 0
    for seed in SEEDS[:60]:
        driver = Driver(seed, SeededDisk(seed))
        driver.live()
        store = LogStore(driver.disk, LIMITS)
        cuts += len(store.recovery.cuts)
        kept += not driver.holds(store, driver.sure)
    assert cuts
    assert kept


class _LyingFile:
    """A file whose sync does nothing."""

    def __init__(self, file: File) -> None:
        self.pread, self.pwrite, self.truncate = file.pread, file.pwrite, file.truncate
        self.size, self.close = file.size, file.close

    def sync(self) -> None:
        pass


class LyingDisk(SeededDisk):
    """A disk that acknowledges syncs of files without doing them, as some do."""

    def open(self, path: str, create: bool = False) -> File:  # type: ignore[override]
        return _LyingFile(super().open(path, create))


def test_without_syncing_acknowledged_parcels_are_lost() -> None:
    lost = 0
    for seed in SEEDS[:40]:
        driver = Driver(seed, LyingDisk(seed))
        try:
            driver.live()
            driver.compare(LogStore(driver.disk, LIMITS))
        except (AssertionError, Unavailable):
            lost += 1
    assert lost > 20


class NoOrderDisk(SeededDisk):
    """Used to show that the order of the two syncs matters: segments reach the platter only when told."""

    withheld: bool = False

    def open(self, path: str, create: bool = False) -> File:  # type: ignore[override]
        file = super().open(path, create)
        return _LyingFile(file) if self.withheld and path.endswith(".segment") else file


def test_a_journal_ahead_of_its_segments_is_reported_as_damage() -> None:
    """Were the journal durable before the segments, a crash would look like this: promised, and not there."""
    damaged = 0
    for seed in range(20):
        disk = NoOrderDisk(seed)
        store = LogStore(disk, LIMITS)
        driver = Driver(seed, disk)
        driver.commit(store)
        disk.withheld = True
        driver.commit(store)
        disk.crash()
        disk.withheld = False
        damaged += bool(LogStore(disk, LIMITS).recovery.damages)
    assert damaged > 5
