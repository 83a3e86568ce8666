"""A right is withdrawn while its holder is at work: an honest client stops by itself, and no blacklist meets it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from actors import Liar, Topic, count_each_refusal, publish, read_rows, reputation, rows, settle, ties
from stack import READ, WRITE, Stack, wait_until

from tallystick.client.publish import Publisher, PublisherSettings
from tallystick.client.session import Session
from tallystick.client.subscribe import Subscriber
from tallystick.errors import Refused
from tallystick.ledger.contracts.permits import Status
from tallystick.runtime.disk import RealDisk


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("withdrawn")) as stack:
        yield stack


@pytest.fixture(scope="module")
def topic(stack: Stack) -> Topic:
    return Topic(stack, "acme")


def is_blacklisted(stack: Stack, session: Session) -> bool:
    settle(stack)
    return reputation(stack, session.identity.principal)[1] > 0


def withdrawn_reader(stack: Stack, topic: Topic, name: str) -> tuple[Session, Subscriber]:
    """Somebody who has read, and may no more."""
    reader = topic.subscriber(name)
    publish(topic.car, "brakes", [1])
    subscriber = reader.subscriber("brakes")
    assert read_rows(subscriber, 1)
    stack.withdraw(topic.owner, topic.token, reader, READ)
    return reader, subscriber


def test_a_subscriber_stops_asking(stack: Stack, topic: Topic) -> None:
    reader, subscriber = withdrawn_reader(stack, topic, "careful")
    publish(topic.car, "brakes", [2])
    for _ in range(30):
        with pytest.raises(Refused) as refusal:
            subscriber.poll(0)
        assert refusal.value.reason == "unknown-topic"  # without DESCRIBE the topic does not exist
        assert "tally right grant" in (refusal.value.hint or "")
    with pytest.raises(Refused):
        list(subscriber)  # an iteration ends with the error
    assert not is_blacklisted(stack, reader)


def test_one_that_keeps_asking_ends_on_the_blacklist(stack: Stack, topic: Topic) -> None:
    """As a subscriber would that forgets that it was refused; here every refusal counts."""
    count_each_refusal(stack)
    reader, subscriber = withdrawn_reader(stack, topic, "stubborn")
    publish(topic.car, "brakes", [3])

    def asks_again() -> bool:
        with pytest.raises(Refused):
            subscriber.poll(0)
        subscriber._refused = None
        return is_blacklisted(stack, reader)

    wait_until(asks_again)  # requests tell whole seconds: those within the one of the withdrawal do not count


def test_a_publisher_stops_sending(stack: Stack, topic: Topic) -> None:
    car = topic.publisher("tireless")
    told: list[str] = []
    publisher = car.publisher("brakes", linger_s=0.0, heartbeat_s=0.05)
    publisher.send(rows(10))
    assert publisher.flush(30) == 0
    stack.withdraw(topic.owner, topic.token, car, WRITE)

    def is_told() -> bool:
        """One row more, until the publisher says no."""
        try:
            publisher.send(rows(11), lambda error, _: told.append(getattr(error, "reason", "")))
        except Refused as refusal:
            return "tally right grant" in (refusal.hint or "")
        return False

    wait_until(is_told)
    publisher.stop()
    assert set(told) <= {"unknown-topic"}
    assert not is_blacklisted(stack, car)


class Forgetful(Liar):
    """A node that does not know the topic any more when it is asked for proofs."""

    def inclusion(self, *_: object) -> NoReturn:
        raise Refused("no such topic", reason="unknown-topic")


def test_a_publisher_that_learns_it_from_an_anchor_says_what_to_do_all_the_same(topic: Topic, tmp_path: Path) -> None:
    """Whichever of its threads asks first is refused: here the one that asks for the proof of what was stored."""
    settings = PublisherSettings(heartbeat_s=3600.0, acks="anchored", anchor_check_s=0.02)
    car = topic.publisher("idle")
    publisher = Publisher(ties(car, Forgetful(car.node)), "brakes", RealDisk(tmp_path), settings)
    publisher.send(rows(10))
    with pytest.raises(Refused) as told:
        publisher.flush(60)
    assert "tally right grant" in (told.value.hint or "")
    publisher.stop()


def test_a_publisher_whose_right_came_back_goes_on_under_a_new_permit(stack: Stack, topic: Topic) -> None:
    """Its permit was revoked with the right; rows that it seals meanwhile are sealed again."""
    car = topic.publisher("lucky")
    with car.publisher("brakes", acks="anchored", anchor_check_s=0.02, linger_s=0.0) as publisher:
        publisher.send(rows(20))
        assert publisher.flush(30) == 0
        permit = publisher._advertised.held[0].permit.identifier
        stack.withdraw(topic.owner, topic.token, car, WRITE)
        stack.authority.authority.work()
        wait_until(lambda: stack.node.rules.permit_ended(permit))
        assert stack.node.ledger.query(lambda state: state.get(b"permit/" + permit))[5] == Status.REVOKED
        stack.grant(topic.owner, topic.token, car, WRITE)
        publisher.send(rows(21))
        assert publisher.flush(30) == 0
        assert publisher._advertised.held[0].permit.identifier != permit
    with topic.reader.subscriber("brakes") as subscriber:
        got: list[int] = []
        while 21 not in got:
            got += read_rows(subscriber, 1)
    assert got.count(20) == got.count(21) == 1
