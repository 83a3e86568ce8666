"""Two gateways of one instance, on one Kafka and one chain: clients move, and everything holds on the next.
When one is killed: test_gateway_killed.py."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import pytest
from actors import Hand, read_rows, reason, rows, stored
from gateways import Gateways, moved_hand
from stack import wait_until

from tallystick.carriers.carrier import NotStored, Outcome
from tallystick.carriers.front import Front
from tallystick.client.reader import Finding
from tallystick.errors import Unavailable
from tallystick.runtime.server import ServerLimits

pytestmark = [pytest.mark.kafka, pytest.mark.chain, pytest.mark.long]


def is_live(carrier: Front, hand: Hand) -> bool:
    """Whether a gateway knows the hand's advertisement; its carrier asks under the same lock."""
    with carrier.lock:
        return carrier.live.get(hand.permit.identifier) is not None


def test_an_identity_knows_which_node_answers_where(gateways: Gateways) -> None:
    car = gateways.principal("knowing", gateways.urls[::-1])
    expected = [gateways.stack.node.identifier, gateways.first.identifier]
    assert [node.subject for node in car.identity.nodes] == expected


def is_known(outcome: Outcome) -> bool:
    """Whether a gateway knows that the parcel is stored; it may not have read the parcel's lock yet."""
    if isinstance(outcome, NotStored):
        assert outcome.reason == "unknown-lock", outcome
        return False
    return outcome.again


def test_permits_locks_and_sequences_hold_on_the_next_gateway(gateways: Gateways) -> None:
    car, reader = gateways.principal("moving"), gateways.principal("moving-reader", gateways.urls[::-1])
    gateways.topic("moving", car, reader)
    hand = Hand(car, "moving")
    first = hand.seal(1)
    stored(hand.send(first)[0])
    wait_until(lambda: is_live(gateways.stack.node.carrier, hand))
    moved = moved_hand(gateways, hand)
    assert moved.node.permit(hand.permit.identifier) == hand.held.grant.permit
    wait_until(lambda: is_known(moved.send(first)[0]))  # the same parcel, and its lock: found there soon
    stored(moved.send(moved.seal(2))[0])
    ahead = moved.fork()
    moved.seal(9, lane=ahead)
    assert reason(moved.send(moved.seal(10, lane=ahead))[0]) == "ahead"
    with reader.subscriber("moving") as subscriber:
        assert read_rows(subscriber, 2)[:2] == [1, 2]


def test_nothing_is_lost_when_a_gateway_is_stopped_under_load(gateways: Gateways) -> None:
    car, reader = gateways.principal("driving"), gateways.principal("driving-reader", gateways.urls[::-1])
    gateways.topic("driving", car, reader)
    findings: list[Finding] = []
    with reader.subscriber("driving", on_finding=findings.append) as subscriber:
        with car.publisher("driving", acks="anchored", anchor_check_s=0.1, batch_rows_max=1) as publisher:
            for number in range(60):
                publisher.send(rows(number))
                if number == 25:
                    gateways.first.stop()
            assert publisher.flush(90) == 0
        assert sorted(read_rows(subscriber, 60)) == list(range(60))
    assert findings == []


def test_an_undo_on_one_gateway_counts_on_the_other(gateways: Gateways) -> None:
    car, reader = gateways.principal("leaving"), gateways.principal("leaving-reader")
    gateways.topic("leaving", car, reader)
    hand, carrier = Hand(car, "leaving"), gateways.stack.node.carrier
    wait_until(lambda: is_live(carrier, hand))
    order = car.authority.undo(hand.held.grant.permit, hand.held.grant.undo_token)
    car.node.undo(order.encode())
    wait_until(lambda: not is_live(carrier, hand))


def test_who_floods_one_gateway_drives_clients_to_the_next_and_no_further(gateways: Gateways) -> None:
    """As many connections as a gateway takes, and nothing said on them: whoever comes after is turned away there."""
    car, reader = gateways.principal("flooded"), gateways.principal("flooded-reader", gateways.urls[::-1])
    gateways.topic("flooded", car, reader)
    alone = gateways.stack.again(gateways.principal("lone", gateways.urls[:1]))
    address = urlsplit(gateways.first.url)
    with ExitStack() as flood:
        for number in range(ServerLimits().connections_max + 1):
            source = f"127.0.0.{2 + number // 200}", 0  # of many: one alone has a share
            line = socket.create_connection((address.hostname, address.port), 10, source)
            flood.enter_context(closing(line))
        with pytest.raises(Unavailable):  # who knows this gateway alone
            alone.node._http.request("GET", "/v1/certificate", attempts_max=1)
        fresh = gateways.stack.again(car)  # with no connection yet
        with fresh.publisher("flooded", batch_rows_max=1) as publisher:
            for number in range(20):
                publisher.send(rows(number))
            assert publisher.flush(60) == 0
        assert fresh._node_http._conversation._preferred == 1
    with reader.subscriber("flooded") as subscriber:
        assert sorted(read_rows(subscriber, 20)) == list(range(20))
