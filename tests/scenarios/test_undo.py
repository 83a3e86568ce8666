"""Taking back what is another's: fake unsubscribing and unadvertising (EventGuard 4.5, 4.6), by S′ that holds a permit
for the same topic, by the node, by replay, and by naming a topic after an identifier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from actors import SCHEMA, Hand, Topic, acts, admit, permit_of, read_rows, reason, row_of, stored, write_as_node
from stack import WRITE, Stack
from without import without

from tallystick.client.grants import Held
from tallystick.client.session import Session
from tallystick.demo.forgery import phony_order
from tallystick.errors import Refused
from tallystick.ledger import entries
from tallystick.ledger.contracts.permits import PERMITS, Status
from tallystick.record.schema import Schema
from tallystick.trust.permit import Operation, Permit


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("undo"), authority={"revoke_s": 60}) as stack:
        yield stack


@pytest.fixture(scope="module")
def topic(stack: Stack) -> Topic:
    topic = Topic(stack, "acme")
    hand = Hand(topic.car, "brakes")
    stored(hand.send(hand.seal(1))[0])
    return topic


@pytest.fixture(params=Operation)
def operation(request: pytest.FixtureRequest) -> Operation:
    return Operation(request.param)


def holder(topic: Topic, operation: Operation, name: str) -> tuple[Session, Held]:
    """A principal with a live permit of its own, shown to the node."""
    session = (topic.subscriber if operation is Operation.SUBSCRIBE else topic.publisher)(f"{name}-{operation.name}")
    held = Held.of(session.authority.permit(operation, "brakes"))
    admit(session, held.grant.permit)
    return session, held


def is_live(stack: Stack, permit: Permit) -> bool:
    return stack.node.carrier.live.get(permit.identifier) is not None


def test_another_holder_of_a_permit_for_the_topic_cannot_undo(stack: Stack, topic: Topic, operation: Operation) -> None:
    _, victim = holder(topic, operation, "S")
    thief, own = holder(topic, operation, "S'")
    renamed = replace(
        victim.permit, principal=thief.identity.principal, signing_key=thief.identity.signing_key.public.raw
    ).sign(thief.identity.signing_key)
    attempts = [
        (victim.grant.permit, own.grant.undo_token, "wrong-undo-token"),  # its permit, my token
        (victim.grant.permit, victim.grant.undo_token, "wrong-undo-token"),  # even with the token, it is not mine
        (own.grant.permit, victim.grant.undo_token, "wrong-undo-token"),
        (renamed.encode(), own.grant.undo_token, "wrong-permit"),  # its permit in my name
    ]
    for permit, token, expected in attempts:
        with pytest.raises(Refused) as refusal:
            thief.authority.undo(permit, token)
        assert refusal.value.reason == expected
    for order, expected in [
        (phony_order(victim.permit, thief.identity.signing_key), "not-yours"),
        (replace(phony_order(victim.permit, thief.identity.signing_key), principal=thief.identity.principal), "forged"),
    ]:
        with pytest.raises(Refused) as refusal:
            thief.node.undo(order.sign(thief.identity.signing_key).encode())
        assert refusal.value.reason == expected
    assert is_live(stack, victim.permit)
    assert {act.reason for act in acts(stack, principal=thief.identity.principal, refused=True)} == {
        "not-yours",
        "forged",
    }


def test_without_the_guard_a_forged_order_silences_a_neighbour(
    stack: Stack, topic: Topic, operation: Operation
) -> None:
    victim_session, victim = holder(topic, operation, "silenced")
    thief, _ = holder(topic, operation, "silencer")
    undone = "unsubscribing" if operation is Operation.SUBSCRIBE else "unadvertising"
    with without(f"the guard of {undone}"):
        thief.node.undo(phony_order(victim.permit, thief.identity.signing_key).encode())
    assert not is_live(stack, victim.permit)
    with pytest.raises(Refused):
        admit(victim_session, victim.grant.permit)


def test_the_node_cannot_undo_in_its_own_name(stack: Stack, topic: Topic, operation: Operation) -> None:
    _, victim = holder(topic, operation, "hosted")
    node = stack.node
    forged = replace(phony_order(victim.permit, node.keys.key), authority=node.identifier).sign(node.keys.key)
    for entry in (entries.undo_permit(victim.permit.identifier), entries.revoke_permit(victim.permit.identifier)):
        with pytest.raises(Refused) as refusal:
            write_as_node(node, entry)
        assert refusal.value.reason == "not-authority"
    with pytest.raises(Refused):
        forged.verify(topic.car.identity.authority)
    row = row_of(topic.car.view, PERMITS(victim.permit.identifier))
    assert row.status == Status.ISSUED  # and everybody can see that it still counts


def test_a_node_that_forgets_is_reminded_by_the_publisher(stack: Stack, topic: Topic) -> None:
    """A node can always refuse to serve; what it cannot do is to make it look like the publisher's own wish."""
    with topic.car.publisher("brakes", acks="anchored", anchor_check_s=0.02, linger_s=0.0) as publisher:
        identifier = publisher._advertised.held[0].permit.identifier
        live = stack.node.carrier.live
        live.remove(identifier)
        monkey = live._load
        live._load = lambda asked: None if asked == identifier else monkey(asked)
        try:
            publisher.send([{"vin": "V", "seq": 7, "speed": 0.0}])
            assert publisher.flush(30) == 0
        finally:
            live._load = monkey


