"""Locks: how the secret behind a lane key reaches those entitled.

A lock is an object of its own, stored once, named by its hash; headers list the locks of each column group. It binds
instance and lane, so a lock copied into another lane yields another lane key and opens nothing there.

- *topic lock* (EventGuard 4.4): the secret, sealed by HPKE to the public half of each topic of the lane in one of
  its epochs; the private half of any one of them opens it. EventGuard hands publishers and subscribers one symmetric
  topic key; with a key pair a publisher opens nothing that another sealed.
- *erasure lock*: on an erasable topic one more secret, sealed to the key pair of (topic, publisher, period), which
  the authority can destroy. A lane of an erasable topic has that topic only, or the readers of its other topics
  would lose their records with it.

- *policy locks*: a secret for whoever holds the attributes that a formula asks for (`policy_lock.py`).

Number 3 (share) belongs to the lock of docs/formats/parcel.md that another carrier brings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tallystick import wire
from tallystick.crypto import hpke
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import CannotOpen, Malformed
from tallystick.parcel.header import TOPICS_MAX
from tallystick.parcel.missing import MissingKey as MissingKey
from tallystick.parcel.policy_lock import POLICY_LOCK, OwnPolicyLock, TopicPolicyLock, decode_policy_lock
from tallystick.wire import Fields

LOCK_BYTES_MAX = 64 * 1024
TOPIC_LOCK = 1
ERASURE_LOCK = 4
_SEALED_BYTES_MAX = 2048  # X25519+ML-KEM-768 over 32 bytes takes 1,168


@dataclass(frozen=True)
class TopicLock:
    instance: bytes
    lane: bytes
    wraps: tuple[tuple[bytes, int, bytes], ...]  # (token, epoch, sealed secret)

    @classmethod
    def seal(
        cls, secret: bytes, instance: bytes, lane: bytes, keys: Mapping[bytes, tuple[int, hpke.PublicKey]]
    ) -> TopicLock:
        """Wrap `secret` once to each topic: `keys` maps token to (epoch, public half)."""
        return cls(
            instance,
            lane,
            tuple(
                (token, epoch, hpke.seal(public, secret, _topic_info(instance, lane, token, epoch)))
                for token, (epoch, public) in sorted(keys.items())
            ),
        )

    def open(self, keys: Mapping[tuple[bytes, int], hpke.PrivateKey]) -> bytes:
        """The secret, by whichever topic key is at hand; `MissingKey` if none is."""
        for token, epoch, sealed in self.wraps:
            private = keys.get((token, epoch))
            if private is not None:
                return hpke.open_(private, sealed, _topic_info(self.instance, self.lane, token, epoch))
        token, epoch, _ = self.wraps[0]
        raise MissingKey(token, epoch=epoch)

    def encode(self) -> bytes:
        return wire.encode([1, TOPIC_LOCK, self.instance, self.lane, [list(wrap) for wrap in self.wraps]])


@dataclass(frozen=True)
class ErasureLock:
    instance: bytes
    lane: bytes
    token: bytes
    publisher: bytes
    period: int
    sealed: bytes

    @classmethod
    def seal(
        cls,
        secret: bytes,
        instance: bytes,
        lane: bytes,
        token: bytes,
        publisher: bytes,
        period: int,
        public: hpke.PublicKey,
    ) -> ErasureLock:
        info = _erasure_info(instance, lane, token, publisher, period)
        return cls(instance, lane, token, publisher, period, hpke.seal(public, secret, info))

    def open(self, keys: Mapping[tuple[bytes, bytes, int], hpke.PrivateKey]) -> bytes:
        private = keys.get((self.token, self.publisher, self.period))
        if private is None:
            raise MissingKey(self.token, publisher=self.publisher, period=self.period)
        info = _erasure_info(self.instance, self.lane, self.token, self.publisher, self.period)
        return hpke.open_(private, self.sealed, info)

    def encode(self) -> bytes:
        return wire.encode(
            [
                1,
                ERASURE_LOCK,
                self.instance,
                self.lane,
                self.token,
                self.publisher,
                self.period,
                self.sealed,
            ]
        )


Lock = TopicLock | ErasureLock | TopicPolicyLock | OwnPolicyLock


def lock_hash(data: bytes) -> bytes:
    """The name of a lock."""
    return named_hash("tallystick lock 1", data)


def decode_lock(data: bytes, expected_hash: bytes | None = None) -> Lock:
    """Parse a lock and, if its name is given, hold it to it."""
    if len(data) > LOCK_BYTES_MAX:
        raise Malformed(f"lock: {len(data)} bytes, at most {LOCK_BYTES_MAX} expected")
    if expected_hash is not None and lock_hash(data) != expected_hash:
        raise Malformed("lock: its bytes do not hash to its name", reason="altered")
    value: Any = wire.decode(data, "lock")
    kind = value[1] if isinstance(value, list) and len(value) > 1 else None
    if kind == TOPIC_LOCK:
        return _decode_topic_lock(Fields(value, "topic lock", 5))
    if kind == POLICY_LOCK:
        return decode_policy_lock(value)
    if kind == ERASURE_LOCK:
        return _decode_erasure_lock(Fields(value, "erasure lock", 8))
    raise Malformed(f"lock: unknown kind {kind!r}", reason="version")


def _decode_topic_lock(fields: Fields) -> TopicLock:
    fields.version(1)
    fields.number()
    instance, lane, wraps = fields.octets(32), fields.octets(16), []
    for item in fields.items(TOPICS_MAX, at_least=1):
        wrap = Fields(item, "topic lock", 3)
        wraps.append((wrap.octets(16), wrap.number((1 << 32) - 1), wrap.octets(at_most=_SEALED_BYTES_MAX)))
    return TopicLock(instance, lane, tuple(wraps))


def _decode_erasure_lock(fields: Fields) -> ErasureLock:
    fields.version(1)
    fields.number()
    return ErasureLock(
        instance=fields.octets(32),
        lane=fields.octets(16),
        token=fields.octets(16),
        publisher=fields.octets(16),
        period=fields.number((1 << 32) - 1),
        sealed=fields.octets(at_most=_SEALED_BYTES_MAX),
    )


def check_lane(lock: Lock, instance: bytes, lane: bytes) -> None:
    """Raise `CannotOpen` for a lock of another lane or instance."""
    if lock.instance != instance or lock.lane != lane:
        raise CannotOpen


def _topic_info(instance: bytes, lane: bytes, token: bytes, epoch: int) -> bytes:
    return wire.encode(["tallystick topic lock 1", instance, lane, token, epoch])


def _erasure_info(instance: bytes, lane: bytes, token: bytes, publisher: bytes, period: int) -> bytes:
    return wire.encode(["tallystick erasure lock 1", instance, lane, token, publisher, period])
