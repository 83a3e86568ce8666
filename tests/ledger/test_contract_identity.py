"""Identity: who may exist, act, be replaced and revoked."""

from __future__ import annotations

from dataclasses import replace as changed

from ledger_world import HOME, HOSPITAL, NOW_MS, YEARS_MS, Bench, World, seed

from tallystick.crypto.signatures import RootKey, SigningKey
from tallystick.ledger import entries
from tallystick.ledger.contracts import identity
from tallystick.ledger.contracts.execute import WHOLE
from tallystick.trust.certificate import ALL_TENANTS, SubjectKind
from tallystick.trust.trustfile import TrustFile


def test_an_author_enrols_itself_with_its_first_transaction() -> None:
    bench = Bench(founded=False)
    world = bench.world
    bench.accept(world.authority.sign(entries.enrol(world.authority.certificate)))
    bench.accept(world.doctor.sign(entries.enrol(world.doctor.certificate)))
    found = identity.require(bench.state, world.doctor.id)
    assert (found.kind, found.tenant, found.enrolled, found.revoked) == (SubjectKind.PRINCIPAL, HOSPITAL, 2, 0)


def test_a_stranger_writes_nothing() -> None:
    bench = Bench(founded=False)
    bench.refuse(bench.world.doctor.sign(entries.lift(bytes(16))), "unknown-identity", WHOLE)


def test_a_certificate_without_the_key_enrols_nobody() -> None:
    bench = Bench()
    thief = SigningKey.from_seed(seed("thief"))
    victim = bench.world.actor("victim", SubjectKind.PRINCIPAL, HOSPITAL)
    victim.key = thief
    bench.refuse(victim.sign(entries.enrol(victim.certificate)), "forged", WHOLE)


def test_the_root_is_the_trust_file_s() -> None:
    bench = Bench()
    other = World(root=RootKey.from_seed(seed("another root")))
    rogue = other.actor("rogue", SubjectKind.AUTHORITY, ALL_TENANTS)
    rogue.certificate = changed(rogue.certificate, instance=bench.world.instance).sign(
        other.trust.root_signer(other.root)
    )
    assert not bench.run(rogue.sign(entries.enrol(rogue.certificate))).accepted


def test_an_authority_certifies_principals_of_its_own_tenants_only() -> None:
    bench = Bench()
    world = bench.world
    homely = world.actor("home authority", SubjectKind.AUTHORITY, HOME)
    bench.accept(homely.sign(entries.enrol(homely.certificate)))
    bench.accept(homely.sign(entries.enrol(world.actor("lamp", SubjectKind.PRINCIPAL, HOME, homely).certificate)))
    intruder = world.actor("intruder", SubjectKind.PRINCIPAL, HOSPITAL, homely)
    bench.refuse(homely.sign(entries.enrol(intruder.certificate)), "wrong-issuer", 0)
    node = world.actor("its own node", SubjectKind.NODE, ALL_TENANTS, homely)
    bench.refuse(homely.sign(entries.enrol(node.certificate)), "wrong-issuer")
    everywhere = world.actor("everywhere", SubjectKind.PRINCIPAL, ALL_TENANTS, world.authority)
    bench.refuse(world.authority.sign(entries.enrol(everywhere.certificate)), "wrong-issuer")
    by_principal = world.actor("by principal", SubjectKind.PRINCIPAL, HOSPITAL, world.doctor)
    bench.refuse(world.doctor.sign(entries.enrol(by_principal.certificate)), "wrong-issuer")


def test_an_identifier_cannot_be_claimed_with_another_key() -> None:
    bench = Bench()
    world = bench.world
    key = SigningKey.from_seed(seed("usurper"))
    claimed = world.certify(
        key, SubjectKind.PRINCIPAL, HOSPITAL, subject=world.actor("new", SubjectKind.PRINCIPAL, HOSPITAL).id
    )
    bench.refuse(world.authority.sign(entries.enrol(claimed)), "wrong-subject", 0)
    bench.refuse(world.authority.sign(entries.enrol(world.doctor.certificate)), "key-used", 0)


