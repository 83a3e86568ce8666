"""Clients' frames at a node's door, and a plan that changes while nodes run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from actors import Hand, anchored, read_rows, rows, stored
from overlay_stack import Town, overlay_of
from stack import wait_until
from without import without

from tallystick.carriers.carrier import FRAMES_PATH, join_frames
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.relayed_keys import ForwardingLimits
from tallystick.carriers.overlay.server import CLIENT_FRAMES_MAX
from tallystick.carriers.storage import Place
from tallystick.client.session import Session
from tallystick.errors import Refused, Unavailable


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with overlay_of(tmp_path_factory.mktemp("overlay"), {"edge": ""}, size=4) as town:
        yield town


@pytest.fixture(scope="module")
def people(town: Town) -> tuple[Session, Session]:
    return town.principal("car", "edge"), town.principal("reader", "edge")


def test_junk_at_the_door_harms_nobody(town: Town, people: tuple[Session, Session]) -> None:
    """Of a principal that has no right on anything: every kind of frame, with contents that fit nothing."""
    stranger = town.principal("stranger", "edge")
    node, relay = stranger.node, town.edge("edge")[0].relay
    before = relay.dropped.total() + relay.ordering.dropped.total() + relay.catching_up.dropped.total()
    frames = [b"", b"junk", bytes(1_000), *(OverlayFrame(kind, 1, b"\x83\x01\x40\xf6").encode() for kind in FrameKind)]
    assert node.exchange_frames(frames) == []
    wait_until(lambda: relay.dropped.total() + relay.ordering.dropped.total() > before)
    assert town.edge("edge")[0].core.anchorer.statistics()["relaying"] == 1
    assert not relay.ordering._partitions


def test_more_frames_than_one_request_may_have_are_refused(town: Town, people: tuple[Session, Session]) -> None:
    node = people[0].node
    for body in (join_frames([b"x"] * (CLIENT_FRAMES_MAX + 1)), b"\xff\xff\xff\xff", b"\x00"):
        with pytest.raises(Refused):
            town.edge("edge")[0].core.served.doors[FRAMES_PATH](people[0].identity.principal, body)
    assert node.exchange_frames([]) == []


def opened_with_a_key_each(town: Town, name: str) -> int:
    """Publish four rows, a lane key for each, where relays keep two. Returns how many of them a reader opens."""
    car, reader = town.principal(f"{name}-car", "edge"), town.principal(f"{name}-reader", "edge")
    town.topic(name, "edge", car, reader)
    for node in town.edge("edge"):
        node.relay.secrets._limits = ForwardingLimits(publisher_keys_max=3, spare_keys=1)
        node.relay.secrets._since_ms = 0  # it has begun long ago
    with car.publisher(name, lane_parcels_max=1) as publisher:
        for number in range(4):
            publisher.send(rows(number))
            assert publisher.flush(30) == 0
    found: list[int] = []
    with reader.subscriber(name, on_bad="report", shares_wait_s=1.0) as subscriber:
        while len(found) + len(subscriber.findings) < 4:
            with suppress(Unavailable):
                found += [row["seq"] for one in subscriber.poll(100) for row in one.to_pylist()]
    return len(found)


def test_a_publisher_with_too_many_lane_keys_hears_so_and_the_last_one_serves_on(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    assert opened_with_a_key_each(town, "often") == 4
    (told,) = [one.getMessage() for one in caplog.records if "takes no shares" in one.getMessage()]
    assert "2 lane keys of its publisher are kept here, each for 3600 s" in told


def test_without_its_relays_word_it_would_seal_what_nobody_opens(town: Town) -> None:
    with without("what a full relay says of a new key"):
        assert opened_with_a_key_each(town, "blindly") < 4


def test_who_leaves_by_the_plan_serves_what_it_keeps_and_who_comes_catches_up(
    town: Town, people: tuple[Session, Session]
) -> None:
    token = town.topic("moving", "edge", *people)
    place, hand = Place(token, 0), Hand(people[0], "moving", node=people[0].carrier)
    seats = sorted(town.relays)
    leaver = next(one for one in seats if town.relays[one] is not town.holder(place))
    node = town.relays[leaver]

    def publish(*numbers: int) -> None:
        for number in numbers:
            parcel = hand.seal(number)
            wait_until(lambda: _is_taken(hand, parcel))  # noqa: B023

    publish(0, 1, 2)
    wait_until(lambda: all(one.carrier.storage.end(place) == 3 for one in town.relays.values()))
    town.replan(without=[leaver])
    wait_until(lambda: node.core.anchorer.statistics()["relaying"] == 0)
    with pytest.raises(Unavailable):
        node.core.served.doors[FRAMES_PATH](people[0].identity.principal, b"")
    assert node.carrier.storage.end(place) == 3
    publish(3, 4)
    wait_until(lambda: anchored(town.owner.view, token) == 5)
    town.replan()
    wait_until(lambda: node.core.anchorer.statistics()["relaying"] == 1)
    publish(5)
    wait_until(lambda: all(one.carrier.storage.end(place) == 6 for one in town.relays.values()))
    assert len({one.carrier.storage.tree(place).root(6) for one in town.relays.values()}) == 1
    with people[1].subscriber("moving") as subscriber:
        assert read_rows(subscriber, 6) == [0, 1, 2, 3, 4, 5]


def _is_taken(hand: Hand, parcel: object) -> bool:
    try:
        (outcome,) = hand.send(parcel)  # type: ignore[arg-type]
    except Unavailable:
        return False
    return stored(outcome) is not None
