"""What is done to a transaction's entries by the hundred: hashed, and the operations among them read and chained.

Few entries are not worth the way to compiled code and back, and where numba is missing or its code fails a self-test
there is none: then everything goes entry by entry, with the same result. Which way was taken is seen nowhere but in the
time; validators need not agree on it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.kernels.demand import OnDemand
from tallystick.later import np

if TYPE_CHECKING:
    from types import ModuleType

log = logging.getLogger(__name__)

DIGEST_BYTES = 32
BATCH_MIN = 64  # entries; below it the plain way is as quick


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
    """The compiled way, where these are enough for it and this process has had enough of them to load it for."""
    return _compiled.after(entries) if entries >= BATCH_MIN else None


def _load() -> CompiledLedger | None:
    try:
        found = CompiledLedger()
        _self_test(found)
    except Exception as error:  # whatever numba or the compiler does, the plain way still works
        log.warning("the ledger goes entry by entry, several times slower: %s: %s", type(error).__name__, error)
        return None
    return found


_compiled = OnDemand(_load, enough=4_096)  # entries, hashed and run one by one in a tenth of the time of loading


def _self_test(found: CompiledLedger) -> None:
    """Compare every loop with the reference; raises RuntimeError. Compiles everything on the way."""
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
        and found.kernel.sum_by_number(chain_of, places, 3).tolist() == [0, 64, 64]
        and extended[:32] == chain
    ):
        raise RuntimeError("the compiled kernel disagrees with the reference")


if __name__ == "__main__":
    print("compiling the ledger's loops (once, about 15 s) …", end=" ", file=sys.stderr, flush=True)
    print("done" if compiled() else "without success", file=sys.stderr)
