"""Attributes, attribute epochs and topic policies: what a tenant's owner may write, and what nobody else may."""

from __future__ import annotations

import pytest
from ledger_world import HOME, HOSPITAL, NOW_MS, ROLES, Bench, World, seed, token
from ledger_world import bench as bench
from ledger_world import world as world

from tallystick import wire
from tallystick.ledger import entries
from tallystick.ledger.contracts.attributes import ATTRIBUTE_EPOCHS, ATTRIBUTES, POLICIES
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.trust.certificate import ALL_TENANTS
from tallystick.trust.certificate import SubjectKind as Certified

HEART, AIR = token("heart"), token("air")
NAME, OTHER = seed("pseudonym")[:16], seed("another pseudonym")[:16]


# --- attributes ---


def test_a_tenant_s_owner_grants_to_a_principal_of_any_tenant(bench: Bench, world: World) -> None:
    doctor, sensor = world.doctor, world.sensor
    bench.play((doctor, entries.grant_attribute(HOSPITAL, sensor.id, NAME, seed("c"), NOW_MS + 5), None))
    assert bench.state.get(ATTRIBUTES(HOSPITAL, sensor.id, NAME)) == [seed("c"), NOW_MS + 5, bench.height - 1]


@pytest.mark.parametrize("role", ROLES)
def test_nobody_else_grants_in_a_tenant_s_name(bench: Bench, world: World, role: str) -> None:
    monitor = world.monitor.id
    bench.play(
        world.row(role, "doctor", entries.grant_attribute(HOSPITAL, monitor, NAME, seed("c")), "not-owner"),
        world.row(role, "doctor", entries.withdraw_attribute(HOSPITAL, monitor, NAME), "not-owner"),
        world.row(role, "nobody", entries.grant_attribute(ALL_TENANTS, monitor, NAME, seed("c")), "not-owner"),
    )


def test_another_tenant_s_pseudonym_is_no_way_into_its_grants(bench: Bench, world: World) -> None:
    """The landlord copies what the ledger shows of the hospital's grant: it neither changes nor undoes it."""
    bench.play((world.doctor, entries.grant_attribute(HOSPITAL, world.sensor.id, NAME, seed("c")), None))
    held = bench.state.get(ATTRIBUTES(HOSPITAL, world.sensor.id, NAME))
    bench.play(
        (world.landlord, entries.withdraw_attribute(HOSPITAL, world.sensor.id, NAME), "not-owner"),
        (world.landlord, entries.withdraw_attribute(HOME, world.sensor.id, NAME), "unknown-attribute"),
        (world.landlord, entries.grant_attribute(HOME, world.sensor.id, NAME, seed("mine")), None),
    )
    assert bench.state.get(ATTRIBUTES(HOSPITAL, world.sensor.id, NAME)) == held
    bench.play((world.landlord, entries.withdraw_attribute(HOME, world.sensor.id, NAME), None))
    assert bench.state.get(ATTRIBUTES(HOSPITAL, world.sensor.id, NAME)) == held


def test_only_principals_hold_attributes(bench: Bench, world: World) -> None:
    bench.play((world.doctor, entries.grant_attribute(HOSPITAL, world.node.id, NAME, seed("c")), "not-principal"))
    bench.play((world.doctor, entries.grant_attribute(HOSPITAL, seed("x")[:16], NAME, seed("c")), "unknown-identity"))


def test_a_grant_is_replaced_and_withdrawn_by_the_same_tenant(bench: Bench, world: World) -> None:
    doctor, monitor = world.doctor, world.monitor
    bench.play((doctor, entries.grant_attribute(HOSPITAL, monitor.id, NAME, seed("c1")), None))
    bench.play((doctor, entries.grant_attribute(HOSPITAL, monitor.id, NAME, seed("c2"), NOW_MS), None))
    assert bench.state.get(ATTRIBUTES(HOSPITAL, monitor.id, NAME))[:2] == [seed("c2"), NOW_MS]
    bench.play((doctor, entries.withdraw_attribute(HOSPITAL, monitor.id, OTHER), "unknown-attribute"))
    bench.play((doctor, entries.withdraw_attribute(HOSPITAL, monitor.id, NAME), None))
    assert bench.state.get(ATTRIBUTES(HOSPITAL, monitor.id, NAME)) is None
    bench.play((doctor, entries.withdraw_attribute(HOSPITAL, monitor.id, NAME), "unknown-attribute"))


def test_whoever_owned_the_tenant_before_grants_no_more(bench: Bench, world: World) -> None:
    written = entries.grant_attribute(HOSPITAL, world.sensor.id, NAME, seed("c"))
    bench.play(
        (world.authority, entries.tenant(HOSPITAL, world.monitor.id), None),
        (world.doctor, written, "not-owner"),
        (world.monitor, written, None),
    )


# --- epochs ---


