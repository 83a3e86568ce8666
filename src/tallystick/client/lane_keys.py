"""What a publisher seals under: lane keys, the locks that carry them to readers, policies and labels, and how the spool
keeps a lane.

A lane key is refreshed when a topic's epoch changes, or after so many parcels or bytes: it is a fresh secret in a new
topic lock, on an erasable topic a second one in an erasure lock of the current period, where the carrier shares
secrets among its relays another in a share lock, and where policies ask for attributes one more for each of them, which
may differ by column group. Locks go to the carrier before the first parcel that names them.

Policies say which attributes readers must hold to open a column group besides the topic's keys. The topic's owner may
ask (a topic policy: the grant has a public half to seal to), and so may the publisher itself (`OwnPolicy`), from what
its grant says of attributes. Neither takes the authority once the grant is there: a car in a garage goes on. Where both
ask, a reader has to satisfy both.

Threat: a lane key that lives longer than the attributes it was sealed for. Every policy is joined with an attribute
epoch, and `policy_state` names everything that a lane key's policy locks depend on: when it differs, the key is drawn
anew before the next parcel.

Labels: rows of neighbouring subspaces are sealed together, and their parcel is labelled. Grouping happens when rows are
cut into parcels, labelling when a parcel is sealed, under the epoch of its lane: rows that are sealed again later get
the labels of that epoch. What cannot be labelled (the topic has no labels, the lane has several topics, the code does
not fit the schema, the key of the epoch is not here, the rows are of too many subspaces) is sealed without, and every
subscriber is sent it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import pyarrow as pa

from tallystick import wire
from tallystick.authority.grant import GrantLabels, GrantPolicies
from tallystick.carriers.carrier import DrawnShare, Sharing
from tallystick.client.grants import Advertised, Held
from tallystick.crypto import hpke
from tallystick.crypto.abe.capsule import program_for
from tallystick.crypto.abe.group import require
from tallystick.crypto.abe.keys import EPOCH_MAX, AttributePublicKey
from tallystick.crypto.symmetric import unwrap, wrap
from tallystick.errors import Malformed, Misuse, Unavailable
from tallystick.identity.folder import Identity
from tallystick.parcel.header import Header, LaneRef, ParcelKind, TopicRef
from tallystick.parcel.keys import KnownKeys, LaneKey
from tallystick.parcel.labels import Labeller
from tallystick.parcel.locks import ErasureLock, OwnPolicyLock, TopicLock, TopicPolicyLock, lock_hash
from tallystick.parcel.open import open_batch
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.seal import Lane
from tallystick.parcel.verify import verify_own
from tallystick.policy.check import check_policy
from tallystick.policy.formula import Formula
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSpace
from tallystick.policy.topic_code import TopicCode
from tallystick.record.batch import Batch
from tallystick.record.schema import Schema
from tallystick.runtime.sources import Entropy

_RECORD_AAD = b"tallystick spool lane 1"

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
        """The policy that the text means in the attribute space of the publisher's grants, or None for no text. Raises
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

    def for_routing(self, schema: Schema, grants: Sequence[Held]) -> bytes:
        """What whoever opens anything satisfies, encoded, for a carrier that brings it to nobody else. Empty where some
        groups ask for less than others, where it is hidden, or where it names what other tenants grant: then all who
        match get it, and the locks decide."""
        asked = self.by_group(schema)
        if self.hidden or len(asked) < len(schema.groups) or len(set(asked.values())) > 1:
            return b""
        formula, own = asked[0], _space(grants).namespace
        return formula.encode() if all(one.namespace == own for one in formula.space.attributes) else b""

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
    """What policy locks drawn now would depend on, empty where there would be none."""
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


class LaneShare(NamedTuple):
    """Of the share lock of a lane key: under which plan, since when, and whether relays have its shares. What is sealed
    under one that they have not is never sent: it is sealed again when they are there."""

    plan: int
    created_ms: int
    given: bool

    @classmethod
    def of(cls, drawn: DrawnShare | None) -> LaneShare | None:
        return None if drawn is None else cls(drawn.plan, drawn.created_ms, drawn.given)


