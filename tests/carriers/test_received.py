"""A carrier that stores nothing: what it pushes lies in the log of the receiver's own node, and is read there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from actors import Hand, Topic, read_rows
from pushed_carrier.server import AIR
from stack import WRITE, Stack, wait_until
from without import without

from tallystick.carriers import registry
from tallystick.carriers.carrier import Pushed
from tallystick.carriers.received import Receiver
from tallystick.carriers.storage import Place
from tallystick.client.subscribe import Subscriber
from tallystick.crypto.signatures import SigningKey
from tallystick.ledger.contracts.permits import PERMITS


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry._CARRIERS, "pushed", registry._Known("pushed_carrier"))
        with Stack(tmp_path_factory.mktemp("pushed"), node={"carrier": "pushed"}) as stack:
            yield stack


@pytest.fixture(scope="module")
def people(stack: Stack) -> Topic:
    return Topic(stack, "acme")


@pytest.fixture
def topic(people: Topic, request: pytest.FixtureRequest) -> Topic:
    return people.beside(request.node.name)


def hand_of(topic: Topic) -> Hand:
    """A hand whose permit is on the ledger: what is pushed before is not kept, and nobody sends it again."""
    hand, ledger = Hand(topic.car, topic.name, node=AIR), topic.stack.node.ledger  # type: ignore[arg-type]
    wait_until(lambda: ledger.query(lambda state: state.row(PERMITS(hand.permit.identifier))) is not None)
    return hand


def hear(stack: Stack) -> None:
    """Until the node has taken all that is in the air; a round of its own that is under way ends before this one."""
    receiver = stack.node.core.anchorer
    assert isinstance(receiver, Receiver)
    receiver.work(int(stack.clock.now() * 1000))


def kept(topic: Topic) -> int:
    return topic.stack.node.carrier.storage.end(Place(topic.token, 0))


def subscriber(topic: Topic, **settings: Any) -> Subscriber:
    return topic.reader.subscriber(topic.name, read="stored", **settings)


def test_what_was_pushed_is_read_as_stored_and_says_so(stack: Stack, topic: Topic) -> None:
    hand = hand_of(topic)
    hand.send(hand.seal(1), hand.seal(2))
    hand.send(hand.seal(3))
    hear(stack)
    reading = subscriber(topic)
    received = [*reading.poll(5_000)]
    assert [row["seq"] for one in received for row in one.to_pylist()] == [1, 2, 3]
    assert {one.height for one in received} == {0}
    assert not reading.findings


def test_a_parcel_that_was_lost_is_missed_and_the_others_are_read(stack: Stack, topic: Topic) -> None:
    hand = hand_of(topic)
    first, _, third = hand.seal(1), hand.seal(2), hand.seal(3)
    hand.send(first, third)
    hear(stack)
    reading = subscriber(topic, on_bad="report")
    assert read_rows(reading, 2) == [1, 3]
    assert [finding.reason for finding in reading.findings] == ["missing"]


def test_after_a_restart_nothing_is_kept_twice_and_lanes_go_on(stack: Stack, topic: Topic) -> None:
    hand = hand_of(topic)
    sent = [hand.seal(number) for number in (1, 2)]
    hand.send(*sent)
    hear(stack)
    stack.stop_node()
    stack.start_node()
    hand.send(*sent, hand.seal(3))
    hear(stack)
    assert kept(topic) == 3
    reading = subscriber(topic, start=2)  # in the middle of a lane, where no anchor proves what came before
    assert read_rows(reading, 1) == [3]
    assert not reading.findings


def forged(hand: Hand) -> Pushed:
    parcel = hand.seal(9)
    return whole(hand.resign(parcel, key=SigningKey.from_seed(bytes(32))).encode())


def altered(hand: Hand) -> Pushed:
    data = bytearray(hand.seal(9).encode())
    data[-1] ^= 1
    return whole(bytes(data))


def whole(parcel: bytes) -> Pushed:
    return Pushed(parcel, tuple(AIR.permits), tuple(AIR.locks))


ATTACKS: dict[str, Callable[[Hand], Pushed]] = {
    "signed by a stranger": forged,
    "with an altered body": altered,
    "of another epoch": lambda hand: whole(
        hand.resign(
            parcel := hand.seal(9),
            topics=tuple(replace(one, epoch=one.epoch + 1_000) for one in parcel.header.topics),
        ).encode()
    ),
    "without its permit": lambda hand: Pushed(hand.seal(9).encode(), (), tuple(AIR.locks)),
    "without its locks": lambda hand: Pushed(hand.seal(9).encode(), tuple(AIR.permits), ()),
    "no parcel at all": lambda hand: whole(b"\0" * 64),
    "too large": lambda hand: whole(hand.seal(9).encode() + bytes(2 << 20)),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_the_guard_refuses_is_not_kept(attack: str, stack: Stack, people: Topic) -> None:
    topic = people.beside(attack.replace(" ", "-"))
    hand = hand_of(topic)
    AIR.parcels.append(ATTACKS[attack](hand))
    hear(stack)
    assert kept(topic) == 0
    receiver = stack.node.core.anchorer
    assert isinstance(receiver, Receiver)
    assert receiver.refused


def test_whose_right_was_withdrawn_is_not_kept(stack: Stack, topic: Topic) -> None:
    hand = hand_of(topic)
    hand.send(hand.seal(1))
    hear(stack)
    stack.withdraw(topic.owner, topic.token, topic.car, WRITE)
    hand.send(hand.seal(2))
    hear(stack)
    assert kept(topic) == 1


def test_without_the_guard_strangers_fill_the_log(stack: Stack, topic: Topic) -> None:
    hand = hand_of(topic)
    with without("the guard of what is pushed"):
        AIR.parcels.append(forged(hand))
        hear(stack)
    assert kept(topic) == 1


def test_locks_serve_the_parcels_that_came_with_them_in_one_round(stack: Stack, topic: Topic) -> None:
    hand = hand_of(topic)
    AIR.parcels.append(whole(hand.seal(1).encode()))
    AIR.parcels.append(Pushed(hand.seal(2).encode()))
    hear(stack)
    assert kept(topic) == 2
