"""Policies and labels: which attributes readers must hold to open a column group besides the topic's keys, and by which
labels a node tells what they need not be sent.

The topic's owner may ask (a topic policy: the grant has a public half to seal to), and so may the publisher itself
(`OwnPolicy`), from what its grant says of attributes. Neither takes the authority once the grant is there: a car in a
garage goes on. Where both ask, a reader has to satisfy both.

Threat: a lane key that lives longer than the attributes it was sealed for. Every policy is joined with an attribute
epoch, and `policy_state` names everything that a lane key's policy locks depend on: when it differs, the key is drawn
anew before the next parcel.

A reader's side (`AttributeHolder`): its attribute key is asked for when a lock needs it, taken on from epoch to epoch,
and kept in memory only.

A closed column group brings the question up with every parcel, so the authority is asked once for each attribute epoch
and again after `again_s`: attributes may have been granted, or withdrawn, since. While they stay as they are the key at
hand stays the very same object, which is how a key ring knows that what it was refused is still refused.

Clocks differ: a publisher may seal under an epoch that has just begun, or is about to, and the authority not hand out
its part yet. Within `SKEW_MS` of an epoch's beginning its absence is no refusal, it is waited out.

Labels: rows of neighbouring subspaces are sealed together, and their parcel is labelled. Grouping happens when rows are
cut into parcels, labelling when a parcel is sealed, under the epoch of its lane: rows that are sealed again later get
the labels of that epoch. What cannot be labelled (the topic has no labels, the lane has several topics, the code does
not fit the schema, the key of the epoch is not here, the rows are of too many subspaces) is sealed without, and every
subscriber is sent it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import pyarrow as pa

from tallystick import wire
from tallystick.authority.client import AuthorityClient
from tallystick.authority.grant import GrantLabels, GrantPolicies
from tallystick.client.grants import Advertised, Held
from tallystick.crypto import hpke
from tallystick.crypto.abe.capsule import program_for
from tallystick.crypto.abe.group import available, require
from tallystick.crypto.abe.keys import EPOCH_MAX, AttributeKey, AttributePublicKey
from tallystick.errors import Misuse, Unavailable
from tallystick.parcel.header import TopicRef
from tallystick.parcel.labels import Labeller
from tallystick.parcel.policy_lock import OwnPolicyLock, TopicPolicyLock
from tallystick.policy.check import check_policy
from tallystick.policy.formula import Formula
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSpace
from tallystick.policy.topic_code import TopicCode
from tallystick.record.batch import Batch
from tallystick.record.schema import Schema
from tallystick.runtime.clock import Clock
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
    place: tuple[bytes, bytes],
    permits: Sequence[bytes],
    topic_secret: bytes,
    now_ms: int,
    entropy: Entropy,
) -> list[list[Opened]]:
    """The policy locks of each column group, in order, with their secrets; `place` is the instance and the lane."""
    found: list[list[Opened]] = [[] for _ in schema.groups]
    for held in grants:
        for group, locks in enumerate(found):
            asked = None if held.grant.policies is None else held.grant.policies.topic_policy(group, now_ms)
            if asked is None:
                continue
            if not asked.public:
                raise Unavailable(
                    "the authority no longer knows the policy of a column group",
                    hint="the topic's owner sets it again: tally topic policy",
                )
            if len(grants) > 1:
                raise Misuse("a topic with a policy has lanes of its own", hint="publish to it by its own publisher")
            secret, public = entropy.bytes(32), hpke.PublicKey.decode(asked.public)
            where = (*place, held.grant.token, group, asked.version, asked.epoch)
            locks.append((secret, TopicPolicyLock.seal(secret, *where, public).encode()))
    if own is None:
        return found
    by_group, policies = own.by_group(schema), _policies(grants)[0]
    epoch = policies.epoch(now_ms)
    if epoch is None:
        raise Unavailable("no attribute epoch has begun", hint="the authority must be reached for its epochs")
    made: dict[Formula, Opened] = {}
    for formula in dict.fromkeys(by_group.values()):
        drawn, hiding = entropy.bytes(32), topic_secret if own.hidden else None
        lock, secret = OwnPolicyLock.seal(_public(policies.public), formula, epoch, *place, permits, drawn, hiding)
        made[formula] = secret, lock.encode()
    for group, formula in by_group.items():
        found[group].append(made[formula])
    return found


@lru_cache(maxsize=16)
def _public(data: bytes) -> AttributePublicKey:
    """With its tables, which are made once."""
    return AttributePublicKey.decode(data)


log = logging.getLogger(__name__)

SKEW_MS = 10_000


class AttributeHolder:
    def __init__(
        self, authority: AuthorityClient, clock: Clock, again_s: float, begins_ms: Callable[[int], int | None]
    ) -> None:
        """`begins_ms` tells when an attribute epoch begins, as far as that was announced."""
        self._authority, self._clock, self._again_s, self._begins_ms = authority, clock, again_s, begins_ms
        self._identifier = b""
        self._key: AttributeKey | None = None
        self._asked: dict[int, float] = {}  # attribute epoch: when
        self._whole_to, self._whole_at = 0, float("-inf")  # up to which epoch the key has every part, asked for when
        self._told = False

    def key(self, epoch: int) -> AttributeKey | None:
        """Our key, with the part of this attribute epoch where it has begun and we hold any attribute."""
        if not available():
            if not self._told:
                log.warning("columns under policies stay closed: they need pymcl (pip install 'tallystick[policy]')")
            self._told = True
            return None
        now = self._clock.monotonic()
        if now >= self._asked.get(epoch, float("-inf")) + self._again_s:
            try:
                self._ask(epoch)
            except Unavailable:  # what we have still opens what it opened
                if self._key is None or epoch not in self._key.epochs:
                    raise
            self._check_begun(epoch)
            self._asked[epoch] = now
        return self._key

    def whole(self) -> AttributeKey | None:
        """Our key with the part of every epoch that has begun: what a driver lends to those who cannot ask."""
        now = self._clock.monotonic()
        if available() and now >= self._whole_at + self._again_s:
            while True:
                before = self._whole_to
                current = self._ask(before + 1)
                if self._whole_to in (before, current):
                    break
            self._whole_at = now
        return self._key

    def _check_begun(self, epoch: int) -> None:
        begins_ms = self._begins_ms(epoch)
        if self._key is None or epoch in self._key.epochs or begins_ms is None:
            return
        if abs(self._clock.now() * 1000 - begins_ms) < SKEW_MS:
            raise Unavailable(f"attribute epoch {epoch} is only just beginning", retry_after_s=1.0)

    def _ask(self, epoch: int) -> int:
        """The current epoch, and with it our key in the epochs from this one on, as many as one answer has."""
        answer = self._authority.attribute_key(self._identifier, epoch)
        if not answer.identifier:
            self._identifier, self._key, self._whole_to = b"", None, answer.epoch
        elif answer.key:  # another set of attributes: parts of the old key do not fit
            self._identifier, self._key, self._whole_to = answer.identifier, AttributeKey.decode(answer.key), 0
            self._asked.clear()
        else:
            for number, part in answer.parts:
                if self._key is not None and number not in self._key.epochs:
                    self._key = self._key.with_epoch(number, part)
                    self._asked.setdefault(number, self._clock.monotonic())
        while self._key is not None and self._whole_to + 1 in self._key.epochs:
            self._whole_to += 1
        return answer.epoch


class Labelling:
    """One thread may group while another labels."""

    def __init__(self, advertised: Advertised, entropy: Entropy) -> None:
        self._advertised, self._entropy = advertised, entropy
        self._read: tuple[bytes, Any, TopicCode | None] = b"", None, None  # the code as it came, for this schema
        self._labeller: tuple[tuple[bytes, bytes], Labeller] | None = None

    def grouped(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """The batch's rows by subspace, or as they came where the topic has no labels."""
        granted = self._granted
        code = None if granted is None else self._code(granted.code, batch.schema)
        if code is None:
            return [batch]
        groups = code.group(_columns(batch))
        return [batch] if len(groups) == 1 else [batch.take(pa.array(rows)) for rows in groups]

    def labels(self, batch: Batch, topics: Sequence[TopicRef]) -> tuple[bytes, ...]:
        """The labels of a parcel with these rows."""
        granted = self._granted
        if granted is None or len(topics) > 1:
            return ()
        code, key = self._code(granted.code, batch.schema.arrow), dict(granted.keys).get(topics[0].epoch)
        if code is None or key is None:
            return ()
        if self._labeller is None or self._labeller[0] != (granted.code, key):
            self._labeller = (granted.code, key), Labeller(code, key)
        return self._labeller[1].labels(_columns(batch.data), self._entropy.bytes)

    @property
    def _granted(self) -> GrantLabels | None:
        held = self._advertised.held
        return held[0].grant.labels if len(held) == 1 else None

    def _code(self, data: bytes, schema: Any) -> TopicCode | None:
        """What it means over this schema; None where there is nothing to label by."""
        read = self._read
        if read[0] != data or read[1] != schema:
            code = TopicCode.decode(data)
            self._read = read = data, schema, code if code.dimensions and code.fits(schema) else None
        return read[2]


def _columns(batch: pa.RecordBatch) -> dict[str, Any]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))
