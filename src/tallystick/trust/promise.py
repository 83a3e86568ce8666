"""Promises and anchors: the carrier's word, and the ledger's.

A promise says that a parcel lies at an offset and will be anchored; it is signed by the node that took the parcel,
so a log that is later shorter, or holds another parcel there, convicts the node by its own word. One signature covers
all promises of an answer, each with its path to their root, so a request of many small parcels costs one. An anchor is
an entry on the ledger: size and root of a partition's RFC 6962 tree over parcel hashes, covering every parcel below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.errors import Forged, Malformed
from tallystick.trust.signed import SIGNED_BYTES_MAX, Fields, Signer, Verifier

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
    vow: Vow | None = None

    @cached_property
    def body(self) -> bytes:
        return wire.encode(
            [
                *(1, self.instance, self.node, self.token, self.partition, self.offset),
                *(self.parcel, self.height, self.time_ms),
            ]
        )

    def sign(self, signer: Signer) -> Promise:
        return sign_promises([self], signer)[0]

    def encode(self) -> bytes:
        vow = self.vow
        assert vow is not None, "a promise is signed before it is given"
        return wire.encode([self.body, [vow.signature, vow.index, vow.count, list(vow.path)]])

    @classmethod
    def decode(cls, data: bytes) -> Promise:
        if len(data) > SIGNED_BYTES_MAX:
            raise Malformed(f"promise: at most {SIGNED_BYTES_MAX} bytes expected")
        outer = Fields.parse(data, "promise", 2)
        fields, vow = Fields.parse(outer.octets(), "promise", 9), Fields(outer.items(4), "promise", 4)
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
            vow=Vow(vow.octets(64), vow.number(), vow.number(), _path(vow.items(merkle.PATH_MAX))),
        )

    def verify(self, node: Verifier) -> None:
        """Raise `Forged` unless `node` signed it, alone or among others."""
        node.verify(CONTEXT, *self.signed_statement())

    def signed_statement(self) -> tuple[bytes, bytes]:
        """Signature and message: promises of one answer share them, so a publisher verifies each once."""
        if self.vow is None:
            raise Forged("promise: not signed")
        leaf = merkle.leaf_hash(self.body)
        root = merkle.fold_inclusion(leaf, self.vow.index, self.vow.count, self.vow.path, merkle.node_hash)
        return self.vow.signature, wire.encode([self.vow.count, root])


@dataclass(frozen=True)
class Vow:
    """One signature over all promises of an answer: over their count and RFC 6962 root; and this one's place."""

    signature: bytes
    index: int
    count: int
    path: tuple[bytes, ...]


def sign_promises(promises: Sequence[Promise], signer: Signer) -> list[Promise]:
    """Give all of these promises with one signature; each can be shown and verified alone."""
    tree = merkle.Tree([merkle.leaf_hash(promise.body) for promise in promises])
    signature = signer.sign(CONTEXT, wire.encode([tree.size, tree.root()]))
    return [
        replace(promise, vow=Vow(signature, index, tree.size, tuple(tree.inclusion(index, tree.size))))
        for index, promise in enumerate(promises)
    ]


def _path(items: list[Any]) -> tuple[bytes, ...]:
    if not all(type(item) is bytes and len(item) == 32 for item in items):
        raise Malformed("promise: a path is made of hashes")
    return tuple(items)


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
