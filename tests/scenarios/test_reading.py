"""Reading what one may not: EventGuard's and BPS's attacks on confidentiality, on a whole instance.

Two walls stand one behind the other: the guards hand nothing out without a live subscription, and what they would hand
out is sealed. Where a scenario takes the first wall away, the second one shows; where it takes both, the attack wins.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from actors import (
    Hand,
    Topic,
    acts,
    fetch_query,
    permit_of,
    publish,
    read_rows,
    reputation,
    row_of,
    rows,
    settle,
    stored,
)
from stack import READ, Stack, wait_until
from without import without

from tallystick.carriers import front
from tallystick.carriers.carrier import Fetch
from tallystick.carriers.storage import Place
from tallystick.client.session import Session
from tallystick.demo.forgery import exchange
from tallystick.errors import Refused
from tallystick.guards.publish import Accepted, Repeated
from tallystick.guards.publish import publish as publish_guard
from tallystick.guards.rules import Act
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.engine import Query
from tallystick.parcel.header import ParcelKind
from tallystick.parcel.keys import KeyRing
from tallystick.parcel.locks import MissingKey
from tallystick.parcel.open import open_batch
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.verify import PermitBook, verify_one
from tallystick.record.schema import Schema
from tallystick.trust.permit import Operation

REVOKE_S = int(os.environ.get("TALLY_REVOKE_S", "3"))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("reading"), authority={"revoke_s": REVOKE_S}) as stack:
        yield stack


@pytest.fixture(scope="module")
def topic(stack: Stack) -> Topic:
    """A topic with ten rows, 0 to 9."""
    topic = Topic(stack, "acme")
    publish(topic.car, "brakes", range(10))
    return topic


@pytest.fixture(scope="module")
def stranger(stack: Stack) -> Session:
    """Somebody of another tenant."""
    stack.tenant("rival")
    return stack.principal("rival", "rival-spy")


def why(error: pytest.ExceptionInfo[Refused]) -> str:
    return error.value.reason


def fetch(session: Session, token: bytes, permit: bytes) -> list[Parcel]:
    fetched = session.node.fetch(Fetch(token, 0, permit, 0, bytes_max=1 << 20))
    return [Parcel.decode(data) for data in fetched.parcels]


def open_all(topic: Topic, parcels: list[Parcel], ring: KeyRing, schema: Schema) -> list[int]:
    """What whoever has these keys reads in these parcels."""
    identity = topic.reader.identity
    book = PermitBook(identity.instance, [identity.authority], topic.reader.node.permit)
    data = [parcel for parcel in parcels if parcel.header.kind is ParcelKind.DATA]
    opened = [open_batch(verify_one(parcel, identity.instance, book), ring, schema) for parcel in data]
    return [row["seq"] for batch in opened for row in batch.data.to_pylist()]


# --- without a permit ---


def test_a_stranger_gets_neither_parcels_nor_keys(stack: Stack, topic: Topic, stranger: Session) -> None:
    for operation in Operation:
        with pytest.raises(Refused) as refusal:
            stranger.authority.permit(operation, topic.token)
        assert why(refusal) == "unknown-topic"
    with pytest.raises(Refused) as refusal:
        fetch(stranger, topic.token, bytes(16))
    assert why(refusal) == "unknown-topic"
    attempt = acts(stack, token=topic.token, principal=stranger.identity.principal)[-1]
    assert (attempt.reason, bool(attempt.evidence)) == ("unknown-topic", True)
    assert reputation(stack, stranger.identity.principal) == (90, 0)


def test_without_the_guard_a_stranger_gets_sealed_parcels_and_with_stolen_keys_the_rows(
    topic: Topic, stranger: Session
) -> None:
    with without("the guard of fetches"):
        parcels = fetch(stranger, topic.token, bytes(16))
    subscriber = topic.reader.subscriber("brakes")
    schema = subscriber._opener.held.schemas[-1]
    with pytest.raises(MissingKey):
        open_all(topic, parcels, KeyRing(stranger.node.lock), schema)
    assert open_all(topic, parcels, subscriber.ring, schema) == list(range(10))


# --- with a copied permit ---


def test_a_copied_permit_serves_its_holder_alone(topic: Topic) -> None:
    victim, thief = permit_of(topic.reader.subscriber("brakes")), topic.subscriber("thief")
    own = thief.subscriber("brakes")  # the thief may even read: it must do so under its own permit
    with pytest.raises(Refused) as refusal:
        thief.node.subscribe(victim.encode())
    assert why(refusal) == "not-yours"
    with pytest.raises(Refused) as refusal:
        fetch(thief, topic.token, victim.identifier)
    assert why(refusal) == "not-subscribed"
    assert fetch(thief, topic.token, permit_of(own).identifier)


def test_with_the_papers_permit_that_names_nobody_a_copy_reads(topic: Topic, stranger: Session) -> None:
    """EventGuard 4.2: the permit signs T(w) alone."""
    victim = permit_of(topic.reader.subscriber("brakes"))
    with without("the holder's name in a permit"):
        assert len(fetch(stranger, topic.token, victim.identifier)) == 11  # ten rows and the closing parcel


def test_a_permit_written_by_oneself_is_no_permit(topic: Topic) -> None:
    victim, forger = permit_of(topic.reader.subscriber("brakes")), topic.subscriber("forger")
    identity = forger.identity
    forged = replace(
        victim, principal=identity.principal, signing_key=identity.signing_key.public.raw, identifier=b"f" * 16
    ).sign(identity.signing_key)
    with pytest.raises(Refused) as refusal:
        forger.node.subscribe(forged.encode())
    assert why(refusal) == "permit-ended"  # never issued: the ledger does not have it
    issued = replace(forged, identifier=victim.identifier).sign(identity.signing_key)
    with pytest.raises(Refused) as refusal:
        forger.node.subscribe(issued.encode())
    assert why(refusal) == "forged"


# --- without DESCRIBE ---


def test_without_describe_every_answer_is_that_of_a_topic_that_does_not_exist(topic: Topic, stranger: Session) -> None:
    own = permit_of(topic.reader.subscriber("brakes"))
    identity = stranger.identity

    def answers(token: bytes) -> list[tuple[int, bytes, dict[str, str]]]:
        phony = replace(
            own, token=token, principal=identity.principal, signing_key=identity.signing_key.public.raw
        ).sign(identity.signing_key)
        place = f"/v1/topics/{token.hex()}"
        asked = [
            exchange(stranger, "GET", f"{place}/parcels", fetch_query(own.identifier)),
            exchange(stranger, "GET", f"{place}/parcels", fetch_query(own.identifier, partition=9)),
            exchange(stranger, "POST", f"{place}/parcels", body=b"\x04\x00\x00\x00junk"),
            exchange(stranger, "POST", f"{place}/subscriptions", body=phony.encode()),
            exchange(stranger, "POST", f"{place}/advertisements", body=phony.encode()),
            exchange(stranger, "POST", f"{place}/locks", f"permit={own.identifier.hex()}"),
            exchange(stranger, "POST", f"{place}/inclusion", body=b"\x83\x00\x01\x81\x00"),
            exchange(
                stranger,
                "GET",
                f"{place}/lanes/{'00' * 16}",
                f"partition=0&permit={own.identifier.hex()}&publisher={'00' * 16}&below=1&size=1",
            ),
            exchange(stranger, "GET", "/v1/ledger/receipt", f"token={token.hex()}&partition=0&offset=0"),
        ]
        return [(a.status, a.body, {name: value for name, value in a.headers.items() if name != "date"}) for a in asked]

    there, nowhere = answers(topic.token), answers(b"n" * 16)
    assert there == nowhere
    assert {status for status, *_ in there} == {403, 200}  # 200: an outcome a parcel, each of them a refusal


def test_unsigned_requests_all_get_one_face(topic: Topic, stranger: Session) -> None:
    place = f"/v1/topics/{topic.token.hex()}/parcels"
    other = stranger.entropy.bytes(32)
    faces = [
        exchange(stranger, "GET", place, fetch_query(bytes(16)), headers=[]),
        exchange(stranger, "GET", "/v1/topics/" + "00" * 16 + "/parcels", headers=[]),
        exchange(stranger, "GET", "/no/such/path", headers=[]),
        exchange(stranger, "GET", place, fetch_query(bytes(16)), principal=b"x" * 16),
        exchange(stranger, "GET", place, fetch_query(bytes(16)), node=b"x" * 16),
        exchange(stranger, "GET", place, fetch_query(bytes(16)), principal=topic.reader.identity.principal),
        exchange(stranger, "POST", place, body=b"signed", sent=other),
    ]
    assert {(face.status, face.body) for face in faces} == {(403, b"")}
    assert len({tuple(sorted((k, v) for k, v in face.headers.items() if k != "date")) for face in faces}) == 1


# --- after the right is gone ---


def test_a_revoked_subscriber_opens_nothing_newer(
    stack: Stack, topic: Topic, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the withdrawal until nothing is sealed for the revoked any more, while the publisher never stops."""
    judged: list[tuple[int, int]] = []  # (epoch, time of the newest block) of every parcel that the guard took
    guard = publish_guard

    def watched(data: bytes, act: Act, *rest: Any) -> Accepted | Repeated:
        accepted = guard(data, act, *rest)
        judged.append((accepted.parcel.header.topics[0].epoch, act.time_ms))
        return accepted

    monkeypatch.setattr(front, "publish", watched)
    topic = Topic(stack, "fleet", "doors")
    leaver, stays = topic.subscriber("leaver"), topic.reader
    ring_of = leaver.subscriber("doors")
    stopping, sent = threading.Event(), 0
    with topic.car.publisher("doors", linger_s=0.0, anchor_check_s=0.1) as publisher:

        def publish_on() -> None:
            nonlocal sent
            while not stopping.wait(0.02):
                publisher.send(rows(sent))
                sent += 1

        thread = threading.Thread(target=publish_on)
        thread.start()
        try:
            assert read_rows(ring_of, 3)[:3] == [0, 1, 2]
            stack.withdraw(topic.owner, topic.token, leaver, READ)
            with pytest.raises(Refused):  # the guards close at once
                wait_until(lambda: ring_of.poll(0) is None)
            wait_until(lambda: _epoch_of_newest(stack, topic.token) == 2)
        finally:
            stopping.set()
            thread.join()
        assert publisher.flush(30) == 0

    # Somebody entitled passes on every parcel: the revoked one has its old keys and asks for new ones.
    subscriber = stays.subscriber("doors")
    assert sorted(read_rows(subscriber, sent)) == list(range(sent))
    parcels = _fetch_all(stays, topic.token, permit_of(subscriber).identifier)
    schema = subscriber._opener.held.schemas[-1]
    data = [parcel for parcel in parcels if parcel.header.kind is ParcelKind.DATA]
    old = [parcel for parcel in data if parcel.header.topics[0].epoch == 1]
    new = [parcel for parcel in data if parcel.header.topics[0].epoch == 2]
    assert len(old) + len(new) == len(data)
    assert open_all(topic, old, ring_of.ring, schema)
    assert new
    for parcel in new:
        with pytest.raises(MissingKey):
            open_all(topic, [parcel], ring_of.ring, schema)
    with pytest.raises(Refused) as refusal:
        ring_of.update_keys()
    assert why(refusal) == "permit-ended"

    # The bound, by the ledger's clock: the epoch ends `revoke_s` after the block of the withdrawal, or where the
    # authority heard of it later, no later than its own word. tests/sim/test_revocation.py has it on a clock by hand.
    withdrawn, ending = time_of(stack, topic, EntryKind.WITHDRAW), time_of(stack, topic, EntryKind.END_EPOCH)
    end_ms = stack.node.ledger.query(lambda state: state.get(b"epoch/" + topic.token + (1).to_bytes(4, "big")))[3]
    assert withdrawn < end_ms <= max(withdrawn + REVOKE_S * 1000, ending)
    last = max(time_ms for epoch, time_ms in judged if epoch == 1)
    assert withdrawn < last < end_ms
    with capsys.disabled():
        print(f"\nthe last for the revoked was taken {(last - withdrawn) / 1000:.2f} s after; revoke_s is {REVOKE_S}")


