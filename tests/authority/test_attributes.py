"""Attributes at the authority: declared, granted, withdrawn, expired; the keys for them, and the attacks on both."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import cbor2
import pytest
from attribute_world import SPACE, declare, give, key_of, space_of, take
from authority_world import Person, World

pytest.importorskip("pymcl", reason="extra policy")

from tallystick import wire
from tallystick.authority.answers import AttributeAnswer, Caller, attribute_commitment, policy_commitment
from tallystick.authority.asks import AskAttributeKey
from tallystick.crypto.abe.capsule import decapsulate, encapsulate
from tallystick.crypto.abe.keys import AttributeKey, AttributePublicKey
from tallystick.errors import CannotOpen, Forged, Misuse, Refused, Unavailable
from tallystick.ledger import entries
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSpace
from tallystick.trust.permit import Operation

HOUR = 3600


@pytest.fixture
def people(world: World) -> tuple[Person, Person, Person]:
    """Owner of acme, who declared attributes, a member of it, and the owner of another tenant."""
    owner, other = world.tenant(), world.tenant("city")
    member = world.member("car")
    declare(owner)
    return owner, member, other


def opens(world: World, key: AttributeKey, text: str, epoch: int, owner: Person) -> bool:
    """Whether the key opens what a publisher would seal under this policy in this epoch."""
    public = AttributePublicKey.decode(world.authority.attribute_epochs.key.public.encode())
    capsule, secret = encapsulate(public, parse(text, space_of(owner)), epoch, b"here", bytes(32))
    try:
        return decapsulate(key, capsule, b"here") == secret
    except CannotOpen:
        return False


# --- declaring ---


def test_a_tenant_declares_its_own_namespace_and_reads_it_back(
    world: World, people: tuple[Person, Person, Person]
) -> None:
    owner, member, other = people
    assert space_of(owner) == AttributeSpace.read(SPACE.format("acme")) == space_of(member)
    with pytest.raises(Refused, match='namespace "city" expected'):
        declare(other, "acme")
    with pytest.raises(Refused, match="declared no attributes"):
        other.client.attribute_space()
    with pytest.raises(Refused, match="only the owner"):
        declare(member)


def test_another_s_attributes_do_not_slip_in_under_the_own_namespace(
    world: World, people: tuple[Person, Person, Person]
) -> None:
    _, _, other = people
    city, acme = AttributeSpace.read(SPACE.format("city")), AttributeSpace.read(SPACE.format("acme"))
    with pytest.raises(Refused, match='namespace "city" expected, found "acme"') as caught:
        other.client.declare_attributes(city.joined(acme).encode())
    assert caught.value.reason == "namespace"


def test_tenants_whose_names_make_one_word_do_not_share_a_namespace(world: World) -> None:
    first, second = world.tenant("a-b"), world.tenant("a_b")
    declare(first, "a_b")
    with pytest.raises(Refused, match="another tenant's"):
        declare(second, "a_b")


def test_a_declaration_grows_and_never_changes_what_locks_rest_on(
    world: World, people: tuple[Person, Person, Person]
) -> None:
    owner, _, _ = people
    declare(owner, more='[trained]\nkind = "flag"\n')
    wider = SPACE.replace('"insurer"]', '"insurer", "police"]')
    owner.client.declare_attributes(AttributeSpace.read(wider.format("acme") + '[trained]\nkind = "flag"\n').encode())
    assert "police" in space_of(owner)["acme.role"].values
    for text in (SPACE, wider, wider.replace("bits = 8", "bits = 16") + '[trained]\nkind = "flag"\n'):
        with pytest.raises(Misuse, match="declared otherwise"):
            owner.client.declare_attributes(AttributeSpace.read(text.format("acme")).encode())


# --- granting ---


def test_what_is_granted_is_held_and_listed_by_name(world: World, people: tuple[Person, Person, Person]) -> None:
    owner, member, other = people
    give(world, owner, member, role="garage", clearance=3)
    give(world, owner, other, role="city")
    mine = [(one.name, one.values) for one in member.client.attributes()]
    assert mine == [("acme.clearance", ("3",)), ("acme.role", ("garage",))]
    assert {(one.principal, one.name) for one in owner.client.attributes()} == {
        (member.id, "acme.clearance"),
        (member.id, "acme.role"),
        (other.id, "acme.role"),
    }
    assert [one.principal for one in owner.client.attributes(other.id)] == [other.id]
    with pytest.raises(Refused, match="lists what others hold"):
        member.client.attributes(other.id)


def test_a_long_list_comes_in_pages_of_whole_principals(world: World, people: tuple[Person, Person, Person]) -> None:
    owner, member, other = people
    world.limits = type(world.limits)(names_max=4)
    world.reopen()
    owner = world.again(owner)
    for person in (owner, member, other):
        give(world, owner, person, role="garage", clearance=3)
    found = [(one.principal, one.name) for one in owner.client.attributes()]
    assert len(found) == len(set(found)) == 6


def test_names_and_values_reach_neither_ledger_nor_the_store_s_pages(
    world: World, people: tuple[Person, Person, Person]
) -> None:
    owner, member, _ = people
    give(world, owner, member, role="garage", clearance=3)
    world.authority.close()
    world.ledger.flush(world.now_ms)
    for file in (world.home / "authority.db", world.folder / "ledger.db"):
        content = file.read_bytes()
        assert not [word for word in (b"garage", b"clearance", b"acme.role") if word in content], file.name
    world.authority = world.open()


def test_two_principals_with_one_attribute_cannot_be_told_on_the_ledger(
    world: World, people: tuple[Person, Person, Person]
) -> None:
    owner, member, other = people
    salt, held = bytes(32), space_of(owner).grant({"role": "garage"})
    pseudonyms = [owner.client.draft_attributes(person.id, held.encode(), salt)[0] for person in (member, other)]
    assert pseudonyms[0] != pseudonyms[1]
    assert attribute_commitment(salt, member.id, "acme.role", ("garage",)) != attribute_commitment(
        salt, other.id, "acme.role", ("garage",)
    )


def test_a_tenant_grants_nothing_in_another_s_namespace(world: World, people: tuple[Person, Person, Person]) -> None:
    _, member, other = people
    declare(other, "city")
    foreign = AttributeSpace.read(SPACE.format("acme")).grant({"role": "garage"})
    with pytest.raises(Misuse, match=r"acme\.role"):
        other.client.draft_attributes(member.id, foreign.encode(), bytes(32))
    with pytest.raises(Misuse, match=r"acme\.role"):
        other.client.attribute_pseudonyms(member.id, ["acme.role"])
    with pytest.raises(Refused, match="only the owner"):
        member.client.draft_attributes(member.id, foreign.encode(), bytes(32))


def test_a_pseudonym_copied_from_another_s_grant_makes_no_key(
    world: World, people: tuple[Person, Person, Person]
) -> None:
    """The city sees acme's grant on the ledger, and writes the same under its own tenant: the ledger takes it, and
    nothing comes of it, neither for the principal nor against acme's grant."""
    owner, member, other = people
    declare(other, "city")
    held, salt = space_of(owner).grant({"role": "garage"}), bytes(32)
    (pseudonym,) = owner.client.draft_attributes(member.id, held.encode(), salt)
    commitment = attribute_commitment(salt, member.id, "acme.role", ("garage",))
    world.act(other, entries.grant_attribute(other.certificate.tenant, member.id, pseudonym, commitment))
    assert member.client.attributes() == []
    assert member.client.attribute_key().identifier == b""
    world.act(owner, entries.grant_attribute(owner.certificate.tenant, member.id, pseudonym, commitment))
    assert len(member.client.attributes()) == 1
    world.act(other, entries.withdraw_attribute(other.certificate.tenant, member.id, pseudonym))
    assert len(member.client.attributes()) == 1


