"""Receipts, state proofs and histories: what the ledger says, checked without it.

A receipt shows that one entry is on the ledger: entry → root in the head that its author signed → leaf of the tree
over transactions → checkpoint that the trust file accepts. It needs neither the other entries nor the other
transactions. A state proof shows a value, or that there is none, under the state root of such a checkpoint. A whole
history is verified by folding it and comparing with the proved value of `history/<token>`.

What a receipt does not show: that the author was entitled (the contracts' work; an audit replays them), or that its
key was not revoked since. `check_author` adds the author's own signature where its key is at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.crypto.merkle_map import verify_map
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Forged, Malformed, Withheld
from tallystick.ledger.checkpoints import Head, read_head
from tallystick.ledger.contracts.operations import next_chain
from tallystick.ledger.transaction import CONTEXT, ENTRIES_MAX, tree_leaf
from tallystick.trust.notes import NOTE_BYTES_MAX
from tallystick.trust.promise import Anchor
from tallystick.trust.signed import Fields
from tallystick.trust.trustfile import TrustFile

RECEIPT_BYTES_MAX = NOTE_BYTES_MAX + 64 * 1024


@dataclass(frozen=True)
class Receipt:
    """A claim that an entry is on the ledger; `verify` makes it one that holds."""

    entry: bytes
    index: int  # of the entry in its transaction
    entry_path: tuple[bytes, ...]
    head: bytes
    signature: bytes
    number: int  # of the transaction in the tree
    path: tuple[bytes, ...]
    note: bytes

    def encode(self) -> bytes:
        return wire.encode(
            [
                *(1, self.entry, self.index, list(self.entry_path), self.head, self.signature),
                *(self.number, list(self.path), self.note),
            ]
        )

    @classmethod
    def decode(cls, data: bytes) -> Receipt:
        """Raises `Malformed`."""
        if len(data) > RECEIPT_BYTES_MAX:
            raise Malformed(f"receipt: {len(data)} bytes, at most {RECEIPT_BYTES_MAX} expected")
        fields = Fields.parse(data, "receipt", 9)
        fields.version(1)
        return cls(
            entry=fields.octets(at_most=RECEIPT_BYTES_MAX),
            index=fields.number(ENTRIES_MAX - 1),
            entry_path=_hashes(fields),
            head=fields.octets(at_most=256),
            signature=fields.octets(64),
            number=fields.number(),
            path=_hashes(fields),
            note=fields.octets(at_most=NOTE_BYTES_MAX),
        )

    def verify(self, trust: TrustFile) -> VerifiedReceipt:
        """The receipt that holds under `trust`; raises `Forged` or `Malformed`."""
        head = read_head(self.note, trust)
        fields = Fields.parse(self.head, "transaction head", 6)
        fields.version(1)
        instance, author, _ = fields.octets(32), fields.octets(16), fields.number()
        entries_root, count = fields.octets(32), fields.number(ENTRIES_MAX, 1)
        if instance != trust.instance:
            raise Forged("receipt: of another instance", reason="wrong-instance")
        leaf = merkle.leaf_hash(self.entry)
        merkle.verify_inclusion(leaf, self.index, count, list(self.entry_path), entries_root)
        merkle.verify_inclusion(
            tree_leaf(self.head, self.signature), self.number, head.size, list(self.path), head.root
        )
        return VerifiedReceipt(self, author, head)


@dataclass(frozen=True)
class VerifiedReceipt:
    """An entry that is on the ledger under `checkpoint`; made by `Receipt.verify` alone."""

    receipt: Receipt
    author: bytes
    checkpoint: Head

    @property
    def operator_alone(self) -> bool:
        """No witness cosigned: the operator alone vouches."""
        return not self.checkpoint.witnesses

    def check_author(self, key: VerifyKey) -> None:
        """Raise `Forged` unless `key` signed the transaction."""
        key.verify(CONTEXT, self.receipt.signature, self.receipt.head)

    def check_parcel(self, parcel: bytes, offset: int, path: Sequence[bytes], anchor_of: tuple[bytes, int]) -> Anchor:
        """The anchor in this receipt, if it is of `(token, partition)` and covers the parcel at `offset`."""
        anchor = Anchor.decode_entry(self.receipt.entry)
        if (anchor.token, anchor.partition) != anchor_of:
            raise Forged("receipt: the anchor is of another partition")
        merkle.verify_inclusion(merkle.leaf_hash(parcel), offset, anchor.size, list(path), anchor.root)
        return anchor


@dataclass(frozen=True)
class StateProof:
    """A value of the state under a checkpoint, as an engine claims it."""

    key: bytes
    value: bytes | None  # None: the key is absent
    proof: bytes
    note: bytes

    def verify(self, trust: TrustFile) -> Head:
        """The head under which the value stands; raises `Forged`."""
        head = read_head(self.note, trust)
        verify_map(head.state_root, self.key, self.value, self.proof)
        return head

    def encode(self) -> bytes:
        return wire.encode([1, self.key, self.value, self.proof, self.note])

    @classmethod
    def decode(cls, data: bytes) -> StateProof:
        """Raises `Malformed`."""
        match wire.decode(data, "state proof"):
            case [1, bytes(key), bytes() | None as value, bytes(proof), bytes(note)]:
                return cls(key, value, proof, note)
        raise Malformed("state proof: expected version, key, value, proof and note")


def verify_history(token: bytes, oldest_first: Sequence[tuple[int, int, bytes]], proved: StateProof) -> None:
    """Raise `Withheld` unless these (height, index, entry) are the whole history under a verified state proof."""
    if proved.key != b"history/" + token:
        raise Forged("history: the proof is of another topic")
    chain = bytes(32)
    for height, index, entry in oldest_first:
        chain = next_chain(chain, height, index, merkle.leaf_hash(entry))
    last = [*oldest_first[-1][:2], len(oldest_first), chain] if oldest_first else None
    expected = None if proved.value is None else wire.decode(proved.value, "history")
    if last != expected:
        found = expected[2] if expected else 0
        raise Withheld(f"history: {len(oldest_first)} operations do not fold to the {found} on the ledger")


def _hashes(fields: Fields) -> tuple[bytes, ...]:
    path = fields.items(merkle.PATH_MAX)
    if not all(type(item) is bytes and len(item) == 32 for item in path):
        raise Malformed("receipt: a path is made of hashes")
    return tuple(path)
