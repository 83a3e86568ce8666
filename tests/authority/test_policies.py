"""Topic policies at the authority: set and lifted by owners, keys for publishers and subscribers, and the attacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyrage
import pytest
from attribute_world import (
    declare,
    give,
    grouped_topic,
    key_of,
    private_half,
    set_policy,
    space_of,
    take,
    topic_policies,
)
from authority_world import Person, World

pytest.importorskip("pymcl", reason="extra policy")

from tallystick.authority.answers import policy_commitment
from tallystick.authority.backup import restore
from tallystick.authority.grant import Grant
from tallystick.client.schemas import held_policy
from tallystick.crypto import hpke
from tallystick.errors import CannotOpen, Misuse, Refused, Unavailable
from tallystick.ledger import entries
from tallystick.policy.parse import parse
from tallystick.policy.show import show
from tallystick.policy.space import AttributeSpace
from tallystick.trust.permit import Operation, Permit

HOUR = 3600
SECRET = b"s" * 32


@pytest.fixture
def scene(world: World) -> tuple[Person, Person, Person, bytes]:
    """The owner of acme with a topic of two groups, a publisher and a subscriber; the subscriber is a garage."""
    owner = world.tenant()
    car, garage = world.member("car"), world.member("garage")
    declare(owner)
    token = grouped_topic(world, owner)
    world.grant(owner, token, car, 6)
    world.grant(owner, token, garage, 5)
    give(world, owner, garage, role="garage")
    return owner, car, garage, token


def refresh(person: Person, grant: Grant) -> Grant:
    update = person.client.keys(Permit.decode(grant.permit).identifier, grant.version)
    return grant if update is None else grant.updated(update)


def sealed_now(world: World, grant: Grant, group: int) -> tuple[int, int, int, bytes]:
    """What a publisher seals under now: place and a secret sealed to the policy's public half."""
    assert grant.policies is not None
    policy = grant.policies.topic_policy(group, world.now_ms)
    assert policy is not None
    return group, policy.version, policy.epoch, hpke.seal(hpke.PublicKey.decode(policy.public), SECRET, b"lane")


def opened(world: World, person: Person, grant: Grant, token: bytes, sealed: tuple[int, int, int, bytes]) -> bytes:
    """What a subscriber with its attribute key makes of it."""
    seed = private_half(world, key_of(person, sealed[2]), token, topic_policies(grant)[sealed[:3]])
    return hpke.open_(hpke.PrivateKey.decode(seed), sealed[3], b"lane")


# --- setting ---


def test_who_satisfies_the_policy_opens_what_publishers_seal(
    world: World, scene: tuple[Person, Person, Person, bytes]
) -> None:
    owner, car, garage, token = scene
    set_policy(world, owner, token, 1, "role::garage")
    published, subscribed = (
        car.client.permit(Operation.ADVERTISE, token),
        garage.client.permit(Operation.SUBSCRIBE, token),
    )
    assert opened(world, garage, subscribed, token, sealed_now(world, published, 1)) == SECRET
    assert published.policies is not None
    assert published.policies.topic_policy(0, world.now_ms) is None


def test_who_does_not_satisfy_it_opens_nothing(world: World, scene: tuple[Person, Person, Person, bytes]) -> None:
    owner, car, garage, token = scene
    set_policy(world, owner, token, 1, "role::insurer")
    published, subscribed = (
        car.client.permit(Operation.ADVERTISE, token),
        garage.client.permit(Operation.SUBSCRIBE, token),
    )
    with pytest.raises(CannotOpen):
        opened(world, garage, subscribed, token, sealed_now(world, published, 1))


def test_publishers_get_public_halves_and_subscribers_capsules(
    world: World, scene: tuple[Person, Person, Person, bytes]
) -> None:
    owner, car, garage, token = scene
    set_policy(world, owner, token, 1, "role::garage")
    publics = topic_policies(car.client.permit(Operation.ADVERTISE, token))
    capsules = topic_policies(garage.client.permit(Operation.SUBSCRIBE, token))
    epochs = range(1, 2 + world.settings.epochs_ahead)
    assert set(publics) == set(capsules) == {(1, 1, epoch) for epoch in epochs}
    assert all(one.public and not one.capsule and not one.sealed_seed for one in publics.values())
    assert all(one.capsule and one.sealed_seed and not one.public for one in capsules.values())
    assert len({one.public for one in publics.values()}) == len(publics)


