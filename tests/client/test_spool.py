"""The spool after a crash: what was synced is there, and damage is not taken for what was never sent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import makers
import pytest

from tallystick.client import spool as spools
from tallystick.client.spool import RowsMark, Spool, UnsureSpool
from tallystick.errors import Malformed, Unavailable
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.seeded_disk import SeededDisk

SMALL = 1_500  # bytes a segment: two parcels or so


def parcels(count: int) -> list[Parcel]:
    lane = makers.World().lane()
    return [lane.seal(makers.rows(n, 1), now_ms=0, entropy=makers.entropy(n)) for n in range(count)]


def spool_with(disk: SeededDisk, sealed: list[Parcel]) -> Spool:
    spool = Spool(disk, SMALL)
    spool.put_lane(sealed[0].header.lane, b"record")
    for parcel in sealed:
        spool.append(parcel)
    return spool


@pytest.mark.parametrize("number", range(20))
def test_what_was_synced_is_there_and_what_follows_is_one_run(number: int) -> None:
    disk, sealed = SeededDisk(number), parcels(8)
    lane = sealed[0].header.lane
    spool = spool_with(disk, sealed[:4])
    spool.sync()
    for parcel in sealed[4:]:
        spool.append(parcel)
    disk.crash()
    kept = Spool(disk, SMALL).kept(lane)
    assert kept[:4] == [0, 1, 2, 3]
    assert kept == list(range(len(kept)))


def test_rot_below_the_end_is_damage_and_never_cut() -> None:
    """To go on below a sequence that was sent would be equivocation."""
    disk, sealed = SeededDisk(1), parcels(8)
    spool_with(disk, sealed).sync()
    folder = sealed[0].header.lane.hex()
    disk.flip(f"{folder}/0", 100)
    with pytest.raises(Malformed, match="damaged"):
        Spool(disk, SMALL)


def test_a_full_disk_is_told_and_tried_again() -> None:
    disk, sealed = SeededDisk(1), parcels(3)
    lane = sealed[0].header.lane
    spool = spool_with(disk, sealed[:1])
    spool.sync()
    disk.fill(100)
    with pytest.raises(Unavailable):
        spool.append(sealed[1])
    disk.fill(None)
    spool.append(sealed[1])
    spool.sync()
    disk.crash()
    assert Spool(disk, SMALL).kept(lane) == [0, 1]


def test_a_sync_that_fails_ends_the_use_of_the_spool() -> None:
    disk = SeededDisk(1)
    spool = spool_with(disk, parcels(1))
    disk.fail_sync()
    with pytest.raises(UnsureSpool):
        spool.sync()


class BusyDisk(SeededDisk):
    """Something happens between the sync of a file and its answer."""

    meanwhile: Callable[[], None] | None = None

    def sync_file(self, inode: Any) -> None:
        super().sync_file(inode)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()


def test_what_is_written_while_the_disk_syncs_is_not_taken_for_durable() -> None:
    disk, sealed = BusyDisk(1), parcels(2)
    spool = spool_with(disk, sealed[:1])
    disk.meanwhile = lambda: spool.append(sealed[1])
    spool.sync()
    synced = disk.syncs
    spool.sync()
    assert disk.syncs == synced + 1
    spool.sync()
    assert disk.syncs == synced + 1


@pytest.mark.parametrize("number", range(10))
def test_what_a_killed_process_did_not_sync_is_durable_once_it_was_read(number: int) -> None:
    """Its successor sends it: a power cut behind that must not take it back."""
    disk, sealed = SeededDisk(number), parcels(2)
    spool_with(disk, sealed)  # and no sync: a kill leaves what was written where it is
    kept = Spool(disk, SMALL).kept(sealed[0].header.lane)
    disk.crash()
    assert Spool(disk, SMALL).kept(sealed[0].header.lane) == kept == [0, 1]


@pytest.mark.parametrize("change", range(1, 8))
def test_a_lane_is_dropped_whole_or_not_at_all(change: int) -> None:
    disk, sealed = SeededDisk(change), parcels(8)
    lane = sealed[0].header.lane
    spool = spool_with(disk, sealed)
    spool.sync()
    disk.power_off_after(change)
    with suppress(Unavailable, OSError):
        spool.drop_lane(lane)
    disk.crash()
    again = Spool(disk, SMALL)
    assert again.lanes() == [] or again.kept(lane) == list(range(8))


# --- marks ---


def append_marked(spool: Spool, sealed: list[Parcel]) -> None:
    for parcel in sealed:
        spool.append(parcel, RowsMark("rows", parcel.header.sequence + 1))


@pytest.mark.parametrize("seed", range(100))
def test_the_mark_is_that_of_the_last_parcel_that_is_here_or_nobody_knows(seed: int) -> None:
    """One lane or two, synced now and then; marks of what is safe are left out, as when there are many."""
    random, disk, world = Random(seed), SeededDisk(seed), makers.World()
    spool, lanes = Spool(disk, SMALL), [world.lane() for _ in range(random.choice([1, 2]))]
    for number, lane in enumerate(lanes):
        lane.lane = bytes([number] * 16)
        spool.put_lane(lane.lane, b"record")
    places: list[tuple[bytes, int]] = []
    for number in range(random.randrange(12)):
        parcel = random.choice(lanes).seal(makers.rows(number, 1), now_ms=0, entropy=makers.entropy(number))
        spool.append(parcel, RowsMark("rows", number + 1))
        places.append((parcel.header.lane, parcel.header.sequence))
        if random.random() < 0.3:
            spool.sync()
            if random.random() < 0.2:
                spool._write_marks(spool._lines[-1:])
    if is_power_cut := random.random() < 0.7:  # else the process alone died
        disk.crash()
    again = Spool(disk, SMALL)
    marked, here = again.marked, [sequence in again.kept(lane) for lane, sequence in places]
    if marked is not None and marked.rows == -1:
        assert is_power_cut
    else:
        rows = 0 if marked is None else marked.rows
        assert here == [True] * rows + [False] * (len(places) - rows)
    assert Spool(disk, SMALL).marked == marked


def test_a_mark_whose_parcel_was_not_written_does_not_count() -> None:
    disk, sealed = SeededDisk(1), parcels(4)
    lane = sealed[0].header.lane
    spool = spool_with(disk, sealed[:1])
    append_marked(spool, sealed[1:3])
    spool._note(spools._MarkLine(lane.hex(), 3, sealed[3].hash.hex(), RowsMark("rows", 4)))  # killed here
    again = Spool(disk, SMALL)
    assert again.marked == RowsMark("rows", 3)
    again.append(sealed[3])  # whoever takes it up goes on without marks: what was found stays found
    assert Spool(disk, SMALL).marked == RowsMark("rows", 3)
    Spool(disk, SMALL).drop_lane(lane)
    assert Spool(disk, SMALL).marked == RowsMark("rows", 3)


def test_what_is_anchored_and_forgotten_was_written() -> None:
    disk, sealed = SeededDisk(1), parcels(6)
    lane = sealed[0].header.lane
    spool = spool_with(disk, sealed[:1])
    append_marked(spool, sealed[1:])
    spool.sync()
    for sequence in range(6):
        spool.forget(lane, sequence)
    assert Spool(disk, SMALL).marked == RowsMark("rows", 6)
    Spool(disk, SMALL).drop_lane(lane)
    assert Spool(disk, SMALL).marked == RowsMark("rows", 6)


def test_rows_without_a_mark_among_others_make_it_doubtful() -> None:
    disk, sealed = SeededDisk(1), parcels(4)
    spool = spool_with(disk, sealed[:1])
    append_marked(spool, sealed[1:3])
    spool.append(sealed[3])
    assert Spool(disk, SMALL).marked == RowsMark("rows", -1)


def test_marks_are_bounded_and_a_full_disk_leaves_them_right() -> None:
    disk, sealed = SeededDisk(1), parcels(6)
    lane, long = sealed[0].header.lane, "x" * (spools._MARKS_BYTES_MAX // 2)
    spool = spool_with(disk, sealed[:1])
    for parcel in sealed[1:4]:
        spool.append(parcel, RowsMark(long, parcel.header.sequence + 1))
    spool.sync()
    assert disk.size("marks") < spools._MARKS_BYTES_MAX
    disk.fill(100)
    with pytest.raises(Unavailable):
        append_marked(spool, sealed[4:5])
    disk.fill(None)
    append_marked(spool, sealed[4:6])
    assert Spool(disk, SMALL).marked == RowsMark("rows", 6)
    assert Spool(disk, SMALL).kept(lane) == [*range(6)]
