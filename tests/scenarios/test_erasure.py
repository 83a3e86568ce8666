"""Erasing on purpose: the key of one publisher's records is destroyed, and everything around them still verifies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from actors import Topic, permit_of, publish, read_rows, rows, settle
from stack import Stack, wait_until
from test_broker import found_by

from tallystick.carriers.carrier import Fetch
from tallystick.client.subscribe import Received, Subscriber
from tallystick.errors import Refused
from tallystick.ledger.contracts.epochs import ERASURES
from tallystick.ledger.contracts.topics import ERASABLE
from tallystick.parcel.keys import KeyRing
from tallystick.parcel.locks import MissingKey
from tallystick.parcel.open import open_batch
from tallystick.parcel.parcel import Parcel, VerifiedParcel
from tallystick.parcel.prove import prove, verify_proof
from tallystick.parcel.verify import PermitBook, verify_one
from tallystick.trust.receipt import Receipt


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("erasure")) as stack:
        yield stack


@pytest.fixture(scope="module")
def topic(stack: Stack) -> Topic:
    """An erasable topic: rows 0 to 2 by a car, 10 to 12 by a truck."""
    topic = Topic(stack, "acme", flags=ERASABLE)
    publish(topic.car, "brakes", [0, 1, 2])
    topic.truck = topic.publisher("truck")  # type: ignore[attr-defined]
    publish(topic.truck, "brakes", [10, 11, 12])  # type: ignore[attr-defined]
    settle(stack)
    return topic


def receive(subscriber: Subscriber, count: int) -> list[Received]:
    received: list[Received] = []
    wait_until(lambda: received.extend(subscriber.poll(50)) or len(received) >= count)
    return received


def fetch_verified(topic: Topic, permit: bytes, offset: int) -> VerifiedParcel:
    identity, node = topic.reader.identity, topic.reader.node
    book = PermitBook(identity.instance, [identity.authority], node.permit)
    data = node.fetch(Fetch(topic.token, 0, permit, offset, bytes_max=1 << 20)).parcels[0]
    return verify_one(Parcel.decode(data), identity.instance, book)


def test_an_erased_publisher_is_unreadable_and_everything_else_verifies(stack: Stack, topic: Topic) -> None:
    before = topic.reader.subscriber("brakes")
    received = receive(before, 6)
    first = received[0]
    kept_ring, schema, permit = before.ring, before._opener.held.schemas[-1], permit_of(before).identifier
    verified = fetch_verified(topic, permit, first.offset)
    receipt = Receipt.decode(topic.reader.node.receipt(topic.token, 0, first.offset))
    publisher = topic.reader.node.permit(verified.header.topics[0].permit)
    authority = topic.reader.identity.authority.encode()
    proof = prove(verified, kept_ring, schema, 0, 0, publisher, authority, receipt)

    with pytest.raises(Refused):  # only the topic's owner erases
        topic.reader.authority.erase(topic.token, topic.car.identity.principal, [])
    erased = topic.owner.authority.erase(topic.token, topic.car.identity.principal, [])
    assert {publisher for publisher, _ in erased.periods} == {topic.car.identity.principal}
    assert topic.reader.identity.principal in erased.holders  # who could already have opened it
    assert erased.backups == ()

    # A new reader reports what was erased, by name, and goes on: it does not stop.
    after = topic.reader.subscriber("brakes")
    assert read_rows(after, 3) == [10, 11, 12]
    assert [(one.reason, one.publisher) for one in after.findings] == [("erased", topic.car.identity.principal)] * 3
    with pytest.raises(MissingKey):
        open_batch(verified, after.ring, schema)

    # One that had the keys drops them with the next news; what it kept on purpose is outside, and said so.
    before.update_keys()
    with pytest.raises(MissingKey):
        open_batch(verified, before.ring, schema)

    # Roots, receipts and proofs made before still hold.
    again = Receipt.decode(topic.reader.node.receipt(topic.token, 0, first.offset))
    assert again.verify(first.parcel, topic.token, stack.node.trust).offset == first.offset
    assert verify_proof(proof.encode(), stack.node.trust).row["seq"] == 0


def test_an_erasure_is_on_the_ledger_and_its_key_is_nowhere_at_the_authority(stack: Stack, topic: Topic) -> None:
    principal = topic.car.identity.principal
    marks = stack.node.ledger.scan(ERASURES, topic.token, principal)
    assert marks
    store = stack.authority.authority.core.store
    kept = store.rows(
        "SELECT public, secret FROM erasure_keys WHERE token = ? AND publisher = ? AND erased = 1",
        (topic.token, principal),
    )
    assert kept == [(None, None)] * len(marks)


def test_without_destruction_a_kept_key_still_opens(topic: Topic) -> None:
    """What was handed out before is outside: a reader that keeps the truck's key in a ring of its own."""
    subscriber = topic.reader.subscriber("brakes")
    received = receive(subscriber, 3)
    verified = fetch_verified(topic, permit_of(subscriber).identifier, received[0].offset)
    ring: KeyRing = subscriber.ring
    topic.owner.authority.erase(topic.token, received[0].publisher, [])
    assert open_batch(verified, ring, subscriber._opener.held.schemas[-1]).rows == 1
    assert found_by(topic.reader.subscriber("brakes", on_bad="report"), 1) == ([], ["erased"] * 6)


def test_an_erased_publisher_goes_on_under_a_new_period(topic: Topic) -> None:
    publish(topic.car, "brakes", [20])
    assert read_rows(topic.reader.subscriber("brakes"), 1) == [20]


def test_a_publisher_at_work_moves_to_the_new_period_without_a_restart(topic: Topic) -> None:
    with topic.car.publisher("brakes", acks="anchored", anchor_check_s=0.02, linger_s=0.0) as publisher:
        publisher.send(rows(30))
        assert publisher.flush(30) == 0
        topic.owner.authority.erase(topic.token, topic.car.identity.principal, [])
        publisher.update_keys()
        publisher.send(rows(31))
        assert publisher.flush(30) == 0
    assert read_rows(topic.reader.subscriber("brakes"), 1) == [31]


def test_only_an_erasable_topic_is_erased(stack: Stack) -> None:
    plain = Topic(stack, "plain", "doors")
    with pytest.raises(Refused) as refusal:
        plain.owner.authority.erase(plain.token, plain.car.identity.principal, [])
    assert refusal.value.reason == "not-erasable"
