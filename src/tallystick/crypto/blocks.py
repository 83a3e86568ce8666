"""The body hash: a tree over blocks of 16 KiB, so that a fragment verifies alone.

The shape is RFC 6962's, the hash inside is BLAKE3, the faster one on bulk: a leaf is BLAKE3(0x00 ‖ block), a
node BLAKE3(0x01 ‖ left ‖ right), an empty body BLAKE3 of nothing. Every block but the last is full, so the
number of blocks follows from the body's length, which the signed header holds beside the root;
`verify_block` takes that length and accepts a block only with the exact length its place demands. `Coding` is the
header's word on the blocks that `crypto/coding.py` makes of a body.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3

from tallystick.crypto.merkle import fold_inclusion, siblings
from tallystick.errors import Forged, Misuse

BLOCK_BYTES = 16384
EMPTY_BODY = blake3(b"").digest()

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Coding:
    """How the body is erasure-coded, and the root over the coded blocks."""

    code: int
    needed: int
    total: int
    block_bytes: int
    root: bytes


def block_hash(block: Buffer) -> bytes:
    return bytes(blake3(b"\x00" + block).digest())  # copying 16 KiB is cheaper than a second update


def block_node(left: bytes, right: bytes) -> bytes:
    return bytes(blake3(b"\x01" + left + right).digest())


def block_count(length: int) -> int:
    return -(-length // BLOCK_BYTES)


def block_hashes(data: Buffer) -> list[bytes]:
    """The leaves of a body."""
    view = memoryview(data).cast("B")
    return [block_hash(view[at : at + BLOCK_BYTES]) for at in range(0, len(view), BLOCK_BYTES)]


def blocks_root(hashes: Sequence[bytes]) -> bytes:
    """The root over block hashes that are already there."""
    level = list(hashes)
    if not level:
        return EMPTY_BODY
    while len(level) > 1:
        parents = [block_node(level[at], level[at + 1]) for at in range(0, len(level) - 1, 2)]
        level = parents + level[len(parents) * 2 :]
    return level[0]


def body_root(data: Buffer) -> bytes:
    """The hash of a body."""
    return blocks_root(block_hashes(data))


def block_proof(hashes: Sequence[bytes], index: int) -> list[bytes]:
    """The path of block `index` among the leaves of its body."""
    if not 0 <= index < len(hashes):
        raise Misuse(f"block {index} of a body of {len(hashes)} blocks")
    return [blocks_root(hashes[low:high]) for low, high in siblings(index, len(hashes))]


def verify_block(block: Buffer, index: int, length: int, proof: Sequence[bytes], root: bytes) -> None:
    """Raises `Forged` unless `block` is number `index` of the body of `length` bytes with this root."""
    count = block_count(length)
    expected = length - (count - 1) * BLOCK_BYTES if index == count - 1 else BLOCK_BYTES
    if len(block) != expected:
        raise Forged(f"block {index} of {count}: expected {expected} bytes, found {len(block)}")
    if fold_inclusion(block_hash(block), index, count, proof, block_node) != root:
        raise Forged(f"block {index} of {count}: the proof gives another root")