def test_a_new_version_reaches_publishers_and_counts_at_once(
    world: World, scene: tuple[Person, Person, Person, bytes]
) -> None:
    owner, car, garage, token = scene
    set_policy(world, owner, token, 1, "role::garage")
    published, subscribed = (
        car.client.permit(Operation.ADVERTISE, token),
        garage.client.permit(Operation.SUBSCRIBE, token),
    )
    before = sealed_now(world, published, 1)
    world.clock.advance(1)
    set_policy(world, owner, token, 1, "role::insurer")
    published, subscribed = refresh(car, published), refresh(garage, subscribed)
    after = sealed_now(world, published, 1)
    assert (before[1], after[1]) == (1, 2)
    assert opened(world, garage, subscribed, token, before) == SECRET
    with pytest.raises(CannotOpen):
        opened(world, garage, subscribed, token, after)


def test_a_lifted_policy_is_told_as_such(world: World, scene: tuple[Person, Person, Person, bytes]) -> None:
    owner, car, _, token = scene
    set_policy(world, owner, token, 1, "role::garage")
    published = car.client.permit(Operation.ADVERTISE, token)
    world.clock.advance(1)
    set_policy(world, owner, token, 1, "")
    published = refresh(car, published)
    assert published.policies is not None
    assert published.policies.topic_policy(1, world.now_ms) is None
    assert (1, 2, 0) in topic_policies(published)
    assert owner.client.topic_policies(token) == []


def test_an_epoch_brought_forward_moves_the_policy_s_key_with_it(
    world: World, scene: tuple[Person, Person, Person, bytes]
) -> None:
    owner, car, garage, token = scene
    set_policy(world, owner, token, 1, "role::garage")
    published, subscribed = (
        car.client.permit(Operation.ADVERTISE, token),
        garage.client.permit(Operation.SUBSCRIBE, token),
    )
    old_key = key_of(garage)
    take(world, owner, garage, "role")
    published = refresh(car, published)
    world.pass_time(world.settings.revoke_s + 1)
    sealed = sealed_now(world, published, 1)
    assert sealed[2] == 2
    with pytest.raises(CannotOpen):
        private_half(world, old_key, token, topic_policies(subscribed)[sealed[:3]])


def test_a_subscriber_gets_the_keys_of_what_it_may_read_back_to(
    world: World, scene: tuple[Person, Person, Person, bytes]
) -> None:
    owner, _, garage, token = scene
    set_policy(world, owner, token, 1, "role::garage")
    for _ in range(3):
        world.pass_time(24 * HOUR + 1)
    since_first = garage.client.permit(Operation.SUBSCRIBE, token, 1)
    since_now = garage.client.permit(Operation.SUBSCRIBE, token)
    assert min(topic_policies(since_first)) == (1, 1, 1)
    assert min(topic_policies(since_now)) == (1, 1, 4)


def test_many_keys_come_in_several_answers(world: World, scene: tuple[Person, Person, Person, bytes]) -> None:
    owner, _, garage, token = scene
    world.limits = type(world.limits)(policy_keys_max=20)
    world.reopen()
    owner, garage = world.again(owner), world.again(garage)
    set_policy(world, owner, token, 0, "role::garage")
    world.clock.advance(1)
    set_policy(world, owner, token, 1, "role::garage")
    grant = garage.client.permit(Operation.SUBSCRIBE, token)
    assert len(topic_policies(grant)) == 20
    while (after := refresh(garage, grant)).version != grant.version:
        grant = after
    assert len(topic_policies(grant)) == 2 * (1 + world.settings.epochs_ahead)


