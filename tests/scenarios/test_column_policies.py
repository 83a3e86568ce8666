"""One stream, several readers: each opens the columns that its attributes satisfy, through the whole real way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from actors import Hand, settle, stored
from attribute_actors import Attributes
from policy_world import need_pymcl
from stack import READ, WRITE, Stack, impatient, wait_until

from tallystick.client.session import Session
from tallystick.client.subscribe import Received, Subscriber
from tallystick.errors import Misuse
from tallystick.parcel.header import ParcelKind
from tallystick.parcel.locks import NotEntitled
from tallystick.record.schema import Schema

SCHEMA = Schema.parse(
    "seq int64 not null, speed float32, lat float64, lon float64, fuel float32",
    groups=(("seq", "speed"), ("lat", "lon"), ("fuel",)),
)
POSITION, FUEL = 1, 2


class City(Attributes):
    """A tenant with attributes, a car that publishes, and readers by role."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack, stack.tenant("acme"))
        self.car = stack.principal("acme", "car")
        self.readers = {role: stack.principal("acme", role) for role in ("garage", "insurer", "police")}
        for role, session in self.readers.items():
            self.give(session, role=role)

    def topic(self, name: str) -> bytes:
        token = self.stack.topic(self.owner, name, SCHEMA)
        self.stack.grant(self.owner, token, self.car, WRITE)
        for session in self.readers.values():
            self.stack.grant(self.owner, token, session, READ)
        settle(self.stack)
        return token

    def reader(self, role: str, topic: str, **settings: Any) -> Subscriber:
        return self.readers[role].subscriber(topic, **{"attributes_again_s": 0.0, **settings})


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory) -> Iterator[City]:
    need_pymcl()
    with Stack(tmp_path_factory.mktemp("policies")) as stack:
        yield City(stack)


def row(number: int) -> dict[str, Any]:
    return {"seq": number, "speed": 50.0, "lat": 52.0 + number, "lon": 13.0, "fuel": 7.5}


def publish(session: Session, topic: str, *numbers: int, **settings: Any) -> None:
    with session.publisher(topic, **settings) as publisher:
        publisher.send([row(number) for number in numbers])


def receive(subscriber: Subscriber, rows: int) -> list[Received]:
    received: list[Received] = []
    wait_until(lambda: received.extend(subscriber.poll(50)) or sum(one.batch.rows for one in received) >= rows)
    return received


def test_position_for_the_police_fuel_for_the_insurer_speed_for_all(city: City) -> None:
    token = city.topic("drives")
    city.set_policy(token, POSITION, "role::police")
    publish(city.car, "drives", 1, 2, policy={"fuel": "role::insurer"})
    expected = {
        "police": (["seq", "speed", "lat", "lon"], ("fuel",)),
        "insurer": (["seq", "speed", "fuel"], ("lat", "lon")),
        "garage": (["seq", "speed"], ("lat", "lon", "fuel")),
    }
    for role, (columns, closed) in expected.items():
        with city.reader(role, "drives") as subscriber:
            [received] = receive(subscriber, 2)
            assert received.closed == closed
            assert received.to_pylist() == [{name: row(number)[name] for name in columns} for number in (1, 2)]
            assert subscriber.findings == []
    # The counterpart: without policies everybody sees everything.
    city.topic("open")
    publish(city.car, "open", 1)
    with city.reader("garage", "open") as subscriber:
        [received] = receive(subscriber, 1)
        assert received.to_pylist() == [row(1)]
        assert received.closed == ()


def test_closed_columns_are_an_error_where_that_is_asked_for(city: City) -> None:
    city.topic("strict")
    publish(city.car, "strict", 1, policy={"lat": "role::police"})
    settle(city.stack)
    with city.reader("garage", "strict", closed="error") as subscriber, pytest.raises(NotEntitled):
        wait_until(lambda: bool(subscriber.poll(50)))
    with city.reader("police", "strict", closed="error") as subscriber:
        assert receive(subscriber, 1)[0].to_pylist() == [row(1)]


