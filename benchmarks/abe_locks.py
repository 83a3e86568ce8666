"""The subject `locks` of `make bench-abe`: what a policy lock costs beside a topic lock, for many publishers.

One topic, one subscriber, N publishers with a lane each, parcels of 512 rows. The peer's lanes have a topic lock, ours
a policy lock of the topic's besides. Ring, policy and locks are open already ("cached"): that is how a lane lives,
which uses one lock for 65,536 parcels. Of 100,000 publishers 1,000 are real and read in turn; the keys of the others
lie in the ring as if they had been opened, so that the ring is as full as it would be. The arms take many short turns:
two per cent is less than what the pace of a virtual machine changes from one tenth of a second to the next.

    policy_lock                      opening a parcel, 1,000 publishers
    policy_lock_1, policy_lock_100000
    policy_lock_seal                 sealing one
    policy_lock_first                the first parcel of each of 1,000 publishers: its locks, and once the policy itself
    policy_lock_first_own            the same where each publisher has a policy of its own: a decapsulation for each
    policy_lock_header_bytes
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count

import harness
import pyarrow as pa

from tallystick.crypto import hpke
from tallystick.crypto.abe.keys import AttributeKey, AttributeMasterKey
from tallystick.crypto.signatures import SigningKey
from tallystick.parcel.header import TopicRef
from tallystick.parcel.keys import KeyRing, LaneKey
from tallystick.parcel.locks import OwnPolicyLock, PolicyPlace, TopicLock, TopicPolicyLock, lock_hash, seal_seed
from tallystick.parcel.open import open_batch
from tallystick.parcel.parcel import VerifiedParcel
from tallystick.parcel.seal import Lane
from tallystick.parcel.verify import verify_own
from tallystick.policy.attribute import category, integer
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSpace
from tallystick.policy.traits import traits_of
from tallystick.record.batch import Batch
from tallystick.record.schema import Schema

SCHEMA = Schema.parse("vin string not null, ts int64 not null, speed float32, rpm float32, lat float64, lon float64")
SPACE = AttributeSpace.of("acme", category("role", ["garage", "insurer", "police"]), integer("clearance", 8))
FORMULA = parse("role in (insurer, police) && clearance >= 3", SPACE)
INSTANCE, TOKEN, PERMIT = sha256(b"instance").digest(), b"t" * 16, b"p" * 16
EPOCH, ROWS, REAL, MANY = 7, 512, 1_000, 100_000
OF_TOPIC, OWN, NONE = "of the topic", "own", "none"


def seed(*parts: object) -> bytes:
    return sha256(repr(parts).encode()).digest()


def batch() -> Batch:
    numbers = range(ROWS)
    columns = [
        pa.array([f"VIN{number % 50:05}" for number in numbers]),
        pa.array([1_700_000_000_000 + 20 * number for number in numbers]),
        pa.array([50 + number % 7 for number in numbers], pa.float32()),
        pa.array([2_000 + number % 90 for number in numbers], pa.float32()),
        pa.array([52.0 + number / 1e5 for number in numbers]),
        pa.array([13.0 + number / 1e5 for number in numbers]),
    ]
    return Batch.of(SCHEMA, pa.RecordBatch.from_arrays(columns, schema=SCHEMA.arrow))


@dataclass
class Arm:
    """A topic with one kind of lock, its publishers, and what its subscriber is given."""

    policy: str
    key: SigningKey = field(default_factory=lambda: SigningKey.from_seed(seed("car")))
    topic_key: hpke.PrivateKey = field(default_factory=lambda: hpke.PrivateKey.generate(seed("topic")))
    master: AttributeMasterKey = field(default_factory=lambda: AttributeMasterKey.generate(seed("attributes")))
    locks: dict[bytes, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._place, policy_seed = PolicyPlace(INSTANCE, TOKEN, 0, 1), seed("policy")
        self._public = hpke.PrivateKey.decode(policy_seed).public
        self._capsule = seal_seed(self.master.public, FORMULA, EPOCH, self._place, policy_seed, seed("capsule"))
        held = SPACE.values({"role": "insurer", "clearance": 5})
        self._held = self.master.issue(b"reader", traits_of(held, SPACE), [EPOCH]).encode()

    def lane(self, number: int) -> Lane:
        name, secret = seed("lane", number)[:16], seed("secret", number)
        locks = [TopicLock.seal(secret, INSTANCE, name, {TOKEN: (1, self.topic_key.public)}).encode()]
        secrets = [secret]
        if self.policy == OF_TOPIC:
            secrets.append(seed("policy secret", number))
            place = (TOKEN, 0, 1, EPOCH)
            locks.append(TopicPolicyLock.seal(secrets[1], INSTANCE, name, *place, self._public).encode())
        elif self.policy == OWN:
            context = (INSTANCE, name, [PERMIT])
            lock, own = OwnPolicyLock.seal(self.master.public, FORMULA, EPOCH, *context, seed("entropy", number))
            secrets.append(own)
            locks.append(lock.encode())
        names = [lock_hash(lock) for lock in locks]
        self.locks.update(zip(names, locks, strict=True))
        key = LaneKey.of(secrets, names, instance=INSTANCE, lane=name, group=0, permits=[PERMIT])
        topics = (TopicRef(TOKEN, PERMIT, 1),)
        return Lane(INSTANCE, name, topics, SCHEMA, (key,), self.key, seed("identifiers"), codec="lz4")

    def parcels(self, publishers: int, rows: Batch) -> list[VerifiedParcel]:
        sealed = [self.lane(number).seal(rows, now_ms=1, entropy=seed(number)) for number in range(publishers)]
        return [verify_own(parcel, [self.key.public]) for parcel in sealed]

    def ring(self) -> KeyRing:
        key = AttributeKey.decode(self._held)
        ring = KeyRing(self.locks.__getitem__, lambda epoch: key)
        ring.add_topic_key(TOKEN, 1, self.topic_key)
        ring.add_policy(self._place, EPOCH, *self._capsule)
        return ring


class Reading:
    """Opens parcels of many publishers in turn, `at_once` a call."""

    def __init__(self, arm: Arm, parcels: Sequence[VerifiedParcel], publishers: int, at_once: int) -> None:
        self._ring, self._parcels, self._at_once = arm.ring(), parcels, at_once
        for one in parcels:
            self._ring.lane_key(one.header, 0)
        names, permits = parcels[0].header.groups[0].locks, (PERMIT,)
        for number in range(len(parcels), publishers):
            place = (seed("lane", number)[:16], 0, tuple(seed(name, number) for name in names), permits)
            self._ring._lane_keys[place] = LaneKey(seed("key", number), place[2])
        self._next = count()

    def __call__(self) -> None:
        for _ in range(self._at_once):
            open_batch(self._parcels[next(self._next) % len(self._parcels)], self._ring, SCHEMA)


def _sealing(arm: Arm, rows: Batch, at_once: int) -> harness.Work:
    lane = arm.lane(0)

    def seal() -> None:
        for number in range(at_once):
            lane.seal(rows, now_ms=1, entropy=seed(number))

    return seal


def _opening_locks(arm: Arm, parcels: Sequence[VerifiedParcel]) -> harness.Work:
    def open_all() -> None:
        ring = arm.ring()
        for one in parcels:
            ring.lane_key(one.header, 0)

    return open_all


def lock_cases() -> Iterator[harness.Case | harness.Figure]:
    rows, at_once = batch(), 25
    ours, peer, own = Arm(OF_TOPIC), Arm(NONE), Arm(OWN)
    mine, theirs, owned = (arm.parcels(REAL, rows) for arm in (ours, peer, own))
    shape = {"unit": "us/parcel", "scale": 1e6, "target": 0.98, "turns": 10}

    def reading(name: str, real: int, publishers: int) -> harness.Case:
        work = (Reading(ours, mine[:real], publishers, at_once), Reading(peer, theirs[:real], publishers, at_once))
        return harness.Case(name, *work, amount=at_once, **shape)  # type: ignore[arg-type]

    yield reading("policy_lock", REAL, REAL)
    yield reading("policy_lock_1", 1, 1)
    yield reading("policy_lock_100000", REAL, MANY)
    sealing = (_sealing(ours, rows, at_once), _sealing(peer, rows, at_once))
    yield harness.Case("policy_lock_seal", *sealing, amount=at_once, **shape)  # type: ignore[arg-type]
    shape = {"amount": REAL, "unit": "us/publisher", "scale": 1e6, "rounds_max": 3}
    topic = _opening_locks(peer, theirs)
    yield harness.Case("policy_lock_first", _opening_locks(ours, mine), topic, **shape)  # type: ignore[arg-type]
    yield harness.Case("policy_lock_first_own", _opening_locks(own, owned), topic, **shape)  # type: ignore[arg-type]
    sizes = [len(one[0].header.encoded) for one in (mine, theirs)]
    yield harness.Figure("policy_lock_header_bytes", *sizes, "bytes")
