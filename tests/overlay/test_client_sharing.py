"""Lane keys from a publisher to a reader, by their own ends, over real relays with TLS links; some of them gone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from edge_world import TOKEN, Rows
from makers import INSTANCE
from overlays import Claimant
from test_station import Town, wait_for
from without import without

from tallystick.carriers.overlay import sharing as module
from tallystick.carriers.overlay.direct import OverlayCarrier
from tallystick.carriers.registry import Wayfarer
from tallystick.carriers.remote import RemoteNode
from tallystick.errors import Unavailable
from tallystick.ledger.contracts.identity import IDENTITIES, IdentityRow
from tallystick.parcel.locks import ShareLock, decode_lock, lock_hash
from tallystick.runtime.sources import Clock, ManualClock, SystemClock, SystemEntropy

LANE = b"lane of the car."


class StationNode:
    """A relay's node, as far as frames go."""

    def __init__(self, town: Town, name: bytes, client: bytes) -> None:
        self._station, self._client, self.is_away = town.stations[name], client, False
        self.asked = 0

    def exchange_frames(self, frames: Sequence[bytes]) -> list[bytes]:
        self.asked += 1
        if self.is_away:
            raise Unavailable("away")
        for frame in frames:
            self._station.hear(self._client, frame)
        return self._station.mail.take(self._client)

    def advertise(self, permit: bytes) -> None:
        """Permits are the guards' business."""

    subscribe = advertise


class Linked:
    """Somebody at an edge."""

    def __init__(self, town: Town, claimant: Claimant, clock: Clock | None = None) -> None:
        self.claimant, me = claimant, claimant.permit.principal
        names = [relay.identifier for relay in town.plan.node(claimant.edge).relays]
        self.nodes = {name: StationNode(town, name, me) for name in names}
        self.rows = Rows(town.plan)
        for one in (town.publisher, town.reader):
            row = IdentityRow(1, bytes(16), one.key.public.raw, bytes(16), 0, 1 << 50, 1, 0, bytes(32))
            self.rows.held[IDENTITIES(one.permit.principal)] = row
        who = Wayfarer(cast(RemoteNode, self), me, claimant.key, self.rows, clock or SystemClock(), SystemEntropy())
        self.carrier = OverlayCarrier(town.plan.overlay, claimant.edge, who, self.rows)
        self.sharing = self.carrier.sharing

    def each(self) -> dict[bytes, StationNode]:
        return self.nodes

    def wants(self, publisher: bytes, lock: bytes, secret: bytes) -> None:
        wait_for(lambda: self.sharing.want(publisher, lock, self.claimant.permit.identifier) == secret)


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    with ExitStack() as stack:
        town = Town((3, 3), tmp_path, stack)
        routing = town.stations[town.plan.nodes[0].relays[0].identifier].relay.routing
        Linked(town, town.publisher).carrier.advertise(town.publisher.permit.encode())
        wait_for(lambda: all(one.relay.routing.statistics().live >= 1 for one in town.stations.values()))
        Linked(town, town.reader).carrier.subscribe(town.reader.permit.encode())
        wait_for(lambda: bool(routing.branches([TOKEN], None).nodes))
        edge = [relay.identifier for relay in town.plan.nodes[1].relays]
        wait_for(lambda: all(town.stations[one].relay.routing.subscriptions(TOKEN) for one in edge))
        yield town


def test_a_secret_comes_together_is_pulled_again_and_is_its_publishers_own(town: Town) -> None:
    car, me = Linked(town, town.publisher), town.publisher.permit.principal
    drawn = car.sharing.draw(INSTANCE, LANE, [TOKEN], int(time.time() * 1000))
    assert drawn is not None
    assert (drawn.given, drawn.plan) == (True, 1)
    lock = lock_hash(drawn.lock)
    assert isinstance(decode_lock(drawn.lock, lock), ShareLock)
    reader = Linked(town, town.reader)
    reader.wants(me, lock, drawn.secret)
    assert reader.sharing.want(b"another publisher", lock, bytes(16)) is None
    # Another process of this reader has nothing, and the mail was collected: it pulls, with a relay gone everywhere.
    for node in town.plan.nodes:
        town.stations[node.relays[2].identifier].stop()
    again = Linked(town, town.reader)
    again.nodes[town.plan.nodes[1].relays[2].identifier].is_away = True
    again.wants(me, lock, drawn.secret)


def test_where_too_few_relays_answer_a_lock_is_drawn_and_not_given(town: Town) -> None:
    car = Linked(town, town.publisher, ManualClock(time.time()))
    car.carrier.plan()
    for node in list(car.nodes.values())[:2]:
        node.is_away = True
    now_ms = int(time.time() * 1000)
    drawn = car.sharing.draw(INSTANCE, LANE, [TOKEN], now_ms)
    assert drawn is not None
    assert not drawn.given
    asked = sum(node.asked for node in car.nodes.values())
    other = car.sharing.draw(INSTANCE, LANE, [TOKEN], now_ms)
    assert other is not None
    assert not other.given
    assert sum(node.asked for node in car.nodes.values()) == asked  # who was away a moment ago is not asked again
    assert other.secret != drawn.secret
    with pytest.raises(Unavailable):
        car.sharing.check()


def test_topics_that_do_not_travel_have_no_share_locks(town: Town) -> None:
    car = Linked(town, town.publisher)
    assert car.sharing.version_for([TOKEN]) == 1
    assert car.sharing.version_for([TOKEN, bytes(16)]) is None
    assert car.sharing.draw(INSTANCE, LANE, [bytes(16)], 1) is None


def test_who_gives_shares_of_anothers_lock_opens_and_closes_nothing(town: Town) -> None:
    """Two secrets under one name: the reader of each publisher's parcels uses that publisher's."""
    reader, lock = Linked(town, town.reader), b"l" * 32
    for publisher, secret in ((b"the car's own id", b"1" * 32), (b"the other's name", b"2" * 32)):
        reader.sharing._add(publisher, lock, secret)
    assert reader.sharing.want(b"the car's own id", lock, bytes(16)) == b"1" * 32
    assert reader.sharing.want(b"the other's name", lock, bytes(16)) == b"2" * 32
    with without("secrets by their publisher"):
        assert reader.sharing.want(b"the car's own id", lock, bytes(16)) == b"2" * 32


def test_what_was_given_is_given_again_for_relays_that_were_away(town: Town) -> None:
    car, heard = Linked(town, town.publisher), list[Any]()
    drawn = car.sharing.draw(INSTANCE, LANE, [TOKEN], int(time.time() * 1000))
    assert drawn is not None
    assert len(car.sharing._again) == len(module.GIVEN_AGAIN_S)
    car.sharing._again = [(0.0, frames) for _, frames in car.sharing._again[:1]]
    node = next(iter(car.nodes.values()))
    wait_for(lambda: node.asked == 1)  # the others were enough for drawing
    node.exchange_frames = lambda frames: heard.append(frames) or []
    car.sharing.give_again()
    wait_for(lambda: len(heard) == 1)
    assert len(heard[0]) == 1
    assert car.sharing._again == []
