"""Enrolment: possession of both keys, invitations that work once, one face for every failure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from authority_world import World

from tallystick.authority.answers import NOBODY, Enrolled
from tallystick.authority.asks import ConfirmEnrolment, Enrol
from tallystick.authority.client import enrol
from tallystick.authority.possession import enrol_challenge_info, sign_enrolment
from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import CannotOpen, Misuse, Refused
from tallystick.trust.certificate import Certificate, SubjectKind, subject_id
from tallystick.trust.trustfile import TrustFile


@pytest.fixture
def keys() -> tuple[SigningKey, hpke.PrivateKey]:
    return SigningKey.from_seed(b"s" * 32), hpke.PrivateKey.generate(b"e" * 32)


def face(ask: Callable[[], object]) -> tuple[str, str, str | None]:
    with pytest.raises(Refused) as refusal:
        ask()
    return refusal.value.reason, str(refusal.value), refusal.value.hint


def test_a_newcomer_takes_home_what_it_needs(world: World, keys: tuple[SigningKey, hpke.PrivateKey]) -> None:
    key, sealing = keys
    invite = world.authority.enrolment.create_tenant("acme")
    enrolled = enrol(world.authority, world.instance, invite, "car 17", key, sealing)
    certificate = Certificate.decode(enrolled.certificate)
    certificate.verify_issued_by(world.authority_certificate)
    assert certificate.kind is SubjectKind.PRINCIPAL
    assert certificate.subject == subject_id(world.instance, key.public.raw)
    assert TrustFile.parse(enrolled.trust).instance == world.instance
    assert [Certificate.decode(node).subject for node in enrolled.nodes] == [world.node]
    assert world.ledger.query(lambda state: state.get(b"identity/" + certificate.subject)) is not None
    assert world.ledger.query(lambda state: state.get(b"tenant/" + certificate.tenant))[0] == certificate.subject


def test_every_failure_has_one_face(world: World, keys: tuple[SigningKey, hpke.PrivateKey]) -> None:
    key, sealing = keys
    public = sealing.public.encode()
    invite = world.authority.enrolment.create_tenant("acme")
    other = world.authority.enrolment.create_tenant("rival")
    authority, instance = world.authority, world.instance

    def begin(invite: str, name: str, *keys: bytes) -> Callable[[], bytes]:
        return lambda: authority.answer(Enrol(invite, name, *keys), NOBODY)

    def confirm(principal: bytes, challenge: bytes) -> Callable[[], Enrolled]:
        return lambda: authority.answer(ConfirmEnrolment(principal, challenge), NOBODY)

    good = sign_enrolment(instance, invite, "car", key, public)
    thief = SigningKey.from_seed(b"t" * 32)
    small = bytes(32)
    owner = world.enrol(other, "owner")
    failures = [
        begin("aaaaaa-aaaaaa-aaaaaa-aaaaaa-aa", "car", key.public.raw, public, good),
        begin("", "car", key.public.raw, public, good),
        begin("§" * 1000, "car", key.public.raw, public, good),
        # possession of the signing key: a signature of another, over another name, sealing key or invitation
        begin(invite, "car", key.public.raw, public, sign_enrolment(instance, invite, "car", thief, public)),
        begin(invite, "van", key.public.raw, public, good),
        begin(invite, "car", key.public.raw, owner.certificate.sealing_key, good),
        begin(other, "car", key.public.raw, public, good),
        begin(invite, "car", small, public, good),
        begin(invite, "car", key.public.raw, b"no key", good),
        begin(invite, " ", key.public.raw, public, good),
        # a key that is enrolled already
        begin(
            invite,
            "car",
            owner.certificate.signing_key,
            public,
            sign_enrolment(instance, invite, "car", owner.holder.signing_key, public),
        ),
        confirm(subject_id(instance, key.public.raw), bytes(32)),
        confirm(b"", b""),
    ]
    assert len({face(failure) for failure in failures}) == 1
    enrol(authority, instance, invite, "car", key, sealing)  # none of it used the invitation up


def test_without_the_sealing_key_the_challenge_stays_shut(
    world: World, keys: tuple[SigningKey, hpke.PrivateKey]
) -> None:
    """Else the authority would seal a principal's secrets to whomever it names."""
    key, victims = keys
    invite = world.authority.enrolment.create_tenant("acme")
    public = victims.public.encode()
    signature = sign_enrolment(world.instance, invite, "car", key, public)
    sealed = world.authority.answer(Enrol(invite, "car", key.public.raw, public, signature), NOBODY)
    principal = subject_id(world.instance, key.public.raw)
    with pytest.raises(CannotOpen):
        hpke.open_(hpke.PrivateKey.generate(b"t" * 32), sealed, enrol_challenge_info(world.instance, principal))
    for guess in (bytes(32), b"", sealed[:32]):
        assert face(partial(world.authority.answer, ConfirmEnrolment(principal, guess), NOBODY))
    assert world.authority.resolve_key(principal) is None