def test_the_owner_sees_its_policies_and_nobody_else_does(
    world: World, scene: tuple[Person, Person, Person, bytes]
) -> None:
    owner, car, _, token = scene
    set_policy(world, owner, token, 1, "clearance > 2 && role::garage")
    (told,) = owner.client.topic_policies(token)
    assert (told.group, told.version) == (1, 1)
    read = world.authority.core.ledger.row
    with pytest.raises(Unavailable, match="is not the ledger's newest"):  # one that was replaced, or is to come
        held_policy(read, token, replace(told, version=2))
    policy = parse("role::garage && clearance > 2", space_of(owner))
    assert show(held_policy(read, token, told)) == show(policy)
    with pytest.raises(Refused, match="does not exist"):
        car.client.topic_policies(token)
    with pytest.raises(Refused, match="does not exist"):
        car.client.draft_policy(token, 0, b"", bytes(32))


@pytest.mark.parametrize(
    ("text", "group", "says"),
    [
        ("role::garage && role::insurer", 0, "cannot be satisfied"),
        ("clearance >= 0", 0, "everybody"),
        ("role::garage", 2, "no group 2"),
    ],
)
def test_policies_that_make_no_sense_are_refused(
    world: World, scene: tuple[Person, Person, Person, bytes], text: str, group: int, says: str
) -> None:
    owner, _, _, token = scene
    with pytest.raises(Misuse, match=says):
        set_policy(world, owner, token, group, text)


def test_attributes_that_are_not_declared_so_are_refused(
    world: World, scene: tuple[Person, Person, Person, bytes]
) -> None:
    owner, _, _, token = scene
    texts = {
        'namespace = "acme"\n[clearance]\nkind = "integer"\nbits = 9\n': "clearance > 3",
        'namespace = "acme"\n[level]\nkind = "integer"\nbits = 8\n': "level > 3",
        'namespace = "city"\n[clearance]\nkind = "integer"\nbits = 8\n': "clearance > 3",
    }
    for space, text in texts.items():
        formula = parse(text, AttributeSpace.read(space))
        with pytest.raises(Misuse, match="not declared so"):
            owner.client.draft_policy(token, 0, formula.encode(), bytes(32))


# --- what the ledger shows ---


def test_a_draft_counts_when_its_commitment_is_on_the_ledger(
    world: World, scene: tuple[Person, Person, Person, bytes]
) -> None:
    """A formula that the owner drafted but signed nothing for, or signed another for, never counts."""
    owner, car, _, token = scene
    formula = parse("role::garage", space_of(owner)).encode()
    version = owner.client.draft_policy(token, 1, formula, bytes(32))
    world.authority.work()
    grant = car.client.permit(Operation.ADVERTISE, token)
    assert topic_policies(grant) == {}
    other = policy_commitment(b"x" * 32, token, 1, version, formula)
    world.act(owner, entries.topic_policy(token, 1, version, other))
    policy = topic_policies(refresh(car, grant))[1, 1, 1]
    assert policy.public == b""


def test_a_policy_deleted_from_the_store_does_not_fall_away(
    world: World, scene: tuple[Person, Person, Person, bytes]
) -> None:
    """Without asking the ledger a publisher would be told of no policy, and seal for every subscriber."""
    owner, car, _, token = scene
    set_policy(world, owner, token, 1, "role::garage")
    store = world.authority.core.store
    store.write("DELETE FROM policies")
    store.write("DELETE FROM policy_keys")
    grant = car.client.permit(Operation.ADVERTISE, token)
    assert grant.policies is not None
    policy = grant.policies.topic_policy(1, world.now_ms)
    assert policy is not None
    assert policy.public == b""
    assert [one.version for one in owner.client.topic_policies(token) if not one.formula] == [1]
    world.clock.advance(1)
    set_policy(world, owner, token, 1, "role::garage")
    assert sealed_now(world, refresh(car, grant), 1)[1] == 2


@pytest.mark.parametrize("moved", ["epoch = 3 - epoch", "version = 7", "column_group = 0"])
def test_key_rows_moved_in_the_store_are_refused(
    world: World, scene: tuple[Person, Person, Person, bytes], moved: str
) -> None:
    owner, car, garage, token = scene
    set_policy(world, owner, token, 1, "role::garage")
    store = world.authority.core.store
    store.write("DELETE FROM policy_keys WHERE epoch > 2")
    store.write(f"UPDATE OR REPLACE policy_keys SET {moved}")
    with pytest.raises(CannotOpen):
        garage.client.permit(Operation.SUBSCRIBE, token)
    if "epoch" in moved:
        with pytest.raises(CannotOpen):
            car.client.permit(Operation.ADVERTISE, token)


