"""The fabric as a carrier: what is published at one principal's host is read at those of others, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from actors import SCHEMA, Hand, read_rows, reason, rows, stored
from fabric_town import FabricTown, fabric_of, station_of
from stack import READ, wait_until
from without import without

from tallystick.carriers.carrier import FABRIC_DIRECTORY_PATH, FABRIC_FRAMES_PATH, Fetch
from tallystick.carriers.fabric.direct import FILE, ask_card, ask_status, give_kit
from tallystick.carriers.fabric.host_kit import FabricKit
from tallystick.carriers.fabric.host_station import HostOutside
from tallystick.carriers.fabric.server import serve
from tallystick.carriers.storage import Place
from tallystick.client.session import Session
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Misuse, Refused
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.node.settings import NodeSettings
from tallystick.policy.topic_code import TopicCode
from tallystick.record.schema import Schema
from tallystick.runtime.disk import RealDisk
from tallystick.trust.permit import Operation

Topic = tuple[str, bytes]


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FabricTown]:
    with fabric_of(tmp_path_factory.mktemp("fabric")) as town:
        yield town


@pytest.fixture(scope="module")
def car(town: FabricTown) -> Session:
    return town.member("car", "s0")


@pytest.fixture(scope="module")
def reader(town: FabricTown) -> Session:
    return town.member("reader", "s1")


@pytest.fixture
def topic(town: FabricTown, car: Session, reader: Session, request: pytest.FixtureRequest) -> Topic:
    name = request.node.name
    return name, town.topic(name, car, reader)


def publish(session: Session, topic: str, *numbers: int, **settings: Any) -> None:
    with session.publisher(topic, **settings) as publisher:
        for number in numbers:
            publisher.send(rows(number))
        assert publisher.flush(30) == 0


def test_rows_are_read_at_the_host_of_whoever_subscribes(car: Session, reader: Session, topic: Topic) -> None:
    with reader.subscriber(topic[0]) as subscriber:
        publish(car, topic[0], *range(5))
        assert read_rows(subscriber, 5) == [0, 1, 2, 3, 4]
        assert subscriber.findings == []
    assert ask_status(reader.node)["joined"] is True


def test_advertise_subscribe_undo_and_refusals_come_to_the_ledger(
    town: FabricTown, car: Session, reader: Session, topic: Topic
) -> None:
    """BPS 3.2; the dispatcher writes them, and the hosts nothing."""
    name, token = topic
    stranger = town.member("stranger", "s1")
    with reader.subscriber(name):
        hand = Hand(car, name, node=car.carrier)
        stored(hand.send(hand.seal(1))[0])
        town.stack.grant(town.owner, token, stranger, READ)
        grant = stranger.authority.permit(Operation.SUBSCRIBE, name)
        with pytest.raises(Refused, match="not-yours"):
            forged_subscription(reader, grant.permit)
        order = car.authority.undo(hand.held.grant.permit, hand.held.grant.undo_token)
        hand.node.undo(order.encode())
        assert reason(hand.send(hand.seal(2))[0]) == "not-advertised"

    def reasons() -> list[str]:
        told = town.owner.node.audit(token=token)
        return sorted(str(one) for one in told if one[4] == EntryKind.OPERATION)

    wait_until(lambda: len(reasons()) >= 3)
    assert any("not-yours" in one for one in reasons())
    wait_until(
        lambda: (
            not any(
                one.permit.token == token and one.permit.operation is Operation.ADVERTISE
                for one in town.dispatcher.role.standing.askers.values()
            )
        )
    )


def forged_subscription(session: Session, permit: bytes) -> None:
    """Show the dispatcher another's permit, past one's own host's guards."""
    way: Any = session.carrier
    way._show(Operation.SUBSCRIBE, permit)


def test_what_was_taken_is_final_and_waiting_for_an_anchor_is_a_misuse(
    car: Session, reader: Session, topic: Topic
) -> None:
    with car.publisher(topic[0]) as publisher:
        publisher.send(rows(1, 2, 3))
        assert publisher.flush(30) == 0
        wait_until(lambda: publisher.statistics().unproved == 0)
    with pytest.raises(Misuse, match="acks=anchored"):
        car.publisher(topic[0], acks="anchored")


def test_a_node_that_promises_nothing_is_not_believed_by_others(town: FabricTown, car: Session, topic: Topic) -> None:
    saved = (car.identity.home / "fabric.json").read_text()
    publish(car, topic[0], 1)
    (car.identity.home / FILE).unlink()
    try:
        publisher = town.stack.again(car).publisher(topic[0], background=False)
        publisher.send(rows(1))
        with pytest.raises(Forged, match="promises"):
            publisher.flush(5)
    finally:
        (car.identity.home / "fabric.json").write_text(saved)


def test_a_host_serves_one_principal_and_takes_no_dispatcher_that_the_ledger_does_not_know(
    town: FabricTown, car: Session, reader: Session, topic: Topic
) -> None:
    other = town.stack.session(replace(reader.identity, node_urls=car.identity.node_urls, nodes=car.identity.nodes))
    for asking in (lambda: ask_status(other.node), lambda: other.node.fetch(Fetch(topic[1], 0, bytes(16), 0, 100))):
        with pytest.raises(Refused):
            asking()
    kit = town._kits["car"]
    mallory = SigningKey.from_seed(bytes(range(32)))
    card = town.dispatcher.role.keys.card
    with pytest.raises(Refused):
        give_kit(car.node, FabricKit(card.sign(mallory), kit))
    with pytest.raises(Refused, match="card: of no node"):
        give_kit(car.node, FabricKit(replace(card, node=bytes(16)).sign(mallory), kit))
    with pytest.raises(Refused):
        car.node.post("/v1/fabric/ask", b"junk")


