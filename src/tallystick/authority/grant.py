"""The grant: what a permit brings to its holder, and the updates that follow it.

    grant = wire [1, permit, undo token, token, epochs, private keys, schemas, settings, erasure keys, erased,
                  policies, labels, version]
      epochs        [[epoch, public half, not before ms, not after ms], …]  the current one and those to come
      private keys  [[epoch, seed], …]        subscribers only; epochs that have begun, within the permit
      schemas       [text, …]                 all versions in order, or none where nothing changed
      settings      [partitions, flags, late epochs, revoke ms]
      erasure keys  [[publisher, period, key, not before ms, not after ms], …]
                    a publisher: the public halves of its own periods; a subscriber: private halves
      erased        [[publisher, period], …]
      policies      `GrantPolicies`, or null where no attributes are declared, or nothing about them changed
      labels        `GrantLabels`, or null where the topic has none, the holder only reads, or nothing changed
      version       what to name in the next request for keys

An update is a grant with empty permit and undo token that holds only what changed since the version named. It always
travels sealed to the holder's enrolled key.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tallystick import wire
from tallystick.wire import Fields

_LIST_MAX = 1 << 20
_SPACE_BYTES_MAX = 1 << 20
_CAPSULE_BYTES_MAX = 1 << 16


@dataclass(frozen=True)
class GrantEpoch:
    number: int
    public: bytes
    not_before_ms: int
    not_after_ms: int


@dataclass(frozen=True)
class GrantErasureKey:
    publisher: bytes
    period: int
    key: bytes = field(repr=False)
    not_before_ms: int
    not_after_ms: int


@dataclass(frozen=True)
class GrantTopicPolicy:
    """The key pair of one version of a group's policy in one attribute epoch.

    A publisher gets the public half; a subscriber the capsule, and the seed sealed under what the capsule opens to.
    All three are empty, and the epoch 0, where the version lifts the policy.
    """

    group: int
    version: int
    epoch: int
    public: bytes
    capsule: bytes = field(repr=False)
    sealed_seed: bytes = field(repr=False)
    not_before_ms: int


@dataclass(frozen=True)
class GrantPolicies:
    """What sealing and opening under attributes takes: wire [public, space, epochs, topics]."""

    public: bytes  # of the attribute authority; `crypto.abe.keys.PublicKey`
    space: bytes = field(repr=False)  # of the attributes that may be spoken of; `policy.space.AttributeSpace`
    epochs: tuple[tuple[int, int], ...]  # (attribute epoch, not before ms): the current one and those to come
    topics: tuple[GrantTopicPolicy, ...]

    def updated(self, update: GrantPolicies) -> GrantPolicies:
        """Fold an update in: what it names replaces or adds, the rest stays."""
        topics = {(one.group, one.version, one.epoch): one for one in (*self.topics, *update.topics)}
        return GrantPolicies(
            update.public or self.public,
            update.space or self.space,
            tuple(sorted({**dict(self.epochs), **dict(update.epochs)}.items())),
            tuple(topics[name] for name in sorted(topics)),
        )

    def epoch(self, now_ms: int) -> int | None:
        """The attribute epoch to seal under now."""
        return max((number for number, not_before_ms in self.epochs if not_before_ms <= now_ms), default=None)

    def topic_policy(self, group: int, now_ms: int) -> GrantTopicPolicy | None:
        """What the topic asks of a group now; None where it has no policy."""
        begun = [one for one in self.topics if one.group == group and one.not_before_ms <= now_ms]
        newest = max(begun, key=lambda one: (one.version, one.epoch), default=None)
        return newest if newest is not None and newest.epoch else None


@dataclass(frozen=True)
class GrantLabels:
    """What a publisher labels parcels with: wire [code, [[topic epoch, key], …]]."""

    code: bytes = field(repr=False)
    keys: tuple[tuple[int, bytes], ...] = field(repr=False)

    def updated(self, update: GrantLabels) -> GrantLabels:
        """Fold an update in: what it names replaces or adds, the rest stays."""
        return GrantLabels(update.code or self.code, tuple(sorted({**dict(self.keys), **dict(update.keys)}.items())))


@dataclass(frozen=True)
class Grant:
    permit: bytes
    undo_token: bytes = field(repr=False)
    token: bytes
    epochs: tuple[GrantEpoch, ...]
    private_keys: tuple[tuple[int, bytes], ...] = field(repr=False)
    schemas: tuple[bytes, ...] = field(repr=False)
    partitions: int
    flags: int
    late_epochs: int
    revoke_ms: int
    erasure_keys: tuple[GrantErasureKey, ...]
    erased: tuple[tuple[bytes, int], ...]
    policies: GrantPolicies | None
    labels: GrantLabels | None
    version: int

    def updated(self, update: Grant) -> Grant:
        """Fold an update in: what it names replaces or adds, the rest stays."""
        epochs = {one.number: one for one in (*self.epochs, *update.epochs)}
        policies, labels = update.policies or self.policies, update.labels or self.labels
        erasure_keys = {(one.publisher, one.period): one for one in (*self.erasure_keys, *update.erasure_keys)}
        return replace(
            update,
            permit=self.permit,
            undo_token=self.undo_token,
            epochs=tuple(epochs[number] for number in sorted(epochs)),
            private_keys=tuple({**dict(self.private_keys), **dict(update.private_keys)}.items()),
            schemas=update.schemas or self.schemas,
            erasure_keys=tuple(erasure_keys.values()),
            erased=tuple({*self.erased, *update.erased}),
            policies=self.policies.updated(update.policies) if self.policies and update.policies else policies,
            labels=self.labels.updated(update.labels) if self.labels and update.labels else labels,
        )

    def encode(self) -> bytes:
        return wire.encode(
            [
                1,
                self.permit,
                self.undo_token,
                self.token,
                [[one.number, one.public, one.not_before_ms, one.not_after_ms] for one in self.epochs],
                [list(pair) for pair in self.private_keys],
                list(self.schemas),
                [self.partitions, self.flags, self.late_epochs, self.revoke_ms],
                [
                    [one.publisher, one.period, one.key, one.not_before_ms, one.not_after_ms]
                    for one in self.erasure_keys
                ],
                [list(pair) for pair in self.erased],
                None if self.policies is None else _policies_fields(self.policies),
                None if self.labels is None else [self.labels.code, [list(pair) for pair in self.labels.keys]],
                self.version,
            ]
        )

    @classmethod
    def decode(cls, data: bytes) -> Grant:
        """Raises `Malformed`."""
        fields = Fields.parse(data, "grant", 13)
        fields.version(1)
        permit, undo_token, token = fields.octets(), fields.octets(), fields.octets(16)
        epochs = tuple(_epoch(item) for item in fields.items(_LIST_MAX))
        private_keys = tuple(_private_key(item) for item in fields.items(_LIST_MAX))
        schemas = tuple(Fields([item], "grant", 1).octets(at_most=1 << 20) for item in fields.items(_LIST_MAX))
        settings = Fields(fields.items(4, 4), "grant", 4)
        partitions, flags, late_epochs, revoke_ms = (settings.number() for _ in range(4))
        return cls(
            permit=permit,
            undo_token=undo_token,
            token=token,
            epochs=epochs,
            private_keys=private_keys,
            schemas=schemas,
            partitions=partitions,
            flags=flags,
            late_epochs=late_epochs,
            revoke_ms=revoke_ms,
            erasure_keys=tuple(_erasure_key(item) for item in fields.items(_LIST_MAX)),
            erased=tuple(_erased(item) for item in fields.items(_LIST_MAX)),
            policies=_policies(fields.optional(4)),
            labels=_labels(fields.optional(2)),
            version=fields.number(),
        )


def _policies_fields(policies: GrantPolicies) -> list[object]:
    topics = [
        [one.group, one.version, one.epoch, one.public, one.capsule, one.sealed_seed, one.not_before_ms]
        for one in policies.topics
    ]
    return [policies.public, policies.space, [list(pair) for pair in policies.epochs], topics]


def _policies(fields: Fields | None) -> GrantPolicies | None:
    if fields is None:
        return None
    public, space = fields.octets(), fields.octets(at_most=_SPACE_BYTES_MAX)
    epochs = tuple(_numbers(item) for item in fields.items(_LIST_MAX))
    return GrantPolicies(public, space, epochs, tuple(_topic_policy(item) for item in fields.items(_LIST_MAX)))


def _topic_policy(item: object) -> GrantTopicPolicy:
    fields = Fields(item, "grant", 7)
    group, version, epoch = fields.number(), fields.number(), fields.number()
    public, capsule = fields.octets(), fields.octets(at_most=_CAPSULE_BYTES_MAX)
    return GrantTopicPolicy(group, version, epoch, public, capsule, fields.octets(), fields.number())


def _numbers(item: object) -> tuple[int, int]:
    fields = Fields(item, "grant", 2)
    return fields.number(), fields.number()


def _labels(fields: Fields | None) -> GrantLabels | None:
    if fields is None:
        return None
    return GrantLabels(fields.octets(), tuple(_private_key(item) for item in fields.items(_LIST_MAX)))


def _epoch(item: object) -> GrantEpoch:
    fields = Fields(item, "grant", 4)
    return GrantEpoch(fields.number(), fields.octets(), fields.number(), fields.number())


def _private_key(item: object) -> tuple[int, bytes]:
    fields = Fields(item, "grant", 2)
    return fields.number(), fields.octets(32)


def _erasure_key(item: object) -> GrantErasureKey:
    fields = Fields(item, "grant", 5)
    return GrantErasureKey(fields.octets(16), fields.number(), fields.octets(), fields.number(), fields.number())


def _erased(item: object) -> tuple[bytes, int]:
    fields = Fields(item, "grant", 2)
    return fields.octets(16), fields.number()
