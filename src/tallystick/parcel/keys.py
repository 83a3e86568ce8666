"""From locks to keys, and a reader's ring of them. Every label stands in docs/formats/keys.md.

    secrets of the locks ─ HKDF ─► lane key (one per column group)
    lane key, identifier ─ HKDF ─► body key, salt key, commitment
    publisher's secret, entropy, lane, sequence, fingerprint of the plaintext ─ HKDF ─► identifier

AES-GCM alone opens one ciphertext under two keys, so the header carries a commitment to the lane key that is
compared before decryption. A body key serves once: the identifier under which it is derived mixes fresh entropy with
the publisher's own secret and a fingerprint of the plaintext, so a repeated random state (a restored snapshot, a cloned
vehicle) repeats no key unless it repeats the very same parcel. The fingerprint is keyed and never leaves the
derivation: it need only tell apart what others make a publisher seal, and they do not know its key; a publisher that
wanted to repeat a key could do so without finding collisions.

`KeyRing` holds the private halves that a reader was given, and the lane keys it opened with them. A lane key is worth
keeping: opening a lock costs an HPKE decapsulation, and a lane uses one lock for thousands of parcels. So is a refusal:
a lock whose policy the reader's attributes do not satisfy is not tried again until they are others. The caches are
bounded; what falls out is opened again.

Attribute keys are asked for by epoch (`attribute_key`), since a reader learns from a lock which epoch it needs, and
gets a key for one only once it has begun. The private half behind a topic's policy is opened once for each topic,
group, version and attribute epoch, however many publishers seal to it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tallystick.crypto import hpke
from tallystick.crypto.abe.capsule import Capsule, satisfies
from tallystick.crypto.abe.keys import AttributeKey
from tallystick.crypto.symmetric import derive, extract, fingerprint
from tallystick.errors import CannotOpen
from tallystick.parcel.header import Header
from tallystick.parcel.locks import (
    ErasureLock,
    Lock,
    MissingKey,
    NotEntitled,
    OwnPolicyLock,
    PolicyPlace,
    ShareLock,
    TopicLock,
    TopicPolicyLock,
    check_lane,
    decode_lock,
    open_seed,
)

SALT_BYTES = 16
_COUNTER = modes.CTR(bytes(16))
_ZEROS = memoryview(bytes(SALT_BYTES * 8192))  # enough for most parcels, so that none need be made


@dataclass(frozen=True, repr=False)
class LaneKey:
    """The key of one column group of a lane, and the locks (in order) through which readers reach it."""

    key: bytes
    locks: tuple[bytes, ...]

    @classmethod
    def of(
        cls,
        secrets: Sequence[bytes],
        locks: Sequence[bytes],
        *,
        instance: bytes,
        lane: bytes,
        group: int,
        permits: Sequence[bytes],
    ) -> LaneKey:
        """Locks compose by AND: the key hangs on the secret of each, and on their hashes and order.

        And on the permits in the order of the header's topics: guards let nobody use another's, so a publisher that
        copies a body it cannot read into a parcel of its own, with the locks and the lane's name, has copied noise.
        """
        root, who = extract(b"", b"".join(secrets)), b"".join(permits)
        return cls(derive(root, "tallystick lane key 1", instance, lane, group, who, *locks), tuple(locks))


@dataclass(frozen=True, repr=False)
class ParcelKeys:
    """The keys of one column group of one parcel."""

    body_key: bytes
    salt_key: bytes
    commitment: bytes

    @classmethod
    def of(cls, lane_key: LaneKey, sequence: int, identifier: bytes) -> ParcelKeys:
        return cls(
            derive(lane_key.key, "tallystick body key 1", sequence, identifier),
            derive(lane_key.key, "tallystick salt key 1", sequence, identifier),
            derive(lane_key.key, "tallystick commitment 1", sequence, identifier),
        )

    def salts(self, count: int) -> bytes:
        """`count` salts of 16 bytes: the AES-256-CTR key stream of the salt key."""
        size = SALT_BYTES * count
        zeros = _ZEROS[:size] if size <= len(_ZEROS) else bytes(size)
        return Cipher(algorithms.AES(self.salt_key), _COUNTER).encryptor().update(zeros)


@dataclass(frozen=True, repr=False)
class IdentifierKeys:
    """What a publisher names its parcels by."""

    secret: bytes
    fingerprint_key: bytes

    @classmethod
    def of(cls, identifier_secret: bytes) -> IdentifierKeys:
        return cls(identifier_secret, derive(identifier_secret, "tallystick fingerprint key 1"))

    def identifier(self, entropy: bytes, lane: bytes, sequence: int, frames: Sequence[bytes]) -> bytes:
        """16 bytes that no two different parcels share, whatever the state of the random source."""
        plaintext = [fingerprint(self.fingerprint_key, frame) for frame in frames]
        return derive(self.secret, "tallystick identifier 1", entropy, lane, sequence, *plaintext)[:16]


LANE_KEYS_MAX = 131_072  # lanes of a large fleet at once; about 60 MiB

T = TypeVar("T")
_Place = tuple[bytes, int, tuple[bytes, ...], tuple[bytes, ...]]  # lane, group, locks, permits


class LaneKeys(Protocol):
    """Whoever can tell the lane key of a header's group: a reader's ring, or the publisher itself."""

    def lane_key(self, header: Header, group: int) -> LaneKey: ...


class KnownKeys:
    """Lane keys that are at hand, in the place of a ring: a publisher's own, or those of one parcel."""

    def __init__(self, keys: Iterable[tuple[int, LaneKey]]) -> None:
        """Each key comes with the number of its column group."""
        self._keys = {(group, key.locks): key for group, key in keys}

    def lane_key(self, header: Header, group: int) -> LaneKey:
        return self._keys[group, header.groups[group].locks]


