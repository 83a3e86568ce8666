"""Publishing with labels: rows of neighbouring subspaces together, labelled under the epoch they are sealed in; and
what a node sends under a permit with labels."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from actors import SCHEMA, Topic, await_topic
from stack import WRITE, Stack, wait_until

from tallystick.carriers.carrier import Fetch, Fetched
from tallystick.client.publish import Publisher
from tallystick.client.session import Session
from tallystick.errors import Refused
from tallystick.parcel.header import Header, ParcelKind
from tallystick.parcel.labels import Wanted
from tallystick.parcel.parcel import Parcel, front_bytes
from tallystick.policy.topic_code import TopicCode
from tallystick.record.schema import Schema
from tallystick.trust.permit import Operation, Permit

CODE = TopicCode.read(["speed:4:0..160"], Schema.parse(SCHEMA).arrow, number=6)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("labelling")) as stack:
        yield stack


@pytest.fixture(scope="module")
def people(stack: Stack) -> Topic:
    return Topic(stack, "acme")


@pytest.fixture
def topic(people: Topic, request: pytest.FixtureRequest) -> Topic:
    topic = people.beside(f"t{abs(hash(request.node.name)) % 10**8}")
    topic.owner.authority.labels(topic.token, CODE.encode())
    return topic


def fast_and_slow(count: int = 600) -> list[dict[str, Any]]:
    return [{"vin": "V", "seq": number, "speed": 5.0 if number % 3 else 155.0} for number in range(count)]


def send(topic: Topic, *batches: list[dict[str, Any]], **settings: Any) -> None:
    with topic.car.publisher(topic.name, acks="anchored", anchor_check_s=0.02, **settings) as publisher:
        for batch in batches:
            publisher.send(batch)
        assert publisher.flush(60) == 0


def fetch(session: Session, topic: Topic, interest: str = "", **query: Any) -> tuple[Permit, Fetched]:
    permit = Permit.decode(session.authority.permit(Operation.SUBSCRIBE, topic.token, 1, interest).permit)
    session.node.subscribe(permit.encode())
    options: dict[str, Any] = {"bytes_max": 1 << 22, **query}
    return permit, session.node.fetch(Fetch(topic.token, 0, permit.identifier, options.pop("offset", 0), **options))


def headers(fetched: Fetched) -> list[Header]:
    return [Parcel.decode_front(data).header for data in fetched.parcels]


def wholes(fetched: Fetched) -> list[bool]:
    return [len(data) > front_bytes(data) for data in fetched.parcels if Parcel.decode_front(data).header.body_bytes]


def test_rows_are_sealed_by_subspace_and_labelled(topic: Topic) -> None:
    send(topic, fast_and_slow())
    _, fetched = fetch(topic.reader, topic)
    data = [one for one in headers(fetched) if one.kind is ParcelKind.DATA]
    assert sorted(one.count for one in data) == [200, 400]
    assert all(len(one.labels) == CODE.number for one in data)
    assert wholes(fetched) == [True, True]  # a permit without labels gets everything
    closing = headers(fetched)[-1]
    assert (closing.kind, closing.labels) == (ParcelKind.CLOSE, ())


def test_a_node_sends_fronts_of_what_shares_no_label(topic: Topic) -> None:
    send(topic, fast_and_slow())
    permit, fetched = fetch(topic.reader, topic, "speed > 120")
    sent = [(one.count, whole) for one, whole in zip(headers(fetched), wholes(fetched), strict=False)]
    assert sorted(sent) == [(200, True), (400, False)]
    wanted = Wanted(permit.labels)
    for one, data in zip(headers(fetched), fetched.parcels, strict=True):
        is_front = len(data) == front_bytes(data)
        assert wanted.asks_for(one) or is_front
    # The range is the anchored one, fronts included: what they are is in the headers.
    _, plain = fetch(topic.reader, topic)
    assert [one.hash for one in headers(fetched)] == [one.hash for one in headers(plain)]
    assert fetched.proof == plain.proof


def test_small_answers_end_between_parcels(topic: Topic) -> None:
    """However little is asked for, every answer goes on where the last one ended."""
    send(topic, *(fast_and_slow(6) for _ in range(5)))
    _, all_of_it = fetch(topic.reader, topic, "speed > 120")
    offset, found = 0, list[bytes | memoryview]()
    while offset < all_of_it.anchored:
        _, part = fetch(topic.reader, topic, "speed > 120", offset=offset, bytes_max=1000)
        assert part.first == offset
        assert part.parcels
        found += part.parcels
        offset += len(part.parcels)
    assert tuple(found) == all_of_it.parcels
    assert {True, False} == set(wholes(all_of_it))


def test_what_is_sealed_again_gets_the_labels_of_its_new_epoch(topic: Topic) -> None:
    """Rows that waited in the spool while an epoch ended: sealed anew, and labelled anew."""
    anchored: dict[str, Any] = {"acks": "anchored", "anchor_check_s": 0.02}  # what is not is not fetched
    publisher = topic.car.publisher(topic.name, background=False, keys_wait_ms=0, **anchored)
    publisher.send(fast_and_slow(6))
    publisher._seal_step()  # in the spool, not sent
    begins_ms = topic.owner.authority.rotate(topic.token).begins_ms
    wait_until(lambda: topic.reader.view.refresh().time_ms > begins_ms)  # the guards go by block time
    drain(publisher)
    _, fetched = fetch(topic.reader, topic)
    found = {one.topics[0].epoch: one.labels for one in headers(fetched) if one.kind is ParcelKind.DATA}
    assert set(found) == {2}
    permit, fetched = fetch(topic.reader, topic, "speed > 120")
    assert Wanted(permit.labels).newest[0] >= 2
    assert sorted(wholes(fetched)) == [False, True]


def drain(publisher: Publisher) -> None:
    deadline = time.monotonic() + 30
    while publisher.flush(0.2) and time.monotonic() < deadline:
        publisher.update_keys()
    publisher.close()


def test_several_topics_in_one_lane_have_no_labels(stack: Stack, topic: Topic) -> None:
    token = stack.topic(topic.owner, f"{topic.name}-too", SCHEMA)
    await_topic(stack, token)
    stack.grant(topic.owner, token, topic.car, WRITE)
    with topic.car.publisher([topic.name, f"{topic.name}-too"], acks="anchored", anchor_check_s=0.02) as publisher:
        publisher.send(fast_and_slow(6))
        assert publisher.flush(60) == 0
    _, fetched = fetch(topic.reader, topic, "speed > 120")
    assert [one.labels for one in headers(fetched)] == [()] * len(fetched.parcels)
    assert all(wholes(fetched))


def test_anothers_permit_fetches_nothing(topic: Topic) -> None:
    """Labels are bound to who asked for them: nobody reads under another's, wider or narrower."""
    send(topic, fast_and_slow(6))
    permit, _ = fetch(topic.reader, topic, "speed > 120")
    other = topic.subscriber("other")
    with pytest.raises(Refused, match="no live subscription"):
        other.node.fetch(Fetch(topic.token, 0, permit.identifier, 0, bytes_max=1 << 20))
    with pytest.raises(Refused, match="issued to another principal"):
        other.node.subscribe(permit.encode())


@pytest.mark.parametrize("change", ["more", "none"])
def test_altered_labels_are_refused(topic: Topic, change: str) -> None:
    """A subscriber that wants more than its interest asks for another permit; it cannot write one."""
    permit, _ = fetch(topic.reader, topic, "speed > 120")
    labels = () if change == "none" else tuple(sorted({*permit.labels, bytes(14)}))
    changed = replace(permit, labels=labels).sign(topic.reader.identity.signing_key)
    with pytest.raises(Refused):
        topic.reader.node.subscribe(changed.encode())


def labels_of(fetched: Fetched) -> Sequence[tuple[bytes, ...]]:
    return [one.labels for one in headers(fetched) if one.labels]


def test_labels_of_one_topic_mean_nothing_in_another(stack: Stack, topic: Topic) -> None:
    name = f"{topic.name}b"
    other = Topic(stack, name, name)
    other.owner.authority.labels(other.token, CODE.encode())
    send(topic, fast_and_slow(600))
    send(other, fast_and_slow(600))
    mine, theirs = (
        {label for labels in labels_of(fetch(one.reader, one)[1]) for label in labels} for one in (topic, other)
    )
    assert mine.isdisjoint(theirs)
