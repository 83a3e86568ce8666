"""The attacks of EventGuard and BPS that the authority stops, where it makes sense beside the same without it."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import replace

import pytest
from authority_world import PASSPHRASE, READ, WRITE, Person, World
from without import without

from tallystick.authority.answers import Caller, answer_info
from tallystick.authority.grant import Grant
from tallystick.authority.master import MasterKey
from tallystick.authority.mesh_messages import MeshRequest
from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import CannotOpen, Refused, TallystickError
from tallystick.ledger import entries
from tallystick.parcel.header import SIGNATURE_CONTEXT, Group, Header, ParcelKind, TopicRef
from tallystick.trust.permit import Operation, Permit
from tallystick.trust.right import Right


@pytest.fixture
def people(world: World) -> tuple[Person, Person, Person, bytes]:
    """Owner, two members, and a topic on which nobody has a right yet."""
    owner = world.tenant()
    return owner, world.member("S"), world.member("S'"), world.topic(owner)


def reason(of: pytest.ExceptionInfo[Refused]) -> str:
    return of.value.reason


# --- reading without a permit, phony subscription and advertisement ---


@pytest.mark.parametrize(
    ("rights", "operation", "expected"),
    [
        (0, Operation.SUBSCRIBE, "unknown-topic"),
        (Right.READ, Operation.SUBSCRIBE, "unknown-topic"),  # without DESCRIBE there is no topic
        (Right.DESCRIBE, Operation.SUBSCRIBE, "no-right"),
        (WRITE, Operation.SUBSCRIBE, "no-right"),
        (READ, Operation.ADVERTISE, "no-right"),
        (Right.DELETE | Right.DESCRIBE, Operation.ADVERTISE, "no-right"),
    ],
)
def test_no_permit_without_the_right(
    world: World,
    people: tuple[Person, Person, Person, bytes],
    rights: int,
    operation: Operation,
    expected: str,
) -> None:
    owner, s, _, token = people
    if rights:
        world.grant(owner, token, s, rights)
    with pytest.raises(Refused) as refusal:
        s.client.permit(operation, token)
    assert reason(refusal) == expected
    assert world.authority.statistics().permits_live == 0


def test_a_denied_right_beats_an_allowed_one(world: World, people: tuple[Person, Person, Person, bytes]) -> None:
    owner, s, _, token = people
    world.grant(owner, token, s, READ)
    world.act(owner, entries.grant(token, s.id, int(Right.READ), allow=False))
    with pytest.raises(Refused):
        s.client.permit(Operation.SUBSCRIBE, token)


def test_a_topic_one_may_not_describe_looks_like_one_that_does_not_exist(
    world: World, people: tuple[Person, Person, Person, bytes]
) -> None:
    _, s, _, token = people
    absent = world.entropy.bytes(16)

    def answers(of: bytes) -> list[tuple[str, str, str | None]]:
        asks: list[Callable[[], object]] = [
            lambda: s.client.permit(Operation.SUBSCRIBE, of),
            lambda: s.client.permit(Operation.ADVERTISE, of),
            lambda: s.client.rotate(of),
            lambda: s.client.erase(of, s.id, []),
            lambda: s.client.propose_schema(of, b"\x80"),
        ]
        found = []
        for ask in asks:
            with pytest.raises(Refused) as refusal:
                ask()
            text = str(refusal.value).replace(of.hex(), "token")
            found.append((reason(refusal), text, refusal.value.hint))
        return found

    assert answers(token) == answers(absent)


# --- stolen permits ---


def test_a_copied_permit_is_worth_nothing_to_another(
    world: World, people: tuple[Person, Person, Person, bytes]
) -> None:
    owner, s, thief, token = people
    world.grant(owner, token, s, READ)
    granted = s.client.permit(Operation.SUBSCRIBE, token)
    permit = Permit.decode(granted.permit)
    # The signature alone is no defence: it holds for whoever shows the copy, as in EventGuard 4.2.
    permit.verify(world.authority_certificate)
    with pytest.raises(Refused) as refusal:
        thief.client.keys(permit.identifier, 0)
    assert reason(refusal) == "unknown-permit"
    with pytest.raises(Refused) as refusal:
        thief.client.undo(granted.permit, granted.undo_token)
    assert reason(refusal) == "wrong-undo-token"


def test_a_sealed_answer_opens_for_its_principal_and_request_only(
    world: World, people: tuple[Person, Person, Person, bytes]
) -> None:
    owner, s, other, token = people
    world.grant(owner, token, s, READ)
    caller = Caller(s.id, b"n" * 16)
    sealed = world.ask_permit(caller, Operation.SUBSCRIBE, token)
    opened = hpke.open_(s.holder.sealing_key, sealed, answer_info(world.instance, s.id, b"n" * 16))
    assert Grant.decode(opened).token == token
    with pytest.raises(CannotOpen):  # an old answer slipped in for a new request
        hpke.open_(s.holder.sealing_key, sealed, answer_info(world.instance, s.id, b"m" * 16))
    with pytest.raises(CannotOpen):
        hpke.open_(other.holder.sealing_key, sealed, answer_info(world.instance, s.id, b"n" * 16))


def test_a_request_that_arrives_twice_gets_the_same_permit(
    world: World, people: tuple[Person, Person, Person, bytes]
) -> None:
    owner, s, _, token = people
    world.grant(owner, token, s, READ)
    caller = Caller(s.id, b"n" * 16)
    for _ in range(3):
        world.ask_permit(caller, Operation.SUBSCRIBE, token)
    assert world.authority.statistics().permits_live == 1


# --- fake unsubscribing ---


def test_s_prime_with_a_permit_of_its_own_cannot_undo_that_of_s(
    world: World, people: tuple[Person, Person, Person, bytes]
) -> None:
    owner, s, s_prime, token = people
    for person in (s, s_prime):
        world.grant(owner, token, person, READ)
    victim = s.client.permit(Operation.SUBSCRIBE, token)
    attacker = s_prime.client.permit(Operation.SUBSCRIBE, token)
    tries = [
        (victim.permit, attacker.undo_token),
        (victim.permit, bytes(32)),
        (victim.permit, Permit.decode(victim.permit).undo_hash),
    ]
    for permit, undo_token in tries:
        for client in (s_prime.client, s.client):
            with pytest.raises(Refused) as refusal:
                client.undo(permit, undo_token)
            assert reason(refusal) == "wrong-undo-token"
    assert s.client.keys(Permit.decode(victim.permit).identifier, 0) is not None


def test_an_altered_or_foreign_permit_undoes_nothing(
    world: World, people: tuple[Person, Person, Person, bytes]
) -> None:
    owner, s, _, token = people
    world.grant(owner, token, s, READ)
    granted = s.client.permit(Operation.SUBSCRIBE, token)
    forged = bytearray(granted.permit)
    forged[-1] ^= 1
    own = Permit.decode(granted.permit).sign(s.holder.signing_key).encode()
    for permit in (bytes(forged), own, b"", b"\xff" * 40):
        with pytest.raises(Refused) as refusal:
            s.client.undo(permit, granted.undo_token)
        assert reason(refusal) == "wrong-permit"


def test_the_name_attack_on_undo_tokens(world: World, people: tuple[Person, Person, Person, bytes]) -> None:
    """Whoever may name a topic after another's permit identifier obtains nothing that undoes it."""

    def eventguard(secret: bytes, text: bytes) -> bytes:  # K(w) and UST(sbId) are the same keyed hash
        return hmac.digest(secret, text, "sha256")

    identifier = b"sbId of a victim"
    assert eventguard(b"rk(MS)", identifier) == eventguard(b"rk(MS)", b"sbId of a victim")  # as a topic's name

    owner, s, _, token = people
    world.grant(owner, token, s, READ)
    granted = s.client.permit(Operation.SUBSCRIBE, token)
    identifier = Permit.decode(granted.permit).identifier
    with without("the client's look at a new name", "the authority's look at a topic's name"):
        named = owner.client.create_topic(identifier.hex(), b"".join(granted.schemas))
    assert named.token != granted.undo_token[:16]
    assert granted.undo_token not in (named.public, named.token)
    # And with a name that is the identifier itself, byte for byte, under one key:
    master = MasterKey(bytes(range(32)))
    for operation in Operation:
        name = b"0123456789abcdef"
        assert master.token(bytes(16), name.decode()) != master.undo_token(operation, name)[:16]
    assert master.undo_token(Operation.SUBSCRIBE, name) != master.undo_token(Operation.ADVERTISE, name)


