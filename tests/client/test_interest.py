"""Subscribing by content: exactly the rows that are meant, with labels and without; a node that keeps bodies back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from actors import Liar, Topic, row_of, subscribe_through
from stack import Stack, wait_beyond
from without import without

from tallystick.carriers.carrier import Fetch, Fetched
from tallystick.client.session import Session
from tallystick.client.subscribe import Received, Subscriber
from tallystick.errors import Misuse, Withheld
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.parcel.parcel import Parcel, front_bytes
from tallystick.policy.content import read_interest, wanted_rows
from tallystick.policy.topic_code import TopicCode
from tallystick.record.gather import to_batches
from tallystick.record.schema import Schema

SCHEMA = Schema.parse("vin string, seq int64 not null, speed float32")
CODE = TopicCode.read(["speed:4:0..160", "vin:2"], SCHEMA.arrow, number=8)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("interest")) as stack:
        yield stack


@pytest.fixture(scope="module")
def topics(stack: Stack) -> dict[str, Topic]:
    """The same rows, on a topic with labels and on one without."""
    found = {}
    for name in ("plain", "labelled", "each"):
        found[name] = topic = Topic(stack, name, name)
        if name != "plain":
            code = CODE if name == "labelled" else replace(CODE, each=True, number=8)
            topic.owner.authority.labels(topic.token, code.encode())
        send(topic.car, topic.name, *(ROWS[first : first + 100] for first in range(0, len(ROWS), 100)))
    return found


def some_rows(random: Random, count: int) -> list[dict[str, Any]]:
    def speed() -> float | None:
        return random.choice([None, float("nan"), random.uniform(-10, 200), random.choice([0.0, 80.0, 120.0])])

    return [{"vin": random.choice(["A", "B", "C", None]), "seq": number, "speed": speed()} for number in range(count)]


ROWS = some_rows(Random(7), 500)


def send(session: Session, topic: str, *batches: list[dict[str, Any]]) -> None:
    with session.publisher(topic, acks="anchored", anchor_check_s=0.02) as publisher:
        for batch in batches:
            publisher.send(batch)
        assert publisher.flush(60) == 0


def meant(interest: str, rows: list[dict[str, Any]] = ROWS) -> list[int]:
    """The naive filter: every row, one after the other, in the clear."""
    batch = to_batches(rows, SCHEMA.arrow)
    mask = wanted_rows(read_interest(interest, SCHEMA.arrow), batch)
    return [row["seq"] for row, wanted in zip(rows, mask, strict=True) if wanted]


def receive(subscriber: Subscriber) -> list[Received]:
    """Everything up to the newest anchor."""
    found: list[Received] = []
    while True:
        before = subscriber.positions()
        received = subscriber.poll(0)
        found += received
        if not received and subscriber.positions() == before and before:
            return found


def read(subscriber: Subscriber) -> list[int]:
    return sorted(row["seq"] for one in receive(subscriber) for row in one.to_pylist())


SOME = [
    "speed > 120",
    "speed <= 0 && vin::A",
    "vin in (B, C) && speed in 40..90",
    "2 of (vin::A, speed > 100, seq < 50)",
    "seq in 10..20 || speed == 80",
    "seq >= 499",
]


@pytest.mark.parametrize("interest", SOME)
def test_exactly_the_rows_that_the_naive_filter_finds(topics: dict[str, Topic], interest: str) -> None:
    for topic in topics.values():
        with topic.reader.subscriber(topic.name, interest=interest) as subscriber:
            assert read(subscriber) == meant(interest), topic.name
            assert not subscriber.findings


def test_random_interests_miss_nothing(topics: dict[str, Topic]) -> None:
    """Through a real node: every row that the naive filter finds arrives, and no other."""
    random, saved = Random(11), 0
    for _ in range(12):
        low, high = sorted(random.uniform(-20, 210) for _ in range(2))
        speed = f"(speed > {low:.2f} && speed < {high:.2f})"
        vin = f"vin::{random.choice('ABC')}"
        interest = random.choice([speed, vin, f"{speed} && {vin}", f"{speed} || {vin}", f"seq > 250 && {speed}"])
        topic = topics[random.choice(["labelled", "each"])]
        counting = Liar(topic.reader.node)
        subscriber = subscribe_through(topic.reader, counting, topic.name, interest=interest)
        saved += bool(subscriber._fetcher.wanted)
        assert read(subscriber) == meant(interest), interest
    assert saved > 6


def test_bodies_that_are_not_wanted_do_not_travel(topics: dict[str, Topic]) -> None:
    topic, sizes = topics["labelled"], {}
    for interest in ("speed > 150 && vin::A", ""):
        node, sent = Liar(topic.reader.node), list[int]()

        def fetch(wanted: Fetch, node: Liar = node, sent: list[int] = sent) -> Fetched:
            fetched: Fetched = node.honest.fetch(wanted)
            sent.append(sum(len(data) for data in fetched.parcels))
            return fetched

        node.fetch = fetch
        read(subscribe_through(topic.reader, node, topic.name, interest=interest))
        sizes[interest] = sum(sent)
    assert sizes["speed > 150 && vin::A"] < sizes[""]


def test_places_are_those_in_the_parcel(topics: dict[str, Topic]) -> None:
    topic = topics["labelled"]
    with (
        topic.reader.subscriber(topic.name) as everything,
        topic.reader.subscriber(topic.name, interest="speed > 100") as some,
    ):
        rows = {one.offset: one.to_pylist() for one in receive(everything)}
        found = receive(some)
        for one in found:
            places = range(one.batch.rows) if one.places is None else one.places.tolist()
            assert [row["seq"] for row in one.to_pylist()] == [rows[one.offset][place]["seq"] for place in places]
        assert sum(one.batch.rows for one in found) == len(meant("speed > 100"))
        assert any(one.places is not None for one in found)


# --- attacks ---


def keep_back(node: Liar, which: Any) -> None:
    """The node sends fronts of parcels for which `which(parcel)` holds."""

    def fetch(wanted: Fetch) -> Fetched:
        fetched: Fetched = node.honest.fetch(wanted)
        parcels = [
            data[: front_bytes(data)] if which(Parcel.decode_front(data)) else data
            for data in map(bytes, fetched.parcels)
        ]
        return replace(fetched, parcels=tuple(parcels))

    node.fetch = fetch


@pytest.mark.parametrize("mode", ["anchored", "stored"])
def test_a_matching_parcel_as_a_front_is_withheld(topics: dict[str, Topic], mode: str) -> None:
    topic, node = topics["labelled"], Liar(topics["labelled"].reader.node)
    keep_back(node, lambda parcel: parcel.header.body_bytes > 0)
    subscriber = subscribe_through(topic.reader, node, topic.name, interest="speed > 120", read=mode)
    with pytest.raises(Withheld, match="without its body"):
        read(subscriber)


def test_without_the_check_rows_would_vanish_silently(topics: dict[str, Topic]) -> None:
    topic, node = topics["labelled"], Liar(topics["labelled"].reader.node)
    keep_back(node, lambda parcel: parcel.header.body_bytes > 0)
    subscriber = subscribe_through(topic.reader, node, topic.name, interest="speed > 120")
    with without("the check that a wanted body came"):
        assert read(subscriber) == []
    assert not subscriber.findings
    assert meant("speed > 120")


def test_a_subscriber_without_labels_takes_no_front(topics: dict[str, Topic]) -> None:
    topic, node = topics["plain"], Liar(topics["plain"].reader.node)
    keep_back(node, lambda parcel: parcel.header.sequence == 1)
    with pytest.raises(Withheld, match="without its body"):
        read(subscribe_through(topic.reader, node, topic.name, interest="speed > 120"))


def test_a_front_with_other_labels_is_not_the_anchored_parcel(topics: dict[str, Topic]) -> None:
    """A node that makes a parcel look unwanted changes its header, and so its name."""
    topic, node = topics["labelled"], Liar(topics["labelled"].reader.node)

    def fetch(wanted: Fetch) -> Fetched:
        fetched: Fetched = node.honest.fetch(wanted)
        first = Parcel.decode_front(bytes(fetched.parcels[0]))
        labels = tuple(sorted(label[:2] + bytes(7) + bytes([i]) for i, label in enumerate(first.header.labels)))
        forged = Parcel(replace(first.header, labels=labels), first.signature, b"").encode_front()
        return replace(fetched, parcels=(forged, *fetched.parcels[1:]))

    node.fetch = fetch
    with pytest.raises(Withheld, match="not what was anchored"):
        read(subscribe_through(topic.reader, node, topic.name, interest="speed > 120 || vin::A"))


# --- permits ---


@pytest.fixture
def short_sighted(tmp_path: Path) -> Iterator[Topic]:
    """Of an authority that gives labels for the current epoch alone."""
    with Stack(tmp_path, authority={"label_epochs_ahead": 0}) as stack:
        yield Topic(stack, "outrun", "outrun")


def test_labels_are_renewed_when_epochs_outrun_them(short_sighted: Topic) -> None:
    topic = short_sighted
    topic.owner.authority.labels(topic.token, CODE.encode())
    subscriber = topic.reader.subscriber(topic.name, interest="speed > 120")
    permits, found = [subscriber._opener.held.permit], []
    for epoch in (1, 1, 2, 2):
        if epoch > subscriber._fetcher.wanted.newest[0]:
            begins_ms = topic.owner.authority.rotate(topic.token).begins_ms
            wait_beyond(lambda: topic.reader.view.refresh().time_ms, begins_ms)
        send(topic.car, topic.name, ROWS[:100])
        assert read(subscriber) == meant("speed > 120", ROWS[:100])
        permits.append(subscriber._opener.held.permit)
        found.append(subscriber._fetcher.wanted.newest)
    assert found == [(1, 1), (1, 1), (2, 1), (2, 1)]
    assert len({permit.identifier for permit in permits}) == 2  # once for the new epoch
    assert not subscriber.findings


def test_a_code_that_comes_later_is_taken_up(stack: Stack) -> None:
    topic = Topic(stack, "later", "later")
    subscriber = topic.reader.subscriber(topic.name, interest="speed > 120")
    assert not subscriber._fetcher.wanted
    topic.owner.authority.labels(topic.token, CODE.encode())
    send(topic.car, topic.name, ROWS[:100])
    assert read(subscriber) == meant("speed > 120", ROWS[:100])
    assert subscriber._fetcher.wanted
    # And one that tells nothing about the interest is asked about once.
    other = topic.reader.subscriber(topic.name, interest="seq > 3")
    assert read(other) == meant("seq > 3", ROWS[:100])
    before = other._opener.held.permit
    send(topic.car, topic.name, ROWS[100:200])
    assert read(other) == meant("seq > 3", ROWS[100:200])
    assert other._opener.held.permit is before


def test_kept_permits_are_kept_by_interest(stack: Stack) -> None:
    topic = Topic(stack, "kept", "kept")
    topic.owner.authority.labels(topic.token, CODE.encode())
    permits = {
        interest: [topic.reader.subscriber(topic.name, interest=interest)._opener.held.permit for _ in range(2)]
        for interest in ("speed > 120", "speed > 20", "")
    }
    assert all(first == second for first, second in permits.values())
    assert len({first.identifier for first, _ in permits.values()}) == 3


@pytest.mark.parametrize("interest", ["sped > 3", "speed >", "speed > 5 && speed < 4", "speed::fast"])
def test_an_interest_that_makes_no_sense_is_said_at_once(topics: dict[str, Topic], interest: str) -> None:
    with pytest.raises(Misuse):
        topics["plain"].reader.subscriber("plain", interest=interest)


def test_a_group_counts_what_it_passed_over(topics: dict[str, Topic]) -> None:
    """Offsets move over fronts and over parcels without a wanted row."""
    topic = topics["labelled"]
    with topic.reader.subscriber(topic.name, interest="seq == 3", group="sparse") as subscriber:
        assert read(subscriber) == [3]
        end = subscriber.positions()
        assert end == {0: row_of(topic.reader.view, ANCHORS(topic.token, 0)).size}  # four parcels behind it
        subscriber.commit()
    with topic.reader.subscriber(topic.name, interest="seq == 3", group="sparse") as again:
        assert again.poll(0) == []
        assert again.positions() == end
