"""Makers of small worlds for tests: an instance, an authority, a topic, publishers and readers, all seeded."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256

import pyarrow as pa

from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey
from tallystick.crypto.symmetric import derive
from tallystick.errors import Refused
from tallystick.parcel.header import TopicRef
from tallystick.parcel.keys import KeyRing, LaneKey
from tallystick.parcel.locks import TopicLock, lock_hash
from tallystick.parcel.seal import Lane
from tallystick.parcel.verify import PermitBook
from tallystick.record.batch import Batch
from tallystick.record.schema import Schema
from tallystick.trust.certificate import ALL_TENANTS, ROOT_ID, Certificate, SubjectKind, subject_id
from tallystick.trust.permit import LAST_EPOCH, Operation, Permit, undo_hash

INSTANCE = sha256(b"instance").digest()
TENANT = b"t" * 16
FAR_FUTURE_MS = 1 << 50
SCHEMA = Schema.parse("vin string, ts timestamp[ms, UTC] not null, speed float32")
GROUPED = Schema.parse("vin string, speed float32, lat float64, lon float64", groups=(("vin", "speed"), ("lat", "lon")))


def seed(name: str) -> bytes:
    return sha256(name.encode()).digest()


def token(name: str) -> bytes:
    return seed(f"token {name}")[:16]


def rows(first: int, count: int, schema: Schema = SCHEMA) -> Batch:
    columns = {
        "vin": pa.array([f"VIN{(first + i) % 7:04}" for i in range(count)]),
        "ts": pa.array([1_700_000_000_000 + first + i for i in range(count)], pa.timestamp("ms", "UTC")),
        "speed": pa.array([float(first + i) for i in range(count)], pa.float32()),
        "lat": pa.array([52.0 + i for i in range(count)]),
        "lon": pa.array([13.0 + i for i in range(count)]),
    }
    return Batch.of(schema, pa.RecordBatch.from_arrays([columns[n] for n in schema.arrow.names], schema=schema.arrow))


@dataclass
class World:
    """One authority, and the key pairs of its topics by (token, epoch)."""

    authority_key: SigningKey = field(default_factory=lambda: SigningKey.from_seed(seed("authority")))
    locks: dict[bytes, bytes] = field(default_factory=dict)
    permits: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def authority(self) -> Certificate:
        raw = self.authority_key.public.raw
        return Certificate(
            INSTANCE, SubjectKind.AUTHORITY, subject_id(INSTANCE, raw), ALL_TENANTS, raw, b"", 0, FAR_FUTURE_MS, ROOT_ID
        ).sign(self.authority_key)

    def topic_key(self, name: str, epoch: int = 1) -> hpke.PrivateKey:
        return hpke.PrivateKey.generate(seed(f"topic key {name} {epoch}"))

    def permit(self, who: str, topic: str, operation: Operation = Operation.ADVERTISE, **changes: object) -> Permit:
        key = SigningKey.from_seed(seed(who))
        values: dict[str, object] = {
            "instance": INSTANCE,
            "identifier": seed(f"permit {who} {topic} {operation}")[:16],
            "operation": operation,
            "token": token(topic),
            "tenant": TENANT,
            "principal": subject_id(INSTANCE, key.public.raw),
            "signing_key": key.public.raw,
            "first_epoch": 1,
            "last_epoch": LAST_EPOCH,
            "not_before_ms": 0,
            "not_after_ms": FAR_FUTURE_MS,
            "authority": self.authority.subject,
            "undo_hash": undo_hash(seed("undo")),
        }
        permit = Permit(**{**values, **changes}).sign(self.authority_key)  # type: ignore[arg-type]
        self.permits[permit.identifier] = permit.encode()
        return permit

    def lane(
        self,
        who: str = "car",
        topics: tuple[str, ...] = ("brakes",),
        *,
        schema: Schema = SCHEMA,
        epoch: int = 1,
        lane: bytes | None = None,
        **options: object,
    ) -> Lane:
        lane = seed(f"lane {who}")[:16] if lane is None else lane
        secret = seed(f"secret {who} {epoch} {lane.hex()}")
        keys = {token(t): (epoch, self.topic_key(t, epoch).public) for t in topics}
        lock = TopicLock.seal(secret, INSTANCE, lane, keys).encode()
        self.locks[lock_hash(lock)] = lock
        signing = SigningKey.from_seed(seed(who))
        refs = [TopicRef(token(t), self.permit(who, t).identifier, epoch) for t in topics]
        refs.sort(key=lambda ref: ref.token)
        permits = [ref.permit for ref in refs]
        return Lane(
            instance=INSTANCE,
            lane=lane,
            topics=tuple(refs),
            schema=schema,
            keys=tuple(
                LaneKey.of([secret], [lock_hash(lock)], instance=INSTANCE, lane=lane, group=group, permits=permits)
                for group in range(len(schema.groups))
            ),
            signing_key=signing,
            identifier_secret=derive(seed(who), "tallystick identifier secret 1"),
            **options,  # type: ignore[arg-type]
        )

    def ring(self, *topics: str, epochs: tuple[int, ...] = (1,)) -> KeyRing:
        ring = KeyRing(lambda name: fetch(self.locks, name))
        for topic in topics:
            for epoch in epochs:
                ring.add_topic_key(token(topic), epoch, self.topic_key(topic, epoch))
        return ring

    def book(self) -> PermitBook:
        return PermitBook(INSTANCE, [self.authority], lambda identifier: fetch(self.permits, identifier))


def fetch(objects: dict[bytes, bytes], name: bytes) -> bytes:
    if name not in objects:
        raise Refused("no such object", reason="unknown")
    return objects[name]


def entropy(number: int) -> bytes:
    return seed(f"entropy {number}")
