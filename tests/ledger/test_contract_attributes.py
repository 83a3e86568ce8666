"""Attributes, attribute epochs and topic policies: what a tenant's owner may write, and what nobody else may."""

from __future__ import annotations

import pytest
from ledger_world import HOME, HOSPITAL, NOW_MS, Bench, seed, token

from tallystick import wire
from tallystick.ledger import entries
from tallystick.ledger.contracts.attributes import ATTRIBUTE_EPOCHS, ATTRIBUTES
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.policies import POLICIES
from tallystick.ledger.transaction import Transaction
from tallystick.trust.certificate import ALL_TENANTS
from tallystick.trust.certificate import SubjectKind as Certified

HEART, AIR = token("heart"), token("air")
NAME, OTHER = seed("pseudonym")[:16], seed("another pseudonym")[:16]


# --- attributes ---


def test_a_tenant_s_owner_grants_to_a_principal_of_any_tenant() -> None:
    bench = Bench()
    doctor, sensor = bench.world.doctor, bench.world.sensor
    height = bench.height
    bench.accept(doctor.sign(entries.grant_attribute(HOSPITAL, sensor.id, NAME, seed("c"), NOW_MS + 5)))
    assert bench.state.get(ATTRIBUTES(HOSPITAL, sensor.id, NAME)) == [seed("c"), NOW_MS + 5, height]


def test_nobody_else_grants_in_a_tenant_s_name() -> None:
    bench = Bench()
    world = bench.world
    for stranger in (world.landlord, world.monitor, world.authority, world.node):
        bench.refuse(
            stranger.sign(entries.grant_attribute(HOSPITAL, world.monitor.id, NAME, seed("c"))), "not-owner", 0
        )
    bench.refuse(
        world.doctor.sign(entries.grant_attribute(ALL_TENANTS, world.monitor.id, NAME, seed("c"))), "not-owner"
    )


def test_another_tenant_s_pseudonym_is_no_way_into_its_grants() -> None:
    """The landlord copies what the ledger shows of the hospital's grant: it neither changes nor undoes it."""
    bench = Bench()
    world = bench.world
    bench.accept(world.doctor.sign(entries.grant_attribute(HOSPITAL, world.sensor.id, NAME, seed("c"))))
    held = bench.state.get(ATTRIBUTES(HOSPITAL, world.sensor.id, NAME))
    bench.refuse(world.landlord.sign(entries.withdraw_attribute(HOSPITAL, world.sensor.id, NAME)), "not-owner")
    bench.refuse(world.landlord.sign(entries.withdraw_attribute(HOME, world.sensor.id, NAME)), "unknown-attribute")
    bench.accept(world.landlord.sign(entries.grant_attribute(HOME, world.sensor.id, NAME, seed("mine"))))
    assert bench.state.get(ATTRIBUTES(HOSPITAL, world.sensor.id, NAME)) == held
    bench.accept(world.landlord.sign(entries.withdraw_attribute(HOME, world.sensor.id, NAME)))
    assert bench.state.get(ATTRIBUTES(HOSPITAL, world.sensor.id, NAME)) == held


def test_only_principals_hold_attributes() -> None:
    bench = Bench()
    world = bench.world
    bench.refuse(world.doctor.sign(entries.grant_attribute(HOSPITAL, world.node.id, NAME, seed("c"))), "not-principal")
    bench.refuse(
        world.doctor.sign(entries.grant_attribute(HOSPITAL, seed("x")[:16], NAME, seed("c"))), "unknown-identity"
    )


