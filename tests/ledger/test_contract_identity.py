"""Identity: who may exist, act, be replaced and revoked."""

from __future__ import annotations

from dataclasses import replace as changed

import pytest
from ledger_world import HOME, HOSPITAL, NOW_MS, ROLES, YEARS_MS, Actor, Bench, World, seed
from ledger_world import bench as bench
from ledger_world import world as world

from tallystick.crypto.signatures import RootKey, SigningKey
from tallystick.ledger import entries
from tallystick.ledger.contracts import identity
from tallystick.ledger.contracts.execute import WHOLE
from tallystick.trust.certificate import ALL_TENANTS, SubjectKind

NEW_KEY = SigningKey.from_seed(seed("a new key"))


def renewal(world: World, who: Actor, key: SigningKey, tenant: bytes = HOSPITAL) -> bytes:
    """A new key for a principal, certified by the authority."""
    return entries.replace(world.certify(key, SubjectKind.PRINCIPAL, tenant, subject=who.id))


@pytest.mark.parametrize("role", ROLES)
def test_only_the_authority_disposes_of_others(bench: Bench, world: World, role: str) -> None:
    nurse = world.actor("nurse", SubjectKind.PRINCIPAL, HOSPITAL)
    node = world.actor("second node", SubjectKind.NODE, ALL_TENANTS)
    bench.play(
        (world.authority, [entries.enrol(nurse.certificate), entries.enrol(node.certificate)], None),
        world.row(role, "authority", entries.tenant(HOSPITAL, nurse.id), "not-authority"),
        world.row(role, "authority", renewal(world, nurse, NEW_KEY), "not-entitled"),
        world.row(role, "authority", entries.revoke(nurse.id), "not-authority"),
        world.row(role, "authority", entries.revoke(node.id), "not-operator"),
    )


def test_an_author_enrols_itself_with_its_first_transaction() -> None:
    bench = Bench(founded=False)
    authority, doctor = bench.world.authority, bench.world.doctor
    bench.play((authority, entries.enrol(authority.certificate), None))
    bench.play((doctor, entries.enrol(doctor.certificate), None))
    found = identity.require(bench.state, doctor.id)
    assert (found.kind, found.tenant, found.enrolled, found.revoked) == (SubjectKind.PRINCIPAL, HOSPITAL, 2, 0)


def test_a_stranger_writes_nothing() -> None:
    bench = Bench(founded=False)
    bench.play((bench.world.doctor, entries.lift(bytes(16)), "unknown-identity", WHOLE))


def test_a_certificate_without_the_key_enrols_nobody(bench: Bench, world: World) -> None:
    victim = world.actor("victim", SubjectKind.PRINCIPAL, HOSPITAL)
    victim.key = SigningKey.from_seed(seed("thief"))
    bench.play((victim, entries.enrol(victim.certificate), "forged", WHOLE))


def test_the_root_is_the_trust_file_s(bench: Bench, world: World) -> None:
    other = World(root=RootKey.from_seed(seed("another root")))
    rogue = other.actor("rogue", SubjectKind.AUTHORITY, ALL_TENANTS)
    rogue.certificate = changed(rogue.certificate, instance=world.instance).sign(other.trust.root_signer(other.root))
    assert not bench.run(rogue.sign(entries.enrol(rogue.certificate))).accepted


def test_an_authority_certifies_principals_of_its_own_tenants_only(bench: Bench, world: World) -> None:
    homely = world.actor("home authority", SubjectKind.AUTHORITY, HOME)
    lamp = world.actor("lamp", SubjectKind.PRINCIPAL, HOME, homely)
    intruder = world.actor("intruder", SubjectKind.PRINCIPAL, HOSPITAL, homely)
    node = world.actor("its own node", SubjectKind.NODE, ALL_TENANTS, homely)
    everywhere = world.actor("everywhere", SubjectKind.PRINCIPAL, ALL_TENANTS, world.authority)
    by_principal = world.actor("by principal", SubjectKind.PRINCIPAL, HOSPITAL, world.doctor)
    bench.play(
        (homely, entries.enrol(homely.certificate), None),
        (homely, entries.enrol(lamp.certificate), None),
        (homely, entries.enrol(intruder.certificate), "wrong-issuer", 0),
        (homely, entries.enrol(node.certificate), "wrong-issuer"),
        (world.authority, entries.enrol(everywhere.certificate), "wrong-issuer"),
        (world.doctor, entries.enrol(by_principal.certificate), "wrong-issuer"),
    )