def test_commitments_are_what_the_format_says() -> None:
    """Computed here from the page alone: docs/formats/authority.md, Names."""
    salt, principal, token = b"s" * 32, b"p" * 16, b"t" * 16

    def expected(label: bytes, value: list[object]) -> bytes:
        return sha256(label + b"\x00" + cbor2.dumps(value, canonical=True)).digest()

    label = b"tallystick attribute commitment 1"
    assert attribute_commitment(salt, principal, "a.n", 3) == expected(label, [salt, principal, "a.n", 3])
    assert attribute_commitment(salt, principal, "a.r", ("x", "y")) == expected(
        label, [salt, principal, "a.r", ["x", "y"]]
    )
    found = policy_commitment(salt, token, 1, 2, b"formula")
    assert found == expected(b"tallystick policy commitment 1", [salt, token, 1, 2, b"formula"])


def test_a_draft_counts_when_the_ledger_has_it_and_not_before(
    world: World, people: tuple[Person, Person, Person]
) -> None:
    owner, member, _ = people
    held = space_of(owner).grant({"role": "garage"})
    (pseudonym,) = owner.client.draft_attributes(member.id, held.encode(), bytes(32))
    world.authority.work()
    assert member.client.attributes() == []
    # Nor does it become another value than the one that was committed to.
    wrong = attribute_commitment(bytes(32), member.id, "acme.role", ("insurer",))
    world.act(owner, entries.grant_attribute(owner.certificate.tenant, member.id, pseudonym, wrong))
    assert member.client.attributes() == []


