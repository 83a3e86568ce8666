"""A topic taken over by its token: whoever saw a new token first could register it for another tenant, and names led to
the thief's topic. Since version 2 of the entry the tenant's authority binds the token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from authority_world import READ, SCHEMA, WRITE
from authority_world import World as AuthorityWorld
from ledger_world import HOME, HOSPITAL, Bench, World, seed, token
from ledger_world import bench as bench
from ledger_world import world as world
from makers import TENANT
from provers import Scene, certify, state_note
from without import without

from tallystick import wire
from tallystick.authority.answers import BoundDraft, Caller
from tallystick.authority.asks import Ask, BindTopic
from tallystick.authority.client import AuthorityClient, topic_entries
from tallystick.client.fetching import check_tenant
from tallystick.client.ties import View
from tallystick.crypto.merkle_map import MerkleMap
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Refused
from tallystick.ledger import entries
from tallystick.ledger.contracts import topics
from tallystick.ledger.contracts.execute import newest
from tallystick.ledger.contracts.topics import CLEAR, Binding, Terms, TopicRow
from tallystick.ledger.proofs import CheckpointMemory
from tallystick.parcel.prove import Proof
from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.trust.certificate import ALL_TENANTS, SubjectKind
from tallystick.trust.permit import Operation, Permit

ADVERTISE = Operation.ADVERTISE

# --- the ledger ---


def test_in_version_1_a_token_is_whoever_came_first(bench: Bench, world: World) -> None:
    bench.play(
        (world.landlord, world.topic("lungs", world.landlord, HOME), None),
        (world.doctor, world.topic("lungs", world.doctor, HOSPITAL), "topic-exists"),
    )
    assert topics.require(bench.state, token("lungs")).tenant == HOME


def test_a_bound_token_is_its_tenant_s(bench: Bench, world: World) -> None:
    """The thief sees the entry on its way and is first; it tries whatever it could sign itself or have signed."""
    bench.bring_into_force()
    thief, seen = world.landlord, world.bind("lungs", HOSPITAL)
    own = world.actor("thief's authority", SubjectKind.AUTHORITY, HOME)
    bench.accept(world.authority.sign(entries.enrol(own.certificate)))
    copied = world.topic("lungs", world.doctor, HOSPITAL, binding=seen)

    def stolen(binding: Binding, token_: bytes = seen.token) -> bytes:
        entry = wire.decode(world.topic("lungs", thief, HOME, binding=binding))
        signature = thief.key.sign(topics.SCHEMA_CONTEXT, topics.schema_statement(world.instance, token_, 1, entry[8]))
        return wire.encode([10, token_, *entry[2:9], signature, *entry[10:]])

    first = wire.decode(stolen(seen))[:10]
    bench.play(
        (thief, wire.encode(first), "unbound-topic"),
        (thief, stolen(seen), "forged"),  # the authority signed another tenant
        (thief, stolen(world.bind("lungs", HOME, own)), "wrong-token"),  # its own authority makes another token
        (thief, stolen(world.bind("lungs", HOSPITAL, own)), "wrong-token"),
        (thief, stolen(seen._replace(authority=own.id)), "wrong-token"),
        (thief, stolen(world.bind("other lungs", HOME)), "wrong-token"),
        (thief, copied, "not-owner"),
        (thief, stolen(world.bind("lungs", HOME, own), world.bind("lungs", HOME, own).token), None),  # one of its own
        (world.doctor, copied, None),
    )
    assert topics.require(bench.state, seen.token).tenant == HOSPITAL


def test_without_the_binding_the_thief_is_first(bench: Bench, world: World) -> None:
    bench.bring_into_force()
    seen = world.bind("lungs", HOSPITAL)
    with without("the binding of a token to its tenant"):
        bench.play(
            (world.landlord, world.topic("lungs", world.landlord, HOME, binding=seen), None),
            (world.doctor, world.topic("lungs", world.doctor, HOSPITAL, binding=seen), "topic-exists"),
        )
    assert topics.require(bench.state, seen.token).tenant == HOME


@pytest.mark.parametrize("kind", [SubjectKind.AUTHORITY, SubjectKind.NODE])
def test_who_binds_is_a_live_authority_of_the_tenant(bench: Bench, world: World, kind: SubjectKind) -> None:
    bench.bring_into_force()
    tenant = HOME if kind == SubjectKind.AUTHORITY else ALL_TENANTS
    other = world.actor("other", kind, tenant)
    made = world.topic("lungs", world.doctor, HOSPITAL, binding=world.bind("lungs", HOSPITAL, other))
    bench.play(
        (world.doctor, made, "unknown-identity"),
        (world.authority, entries.enrol(other.certificate), None),
        (world.doctor, made, "not-authority"),
        (world.authority, entries.revoke(other.id), None),
        (world.doctor, made, "revoked"),
    )


# --- the row of version 2 ---


def test_a_topic_shows_its_terms_and_older_rows_keep_their_bytes(bench: Bench, world: World) -> None:
    before = bench.stored[bytes(topics.TOPICS(token("heart")))]
    bench.bring_into_force()
    bound, plain = world.bind("lungs", HOSPITAL), world.bind("liver", HOSPITAL)
    terms = Terms(keep_ms=86_400_000, anchor_pace_ms=500)
    doctor = world.doctor
    bench.play(
        (doctor, world.topic("lungs", doctor, HOSPITAL, binding=bound, terms=terms, flags=CLEAR), None),
        (doctor, world.topic("liver", doctor, HOSPITAL, binding=plain), None),
        (doctor, entries.schema(world.instance, token("heart"), 2, seed("2"), doctor.key), None),
    )
    row = topics.require(bench.state, bound.token)
    assert row[10:] == (world.authority.id, 86_400_000, 0, 500)
    assert len(bench.state.get(topics.TOPICS(plain.token))) == 11
    after = wire.decode(bench.stored[bytes(topics.TOPICS(token("heart")))])
    assert after == [*wire.decode(before)[:6], 2, seed("2"), *wire.decode(before)[8:]]
    assert TopicRow(*after).authority == b""


@pytest.mark.parametrize(
    "ending",
    [
        [[1, 1], 0, []],
        [[0, 0, 0], 0, []],
        [[-1, 0], 0, []],
        [[0, 0], topics.ANCHOR_PACE_MS_MAX + 1, []],
        [[0, 0], 0, [1]],
        [[0, 0], 0, [], 0],
    ],
)
def test_terms_that_make_no_sense_are_refused(bench: Bench, world: World, ending: list[object]) -> None:
    bench.bring_into_force()
    made = wire.decode(world.topic("lungs", world.doctor, HOSPITAL, binding=world.bind("lungs", HOSPITAL)))
    bench.play(
        (world.doctor, wire.encode([*made[:11], *ending]), "malformed"),
        (world.doctor, wire.encode(made), None),
    )


# --- names: at the authority and in its clients ---


class Taken:
    """A topic of acme's that never came to be: a thief of another tenant saw its token first, made a topic of it, and
    lets acme's car write there."""

    def __init__(self, folder: Path) -> None:
        self.world = AuthorityWorld(folder)
        self.owner, self.thief = self.world.tenant("acme"), self.world.tenant("evil")
        self.car = self.world.member("car")
        self.token = self.owner.client.create_topic("brakes", SCHEMA.encode()).token
        own = self.thief.client.create_topic("anything", SCHEMA.encode())
        self.world.act(self.thief, *topic_entries(replace(own, token=self.token), self.thief.holder))
        self.thief.client.propose_schema(self.token, SCHEMA.encode())  # as if a restored store lacked it
        for person in (self.car, self.thief):
            self.world.grant(self.thief, self.token, person, READ | WRITE)

    def bring_into_force(self) -> None:
        height, core = self.world.ledger.height + 2, self.world.authority.core
        with core.store.transaction():
            core.queue([entries.activate(*one, height) for one in newest().items()])
        self.world.authority.work()


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory) -> Taken:
    """For tests that change nothing in it."""
    return Taken(tmp_path_factory.mktemp("taken"))