def test_a_replaced_key_signs_nothing_more_and_never_comes_back() -> None:
    bench = Bench()
    world = bench.world
    old_key = world.doctor.key
    new_key = SigningKey.from_seed(seed("doctor 2"))
    renewed = world.certify(new_key, SubjectKind.PRINCIPAL, HOSPITAL, subject=world.doctor.id)
    bench.refuse(world.sensor.sign(entries.replace(renewed)), "not-entitled", 0)
    bench.accept(world.doctor.sign(entries.replace(renewed)))
    bench.refuse(world.doctor.sign(entries.close_topic(bytes(16))), "forged", WHOLE)
    world.doctor.key = new_key
    again = world.certify(old_key, SubjectKind.PRINCIPAL, HOSPITAL, subject=world.doctor.id)
    bench.refuse(world.doctor.sign(entries.replace(again)), "key-used", 0)
    moved = world.certify(SigningKey.from_seed(seed("d3")), SubjectKind.PRINCIPAL, HOME, subject=world.doctor.id)
    bench.refuse(world.doctor.sign(entries.replace(moved)), "wrong-certificate", 0)
    subject, first, end = bench.state.get(b"key/" + old_key.public.raw)
    assert (subject, first < end) == (world.doctor.id, True)


def test_revocation_takes_effect_at_its_height() -> None:
    bench = Bench()
    world = bench.world
    bench.refuse(world.landlord.sign(entries.revoke(world.doctor.id)), "not-authority", 0)
    bench.refuse(world.sensor.sign(entries.revoke(world.node.id)), "not-operator", 0)
    height = bench.height
    bench.accept(world.authority.sign(entries.revoke(world.doctor.id)))
    assert identity.require(bench.state, world.doctor.id).revoked == height
    bench.refuse(world.doctor.sign(entries.close_topic(bytes(16))), "revoked", WHOLE)
    bench.refuse(world.authority.sign(entries.revoke(world.doctor.id)), "revoked", 0)
    renewed = world.certify(SigningKey.from_seed(seed("d2")), SubjectKind.PRINCIPAL, HOSPITAL, subject=world.doctor.id)
    bench.refuse(world.authority.sign(entries.replace(renewed)), "revoked", 0)


def test_the_root_stops_an_operator_that_went_bad() -> None:
    bench = Bench()
    world = bench.world
    by_root = entries.revoke_by_root(world.instance, world.authority.id, world.trust.root_signer(world.root))
    forged = entries.revoke_by_root(world.instance, world.node.id, SigningKey.from_seed(seed("nobody")))
    assert not bench.run(world.doctor.sign(forged)).accepted
    bench.accept(world.doctor.sign(by_root))
    bench.refuse(world.authority.sign(entries.lift(world.doctor.id)), "revoked", WHOLE)


def test_a_certificate_counts_in_its_time() -> None:
    bench = Bench()
    bench.time_ms = NOW_MS + YEARS_MS
    bench.refuse(bench.world.doctor.sign(entries.close_topic(bytes(16))), "certificate-expired", WHOLE)


def test_a_transaction_counts_once_and_numbers_only_rise() -> None:
    bench = Bench()
    world = bench.world
    transaction = world.doctor.sign(world.topic("second", world.doctor, HOSPITAL), number=100)
    bench.accept(transaction)
    bench.refuse(transaction, "replayed", WHOLE)
    bench.refuse(world.doctor.sign(world.topic("third", world.doctor, HOSPITAL), number=99), "replayed", WHOLE)


def test_a_transaction_of_staging_means_nothing_in_production() -> None:
    bench = Bench()
    staging = World(ledger_key=SigningKey.from_seed(seed("staging")))
    bench.refuse(staging.authority.sign(entries.enrol(staging.authority.certificate)), "wrong-instance", WHOLE)


def test_a_tenant_is_administered_by_its_own_principal() -> None:
    bench = Bench()
    world = bench.world
    bench.refuse(world.landlord.sign(entries.tenant(HOSPITAL, world.landlord.id)), "not-authority", 0)
    bench.refuse(world.authority.sign(entries.tenant(HOSPITAL, world.landlord.id)), "wrong-tenant", 0)


def test_a_trust_file_is_replaced_by_its_successor_only() -> None:
    bench = Bench()
    world = bench.world
    new = changed(world.trust, number=2, first=world.instance, name="renamed", signatures=()).sign(world.root)
    bench.accept(world.sensor.sign(entries.trust(new.to_json())))
    assert identity.trust_file(bench.state).number == 2
    assert not bench.run(world.sensor.sign(entries.trust(new.to_json()))).accepted
    usurper = RootKey.from_seed(seed("usurper root"))
    third = TrustFile(
        number=3,
        first=world.instance,
        name="usurped",
        roots=(usurper.public.raw,),
        threshold=1,
        ledger_keys=world.trust.ledger_keys,
        ledger_threshold=1,
        witnesses=(),
        quorum=0,
    ).sign(usurper)
    bench.refuse(world.sensor.sign(entries.trust(third.to_json())), "forged", 0)
