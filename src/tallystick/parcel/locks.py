"""Locks: how the secret behind a lane key reaches those entitled.

A lock is an object of its own, stored once, named by its hash; headers list the locks of each column group. It binds
instance and lane, so a lock copied into another lane yields another lane key and opens nothing there.

- *topic lock* (EventGuard 4.4): the secret, sealed by HPKE to the public half of each topic of the lane in one of
  its epochs; the private half of any one of them opens it. EventGuard hands publishers and subscribers one symmetric
  topic key; with a key pair a publisher opens nothing that another sealed.
- *erasure lock*: on an erasable topic one more secret, sealed to the key pair of (topic, publisher, period), which
  the authority can destroy. A lane of an erasable topic has that topic only, or the readers of its other topics
  would lose their records with it.
- *policy locks*: a secret for whoever holds attributes that satisfy a formula, in two forms, which a column group may
  have both (locks compose by AND):
  - of the *topic's policy*: a fresh secret, sealed by HPKE to the public half of the policy's key pair for this group,
    version and attribute epoch. Sealing and, once the private half is there, opening cost what a topic lock costs,
    whatever the formula.
  - of the *publisher's own* policy: the capsule itself, whose secret is the lock's. It needs no authority. `hidden`,
    the capsule lies under a key from the secret of the topic lock that stands before it, padded: node and outsiders
    then see neither formula nor epoch, only about how long they are; subscribers of the topic see both. Clear,
    everybody does.

- *share lock*: a secret that travels split over the relays of an overlay (`carriers/overlay/`). The lock is only its
  name: nothing in it opens, and whoever has gathered enough shares has the secret. Alone it holds as long as no virtual
  node on the way has more bad relays than it may; beside a topic lock, whoever breaks it has gained nothing.

Publishers seal to the public half of a topic's policy as to any other, without knowing the formula. The private half is
a seed, sealed once under the secret of a capsule (`crypto/abe`). So a subscriber decapsulates once for each policy and
epoch, however many publishers there are.

Threats. *No attributes, no secret*, pooled keys included: `crypto/abe`. *A lock copied or altered under another
signature*: a capsule's secret is derived over the whole capsule, the lane and the permits, a sealed one over lane and
place, and the lane key over permits and the hashes of all locks besides, so that the copy is noise. *Capsule and sealed
seed of one place (topic, group, version, epoch) shown for another*: the place is the context of the capsule's secret,
and the epoch is in the capsule, so under another place the secret is another, and the seed does not open. *Absurd
formulas*: a capsule is bounded, and is parsed by who holds keys, never by a node.

Left out: that a publisher obeys the topic's policy. It could as well publish the rows in the clear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from tallystick import wire
from tallystick.crypto import hpke
from tallystick.crypto.abe.capsule import CAPSULE_BYTES_MAX, Capsule, decapsulate, encapsulate, satisfies
from tallystick.crypto.abe.keys import AttributeKey, AttributePublicKey
from tallystick.crypto.symmetric import decrypt, derive, encrypt, named_hash, unwrap, wrap
from tallystick.errors import CannotOpen, Malformed, Refused
from tallystick.parcel.header import TOPICS_MAX
from tallystick.parcel.padding import padme
from tallystick.policy.formula import Formula
from tallystick.wire import Fields, Number, Octets16, Octets32, number, octets

LOCK_BYTES_MAX = 64 * 1024
TOPIC_LOCK, POLICY_LOCK, SHARE_LOCK, ERASURE_LOCK = 1, 2, 3, 4
OF_TOPIC, OWN = 1, 2
U32_MAX = (1 << 32) - 1
_PAYLOAD_BYTES_MAX = 64 * 1024  # a capsule of 60 KiB, padded
_SEALED_BYTES_MAX = 2048  # X25519+ML-KEM-768 over 32 bytes takes 1,168

_Sealed = Annotated[bytes, octets(at_most=_SEALED_BYTES_MAX)]
_U32 = Annotated[int, number(U32_MAX)]


class MissingKey(Refused):
    """The reader's own ring lacks the key for a lock: local news, never shown to a peer."""

    reason = "missing-key"

    def __init__(self, token: bytes, *, epoch: int | None = None, publisher: bytes = b"", period: int = 0) -> None:
        what = f"epoch {epoch}" if epoch is not None else f"erasure period {period}"
        super().__init__(f"no key for topic {token.hex()[:8]}, {what}", hint="ask the authority for its keys")
        self.token, self.epoch, self.publisher, self.period = token, epoch, publisher, period


