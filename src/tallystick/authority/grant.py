"""The grant: what a permit brings to its holder, and the updates that follow it.

    grant = wire [1, permit, undo token, token, epochs, private keys, schemas, settings, erasure keys, erased, version]
      epochs        [[epoch, public half, not before ms, not after ms], …]  the current one and those to come
      private keys  [[epoch, seed], …]        subscribers only; epochs that have begun, within the permit
      schemas       [text, …]                 all versions in order, or none where nothing changed
      settings      [partitions, flags, late epochs, revoke ms]
      erasure keys  [[publisher, period, key, not before ms, not after ms], …]
                    a publisher: the public halves of its own periods; a subscriber: private halves
      erased        [[publisher, period], …]
      version       what to name in the next request for keys

An update is a grant with empty permit and undo token that holds only what changed since the version named. It always
travels sealed to the holder's enrolled key.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tallystick import wire
from tallystick.trust.signed import Fields

_LIST_MAX = 1 << 20


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
    version: int

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
                self.version,
            ]
        )

    @classmethod
    def decode(cls, data: bytes) -> Grant:
        """Raises `Malformed`."""
        fields = Fields.parse(data, "grant", 11)
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
            version=fields.number(),
        )


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
