"""The index of lanes: what it says is what the headers say, after a crash at any moment, on a file that was changed, or
after an upgrade; where it cannot say, it says so until it was made anew.

Runs have eight offsets here. To replay a failure of a seed: pytest -k every, with SEEDS narrowed to the seed it names.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from log_parcels import SMALL, A, B
from makers import World, rows

from tallystick.carriers.heads import READS_MAX, Heads, LaneIndex, ReadsLeft
from tallystick.carriers.log.store import LogStore
from tallystick.carriers.storage import Location, Place, Taken, headers_of
from tallystick.errors import TallystickError, Unavailable
from tallystick.parcel.header import Header
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.disk import Disk
from tallystick.runtime.seeded_disk import SeededDisk

SEEDS = range(24)
LIVES = 4
LENGTH = 8
LANES = [bytes([number]) * 16 for number in range(4)]
LIMITS = replace(SMALL, segment_bytes_max=20_000)

PARCEL = World().lane().seal(rows(0, 1), now_ms=1, entropy=bytes(32))


def principal_of(header: Header) -> bytes:
    return header.topics[0].permit


PRINCIPAL = principal_of(PARCEL.header)


def parcel(lane: bytes, sequence: int, salt: int = 0) -> Parcel:
    previous = b"p" * 32 if sequence else PARCEL.header.previous
    header = replace(PARCEL.header, lane=lane, sequence=sequence, previous=previous, time_ms=salt)
    return Parcel(header, bytes(64), b"body")


class Life:
    """A log and its lanes from one start to the next."""

    def __init__(self, disk: Disk, run: int = LENGTH) -> None:
        self.store = LogStore(disk, LIMITS)
        self.heads = Heads(self.store, 1000, principal_of, run)

    @property
    def index(self) -> LaneIndex:
        return self.heads.index

    def put(self, *parcels: tuple[Place, Parcel]) -> None:
        """One group, as the front stores it."""
        taken = [Taken(one, PRINCIPAL, (place,), 1) for place, one in parcels]
        for one in taken:
            self.store.store(one)
        self.store.sync()
        for one in taken:
            self.heads.stored(PRINCIPAL, one.parcel.header, Location(one.places, one.offsets))

    def next_of(self, lane: bytes) -> int:
        head = self.heads.lanes.head(PRINCIPAL, lane)
        return 0 if head is None else head.sequence + 1

    def fill(self, place: Place, count: int, lanes: int = len(LANES)) -> None:
        for number in range(count):
            lane = LANES[number % lanes]
            self.put((place, parcel(lane, self.next_of(lane))))

    def stop(self) -> None:
        self.heads.save()
        self.store.close()

    def build(self) -> None:
        while self.index.build():
            pass

    def mend(self) -> None:
        """Ask, so that what does not count is found, and let it be made."""
        for place in (A, B):
            self.check(place)
        self.build()
        assert [self.check(place) for place in (A, B)] == [0, 0]

    def truth(self, place: Place) -> dict[int, Header]:
        found = headers_of(self.store, place, 0, self.store.end(place))
        return {entry.offset: Parcel.decode_front(entry.header).header for entry in found}

    def questions(self, place: Place) -> Iterator[tuple[int | None, Callable[[], int | None]]]:
        """Every answer that the headers give, and the question for it."""
        truth, index = self.truth(place), self.index
        for lane in [*LANES, b"?" * 16]:
            own = [offset for offset, header in truth.items() if header.lane == lane]
            for sequence in range(len(truth) + 1):
                at = next((offset for offset in own if truth[offset].sequence == sequence), None)
                asked = replace(PARCEL.header, lane=lane, sequence=sequence)
                yield at, partial(index.find, place, PRINCIPAL, asked, ReadsLeft())
            for below in range(len(truth) + 2):
                last = max((offset for offset in own if offset < below), default=None)
                yield last, partial(index.last_below, place, PRINCIPAL, lane, below, ReadsLeft())

    def check(self, place: Place) -> int:
        """No answer is wrong. Returns how many there were not yet."""
        refused = 0
        for expected, ask in self.questions(place):
            try:
                assert ask() == expected
            except Unavailable:
                refused += 1
        return refused


@pytest.fixture
def disk() -> SeededDisk:
    return SeededDisk(0)


def index_files(disk: Disk) -> list[str]:
    return [f"lanes/{name}" for name in disk.listdir("lanes")]


def test_every_answer_is_that_of_the_headers(disk: SeededDisk) -> None:
    life = Life(disk)
    life.fill(A, 3 * LENGTH + 5)
    life.fill(B, LENGTH)
    assert (life.check(A), life.check(B)) == (0, 0)
    life.stop()
    again = Life(disk)
    assert not again.index.build()  # nothing is missing
    assert (again.check(A), again.check(B)) == (0, 0)
    again.fill(A, LENGTH)
    assert again.check(A) == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_after_every_crash_it_is_right_or_made_anew(seed: int) -> None:
    disk, chooser = SeededDisk(seed), random.Random(seed)
    for _ in range(LIVES):  # one after the other, each ends without warning
        with suppress(Unavailable, OSError):
            life = Life(disk)
            life.mend()
            disk.power_off_after(chooser.randint(1, 80))
            for _ in range(chooser.randint(1, 20)):
                group = {lane: chooser.choice([A, B]) for lane in chooser.sample(LANES, chooser.randint(1, 3))}
                life.put(*((place, parcel(lane, life.next_of(lane), seed)) for lane, place in group.items()))
            if chooser.random() < 0.7:
                life.stop()
        disk.crash()
    Life(disk).mend()


def test_a_changed_byte_gives_no_wrong_answer_and_the_run_is_made_anew(disk: SeededDisk, seed: int) -> None:
    chooser = random.Random(seed)
    life = Life(disk)
    life.fill(A, 3 * LENGTH + 5)
    life.stop()
    refused = 0
    for path in index_files(disk):
        for _ in range(6):
            file = disk.open(path)
            at = chooser.randrange(file.size())
            before = file.pread(at, 1)
            file.pwrite(at, bytes([before[0] ^ 1 << chooser.randrange(8)]))
            changed = Life(disk)
            refused += changed.check(A)
            changed.build()
            assert changed.check(A) == 0, (path, at)
            file.pwrite(at, before)
            file.close()
    assert refused


def test_what_lies_there_again_has_no_row(disk: SeededDisk) -> None:
    """As on Kafka, where a gateway may bring what another brought before."""
    life = Life(disk)
    life.put(*((A, parcel(LANES[0], number)) for number in range(4)))
    again = Taken(parcel(LANES[0], 1), PRINCIPAL, (A,), 1)
    life.store.store(again)
    life.store.sync()
    life.index.cover(A, 5)
    life.heads.stored(PRINCIPAL, again.parcel.header, Location((A,), again.offsets))
    asked = replace(PARCEL.header, lane=LANES[0], sequence=1)
    assert life.index.find(A, PRINCIPAL, asked, ReadsLeft()) == 1
    head = parcel(LANES[0], 3)
    life.heads.stored(PRINCIPAL, head.header, Location((A,), (6,)))
    assert life.heads.where(PRINCIPAL, LANES[0]) == Location((A,), (3,))  # where it lay first


def test_files_of_another_log_do_not_count(disk: SeededDisk) -> None:
    """As after a log was restored without its index: other parcels lie at the same offsets."""
    life, other = Life(disk), Life(SeededDisk(1))
    life.fill(A, 3 * LENGTH)
    other.fill(A, 3 * LENGTH, lanes=2)
    life.stop()
    other.stop()
    for path in index_files(disk):
        other.store.disk.remove(path)
        file, copy = disk.open(path), other.store.disk.open(path, create=True)
        copy.pwrite(0, file.pread(0, file.size()))
    again = Life(other.store.disk)
    assert again.check(A) > 0
    again.build()
    assert again.check(A) == 0


def test_after_an_upgrade_no_header_is_read_to_start_and_runs_are_made_beside(disk: SeededDisk) -> None:
    life = Life(disk)
    life.fill(A, 3 * LENGTH + 5)
    life.stop()
    for path in index_files(disk):
        disk.remove(path)
    store = LogStore(disk, LIMITS)
    reads = count_headers(store)
    heads = Heads(store, 1000, principal_of, LENGTH)
    assert reads == []
    with pytest.raises(Unavailable, match="is being made"):
        heads.index.find(A, PRINCIPAL, PARCEL.header, ReadsLeft())
    assert reads == []  # whoever asks reads nothing either
    upgraded = Life(disk)
    upgraded.fill(A, 2 * LENGTH)  # it grows on meanwhile, past the end of the run that was begun before
    assert upgraded.check(A) > 0
    upgraded.build()
    assert upgraded.check(A) == 0
    upgraded.stop()
    assert Life(disk).check(A) == 0


def count_headers(store: LogStore) -> list[int]:
    """Offsets of headers that are read from now on."""
    seen: list[int] = []
    read = store.read

    def counting(*args: Any, **options: Any) -> Any:
        entries = read(*args, **options)
        seen.extend(entry.offset for entry in entries)
        return entries

    store.read = counting
    return seen


def test_what_the_log_does_not_confirm_is_made_anew(disk: SeededDisk) -> None:
    life = Life(disk)
    life.fill(A, 2 * LENGTH + 3)
    for offset in (2, 2 * LENGTH + 1):  # in a file, and in memory
        assert life.check(A) == 0
        told = life.index.distrust(A, offset)
        assert "is being made" in str(told)
        assert life.check(A) > 0
        life.build()
    assert life.check(A) == 0


def test_a_run_that_a_full_disk_did_not_take_is_made_when_somebody_asks(disk: SeededDisk) -> None:
    life = Life(disk)
    life.fill(A, LENGTH)
    life.index.distrust(A, 0)
    life.fill(A, 1)
    disk.fill(0)
    life.build()
    disk.fill(None)
    assert life.check(A) > 0
    life.build()
    assert life.check(A) == 0


def test_a_question_goes_to_the_disk_a_bounded_number_of_times(disk: SeededDisk) -> None:
    life = Life(disk)
    life.put((A, parcel(LANES[1], 0)), *((A, parcel(LANES[0], number)) for number in range((READS_MAX + 10) * LENGTH)))
    asked = replace(PARCEL.header, lane=LANES[1], sequence=0)
    life.stop()
    again = Life(disk)
    work = ReadsLeft()
    with pytest.raises(Unavailable, match="reads away"):
        again.index.find(A, PRINCIPAL, asked, work)
    assert work.reads == 0
    assert again.index.find(A, PRINCIPAL, asked, ReadsLeft()) == 0  # what was read once is held
    work = ReadsLeft()
    assert again.index.find(A, PRINCIPAL, asked, work) == 0
    assert work.reads == READS_MAX - 1


def test_errors_of_the_storage_end_no_work(disk: SeededDisk) -> None:
    life = Life(disk)
    life.fill(A, LENGTH + 1)
    life.index.distrust(A, 0)

    def fail(*_: Any, **__: Any) -> Any:
        raise TallystickError("damaged")

    life.store.read = fail
    life.build()
    assert not life.index.build()  # it waits for somebody to ask