class NotEntitled(Refused):
    """The reader's attributes do not satisfy a policy, or the lock cannot be tried for want of `pymcl`: the columns
    behind it are closed to it, as their publisher or the topic's owner wants."""

    reason = "not-entitled"

    def __init__(self, epoch: int) -> None:
        super().__init__(
            f"the attributes held in attribute epoch {epoch} do not satisfy the policy",
            hint="attributes are granted by the tenant that declared them: tally attribute grant",
        )
        self.epoch = epoch


class MissingShare(CannotOpen):
    """The secret of a share lock has not come together yet."""

    reason = "missing-share"

    def __init__(self, lock: bytes) -> None:
        super().__init__(
            f"the shares behind lock {lock.hex()[:8]} have not come together",
            hint="relays keep them for an hour: whoever subscribes later opens what is sealed from then on",
        )
        self.lock = lock


@dataclass(frozen=True)
class PolicyPlace:
    """Which policy of which topic a key pair serves."""

    instance: bytes
    token: bytes
    group: int
    version: int

    @property
    def context(self) -> bytes:
        return wire.encode([self.instance, self.token, self.group, self.version])


def seal_seed(
    public: AttributePublicKey, formula: Formula, epoch: int, place: PolicyPlace, seed: bytes, entropy: bytes
) -> tuple[bytes, bytes]:
    """The capsule, and the seed sealed under its secret. The same arguments give the same bytes."""
    capsule, secret = encapsulate(public, formula, epoch, place.context, entropy)
    return capsule.encode(), encrypt(secret, seed, place.context)


def open_seed(key: AttributeKey, capsule: bytes, sealed: bytes, epoch: int, place: PolicyPlace) -> bytes:
    """The seed of the private half. Raises `CannotOpen` if the key does not satisfy the formula, or was moved here."""
    parsed = Capsule.decode(capsule)
    if parsed.epoch != epoch:
        raise CannotOpen
    return decrypt(decapsulate(key, parsed, place.context), sealed, place.context)


@dataclass(frozen=True)
class _SealedLock:
    """A secret sealed by HPKE to one key pair, for the place that the fields before `sealed`, the last one, name."""

    label: ClassVar[str]

    def _info(self) -> bytes:
        return wire.encode([self.label, *wire.listed(self)[:-1]])


@dataclass(frozen=True)
class TopicPolicyLock(_SealedLock):
    label = "tallystick policy lock 1"
    instance: Octets32
    lane: Octets16
    token: Octets16
    group: Annotated[int, number(255)]
    version: _U32
    epoch: _U32  # of attributes
    sealed: _Sealed

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
        lock = cls(instance, lane, token, group, version, epoch, b"")
        return replace(lock, sealed=hpke.seal(public, secret, lock._info()))

    def open(self, private: hpke.PrivateKey) -> bytes:
        return hpke.open_(private, self.sealed, self._info())

    def encode(self) -> bytes:
        instance, lane, *place = wire.listed(self)
        return wire.encode([1, POLICY_LOCK, instance, lane, OF_TOPIC, *place])


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
        """The secret. Raises `NotEntitled` if the key does not satisfy the formula."""
        if key is None or not satisfies(key, capsule):
            raise NotEntitled(capsule.epoch)
        return decapsulate(key, capsule, _context(self.instance, self.lane, permits))

    def encode(self) -> bytes:
        return wire.encode([1, POLICY_LOCK, self.instance, self.lane, OWN, int(self.hidden), self.payload])


def _decode_policy_lock(fields: Fields) -> TopicPolicyLock | OwnPolicyLock:
    instance, lane = fields.octets(32), fields.octets(16)
    if fields.number(OWN, at_least=OF_TOPIC) == OWN:
        return OwnPolicyLock(instance, lane, bool(fields.number(1)), fields.octets(at_most=_PAYLOAD_BYTES_MAX))
    return TopicPolicyLock(
        instance,
        lane,
        token=fields.octets(16),
        group=fields.number(255),
        version=fields.number(U32_MAX),
        epoch=fields.number(U32_MAX),
        sealed=fields.octets(at_most=_SEALED_BYTES_MAX),
    )