# --- keys ---


def test_a_key_opens_what_its_attributes_satisfy(world: World, people: tuple[Person, Person, Person]) -> None:
    owner, member, _ = people
    assert member.client.attribute_key() == AttributeAnswer(b"", b"", (), 1)
    give(world, owner, member, role="garage", clearance=3)
    key = key_of(member)
    assert opens(world, key, "role::garage && clearance >= 3", 1, owner)
    assert not opens(world, key, "role::insurer", 1, owner)
    assert not opens(world, key, "clearance >= 4", 1, owner)


def test_attributes_of_several_tenants_are_one_key(world: World, people: tuple[Person, Person, Person]) -> None:
    owner, member, other = people
    city = declare(other, "city")
    give(world, owner, member, role="garage")
    give(world, other, member, clearance=9)
    public = world.authority.attribute_epochs.key.public
    formula = parse("acme.role::garage && city.clearance > 8", city.joined(space_of(owner)))
    capsule, secret = encapsulate(public, formula, 1, b"", bytes(32))
    assert decapsulate(key_of(member), capsule, b"") == secret


def test_while_attributes_stay_a_further_epoch_is_one_part(world: World, people: tuple[Person, Person, Person]) -> None:
    owner, member, _ = people
    give(world, owner, member, role="garage")
    first = member.client.attribute_key()
    key = AttributeKey.decode(first.key)
    world.pass_time(25 * HOUR)
    assert not opens(world, key, "role::garage", 2, owner)
    answer = member.client.attribute_key(first.identifier, 2)
    assert (answer.identifier, answer.key, answer.epoch) == (first.identifier, b"", 2)
    assert [(epoch, len(part)) for epoch, part in answer.parts] == [(2, 48)]
    assert opens(world, key.with_epoch(*answer.parts[0]), "role::garage", 2, owner)


def test_who_asks_for_its_key_without_end_is_put_off_and_nobody_else_is(
    world: World, people: tuple[Person, Person, Person]
) -> None:
    owner, member, other = people
    give(world, owner, member, clearance=3)
    give(world, owner, other, clearance=3)
    parts = len(key_of(member).parts) + 1  # and the epoch's
    world.limits = replace(world.limits, attribute_parts_burst=3 * parts, attribute_parts_per_s=1.0)
    world.reopen()
    member, other = world.again(member), world.again(other)
    known = [member.client.attribute_key().identifier for _ in range(3)]
    with pytest.raises(Unavailable, match="too many") as caught:
        member.client.attribute_key()
    assert caught.value.retry_after_s == parts
    assert other.client.attribute_key().key
    world.clock.advance(1)
    assert member.client.attribute_key(known[0]).parts  # a further epoch is one part
    with pytest.raises(Unavailable):
        member.client.attribute_key()
    world.clock.advance(parts)
    assert member.client.attribute_key().key


def test_no_part_of_an_epoch_that_has_not_begun(world: World, people: tuple[Person, Person, Person]) -> None:
    owner, member, _ = people
    give(world, owner, member, role="garage")
    known = member.client.attribute_key().identifier
    assert member.client.attribute_key(known, 2).parts == ()
    assert set(key_of(member, 2).epochs) == set()
    assert set(key_of(member, 1).epochs) == {1}


def test_a_key_reaches_back_as_far_as_is_asked_in_bounded_answers(
    world: World, people: tuple[Person, Person, Person]
) -> None:
    owner, member, _ = people
    world.limits = type(world.limits)(attribute_epochs_max=2)
    world.reopen()
    owner, member = world.again(owner), world.again(member)
    give(world, owner, member, role="garage")
    for _ in range(4):
        world.pass_time(24 * HOUR + 1)
    answer = member.client.attribute_key(b"", 1)
    assert (set(AttributeKey.decode(answer.key).epochs), answer.epoch) == ({1, 2}, 5)
    assert [epoch for epoch, _ in member.client.attribute_key(answer.identifier, 3).parts] == [3, 4]


