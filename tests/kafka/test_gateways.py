"""Two gateways of one instance, on one Kafka and one chain: clients move, and everything holds on the next."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from actors import SCHEMA, Hand, await_topic, read_rows, reason, rows, stored
from broker import broker, node_settings
from chain_stack import chain_of
from stack import PASSPHRASE, READ, WRITE, Stack, wait_until

from tallystick.carriers.log.carrier import LogCarrier
from tallystick.client.enrol import enrol
from tallystick.client.findings import Finding
from tallystick.client.identity import Identity
from tallystick.client.session import Session
from tallystick.errors import Refused, Unavailable
from tallystick.node.instance import create_node
from tallystick.node.node import Node
from tallystick.node.settings import NodeSettings
from tallystick.runtime.server import ServerLimits

pytestmark = [pytest.mark.kafka, pytest.mark.chain, pytest.mark.long]


class Gateway:
    """A further node of the instance."""

    def __init__(self, stack: Stack, folder: Path, settings: NodeSettings) -> None:
        create_node(stack.folders.root, folder, PASSPHRASE, settings, int(stack.clock.now() * 1000), stack.entropy)
        self.node = Node(folder / "node", stack.clock, settings)
        self._thread = threading.Thread(target=self.node.run, name="gateway 2", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.node.server.stop()
        self._thread.join(20)


class City:
    def __init__(self, stack: Stack, second: Gateway) -> None:
        self.stack, self.second = stack, second
        self.urls = (stack.node.url, second.node.url)
        self.owner = stack.tenant("acme")

    def principal(self, name: str, urls: tuple[str, ...] | None = None) -> Session:
        """A principal that knows these gateways, in this order."""
        stack = self.stack
        identity = enrol(
            stack.folders.root / "homes" / name,
            name,
            stack.authority.authority.invite_to("acme"),
            trust=stack.node.trust,
            authority_url=stack.authority.url,
            node_urls=urls or self.urls,
            clock=stack.clock,
            entropy=stack.entropy,
        )
        return self._open(identity)

    def again(self, session: Session) -> Session:
        """The same principal in another process, as it were."""
        return self._open(session.identity)

    def _open(self, identity: Identity) -> Session:
        session = Session(identity, clock=self.stack.clock, entropy=self.stack.entropy)
        self.stack._sessions.append(session)
        return session

    def topic(self, name: str, writer: Session, reader: Session) -> bytes:
        token = self.stack.topic(self.owner, name, SCHEMA)
        self.stack.grant(self.owner, token, writer, WRITE)
        self.stack.grant(self.owner, token, reader, READ)
        await_topic(self.stack, token)
        return token


def is_live(carrier: LogCarrier, hand: Hand) -> bool:
    """Whether a gateway knows the hand's advertisement; its carrier asks under the same lock."""
    with carrier._lock:
        return carrier._live.get(hand.permit.identifier) is not None


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory) -> Iterator[City]:
    folder, kafka = tmp_path_factory.mktemp("city"), node_settings(broker())
    with chain_of(folder, 1, **kafka) as (prepared, _), prepared as stack:
        settings = NodeSettings(**{**stack._node_settings, "port": 0})
        second = Gateway(stack, tmp_path_factory.mktemp("second") / "gateway", settings)
        wait_until(lambda: len(stack.authority.authority._subjects.nodes()) == 2)
        try:
            yield City(stack, second)
        finally:
            second.stop()


def test_an_identity_knows_which_node_answers_where(city: City) -> None:
    car = city.principal("knowing", urls=city.urls[::-1])
    expected = [city.second.node.identifier, city.stack.node.identifier]
    assert [node.subject for node in car.identity.nodes] == expected


