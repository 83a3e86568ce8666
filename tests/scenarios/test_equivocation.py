"""A publisher that tells two stories, on purpose or because its machine was cloned: two signed parcels of one lane and
sequence. The guard takes one, the reader names it where no guard stood, the ledger keeps both as evidence."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from actors import Hand, Topic, await_topic, publish, read_rows, reason, reputation, row_of, rows, settle, stored
from stack import READ, WRITE, Stack, wait_until
from test_broker import found_by
from without import without

from tallystick.client.session import Session
from tallystick.crypto.merkle import leaf_hash
from tallystick.errors import Refused, TallystickError
from tallystick.identity.folder import Identity
from tallystick.ledger import entries
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.reputation import EQUIVOCATIONS
from tallystick.ledger.engine import Query
from tallystick.parcel.header import SIGNATURE_CONTEXT
from tallystick.parcel.keys import ParcelKeys
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.seal import Lane
from tallystick.record.batch import Batch
from tallystick.trust.permit import Operation


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("equivocation")) as stack:
        yield stack


@pytest.fixture(scope="module")
def topic(stack: Stack) -> Topic:
    return Topic(stack, "acme")


def liar(topic: Topic, name: str) -> tuple[Hand, Parcel, Parcel]:
    """A publisher with one parcel in the log and two that follow it, each with the same sequence."""
    hand = Hand(topic.publisher(name), topic.token)
    stored(hand.send(hand.seal(0))[0])
    fork = hand.fork()
    return hand, hand.seal(1), hand.seal(2, lane=fork)


def is_convicted(stack: Stack, principal: bytes) -> bool:
    return reputation(stack, principal)[1] > 0


def test_the_guard_takes_one_story_and_the_ledger_keeps_both(stack: Stack, topic: Topic) -> None:
    hand, one, two = liar(topic, "two-tongues")
    principal = hand.session.identity.principal
    stored(hand.send(one)[0])
    assert reason(hand.send(two)[0]) == "equivocation"
    wait_until(lambda: is_convicted(stack, principal))
    place = EQUIVOCATIONS(principal, hand.lane.lane, 1)
    entry, height = row_of(hand.session.view, place)
    assert reputation(stack, principal)[1] == height
    [item] = [one for one in stack.node.ledger.audit(Query(kind=int(EntryKind.EQUIVOCATION))) if one.height == height]
    assert (item.fields[3], item.fields[5]) == (one.header.encoded, two.header.encoded)  # both, for who asks later
    assert entry == leaf_hash(item.entry)
    # From now on it is refused whatever it sends, and gets no permit.
    assert reason(hand.send(hand.seal(3))[0]) == "blacklisted"
    with pytest.raises(Refused):
        hand.session.authority.permit(Operation.ADVERTISE, topic.token)


def test_the_same_parcel_again_blames_nobody(stack: Stack, topic: Topic) -> None:
    hand, one, _ = liar(topic, "stutterer")
    for _ in range(3):
        stored(hand.send(one)[0])
    settle(stack)
    assert not is_convicted(stack, hand.session.identity.principal)


def test_where_no_guard_stood_the_reader_names_it_and_brings_the_evidence(stack: Stack, topic: Topic) -> None:
    token = stack.topic(topic.owner, "unguarded", "vin string, seq int64 not null, speed float32")
    await_topic(stack, token)
    stack.grant(topic.owner, token, topic.reader, READ)
    car = topic.member("unguarded-car")
    stack.grant(topic.owner, token, car, WRITE)
    hand = Hand(car, "unguarded")
    parcels = [hand.seal(0)]
    fork = hand.fork()
    parcels += [hand.seal(1), hand.seal(2, lane=fork)]
    with without("the guard of publishing"):
        for parcel in parcels:
            stored(hand.send(parcel)[0])
    subscriber = topic.reader.subscriber("unguarded", on_bad="report")
    assert found_by(subscriber, 2) == ([0, 1], ["equivocation"])
    finding = subscriber.findings[0]
    assert finding.publisher == car.identity.principal
    assert not is_convicted(stack, car.identity.principal)
    key = car.identity.signing_key.public.raw
    topic.reader.author.write(entries.equivocation(finding.publisher, key, *finding.evidence))
    assert is_convicted(stack, car.identity.principal)


def test_evidence_that_proves_nothing_is_refused(stack: Stack, topic: Topic) -> None:
    hand, one, two = liar(topic, "slandered")
    identity, accuser = hand.session.identity, topic.reader
    key = identity.signing_key.public.raw
    forged = replace(one.header, sequence=two.header.sequence, time_ms=1)
    own = accuser.identity.signing_key.sign(SIGNATURE_CONTEXT, forged.encoded)
    later = hand.seal(3)
    for name, entry in {
        "one header twice": (key, one.header.encoded, one.signature, one.header.encoded, one.signature),
        "two sequences": (key, one.header.encoded, one.signature, later.header.encoded, later.signature),
        "a forged header": (key, one.header.encoded, one.signature, forged.encoded, own),
        "the accuser's own key": (
            accuser.identity.signing_key.public.raw,
            *(one.header.encoded, one.signature, two.header.encoded, two.signature),
        ),
    }.items():
        with pytest.raises(Refused):
            accuser.author.write(entries.equivocation(identity.principal, *entry))
        assert not is_convicted(stack, identity.principal), name
    accuser.author.write(
        entries.equivocation(
            identity.principal, key, one.header.encoded, one.signature, two.header.encoded, two.signature
        )
    )
    assert is_convicted(stack, identity.principal)


# --- a cloned machine ---


def test_a_publisher_restored_from_a_snapshot_is_caught(stack: Stack, topic: Topic) -> None:
    """Yesterday's disk image is started beside today's machine: its spool says that the next sequence is free."""
    car = topic.publisher("cloned")
    publisher = car.publisher("brakes", linger_s=0.0)
    publisher.send(rows(100))
    assert publisher.flush(30) == 0
    publisher.stop()  # as a power cut would
    home = car.identity.home
    snapshot = home.parent / "snapshot"
    shutil.copytree(home, snapshot)
    publisher = car.publisher("brakes", linger_s=0.0)
    publisher.send(rows(101))
    assert publisher.flush(30) == 0
    publisher.stop()
    with Session(Identity.load(snapshot)) as clone:
        told: list[TallystickError | None] = []
        twin = clone.publisher("brakes", linger_s=0.0)
        twin.send(rows(102), lambda error, _: told.append(error))
        twin.flush(30)
        twin.stop()
    assert [error.reason for error in told if isinstance(error, Refused)] == ["equivocation"]
    wait_until(lambda: is_convicted(stack, car.identity.principal))
    publish(topic.car, "brakes", [103])
    subscriber, got = topic.reader.subscriber("brakes"), [0]
    while got[-1] != 103:
        got += read_rows(subscriber, 1)
    assert (101 in got, 102 in got) == (True, False)


def seal_with(lane: Lane, number: int, entropy: bytes) -> Parcel:
    batch = Batch.of(lane.schema, pa.RecordBatch.from_pylist(rows(number), schema=lane.schema.arrow))
    return lane.seal(batch, now_ms=1, entropy=entropy)


def body_key(lane: Lane, parcel: Parcel) -> bytes:
    return ParcelKeys.of(lane.keys[0], parcel.header.sequence, parcel.header.identifier).body_key


def test_a_repeated_random_state_repeats_no_key(topic: Topic) -> None:
    """The clone draws the same random bytes as its twin; other rows get other keys all the same."""
    hand = Hand(topic.publisher("twins"), "brakes")
    one, two, three = hand.fork(), hand.fork(), hand.fork()
    entropy = b"r" * 32
    left, right, same = seal_with(one, 1, entropy), seal_with(two, 2, entropy), seal_with(three, 1, entropy)
    assert left.header.identifier != right.header.identifier
    assert body_key(one, left) != body_key(two, right)
    assert same.hash == left.hash  # the very same parcel: a duplicate, which blames nobody


def test_with_identifiers_from_entropy_alone_a_clone_uses_a_key_twice(topic: Topic) -> None:
    """And AES-GCM under one key and nonce gives away the difference of two plaintexts."""
    hand = Hand(topic.publisher("careless-twins"), "brakes")
    one, two = hand.fork(), hand.fork()
    with without("the plaintext in an identifier"):
        left, right = seal_with(one, 1, b"r" * 32), seal_with(two, 2, b"r" * 32)
    assert body_key(one, left) == body_key(two, right)
    difference = bytes(a ^ b for a, b in zip(bytes(left.body), bytes(right.body), strict=False))
    assert difference[:16] == bytes(16)  # the same beginning of both plaintexts shows through the encryption


def test_the_topic_reads_on(topic: Topic) -> None:
    publish(topic.car, "brakes", [900])
    subscriber = topic.reader.subscriber("brakes")
    assert read_rows(subscriber, 1)