def test_attribute_epochs_count_up_by_one_for_each_authority(bench: Bench, world: World) -> None:
    bench.play(
        *(world.row(role, "", entries.attribute_epoch(1, seed("k"), NOW_MS), "not-authority") for role in ROLES[1:]),
        (world.authority, entries.attribute_epoch(2, seed("k"), NOW_MS), "wrong-epoch"),
        (world.authority, entries.attribute_epoch(1, seed("k"), NOW_MS), None),
        (world.authority, entries.attribute_epoch(3, seed("k"), NOW_MS), "wrong-epoch"),
        (world.authority, entries.attribute_epoch(2, seed("k"), NOW_MS - 1), "wrong-epoch"),
        (world.authority, entries.attribute_epoch(2, seed("k"), NOW_MS + 1000), None),
    )
    assert bench.state.get(b"attribute-epochs/" + world.authority.id) == 2
    own = world.actor("hospital authority", Certified.AUTHORITY, HOSPITAL)
    bench.play((own, [entries.enrol(own.certificate), entries.attribute_epoch(1, seed("other"), NOW_MS)], None))
    assert bench.state.get(ATTRIBUTE_EPOCHS(own.id, 1))[0] == seed("other")
    assert bench.state.get(ATTRIBUTE_EPOCHS(world.authority.id, 1))[0] == seed("k")


def test_an_epoch_to_come_is_brought_forward_and_never_put_off(bench: Bench, world: World) -> None:
    authority, announce = world.authority, entries.attribute_epoch
    starts = {1: NOW_MS, 2: NOW_MS + 1000, 3: NOW_MS + 2000}
    bench.play(
        *((authority, announce(number, seed("k"), start), None) for number, start in starts.items()),
        (authority, announce(2, seed("k"), NOW_MS + 2000), "wrong-epoch"),  # put off
        (authority, announce(2, seed("k"), NOW_MS + 1000), "wrong-epoch"),  # nothing new
        (authority, announce(2, seed("another key"), NOW_MS + 500), "wrong-epoch"),
        (authority, announce(2, seed("k"), NOW_MS - 1), "wrong-epoch"),  # before the first
        (authority, announce(1, seed("k"), NOW_MS - 1000), "wrong-epoch"),  # it has begun
        (authority, announce(2, seed("k"), NOW_MS + 500), None),
    )
    assert bench.state.get(ATTRIBUTE_EPOCHS(authority.id, 2))[1] == NOW_MS + 500
    assert bench.state.get(b"attribute-epochs/" + authority.id) == 3
    bench.time_ms = NOW_MS + 500
    bench.play((authority, announce(2, seed("k"), NOW_MS + 400), "wrong-epoch"))


# --- topic policies ---


def test_versions_of_a_group_s_policy_count_up_under_the_owner(bench: Bench, world: World) -> None:
    doctor = world.doctor
    bench.play(
        (doctor, entries.topic_policy(HEART, 0, 1, seed("p1")), None),
        (doctor, entries.topic_policy(HEART, 0, 1, seed("again")), "wrong-version"),
        (doctor, entries.topic_policy(HEART, 0, 3, seed("p3")), "wrong-version"),
        (doctor, entries.topic_policy(HEART, 1, 1, seed("of group 1")), None),
        (doctor, entries.topic_policy(HEART, 0, 2, seed("p2")), None),
    )
    assert bench.state.get(POLICIES(HEART, 0)) == [2, seed("p2"), bench.height - 1]
    assert bench.state.get(POLICIES(HEART, 1))[:2] == [1, seed("of group 1")]


@pytest.mark.parametrize("role", ROLES)
def test_only_the_topic_s_owner_sets_and_lifts_its_policy(bench: Bench, world: World, role: str) -> None:
    bench.play(
        world.row(role, "doctor", entries.topic_policy(HEART, 0, 1, seed("p")), "not-owner"),
        (world.doctor, entries.topic_policy(HEART, 1, 1, seed("p")), None),
        world.row(role, "doctor", entries.topic_policy(HEART, 1, 2, b""), "not-owner"),
        (world.doctor, entries.topic_policy(token("none"), 0, 1, seed("p")), "unknown-topic"),
    )


def test_a_lifted_policy_keeps_its_number(bench: Bench, world: World) -> None:
    doctor = world.doctor
    bench.play(
        (doctor, entries.topic_policy(HEART, 0, 1, b""), "no-policy"),
        (doctor, entries.topic_policy(HEART, 0, 1, seed("p")), None),
        (doctor, entries.topic_policy(HEART, 0, 2, b""), None),
        (doctor, entries.topic_policy(HEART, 0, 3, b""), "no-policy"),
        (doctor, entries.topic_policy(HEART, 0, 1, seed("p")), "wrong-version"),
        (doctor, entries.topic_policy(HEART, 0, 3, seed("p3")), None),
    )


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
def test_fields_out_of_form_are_refused(bench: Bench, world: World, fields: list[object]) -> None:
    entry = wire.encode([int(field) if isinstance(field, EntryKind) else field for field in fields])
    author = world.authority if fields[0] is EntryKind.ATTRIBUTE_EPOCH else world.doctor
    bench.play((author, entry, "malformed", 0))