@dataclass(frozen=True, repr=False)
class LaneSecrets:
    """Locks of a lane key, and the keys behind them."""

    locks: tuple[bytes, ...]
    keys: tuple[LaneKey, ...]
    topics: tuple[TopicRef, ...]
    period: int | None
    policies: bytes  # `policy_state` when they were drawn
    share: LaneShare | None = None

    @property
    def is_held_back(self) -> bool:
        return self.share is not None and not self.share.given


def draw_secrets(
    identity: Identity,
    lane: bytes,
    grants: list[Held],
    schema: Schema,
    now_ms: int,
    entropy: Entropy,
    own: OwnPolicy | None = None,
    sharing: Sharing | None = None,
) -> LaneSecrets:
    """A fresh lane key for every column group of the lane, under the topics' current epochs and policies."""
    instance = identity.instance
    current = {held.grant.token: held.epoch(now_ms) for held in grants}
    epochs = {token: (one.number, hpke.PublicKey.decode(one.public)) for token, one in current.items()}
    secrets, period = [entropy.bytes(32)], None
    locks = [TopicLock.seal(secrets[0], instance, lane, epochs).encode()]
    if any(held.is_erasable for held in grants):
        if len(grants) > 1:
            raise Misuse("an erasable topic has lanes of its own", hint="publish to it by a publisher of its own")
        erasure = grants[0].erasure_key(identity.principal, now_ms)
        period, public = erasure.period, hpke.PublicKey.decode(erasure.key)
        secrets.append(entropy.bytes(32))
        place = (grants[0].grant.token, identity.principal, period)
        locks.append(ErasureLock.seal(secrets[1], instance, lane, *place, public).encode())
    drawn = None if sharing is None else sharing.draw(instance, lane, list(epochs), now_ms)
    if drawn is not None:
        secrets.append(drawn.secret)
        locks.append(drawn.lock)
    refs = [TopicRef(held.grant.token, held.permit.identifier, epochs[held.grant.token][0]) for held in grants]
    refs.sort(key=lambda ref: ref.token)
    permits = [ref.permit for ref in refs]
    closing = draw_policy_locks(grants, schema, own, (instance, lane), permits, secrets[0], now_ms, entropy)
    keys = []
    for group, more in enumerate(closing):
        names = [lock_hash(lock) for lock in (*locks, *(lock for _, lock in more))]
        opened = [*secrets, *(secret for secret, _ in more)]
        keys.append(LaneKey.of(opened, names, instance=instance, lane=lane, group=group, permits=permits))
    every = dict.fromkeys([*locks, *(lock for more in closing for _, lock in more)])
    state = policy_state(grants, schema, own, now_ms)
    return LaneSecrets(tuple(every), tuple(keys), tuple(refs), period, state, LaneShare.of(drawn))


def open_lane(
    identity: Identity,
    grants: list[Held],
    now_ms: int,
    entropy: Entropy,
    *,
    codec: str,
    continues: LaneRef | None = None,
    own: OwnPolicy | None = None,
    sharing: Sharing | None = None,
) -> tuple[Lane, LaneSecrets]:
    """A new lane of these topics, which share one schema."""
    schema = grants[0].schemas[-1]
    if any(held.schemas[-1].hash != schema.hash for held in grants):
        raise Misuse("the topics of a lane share one schema", hint="use a publisher for each")
    if len({held.is_padded for held in grants}) > 1:
        raise Misuse("a padded topic does not share a lane with one that is not")
    name = entropy.bytes(16)
    secrets = draw_secrets(identity, name, grants, schema, now_ms, entropy, own, sharing)
    lane = _lane(identity, name, schema, secrets, grants[0].is_padded, codec)
    lane.continues = continues
    return lane, secrets


