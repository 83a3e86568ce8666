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

Entries that come by the hundred are hashed, read and chained by compiled code (`CompiledLedger`). Few entries are not
worth the way there and back, and where numba is missing or its code fails a self-test there is none: then everything
goes entry by entry, with the same result. Which way was taken is seen nowhere but in the time; validators need not
agree on it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property, lru_cache, partial
from hashlib import sha256
from itertools import accumulate, pairwise
from types import ModuleType
from typing import Any

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.crypto.signatures import SigningKey, VerifyKey
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Forged, Malformed, Misuse
from tallystick.kernels.demand import OnDemand
from tallystick.later import np
from tallystick.trust.notes import AcceptedCheckpoint, Note, NoteSigner, compose_checkpoint, verify_checkpoint
from tallystick.wire import Fields

log = logging.getLogger(__name__)

CONTEXT = "tallystick transaction 1"
ENTRIES_MAX = 4096  # the largest batch of BPS Fig. 7
BYTES_MAX = 3 << 20  # a block of the chain engine holds 4 MiB
NUMBER_MAX = (1 << 63) - 1
NO_PREVIOUS = bytes(32)
DIGEST_BYTES = 32
BATCH_MIN = 64  # entries; below it the plain way is as quick


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
        return merkle.leaf_hash(wire.encode([self.head, self.signature]))

    def entry_hash(self, index: int) -> bytes:
        return self.entry_hashes[32 * index : 32 * index + 32]

    def verify(self, key: VerifyKey) -> None:
        """Raise `Forged` unless `key` signed the head."""
        _verify(key, self.head, self.signature)

    def decode_entries(self, first: int = 0, end: int | None = None) -> Iterator[Any]:
        """The entries' values, one after the other. Raises `Malformed` at the first that is none."""
        return wire.decode_each(self.entries[first:end], "entry")


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
    """The well-formed transaction in `data`. Raises `Malformed`, or `Forged` where the root does not fit."""
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
        return wire.encode([1, *astuple(self)])

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


