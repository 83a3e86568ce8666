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

The shelf holds the newest few that a validator offers to those who join: cut beside consensus, kept on disk. They lie
beside the ledger's file, `ledger.snapshots/` beside `ledger.sqlite`: `<height>.<chunk>` for each chunk, and
`<height>.description`, written last, so that a snapshot is there whole or not at all. The folder is all there is to
know: another process (`tally chain snapshot --now`) may cut one while the validator runs, and the validator offers it.
Nobody need trust these files, since who joins checks every chunk.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path

from tallystick import wire
from tallystick.abci import messages as m
from tallystick.crypto import merkle
from tallystick.crypto.merkle_map import join_subtrees, place_prefix, subtree
from tallystick.errors import Forged, Malformed, TallystickError, Unavailable
from tallystick.ledger.block import Block
from tallystick.ledger.cometbft.roots import app_hash_of
from tallystick.ledger.sqlite_store import LedgerReader, LedgerStore
from tallystick.runtime.disk import RealDisk, read_all, write_atomic
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
        """`agreed` is the block on which two thirds of the validators agree. Raises `Forged`."""
        if app_hash_of(description.block) != app_hash:
            raise Forged("snapshot: its block is not the one under the verified app hash")
        if description.block.encoded != agreed:
            raise Forged("snapshot: its block is not the one on which the validators agree")
        self.description = description
        self._leaves: dict[int, bytes] = {}
        self._items: dict[int, dict[bytes, bytes]] = {}

    def apply(self, index: int, chunk: bytes) -> None:
        """Take a chunk. Raises `Forged` or `Malformed` where it is not the one that is wanted."""
        if not 0 <= index < self.description.chunks or len(chunk) > CHUNK_BYTES_MAX:
            raise Malformed(f"snapshot: no chunk {index} of {len(chunk)} bytes")
        first_state = len(self.description.leaf_roots)
        if index < first_state:
            if len(chunk) % 32 or merkle.root(chunk) != self.description.leaf_roots[index]:
                raise Forged(f"snapshot: chunk {index} holds other leaves")
            self._leaves[index] = chunk
            return
        prefix = index - first_state
        items = _read_items(chunk)
        if subtree(items, prefix, self.description.depth) != self.description.state_roots[prefix]:
            raise Forged(f"snapshot: chunk {index} holds another part of the state")
        self._items[index] = items

    @property
    def is_whole(self) -> bool:
        return len(self._leaves) + len(self._items) == self.description.chunks

    def leaves(self) -> bytes:
        return b"".join(self._leaves[index] for index in sorted(self._leaves))

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        return chain.from_iterable(part.items() for part in self._items.values())


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


log = logging.getLogger(__name__)

_DESCRIPTION = "description"


@dataclass(frozen=True)
class HeldSnapshot:
    """A snapshot on disk."""

    height: int
    chunks: int
    size_bytes: int
    hash: bytes  # of its description


class Shelf:
    """Snapshots of the ledger in the file `path`, one every `every` blocks (0: none), `kept` of them."""

    def __init__(self, path: str, every: int, kept: int) -> None:
        self._path, self._every, self._kept = path, every, kept
        self.folder = Path(path).with_suffix(".snapshots")
        self._disk = RealDisk(self.folder)
        self._cutting: threading.Thread | None = None

    def close(self) -> None:
        if self._cutting is not None:
            self._cutting.join()

    def committed(self, block: Block) -> None:
        """To be called when `block` is stored and nothing after it: the file's version is held fast at once."""
        if not self._every or block.height % self._every:
            return
        if self._cutting is not None and self._cutting.is_alive():
            return  # the next one will do
        store = LedgerStore(self._path)
        store.hold()
        self._cutting = threading.Thread(target=self._cut, args=(store, block), name="snapshot", daemon=True)
        self._cutting.start()

    def take(self) -> int:
        """Cut one of the file as it is now, whoever else writes to it. Returns its height."""
        store = LedgerStore(self._path, create=False)
        try:
            store.hold()
            height = store.last_height() or 0
            self._keep(store, LedgerReader(store).block(height))
            return height
        except OSError as error:
            raise Unavailable(f"{self.folder}: the snapshot was not written: {error}") from error
        finally:
            store.close()

    def held(self) -> list[HeldSnapshot]:
        """Those that are whole, the oldest first."""
        found = []
        for offered in self.offered().snapshots:
            with suppress(FileNotFoundError):  # it went while we looked
                sizes = [self._disk.size(f"{offered.height}.{part}") for part in (_DESCRIPTION, *range(offered.chunks))]
                found.append(HeldSnapshot(offered.height, offered.chunks, sum(sizes), offered.hash))
        return found

    def offered(self) -> m.ResponseListSnapshots:
        found = []
        for height in self._heights():
            try:
                encoded = read_all(self._disk, f"{height}.{_DESCRIPTION}")
                chunks = Description.decode(encoded).chunks
            except (TallystickError, OSError) as error:
                log.warning("the snapshot of height %d cannot be offered: %s", height, error)
                continue
            found.append(m.Snapshot(height, FORMAT, chunks, sha256(encoded).digest(), encoded))
        return m.ResponseListSnapshots(tuple(found))

    def chunk(self, height: int, format_: int, index: int) -> bytes:
        """Empty where there is no such chunk."""
        if format_ != FORMAT or height not in self._heights():
            return b""
        with suppress(OSError):
            return read_all(self._disk, f"{height}.{index}")
        return b""

    def forget_above(self, height: int) -> None:
        """Drop those of blocks that the file does not have: they were taken back, or the file is another one."""
        self._remove([one for one in self._heights() if one > height])

    def _cut(self, store: LedgerStore, block: Block) -> None:
        try:
            self._keep(store, block)
        except (TallystickError, OSError):
            log.exception("the snapshot of height %d was not made", block.height)
        finally:
            store.close()

    def _keep(self, store: LedgerStore, block: Block) -> None:
        height = block.height
        with self._disk.held("lock"):
            if height in self._heights():
                return
            description, chunks = cut(block, b"".join(store.leaves()), store.values(), store.count_values())
            for index, chunk in enumerate(chunks):
                write_atomic(self._disk, f"{height}.{index}", chunk)
            write_atomic(self._disk, f"{height}.{_DESCRIPTION}", description.encode())
            kept = self._heights()[-self._kept :]
            self._remove([one for one in self._heights(part="") if one < kept[0]])

    def _heights(self, part: str = _DESCRIPTION) -> list[int]:
        """Heights that have this part; those of which there is anything, with an empty one."""
        names = [name.partition(".") for name in self._disk.listdir("") if name != "lock"]
        return sorted({int(height) for height, _, rest in names if part in ("", rest)})

    def _remove(self, heights: list[int]) -> None:
        """Descriptions first: what is half gone is not offered."""
        names = [name for name in self._disk.listdir("") if name != "lock" and int(name.partition(".")[0]) in heights]
        for name in sorted(names, key=lambda name: not name.endswith(_DESCRIPTION)):
            with suppress(FileNotFoundError):
                self._disk.remove(name)