def test_a_parcel_of_which_nothing_opens_is_passed_over_and_blames_nobody(city: City) -> None:
    city.topic("secret")
    publish(city.car, "secret", 1, policy="role::police")
    publish(city.car, "secret", 2)
    with city.reader("garage", "secret") as subscriber:
        assert [one["seq"] for one in receive(subscriber, 1)[0].to_pylist()] == [2]
        assert subscriber.closed_parcels == 1
        assert subscriber.findings == []


def test_a_policy_changes_from_one_row_to_the_next(city: City) -> None:
    city.topic("changing")
    with city.car.publisher("changing", linger_s=60.0, policy="role::police") as publisher:
        publisher.produce(row(1))
        publisher.set_policy("role::garage", hide=True)  # what was produced before is still the police's alone
        publisher.produce(row(2))
        with pytest.raises(Misuse, match="pirate"):
            publisher.set_policy("role::pirate")
        publisher.produce(row(3))
        publisher.set_policy(None)
        publisher.produce(row(4))
    for role, expected in {"police": [1, 4], "garage": [2, 3, 4], "insurer": [4]}.items():
        with city.reader(role, "changing") as subscriber:
            received = receive(subscriber, len(expected))
            assert [one["seq"] for part in received for one in part.to_pylist()] == expected


def test_an_attribute_opens_when_it_is_granted_and_closes_when_it_is_withdrawn(city: City) -> None:
    city.topic("granted")
    policy = "clearance >= 3"
    garage = city.readers["garage"]
    publish(city.car, "granted", 1, policy={"lat": policy})
    with city.reader("garage", "granted") as subscriber:
        assert receive(subscriber, 1)[0].closed == ("lat", "lon")
        city.give(garage, clearance=3)
        publish(city.car, "granted", 2, policy={"lat": policy})
        assert receive(subscriber, 1)[0].to_pylist() == [row(2)]

        city.take(garage, "clearance")
        publish(city.car, "granted", 3, policy={"lat": policy})
        assert receive(subscriber, 1)[0].closed == ("lat", "lon")


def test_a_publishers_policy_works_while_the_authority_is_away(city: City) -> None:
    city.topic("garage")
    publish(city.car, "garage", 1, policy="role::police")  # the grant is kept
    city.stack.stop_authority()
    try:
        with impatient(city.car):
            publish(city.car, "garage", 2, policy="role::insurer || clearance >= 9", hide_policy=True)
    finally:
        city.stack.start_authority()
    with city.reader("insurer", "garage") as subscriber:
        assert [one["seq"] for one in receive(subscriber, 1)[0].to_pylist()] == [2]


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_a_node_sees_nothing_of_a_hidden_policy_nor_of_a_topics(city: City) -> None:
    """In the clear a publisher's own policy is there for everybody to read: that is the other setting."""
    token = city.topic("hidden")
    city.set_policy(token, POSITION, "clearance >= 77")
    words = (b"clearance", b"insurer", b"acme.role")
    before = on_disk(city.stack.folders.node)
    publish(city.car, "hidden", 1, policy="role::insurer && clearance >= 5", hide_policy=True)
    settle(city.stack)
    after = on_disk(city.stack.folders.node)
    assert len(after) > len(before)
    assert [after.count(word) - before.count(word) for word in words] == [0, 0, 0]
    publish(city.car, "hidden", 2, policy="role::insurer && clearance >= 5")
    settle(city.stack)
    clear = on_disk(city.stack.folders.node)
    assert all(clear.count(word) > after.count(word) for word in words)


def test_a_gap_that_says_nonsense_is_told_and_does_not_stop_the_reader(city: City) -> None:
    """An entitled publisher's doing: whoever reads on must get at what lies behind it."""
    city.topic("nonsense")
    hand = Hand(city.car, "nonsense")
    now_ms, drawn = int(city.stack.clock.now() * 1000), city.stack.entropy.bytes(32)
    stored(hand.send(hand.lane._seal_content(ParcelKind.GAP, b"no gap", now_ms, drawn, None, None))[0])
    publish(city.car, "nonsense", 1)
    with city.reader("garage", "nonsense", on_bad="report") as subscriber:
        assert receive(subscriber, 1)[0].to_pylist() == [row(1)]
        assert [one.reason for one in subscriber.findings] == ["cannot-open"]
