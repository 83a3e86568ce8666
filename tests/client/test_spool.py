"""The spool after a crash: what was synced is there, and damage is not taken for what was never sent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import makers
import pytest

from tallystick.client.spool import Spool, UnsureSpool
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