# --- key following permits ---


def test_a_publishers_grant_holds_no_private_half(world: World, people: tuple[Person, Person, Person, bytes]) -> None:
    owner, s, p, token = people
    world.grant(owner, token, s, READ)
    world.grant(owner, token, p, WRITE)
    seed = s.client.permit(Operation.SUBSCRIBE, token).private_keys[0][1]
    granted = p.client.permit(Operation.ADVERTISE, token)
    updated = p.client.keys(Permit.decode(granted.permit).identifier, 0)
    assert updated is not None
    for grant in (granted, updated):
        assert grant.private_keys == ()
        assert seed not in grant.encode()
    assert hpke.PrivateKey.decode(seed).public.encode() == granted.epochs[0].public


def test_a_revoked_subscriber_gets_no_key_of_the_next_epoch(
    world: World, people: tuple[Person, Person, Person, bytes]
) -> None:
    owner, s, stays, token = people
    for person in (s, stays):
        world.grant(owner, token, person, READ)
    revoked, other = (person.client.permit(Operation.SUBSCRIBE, token) for person in (s, stays))
    world.withdraw(owner, token, s, READ)
    world.pass_time(world.settings.revoke_s)
    with pytest.raises(Refused) as refusal:
        s.client.keys(Permit.decode(revoked.permit).identifier, revoked.version)
    assert reason(refusal) == "permit-ended"
    with pytest.raises(Refused) as refusal:
        s.client.permit(Operation.SUBSCRIBE, token)
    assert reason(refusal) == "unknown-topic"
    news = stays.client.keys(Permit.decode(other.permit).identifier, other.version)
    assert news is not None
    assert [epoch for epoch, _ in news.private_keys if epoch > 1] == [2]


