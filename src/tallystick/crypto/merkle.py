"""Append-only Merkle trees: the hashing of RFC 6962 and the proof algorithms of RFC 9162, with SHA-256.

Threat: a server that shows a leaf that is not in the tree it signed, or a tree that is not a continuation of
the one it showed before, or a range of leaves with one left out. Leaves and inner nodes are hashed under
different first bytes, so neither passes for the other. A verifier trusts nothing but sizes and roots it got
elsewhere (an anchor, a checkpoint): it recomputes the root from the proof and raises `Forged` if it differs.
Its work is bounded by the numbers it was given, whatever the proof's author sends: sizes below 2**63, paths
of at most `PATH_MAX` hashes.

The shape of a tree is a function of its size alone: the left child of a node over n leaves spans the largest
power of two below n. So a subtree `[low, high)` of the tree is the fold of complete subtrees, and `Tree`
keeps those only, 32 bytes each, level by level; the root and every proof of *any* earlier size come from the
same levels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from tallystick import wire
from tallystick.errors import Forged, Malformed, Misuse

if TYPE_CHECKING:
    from numpy.typing import NDArray

HASH_BYTES = 32
SIZE_MAX = 2**63 - 1
PATH_MAX = 64  # hashes in a proof: one per level; a range has two edges and may take twice as many
EMPTY_ROOT = hashlib.sha256(b"").digest()

LeafHashes: TypeAlias = "Sequence[bytes] | bytes | bytearray | memoryview | NDArray[Any]"
NodeHash = Callable[[bytes, bytes], bytes]


def leaf_hash(data: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def root(leaf_hashes: LeafHashes) -> bytes:
    """The root over leaf hashes: a sequence, their concatenation, or an (n, 32) array of uint8."""
    level = _joined(leaf_hashes)
    if not level:
        return EMPTY_ROOT
    while len(level) > HASH_BYTES:
        # A last node without a sibling is its own parent: pairing level by level gives RFC 6962's shape.
        alone = level[len(level) // 64 * 64 :]
        level = _parents(level, 0) + alone
    return level


class Tree:
    """A tree in memory with all its levels: any root and any proof of any size up to the present one."""

    def __init__(self, leaf_hashes: LeafHashes = b"") -> None:
        self._levels: list[bytearray] = [bytearray()]  # level k, entry i: the subtree over [i·2^k, (i+1)·2^k)
        self.extend(leaf_hashes)

    @property
    def size(self) -> int:
        return len(self._levels[0]) // HASH_BYTES

    def append(self, leaf_hash: bytes) -> int:
        """The index of the new leaf."""
        node = _checked(leaf_hash)
        index = self.size
        levels = self._levels
        levels[0] += node
        number, position = 0, index
        while position & 1:  # the new node completes a pair
            node = hashlib.sha256(b"\x01" + levels[number][-2 * HASH_BYTES :]).digest()
            number, position = number + 1, position >> 1
            if number == len(levels):
                levels.append(bytearray())
            levels[number] += node
        return index

    def extend(self, leaf_hashes: LeafHashes) -> None:
        self._levels[0] += _joined(leaf_hashes)
        number = 0
        while len(self._levels[number]) >= 2 * HASH_BYTES:
            if number + 1 == len(self._levels):
                self._levels.append(bytearray())
            above = self._levels[number + 1]
            parents = _parents(self._levels[number], 2 * len(above))
            if not parents:
                break
            above += parents
            number += 1

    def truncate(self, size: int) -> None:
        """Forget every leaf from `size` on."""
        self._check_size(size)
        for number, level in enumerate(self._levels):
            del level[(size >> number) * HASH_BYTES :]

    def leaf(self, index: int) -> bytes:
        if not 0 <= index < self.size:
            raise Misuse(f"leaf {index} of a tree of {self.size}")
        return self._node(0, index)

    def root(self, size: int | None = None) -> bytes:
        """The root of the tree, or the one it had at an earlier `size`."""
        size = self.size if size is None else size
        self._check_size(size)
        return self._subtree(0, size) if size else EMPTY_ROOT

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """RFC 9162, section 2.1.3.1: that the leaf is the one at `index` in the tree of `size`."""
        self._check_size(size)
        if not 0 <= index < size:
            raise Misuse(f"inclusion of leaf {index} in a tree of {size}")
        return [self._subtree(low, high) for low, high in siblings(index, size)]

    def consistency(self, old: int, new: int) -> list[bytes]:
        """RFC 9162, section 2.1.4.1: that the tree of `new` leaves continues the one of `old`."""
        self._check_size(new)
        if not 0 <= old <= new:
            raise Misuse(f"consistency from size {old} to {new}")
        if old in (0, new):
            return []
        proof = []
        low, high = 0, new
        while high != old:
            middle = low + _split(high - low)
            if old <= middle:
                proof.append(self._subtree(middle, high))
                high = middle
            else:
                proof.append(self._subtree(low, middle))
                low = middle
        if low:  # else the old tree is itself a node of the new one, and the verifier has its root
            proof.append(self._subtree(low, high))
        proof.reverse()
        return proof

    def range_proof(self, first: int, end: int, size: int) -> list[bytes]:
        """That the leaves `[first, end)` are the tree's: the subtrees beside them, from left to right."""
        self._check_size(size)
        if not 0 <= first < end <= size:
            raise Misuse(f"range [{first}, {end}) of a tree of {size}")
        return [self._subtree(low, high) for low, high in _outside(first, end, 0, size)]

    def _node(self, level: int, index: int) -> bytes:
        return bytes(self._levels[level][index * HASH_BYTES : (index + 1) * HASH_BYTES])

    def _subtree(self, low: int, high: int) -> bytes:
        """The hash of a node of some tree: complete subtrees of falling size, folded from the right."""
        parts = []
        while low < high:
            level = (high - low).bit_length() - 1
            parts.append(self._node(level, low >> level))
            low += 1 << level
        return _fold(parts)

    def _check_size(self, size: int) -> None:
        if not 0 <= size <= self.size:
            raise Misuse(f"tree size {size}: the tree has {self.size} leaves")