def test_an_invitation_works_once_and_expires(world: World, keys: tuple[SigningKey, hpke.PrivateKey]) -> None:
    invite = world.authority.enrolment.create_tenant("acme")
    world.enrol(invite, "first")
    second = face(lambda: world.enrol(invite, "second"))
    late = world.authority.enrolment.invite_to("acme")
    world.pass_time(world.settings.invite_s)
    assert face(lambda: world.enrol(late, "late")) == second


def test_two_who_share_an_invitation_race_for_it(world: World, keys: tuple[SigningKey, hpke.PrivateKey]) -> None:
    """The newest attempt counts; whoever confirms first has it, and the other gets nothing."""
    invite = world.authority.enrolment.create_tenant("acme")
    pairs = [(SigningKey.from_seed(bytes([n]) * 32), hpke.PrivateKey.generate(bytes([n]) * 32)) for n in (1, 2)]
    sealed = []
    for key, sealing in pairs:
        public = sealing.public.encode()
        signature = sign_enrolment(world.instance, invite, "car", key, public)
        sealed.append(world.authority.answer(Enrol(invite, "car", key.public.raw, public, signature), NOBODY))
    opened = [
        hpke.open_(sealing, one, enrol_challenge_info(world.instance, subject_id(world.instance, key.public.raw)))
        for (key, sealing), one in zip(pairs, sealed, strict=True)
    ]
    first, second = (subject_id(world.instance, key.public.raw) for key, _ in pairs)
    assert face(lambda: world.authority.answer(ConfirmEnrolment(first, opened[0]), NOBODY))
    certificate = world.authority.answer(ConfirmEnrolment(second, opened[1]), NOBODY).certificate
    # The answer that was lost is given again; it enrols nobody new.
    assert world.authority.answer(ConfirmEnrolment(second, opened[1]), NOBODY).certificate == certificate
    assert world.authority.statistics().principals == 1


def test_a_tenants_owner_invites_and_its_invitation_is_sealed(world: World) -> None:
    owner = world.tenant()
    member = world.enrol(owner.client.invite(), "car")
    assert member.certificate.tenant == owner.certificate.tenant
    with pytest.raises(Refused) as refusal:
        member.client.invite()
    assert refusal.value.reason == "not-owner"


def test_the_operators_mistakes_are_named(world: World) -> None:
    world.authority.enrolment.create_tenant("acme")
    with pytest.raises(Misuse, match="exists already"):
        world.authority.enrolment.create_tenant("acme")
    with pytest.raises(Misuse, match="does not exist"):
        world.authority.enrolment.invite_to("nobody")
    with pytest.raises(Misuse, match="printable"):
        world.authority.enrolment.create_tenant("a\nb")


def test_codes_and_challenges_are_not_in_the_store(world: World, keys: tuple[SigningKey, hpke.PrivateKey]) -> None:
    from tallystick.authority.possession import parse_invite

    key, sealing = keys
    invite = world.authority.enrolment.create_tenant("acme")
    public = sealing.public.encode()
    signature = sign_enrolment(world.instance, invite, "car", key, public)
    sealed = world.authority.answer(Enrol(invite, "car", key.public.raw, public, signature), NOBODY)
    challenge = hpke.open_(
        sealing, sealed, enrol_challenge_info(world.instance, subject_id(world.instance, key.public.raw))
    )
    stored = world.authority.core.store.snapshot()
    assert challenge not in stored
    assert parse_invite(invite) not in stored
