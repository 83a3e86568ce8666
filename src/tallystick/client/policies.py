"""Policies, a publisher's side: which attributes readers must hold to open a column group, besides the topic's keys.

The topic's owner may ask (a topic policy: the grant has a public half to seal to), and so may the publisher itself
(`OwnPolicy`), from what its grant says of attributes. Neither takes the authority once the grant is there: a car in a
garage goes on. Where both ask, a reader has to satisfy both.

Threat: a lane key that lives longer than the attributes it was sealed for. Every policy is joined with an attribute
epoch, and `policy_state` names everything that a lane key's policy locks depend on: when it differs, the key is drawn
anew before the next parcel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

from tallystick import wire
from tallystick.authority.grant import GrantPolicies
from tallystick.client.keeper import Held
from tallystick.crypto import hpke
from tallystick.crypto.abe.capsule import program_for
from tallystick.crypto.abe.group import require
from tallystick.crypto.abe.keys import EPOCH_MAX, PublicKey
from tallystick.errors import Misuse, Unavailable
from tallystick.parcel.policy_lock import OwnPolicyLock, TopicPolicyLock
from tallystick.policy.check import check_policy
from tallystick.policy.formula import Formula
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSpace
from tallystick.record.schema import Schema
from tallystick.runtime.entropy import Entropy

PolicyText = str | Mapping[str, str]  # for all column groups, or by column

Opened = tuple[bytes, bytes]  # the secret, the lock


@dataclass(frozen=True)
class OwnPolicy:
    """What a publisher itself asks of readers, checked: a formula for every group, or formulas by column."""

    everywhere: Formula | None
    by_column: Mapping[str, Formula]
    hidden: bool

    @classmethod
    def of(cls, policy: PolicyText | None, hidden: bool, grants: Sequence[Held], schema: Schema) -> OwnPolicy | None:
        """The policy that the text means in the attribute space of the publisher's grants; None for no text. Raises
        `Misuse`: with the position of a mistake, for what nobody or everybody satisfies, for a column's group that
        would have two."""
        if not policy:
            return None
        require()
        space = _space(grants)
        if isinstance(policy, str):
            return cls(_read(policy, space), {}, hidden)
        own = cls(None, {column: _read(text, space) for column, text in policy.items()}, hidden)
        own.by_group(schema)
        return own

    def by_group(self, schema: Schema) -> dict[int, Formula]:
        """Each group's formula, where it has one."""
        if self.everywhere is not None:
            return dict.fromkeys(range(len(schema.groups)), self.everywhere)
        group_of = {column: number for number, group in enumerate(schema.groups) for column in group}
        found: dict[int, Formula] = {}
        for column, formula in self.by_column.items():
            if column not in group_of:
                raise Misuse(f'policy: the topic has no column "{column}"')
            if found.setdefault(group_of[column], formula) != formula:
                raise Misuse(
                    f'policy: column "{column}" shares its group with one that has another policy',
                    hint="columns are closed by groups, which the topic's owner chose: give the group one policy",
                )
        return found


def _read(text: str, space: AttributeSpace) -> Formula:
    formula = parse(text, space, "policy")
    check_policy(formula)
    program_for(formula, EPOCH_MAX)  # of too many rows: said now, and not when the first parcel is sealed
    return formula


def _space(grants: Sequence[Held]) -> AttributeSpace:
    spaces = [AttributeSpace.decode(one.space) for one in _policies(grants)]
    if not spaces:
        raise Misuse(
            "the authority knows of no attributes that a policy could name",
            hint="declare some: tally attribute declare",
        )
    return reduce(AttributeSpace.joined, spaces)


def _policies(grants: Sequence[Held]) -> list[GrantPolicies]:
    return [held.grant.policies for held in grants if held.grant.policies is not None]


def policy_state(grants: Sequence[Held], schema: Schema, own: OwnPolicy | None, now_ms: int) -> bytes:
    """What policy locks drawn now would depend on; empty where there would be none."""
    policies = _policies(grants)
    if not policies:
        return b""
    groups = range(len(schema.groups))
    asked = [one.topic_policy(group, now_ms) for one in policies for group in groups]
    of_topic = [None if one is None else [one.version, one.epoch] for one in asked]
    if own is None:
        return wire.encode(of_topic) if any(of_topic) else b""
    formulas = [[group, formula.encode()] for group, formula in sorted(own.by_group(schema).items())]
    return wire.encode([of_topic, formulas, own.hidden, policies[0].epoch(now_ms)])


def draw_policy_locks(
    grants: Sequence[Held],
    schema: Schema,
    own: OwnPolicy | None,
    instance: bytes,
    lane: bytes,
    permits: Sequence[bytes],
    topic_secret: bytes,
    now_ms: int,
    entropy: Entropy,
) -> list[list[Opened]]:
    """The policy locks of each column group, in order, with their secrets."""
    found: list[list[Opened]] = [[] for _ in schema.groups]
    for held in grants:
        for group, locks in enumerate(found):
            lock = _of_topic(held, group, instance, lane, now_ms, entropy)
            if lock is not None:
                if len(grants) > 1:
                    raise Misuse(
                        "a topic with a policy has lanes of its own", hint="publish to it by its own publisher"
                    )
                locks.append(lock)
    if own is not None:
        made: dict[Formula, Opened] = {}
        hiding = topic_secret if own.hidden else None
        for group, formula in own.by_group(schema).items():
            if formula not in made:
                made[formula] = _own(grants, formula, instance, lane, permits, hiding, now_ms, entropy)
            found[group].append(made[formula])
    return found


def _of_topic(
    held: Held, group: int, instance: bytes, lane: bytes, now_ms: int, entropy: Entropy
) -> tuple[bytes, bytes] | None:
    asked = None if held.grant.policies is None else held.grant.policies.topic_policy(group, now_ms)
    if asked is None:
        return None
    if not asked.public:
        raise Unavailable(
            "the authority no longer knows the policy of a column group",
            hint="the topic's owner sets it again: tally topic policy",
        )
    secret, public = entropy.bytes(32), hpke.PublicKey.decode(asked.public)
    place = (held.grant.token, group, asked.version, asked.epoch)
    return secret, TopicPolicyLock.seal(secret, instance, lane, *place, public).encode()


def _own(
    grants: Sequence[Held],
    formula: Formula,
    instance: bytes,
    lane: bytes,
    permits: Sequence[bytes],
    hiding: bytes | None,
    now_ms: int,
    entropy: Entropy,
) -> Opened:
    policies = _policies(grants)[0]
    epoch = policies.epoch(now_ms)
    if epoch is None:
        raise Unavailable("no attribute epoch has begun", hint="the authority must be reached for its epochs")
    public, drawn = _public(policies.public), entropy.bytes(32)
    lock, secret = OwnPolicyLock.seal(public, formula, epoch, instance, lane, permits, drawn, hiding)
    return secret, lock.encode()


@lru_cache(maxsize=16)
def _public(data: bytes) -> PublicKey:
    """With its tables, which are made once."""
    return PublicKey.decode(data)