def test_doors_of_a_dispatcher_are_open_to_whom_they_are_for(town: FabricTown, car: Session) -> None:
    dispatcher = town.operator.node
    assert ask_card(dispatcher) == town.dispatcher.role.keys.card
    with pytest.raises(Refused, match="owner tells"):
        dispatcher.post(FABRIC_DIRECTORY_PATH, b"")
    with pytest.raises(Refused, match="configurator speaks"):
        town.owner.node.post(FABRIC_FRAMES_PATH, b"")


def test_a_host_that_starts_again_goes_on_with_its_labels(
    town: FabricTown, car: Session, reader: Session, topic: Topic
) -> None:
    name, _token = topic
    with reader.subscriber(name) as subscriber:
        with car.publisher(name) as publisher:
            publisher.send(rows(1))
            assert publisher.flush(30) == 0
            assert read_rows(subscriber, 1) == [1]
            for one in ("car", "reader"):
                town.nodes[one].end()
                town.start(one)
            publisher.send(rows(2))
            assert publisher.flush(30) == 0
        assert read_rows(subscriber, 1) == [2]


def test_what_was_stored_and_had_not_left_leaves_when_the_host_starts(
    town: FabricTown, car: Session, reader: Session, topic: Topic
) -> None:
    name, _token = topic
    with reader.subscriber(name) as subscriber:
        with without("the way out of a mesh node's log"):
            publish(car, name, 1)
        town.nodes["car"].end()
        town.start("car")
        assert read_rows(subscriber, 1) == [1]


def test_a_revoked_reader_gets_nothing_more(town: FabricTown, car: Session, reader: Session, topic: Topic) -> None:
    name, token = topic
    node, place = town.node_of(reader), Place(token, 0)
    with reader.subscriber(name) as subscriber:
        publish(car, name, 1)
        assert read_rows(subscriber, 1) == [1]
    town.stack.withdraw(town.owner, token, reader, READ)
    standing = town.dispatcher.role.standing.askers
    wait_until(
        lambda: (
            not any(
                one.permit.token == token and one.permit.operation is Operation.SUBSCRIBE
                for one in list(standing.values())
            )
        )
    )
    kept, heard = node.carrier.storage.end(place), station_of(node).require().statistics().parcels
    publish(car, name, 2)
    assert station_of(node).require().statistics().parcels == heard
    assert node.carrier.storage.end(place) == kept


def test_an_interest_is_told_to_the_dispatcher_and_narrows_the_flows(
    town: FabricTown, car: Session, reader: Session, topic: Topic
) -> None:
    """What the interest leaves out does not come, not even its header, and its reader knows that."""
    name, token = topic
    code = TopicCode.read(["speed:3:0..160"], Schema.parse(SCHEMA).arrow, number=5)
    town.owner.authority.labels(token, code.encode())
    with reader.subscriber(name, interest="speed > 100") as subscriber:
        with car.publisher(name) as publisher:
            for number in range(6):
                publisher.send([{"vin": "V", "seq": number, "speed": 150.0 * (number % 2)}])
                assert publisher.flush(30) == 0
        assert read_rows(subscriber, 3) == [1, 3, 5]
        assert subscriber.findings == []
        assert subscriber.statistics().unasked == 3
    assert town.node_of(reader).carrier.storage.end(Place(token, 0)) < 7
    offers = [
        one for one in town.dispatcher.role.standing.askers.values() if one.permit.token == token and one.ask.code
    ]
    assert len(offers[0].flows) == 9


def test_what_a_publisher_says_of_its_content_decides_who_gets_it(
    town: FabricTown, car: Session, reader: Session, topic: Topic
) -> None:
    """As a formula it is matched with interests by their overlap, as values by what they satisfy (Table 1)."""
    name, token = topic

    def reached() -> int:
        matcher = town.dispatcher.role.standing._topics[token]
        [offer] = matcher.offers
        return sum(len(subscriptions) for subscriptions in matcher.subscriptions_of(offer).values())

    with reader.subscriber(name, interest="speed > 100"):
        for content, count in (
            ("speed < 50", 0), ("speed < 150", 1), ({"speed": 150.0}, 1), ({"speed": 50.0}, 0), ("", 1),
        ):  # fmt: skip
            with car.publisher(name, content=content):
                assert reached() == count, content
    with pytest.raises(Misuse, match="unknown"):
        car.publisher(name, content="colour = red")


def test_settings_are_held_to_their_bounds(town: FabricTown, car: Session, tmp_path: Path) -> None:
    core = town.node_of(car).core
    owner = car.identity.principal.hex()
    for wrong, what in (
        ({}, "serves one principal"),
        ({"fabric_principal": "nobody"}, "identifier"),
        ({"fabric_principal": owner, "fabric_mtu": "12"}, "fabric_mtu"),
    ):
        with pytest.raises(Misuse, match=what):
            serve(NodeSettings(carrier="fabric://city", carrier_settings=wrong), core, RealDisk(tmp_path))
    for interface in ("", "packet:", "datagrams:here>there", "carrier-pigeon:7"):
        with pytest.raises(Misuse, match="not an interface"):
            HostOutside(interface).open()
