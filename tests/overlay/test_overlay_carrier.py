"""The overlay as a carrier: whole nodes as relays, with a publisher at one edge and a reader at another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from actors import SCHEMA, Hand, publish, read_rows, stored
from overlay_stack import Town, overlay_of
from stack import READ, wait_until

from tallystick.carriers.storage import Place
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.policy.topic_code import TopicCode
from tallystick.record.schema import Schema
from tallystick.trust.promise import JointPromise


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with overlay_of(tmp_path_factory.mktemp("overlay"), {"edge": "", "rim": "edge"}) as town:
        yield town


def anchored(town: Town, token: bytes) -> int:
    row = town.owner.view.row(ANCHORS(token, 0))
    return 0 if row is None else row.size


def test_rows_travel_from_one_edge_to_the_other(town: Town) -> None:
    car, reader = town.principal("car", "edge"), town.principal("reader", "rim")
    token = town.topic("brakes", "edge", car, reader)
    hand = Hand(car, "brakes", node=car.carrier)
    promises = [stored(one).promises[0] for number in range(5) for one in hand.send(hand.seal(number))]
    assert all(isinstance(one, JointPromise) for one in promises)
    assert [one.offset for one in promises] == [0, 1, 2, 3, 4]
    wait_until(lambda: anchored(town, token) == 5)
    for edge in ("edge", "rim"):
        if edge == "rim":
            with reader.subscriber("brakes") as subscriber:
                assert read_rows(subscriber, 5) == [0, 1, 2, 3, 4]
        wait_until(lambda: all(node.carrier.storage.end(Place(token, 0)) == 5 for node in town.edge(edge)))  # noqa: B023


def test_a_body_goes_where_a_label_asks_for_it_and_to_who_asks_later(town: Town) -> None:
    """At the far edge a reader wants few rows; there only their bodies are kept, and all places. Then somebody comes
    who wants them all."""
    car, picky, late = town.principal("taxi", "edge"), town.principal("picky", "rim"), town.principal("late", "rim")
    token = town.topic("speeds", "edge", car, picky)
    town.stack.grant(town.owner, token, late, READ)
    code = TopicCode.read(["speed:4:0..160"], Schema.parse(SCHEMA).arrow, number=8)
    town.owner.authority.labels(token, code.encode())
    with picky.subscriber("speeds", interest="speed > 120") as subscriber:
        assert subscriber.poll(0) == []
        rims = [node.relay for node in town.edge("rim")]
        wait_until(lambda: all(one.routing.subscriptions(token) for one in rims))
        publish(car, "speeds", [10, 20, 260, 30, 280])
        assert read_rows(subscriber, 2) == [260, 280]
    logs = [node.log for node in town.edge("rim")]
    wait_until(lambda: all(log.end(Place(token, 0)) == anchored(town, token) for log in logs))
    entries = [log.read(Place(token, 0), 0, 1 << 20, True) for log in logs]
    assert [[entry.body_bytes > 0 for entry in some][:5] for some in entries] == [[False, False, True, False, True]] * 3
    with late.subscriber("speeds") as subscriber:
        assert read_rows(subscriber, 5) == [10, 20, 260, 30, 280]
