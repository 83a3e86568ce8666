"""Promises and anchors: the carrier's word, and the ledger's.

A promise says that a parcel lies at an offset and will be anchored; it is signed by the node that took the parcel,
so a log that is later shorter, or holds another parcel there, convicts the node by its own word. An anchor is an
entry on the ledger: size and root of a partition's RFC 6962 tree over parcel hashes, covering every parcel below it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tallystick import wire
from tallystick.trust.signed import Fields, Signer, Verifier, split_signed

CONTEXT = "tallystick promise 1"
PARTITIONS_MAX = 1 << 16
ANCHOR_ENTRY = 40  # the kind number of anchor entries on the ledger


@dataclass(frozen=True)
class Promise:
    instance: bytes
    node: bytes
    token: bytes
    partition: int
    offset: int
    parcel: bytes  # the parcel's hash
    height: int  # latest block the node knew
    time_ms: int  # and its time
    body: bytes = b""
    signature: bytes = b""

    def sign(self, signer: Signer) -> Promise:
        body = wire.encode(
            [
                1,
                self.instance,
                self.node,
                self.token,
                self.partition,
                self.offset,
                self.parcel,
                self.height,
                self.time_ms,
            ]
        )
        return replace(self, body=body, signature=signer.sign(CONTEXT, body))

    def encode(self) -> bytes:
        return wire.encode([self.body, self.signature])

    @classmethod
    def decode(cls, data: bytes) -> Promise:
        body, signature = split_signed(data, "promise")
        fields = Fields.parse(body, "promise", 9)
        fields.version(1)
        return cls(
            instance=fields.octets(32),
            node=fields.octets(16),
            token=fields.octets(16),
            partition=fields.number(PARTITIONS_MAX - 1),
            offset=fields.number(),
            parcel=fields.octets(32),
            height=fields.number(),
            time_ms=fields.number(),
            body=body,
            signature=signature,
        )

    def verify(self, node: Verifier) -> None:
        node.verify(CONTEXT, self.signature, self.body)


@dataclass(frozen=True)
class Anchor:
    token: bytes
    partition: int
    size: int
    root: bytes

    def encode_entry(self) -> bytes:
        """The ledger entry."""
        return wire.encode([ANCHOR_ENTRY, self.token, self.partition, self.size, self.root])

    @classmethod
    def decode_entry(cls, entry: bytes) -> Anchor:
        fields = Fields.parse(entry, "anchor", 5)
        fields.version(ANCHOR_ENTRY)
        return cls(
            token=fields.octets(16),
            partition=fields.number(PARTITIONS_MAX - 1),
            size=fields.number(),
            root=fields.octets(32),
        )
