"""Lane keys: what a publisher seals under now, the locks that carry it to readers, and how the spool keeps both.

A lane key is refreshed when a topic's epoch changes, or after so many parcels or bytes: it is a fresh secret in a new
topic lock, on an erasable topic a second one in an erasure lock of the current period, and where policies ask for
attributes one more for each of them, which may differ by column group. Locks go to the carrier before the first parcel
that names them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tallystick import wire
from tallystick.client.grants import Held
from tallystick.client.policies import OwnPolicy, draw_policy_locks, policy_state
from tallystick.crypto import aead, hpke
from tallystick.errors import Malformed, Misuse
from tallystick.identity.folder import Identity
from tallystick.parcel.header import Header, LaneRef, ParcelKind, TopicRef
from tallystick.parcel.keys import LaneKey
from tallystick.parcel.locks import ErasureLock, TopicLock, lock_hash
from tallystick.parcel.seal import Lane
from tallystick.record.schema import Schema
from tallystick.runtime.entropy import Entropy

_RECORD_AAD = b"tallystick spool lane 1"


@dataclass(frozen=True, repr=False)
class LaneSecrets:
    """Locks of a lane key, and the keys behind them."""

    locks: tuple[bytes, ...]
    keys: tuple[LaneKey, ...]
    topics: tuple[TopicRef, ...]
    period: int | None
    policies: bytes  # `policy_state` when they were drawn


def draw_secrets(
    identity: Identity,
    lane: bytes,
    grants: list[Held],
    schema: Schema,
    now_ms: int,
    entropy: Entropy,
    own: OwnPolicy | None = None,
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
    return LaneSecrets(tuple(every), tuple(keys), tuple(refs), period, policy_state(grants, schema, own, now_ms))


def open_lane(
    identity: Identity,
    grants: list[Held],
    now_ms: int,
    entropy: Entropy,
    *,
    codec: str,
    continues: LaneRef | None = None,
    own: OwnPolicy | None = None,
) -> tuple[Lane, LaneSecrets]:
    """A new lane of these topics, which share one schema."""
    schema = grants[0].schemas[-1]
    if any(held.schemas[-1].hash != schema.hash for held in grants):
        raise Misuse("the topics of a lane share one schema", hint="use a publisher for each")
    if len({held.is_padded for held in grants}) > 1:
        raise Misuse("a padded topic does not share a lane with one that is not")
    name = entropy.bytes(16)
    secrets = draw_secrets(identity, name, grants, schema, now_ms, entropy, own)
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
            [list(one.locks), [[key.key, list(key.locks)] for key in one.keys], one.period, one.policies]
            for one in self.secrets
        ]
        topics = [[topic.token, topic.permit, topic.epoch] for topic in lane.topics]
        plain = wire.encode(
            [1, lane.lane, topics, lane.schema.encode(), secrets, lane.padded, lane.codec, self.end, self.replaces]
        )
        return aead.wrap(identity.spool_key, plain, _RECORD_AAD, entropy.bytes(32))

    @classmethod
    def decode(cls, identity: Identity, record: bytes, newest: Header | None) -> OwnLane:
        """The lane of a record, going on after its newest parcel."""
        value = wire.decode(aead.unwrap(identity.spool_key, record, _RECORD_AAD), "spooled lane")
        if not isinstance(value, list) or len(value) != 9 or value[0] != 1:
            raise Malformed("spooled lane: version 1 expected", reason="version")
        _, name, topics, schema, kept, padded, codec, end, replaces = value
        refs = tuple(TopicRef(*topic) for topic in topics)
        secrets = [
            LaneSecrets(tuple(locks), tuple(LaneKey(key, tuple(names)) for key, names in keys), refs, period, policies)
            for locks, keys, period, policies in kept
        ]
        lane = _lane(identity, name, Schema.decode(schema), secrets[-1], padded, codec)
        if newest is not None:
            lane.sequence, lane.previous = newest.sequence + 1, newest.hash
        closed = end is not None or (newest is not None and newest.kind is ParcelKind.CLOSE)
        return cls(lane, secrets, end, replaces, closed)