def test_a_grant_is_replaced_and_withdrawn_by_the_same_tenant() -> None:
    bench = Bench()
    doctor, monitor = bench.world.doctor, bench.world.monitor
    bench.accept(doctor.sign(entries.grant_attribute(HOSPITAL, monitor.id, NAME, seed("c1"))))
    bench.accept(doctor.sign(entries.grant_attribute(HOSPITAL, monitor.id, NAME, seed("c2"), NOW_MS)))
    assert bench.state.get(ATTRIBUTES(HOSPITAL, monitor.id, NAME))[:2] == [seed("c2"), NOW_MS]
    bench.refuse(doctor.sign(entries.withdraw_attribute(HOSPITAL, monitor.id, OTHER)), "unknown-attribute")
    bench.accept(doctor.sign(entries.withdraw_attribute(HOSPITAL, monitor.id, NAME)))
    assert bench.state.get(ATTRIBUTES(HOSPITAL, monitor.id, NAME)) is None
    bench.refuse(doctor.sign(entries.withdraw_attribute(HOSPITAL, monitor.id, NAME)), "unknown-attribute")


def test_whoever_owned_the_tenant_before_grants_no_more() -> None:
    bench = Bench()
    world = bench.world
    bench.accept(world.authority.sign(entries.tenant(HOSPITAL, world.monitor.id)))
    written = entries.grant_attribute(HOSPITAL, world.sensor.id, NAME, seed("c"))
    bench.refuse(world.doctor.sign(written), "not-owner")
    bench.accept(world.monitor.sign(written))


# --- epochs ---


def test_attribute_epochs_count_up_by_one_for_each_authority() -> None:
    bench = Bench()
    world = bench.world
    bench.refuse(world.doctor.sign(entries.attribute_epoch(1, seed("k"), NOW_MS)), "not-authority")
    bench.refuse(world.node.sign(entries.attribute_epoch(1, seed("k"), NOW_MS)), "not-authority")
    bench.refuse(world.authority.sign(entries.attribute_epoch(2, seed("k"), NOW_MS)), "wrong-epoch")
    bench.accept(world.authority.sign(entries.attribute_epoch(1, seed("k"), NOW_MS)))
    bench.refuse(world.authority.sign(entries.attribute_epoch(3, seed("k"), NOW_MS)), "wrong-epoch")
    bench.refuse(world.authority.sign(entries.attribute_epoch(2, seed("k"), NOW_MS - 1)), "wrong-epoch")
    bench.accept(world.authority.sign(entries.attribute_epoch(2, seed("k"), NOW_MS + 1000)))
    assert bench.state.get(b"attribute-epochs/" + world.authority.id) == 2
    own = world.actor("hospital authority", Certified.AUTHORITY, HOSPITAL)
    bench.accept(own.sign(entries.enrol(own.certificate), entries.attribute_epoch(1, seed("other"), NOW_MS)))
    assert bench.state.get(ATTRIBUTE_EPOCHS(own.id, 1))[0] == seed("other")
    assert bench.state.get(ATTRIBUTE_EPOCHS(world.authority.id, 1))[0] == seed("k")


def test_an_epoch_to_come_is_brought_forward_and_never_put_off() -> None:
    bench = Bench()
    authority = bench.world.authority

    def again(epoch: int, not_before_ms: int, key: str = "k") -> Transaction:
        return authority.sign(entries.attribute_epoch(epoch, seed(key), not_before_ms))

    for number in (1, 2, 3):
        bench.accept(again(number, NOW_MS + (number - 1) * 1000))
    bench.refuse(again(2, NOW_MS + 2000), "wrong-epoch")  # put off
    bench.refuse(again(2, NOW_MS + 1000), "wrong-epoch")  # nothing new
    bench.refuse(again(2, NOW_MS + 500, "another key"), "wrong-epoch")
    bench.refuse(again(2, NOW_MS - 1), "wrong-epoch")  # before the first
    bench.refuse(again(1, NOW_MS - 1000), "wrong-epoch")  # it has begun
    bench.accept(again(2, NOW_MS + 500))
    assert bench.state.get(ATTRIBUTE_EPOCHS(authority.id, 2))[1] == NOW_MS + 500
    assert bench.state.get(b"attribute-epochs/" + authority.id) == 3
    bench.time_ms = NOW_MS + 500
    bench.refuse(again(2, NOW_MS + 400), "wrong-epoch")