@pytest.fixture
def taken(tmp_path: Path) -> Taken:
    return Taken(tmp_path)


def test_a_name_does_not_lead_to_the_thief_s_topic(same: Taken) -> None:
    with pytest.raises(Refused) as refused:
        same.car.client.permit(ADVERTISE, "brakes")
    assert refused.value.reason == "unknown-topic"
    assert same.car.client.permit(ADVERTISE, same.token).token == same.token  # who asks for it by token may have it


def test_once_tokens_are_bound_the_name_is_the_tenant_s_again(taken: Taken) -> None:
    world, owner = taken.world, taken.owner
    taken.bring_into_force()
    draft = owner.client.bind_topic("brakes", SCHEMA.encode())
    assert draft == owner.client.bind_topic("brakes", SCHEMA.encode())
    world.act(owner, *topic_entries(draft, owner.holder))
    world.grant(owner, draft.token, taken.car, WRITE)
    assert taken.car.client.permit(ADVERTISE, "brakes").token == draft.token != taken.token
    with pytest.raises(Refused) as refused:
        owner.client.bind_topic("brakes", SCHEMA.encode())
    assert refused.value.reason == "topic-exists"


def test_a_name_of_version_1_is_not_given_twice(tmp_path: Path) -> None:
    world = AuthorityWorld(tmp_path)
    owner = world.tenant("acme")
    token = world.topic(owner, "brakes")
    with pytest.raises(Refused) as refused:
        owner.client.bind_topic("brakes", SCHEMA.encode())
    assert refused.value.reason == "topic-exists"
    world.grant(owner, token, owner, WRITE)
    assert owner.client.permit(ADVERTISE, "brakes").token == token


