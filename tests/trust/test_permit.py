"""Permits and undo orders: a leave that names its holder, and the word that takes it back (EventGuard 4.2–4.6)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from makers import INSTANCE, TENANT, World, seed, token

from tallystick import wire
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Malformed, Refused
from tallystick.trust.certificate import Certificate, SubjectKind
from tallystick.trust.permit import LABELS_MAX, Operation, Permit, UndoOrder, undo_hash


@pytest.fixture
def world() -> World:
    return World()


def order(world: World) -> UndoOrder:
    permit = world.permit("car", "brakes")
    return UndoOrder(
        INSTANCE,
        permit.identifier,
        permit.operation,
        permit.token,
        TENANT,
        permit.principal,
        77,
        world.authority.subject,
    ).sign(world.authority_key)


def serving(world: World, tenant: bytes) -> Certificate:
    return replace(world.authority, tenant=tenant).sign(world.authority_key)


def test_what_is_signed_is_read_and_verified(world: World) -> None:
    permit = world.permit("car", "brakes", labels=(b"north", b"south"))
    assert Permit.decode(permit.encode()) == permit
    Permit.decode(permit.encode()).verify(world.authority)
    undo = order(world)
    assert UndoOrder.decode(undo.encode()) == undo
    undo.verify(world.authority)


def test_a_permit_covers_one_operation_topic_and_span(world: World) -> None:
    permit = world.permit("car", "brakes", first_epoch=3, last_epoch=5)
    permit.check_covers(Operation.ADVERTISE, token("brakes"))
    permit.check_covers(Operation.ADVERTISE, token("brakes"), 3)
    permit.check_covers(Operation.ADVERTISE, token("brakes"), 5)
    for operation, topic, epoch, reason in [
        (Operation.SUBSCRIBE, "brakes", 3, "wrong-permit"),
        (Operation.ADVERTISE, "tyres", 3, "wrong-permit"),
        (Operation.ADVERTISE, "brakes", 2, "wrong-epoch"),
        (Operation.ADVERTISE, "brakes", 6, "wrong-epoch"),
    ]:
        with pytest.raises(Refused) as caught:
            permit.check_covers(operation, token(topic), epoch)
        assert caught.value.reason == reason


def test_a_permit_has_its_time(world: World) -> None:
    permit = world.permit("car", "brakes", not_before_ms=10, not_after_ms=20)
    permit.check_time(10)
    permit.check_time(19)
    for time_ms in (9, 20):
        with pytest.raises(Refused) as caught:
            permit.check_time(time_ms)
        assert caught.value.reason == "permit-expired"


@pytest.mark.parametrize("what", ["permit", "undo order"])
def test_only_the_authority_of_the_tenant_issues(world: World, what: str) -> None:
    issued = world.permit("car", "brakes") if what == "permit" else order(world)
    issued.verify(serving(world, TENANT))
    stranger = SigningKey.from_seed(seed("stranger"))
    wrong = [
        serving(world, b"another tenant--"),
        replace(world.authority, kind=SubjectKind.NODE),
        replace(world.authority, subject=b"somebody else---"),
        replace(world.authority, instance=bytes(32)),
        replace(world.authority, signing_key=stranger.public.raw),
    ]
    for authority in wrong:
        with pytest.raises(Forged):
            issued.verify(authority)


def test_a_permit_s_signature_is_no_undo_order_s(world: World) -> None:
    """Contexts keep apart what is signed by one key: the same body under the other context does not verify."""
    permit = world.permit("car", "brakes")
    undo = order(world)
    with pytest.raises(Forged):
        replace(undo, signature=world.authority_key.sign("tallystick permit 1", undo.body)).verify(world.authority)
    with pytest.raises(Forged):
        replace(permit, body=permit.body.replace(token("brakes"), token("tyres"))).verify(world.authority)


def test_the_undo_token_shows_only_as_its_hash(world: World) -> None:
    permit = world.permit("car", "brakes")
    assert permit.undo_hash == undo_hash(seed("undo"))
    assert seed("undo") not in permit.encode()


def test_permits_and_orders_are_bounded_and_strict(world: World) -> None:
    for signed, decode in ((world.permit("car", "brakes"), Permit.decode), (order(world), UndoOrder.decode)):
        fields = wire.decode(signed.body)
        bad = [
            [2, *fields[1:]],
            [*fields[:3], 3, *fields[4:]],
            [*fields[:3], True, *fields[4:]],
            [*fields[:4], bytes(17), *fields[5:]],
            fields[:-1],
            [*fields, None],
        ]
        for value in bad:
            with pytest.raises(Malformed):
                decode(wire.encode([wire.encode(value), signed.signature]))
        with pytest.raises(Malformed):
            decode(bytes(20_000))
    fields = wire.decode(world.permit("car", "brakes").body)
    for labels in ([7], [bytes(33)], [b"x"] * (LABELS_MAX + 1), None):
        with pytest.raises(Malformed):
            Permit.decode(wire.encode([wire.encode([*fields[:-1], labels]), bytes(64)]))