def time_of(stack: Stack, topic: Topic, kind: EntryKind) -> int:
    """The time of the block that holds the topic's only entry of this kind."""
    [item] = [one for one in stack.node.ledger.audit(Query(kind=int(kind))) if one.fields[1] == topic.token]
    return item.time_ms


def _epoch_of_newest(stack: Stack, token: bytes) -> int:
    storage, place = stack.node.carrier.storage, Place(token, 0)
    end = storage.end(place)
    entry = storage.read(place, end - 1, 1, headers_only=True)[0]
    return Parcel.decode_front(entry.header).header.topics[0].epoch


def _fetch_all(session: Session, token: bytes, permit: bytes) -> list[Parcel]:
    parcels: list[Parcel] = []
    while fetched := session.node.fetch(Fetch(token, 0, permit, len(parcels), bytes_max=1 << 20)).parcels:
        parcels += [Parcel.decode(data) for data in fetched]
    return parcels


def test_without_a_new_epoch_a_revoked_subscriber_reads_on(stack: Stack, topic: Topic) -> None:
    """The guard alone does not help against an accomplice who passes parcels on: while the authority is away no epoch
    ends, and the revoked one's keys fit what is sealed after its right was withdrawn."""
    leaver, accomplice = topic.subscriber("leaver-2"), topic.reader.subscriber("brakes")
    ring, hand = leaver.subscriber("brakes").ring, Hand(topic.car, "brakes")
    stack.stop_authority()
    try:
        stack.withdraw(topic.owner, topic.token, leaver, READ)
        sealed = hand.seal(1234)
        stored(hand.send(sealed)[0])
        wait_until(lambda: row_of(accomplice._view, ANCHORS(topic.token, 0)).size > 11)
        passed_on = _fetch_all(topic.reader, topic.token, permit_of(accomplice).identifier)
        assert open_all(topic, passed_on[-1:], ring, accomplice._opener.held.schemas[-1]) == [1234]
    finally:
        stack.start_authority()


def test_an_undone_permit_is_gone_at_once_and_for_good(stack: Stack, topic: Topic) -> None:
    subscriber = topic.reader.subscriber("brakes")
    permit = permit_of(subscriber)
    assert fetch(topic.reader, topic.token, permit.identifier)
    subscriber.unsubscribe()
    with pytest.raises(Refused) as refusal:
        fetch(topic.reader, topic.token, permit.identifier)
    assert why(refusal) == "not-subscribed"
    with pytest.raises(Refused) as refusal:
        topic.reader.node.subscribe(permit.encode())
    assert why(refusal) == "permit-ended"
    settle(stack)
    stack.stop_node()
    stack.start_node()
    with pytest.raises(Refused):
        fetch(topic.reader, topic.token, permit.identifier)
    with pytest.raises(Refused) as refusal:
        subscriber.update_keys()
    assert why(refusal) == "permit-ended"
