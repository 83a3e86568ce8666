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
from typing import Annotated

from tallystick.authority.codec import Identifier, Number, Octets, Versioned, items, number, octets, record, row

EpochKeys = Annotated[tuple[tuple[int, bytes], ...], items(row(number(), octets(32)))]  # (epoch, key)


@dataclass(frozen=True)
class GrantEpoch:
    number: Number
    public: Octets
    not_before_ms: Number
    not_after_ms: Number


@dataclass(frozen=True)
class GrantErasureKey:
    publisher: Identifier
    period: Number
    key: Octets = field(repr=False)
    not_before_ms: Number
    not_after_ms: Number


@dataclass(frozen=True)
class GrantTopicPolicy:
    """The key pair of one version of a group's policy in one attribute epoch.

    A publisher gets the public half; a subscriber the capsule, and the seed sealed under what the capsule opens to.
    All three are empty, and the epoch 0, where the version lifts the policy.
    """

    group: Number
    version: Number
    epoch: Number
    public: Octets
    capsule: Annotated[bytes, octets(at_most=1 << 16)] = field(repr=False)
    sealed_seed: Octets = field(repr=False)
    not_before_ms: Number


@dataclass(frozen=True)
class GrantPolicies:
    """What sealing and opening under attributes takes: wire [public, space, epochs, topics]."""

    public: Octets  # of the attribute authority; `crypto.abe.keys.PublicKey`
    # Of the attributes that may be spoken of; `policy.space.AttributeSpace`.
    space: Annotated[bytes, octets(at_most=1 << 20)] = field(repr=False)
    # (attribute epoch, not before ms): the current one and those to come.
    epochs: Annotated[tuple[tuple[int, int], ...], items(row(number(), number()))]
    topics: Annotated[tuple[GrantTopicPolicy, ...], items(record(GrantTopicPolicy))]

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
        """What the topic asks of a group now, or None where it has no policy."""
        begun = [one for one in self.topics if one.group == group and one.not_before_ms <= now_ms]
        newest = max(begun, key=lambda one: (one.version, one.epoch), default=None)
        return newest if newest is not None and newest.epoch else None


@dataclass(frozen=True)
class GrantLabels:
    """What a publisher labels parcels with: wire [code, [[topic epoch, key], …]]."""

    code: Octets = field(repr=False)
    keys: EpochKeys = field(repr=False)

    def updated(self, update: GrantLabels) -> GrantLabels:
        """Fold an update in: what it names replaces or adds, the rest stays."""
        return GrantLabels(update.code or self.code, tuple(sorted({**dict(self.keys), **dict(update.keys)}.items())))


@dataclass(frozen=True)
class GrantSettings:
    partitions: Number
    flags: Number
    late_epochs: Number
    revoke_ms: Number


@dataclass(frozen=True)
class Grant(Versioned):
    what = "grant"
    permit: Octets
    undo_token: Octets = field(repr=False)
    token: Identifier
    epochs: Annotated[tuple[GrantEpoch, ...], items(record(GrantEpoch))]
    private_keys: EpochKeys = field(repr=False)
    schemas: Annotated[tuple[bytes, ...], items(octets(at_most=1 << 20))] = field(repr=False)
    settings: Annotated[GrantSettings, record(GrantSettings)]
    erasure_keys: Annotated[tuple[GrantErasureKey, ...], items(record(GrantErasureKey))]
    erased: Annotated[tuple[tuple[bytes, int], ...], items(row(octets(16), number()))]
    policies: Annotated[GrantPolicies | None, record(GrantPolicies, optional=True)]
    labels: Annotated[GrantLabels | None, record(GrantLabels, optional=True)]
    version: Number

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