def test_an_undo_works_once_and_its_replays_hit_nothing(stack: Stack, topic: Topic, operation: Operation) -> None:
    session, held = holder(topic, operation, "once")
    order = session.authority.undo(held.grant.permit, held.grant.undo_token)
    session.node.undo(order.encode())
    assert not is_live(stack, held.permit)
    with pytest.raises(Refused) as refusal:
        session.authority.undo(held.grant.permit, held.grant.undo_token)
    assert refusal.value.reason == "permit-ended"
    again = Held.of(session.authority.permit(operation, "brakes"))
    admit(session, again.grant.permit)
    session.node.undo(order.encode())  # the old order once more: by its own holder, and about nothing
    assert is_live(stack, again.permit)
    stranger, _ = holder(topic, operation, "replayer")
    with pytest.raises(Refused) as refusal:
        stranger.node.undo(order.encode())
    assert refusal.value.reason == "not-yours"


def test_an_order_for_one_operation_undoes_no_other(stack: Stack, topic: Topic) -> None:
    """Both undo tokens have labels of their own, and the order names the operation: though one principal holds both."""
    session, reads = holder(topic, Operation.SUBSCRIBE, "both")
    stack.grant(topic.owner, topic.token, session, WRITE)
    writes = Held.of(session.authority.permit(Operation.ADVERTISE, "brakes"))
    admit(session, writes.grant.permit)
    master = stack.authority.authority.core.keys.master
    for one, other in ((reads, writes), (writes, reads)):
        crossed = master.undo_token(other.permit.operation, one.permit.identifier)
        for token in (other.grant.undo_token, crossed):
            with pytest.raises(Refused) as refusal:
                session.authority.undo(one.grant.permit, token)
            assert refusal.value.reason == "wrong-undo-token"
    order = session.authority.undo(reads.grant.permit, reads.grant.undo_token)
    renamed = replace(order, operation=Operation.ADVERTISE, identifier=writes.permit.identifier)
    altered = replace(renamed.sign(session.identity.signing_key), signature=order.signature)
    with pytest.raises(Refused) as refusal:
        session.node.undo(altered.encode())
    assert refusal.value.reason == "forged"
    session.node.undo(order.encode())
    assert (is_live(stack, reads.permit), is_live(stack, writes.permit)) == (False, True)


# --- the name attack ---


LOOKED_AT = ("the client's look at a new name", "the authority's look at a topic's name")  # such names are refused


def test_a_topic_named_after_an_identifier_gives_no_undo_token(stack: Stack, topic: Topic) -> None:
    """SEEDS on 4.5: UST(sbId) is derived as K(w) is, so whoever may name a topic obtains another's token."""
    victim = topic.reader.subscriber("brakes")
    identifier, undo_token = permit_of(victim).identifier, victim._opener.held.grant.undo_token
    named = [
        stack.authority.authority.core.keys.master.token(topic.owner.identity.tenant, name)
        for name in (identifier.hex(), identifier.decode("latin-1"))
    ]
    with without(*LOOKED_AT):
        named.append(stack.topic(topic.owner, identifier.hex(), SCHEMA))
    assert all(token not in undo_token for token in named)
    for token in named:
        with pytest.raises(Refused):
            topic.owner.authority.undo(permit_of(victim).encode(), token.ljust(32, b"\0"))
    assert read_rows(topic.reader.subscriber("brakes"), 1)[0] == 1


def test_with_the_papers_one_derivation_the_name_attack_yields_the_token(stack: Stack, topic: Topic) -> None:
    attacker = topic.owner  # anybody who may make topics
    with without("the labels of derivations", *LOOKED_AT):
        grant = topic.reader.authority.permit(Operation.SUBSCRIBE, topic.token)
        identifier = Permit.decode(grant.permit).identifier
        unbound = attacker.authority.create_topic(identifier.hex(), Schema.parse(SCHEMA).encode())
        assert grant.undo_token.startswith(unbound.token)


def test_undone_publishers_publish_no_more(topic: Topic) -> None:
    hand = Hand(topic.publisher("quitter"), "brakes")
    stored(hand.send(hand.seal(1))[0])
    order = hand.session.authority.undo(hand.held.grant.permit, hand.held.grant.undo_token)
    hand.node.undo(order.encode())
    assert reason(hand.send(hand.seal(2))[0]) == "not-advertised"