def test_without_the_tenant_behind_a_name_the_client_still_refuses(same: Taken) -> None:
    with without("the tenant behind a name"), pytest.raises(Forged) as forged:
        same.car.client.permit(ADVERTISE, "brakes")
    assert forged.value.reason == "wrong-tenant"


def test_without_both_the_car_seals_for_the_thief(same: Taken) -> None:
    with without("the tenant behind a name", "the tenant in a grant"):
        grant = same.car.client.permit(ADVERTISE, "brakes")
    stolen = same.thief.client.permit(Operation.SUBSCRIBE, same.token, 1)
    assert grant.token == same.token
    assert grant.epochs[0].number in {number for number, *_ in stolen.private_keys}  # the thief opens it


def test_a_reader_holds_its_permit_to_the_ledger(same: Taken) -> None:
    world = same.world
    view = View(world.ledger, CheckpointMemory(world.trust, SeededDisk(0)), world.clock, 3_600.0)
    permit = Permit.decode(same.car.client.permit(Operation.SUBSCRIBE, same.token).permit)
    check_tenant(view, permit)
    with pytest.raises(Forged) as forged:
        check_tenant(view, replace(permit, tenant=same.owner.holder.tenant))
    assert forged.value.reason == "wrong-tenant"


# --- an authority's answer that lies ---


class Liar:
    """The way to the authority, with somebody in it who alters the drafts that come back."""

    def __init__(self, inner: Any, alter: Callable[[BoundDraft], BoundDraft]) -> None:
        self._inner, self._alter = inner, alter

    def answer(self, ask: Ask[Any], caller: Caller) -> Any:
        answer = self._inner.answer(ask, caller)
        return self._alter(answer) if isinstance(ask, BindTopic) else answer


def lied_to(taken: Taken, alter: Callable[[BoundDraft], BoundDraft]) -> AuthorityClient:
    world, holder = taken.world, taken.owner.holder
    return AuthorityClient(Liar(world.authority, alter), world.authority_certificate, holder, world.entropy)


def other_authority(draft: BoundDraft) -> BoundDraft:
    """All of it made by a thief's own authority."""
    key, identifier = SigningKey.from_seed(seed("thief")), b"thief's authorit"
    binding = entries.bind_topic(bytes(32), draft.tenant, identifier, draft.word, key)
    return replace(draft, **binding._asdict(), token=binding.token)


