"""What a relay keeps beside its log: the tail has a bound, and what is told again is no more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from carrying_world import promised, sealed
from sharing_world import chain

from tallystick.carriers.log.store import LogStore
from tallystick.carriers.overlay import keeping
from tallystick.carriers.overlay.keeping import OverlayStorage
from tallystick.carriers.storage import Place, Taken
from tallystick.crypto.merkle import Tree, leaf_hash
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.disk import RealDisk
from tallystick.trust.promise import JointPromise

PLAN = chain((3,))
PARCELS = sealed(8)
HERE = Place(promised(PLAN, PARCELS[0], 0).token, 0)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[OverlayStorage]:
    found = OverlayStorage(LogStore(RealDisk(tmp_path)))
    yield found
    found.close()


def place(offset: int, parcel: Parcel, partition: int = 0) -> JointPromise:
    return replace(promised(PLAN, parcel, offset), partition=partition)


def tail_bytes(storage: OverlayStorage) -> int:
    return storage._tail_bytes


def test_the_log_grows_behind_the_anchor_and_the_tail_is_let_go(storage: OverlayStorage) -> None:
    for offset, parcel in enumerate(PARCELS):
        storage.keep(place(offset, parcel), parcel, is_own=True)
    assert storage.root_at(HERE, 5) == Tree([leaf_hash(one.hash) for one in PARCELS[:5]]).root()
    assert storage.root_at(HERE, 9) is None
    storage.grow(HERE, PARCELS[:5], 0)
    assert not storage.let_go(HERE)
    assert (storage.end(HERE), storage.tail(HERE)) == (5, list(PARCELS[5:]))
    assert storage.root_at(HERE, 8) == Tree([leaf_hash(one.hash) for one in PARCELS]).root()
    storage.grow(HERE, PARCELS[5:], 0)
    storage.let_go(HERE)
    assert tail_bytes(storage) == 0
    storage.keep(place(3, PARCELS[3]), PARCELS[3], is_own=False)  # late
    assert tail_bytes(storage) == 0


def test_what_had_a_promise_and_not_the_anchor_is_named(storage: OverlayStorage) -> None:
    storage.keep(place(0, PARCELS[0]), PARCELS[0], is_own=True)
    storage.grow(HERE, [PARCELS[1]], 0)
    assert storage.let_go(HERE) == [PARCELS[0]]
    assert storage.underway(HERE, PARCELS[0].hash) is None


def test_a_gap_ends_the_tail(storage: OverlayStorage) -> None:
    for offset in (0, 1, 3):
        storage.keep(place(offset, PARCELS[offset]), PARCELS[offset], is_own=False)
    assert storage.tail(HERE) == list(PARCELS[:2])


def test_what_is_told_again_does_not_count_again(storage: OverlayStorage) -> None:
    """A relay that starts again in the same process tells all places once more: else its tail would seem full soon."""
    for _ in range(3):
        storage.keep(place(0, PARCELS[0]), PARCELS[0], is_own=True)
        storage.keep(place(1, PARCELS[1]), PARCELS[1], is_own=True)
    once = tail_bytes(storage)
    storage.keep(replace(place(1, PARCELS[2]), fence=2), PARCELS[2], is_own=True)
    assert storage.underway(HERE, PARCELS[1].hash) is None
    assert storage.tail(HERE) == [PARCELS[0], PARCELS[2]]
    storage.grow(HERE, [PARCELS[0], PARCELS[2]], 0)
    storage.let_go(HERE)
    assert once > 0
    assert tail_bytes(storage) == 0


def test_what_is_recalled_has_no_place_until_it_gets_another(storage: OverlayStorage) -> None:
    """Also where two parcels change their places under one fence."""
    for offset in range(3):
        storage.keep(place(offset, PARCELS[offset]), PARCELS[offset], is_own=True)
    storage.recall(HERE, 1)
    assert storage.tail(HERE) == [PARCELS[0]]
    assert storage.underway(HERE, PARCELS[1].hash) is None
    for offset, number in ((1, 2), (2, 1)):
        storage.keep(place(offset, PARCELS[number]), PARCELS[number], is_own=True)
    assert [storage.underway(HERE, one.hash) for one in PARCELS[:3]] == [0, 2, 1]
    for offset in (1, 2):
        storage.keep(place(offset, PARCELS[offset]), PARCELS[offset], is_own=True)
    assert [storage.underway(HERE, one.hash) for one in PARCELS[:3]] == [0, 1, 2]


def test_the_tail_of_other_edges_parcels_has_a_bound(storage: OverlayStorage) -> None:
    """What is over it is caught up when it is anchored; what entered here was promised by this relay, and stays."""
    front = Parcel(PARCELS[0].header, PARCELS[0].signature, b"")
    count = keeping.TAIL_BYTES_MAX // 1_000
    promise = place(0, front)
    for offset in range(count):
        storage.keep(replace(promise, offset=offset), front, is_own=False)
    kept = len(storage._tails[HERE])
    assert kept < count  # empty bodies are not free
    assert tail_bytes(storage) < keeping.TAIL_BYTES_MAX + 10_000
    storage.keep(place(count, PARCELS[1], 1), PARCELS[1], is_own=True)
    assert storage.underway(Place(HERE.token, 1), PARCELS[1].hash) == count


def test_a_partition_that_stands_still_is_waited_for_once(storage: OverlayStorage) -> None:
    asked: list[Place] = []
    storage.patience_s = 0.2
    storage.propose = lambda place, parcel: asked.append(place)

    def carry(parcel: Parcel, partition: int) -> Taken:
        taken = Taken(parcel, b"P" * 16, (Place(HERE.token, partition),), 0)
        storage.carry([taken])
        return taken

    assert carry(PARCELS[0], 0).error is not None
    assert HERE in storage._stalled
    assert carry(PARCELS[1], 0).error is not None  # at once
    storage.keep(place(0, PARCELS[0]), PARCELS[0], is_own=True)
    assert carry(PARCELS[0], 0).error is None
    assert HERE not in storage._stalled
    assert len(asked) == 2