class Frontier:
    """The right edge of a tree: enough to append and to know the root, in at most 63 hashes."""

    def __init__(self) -> None:
        self.size = 0
        self._peaks: list[bytes] = []  # complete subtrees of falling size; one per bit set in `size`

    def append(self, leaf_hash: bytes) -> int:
        """The index of the new leaf."""
        node = _checked(leaf_hash)
        index = self.size
        carry = index
        while carry & 1:
            node = node_hash(self._peaks.pop(), node)
            carry >>= 1
        self._peaks.append(node)
        self.size += 1
        return index

    def root(self) -> bytes:
        return _fold(self._peaks) if self._peaks else EMPTY_ROOT

    def encode(self) -> bytes:
        return wire.encode([1, self.size, self._peaks])

    @classmethod
    def decode(cls, data: bytes) -> Frontier:
        """Raises `Malformed`."""
        match wire.decode(data, "frontier"):
            case [1, int(size), list(peaks)] if 0 <= size <= SIZE_MAX and len(peaks) == size.bit_count():
                pass
            case _:
                raise Malformed("frontier: expected [1, size, peaks] with one peak per bit of size")
        if any(type(peak) is not bytes or len(peak) != HASH_BYTES for peak in peaks):
            raise Malformed("frontier: a peak is not a hash")
        frontier = cls()
        frontier.size = int(size)
        frontier._peaks = peaks
        if frontier.encode() != data:  # true passes for 1 in a pattern
            raise Malformed("frontier: a number is not an integer")
        return frontier


def verify_inclusion(leaf_hash: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Raises `Forged` unless the leaf is the one at `index` in the tree of this size and root."""
    if fold_inclusion(leaf_hash, index, size, proof, node_hash) != root:
        raise Forged(f"inclusion of leaf {index} in a tree of {size}: the proof gives another root")


def verify_consistency(old_size: int, old_root: bytes, new_size: int, new_root: bytes, proof: Sequence[bytes]) -> None:
    """RFC 9162, section 2.1.4.2: raises `Forged` unless the new tree continues the old one."""
    what = f"consistency from size {old_size} to {new_size}"
    if not 0 <= old_size <= new_size <= SIZE_MAX:
        raise Forged(f"{what}: sizes out of order or range")
    if old_size in (0, new_size):
        # Every tree continues the empty one, whose root is known; equal sizes have equal roots.
        expected = new_root if old_size else EMPTY_ROOT
        if proof or old_root != expected:
            raise Forged(f"{what}: the roots differ, or hashes too many")
        return
    path = _checked_path(proof, PATH_MAX, what)
    if old_size & (old_size - 1) == 0:
        path.insert(0, old_root)
    if not path:
        raise Forged(f"{what}: the proof is empty")
    node, last = old_size - 1, new_size - 1
    while node & 1:
        node >>= 1
        last >>= 1
    old = new = path[0]
    for sibling in path[1:]:
        if last == 0:
            raise Forged(f"{what}: hashes too many")
        if node & 1 or node == last:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            while not node & 1 and node:
                node >>= 1
                last >>= 1
        else:
            new = node_hash(new, sibling)
        node >>= 1
        last >>= 1
    if last or old != old_root or new != new_root:
        raise Forged(f"{what}: the proof gives other roots")


def verify_range(leaf_hashes: LeafHashes, first: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Raises `Forged` unless the leaves are those from `first` on in the tree of this size and root."""
    leaves = _joined(leaf_hashes)
    end = first + len(leaves) // HASH_BYTES
    what = f"range [{first}, {end}) of a tree of {size}"
    if not 0 <= first < end <= size <= SIZE_MAX:
        raise Forged(f"{what}: empty or out of range")
    rest = iter(_checked_path(proof, 2 * PATH_MAX, what))
    computed = _range_root(leaves, first, end, 0, size, rest, what)
    if next(rest, None) is not None:
        raise Forged(f"{what}: hashes too many")
    if computed != root:
        raise Forged(f"{what}: the proof gives another root")


def siblings(index: int, size: int) -> list[tuple[int, int]]:
    """The subtrees `[low, high)` beside the path from leaf `index` up to the root of a tree of `size`."""
    beside = []
    low, high = 0, size
    while high - low > 1:
        middle = low + _split(high - low)
        if index < middle:
            beside.append((middle, high))
            high = middle
        else:
            beside.append((low, middle))
            low = middle
    beside.reverse()
    return beside


def cut(size: int, depth: int) -> list[tuple[int, int]]:
    """The subtrees `[low, high)` at `depth` below the root of a tree of `size`, from left to right.

    A leaf that lies less deep stands for itself, so that they always cover the tree: at least one, at most 2**depth.
    """
    if not 0 <= size <= SIZE_MAX or depth < 0:
        raise Misuse(f"cutting a tree of {size} at depth {depth}")
    parts = [(0, size)] if size else []
    for _ in range(min(depth, PATH_MAX)):
        if all(high - low == 1 for low, high in parts):
            break
        halves = [(low, low + _split(high - low), high) if high - low > 1 else (low, high) for low, high in parts]
        parts = [pair for edges in halves for pair in pairwise(edges)]
    return parts


def fold_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], hash_nodes: NodeHash) -> bytes:
    """RFC 9162, section 2.1.3.2, for any node hash: the root that the proof leads to. Raises `Forged`."""
    what = f"inclusion of leaf {index} in a tree of {size}"
    if not 0 <= index < size <= SIZE_MAX:
        raise Forged(f"{what}: out of range")
    node, last = index, size - 1
    computed = leaf
    for sibling in _checked_path(proof, PATH_MAX, what):
        if last == 0:
            raise Forged(f"{what}: hashes too many")
        if node & 1 or node == last:
            computed = hash_nodes(sibling, computed)
            while not node & 1 and node:
                node >>= 1
                last >>= 1
        else:
            computed = hash_nodes(computed, sibling)
        node >>= 1
        last >>= 1
    if last:
        raise Forged(f"{what}: hashes too few")
    return computed


