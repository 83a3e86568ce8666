"""A principal gets new keys: what the old one signed counts, what it signs from now on does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

import pytest
from actors import Hand, Topic, publish, read_rows, reason, row_of, rows, stored
from stack import Stack, impatient
from without import without

import tallystick.identity.rekey as rekeying
from tallystick.authority.asks import Rekey
from tallystick.authority.possession import sign_rekey
from tallystick.client.session import Session
from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Refused
from tallystick.identity.folder import Identity, draw_new_keys
from tallystick.identity.rekey import rekey
from tallystick.ledger.contracts.identity import KEYS
from tallystick.runtime.http1 import UNAUTHENTICATED
from tallystick.trust.certificate import Certificate
from tallystick.trust.permit import Operation


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("rekey")) as stack:
        yield stack


@pytest.fixture(scope="module")
def topic(stack: Stack) -> Topic:
    return Topic(stack, "acme")


def renew(stack: Stack, session: Session) -> Session:
    """The session of the same principal under new keys."""
    identity = rekey(Identity.load(session.identity.home), clock=stack.clock, entropy=stack.entropy)
    renewed = Session(identity, clock=stack.clock, entropy=stack.entropy)
    stack._sessions.append(renewed)
    return renewed


def test_the_old_key_signs_nothing_more_and_what_it_signed_is_read(stack: Stack, topic: Topic) -> None:
    old = topic.publisher("rotating")
    publish(old, "brakes", [1, 2])
    new = renew(stack, old)
    assert new.identity.principal == old.identity.principal
    assert new.identity.signing_key.public.raw != old.identity.signing_key.public.raw
    for ask in (old.authority.names, lambda: old.node.permit(bytes(16))):
        with pytest.raises(Refused) as refusal:
            ask()
        assert refusal.value.reason == UNAUTHENTICATED
    publish(new, "brakes", [3])
    with topic.reader.subscriber("brakes") as subscriber:
        assert sorted(read_rows(subscriber, 3)) == [1, 2, 3]
        assert subscriber.findings == []
    principal, first, end = row_of(new.view, KEYS(old.identity.signing_key.public.raw))
    assert principal == old.identity.principal
    assert 0 < first < end


@pytest.mark.parametrize("guarded", [True, False])
def test_a_parcel_under_the_old_key_is_refused_whoever_brings_it(stack: Stack, topic: Topic, guarded: bool) -> None:
    """The thief of the old key seals, and somebody who may speak for the principal lets himself be used."""
    hand = Hand(topic.publisher(f"robbed-{guarded}"), "brakes")
    stored(hand.send(hand.seal(10))[0])
    parcel = hand.seal(11)
    new = renew(stack, hand.session)
    with nullcontext() if guarded else without("the end of permits"):
        [outcome] = new.node.publish(hand.token, [parcel.encode()])
    if guarded:
        assert reason(outcome) == "permit-ended"
    else:
        stored(outcome)


def test_what_waits_in_the_spool_is_sealed_again_under_the_new_key(stack: Stack, topic: Topic) -> None:
    car = topic.publisher("waiting")
    publish(car, "brakes", [20])
    stack.stop_node()
    with impatient(car):
        publisher = car.publisher("brakes", linger_s=0.0)
        publisher.send(rows(21))
        assert publisher.flush(1.0) == 1  # sealed and kept, and never sent
        publisher.stop()
    stack.start_node()
    new = renew(stack, car)
    with new.publisher("brakes", acks="anchored", linger_s=0.0, anchor_check_s=0.02) as publisher:
        publisher.send(rows(22))
        assert publisher.flush(30) == 0
    with topic.reader.subscriber("brakes", on_bad="report") as subscriber:
        got: list[int] = []
        while 22 not in got:
            got += read_rows(subscriber, 1)
    assert [got.count(number) for number in (20, 21, 22)] == [1, 1, 1]


def test_a_subscriber_reads_on_under_new_keys_and_the_old_permit_is_gone(stack: Stack, topic: Topic) -> None:
    old = topic.subscriber("curious")
    held = old.authority.permit(Operation.SUBSCRIBE, topic.token)
    epochs = {number for number, _ in held.private_keys}
    new = renew(stack, old)
    granted = new.authority.permit(Operation.SUBSCRIBE, topic.token, 1)
    assert max(one.number for one in granted.epochs) > max(epochs)  # what was copied opens nothing newer
    publish(topic.car, "brakes", [30])
    with new.subscriber("brakes", on_bad="report") as subscriber:
        got: list[int] = []
        while 30 not in got:
            got += read_rows(subscriber, 1)


# --- cut short ---


def ask(stack: Stack, identity: Identity) -> Certificate:
    """The first two steps of `rekey`: the new keys are drawn, and the authority has certified them."""
    keys = draw_new_keys(identity, stack.entropy)
    return rekeying._ask(identity, identity.signing_key, keys, stack.clock, stack.entropy, insecure=False)


def test_an_answer_that_was_lost_is_asked_for_again_under_the_new_key(stack: Stack, topic: Topic) -> None:
    home = topic.publisher("interrupted").identity.home
    ask(stack, Identity.load(home))  # and the answer is lost
    with Session(Identity.load(home)) as stranded, pytest.raises(Refused):
        stranded.authority.names()
    renewed = rekey(Identity.load(home), clock=stack.clock, entropy=stack.entropy)
    with Session(renewed) as session:
        publish(session, "brakes", [40])
    assert sorted(path.name for path in home.glob("keys*")) == ["keys"]


def test_new_keys_take_their_place_though_the_last_step_was_cut_short(stack: Stack, topic: Topic) -> None:
    home = topic.publisher("hurried").identity.home
    identity = Identity.load(home)
    replace(identity, certificate=ask(stack, identity)).write_file()
    assert (home / "keys.new").exists()
    with Session(Identity.load(home)) as session:
        publish(session, "brakes", [50])
    assert not (home / "keys.new").exists()


# --- whose keys ---


def test_nobody_gets_a_certificate_for_keys_that_he_does_not_hold(topic: Topic) -> None:
    greedy, victim = topic.member("greedy"), topic.member("victim").holder
    client, holder = greedy.authority, greedy.holder
    mine, sealing = SigningKey.from_seed(b"m" * 32), hpke.PrivateKey.generate(b"s" * 32)

    def ask(signing_key: bytes, sealing_key: bytes, signature: bytes, challenge: bytes = b"") -> bytes:
        sealed: bytes = client._ask(Rekey(signing_key, sealing_key, signature, challenge))[0]
        return sealed

    # Another's signing key, under a signature of one's own.
    public = sealing.public.encode()
    with pytest.raises(Refused) as refusal:
        ask(victim.signing_key.public.raw, public, sign_rekey(holder.instance, holder.principal, mine, public))
    assert refusal.value.reason == "forged"
    # Another's sealing key: the challenge does not open, and a guess is no answer.
    public = victim.sealing_key.public.encode()
    fields = (mine.public.raw, public, sign_rekey(holder.instance, holder.principal, mine, public))
    assert ask(*fields)
    with pytest.raises(Refused) as refusal:
        ask(*fields, bytes(32))
    assert refusal.value.reason == "forged"
    # A key that serves another, though its holder lends it: one key, one name.
    with pytest.raises(Refused) as refusal:
        client.rekey(victim.signing_key, sealing)
    assert refusal.value.reason == "key-used"
    assert client.names()  # and nothing has changed