def test_revoking_a_principal_ends_all_its_permits(world: World, people: tuple[Person, Person, Person, bytes]) -> None:
    owner, s, _, token = people
    world.grant(owner, token, s, READ | WRITE)
    world.grant(owner, world.topic(owner, "doors"), s, READ)
    granted = [
        s.client.permit(Operation.SUBSCRIBE, token),
        s.client.permit(Operation.ADVERTISE, token),
        s.client.permit(Operation.SUBSCRIBE, "doors"),
    ]
    owner.client.revoke(s.id)
    assert world.authority.statistics().permits_live == 0
    assert world.authority.resolve_key(s.id) is None
    for grant in granted:
        with pytest.raises(Refused) as refusal:
            s.client.keys(Permit.decode(grant.permit).identifier, 0)
        assert reason(refusal) == "unknown-principal"


def test_a_replaced_key_takes_its_permits_with_it(world: World, people: tuple[Person, Person, Person, bytes]) -> None:
    owner, s, _, token = people
    world.grant(owner, token, s, READ)
    granted = s.client.permit(Operation.SUBSCRIBE, token)
    fresh = SigningKey.from_seed(b"f" * 32)
    certificate = replace(s.certificate, signing_key=fresh.public.raw).sign(world.authority.core.keys.signing)
    world.act(s, entries.replace(certificate))
    assert world.authority.resolve_key(s.id) == fresh.public
    with pytest.raises(Refused) as refusal:
        s.client.keys(Permit.decode(granted.permit).identifier, 0)
    assert reason(refusal) == "permit-ended"
    again = s.client.permit(Operation.SUBSCRIBE, token)
    assert Permit.decode(again.permit).signing_key == fresh.public.raw


def test_private_halves_and_schema_texts_lie_in_no_file_unwrapped(
    world: World, people: tuple[Person, Person, Person, bytes]
) -> None:
    owner, s, _, token = people
    world.grant(owner, token, s, READ)
    granted = s.client.permit(Operation.SUBSCRIBE, token)
    secrets = [seed for _, seed in granted.private_keys]
    secrets += [granted.undo_token, granted.schemas[0], b"speed", PASSPHRASE]
    files = [path.read_bytes() for path in world.folder.rglob("*") if path.is_file()]
    assert len(files) >= 4
    for content in files:
        assert not [secret for secret in secrets if secret in content]


def test_only_the_owner_of_the_tenant_revokes_and_invites(
    world: World, people: tuple[Person, Person, Person, bytes]
) -> None:
    _, s, other, _ = people
    stranger = world.tenant("rival")
    for attempt in (lambda: s.client.revoke(other.id), s.client.invite):
        with pytest.raises(Refused) as refusal:
            attempt()
        assert reason(refusal) == "not-owner"
    with pytest.raises(Refused) as refusal:
        stranger.client.revoke(s.id)
    assert reason(refusal) == "no-such-principal"