def test_an_identifier_cannot_be_claimed_with_another_key(bench: Bench, world: World) -> None:
    new = world.actor("new", SubjectKind.PRINCIPAL, HOSPITAL)
    usurper = SigningKey.from_seed(seed("usurper"))
    claimed = world.certify(usurper, SubjectKind.PRINCIPAL, HOSPITAL, subject=new.id)
    bench.play((world.authority, entries.enrol(claimed), "wrong-subject", 0))
    bench.play((world.authority, entries.enrol(world.doctor.certificate), "key-used", 0))


def test_a_replaced_key_signs_nothing_more_and_never_comes_back(bench: Bench, world: World) -> None:
    doctor, old_key = world.doctor, world.doctor.key
    bench.play(
        (world.sensor, renewal(world, doctor, NEW_KEY), "not-entitled", 0),
        (doctor, renewal(world, doctor, NEW_KEY), None),
        (doctor, entries.close_topic(bytes(16)), "forged", WHOLE),
    )
    doctor.key = NEW_KEY
    bench.play((doctor, renewal(world, doctor, old_key), "key-used", 0))
    bench.play((doctor, renewal(world, doctor, SigningKey.from_seed(seed("d3")), HOME), "wrong-certificate", 0))
    subject, first, end = bench.state.get(b"key/" + old_key.public.raw)
    assert (subject, first < end) == (doctor.id, True)


def test_revocation_takes_effect_at_its_height(bench: Bench, world: World) -> None:
    doctor = world.doctor
    bench.play(
        (world.landlord, entries.revoke(doctor.id), "not-authority", 0),
        (world.sensor, entries.revoke(world.node.id), "not-operator", 0),
        (world.authority, entries.revoke(doctor.id), None),
    )
    assert identity.require(bench.state, doctor.id).revoked == bench.height - 1
    bench.play(
        (doctor, entries.close_topic(bytes(16)), "revoked", WHOLE),
        (world.authority, entries.revoke(doctor.id), "revoked", 0),
        (world.authority, renewal(world, doctor, NEW_KEY), "revoked", 0),
    )


def test_the_root_stops_an_operator_that_went_bad(bench: Bench, world: World) -> None:
    by_root = entries.revoke_by_root(world.instance, world.authority.id, world.trust.root_signer(world.root))
    forged = entries.revoke_by_root(world.instance, world.node.id, SigningKey.from_seed(seed("nobody")))
    assert not bench.run(world.doctor.sign(forged)).accepted
    bench.play((world.doctor, by_root, None))
    bench.play((world.authority, entries.lift(world.doctor.id), "revoked", WHOLE))


def test_a_certificate_counts_in_its_time(bench: Bench, world: World) -> None:
    bench.time_ms = NOW_MS + YEARS_MS
    bench.play((world.doctor, entries.close_topic(bytes(16)), "certificate-expired", WHOLE))


def test_a_transaction_counts_once_and_numbers_only_rise(bench: Bench, world: World) -> None:
    transaction = world.doctor.sign(world.topic("second", world.doctor, HOSPITAL), number=100)
    bench.accept(transaction)
    bench.refuse(transaction, "replayed", WHOLE)
    bench.refuse(world.doctor.sign(world.topic("third", world.doctor, HOSPITAL), number=99), "replayed", WHOLE)


def test_a_transaction_of_staging_means_nothing_in_production(bench: Bench) -> None:
    staging = World(ledger_key=SigningKey.from_seed(seed("staging")))
    bench.play((staging.authority, entries.enrol(staging.authority.certificate), "wrong-instance", WHOLE))


def test_a_tenant_is_administered_by_its_own_principal(bench: Bench, world: World) -> None:
    bench.play((world.landlord, entries.tenant(HOSPITAL, world.landlord.id), "not-authority", 0))
    bench.play((world.authority, entries.tenant(HOSPITAL, world.landlord.id), "wrong-tenant", 0))


def test_a_trust_file_is_replaced_by_its_successor_only(bench: Bench, world: World) -> None:
    new = changed(world.trust, number=2, first=world.instance, name="renamed", signatures=()).sign(world.root)
    bench.play((world.sensor, entries.trust(new.to_json()), None))
    assert identity.trust_file(bench.state).number == 2
    assert not bench.run(world.sensor.sign(entries.trust(new.to_json()))).accepted
    usurper = RootKey.from_seed(seed("usurper root"))
    third = changed(new, number=3, name="usurped", roots=(usurper.public.raw,), signatures=()).sign(usurper)
    bench.play((world.sensor, entries.trust(third.to_json()), "forged", 0))
