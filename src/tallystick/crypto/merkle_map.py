"""A sparse Merkle map: one root over a set of keys and values, with proofs that a key is there and that it
is not.

Threat: a ledger that answers "no such right" or "still valid" against its own state. A key's place is its
SHA-256 read bit by bit from the root; a leaf stands at the first depth where its key is alone. From a given
root each key's path has exactly one end (its own leaf, another key's leaf, or an empty subtree), because a
hash has one preimage and leaves, inner nodes and the empty subtree cannot pass for one another:

    leaf   SHA-256(0x00 ‖ SHA-256(key) ‖ SHA-256(value))
    inner  SHA-256(0x01 ‖ left ‖ right)
    empty  32 zero bytes

So presence and absence exclude each other even under a root whose author cheated. Invariant: the root is a
function of the contents only, whatever the order of updates; a subtree that is left with one leaf collapses
into that leaf.

Nodes are stored by their hash, so versions coexist and an old root can still be proved from. An update
reports the nodes it added and those that the new version no longer reaches; deleting the latter is the
caller's, and must spare what a later update has added again. Left out: values (only their hashes are here),
and checking the store itself: a node that was altered at rest gives proofs that do not verify.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from tallystick import wire
from tallystick.errors import Forged, Malformed

HASH_BYTES = 32
EMPTY = bytes(HASH_BYTES)
DEPTH_MAX = 8 * HASH_BYTES

_LEAF = 0  # the first byte of a stored leaf; that of an inner node is 1


@dataclass(frozen=True)
class MapChange:
    """What an update did: the new root, the nodes it needs, and the nodes only older versions need."""

    root: bytes
    added: dict[bytes, bytes]
    stale: set[bytes]


class MerkleMap:
    """A view of one version of a map; `update` moves it to the next one."""

    def __init__(self, nodes: MutableMapping[bytes, bytes], root: bytes = EMPTY) -> None:
        self.root = root
        self._nodes = nodes

    def update(self, changes: Mapping[bytes, bytes | None]) -> MapChange:
        """Set each key to its value, or remove it if that is None; new nodes are stored, none deleted."""
        batch = _Batch(self._nodes, changes)
        root = batch.apply(self.root, 0, 0, len(batch.changes))
        change = MapChange(root, batch.added, batch.stale.difference(batch.added))
        self._nodes.update(change.added)
        self.root = root
        return change

    def value_hash(self, key: bytes) -> bytes | None:
        """The SHA-256 of the key's value, or None where the key is absent."""
        place = _sha256(key)
        _, end = self._descend(place)
        return end[33:] if end is not None and end[1:33] == place else None

    def prove(self, key: bytes) -> bytes:
        """The proof of a key's value or absence: `[1, siblings from the root, other leaf or null]`."""
        place = _sha256(key)
        siblings, end = self._descend(place)
        other = None if end is None or end[1:33] == place else [end[1:33], end[33:]]
        return wire.encode([1, [b"" if sibling == EMPTY else sibling for sibling in siblings], other])

    def _descend(self, place: bytes) -> tuple[list[bytes], bytes | None]:
        """The siblings along the path of `place`, and the leaf at its end, if any."""
        siblings: list[bytes] = []
        node = self.root
        while node != EMPTY:
            data = _load(self._nodes, node)
            if data[0] == _LEAF:
                return siblings, data
            left, right = data[1:33], data[33:]
            node, sibling = (right, left) if _bit(place, len(siblings)) else (left, right)
            siblings.append(sibling)
        return siblings, None


def verify_map(root: bytes, key: bytes, value: bytes | None, proof: bytes) -> None:
    """Raises `Forged` unless the map of this root holds `value` under `key`, or nothing if `value` is None.

    A proof that is no proof at all is `Malformed`.
    """
    siblings, other = _decode_proof(proof)
    place = _sha256(key)
    if other is not None:
        if value is not None:
            raise Forged("map proof: shows another key's leaf, expected this key's value")
        if other[0] == place or _common_bits(other[0], place) < len(siblings):
            raise Forged("map proof: the leaf shown does not stand in this key's way")
        node = _sha256(_leaf(*other))
    else:
        node = EMPTY if value is None else _sha256(_leaf(place, _sha256(value)))
    for depth in range(len(siblings) - 1, -1, -1):
        sibling = siblings[depth]
        node = _sha256(_inner(sibling, node) if _bit(place, depth) else _inner(node, sibling))
    if node != root:
        raise Forged("map proof: leads to another root")