def _lane(identity: Identity, name: bytes, schema: Schema, secrets: LaneSecrets, padded: bool, codec: str) -> Lane:
    """The identity's lane of this name, which seals under these secrets."""
    return Lane(
        instance=identity.instance,
        lane=name,
        topics=secrets.topics,
        schema=schema,
        keys=secrets.keys,
        signing_key=identity.signing_key,
        identifier_secret=identity.identifier_secret,
        padded=padded,
        codec=codec,
    )


@dataclass(repr=False)
class OwnLane:
    """A publisher's lane, with every lane key, the newest last, under which parcels may still wait."""

    lane: Lane
    secrets: list[LaneSecrets]
    end: int | None = None  # parcels from here on do not count: refused for good, or sealed again elsewhere
    replaces: bytes | None = None  # the lane whose rows were sealed again in this one
    closed: bool = False  # takes nothing new
    parcels: int = 0  # under the present key
    size_bytes: int = 0

    def encode(self, identity: Identity, entropy: Entropy) -> bytes:
        """As the spool keeps it, under the publisher's own key."""
        lane = self.lane
        secrets = [
            [
                list(one.locks),
                [[key.key, list(key.locks)] for key in one.keys],
                one.period,
                one.policies,
                *([] if one.share is None else [list(one.share)]),
            ]
            for one in self.secrets
        ]
        topics = [[topic.token, topic.permit, topic.epoch] for topic in lane.topics]
        plain = wire.encode(
            [1, lane.lane, topics, lane.schema.encode(), secrets, lane.padded, lane.codec, self.end, self.replaces]
        )
        return wrap(identity.spool_key, plain, _RECORD_AAD, entropy.bytes(32))

    @classmethod
    def decode(cls, identity: Identity, record: bytes, newest: Header | None) -> OwnLane:
        """The lane of a record, going on after its newest parcel."""
        value = wire.decode(unwrap(identity.spool_key, record, _RECORD_AAD), "spooled lane")
        if not isinstance(value, list) or len(value) != 9 or value[0] != 1:
            raise Malformed("spooled lane: version 1 expected", reason="version")
        _, name, topics, schema, kept, padded, codec, end, replaces = value
        refs = tuple(TopicRef(*topic) for topic in topics)
        secrets = [
            LaneSecrets(
                tuple(locks),
                tuple(LaneKey(key, tuple(names)) for key, names in keys),
                refs,
                period,
                policies,
                *(LaneShare(*one) for one in share),
            )
            for locks, keys, period, policies, *share in kept
        ]
        lane = _lane(identity, name, Schema.decode(schema), secrets[-1], padded, codec)
        if newest is not None:
            lane.sequence, lane.previous = newest.sequence + 1, newest.hash
        closed = end is not None or (newest is not None and newest.kind is ParcelKind.CLOSE)
        return cls(lane, secrets, end, replaces, closed)

    @property
    def ring(self) -> KnownKeys:
        """The keys that open its parcels."""
        return KnownKeys(key for one in self.secrets for key in enumerate(one.keys))

    def is_held_back(self, header: Header) -> bool:
        """Whether a parcel of the lane was sealed under a share lock that relays have no shares of."""
        if not header.groups:
            return False
        names = header.groups[0].locks
        return any(one.is_held_back for one in self.secrets if one.keys[0].locks == names)

    def rows_of(self, parcel: Parcel, identity: Identity) -> int:
        """How many rows a parcel of the lane holds. With padding on, its body says so, which must be opened."""
        if parcel.header.kind is not ParcelKind.DATA or not parcel.header.padded:
            return parcel.header.count
        return open_batch(verify_own(parcel, identity.own_keys), self.ring, self.lane.schema, fast=True).rows


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
        """What it means over this schema, or None where there is nothing to label by."""
        read = self._read
        if read[0] != data or read[1] != schema:
            code = TopicCode.decode(data)
            self._read = read = data, schema, code if code.dimensions and code.fits(schema) else None
        return read[2]


def _columns(batch: pa.RecordBatch) -> dict[str, Any]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))