def test_an_answer_is_for_the_caller_alone(world: World, people: tuple[Person, Person, Person]) -> None:
    """A principal asks for another's key: a request names nobody, and an answer opens for nobody else."""
    owner, member, other = people
    give(world, owner, member, role="garage")
    known = member.client.attribute_key().identifier
    assert other.client.attribute_key(known, 1).identifier == b""
    caller = member.client._caller()
    sealed = world.authority.answer(AskAttributeKey(b"", 0), caller)
    assert AttributeAnswer.decode(_opened(member, caller, sealed)).key
    with pytest.raises(CannotOpen):
        _opened(other, caller, sealed)


def _opened(person: Person, caller: Caller, sealed: bytes) -> bytes:
    return person.client._open(caller, sealed)


# --- withdrawal and expiry ---


def test_a_withdrawal_brings_the_next_epoch_forward_once(world: World, people: tuple[Person, Person, Person]) -> None:
    owner, member, other = people
    give(world, owner, member, role="garage", clearance=1)
    give(world, owner, other, role="city")
    before = world.now_ms
    take(world, owner, member, "role")
    begins = [one.begins_ms for one in world.authority.attribute_epochs.announced()]
    assert before < begins[1] <= world.now_ms + world.settings.revoke_s * 1000
    world.clock.advance(3)
    take(world, owner, other, "role")  # shares the beginning
    assert [one.begins_ms for one in world.authority.attribute_epochs.announced()] == begins
    world.pass_time(world.settings.revoke_s)
    assert world.authority.attribute_epochs.current() == 2
    world.pass_time(HOUR)
    assert world.authority.attribute_epochs.current() == 2


def test_a_withdrawn_attribute_opens_nothing_newer(world: World, people: tuple[Person, Person, Person]) -> None:
    owner, member, _ = people
    give(world, owner, member, role="garage", clearance=3)
    old = member.client.attribute_key()
    held = AttributeKey.decode(old.key)
    take(world, owner, member, "role")
    world.pass_time(world.settings.revoke_s + 1)
    answer = member.client.attribute_key(old.identifier, 2)
    assert answer.identifier != old.identifier
    assert answer.parts == ()  # no part for the key with the lost attribute
    fresh = AttributeKey.decode(answer.key)
    assert opens(world, fresh, "clearance >= 3", 2, owner)
    assert not opens(world, fresh, "role::garage", 2, owner)
    assert not opens(world, held, "role::garage", 2, owner)
    assert opens(world, held, "role::garage", 1, owner)  # what was sealed before is not taken back


def test_old_and_new_key_parts_do_not_mix(world: World, people: tuple[Person, Person, Person]) -> None:
    """The withdrawn trait of the old key, carried over to the new key and its epoch: other randomness."""
    owner, member, _ = people
    give(world, owner, member, role="garage", clearance=3)
    old = key_of(member)
    take(world, owner, member, "role")
    world.pass_time(world.settings.revoke_s + 1)
    new = key_of(member, 2)
    mixed = AttributeKey(new.authority, new.secret, new.randomness, {**new.parts, **old.parts}, new.epochs)
    assert not opens(world, mixed, "role::garage", 2, owner)
    carried = AttributeKey(old.authority, old.secret, old.randomness, old.parts, {**old.epochs, **new.epochs})
    assert not opens(world, carried, "role::garage", 2, owner)
    part = world.authority.attribute_epochs.key.refresh(*_holder_and_traits(member, new), 2)
    with pytest.raises(Forged):
        old.with_epoch(2, part)


def _holder_and_traits(person: Person, key: AttributeKey) -> tuple[bytes, list[bytes]]:
    return person.id + person.certificate.signing_key, list(key.parts)


def test_without_the_epoch_joined_the_withdrawn_attribute_would_open_for_ever(
    world: World, people: tuple[Person, Person, Person]
) -> None:
    """What the epoch stops: a policy that stays in epoch 1 opens to the key from before the withdrawal."""
    owner, member, _ = people
    give(world, owner, member, role="garage")
    old = key_of(member)
    take(world, owner, member, "role")
    world.pass_time(30 * 24 * HOUR)
    assert opens(world, old, "role::garage", 1, owner)
    assert not opens(world, old, "role::garage", world.authority.attribute_epochs.current() or 0, owner)