def test_a_formula_put_in_another_s_place_is_refused(world: World, scene: tuple[Person, Person, Person, bytes]) -> None:
    owner, car, _, token = scene
    set_policy(world, owner, token, 0, "clearance > 1")
    set_policy(world, owner, token, 1, "role::garage")
    store = world.authority.core.store
    store.write("UPDATE policies SET content = (SELECT content FROM policies WHERE column_group = 0), made = 0")
    store.write("DELETE FROM policy_keys")
    with pytest.raises(CannotOpen):
        car.client.permit(Operation.ADVERTISE, token)


# --- restoring ---


@pytest.fixture
def age() -> tuple[str, str]:
    identity = pyrage.x25519.Identity.generate()
    return str(identity.to_public()), str(identity)


def restored(world: World, backup: bytes, identity: str, folder: Path) -> None:
    """The authority's machine is lost; the backup takes its place."""
    world.authority.close()
    restore(backup, identity, folder)
    world.authority = world.open(folder)
    world.authority.work()


def test_a_restored_authority_does_not_serve_an_older_policy(
    world: World, scene: tuple[Person, Person, Person, bytes], age: tuple[str, str], tmp_path: Path
) -> None:
    owner, car, garage, token = scene
    set_policy(world, owner, token, 1, "role::garage || role::insurer")
    backup = world.authority.back_up([age[0]]).data
    world.clock.advance(1)
    set_policy(world, owner, token, 1, "role::insurer")
    restored(world, backup, age[1], tmp_path / "restored")
    owner, car, garage = world.again(owner), world.again(car), world.again(garage)
    grant = car.client.permit(Operation.ADVERTISE, token)
    assert grant.policies is not None
    policy = grant.policies.topic_policy(1, world.now_ms)
    assert policy is not None
    assert (policy.version, policy.public) == (2, b"")
    set_policy(world, owner, token, 1, "role::insurer")
    grant = refresh(car, grant)
    sealed = sealed_now(world, grant, 1)
    assert sealed[1] == 3
    with pytest.raises(CannotOpen):
        opened(world, garage, garage.client.permit(Operation.SUBSCRIBE, token), token, sealed)


def test_a_restored_authority_makes_the_same_keys_again(
    world: World, scene: tuple[Person, Person, Person, bytes], age: tuple[str, str], tmp_path: Path
) -> None:
    """What was sealed after the backup, in an epoch that it does not know, opens after the restore."""
    owner, car, garage, token = scene
    set_policy(world, owner, token, 1, "role::garage")
    backup = world.authority.back_up([age[0]]).data
    published = car.client.permit(Operation.ADVERTISE, token)
    for _ in range(world.settings.epochs_ahead + 3):
        world.pass_time(24 * HOUR + 1)
    published = refresh(car, published)
    sealed = sealed_now(world, published, 1)
    assert sealed[2] > 1 + world.settings.epochs_ahead
    restored(world, backup, age[1], tmp_path / "restored")
    garage = world.again(garage)
    subscribed = garage.client.permit(Operation.SUBSCRIBE, token, 1)
    assert opened(world, garage, subscribed, token, sealed) == SECRET


def test_a_restored_authority_makes_no_key_for_what_was_withdrawn_since(
    world: World, scene: tuple[Person, Person, Person, bytes], age: tuple[str, str], tmp_path: Path
) -> None:
    owner, _, garage, _ = scene
    backup = world.authority.back_up([age[0]]).data
    take(world, owner, garage, "role")
    give(world, owner, garage, clearance=5)
    restored(world, backup, age[1], tmp_path / "restored")
    owner, garage = world.again(owner), world.again(garage)
    assert garage.client.attribute_key().identifier == b""  # nor for what was granted since: its name is lost
    give(world, owner, garage, clearance=5)
    assert [one.name for one in garage.client.attributes()] == ["acme.clearance"]