def test_permits_locks_and_sequences_hold_on_the_next_gateway(city: City) -> None:
    car, reader = city.principal("moving"), city.principal("moving-reader", urls=city.urls[::-1])
    city.topic("moving", car, reader)
    hand = Hand(car, "moving")
    first = hand.seal(1)
    stored(hand.send(first)[0])
    there = city.principal("scout", urls=city.urls[1:])  # only to reach the second gateway's carrier
    carrier = city.second.node.carrier
    wait_until(lambda: is_live(carrier, hand))
    assert there.node.permit(hand.permit.identifier) == hand.held.grant.permit
    moved = city.again(car)
    moved._node_http._conversation._preferred = 1
    again = Hand.__new__(Hand)
    again.__dict__.update(hand.__dict__, node=moved.node, session=moved)
    wait_until(lambda: stored(again.send(first)[0]).again)  # the same parcel: known there, or found there soon
    stored(again.send(again.seal(2))[0])
    ahead = again.fork()
    again.seal(9, lane=ahead)
    assert reason(again.send(again.seal(10, lane=ahead))[0]) == "ahead"
    with reader.subscriber("moving") as subscriber:
        assert read_rows(subscriber, 2)[:2] == [1, 2]


def test_nothing_is_lost_when_a_gateway_goes_down_under_load(city: City) -> None:
    car, reader = city.principal("driving"), city.principal("driving-reader", urls=city.urls[::-1])
    city.topic("driving", car, reader)
    findings: list[Finding] = []
    with reader.subscriber("driving", on_finding=findings.append) as subscriber:
        with car.publisher("driving", acks="anchored", anchor_check_s=0.1, batch_rows_max=1) as publisher:
            for number in range(60):
                publisher.send(rows(number))
                if number == 25:
                    city.stack.stop_node()
            assert publisher.flush(90) == 0
        assert sorted(read_rows(subscriber, 60)) == list(range(60))
    assert findings == []
    city.stack.start_node()


def test_an_undo_on_one_gateway_counts_on_the_other(city: City) -> None:
    car, reader = city.principal("leaving"), city.principal("leaving-reader")
    city.topic("leaving", car, reader)
    hand = Hand(car, "leaving")
    carrier = city.second.node.carrier
    wait_until(lambda: is_live(carrier, hand))
    order = car.authority.undo(hand.held.grant.permit, hand.held.grant.undo_token)
    car.node.undo(order.encode())
    wait_until(lambda: not is_live(carrier, hand))


def test_who_floods_one_gateway_drives_clients_to_the_next_and_no_further(city: City) -> None:
    """As many connections as a gateway takes, and nothing said on them: whoever comes after is turned away there."""
    car, reader = city.principal("flooded"), city.principal("flooded-reader", urls=city.urls[::-1])
    city.topic("flooded", car, reader)
    alone = city.again(city.principal("lone", urls=city.urls[:1]))
    address = urlsplit(city.stack.node.url)
    with ExitStack() as flood:
        for _ in range(ServerLimits().connections_max + 1):
            line = socket.create_connection((address.hostname, address.port), timeout=10)
            flood.enter_context(closing(line))
        with pytest.raises(Unavailable):  # who knows this gateway alone
            alone.node._http.request("GET", "/v1/certificate", attempts_max=1)
        fresh = city.again(car)  # with no connection yet
        with fresh.publisher("flooded", batch_rows_max=1) as publisher:
            for number in range(20):
                publisher.send(rows(number))
            assert publisher.flush(60) == 0
        assert fresh._node_http._conversation._preferred == 1
    with reader.subscriber("flooded") as subscriber:
        assert sorted(read_rows(subscriber, 20)) == list(range(20))


def test_who_is_blacklisted_by_one_gateway_is_refused_by_the_other(city: City) -> None:
    liar, reader = city.principal("lying"), city.principal("lying-reader")
    city.topic("lying", liar, reader)
    hand = Hand(liar, "lying")
    other = hand.fork()
    stored(hand.send(hand.seal(1))[0])
    assert reason(hand.send(hand.seal(2, lane=other))[0]) == "equivocation"
    wait_until(lambda: city.second.node.rules.blacklisted(liar.identity.principal))
    moved = city.again(liar)
    moved._node_http._conversation._preferred = 1
    with pytest.raises(Refused, match="blacklisted"):
        Hand(moved, "lying")