def _context(instance: bytes, lane: bytes, permits: Sequence[bytes]) -> bytes:
    return wire.encode([instance, lane, list(permits)])


def _hiding_key(topic_secret: bytes) -> bytes:
    return derive(topic_secret, "tallystick hidden policy 1")


def _hidden_aad(instance: bytes, lane: bytes) -> bytes:
    return wire.encode(["tallystick hidden policy 1", instance, lane])


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
        """The secret, by whichever topic key is at hand. Raises `MissingKey` if none is."""
        for token, epoch, sealed in self.wraps:
            private = keys.get((token, epoch))
            if private is not None:
                return hpke.open_(private, sealed, _topic_info(self.instance, self.lane, token, epoch))
        token, epoch, _ = self.wraps[0]
        raise MissingKey(token, epoch=epoch)

    def encode(self) -> bytes:
        return wire.encode([1, TOPIC_LOCK, self.instance, self.lane, [list(wrap) for wrap in self.wraps]])


@dataclass(frozen=True)
class ErasureLock(_SealedLock):
    label = "tallystick erasure lock 1"
    instance: Octets32
    lane: Octets16
    token: Octets16
    publisher: Octets16
    period: _U32
    sealed: _Sealed

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
        lock = cls(instance, lane, token, publisher, period, b"")
        return replace(lock, sealed=hpke.seal(public, secret, lock._info()))

    def open(self, keys: Mapping[tuple[bytes, bytes, int], hpke.PrivateKey]) -> bytes:
        private = keys.get((self.token, self.publisher, self.period))
        if private is None:
            raise MissingKey(self.token, publisher=self.publisher, period=self.period)
        return hpke.open_(private, self.sealed, self._info())

    def encode(self) -> bytes:
        return wire.encode([1, ERASURE_LOCK, *wire.listed(self)])


@dataclass(frozen=True)
class ShareLock:
    instance: Octets32
    lane: Octets16
    overlay: Octets16
    plan: Number  # version of the plan under which it is split
    nonce: Octets16  # so that no two have one name

    def open(self, secrets: Mapping[bytes, bytes]) -> bytes:
        """The secret, from those that have come, by the lock's name. Raises `MissingShare`."""
        name = lock_hash(self.encode())
        secret = secrets.get(name)
        if secret is None:
            raise MissingShare(name)
        return secret

    def encode(self) -> bytes:
        return wire.encode([1, SHARE_LOCK, *wire.listed(self)])


Lock = TopicLock | ErasureLock | TopicPolicyLock | OwnPolicyLock | ShareLock


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
        return _decode_topic_lock(_behind_kind(value, "topic lock", 5))
    if kind == POLICY_LOCK:
        of_topic = len(value) > 4 and value[4] == OF_TOPIC
        return _decode_policy_lock(_behind_kind(value, "policy lock", 10 if of_topic else 7))
    if kind == SHARE_LOCK:
        return wire.read_fields(ShareLock, _behind_kind(value, "share lock", 7))
    if kind == ERASURE_LOCK:
        return wire.read_fields(ErasureLock, _behind_kind(value, "erasure lock", 8))
    raise Malformed(f"lock: unknown kind {kind!r}", reason="version")


def _behind_kind(value: list[Any], what: str, length: int) -> Fields:
    """The fields of a lock, version and kind already read."""
    fields = Fields(value, what, length)
    fields.version(1)
    fields.number()
    return fields


def _decode_topic_lock(fields: Fields) -> TopicLock:
    instance, lane, wraps = fields.octets(32), fields.octets(16), []
    for item in fields.items(TOPICS_MAX, at_least=1):
        wrapped = Fields(item, "topic lock", 3)
        wraps.append((wrapped.octets(16), wrapped.number(U32_MAX), wrapped.octets(at_most=_SEALED_BYTES_MAX)))
    return TopicLock(instance, lane, tuple(wraps))


def check_lane(lock: Lock, instance: bytes, lane: bytes) -> None:
    """Raise `CannotOpen` for a lock of another lane or instance."""
    if lock.instance != instance or lock.lane != lane:
        raise CannotOpen


def _topic_info(instance: bytes, lane: bytes, token: bytes, epoch: int) -> bytes:
    return wire.encode(["tallystick topic lock 1", instance, lane, token, epoch])