def test_an_expired_attribute_is_in_no_key_and_ends_the_epoch(
    world: World, people: tuple[Person, Person, Person]
) -> None:
    owner, member, _ = people
    give(world, owner, member, until_ms=world.now_ms + HOUR * 1000, role="garage")
    give(world, owner, member, clearance=3)
    old = member.client.attribute_key()
    world.pass_time(HOUR + 1)
    assert [one.name for one in member.client.attributes()] == ["acme.clearance"]
    assert set(AttributeKey.decode(member.client.attribute_key().key).parts) < set(AttributeKey.decode(old.key).parts)
    world.pass_time(world.settings.revoke_s + 1)
    assert world.authority.attribute_epochs.current() == 2
    assert not opens(world, AttributeKey.decode(old.key), "role::garage", 2, owner)


def test_another_value_ends_the_epoch_and_a_longer_term_does_not(
    world: World, people: tuple[Person, Person, Person]
) -> None:
    owner, member, _ = people
    give(world, owner, member, until_ms=world.now_ms + HOUR * 1000, clearance=9)
    known = member.client.attribute_key().identifier
    give(world, owner, member, until_ms=world.now_ms + 48 * HOUR * 1000, clearance=9)
    world.pass_time(2 * HOUR)
    assert world.authority.attribute_epochs.current() == 1
    assert member.client.attribute_key(known).identifier == known
    give(world, owner, member, clearance=2)
    world.pass_time(world.settings.revoke_s + 1)
    assert world.authority.attribute_epochs.current() == 2
    assert not opens(world, key_of(member), "clearance > 2", 2, owner)


def test_new_keys_of_a_principal_bring_another_attribute_key(
    world: World, people: tuple[Person, Person, Person]
) -> None:
    from tallystick.authority.client import Holder
    from tallystick.crypto import hpke
    from tallystick.crypto.signatures import SigningKey

    owner, member, _ = people
    give(world, owner, member, role="garage")
    stolen = member.client.attribute_key()
    key, sealing = SigningKey.from_seed(world.entropy.bytes(32)), hpke.PrivateKey.generate(world.entropy.bytes(32))
    certificate = member.client.rekey(key, sealing)
    renewed = world.person(Holder(world.instance, member.id, key, sealing, certificate.tenant), certificate)
    answer = renewed.client.attribute_key(stolen.identifier)
    assert answer.identifier != stolen.identifier
    assert answer.key
    world.authority.work()
    world.pass_time(world.settings.revoke_s + 1)
    assert world.authority.attribute_epochs.current() == 2
    assert not opens(world, AttributeKey.decode(stolen.key), "role::garage", 2, owner)


def test_a_revoked_holder_s_key_opens_nothing_newer(world: World, people: tuple[Person, Person, Person]) -> None:
    """Its right to the topic is gone, but it could lend its attribute key to somebody who may read and lacks them."""
    owner, member, _ = people
    nobody = world.member("without attributes")
    give(world, owner, member, role="garage")
    key = key_of(member)
    owner.client.revoke(nobody.id)
    world.authority.work()
    assert world.authority.attribute_epochs.announced()[1].begins_ms > world.now_ms + HOUR * 1000  # it held nothing
    owner.client.revoke(member.id)
    world.authority.work()
    world.pass_time(world.settings.revoke_s + 1)
    assert world.authority.attribute_epochs.current() == 2
    assert opens(world, key, "role::garage", 1, owner)  # as it would, had the epoch gone on
    assert not opens(world, key, "role::garage", 2, owner)


# --- the store edited by hand ---


def test_rows_moved_in_the_store_are_refused(world: World, people: tuple[Person, Person, Person]) -> None:
    owner, member, other = people
    give(world, owner, member, role="insurer")
    give(world, owner, other, clearance=1)
    store = world.authority.core.store
    assert other.client.attribute_key().key
    # The other's row points at the member's content: its own place opens nothing else.
    store.write(
        "UPDATE attributes SET content = (SELECT content FROM attributes WHERE principal = ?) WHERE principal = ?",
        (member.id, other.id),
    )
    with pytest.raises(CannotOpen):
        other.client.attribute_key()


def test_a_row_given_to_another_principal_is_refused(world: World, people: tuple[Person, Person, Person]) -> None:
    owner, member, other = people
    give(world, owner, member, role="insurer")
    world.authority.core.store.write("UPDATE attributes SET principal = ?", (other.id,))
    with pytest.raises(CannotOpen):
        other.client.attribute_key()


