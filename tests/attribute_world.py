"""A world of the authority with attributes: two tenants that declare, grant, withdraw and set policies."""

from __future__ import annotations

from typing import Any

from authority_world import Person, World

from tallystick.authority.client import grant_entries, policy_entry, topic_entries, withdraw_entries
from tallystick.authority.grant import Grant, GrantTopicPolicy
from tallystick.crypto.abe.keys import AttributeKey
from tallystick.parcel.locks import PolicyPlace, open_seed
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSpace
from tallystick.record.schema import Schema

SPACE = """
namespace = "{}"
[role]
kind = "category"
values = ["city", "garage", "insurer"]
[clearance]
kind = "integer"
bits = 8
"""
GROUPED = Schema.parse(
    "vin string not null, speed float32, lat float64, lon float64", groups=[["vin", "speed"], ["lat", "lon"]]
)


def declare(owner: Person, namespace: str = "acme", more: str = "") -> AttributeSpace:
    space = AttributeSpace.read(SPACE.format(namespace) + more)
    owner.client.declare_attributes(space.encode())
    return space


def space_of(owner: Person) -> AttributeSpace:
    return AttributeSpace.decode(owner.client.attribute_space())


def give(world: World, owner: Person, person: Person, until_ms: int = 0, **values: Any) -> None:
    held, salt = space_of(owner).grant(values), world.entropy.bytes(32)
    tenant = owner.certificate.tenant
    world.act(owner, *grant_entries(owner.client, tenant, person.id, held, salt, until_ms))


def take(world: World, owner: Person, person: Person, *names: str) -> None:
    world.act(owner, *withdraw_entries(owner.client, owner.certificate.tenant, person.id, list(names)))


def set_policy(world: World, owner: Person, token: bytes, group: int, text: str) -> None:
    formula = parse(text, space_of(owner)) if text else None
    world.act(owner, policy_entry(owner.client, token, group, formula, world.entropy.bytes(32)))


def grouped_topic(world: World, owner: Person, name: str = "drives") -> bytes:
    """A topic of two column groups."""
    draft = owner.client.create_topic(name, GROUPED.encode())
    world.act(owner, *topic_entries(draft, owner.holder))
    return draft.token


def key_of(person: Person, first: int = 0) -> AttributeKey:
    return AttributeKey.decode(person.client.attribute_key(b"", first).key)


def private_half(world: World, key: AttributeKey, token: bytes, policy: GrantTopicPolicy) -> bytes:
    """What a subscriber opens a topic policy to."""
    place = PolicyPlace(world.instance, token, policy.group, policy.version)
    return open_seed(key, policy.capsule, policy.sealed_seed, policy.epoch, place)


def topic_policies(grant: Grant) -> dict[tuple[int, int, int], GrantTopicPolicy]:
    assert grant.policies is not None
    return {(one.group, one.version, one.epoch): one for one in grant.policies.topics}