def _range_root(leaves: bytes, first: int, end: int, low: int, high: int, proof: Iterator[bytes], what: str) -> bytes:
    """The hash of `[low, high)`; recursion goes only along the range's two edges, at most 63 deep."""
    if high <= first or end <= low:
        outside = next(proof, None)
        if outside is None:
            raise Forged(f"{what}: hashes too few")
        return outside
    if first <= low and high <= end:
        return root(leaves[(low - first) * HASH_BYTES : (high - first) * HASH_BYTES])
    middle = low + _split(high - low)
    left = _range_root(leaves, first, end, low, middle, proof, what)
    return node_hash(left, _range_root(leaves, first, end, middle, high, proof, what))


def _outside(first: int, end: int, low: int, high: int) -> Iterator[tuple[int, int]]:
    """The largest subtrees of `[low, high)` that do not meet `[first, end)`, from left to right."""
    if high <= first or end <= low:
        yield low, high
    elif low < first or end < high:
        middle = low + _split(high - low)
        yield from _outside(first, end, low, middle)
        yield from _outside(first, end, middle, high)


def _split(size: int) -> int:
    """The largest power of two below `size`."""
    return 1 << (size - 1).bit_length() - 1


def _fold(parts: Sequence[bytes]) -> bytes:
    node = parts[-1]
    for part in reversed(parts[:-1]):
        node = node_hash(part, node)
    return node


def _parents(level: bytes | bytearray, start: int) -> bytes:
    """The parents of the complete pairs of `level` from byte `start` on."""
    sha256 = hashlib.sha256
    return b"".join([sha256(b"\x01" + level[at : at + 64]).digest() for at in range(start, len(level) // 64 * 64, 64)])


def _joined(leaf_hashes: LeafHashes) -> bytes:
    if isinstance(leaf_hashes, bytes | bytearray | memoryview):
        joined = bytes(leaf_hashes)
    elif isinstance(leaf_hashes, Sequence):
        joined = b"".join(map(_checked, cast("Sequence[bytes]", leaf_hashes)))
    else:
        if leaf_hashes.dtype != "uint8" or leaf_hashes.shape[1:] != (HASH_BYTES,):
            raise Misuse(f"leaf hashes: expected (n, 32) of uint8, found {leaf_hashes.shape} of {leaf_hashes.dtype}")
        joined = leaf_hashes.tobytes()
    if len(joined) % HASH_BYTES:
        raise Misuse(f"leaf hashes: {len(joined)} bytes are not a multiple of {HASH_BYTES}")
    return joined


def _checked(node: bytes) -> bytes:
    if len(node) != HASH_BYTES:
        raise Misuse(f"leaf hash: expected {HASH_BYTES} bytes, found {len(node)}")
    return node


def _checked_path(proof: Iterable[bytes], longest: int, what: str) -> list[bytes]:
    path = list(proof)
    if len(path) > longest:
        raise Forged(f"{what}: expected at most {longest} hashes, found {len(path)}")
    if any(len(node) != HASH_BYTES for node in path):
        raise Forged(f"{what}: a hash is not of {HASH_BYTES} bytes")
    return path