def test_an_attribute_brought_back_or_prolonged_in_the_store_makes_no_key(
    world: World, people: tuple[Person, Person, Person]
) -> None:
    """A copy of the row from before the withdrawal, and a later end: the ledger is asked, not the store."""
    owner, member, _ = people
    give(world, owner, member, until_ms=world.now_ms + 1000, role="insurer")
    store = world.authority.core.store
    (row,) = store.rows("SELECT * FROM attributes")
    world.clock.advance(2)
    store.write("UPDATE attributes SET not_after_ms = 0, state = 1")
    assert member.client.attribute_key().identifier == b""
    take(world, owner, member, "role")
    store.write("INSERT INTO attributes VALUES (?, ?, ?, ?, ?, ?, ?)", (*row[:5], 0, 1))
    assert member.client.attribute_key().identifier == b""


def test_a_space_put_under_another_tenant_is_refused(world: World, people: tuple[Person, Person, Person]) -> None:
    _, _, other = people
    world.authority.core.store.write("UPDATE attribute_spaces SET tenant = ?", (other.certificate.tenant,))
    with pytest.raises(CannotOpen):
        other.client.attribute_space()


# --- epochs on the ledger, and grants ---


def test_epochs_are_announced_ahead_when_somebody_declares(world: World) -> None:
    authority = world.authority
    key = b"attribute-epochs/" + authority.certificate.subject
    assert world.ledger.query(lambda state: state.get(key)) is None
    declare(world.tenant())
    assert world.ledger.query(lambda state: state.get(key)) == 1 + world.settings.epochs_ahead
    world.pass_time(25 * HOUR)
    assert world.ledger.query(lambda state: state.get(key)) == 2 + world.settings.epochs_ahead


def test_publishers_get_space_key_and_epochs_and_hear_of_an_earlier_beginning(
    world: World, people: tuple[Person, Person, Person]
) -> None:
    owner, member, other = people
    token = world.topic(owner)
    world.grant(owner, token, other, 6)
    grant = other.client.permit(Operation.ADVERTISE, token)
    assert grant.policies is not None
    assert AttributeSpace.decode(grant.policies.space) == space_of(owner)
    assert AttributePublicKey.decode(grant.policies.public) == world.authority.attribute_epochs.key.public
    assert [number for number, _ in grant.policies.epochs] == list(range(1, 16))
    assert grant.policies.epoch(world.now_ms) == 1
    give(world, owner, member, role="garage")
    take(world, owner, member, "role")
    permit = wire.decode(wire.decode(grant.permit)[0])[2]
    update = other.client.keys(permit, grant.version)
    assert update is not None
    policies = grant.updated(update).policies
    assert policies is not None
    assert policies.space == grant.policies.space
    assert policies.epoch(world.now_ms + world.settings.revoke_s * 1000) == 2
    assert grant.policies.epoch(world.now_ms + world.settings.revoke_s * 1000) == 1


def test_without_attributes_a_grant_has_no_policies(world: World) -> None:
    owner = world.tenant()
    token = world.topic(owner)
    world.grant(owner, token, owner, 7)
    assert owner.client.permit(Operation.ADVERTISE, token).policies is None
    assert owner.client.permit(Operation.SUBSCRIBE, token).policies is None


def test_an_authority_without_the_library_serves_the_rest_and_names_what_is_missing(
    world: World, people: tuple[Person, Person, Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallystick.crypto.abe import group

    owner, member, other = people
    give(world, owner, member, until_ms=world.now_ms + HOUR * 1000, role="garage")
    give(world, owner, other, role="city")
    monkeypatch.setattr(group, "pymcl", None)
    world.reopen()
    owner, member = world.again(owner), world.again(member)
    with pytest.raises(Misuse, match="pymcl"):
        declare(owner)
    token = world.topic(owner)
    world.grant(owner, token, member, 6)
    take(world, owner, other, "role")
    world.pass_time(world.settings.revoke_s + 1)
    assert world.authority.attribute_epochs.current() == 2
    world.pass_time(HOUR)  # what expires ends an epoch too
    world.pass_time(world.settings.revoke_s + 1)
    assert world.authority.attribute_epochs.current() == 3
    assert member.client.permit(Operation.ADVERTISE, token).epochs