class _Batch:
    """One update: changes in order of their places, one descent, each new node hashed once."""

    def __init__(self, nodes: Mapping[bytes, bytes], changes: Mapping[bytes, bytes | None]) -> None:
        self.nodes = nodes
        self.changes = sorted(
            (_sha256(key), None if value is None else _sha256(value)) for key, value in changes.items()
        )
        self.added: dict[bytes, bytes] = {}
        self.stale: set[bytes] = set()

    def apply(self, node: bytes, depth: int, first: int, end: int) -> bytes:
        """The subtree `node` at `depth` after the changes `[first, end)`, which all lie within it."""
        if end - first == 1:
            return self._apply_one(node, depth, *self.changes[first])
        data = None if node == EMPTY else _load(self.nodes, node)
        if data is None or data[0] == _LEAF:
            return self._rebuild(node, data, depth, self.changes[first:end])
        middle = _split(self.changes, depth, first, end)
        old_left, old_right = data[1:33], data[33:]
        left = self.apply(old_left, depth + 1, first, middle) if first < middle else old_left
        right = self.apply(old_right, depth + 1, middle, end) if middle < end else old_right
        if left == old_left and right == old_right:
            return node
        self.stale.add(node)
        return self._join(left, right)

    def _apply_one(self, top: bytes, depth: int, place: bytes, value_hash: bytes | None) -> bytes:
        """As `apply` for a single change, without recursion: most of an update's work is here."""
        nodes, added, sha256 = self.nodes, self.added, hashlib.sha256
        path: list[tuple[bytes, bytes]] = []
        node, leaf = top, None
        while node != EMPTY:
            data = nodes.get(node) or _load(nodes, node)
            if data[0] == _LEAF:
                leaf = data
                break
            path.append((node, data))
            node = data[33:] if place[depth >> 3] & 128 >> (depth & 7) else data[1:33]
            depth += 1
        if leaf is not None and value_hash is not None and leaf[1:33] == place:
            if leaf[33:] == value_hash:
                return top
            self.stale.add(node)
            child = self._store(_leaf(place, value_hash))
        else:
            child = self._rebuild(node, leaf, depth, [(place, value_hash)])
        if child == node:
            return top
        for parent, data in reversed(path):
            depth -= 1
            self.stale.add(parent)
            left, right = data[1:33], data[33:]
            if place[depth >> 3] & 128 >> (depth & 7):
                right = child
            else:
                left = child
            if left == EMPTY or right == EMPTY:
                child = self._join(left, right)
            else:
                data = b"\x01" + left + right
                child = sha256(data).digest()
                added[child] = data
        return child

    def _rebuild(self, node: bytes, leaf: bytes | None, depth: int, changes: list[tuple[bytes, bytes | None]]) -> bytes:
        """A subtree of at most one leaf after `changes`."""
        present = [(place, value_hash) for place, value_hash in changes if value_hash is not None]
        if leaf is not None:
            if all(place != leaf[1:33] for place, _ in changes):
                present = sorted([*present, (leaf[1:33], leaf[33:])])
            if present == [(leaf[1:33], leaf[33:])]:
                return node
            self.stale.add(node)
        return self._build(present, depth, 0, len(present))

    def _build(self, leaves: list[tuple[bytes, bytes]], depth: int, first: int, end: int) -> bytes:
        """A new subtree over sorted leaves."""
        if first == end:
            return EMPTY
        if end - first == 1:
            return self._store(_leaf(*leaves[first]))
        middle = _split(leaves, depth, first, end)
        left = self._build(leaves, depth + 1, first, middle)
        return self._store(_inner(left, self._build(leaves, depth + 1, middle, end)))

    def _join(self, left: bytes, right: bytes) -> bytes:
        """The parent of two subtrees, or the only leaf below it."""
        if left == EMPTY and self._is_single(right):
            return right
        if right == EMPTY and self._is_single(left):
            return left
        return self._store(_inner(left, right))

    def _is_single(self, node: bytes) -> bool:
        if node == EMPTY:
            return True
        data = self.added.get(node) or _load(self.nodes, node)
        return data[0] == _LEAF

    def _store(self, data: bytes) -> bytes:
        node = hashlib.sha256(data).digest()
        self.added[node] = data
        return node