def _no_attributes(epoch: int) -> AttributeKey | None:
    return None


class KeyRing:
    def __init__(
        self,
        fetch_lock: Callable[[bytes], bytes],
        attribute_key: Callable[[int], AttributeKey | None] = _no_attributes,
        lane_keys_max: int = LANE_KEYS_MAX,
    ) -> None:
        """`fetch_lock` brings a lock's bytes by its hash, from wherever; they are held to the hash. `attribute_key`
        brings the reader's key, with the part of this attribute epoch where there is one to be had; it is asked for
        every parcel of a closed group, so it remembers."""
        self._fetch_lock, self._attribute_key = fetch_lock, attribute_key
        self._topic_keys: dict[tuple[bytes, int], hpke.PrivateKey] = {}
        self._erasure_keys: dict[tuple[bytes, bytes, int], hpke.PrivateKey] = {}
        self._capsules: dict[tuple[PolicyPlace, int], tuple[bytes, bytes]] = {}
        self._policy_keys: dict[tuple[PolicyPlace, int], hpke.PrivateKey] = {}
        self._shares: OrderedDict[bytes, bytes] = OrderedDict()
        self._lane_keys: OrderedDict[_Place, LaneKey] = OrderedDict()
        self._closed: OrderedDict[_Place, tuple[int, AttributeKey | None]] = OrderedDict()
        self._lane_keys_max = lane_keys_max

    def add_topic_key(self, token: bytes, epoch: int, key: hpke.PrivateKey) -> None:
        self._topic_keys[token, epoch] = key

    def add_policy(self, place: PolicyPlace, epoch: int, capsule: bytes, sealed_seed: bytes) -> None:
        """What a topic's policy takes to open in an attribute epoch."""
        self._capsules[place, epoch] = (capsule, sealed_seed)

    def add_share(self, lock: bytes, secret: bytes) -> None:
        """The secret of a share lock, by the lock's name, once its shares came together."""
        self._shares[lock] = secret
        if len(self._shares) > self._lane_keys_max:
            self._shares.popitem(last=False)

    def add_erasure_key(self, token: bytes, publisher: bytes, period: int, key: hpke.PrivateKey) -> None:
        self._erasure_keys[token, publisher, period] = key

    def forget_erasure_key(self, token: bytes, publisher: bytes, period: int) -> None:
        """Drop a destroyed key, and every lane key, since any may have come from it."""
        self._erasure_keys.pop((token, publisher, period), None)
        self._lane_keys.clear()

    def known_key(self, header: Header, group: int) -> LaneKey | None:
        """The lane key of a group of the header's lane, if it was opened before."""
        place = _place(header, group)
        known = self._lane_keys.get(place)
        if known is not None:
            self._lane_keys.move_to_end(place)
        return known

    def lane_key(self, header: Header, group: int) -> LaneKey:
        """The lane key of a group of the header's lane. Raises `MissingKey` if the ring lacks a key of the topic,
        `NotEntitled` if its attributes do not satisfy a policy, `CannotOpen` for everything else."""
        known = self.known_key(header, group)
        if known is not None:
            return known
        place = _place(header, group)
        _, _, names, permits = place
        self._check_closed(place)
        try:
            secrets = self._secrets(header, group, permits)
        except NotEntitled as refusal:
            _remember(self._closed, place, (refusal.epoch, self._attribute_key(refusal.epoch)), self._lane_keys_max)
            raise
        key = LaneKey.of(secrets, names, instance=header.instance, lane=header.lane, group=group, permits=permits)
        _remember(self._lane_keys, place, key, self._lane_keys_max)
        return key

    def _check_closed(self, place: _Place) -> None:
        """Raises `NotEntitled` where it was raised before, and the attributes are still the same."""
        refused = self._closed.get(place)
        if refused is not None:
            epoch, key = refused
            if self._attribute_key(epoch) is key:
                raise NotEntitled(epoch)
            del self._closed[place]

    def _secrets(self, header: Header, group: int, permits: Sequence[bytes]) -> list[bytes]:
        secrets: list[bytes] = []
        for name in header.groups[group].locks:
            lock = decode_lock(self._fetch_lock(name), name)
            check_lane(lock, header.instance, header.lane)
            secrets.append(self._open(lock, group, permits, secrets))
        return secrets

    def _open(self, lock: Lock, group: int, permits: Sequence[bytes], before: Sequence[bytes]) -> bytes:
        """The secret of a lock; `before` are those of the locks that stand before it, the topic lock's first."""
        match lock:
            case TopicLock():
                return lock.open(self._topic_keys)
            case ErasureLock():
                return lock.open(self._erasure_keys)
            case ShareLock():
                return lock.open(self._shares)
            case TopicPolicyLock():
                return self._open_of_topic(lock, group)
            case OwnPolicyLock():
                capsule = lock.capsule(before[0] if before else None)
                return lock.open(capsule, self._attribute_key(capsule.epoch), permits)

    def _open_of_topic(self, lock: TopicPolicyLock, group: int) -> bytes:
        if lock.group != group:
            raise CannotOpen
        place = PolicyPlace(lock.instance, lock.token, lock.group, lock.version)
        private = self._policy_keys.get((place, lock.epoch))
        if private is None:
            if (place, lock.epoch) not in self._capsules:
                raise MissingKey(lock.token, epoch=lock.epoch)
            private = self._policy_keys[place, lock.epoch] = self._policy_key(place, lock.epoch)
        return lock.open(private)

    def _policy_key(self, place: PolicyPlace, epoch: int) -> hpke.PrivateKey:
        capsule, sealed_seed = self._capsules[place, epoch]
        key = self._attribute_key(epoch)
        if key is None or not satisfies(key, Capsule.decode(capsule)):
            raise NotEntitled(epoch)
        return hpke.PrivateKey.decode(open_seed(key, capsule, sealed_seed, epoch, place))


def _place(header: Header, group: int) -> _Place:
    return header.lane, group, header.groups[group].locks, tuple(topic.permit for topic in header.topics)


def _remember(cache: OrderedDict[_Place, T], place: _Place, value: T, at_most: int) -> None:
    cache[place] = value
    if len(cache) > at_most:
        cache.popitem(last=False)