def test_a_blacklisted_principal_gets_no_permit(world: World, people: tuple[Person, Person, Person, bytes]) -> None:
    owner, s, _, token = people
    world.grant(owner, token, s, WRITE)

    def header(content: bytes) -> bytes:
        return Header(
            instance=world.instance,
            kind=ParcelKind.DATA,
            topics=(TopicRef(token, bytes(16), 1),),
            lane=bytes(16),
            sequence=4,
            previous=b"p" * 32,
            schema_version=1,
            schema_hash=bytes(32),
            identifier=content[:16],
            time_ms=world.now_ms,
            count=1,
            groups=(Group(content, bytes(32), (bytes(32),), 16),),
            body_bytes=16,
            body_root=content,
        ).encoded

    stories = [header(b"a" * 32), header(b"b" * 32)]
    key = s.holder.signing_key
    told = [part for story in stories for part in (story, key.sign(SIGNATURE_CONTEXT, story))]
    world.act(owner, entries.equivocation(s.id, key.public.raw, *told))
    with pytest.raises(Refused) as refusal:
        s.client.permit(Operation.ADVERTISE, token)
    assert reason(refusal) == "blacklisted"
    for request in (MeshRequest(token, int(Operation.ADVERTISE), 1), MeshRequest(lasting=b"\x09" + bytes(31))):
        with pytest.raises(Refused) as refusal:
            s.client.mesh(request)
        assert reason(refusal) == "blacklisted"


# --- whoever can write the store but not open it ---


def test_a_key_row_that_was_moved_or_exchanged_does_not_open(
    world: World, people: tuple[Person, Person, Person, bytes]
) -> None:
    owner, s, p, token = people
    world.grant(owner, token, s, READ)
    world.grant(owner, token, p, WRITE)
    store = world.authority.core.store
    planted = hpke.PrivateKey.generate(b"p" * 32).public.encode()
    tampered = [
        ("UPDATE epochs SET public = ? WHERE epoch = 1", (planted,)),
        ("UPDATE epochs SET secret = (SELECT secret FROM epochs WHERE epoch = 2) WHERE epoch = 1", ()),
    ]
    for sql, values in tampered:
        before = store.rows("SELECT public, secret, epoch FROM epochs")
        store.write(sql, values)
        for person, operation in ((s, Operation.SUBSCRIBE), (p, Operation.ADVERTISE)):
            with pytest.raises(CannotOpen):
                person.client.permit(operation, token)
        for public, secret, epoch in before:
            store.write("UPDATE epochs SET public = ?, secret = ? WHERE epoch = ?", (public, secret, epoch))


def test_a_permit_brought_back_in_the_store_hands_out_nothing(
    world: World, people: tuple[Person, Person, Person, bytes]
) -> None:
    owner, s, _, token = people
    world.grant(owner, token, s, READ)
    granted = s.client.permit(Operation.SUBSCRIBE, token)
    world.withdraw(owner, token, s, READ)
    world.authority.core.store.write("UPDATE permits SET status = 1")
    with pytest.raises(Refused) as refusal:
        s.client.keys(Permit.decode(granted.permit).identifier, 0)
    assert reason(refusal) == "permit-ended"


def test_a_planted_sealing_key_receives_nothing(world: World, people: tuple[Person, Person, Person, bytes]) -> None:
    owner, s, thief, token = people
    world.grant(owner, token, s, READ)
    stolen = hpke.PrivateKey.generate(b"t" * 32)
    fake = s.certificate.__class__(**{**s.certificate.__dict__, "sealing_key": stolen.public.encode()}).sign(
        thief.holder.signing_key
    )
    world.authority.core.store.write("UPDATE subjects SET certificate = ? WHERE id = ?", (fake.encode(), s.id))
    with pytest.raises(TallystickError):
        s.client.permit(Operation.SUBSCRIBE, token)


def test_secrets_stay_out_of_representations(world: World, people: tuple[Person, Person, Person, bytes]) -> None:
    owner, s, _, token = people
    world.grant(owner, token, s, READ)
    granted = s.client.permit(Operation.SUBSCRIBE, token)
    shown = f"{granted!r} {world.authority.core!r} {s.holder!r}"
    secrets = [granted.undo_token, *(seed for _, seed in granted.private_keys), s.holder.sealing_key.seed]
    for secret in secrets:
        assert secret.hex() not in shown
        assert repr(secret)[2:-1] not in shown