def _decode_proof(proof: bytes) -> tuple[list[bytes], list[bytes] | None]:
    match wire.decode(proof, "map proof"):
        case [version, list(siblings), (None | [bytes(), bytes()]) as other] if type(version) is int:
            pass
        case _:
            raise Malformed("map proof: expected version, siblings and a leaf or null")
    if version != 1:
        raise Malformed(f"map proof: expected version 1, found {version}")
    if len(siblings) > DEPTH_MAX:
        raise Malformed(f"map proof: expected at most {DEPTH_MAX} siblings, found {len(siblings)}")
    for sibling in siblings:
        # The empty subtree is written as the empty string, and in no other way.
        if type(sibling) is not bytes or len(sibling) not in (0, HASH_BYTES) or sibling == EMPTY:
            raise Malformed("map proof: a sibling is neither a hash nor empty")
    if other is not None and any(len(part) != HASH_BYTES for part in other):
        raise Malformed("map proof: the leaf is not two hashes")
    return [sibling or EMPTY for sibling in siblings], other


def _load(nodes: Mapping[bytes, bytes], node: bytes) -> bytes:
    data = nodes.get(node)
    if data is None:
        raise Malformed(f"map node {node.hex()} is missing from the store")
    return data


def _leaf(place: bytes, value_hash: bytes) -> bytes:
    return b"\x00" + place + value_hash


def _inner(left: bytes, right: bytes) -> bytes:
    return b"\x01" + left + right


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _bit(place: bytes, depth: int) -> int:
    return place[depth >> 3] >> (7 - (depth & 7)) & 1


def _common_bits(left: bytes, right: bytes) -> int:
    difference = int.from_bytes(left, "big") ^ int.from_bytes(right, "big")
    return DEPTH_MAX - difference.bit_length()


def _split(
    entries: list[tuple[bytes, bytes]] | list[tuple[bytes, bytes | None]], depth: int, first: int, end: int
) -> int:
    """Where the entries `[first, end)`, alike in their first `depth` bits, go over from bit 0 to bit 1."""
    while first < end:
        middle = (first + end) // 2
        if _bit(entries[middle][0], depth):
            end = middle
        else:
            first = middle + 1
    return first


def subtree(items: Mapping[bytes, bytes], prefix: int, depth: int) -> tuple[bytes, bool]:
    """Root of the part of a map under the first `depth` bits `prefix`, and whether it is a single leaf.

    Raises `Forged` where a key lies elsewhere.
    """
    leaves = sorted((_sha256(key), _sha256(value)) for key, value in items.items())
    if any(place_prefix(place, depth) != prefix for place, _ in leaves):
        raise Forged(f"map part {prefix}: it holds a key that lies elsewhere")
    return _Batch({}, {})._build(leaves, depth, 0, len(leaves)), len(leaves) == 1


def join_subtrees(parts: Sequence[tuple[bytes, bool]]) -> bytes:
    """The root of a map whose parts, 2**depth of them in the order of their prefixes, `subtree` gave."""
    if len(parts) == 1:
        return parts[0][0]
    joined = []
    for (left, left_single), (right, right_single) in zip(parts[::2], parts[1::2], strict=True):
        if left == EMPTY and (right == EMPTY or right_single):
            joined.append((right, right_single))
        elif right == EMPTY and left_single:
            joined.append((left, left_single))
        else:
            joined.append((_sha256(_inner(left, right)), False))
    return join_subtrees(joined)


def place_prefix(place: bytes, depth: int) -> int:
    """The first `depth` bits (at most 32) of a place, which is the SHA-256 of a key."""
    return int.from_bytes(place[:4], "big") >> (32 - depth)
