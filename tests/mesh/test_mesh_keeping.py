"""From a mesh node's log into the mesh: what is turned away, and what leaves only when it is durable."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from mesh_parcels import pushed
from mesh_stack import LIMITS, SETTINGS, KeyMaker
from without import without

from tallystick.carriers.log.store import LogStore
from tallystick.carriers.mesh.keeping import MeshStorage
from tallystick.carriers.mesh.limits import MeshLimits
from tallystick.carriers.mesh.station import MeshOutside, MeshStation
from tallystick.carriers.received import releasable
from tallystick.carriers.storage import Place, Taken
from tallystick.errors import TallystickError, Unavailable
from tallystick.ledger.contracts.retention import EARLIER, Earlier, Retention
from tallystick.ledger.contracts.topics import TOPICS, TopicRow
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.runtime.sources import ManualClock

TOKEN = b"t" * 16
CLOCK = ManualClock()
NOW_MS = int(CLOCK.now() * 1000)
MAKER = KeyMaker(bytes(32), CLOCK)
KEYS = MAKER.topic("anna", TOKEN, reads=False, publishes=True)


@pytest.fixture
def station() -> MeshStation:
    made = MeshStation(MAKER.kit("anna", KEYS), MeshOutside(settings=SETTINGS, clock=CLOCK), lambda *_: None)
    made.stop()
    return made


def storage_of(station: MeshStation | None, limits: MeshLimits = LIMITS) -> MeshStorage:
    return MeshStorage(LogStore(SeededDisk(1)), lambda: station, limits)


def taken(sequence: int, now_ms: int = NOW_MS, token: bytes = TOKEN) -> Taken:
    parcel = Parcel.decode(pushed("lane", sequence).parcel)
    return Taken(parcel, b"p" * 16, (Place(token, 0),), now_ms)


def errors(storage: MeshStorage, *parcels: Taken) -> list[TallystickError | None]:
    storage.carry(parcels)
    return [one.error for one in parcels]


def test_without_keys_or_a_station_nothing_is_taken(station: MeshStation) -> None:
    assert isinstance(errors(storage_of(None), taken(0))[0], Unavailable)
    assert isinstance(errors(storage_of(station), taken(0, token=b"u" * 16))[0], Unavailable)
    assert errors(storage_of(station), taken(0)) == [None]


def test_more_than_the_guards_of_others_let_pass_is_turned_away(station: MeshStation) -> None:
    storage = storage_of(station, replace(LIMITS, window_share_max=10))
    storage._sent_ms.extend([NOW_MS] * 5)
    found = errors(storage, *(taken(number) for number in range(6)))
    assert [one is None for one in found] == [True] * 4 + [False] * 2
    later = NOW_MS + LIMITS.delay_max_ms + LIMITS.skew_max_ms
    assert errors(storage, taken(6, later)) == [None]


def test_it_leaves_when_it_is_durable_and_not_before(station: MeshStation) -> None:
    storage = storage_of(station)
    one = taken(0)
    storage.carry([one])
    storage.sync()  # somebody else's
    assert not station._leaving
    storage.store(one)
    with without("the way out of a mesh node's log"):  # which is asked now
        storage.sync()
    assert storage.end(Place(TOKEN, 0)) == 1
    assert not storage._leaving


# --- how long it is kept ---


EVERYTHING = TopicRow(b"", b"", 1, 1, 0, [], 1, b"", 0, 0)


def kept_until(row: TopicRow | None, earlier: list[Earlier], now_ms: int) -> int:
    """Below which offset ten parcels, of which one came every second, may go."""
    storage = LogStore(SeededDisk(1))
    for number in range(10):
        storage.store(taken(number, NOW_MS + 1000 * number))
        storage.sync()
    rows: dict[bytes, Any] = {TOPICS(TOKEN): row, EARLIER(TOKEN): earlier}
    return releasable(storage, Place(TOKEN, 0), lambda key: rows.get(key), now_ms)


def test_a_node_s_log_keeps_what_the_topic_s_owner_has_kept() -> None:
    hour, three = EVERYTHING._replace(keep_ms=3_600_000), EVERYTHING._replace(keep_parcels=3)
    late = NOW_MS + 3_604_500
    assert kept_until(None, [], late) == kept_until(EVERYTHING, [], late) == 0
    assert kept_until(hour, [], NOW_MS + 9_000) == 0
    assert kept_until(hour, [], late) == 5
    assert kept_until(three, [], late) == 7


def test_a_shorter_promise_is_for_what_comes_after_it() -> None:
    three = EVERYTHING._replace(keep_parcels=3)
    assert kept_until(three, [Earlier(NOW_MS + 2_500, Retention(age_ms=60_000))], NOW_MS + 9_000) == 0
    assert kept_until(three, [Earlier(NOW_MS + 2_500, Retention(age_ms=60_000))], NOW_MS + 62_600) == 7


def test_what_the_disk_did_not_take_never_leaves(station: MeshStation) -> None:
    storage = storage_of(station)
    one = taken(0)
    storage.carry([one])
    storage.store(one)
    assert isinstance(storage.disk, SeededDisk)
    storage.disk.fill(0)
    with pytest.raises(Unavailable):
        storage.sync()
    storage.disk.fill(None)
    storage.sync()
    assert not station._leaving
    assert not storage._leaving
