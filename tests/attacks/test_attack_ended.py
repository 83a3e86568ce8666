"""What has ended goes on: a permit that was revoked or given back, and a principal whose certificate is over.

A node keeps permits that it was shown, Kafka keeps entries and passwords. The ledger says when they end; whoever holds
them need not show anybody anything, and the right behind a permit may come back without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from actors import Hand, Topic, publish, read_rows, reason, rows, stored
from chain_world import Chain, ChainWorld
from ledger_world import NOW_MS, YEARS_MS, World, seed, token
from stack import READ, WRITE, Stack, wait_beyond, wait_until
from without import without

from tallystick.carriers.carrier import Fetch
from tallystick.carriers.kafka.administration import AccessEntry, Spot
from tallystick.carriers.kafka.credentials import Credentials
from tallystick.carriers.kafka.ledger import NotaryLedger
from tallystick.carriers.kafka.reconcile import Reconciler, WantedAccess
from tallystick.carriers.rules import LedgerRules, RightsCache
from tallystick.client.grants import Held
from tallystick.client.lane_keys import open_lane
from tallystick.client.session import Session
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Refused, Unavailable
from tallystick.guards.rules import Act, check_principal
from tallystick.ledger import entries
from tallystick.ledger.block import Transaction
from tallystick.ledger.contracts.permits import PERMITS, PermitRow, Status
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.parcel.locks import lock_hash
from tallystick.runtime.sources import SystemEntropy
from tallystick.trust.notes import Algorithm, Note, NoteSigner
from tallystick.trust.permit import Operation, Permit
from tallystick.trust.right import Right


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("ended")) as stack:
        yield stack


@pytest.fixture(scope="module")
def topic(stack: Stack) -> Topic:
    topic = Topic(stack, "acme")
    publish(topic.car, "brakes", [1])
    return topic


# --- permits ---


def row_of(stack: Stack, permit: Permit) -> PermitRow:
    row = stack.node.ledger.query(lambda state: state.row(PERMITS(permit.identifier)))
    assert row is not None
    return row


def status(stack: Stack, permit: Permit) -> Status:
    return Status(row_of(stack, permit).status)


def subscribed(topic: Topic, name: str) -> tuple[Session, Permit]:
    session = topic.subscriber(name)
    held = Held.of(session.authority.permit(Operation.SUBSCRIBE, "brakes"))
    session.node.subscribe(held.grant.permit)
    return session, held.permit


def withdraw_and_grant(stack: Stack, topic: Topic, session: Session, permit: Permit) -> None:
    stack.withdraw(topic.owner, topic.token, session, READ)
    wait_until(lambda: status(stack, permit) is Status.REVOKED)
    stack.grant(topic.owner, topic.token, session, READ)


def fetched(topic: Topic, session: Session, permit: Permit) -> int:
    """How many parcels the node serves under the permit."""
    return len(session.node.fetch(Fetch(topic.token, 0, permit.identifier, 0, bytes_max=1 << 20, stored=True)).parcels)


def test_a_revoked_permit_serves_nothing_when_the_right_returns(stack: Stack, topic: Topic) -> None:
    reader, permit = subscribed(topic, "returning")
    assert fetched(topic, reader, permit) > 0
    withdraw_and_grant(stack, topic, reader, permit)
    with pytest.raises(Refused) as refusal:
        fetched(topic, reader, permit)
    assert refusal.value.reason == "permit-ended"
    assert "new one" in (refusal.value.hint or "")


def test_without_the_end_of_permits_it_serves_again(stack: Stack, topic: Topic) -> None:
    reader, permit = subscribed(topic, "returning-unasked")
    withdraw_and_grant(stack, topic, reader, permit)
    with without("the end of permits"):
        assert fetched(topic, reader, permit) > 0


def test_what_was_given_back_on_the_ledger_alone_serves_nothing(stack: Stack, topic: Topic) -> None:
    reader, permit = subscribed(topic, "quiet")
    reader.author.write(entries.undo_permit(permit.identifier))
    with pytest.raises(Refused) as refusal:
        fetched(topic, reader, permit)
    assert refusal.value.reason == "permit-ended"
    with without("the end of permits"):
        assert fetched(topic, reader, permit) > 0


def test_a_publisher_whose_permit_was_given_back_on_the_ledger_alone_publishes_nothing(
    stack: Stack, topic: Topic
) -> None:
    car = topic.publisher("quiet-car")
    while True:
        hand = Hand(car, "brakes")
        first = hand.seal(1)
        outcome = hand.send(first)[0]
        if getattr(outcome, "reason", "") != "epoch-over":  # what others took back here ended an epoch a moment ago
            break
    stored(outcome)
    hand.session.author.write(entries.undo_permit(hand.permit.identifier))
    assert reason(hand.send(hand.seal(2))[0]) == "permit-ended"
    stored(hand.send(first)[0])  # whose answer was lost hears that it is stored, or would seal its rows again


def test_under_a_permit_that_has_ended_no_new_locks_are_left(stack: Stack, topic: Topic) -> None:
    hand = Hand(topic.publisher("locksmith"), "brakes")
    identity, now_ms = hand.session.identity, int(stack.clock.now() * 1000)
    before, after = (open_lane(identity, hand.grants, now_ms, stack.entropy, codec="lz4")[1] for _ in range(2))
    hand.node.put_locks(hand.token, hand.permit.identifier, before.locks)
    hand.session.author.write(entries.undo_permit(hand.permit.identifier))
    with pytest.raises(Refused) as refusal:
        hand.node.put_locks(hand.token, hand.permit.identifier, after.locks)
    assert refusal.value.reason == "permit-ended"
    hand.node.put_locks(hand.token, hand.permit.identifier, before.locks)  # they are there
    with without("the end of permits"):
        hand.node.put_locks(hand.token, hand.permit.identifier, after.locks)
    assert hand.node.lock(lock_hash(after.locks[0])) == after.locks[0]


class Forgetful:
    """A way to a node on which answers to parcels are lost when they are stored."""

    def __init__(self, carrier: Any) -> None:
        self._carrier, self.stored, self.loses = carrier, 0, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._carrier, name)

    def publish(self, token: bytes, parcels: Sequence[bytes]) -> Any:
        answer = self._carrier.publish(token, parcels)
        self.stored += 1
        if self.loses:
            raise Unavailable("the answer is lost", retry_after_s=0.0)
        return answer


def test_new_locks_that_are_refused_let_nobody_seal_again_what_is_stored(stack: Stack, topic: Topic) -> None:
    """One parcel was stored, though nobody heard so; the next, of a new epoch, brings a lock that comes too late."""
    beside = topic.beside("rotated")
    car = topic.publisher("unheard")
    stack.grant(topic.owner, beside.token, car, WRITE)
    car.carrier = way = Forgetful(car.carrier)
    publisher = car.publisher("rotated", background=False, linger_s=0.0)
    publisher.send(rows(1))
    wait_until(lambda: bool(publisher.poll() >= 0 and way.stored))
    begins_ms = topic.owner.authority.rotate(beside.token).begins_ms
    wait_until(publisher.update_keys)
    wait_beyond(lambda: car.view.refresh().time_ms, begins_ms)
    publisher.send(rows(2))
    car.author.write(entries.undo_permit(publisher._sender._advertised.held[0].permit.identifier))
    way.loses = False
    assert publisher.flush(120) == 0
    publisher.close()
    with topic.reader.subscriber("rotated") as subscriber:
        assert sorted(read_rows(subscriber, 2)) == [1, 2]
        assert subscriber.poll(0) == []


def test_an_honest_subscriber_goes_on_under_a_new_permit(stack: Stack, topic: Topic) -> None:
    reader = topic.subscriber("patient")
    with reader.subscriber("brakes") as subscriber:
        assert 1 in read_rows(subscriber, 1)
        before = subscriber._opener.held.permit
        withdraw_and_grant(stack, topic, reader, before)
        publish(topic.car, "brakes", [77])
        assert read_rows(subscriber, 1) == [77]
        assert subscriber.findings == []
        after = subscriber._opener.held.permit
    assert (status(stack, before), status(stack, after)) == (Status.REVOKED, Status.ISSUED)


def test_rows_come_once_whose_publisher_lost_its_permit_between(stack: Stack, topic: Topic) -> None:
    """As publishers do: a new permit, and nothing twice."""
    car = topic.publisher("on-and-on")
    reader = topic.subscriber("counting")
    publisher = car.publisher("brakes", linger_s=0.0)
    publisher.send(rows(500))
    assert publisher.flush(30) == 0
    car.author.write(entries.undo_permit(publisher._sender._advertised.held[0].permit.identifier))
    publisher.send(rows(501))
    assert publisher.flush(30) == 0
    publisher.close()
    with reader.subscriber("brakes") as subscriber:
        got: list[int] = []
        wait_until(lambda: bool(got.extend(read_rows(subscriber, 1)) or 501 in got))
    assert [one for one in got if one >= 500] == [500, 501]


# --- principals ---

HEART = token("heart")


class Kafka:
    """What Kafka keeps of rights and passwords."""

    def __init__(self) -> None:
        self.entries: set[AccessEntry] = set()
        self.passwords: set[str] = set()

    def access_entries(self) -> frozenset[AccessEntry]:
        return frozenset(self.entries)

    def change_access(self, added: Iterable[AccessEntry], removed: Iterable[AccessEntry]) -> None:
        self.entries = (self.entries | set(added)) - set(removed)

    def forget_users(self, names: Sequence[str]) -> None:
        self.passwords -= set(names)

    def make_user(self, name: str, password: bytes) -> None:
        self.passwords.add(name)

    def group_offsets(self, spots: Collection[Spot]) -> dict[Spot, int]:
        return {}


class Notary:
    """A ledger with two principals that may write, and a notary that holds Kafka to it."""

    def __init__(self, folder: Path) -> None:
        self.world = world = World()
        self.ledger = SqliteLedger(str(folder / "ledger"), world.trust, world.ledger_key, NOW_MS)
        for transaction in world.founding():
            self.ledger.submit(transaction.data, NOW_MS)
        for one in (world.monitor, world.sensor):
            self.ledger.submit(world.doctor.sign(entries.grant(HEART, one.id, int(Right.WRITE))).data, NOW_MS)
        self.ledger.flush(NOW_MS)
        self.kafka = Kafka()
        self.kafka.passwords = {world.monitor.id.hex(), world.sensor.id.hex()}
        signer, rules = SimpleNamespace(principal=world.node.id), SimpleNamespace(consents=lambda tenant: True)
        host: Any = SimpleNamespace(ledger=self.ledger, signer=signer, rules=rules, write=None)
        self._reconciler = Reconciler(cast(Any, self.kafka), NotaryLedger(host).wanted)
        self.rules = LedgerRules(world.instance, lambda key: self.ledger.query(lambda state: state.row(key)))
        self.look()

    def look(self) -> list[str]:
        """Twice, since a difference counts when it is there twice in a row. Returns what was told."""
        return [drift.reason for _ in range(3) for drift in self._reconciler.check()]

    def block(self) -> tuple[int, int]:
        return self.ledger.height, self.ledger.block(self.ledger.height).time_ms

    def users(self) -> set[str]:
        return {entry.user.removeprefix("User:") for entry in self.kafka.entries}

    def revoke(self, subject: bytes) -> None:
        self.ledger.submit(self.world.authority.sign(entries.revoke(subject)).data, NOW_MS)
        self.ledger.flush(NOW_MS)


@pytest.fixture
def notary(tmp_path: Path) -> Iterator[Notary]:
    notary = Notary(tmp_path)
    yield notary
    notary.ledger.close()


def test_a_revoked_principal_keeps_neither_entry_nor_password_in_kafka(notary: Notary) -> None:
    monitor, sensor = notary.world.monitor.id.hex(), notary.world.sensor.id.hex()
    assert notary.users() == {monitor, sensor} == notary.kafka.passwords
    notary.revoke(notary.world.monitor.id)
    assert notary.look() == []  # the ledger's own word is no drift
    assert notary.users() == {sensor} == notary.kafka.passwords


def test_an_expired_principal_keeps_neither_entry_nor_password_in_kafka_nor_any_guard_s_ear(notary: Notary) -> None:
    notary.ledger.flush(NOW_MS + YEARS_MS)
    assert notary.look() == []
    assert (notary.users(), notary.kafka.passwords) == (set(), set())
    credentials = Credentials(cast(Any, notary.kafka), notary.rules, notary.block, "", SystemEntropy())
    certificate = notary.world.monitor.certificate
    with pytest.raises(Refused) as refusal:
        credentials.issue(certificate.subject, certificate.encode())
    assert refusal.value.reason == "certificate-over"
    with pytest.raises(Refused):
        check_principal(notary.rules, Act(certificate.subject, "kafka", b"", notary.block()[1]))
    assert notary.kafka.passwords == set()


def test_without_the_end_of_certificates_both_stay(notary: Notary) -> None:
    notary.revoke(notary.world.monitor.id)
    with without("the end of certificates"):
        notary.look()
        assert notary.world.monitor.id.hex() in notary.users() & notary.kafka.passwords


def test_who_counts_again_and_ends_once_more_loses_its_password_once_more() -> None:
    kafka, user = Kafka(), bytes(16)
    said = {user: False}
    reconciler = Reconciler(cast(Any, kafka), lambda: WantedAccess({}, {}, dict(said)))
    for is_live in (False, True, False):
        said[user] = is_live
        kafka.passwords.add(user.hex())
        list(reconciler.check())
        assert (user.hex() in kafka.passwords) == is_live


# --- witnesses ---

WITNESS = NoteSigner("witness.example/one", SigningKey.from_seed(seed("witness")), Algorithm.COSIGNATURE_V1)


def is_allowed_after_the_withdrawal(folder: Path) -> bool:
    """A right is withdrawn on a chain whose checkpoints wait for a witness, and asked for before the witness has signed
    and after: what a guard would say then."""
    chain = Chain(ChainWorld(folder, witnesses=(WITNESS.verifier.encode(),)))
    try:
        with closing(chain.client()) as ledger:
            world, cache = chain.world, RightsCache(lambda key: ledger.query(lambda state: state.row(key)))
            ledger.on_block(cache.invalidate)
            rules = LedgerRules(world.instance, lambda key: cache.get(key, 0))

            def write(*transactions: Transaction) -> None:
                for one in transactions:
                    ledger.wait(ledger.submit(one.data, 0), 10)

            def cosign() -> None:
                note = Note.decode(ledger.newest_note())
                ledger.cosign(replace(note, signatures=(*note.signatures, WITNESS.sign(note.text, 1))).encode())

            def allows() -> bool:
                return rules.allows(world.monitor.id, HEART, Right.READ, "anywhere")

            write(*world.founding(), world.doctor.sign(entries.grant(HEART, world.monitor.id, int(Right.READ))))
            cosign()
            assert allows()
            write(world.doctor.sign(entries.withdraw(HEART, world.monitor.id, int(Right.READ))))
            assert allows()  # as the newest checkpoint with a witness has it
            cosign()
            return allows()
    finally:
        chain.close()


@pytest.mark.chain
@pytest.mark.long
def test_a_withdrawn_right_ends_with_the_checkpoint_that_witnesses_signed(tmp_path: Path) -> None:
    assert not is_allowed_after_the_withdrawal(tmp_path)


@pytest.mark.chain
@pytest.mark.long
def test_without_waiting_for_the_checkpoint_it_stays_in_the_cache(tmp_path: Path) -> None:
    with without("listeners that wait for the checkpoint"):
        assert is_allowed_after_the_withdrawal(tmp_path)
