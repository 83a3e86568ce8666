"""Grants and lanes: which keys a publisher seals under now, and the locks that carry them.

A lane key is refreshed when a topic's epoch changes, or after so many parcels or bytes: it is a fresh secret in a new
topic lock (and, on an erasable topic, a second one in an erasure lock of the current period). The lock goes to the
carrier before the first parcel that names it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tallystick import wire
from tallystick.authority.grant import Grant, GrantEpoch, GrantErasureKey
from tallystick.client.identity import Identity
from tallystick.crypto import aead, hpke
from tallystick.errors import Malformed, Misuse, Unavailable
from tallystick.ledger.contracts.topics import ERASABLE, PADDED
from tallystick.parcel.header import Header, LaneRef, TopicRef
from tallystick.parcel.keys import LaneKey
from tallystick.parcel.locks import ErasureLock, TopicLock, lock_hash
from tallystick.parcel.seal import Lane
from tallystick.record.schema import Schema
from tallystick.runtime.entropy import Entropy
from tallystick.trust.permit import Permit

_RECORD_AAD = b"tallystick spool lane 1"

# Refusals after which a client asks no more: whoever goes on without the right ends on the blacklist.
RIGHT_REASONS = ("no-right", "unknown-topic", "blacklisted")
RIGHT_HINT = "the topic's owner gives rights: tally right grant; then start again"


@dataclass(frozen=True)
class Held:
    """A grant as its holder keeps it: the first one, with every update folded in."""

    grant: Grant
    permit: Permit
    schemas: tuple[Schema, ...]

    @classmethod
    def of(cls, grant: Grant) -> Held:
        return cls(grant, Permit.decode(grant.permit), tuple(Schema.decode(text) for text in grant.schemas))

    def updated(self, update: Grant) -> Held:
        """Fold an update in: what it names replaces or adds, the rest stays."""
        schemas = tuple(Schema.decode(text) for text in update.schemas) if update.schemas else self.schemas
        return Held(self.grant.updated(update), self.permit, schemas)

    def epoch(self, now_ms: int) -> GrantEpoch:
        """The epoch to seal under now."""
        for one in reversed(self.grant.epochs):
            if one.not_before_ms <= now_ms and (not one.not_after_ms or now_ms < one.not_after_ms):
                return one
        raise Unavailable("no epoch of the topic is current", hint="the authority must be reached for its keys")

    def erasure_key(self, publisher: bytes, now_ms: int) -> GrantErasureKey:
        """The key of this publisher's current period."""
        for one in reversed(self.grant.erasure_keys):
            if one.publisher == publisher and one.not_before_ms <= now_ms < one.not_after_ms:
                return one
        raise Unavailable("no erasure period of the topic is current")

    @property
    def is_erasable(self) -> bool:
        return bool(self.grant.flags & ERASABLE)

    @property
    def is_padded(self) -> bool:
        return bool(self.grant.flags & PADDED)


@dataclass(frozen=True, repr=False)
class LaneSecrets:
    """Locks of a lane key, and the keys behind them."""

    locks: tuple[bytes, ...]
    keys: tuple[LaneKey, ...]
    topics: tuple[TopicRef, ...]
    period: int | None


def draw_secrets(
    identity: Identity, lane: bytes, grants: list[Held], schema: Schema, now_ms: int, entropy: Entropy
) -> LaneSecrets:
    """A fresh lane key for every column group of the lane, under the topics' current epochs."""
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
        locks.append(
            ErasureLock.seal(
                secrets[1], instance, lane, grants[0].grant.token, identity.principal, period, public
            ).encode()
        )
    names = [lock_hash(lock) for lock in locks]
    refs = [TopicRef(held.grant.token, held.permit.identifier, epochs[held.grant.token][0]) for held in grants]
    refs.sort(key=lambda ref: ref.token)
    permits = [ref.permit for ref in refs]
    keys = [
        LaneKey.of(secrets, names, instance=instance, lane=lane, group=group, permits=permits)
        for group in range(len(schema.groups))
    ]
    return LaneSecrets(tuple(locks), tuple(keys), tuple(refs), period)


def open_lane(
    identity: Identity,
    grants: list[Held],
    now_ms: int,
    entropy: Entropy,
    *,
    codec: str,
    continues: LaneRef | None = None,
) -> tuple[Lane, LaneSecrets]:
    """A new lane of these topics, which share one schema."""
    schema = grants[0].schemas[-1]
    if any(held.schemas[-1].hash != schema.hash for held in grants):
        raise Misuse("the topics of a lane share one schema", hint="use a publisher for each")
    if len({held.is_padded for held in grants}) > 1:
        raise Misuse("a padded topic does not share a lane with one that is not")
    name = entropy.bytes(16)
    secrets = draw_secrets(identity, name, grants, schema, now_ms, entropy)
    lane = Lane(
        instance=identity.instance,
        lane=name,
        topics=secrets.topics,
        schema=schema,
        keys=secrets.keys,
        signing_key=identity.signing_key,
        identifier_secret=identity.identifier_secret,
        padded=grants[0].is_padded,
        codec=codec,
        continues=continues,
    )
    return lane, secrets


@dataclass(frozen=True, repr=False)
class KeptLane:
    """A lane as the spool keeps it, under the publisher's own key: with every lane key, the newest last, under which
    parcels may still wait. Parcels from `end` on do not count; `replaces` is the lane whose rows this one holds."""

    lane: Lane
    secrets: list[LaneSecrets]
    end: int | None = None
    replaces: bytes | None = None

    def encode(self, identity: Identity, entropy: Entropy) -> bytes:
        lane = self.lane
        secrets = [
            [list(one.locks), [[key.key, list(key.locks)] for key in one.keys], one.period] for one in self.secrets
        ]
        topics = [[topic.token, topic.permit, topic.epoch] for topic in lane.topics]
        plain = wire.encode(
            [1, lane.lane, topics, lane.schema.encode(), secrets, lane.padded, lane.codec, self.end, self.replaces]
        )
        return aead.wrap(identity.spool_key, plain, _RECORD_AAD, entropy.bytes(32))

    @classmethod
    def decode(cls, identity: Identity, record: bytes, newest: Header | None) -> KeptLane:
        """The lane of a record, going on after its newest parcel."""
        value = wire.decode(aead.unwrap(identity.spool_key, record, _RECORD_AAD), "spooled lane")
        if not isinstance(value, list) or len(value) != 9 or value[0] != 1:
            raise Malformed("spooled lane: version 1 expected", reason="version")
        _, name, topics, schema, kept, padded, codec, end, replaces = value
        refs = tuple(TopicRef(*topic) for topic in topics)
        secrets = [
            LaneSecrets(tuple(locks), tuple(LaneKey(key, tuple(names)) for key, names in keys), refs, period)
            for locks, keys, period in kept
        ]
        lane = Lane(
            instance=identity.instance,
            lane=name,
            topics=refs,
            schema=Schema.decode(schema),
            keys=secrets[-1].keys,
            signing_key=identity.signing_key,
            identifier_secret=identity.identifier_secret,
            padded=padded,
            codec=codec,
        )
        if newest is not None:
            lane.sequence, lane.previous = newest.sequence + 1, newest.hash
        return cls(lane, secrets, end, replaces)
