"""Snapshots: how a validator joins without executing the whole history, and believes no peer.

Threat: a peer that sends another state. What a joining node knows is the app hash, which its light client verified, and
the block of that height, on which two thirds of the validators agree. The description of a snapshot holds that block,
the roots of its parts of the tree's leaves, and the roots of its parts of the state; all of them fold to the roots that
the app hash commits to, or the snapshot is refused before anything is fetched. Then each chunk is checked alone against
its own root, so a bad one is fetched again from somebody else, and who sent it is banned. Chunks are strict CBOR.

    description  wire [1, block, [root of 2^15 leaves, …], depth, [[root, is single leaf], … 2^depth of them]]
    chunk        of leaves: their concatenation; of the state: wire [[key, value], …] in the order of their places

Not in it: transactions. A validator that joined so proves everything from its first height on, and says of older
entries that others hold them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.crypto.merkle_map import join_subtrees, place_prefix, subtree
from tallystick.errors import Forged, Malformed
from tallystick.ledger.block import Block
from tallystick.ledger.cometbft.roots import app_hash_of
from tallystick.wire import Fields

FORMAT = 1
LEAVES_EACH = 1 << 15  # one MiB; a power of two, so that a part is a subtree
KEYS_EACH = 4096  # of the state in a chunk, on average: below a MiB
DEPTH_MAX = 12
CHUNK_BYTES_MAX = 15 << 20  # CometBFT sends 16 MiB at most
DESCRIPTION_BYTES_MAX = 3 << 20


@dataclass(frozen=True)
class Description:
    block: Block
    leaf_roots: tuple[bytes, ...]
    depth: int
    state_roots: tuple[tuple[bytes, bool], ...]

    @property
    def chunks(self) -> int:
        return len(self.leaf_roots) + len(self.state_roots)

    def encode(self) -> bytes:
        roots = [[root, single] for root, single in self.state_roots]
        return wire.encode([1, self.block.encoded, list(self.leaf_roots), self.depth, roots])

    @classmethod
    def decode(cls, data: bytes) -> Description:
        """Raises `Malformed`, or `Forged` where the parts do not fold to the block's roots."""
        if len(data) > DESCRIPTION_BYTES_MAX:
            raise Malformed(f"snapshot: a description of {len(data)} bytes")
        fields = Fields.parse(data, "snapshot", 5)
        fields.version(1)
        block = Block.decode(fields.octets())
        leaf_roots = tuple(fields.items(DESCRIPTION_BYTES_MAX))
        depth = fields.number(DEPTH_MAX)
        roots = fields.items(1 << DEPTH_MAX)
        if len(roots) != 1 << depth or not all(_is_part(root) for root in roots):
            raise Malformed("snapshot: the parts of the state are not pairs of root and flag, one for each prefix")
        if len(leaf_roots) != -(-block.size // LEAVES_EACH) or not all(
            type(root) is bytes and len(root) == 32 for root in leaf_roots
        ):
            raise Malformed("snapshot: not one root for each part of the leaves")
        found = cls(block, leaf_roots, depth, tuple((root, single) for root, single in roots))
        if merkle.root(b"".join(leaf_roots)) != block.root:
            raise Forged("snapshot: the parts of its leaves lead to another root")
        if join_subtrees(found.state_roots) != block.state_root:
            raise Forged("snapshot: the parts of its state lead to another root")
        return found


def cut(
    block: Block, leaves: bytes, items: Iterable[tuple[bytes, bytes]], count: int
) -> tuple[Description, list[bytes]]:
    """The description and the chunks of a ledger at `block`; `count` is about how many `items` there are."""
    depth = min(DEPTH_MAX, max(0, (count // KEYS_EACH).bit_length()))
    parts: list[list[tuple[bytes, bytes, bytes]]] = [[] for _ in range(1 << depth)]
    for key, value in items:
        place = sha256(key).digest()
        parts[place_prefix(place, depth)].append((place, key, value))
    chunks = [leaves[at : at + 32 * LEAVES_EACH] for at in range(0, len(leaves), 32 * LEAVES_EACH)]
    leaf_roots = tuple(merkle.root(chunk) for chunk in chunks)
    state_roots = []
    for prefix, part in enumerate(parts):
        part.sort()
        state_roots.append(subtree({key: value for _, key, value in part}, prefix, depth))
        chunks.append(wire.encode([[key, value] for _, key, value in part]))
    return Description(block, leaf_roots, depth, tuple(state_roots)), chunks


class Restore:
    """A snapshot on its way in."""

    def __init__(self, description: Description, app_hash: bytes, agreed: bytes) -> None:
        """`agreed` is the block on which two thirds of the validators agree; raises `Forged`."""
        if app_hash_of(description.block) != app_hash:
            raise Forged("snapshot: its block is not the one under the verified app hash")
        if description.block.encoded != agreed:
            raise Forged("snapshot: its block is not the one on which the validators agree")
        self.description = description
        self._chunks: dict[int, bytes | dict[bytes, bytes]] = {}

    def apply(self, index: int, chunk: bytes) -> None:
        """Take a chunk; raises `Forged` or `Malformed` where it is not the one that is wanted."""
        if not 0 <= index < self.description.chunks or len(chunk) > CHUNK_BYTES_MAX:
            raise Malformed(f"snapshot: no chunk {index} of {len(chunk)} bytes")
        first_state = len(self.description.leaf_roots)
        if index < first_state:
            if len(chunk) % 32 or merkle.root(chunk) != self.description.leaf_roots[index]:
                raise Forged(f"snapshot: chunk {index} holds other leaves")
            self._chunks[index] = chunk
            return
        prefix = index - first_state
        items = _read_items(chunk)
        if subtree(items, prefix, self.description.depth) != self.description.state_roots[prefix]:
            raise Forged(f"snapshot: chunk {index} holds another part of the state")
        self._chunks[index] = items

    @property
    def is_whole(self) -> bool:
        return len(self._chunks) == self.description.chunks

    def leaves(self) -> bytes:
        return b"".join(
            chunk
            for index in range(len(self.description.leaf_roots))
            if isinstance(chunk := self._chunks[index], bytes)
        )

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        for chunk in self._chunks.values():
            if isinstance(chunk, dict):
                yield from chunk.items()


def _is_part(part: object) -> bool:
    return isinstance(part, list) and [type(one) for one in part] == [bytes, bool] and len(part[0]) == 32


def _read_items(chunk: bytes) -> dict[bytes, bytes]:
    pairs = wire.decode(chunk, "snapshot chunk")
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list) and [type(one) for one in pair] == [bytes, bytes] for pair in pairs
    ):
        raise Malformed("snapshot chunk: expected pairs of key and value")
    items = dict(pairs)
    if len(items) != len(pairs):
        raise Malformed("snapshot chunk: a key stands in it twice")
    return items
