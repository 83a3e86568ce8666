"""Policy locks: a secret for whoever holds attributes that satisfy a formula, besides the keys of the topic.

Two forms, which a column group may have both (locks compose by AND):

- of the *topic's policy*: a fresh secret, sealed by HPKE to the public half of the policy's key pair for this group,
  version and attribute epoch (`policy_seed.py`). Sealing and, once the private half is there, opening cost what a topic
  lock costs, whatever the formula.
- of the *publisher's own* policy: the capsule itself, whose secret is the lock's. It needs no authority. `hidden`, the
  capsule lies under a key from the secret of the topic lock that stands before it, padded: node and outsiders then see
  neither formula nor epoch, only about how long they are; subscribers of the topic see both. Clear, everybody does.

Threats. *No attributes, no secret*, pooled keys included: `crypto/abe`. *A lock copied or altered under another
signature*: a capsule's secret is derived over the whole capsule, the lane and the permits, a sealed one over lane and
place, and the lane key over permits and the hashes of all locks besides, so that the copy is noise. *Absurd formulas*:
a capsule is bounded, and is parsed by who holds keys, never by a node.

Left out: that a publisher obeys the topic's policy. It could as well publish the rows in the clear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tallystick import wire
from tallystick.crypto import hpke
from tallystick.crypto.abe.capsule import CAPSULE_BYTES_MAX, Capsule, decapsulate, encapsulate, satisfies
from tallystick.crypto.abe.keys import AttributeKey, AttributePublicKey
from tallystick.crypto.symmetric import derive, unwrap, wrap
from tallystick.errors import CannotOpen
from tallystick.parcel.missing import NotEntitled
from tallystick.parcel.padding import padme
from tallystick.policy.formula import Formula
from tallystick.wire import Fields

POLICY_LOCK = 2
OF_TOPIC = 1
OWN = 2
_PAYLOAD_BYTES_MAX = 64 * 1024  # a capsule of 60 KiB, padded
_SEALED_BYTES_MAX = 2048  # X25519+ML-KEM-768 over 32 bytes takes 1,168


@dataclass(frozen=True)
class TopicPolicyLock:
    instance: bytes
    lane: bytes
    token: bytes
    group: int
    version: int
    epoch: int  # of attributes
    sealed: bytes

    @classmethod
    def seal(
        cls,
        secret: bytes,
        instance: bytes,
        lane: bytes,
        token: bytes,
        group: int,
        version: int,
        epoch: int,
        public: hpke.PublicKey,
    ) -> TopicPolicyLock:
        info = _topic_info(instance, lane, token, group, version, epoch)
        return cls(instance, lane, token, group, version, epoch, hpke.seal(public, secret, info))

    def open(self, private: hpke.PrivateKey) -> bytes:
        info = _topic_info(self.instance, self.lane, self.token, self.group, self.version, self.epoch)
        return hpke.open_(private, self.sealed, info)

    def encode(self) -> bytes:
        place = [self.token, self.group, self.version, self.epoch]
        return wire.encode([1, POLICY_LOCK, self.instance, self.lane, OF_TOPIC, *place, self.sealed])


@dataclass(frozen=True)
class OwnPolicyLock:
    instance: bytes
    lane: bytes
    hidden: bool
    payload: bytes  # the capsule, or the wrapped [capsule, zeros]

    @classmethod
    def seal(
        cls,
        public: AttributePublicKey,
        formula: Formula,
        epoch: int,
        instance: bytes,
        lane: bytes,
        permits: Sequence[bytes],
        entropy: bytes,
        topic_secret: bytes | None = None,
    ) -> tuple[OwnPolicyLock, bytes]:
        """The lock and its secret; hidden under the topic lock's secret if that is given. One entropy is enough: what
        is drawn from it is drawn under labels of its own."""
        capsule, secret = encapsulate(public, formula, epoch, _context(instance, lane, permits), entropy)
        payload = capsule.encode()
        if topic_secret is not None:
            padding = padme(len(payload)) - len(payload)
            plain = wire.encode([payload, bytes(padding)])
            payload = wrap(_hiding_key(topic_secret), plain, _hidden_aad(instance, lane), entropy)
        return cls(instance, lane, topic_secret is not None, payload), secret

    def capsule(self, topic_secret: bytes | None) -> Capsule:
        """Raises `Malformed`, or `CannotOpen` if it is hidden under another secret."""
        return Capsule.decode(self.payload if not self.hidden else self._shown(topic_secret))

    def _shown(self, topic_secret: bytes | None) -> bytes:
        if topic_secret is None:
            raise CannotOpen
        plain = unwrap(_hiding_key(topic_secret), self.payload, _hidden_aad(self.instance, self.lane))
        fields = Fields.parse(plain, "hidden policy", 2)
        return fields.octets(at_most=CAPSULE_BYTES_MAX)

    def open(self, capsule: Capsule, key: AttributeKey | None, permits: Sequence[bytes]) -> bytes:
        """The secret; `NotEntitled` if the key does not satisfy the formula."""
        if key is None or not satisfies(key, capsule):
            raise NotEntitled(capsule.epoch)
        return decapsulate(key, capsule, _context(self.instance, self.lane, permits))

    def encode(self) -> bytes:
        return wire.encode([1, POLICY_LOCK, self.instance, self.lane, OWN, int(self.hidden), self.payload])


def decode_policy_lock(value: list[Any]) -> TopicPolicyLock | OwnPolicyLock:
    """Raises `Malformed`."""
    of_topic = len(value) > 4 and value[4] == OF_TOPIC
    fields = Fields(value, "policy lock", 10 if of_topic else 7)
    fields.version(1)
    fields.number()
    instance, lane = fields.octets(32), fields.octets(16)
    fields.number(OWN, at_least=OF_TOPIC)
    if of_topic:
        return TopicPolicyLock(
            instance,
            lane,
            token=fields.octets(16),
            group=fields.number(255),
            version=fields.number((1 << 32) - 1),
            epoch=fields.number((1 << 32) - 1),
            sealed=fields.octets(at_most=_SEALED_BYTES_MAX),
        )
    return OwnPolicyLock(instance, lane, bool(fields.number(1)), fields.octets(at_most=_PAYLOAD_BYTES_MAX))


def _topic_info(instance: bytes, lane: bytes, token: bytes, group: int, version: int, epoch: int) -> bytes:
    return wire.encode(["tallystick policy lock 1", instance, lane, token, group, version, epoch])


def _context(instance: bytes, lane: bytes, permits: Sequence[bytes]) -> bytes:
    return wire.encode([instance, lane, list(permits)])


def _hiding_key(topic_secret: bytes) -> bytes:
    return derive(topic_secret, "tallystick hidden policy 1")


def _hidden_aad(instance: bytes, lane: bytes) -> bytes:
    return wire.encode(["tallystick hidden policy 1", instance, lane])