class CompiledLedger:
    """The kernel, and how it hashes on this machine. All memory that it uses is held here while it runs."""

    def __init__(self) -> None:
        from tallystick.kernels import operations as kernel
        from tallystick.kernels import sha256_lanes
        from tallystick.record.leaves import best_transform

        self.kernel: ModuleType = kernel
        self._lanes: ModuleType = sha256_lanes
        self._transform = best_transform()

    def digest(self, entries: Sequence[bytes]) -> tuple[bytes, bytes]:
        """The leaf hashes of the entries, end to end, and the root over them."""
        data, ends = joined(entries)
        kernel, block = self.kernel, self.kernel.BLOCK_BYTES
        blocks = (np.diff(ends, prepend=0) + (kernel.LEAF_BYTES + block - 1)) // block
        begins = _begins(blocks) * block
        messages = np.empty(begins[-1], np.uint8)
        kernel.lay_out_leaves(data, ends, begins, messages)
        memory = _Memory(self._lanes, messages, begins[:-1], blocks)
        self._lanes.digest_messages(memory.starts_at, memory.blocks_at, len(ends), *memory.rest, self._transform)
        hashes = memory.digests[: DIGEST_BYTES * len(ends)].tobytes()
        self._lanes.merkle_root(memory.rest[0], len(ends), memory.rest[1], self._transform)
        return hashes, memory.digests[:DIGEST_BYTES].tobytes()

    def extend(
        self, chains: bytes, chain_of: Any, hashes: bytes, height: int, index: int
    ) -> tuple[bytes, list[list[int]]]:
        """Chains of history, each extended by its entries; and those entries, chain by chain. Entry i belongs to chain
        `chain_of[i]`, has the i-th hash, and stands at `index` + i in the block of `height`."""
        count, size = len(chains) // DIGEST_BYTES, self.kernel.LINK_BYTES
        order = np.argsort(chain_of, kind="stable")
        begins = _begins(np.bincount(chain_of, minlength=count))
        extended, messages = np.frombuffer(bytearray(chains), np.uint8), np.empty(count * size, np.uint8)
        blocks = np.full(count, size // self.kernel.BLOCK_BYTES)
        memory = _Memory(self._lanes, messages, np.arange(count) * size, blocks)
        self.kernel.extend_chains(
            *(extended, order, begins, np.frombuffer(hashes, np.uint8), height, index),
            *(messages, memory.digests, (memory.starts_at, memory.blocks_at, *memory.rest), self._transform),
        )
        entries, ends = order.tolist(), begins.tolist()
        return extended.tobytes(), [entries[first:end] for first, end in pairwise(ends)]


class _Memory:
    """What the hash functions want: where messages begin, their blocks, room for digests and for themselves."""

    def __init__(self, lanes: ModuleType, messages: Any, begins: Any, blocks: Any) -> None:
        self._starts = begins + messages.ctypes.data
        self._blocks = blocks.astype(np.int32)
        self._spare = np.empty(lanes.SPARE_BYTES, np.uint8)
        self.digests = np.empty((len(blocks) + lanes.SPARE_DIGESTS) * DIGEST_BYTES, np.uint8)
        self.starts_at, self.blocks_at = self._starts.ctypes.data, self._blocks.ctypes.data
        self.rest = (self.digests.ctypes.data, self._spare.ctypes.data)


def _begins(sizes: Any) -> Any:
    """Where things of these sizes begin that lie end to end, and where the last one ends."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))


def joined(entries: Sequence[bytes]) -> tuple[Any, Any]:
    """The entries end to end, and where each ends."""
    ends = np.fromiter(accumulate(map(len, entries)), np.int64, len(entries))
    return np.frombuffer(b"".join(entries), np.uint8), ends


def hash_entries(entries: Sequence[bytes]) -> tuple[bytes, bytes]:
    """`leaf_hash` of each entry, end to end, and the root of the tree over them."""
    if (found := compiled_for(len(entries))) is not None:
        return found.digest(entries)
    return plain_hashes(entries)


def plain_hashes(entries: Sequence[bytes]) -> tuple[bytes, bytes]:
    hashes = b"".join([sha256(b"\x00" + entry).digest() for entry in entries])
    return hashes, merkle.root(hashes)


def compiled() -> CompiledLedger | None:
    """The compiled way, where there is one; the first call loads it, which takes a second, or fifteen where it is the
    first on a machine."""
    return _compiled.now()


def compiled_for(entries: int) -> CompiledLedger | None:
    """The compiled way, where these are enough for it and this process has had enough of them to load it for. A thread
    loads it: blocks wait for whoever asks here."""
    return _compiled.soon(entries) if entries >= BATCH_MIN else None


def load_compiled(self_test: Callable[[CompiledLedger], None]) -> CompiledLedger | None:
    """The compiled way if it passes the test, or None, with a warning, where it cannot be had."""
    try:
        found = CompiledLedger()
        self_test(found)
    except Exception as error:  # whatever numba or the compiler does, the plain way still works
        log.warning("the ledger goes entry by entry, several times slower: %s: %s", type(error).__name__, error)
        return None
    return found


def _self_test(found: CompiledLedger) -> None:
    """Compare every loop with the reference. Raises RuntimeError. Compiles everything on the way."""
    entries = [bytes([size]) * size for size in range(200)]  # messages of one to four blocks
    hashes, root = found.digest(entries)
    octets, places = np.frombuffer(hashes, np.uint8), np.array([0, 32, 0, 64, 32])
    chain_of, firsts = found.kernel.number_keys(octets, places, np.zeros(5, np.int64))
    extended, _ = found.extend(hashes[:96], chain_of, hashes[:160], 70_000, 1)
    chain = hashes[:32]
    for entry in (0, 2):
        link = ["history", chain, 70_000, 1 + entry, hashes[32 * entry : 32 * entry + 32]]
        chain = sha256(wire.encode(link)).digest()
    if not (
        (hashes, root) == plain_hashes(entries)
        and (found.kernel.read_operations(*joined(entries), 1, 1, 1) < 0).all()
        and (chain_of.tolist(), firsts.tolist()) == ([0, 1, 0, 2, 1], [0, 1, 3])
        and extended[:32] == chain
    ):
        raise RuntimeError("the compiled kernel disagrees with the reference")


# Entries, hashed and run one by one in a tenth of the time of loading.
_compiled = OnDemand(partial(load_compiled, _self_test), enough=4_096)


if __name__ == "__main__":
    print("compiling the ledger's loops (once, about 15 s) …", end=" ", file=sys.stderr, flush=True)
    print("done" if compiled() else "without success", file=sys.stderr)
