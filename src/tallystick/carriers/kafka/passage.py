"""Passages: the gateway's signed word that its guards took these parcels, in the record's headers beside the parcel.

Between the gateway that promised and the notary that judges lie some milliseconds in which a right may be withdrawn or
an epoch end. The gateway judged at its block time and gave its promise; the notary must not break it. So a record with
a passage of a node of the topic is not asked again for rights and epochs, only for form, lane, signature, locks and
body. A gateway that passes what it should not is to blame for it by name: the passage names it and the height.

One signature covers all parcels of an answer, as promises do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.crypto.signatures import Signer, Verifier
from tallystick.errors import Forged, Malformed
from tallystick.wire import Fields

CONTEXT = "tallystick passage 1"
PASSAGE = "tally-passage"  # the header of a record that holds it
PASSAGE_BYTES_MAX = 4096


@dataclass(frozen=True)
class Passage:
    """`node` took the parcel at `height`; place and path within what it signed."""

    node: bytes
    height: int
    signature: bytes
    index: int
    count: int
    path: tuple[bytes, ...]

    def encode(self) -> bytes:
        return wire.encode([1, self.node, self.height, self.signature, self.index, self.count, list(self.path)])

    @classmethod
    def decode(cls, data: bytes) -> Passage:
        if len(data) > PASSAGE_BYTES_MAX:
            raise Malformed(f"passage: at most {PASSAGE_BYTES_MAX} bytes expected")
        fields = Fields.parse(data, "passage", 7)
        fields.version(1)
        node, height, signature = fields.octets(16), fields.number(), fields.octets(64)
        index, count, path = fields.number(), fields.number(), fields.items(merkle.PATH_MAX)
        if not all(type(item) is bytes and len(item) == 32 for item in path):
            raise Malformed("passage: a path is made of hashes")
        return cls(node, height, signature, index, count, tuple(path))

    def verify(self, parcel: bytes, key: Verifier) -> None:
        """Raise `Forged` unless `node` signed for this parcel's hash."""
        try:
            leaf = merkle.leaf_hash(parcel)
            root = merkle.fold_inclusion(leaf, self.index, self.count, self.path, merkle.node_hash)
        except (Forged, Malformed) as error:
            raise Forged("passage: its path does not fit") from error
        key.verify(CONTEXT, self.signature, _statement(self.node, self.height, self.count, root))


def sign_passages(node: bytes, height: int, parcels: Sequence[bytes], signer: Signer) -> list[Passage]:
    """A passage for each of these parcel hashes, under one signature."""
    tree = merkle.Tree([merkle.leaf_hash(parcel) for parcel in parcels])
    signature = signer.sign(CONTEXT, _statement(node, height, tree.size, tree.root()))
    return [
        Passage(node, height, signature, index, tree.size, tuple(tree.inclusion(index, tree.size)))
        for index in range(tree.size)
    ]


def _statement(node: bytes, height: int, count: int, root: bytes) -> bytes:
    return wire.encode([node, height, count, root])
