"""The Merkle map over the state, in memory, with as many of its versions as proofs are asked of.

Nodes live in memory and are built again from the stored values when a ledger is opened: written to disk, each block
would touch hundreds of pages in random places. Some 300 bytes a key: 10,000 vehicles with rights, permits and
offsets take about 30 MB and two seconds to open; a chain engine for millions keeps its nodes on disk.

Proofs are given under the newest checkpoint that has its witnesses, which may lie a few blocks back. Versions since
then are kept: the nodes, which are named by their hashes and coexist, and the values that blocks replaced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from tallystick.crypto.merkle_map import MerkleMap

Changes = Mapping[bytes, bytes | None]


class StateMap:
    """Roots and proofs over key and value; the values themselves are stored elsewhere."""

    def __init__(self, items: Iterable[tuple[bytes, bytes]], height: int) -> None:
        self._nodes: dict[bytes, bytes] = {}
        self._map = MerkleMap(self._nodes)
        self._map.update(dict(items))
        self._roots = {height: self._map.root}
        self._height = height
        self._replaced: deque[tuple[int, Changes]] = deque()  # per block: the values before it
        self._stale: deque[tuple[int, set[bytes]]] = deque()  # per block: the nodes that it no longer needs
        self._stale_at: dict[bytes, int] = {}

    @property
    def root(self) -> bytes:
        return self._map.root

    def advance(self, height: int, changes: Changes, before: Changes) -> bytes:
        """The root after `changes`; `before` are the values that they replace."""
        change = self._map.update(changes)
        for node in change.added:
            self._stale_at.pop(node, None)
        self._stale_at.update(dict.fromkeys(change.stale, height))
        self._stale.append((height, change.stale))
        self._replaced.append((height, before))
        self._roots[height] = change.root
        self._height = height
        return change.root

    def take_back(self) -> None:
        """The last block was not stored."""
        height, stale = self._stale.pop()
        for node in stale:
            self._stale_at.pop(node, None)
        self._replaced.pop()
        del self._roots[height]
        self._height = height - 1
        self._map.root = self._roots[self._height]

    def forget_before(self, height: int) -> None:
        """Versions below `height` will not be asked for again."""
        while self._stale and self._stale[0][0] <= height:
            at, stale = self._stale.popleft()
            for node in stale:
                if self._stale_at.get(node) == at:  # else a later version has it again
                    del self._stale_at[node], self._nodes[node]
            self._replaced.popleft()
            self._roots.pop(at - 1, None)

    def has_version(self, height: int) -> bool:
        return height in self._roots

    def prove(self, key: bytes, newest: bytes | None, height: int) -> tuple[bytes | None, bytes]:
        """The value of `key` after the block at `height`, and its proof; `newest` is the value now."""
        value = next((before[key] for at, before in self._replaced if at > height and key in before), newest)
        return value, MerkleMap(self._nodes, self._roots[height]).prove(key)