LIES: dict[str, Callable[[BoundDraft], BoundDraft]] = {
    "a token that is not bound": lambda draft: replace(draft, token=bytes(16)),
    "another word": lambda draft: replace(draft, word=bytes(32)),
    "another word and its token": lambda draft: replace(
        draft, word=bytes(32), token=topics.bound_token(draft.authority, bytes(32))
    ),
    "another tenant": lambda draft: replace(draft, tenant=bytes(16)),
    "no signature": lambda draft: replace(draft, signature=bytes(64)),
    "another authority": other_authority,
    "other partitions": lambda draft: replace(draft, partitions=9),
    "another schema": lambda draft: replace(draft, schema_hash=bytes(32)),
    "other flags": lambda draft: replace(draft, flags=CLEAR),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_draft_that_lies_is_not_signed(same: Taken, lie: str) -> None:
    with pytest.raises(Forged):
        lied_to(same, LIES[lie]).bind_topic("brakes", SCHEMA.encode())


def test_without_the_client_s_check_a_lie_is_signed(same: Taken) -> None:
    """The ledger refuses it then; a client that sealed to such a token before would have sealed for nobody."""
    with without("the client's check of a binding"):
        draft = lied_to(same, LIES["a token that is not bound"]).bind_topic("brakes", SCHEMA.encode())
    assert topic_entries(draft, same.owner.holder)
    assert draft.token == bytes(16)


# --- proofs ---


def proof_of(tenant: bytes, proved: bytes = TENANT) -> tuple[Scene, Proof]:
    """A row that an authority of `tenant` gave leave for, with the ledger's row of the topic, which is `proved`'s."""
    scene = Scene.of()
    authority = certify(scene.world.authority, scene.trust, tenant=tenant)
    permit = scene.world.permit("car", "brakes", tenant=tenant)
    key, value = bytes(topics.TOPICS(permit.token)), wire.encode([proved, bytes(16), 1])
    state = MerkleMap({})
    state.update({key: value, b"topic/another": b"row"})
    note = state_note(scene.trust, state.root)
    row = wire.encode([1, key, value, state.prove(key), note])
    return scene, scene.prove(permit=permit.encode(), authority=authority.encode(), topic=row)


def test_a_proof_shows_whose_topic_it_is() -> None:
    scene, proof = proof_of(TENANT)
    proven = scene.check(proof)
    assert proven.tenant == TENANT
    assert any(TENANT.hex() in said for said in proven.statements)
    assert not any("tenant" in gap for gap in proven.not_proven)


def test_an_older_proof_says_that_the_tenant_is_not_proved() -> None:
    scene, proof = proof_of(TENANT)
    older = replace(proof, topic=None)
    assert wire.decode(older.encode())[0] == 1
    proven = scene.check(older)
    assert proven.tenant is None
    assert any("which tenant's the topic is" in gap for gap in proven.not_proven)


def test_a_thief_s_authority_gives_no_leave_that_a_proof_shows() -> None:
    scene, proof = proof_of(b"the thief's own.")
    with pytest.raises(Forged) as forged:
        scene.check(proof)
    assert forged.value.reason == "wrong-tenant"
    with without("the tenant of a proved topic"):
        assert scene.check(proof).token == proof_of(TENANT)[0].check(proof_of(TENANT)[1]).token


@pytest.mark.parametrize("lie", ["another topic", "another row", "another ledger", "absent"])
def test_a_row_that_the_ledger_does_not_have_proves_nothing(lie: str) -> None:
    scene, proof = proof_of(TENANT)
    version, key, value, path, note = wire.decode(proof.topic or b"")
    altered = {
        "another topic": [version, b"topic/another", value, path, note],
        "another row": [version, key, wire.encode([TENANT, bytes(16), 2]), path, note],
        "another ledger": [version, key, value, path, state_note(scene.trust, bytes(32))],
        "absent": [version, key, None, path, note],
    }[lie]
    with pytest.raises(Refused):
        scene.check(replace(proof, topic=wire.encode(altered)))