# --- topic policies ---


def test_versions_of_a_group_s_policy_count_up_under_the_owner() -> None:
    bench = Bench()
    doctor = bench.world.doctor
    bench.accept(doctor.sign(entries.topic_policy(HEART, 0, 1, seed("p1"))))
    bench.refuse(doctor.sign(entries.topic_policy(HEART, 0, 1, seed("again"))), "wrong-version")
    bench.refuse(doctor.sign(entries.topic_policy(HEART, 0, 3, seed("p3"))), "wrong-version")
    bench.accept(doctor.sign(entries.topic_policy(HEART, 1, 1, seed("of group 1"))))
    height = bench.height
    bench.accept(doctor.sign(entries.topic_policy(HEART, 0, 2, seed("p2"))))
    assert bench.state.get(POLICIES(HEART, 0)) == [2, seed("p2"), height]
    assert bench.state.get(POLICIES(HEART, 1))[:2] == [1, seed("of group 1")]


def test_only_the_topic_s_owner_sets_and_lifts_its_policy() -> None:
    bench = Bench()
    world = bench.world
    for stranger in (world.landlord, world.monitor, world.authority, world.node):
        bench.refuse(stranger.sign(entries.topic_policy(HEART, 0, 1, seed("p"))), "not-owner")
    bench.accept(world.doctor.sign(entries.topic_policy(HEART, 0, 1, seed("p"))))
    bench.refuse(world.landlord.sign(entries.topic_policy(HEART, 0, 2, b"")), "not-owner")
    bench.refuse(world.doctor.sign(entries.topic_policy(token("none"), 0, 1, seed("p"))), "unknown-topic")


def test_a_lifted_policy_keeps_its_number() -> None:
    bench = Bench()
    doctor = bench.world.doctor
    bench.refuse(doctor.sign(entries.topic_policy(HEART, 0, 1, b"")), "no-policy")
    bench.accept(doctor.sign(entries.topic_policy(HEART, 0, 1, seed("p"))))
    bench.accept(doctor.sign(entries.topic_policy(HEART, 0, 2, b"")))
    bench.refuse(doctor.sign(entries.topic_policy(HEART, 0, 3, b"")), "no-policy")
    bench.refuse(doctor.sign(entries.topic_policy(HEART, 0, 1, seed("p"))), "wrong-version")
    bench.accept(doctor.sign(entries.topic_policy(HEART, 0, 3, seed("p3"))))


@pytest.mark.parametrize(
    "fields",
    [
        [EntryKind.GRANT_ATTRIBUTE, HOSPITAL, bytes(16), NAME, bytes(31), 0],
        [EntryKind.GRANT_ATTRIBUTE, HOSPITAL, bytes(16), NAME, bytes(32), -1],
        [EntryKind.GRANT_ATTRIBUTE, HOSPITAL, bytes(16), bytes(15), bytes(32), 0],
        [EntryKind.WITHDRAW_ATTRIBUTE, HOSPITAL, bytes(16), NAME, 0],
        [EntryKind.TOPIC_POLICY, HEART, 256, 1, bytes(32)],
        [EntryKind.TOPIC_POLICY, HEART, 0, 0, bytes(32)],
        [EntryKind.TOPIC_POLICY, HEART, 0, 1, bytes(16)],
        [EntryKind.ATTRIBUTE_EPOCH, 0, bytes(32), 0],
        [EntryKind.ATTRIBUTE_EPOCH, 1, bytes(16), 0],
    ],
)
def test_fields_out_of_form_are_refused(fields: list[object]) -> None:
    bench = Bench()
    entry = wire.encode([int(field) if isinstance(field, EntryKind) else field for field in fields])
    author = bench.world.authority if fields[0] is EntryKind.ATTRIBUTE_EPOCH else bench.world.doctor
    bench.refuse(author.sign(entry), "malformed", 0)
