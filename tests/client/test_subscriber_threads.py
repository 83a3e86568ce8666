"""The subscriber's threads: parcels are opened side by side and the next range is on its way, and nobody can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from actors import Hand, Liar, Topic, read_rows, rows, settle, stored, subscribe_through
from stack import Stack, wait_until
from watching import calls_of

from tallystick.carriers.carrier import Fetch, Fetched
from tallystick.client.opening import Opener
from tallystick.client.reader import Finding
from tallystick.client.subscribe import Subscriber
from tallystick.errors import Withheld

PARCELS = 40
RANGE_BYTES = 4_000  # some four parcels


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topic]:
    """Forty parcels of a row each."""
    with Stack(tmp_path_factory.mktemp("threads"), node={"commit_ms": 50}) as stack:
        topic = Topic(stack, "acme")
        with topic.car.publisher(topic.name, batch_rows_max=1) as publisher:
            publisher.send(rows(*range(PARCELS)))
            assert publisher.flush(60) == 0
        settle(stack)
        yield topic


class Watched(Liar):
    """A node that counts the ranges it was asked for; `alter` may lie in one."""

    def __init__(self, honest: Any) -> None:
        super().__init__(honest)
        self.asked: list[int] = []

    def fetch(self, wanted: Fetch) -> Fetched:
        self.asked.append(wanted.offset)
        return self.alter(self.honest.fetch(wanted))

    def alter(self, fetched: Fetched) -> Fetched:
        return fetched


def through(topic: Topic, node: Any, **settings: Any) -> Subscriber:
    return subscribe_through(
        topic.reader, node, topic.name, fetch_bytes_max=RANGE_BYTES, handed_over_bytes_min=0, **settings
    )


def numbers(received: list[Any]) -> list[int]:
    return [row["seq"] for one in received for row in one.to_pylist()]


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_rows_come_in_the_order_of_the_log_however_many_threads_open_them(topic: Topic, threads: int) -> None:
    with (
        calls_of(Opener._open) as opened_in,
        topic.reader.subscriber(topic.name, threads=threads, handed_over_bytes_min=0) as subscriber,
    ):
        assert read_rows(subscriber, PARCELS) == list(range(PARCELS))
    assert any(name.startswith("subscriber") for name in opened_in) == (threads > 0)


def test_the_next_range_is_asked_for_while_this_one_is_with_the_application(topic: Topic) -> None:
    node = Watched(topic.reader.node)
    with through(topic, node) as subscriber:
        first = numbers(subscriber.poll(1_000))
        assert 0 < len(first) < PARCELS
        wait_until(lambda: node.asked == [0, len(first)])
        second = numbers(subscriber.poll(1_000))
        assert node.asked[:2] == [0, len(first)]
        assert first + second == list(range(len(first) + len(second)))
        subscriber.seek(0, 1)  # what is on its way is of no use now
        assert numbers(subscriber.poll(1_000))[0] == 1


def test_a_range_that_came_ahead_is_held_to_its_anchor_when_its_turn_comes(topic: Topic) -> None:
    node = Watched(topic.reader.node)
    with through(topic, node) as subscriber:
        node.alter = lambda fetched: fetched if fetched.first == 0 else _without_last(fetched)
        first = numbers(subscriber.poll(1_000))
        assert first == list(range(len(first)))
        with pytest.raises(Withheld, match="are not what was anchored"):
            subscriber.poll(1_000)


def test_a_parcel_that_does_not_open_is_found_in_its_place(topic: Topic) -> None:
    other = Topic(topic.stack, "rival")
    hand = Hand(other.car, other.name)
    for number in range(12):
        parcel = hand.seal(number)
        if number == 7:  # its rows do not hash to the leaves that its publisher signed
            (group,) = parcel.header.groups
            parcel = hand.resign(parcel, groups=(replace(group, root=bytes(32)),))
            hand.lane.previous = parcel.hash
        stored(hand.send(parcel)[0])
    settle(topic.stack)
    findings: list[Finding] = []
    reader = other.reader.subscriber(other.name, on_bad="report", on_finding=findings.append, handed_over_bytes_min=0)
    with reader as subscriber:
        assert read_rows(subscriber, 11) == [*range(7), *range(8, 12)]
    assert [(one.reason, one.offset) for one in findings] == [("cannot-open", 7)]


def test_proofs_lead_to_the_checkpoint_that_another_thread_accepted_meanwhile(topic: Topic) -> None:
    node, view, proved = Liar(topic.reader.node), topic.reader.view, list[int]()

    def overtaken(ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*sizes: Any) -> Any:
            proofs, newest = ask(*sizes), sizes[-1]
            if view.accepted is not None and newest == view.accepted[0]:  # else a newer one is just being accepted
                proved.append(newest)
                if len(proved) == 1:  # what was just fetched comes onto the ledger, and another reads it there
                    wait_until(lambda: view.refresh().size > newest)
            return proofs

        return asked

    node.consistency, node.consistencies = overtaken(node.honest.consistency), overtaken(node.honest.consistencies)
    with subscribe_through(topic.reader, node, topic.name) as subscriber:
        assert numbers(subscriber.poll(1_000)) == list(range(PARCELS))
    assert proved


def _without_last(fetched: Fetched) -> Fetched:
    """One parcel less than its proof is for."""
    return replace(fetched, parcels=fetched.parcels[:-1])
