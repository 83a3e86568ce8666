"""Blocks, the transactions in them, and the checkpoint over them.

A block is `[1, height, time ms, first transaction, transactions, tree size, tree root, state root, previous hash]`.
It names the block before it, so the newest one vouches for all; its time never falls. Block 0 holds no
transaction: its state root is that of the genesis, which is the first trust file.

A transaction is many entries under one signature (BPS 4.5).

Threat: an author who denies, a ledger who invents, reorders or repeats what an author wrote. Invariant: an entry
counts only inside a transaction whose head (instance, author, number, root over the entries) the author's enrolled
key signed; numbers of one author only rise, so a transaction is taken once.

What is signed and hashed are bytes as they came: the root covers `leaf_hash(entry bytes)`, the ledger's tree
`leaf_hash(wire [head, signature])`. An entry therefore has no second form that anything refers to, nor has the frame
around head, signature and entries, and neither is encoded again when it is read, which would cost more than all other
checks together; a contract holds every field to its exact type instead. The head is held to the one encoding.

How an engine writes and signs the checkpoint of a block stands here too; how one is believed, in `trust.checkpoint`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.crypto.signatures import SigningKey, VerifyKey
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Forged, Malformed, Misuse
from tallystick.ledger.batches import hash_entries
from tallystick.trust.notes import AcceptedCheckpoint, Note, NoteSigner, compose_checkpoint, verify_checkpoint
from tallystick.wire import Fields

CONTEXT = "tallystick transaction 1"
ENTRIES_MAX = 4096  # the largest batch of BPS Fig. 7
BYTES_MAX = 3 << 20  # a block of the chain engine holds 4 MiB
NUMBER_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Transaction:
    """A well-formed transaction: its root covers its entries; the signature is not yet verified."""

    instance: bytes
    author: bytes  # principal, node or authority
    number: int  # greater than the author's last one
    head: bytes
    signature: bytes
    entries: tuple[bytes, ...]
    entry_hashes: bytes  # leaf hashes, end to end
    data: bytes

    @property
    def leaf(self) -> bytes:
        """The leaf hash under which the ledger's tree holds this transaction."""
        return tree_leaf(self.head, self.signature)

    def entry_hash(self, index: int) -> bytes:
        return self.entry_hashes[32 * index : 32 * index + 32]

    def verify(self, key: VerifyKey) -> None:
        """Raise `Forged` unless `key` signed the head."""
        _verify(key, self.head, self.signature)

    def decode_entries(self, first: int = 0, end: int | None = None) -> Iterator[Any]:
        """The entries' values, one after the other; raises `Malformed` at the first that is none."""
        return wire.decode_each(self.entries[first:end], "entry")


def tree_leaf(head: bytes, signature: bytes) -> bytes:
    """`leaf_hash(wire [head, signature])`."""
    return merkle.leaf_hash(wire.encode([head, signature]))


def compose(instance: bytes, author: bytes, number: int, entries: Sequence[bytes], key: SigningKey) -> Transaction:
    """The signed transaction of these entries, each the wire encoding of `[kind, …]`."""
    if not 1 <= len(entries) <= ENTRIES_MAX:
        raise Misuse(f"transaction: 1 to {ENTRIES_MAX} entries expected, found {len(entries)}")
    if not 0 < number <= NUMBER_MAX:
        raise Misuse(f"transaction: a number from 1 to {NUMBER_MAX} expected, found {number}")
    hashes, root = hash_entries(entries)
    head = wire.encode([1, instance, author, number, root, len(entries)])
    signature = key.sign(CONTEXT, head)
    data = wire.encode([head, signature, list(entries)])
    if len(data) > BYTES_MAX:
        raise Misuse(
            f"transaction: {len(data)} bytes, at most {BYTES_MAX} expected", hint="spread the entries over several"
        )
    return Transaction(instance, author, number, head, signature, tuple(entries), hashes, data)


def parse(data: bytes) -> Transaction:
    """The well-formed transaction in `data`; raises `Malformed`, or `Forged` where the root does not fit."""
    if len(data) > BYTES_MAX:
        raise Malformed(f"transaction: {len(data)} bytes, at most {BYTES_MAX} expected")
    frame = Fields(next(wire.decode_each([data], "transaction")), "transaction", 3)
    head, signature, entries = frame.octets(at_most=256), frame.octets(64), frame.items(ENTRIES_MAX, 1)
    if not all(type(entry) is bytes for entry in entries):
        raise Malformed("transaction: an entry is a byte string")
    fields = Fields.parse(head, "transaction head", 6)
    fields.version(1)
    instance, author = fields.octets(32), fields.octets(16)
    number, root, count = fields.number(NUMBER_MAX, 1), fields.octets(32), fields.number()
    hashes, found_root = hash_entries(entries)
    if count != len(entries) or found_root != root:
        raise Forged("transaction: its head covers other entries")
    return Transaction(instance, author, number, head, signature, tuple(entries), hashes, bytes(data))


@lru_cache(maxsize=4096)
def _verify(key: VerifyKey, head: bytes, signature: bytes) -> None:
    """Remembers what verified, never what did not: a validator meets each signature twice, before a block and in it."""
    key.verify(CONTEXT, signature, head)


NO_PREVIOUS = bytes(32)


@dataclass(frozen=True)
class Block:
    height: int
    time_ms: int
    first: int  # number in the tree of its first transaction
    count: int  # its transactions
    size: int  # of the tree after it
    root: bytes
    state_root: bytes
    previous: bytes  # hash of the block before

    @cached_property
    def encoded(self) -> bytes:
        return wire.encode(
            [
                *(1, self.height, self.time_ms, self.first, self.count, self.size),
                *(self.root, self.state_root, self.previous),
            ]
        )

    @cached_property
    def hash(self) -> bytes:
        return named_hash("tallystick block 1", self.encoded)

    @classmethod
    def decode(cls, data: bytes) -> Block:
        """Raises `Malformed`."""
        fields = Fields.parse(data, "block", 9)
        fields.version(1)
        height, time_ms, first, count, size = (fields.number() for _ in range(5))
        return cls(height, time_ms, first, count, size, fields.octets(32), fields.octets(32), fields.octets(32))


Head = AcceptedCheckpoint
read_head = verify_checkpoint


def checkpoint_text(origin: str, block: Block) -> str:
    """The text that is signed for `block`."""
    return compose_checkpoint(
        origin, block.size, block.root, height=block.height, time_ms=block.time_ms, state_root=block.state_root
    ).encode()


def sign_checkpoint(origin: str, block: Block, key: SigningKey) -> bytes:
    """The note of `block` under the ledger's key, whose name is the origin."""
    return Note.sign(checkpoint_text(origin, block), NoteSigner(origin, key)).encode()


def own_head(origin: str, block: Block, note: bytes) -> Head:
    """The head of a note that this very process signed and no witness has seen."""
    return Head(origin, block.size, block.root, block.height, block.time_ms, block.state_root, note, ())
