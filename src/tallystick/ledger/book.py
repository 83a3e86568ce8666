"""How a block comes to be, whatever engine orders the transactions: opened, filled, sealed, kept or dropped.

The tree over transactions and the map over the state are in memory and are ahead of the file between `seal` and `keep`;
`drop` takes them back. So a chain engine may seal a block (which gives its roots), crash, and seal it again, and an
engine whose disk is full has lost nothing but the open block. Proofs come from the same tree and map.

`StateMap` is the Merkle map over the state, with as many of its versions as proofs are asked of. Nodes live in memory
and are built again from the stored values when a ledger is opened: written to disk, each block would touch hundreds of
pages in random places. Some 300 bytes a key: 10,000 vehicles with rights, permits and offsets take about 30 MB and two
seconds to open; a chain engine for millions keeps its nodes on disk.

Proofs are given under the newest checkpoint that has its witnesses, which may lie a few blocks back. Versions since
then are kept: the nodes, which are named by their hashes and coexist, and the values that blocks replaced.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from tallystick import wire
from tallystick.crypto.merkle import EMPTY_ROOT, Tree
from tallystick.crypto.merkle_map import MerkleMap
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Misuse, Unavailable
from tallystick.ledger.block import NO_PREVIOUS, Block, Transaction, parse, sign_checkpoint
from tallystick.ledger.contracts import identity
from tallystick.ledger.contracts.execute import Result, execute
from tallystick.ledger.contracts.state import State
from tallystick.ledger.engine import Submitted
from tallystick.ledger.proofs import StateProof
from tallystick.ledger.sqlite_store import LedgerReader, LedgerStore, TransactionRow
from tallystick.trust.receipt import EntryProof
from tallystick.trust.trustfile import TrustFile

Changes = Mapping[bytes, bytes | None]


class StateMap:
    """Roots and proofs over key and value; the values themselves are stored elsewhere."""

    def __init__(self, items: Iterable[tuple[bytes, bytes]], height: int) -> None:
        self._nodes: dict[bytes, bytes] = {}
        self._map = MerkleMap(self._nodes)
        self._map.update(dict(items))
        self._roots = {height: self._map.root}
        # Per block: its height, the values before it, and the nodes that it no longer needs.
        self._steps: deque[tuple[int, Changes, set[bytes]]] = deque()
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
        self._steps.append((height, before, change.stale))
        self._roots[height] = change.root
        return change.root

    def take_back(self) -> None:
        """The last block was not stored."""
        height, _, stale = self._steps.pop()
        for node in stale:
            self._stale_at.pop(node, None)
        del self._roots[height]
        self._map.root = self._roots[height - 1]

    def forget_before(self, height: int) -> None:
        """Versions below `height` will not be asked for again."""
        while self._steps and self._steps[0][0] <= height:
            at, _, stale = self._steps.popleft()
            for node in stale:
                if self._stale_at.get(node) == at:  # else a later version has it again
                    del self._stale_at[node], self._nodes[node]
            self._roots.pop(at - 1, None)

    def has_version(self, height: int) -> bool:
        return height in self._roots

    def changed_since(self, height: int, prefix: bytes) -> dict[bytes, bytes | None]:
        """What stood after the block at `height` under keys with this prefix that later blocks changed."""
        found: dict[bytes, bytes | None] = {}
        for at, before, _ in reversed(self._steps):
            if at <= height:
                break
            found.update((key, value) for key, value in before.items() if key.startswith(prefix))
        return found

    def prove(self, key: bytes, newest: bytes | None, height: int) -> tuple[bytes | None, bytes]:
        """The value of `key` after the block at `height`, and its proof; `newest` is the value now."""
        value = next((before[key] for at, before, _ in self._steps if at > height and key in before), newest)
        return value, MerkleMap(self._nodes, self._roots[height]).prove(key)


INDEX_EVERY = 64  # transactions between two updates of the index of mentions


@dataclass(slots=True)
class OpenBlock:
    """Transactions that ran and wait for their block."""

    height: int
    time_ms: int
    first: int
    entries: int = 0
    size_bytes: int = 0
    rows: list[TransactionRow] = field(default_factory=list)
    leaves: dict[bytes, Submitted] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SealedBlock:
    """A block with its roots, not yet kept."""

    block: Block
    rows: list[TransactionRow]
    changes: dict[bytes, bytes | None]
    before: dict[bytes, bytes | None]  # the values that they replace
    entries: int


class Book:
    """Tree, state and newest block of one ledger file. One thread writes at a time; while it is at the disk, others may
    have proofs, under `proving`, each by a connection of its own."""

    def __init__(self, store: LedgerStore, instance: bytes | None = None) -> None:
        """Load a file that `found` or an earlier process has begun. Raises `Forged` where it does not fit together, and
        `Misuse` where it is of another instance than the one that is asked for."""
        height = store.last_height()
        assert height is not None
        self.store = store
        self.proving = threading.RLock()  # held wherever tree and map change, which is short
        self.reader = LedgerReader(store)
        self.last = self.reader.block(height)
        self.tree = Tree(b"".join(store.leaves()))
        self.map = StateMap(store.values(), height)
        self.state = State(store.value)
        self.open: OpenBlock | None = None
        self._sealed: SealedBlock | None = None
        self._indexed = store.indexed
        if (self.tree.size, self.tree.root()) != (self.last.size, self.last.root):
            raise Forged("ledger: its transactions are not those under its newest block", hint="run tally ledger fsck")
        if self.map.root != self.last.state_root:
            raise Forged("ledger: its state is not the one under its newest block", hint="run tally ledger fsck")
        if instance not in (None, self.trust.instance):
            raise Misuse("ledger: the file belongs to another instance")

    @property
    def trust(self) -> TrustFile:
        """The newest trust file on the ledger."""
        return identity.trust_file(self.reader.view)

    # --- writing ---

    def begin(self, time_ms: int) -> OpenBlock:
        """The next block; its time never falls."""
        last = self.last
        self.open = OpenBlock(last.height + 1, max(time_ms, last.time_ms), last.size)
        return self.open

    def run(self, transaction: Transaction) -> tuple[Result, Submitted]:
        """Put a transaction through the contracts on top of the open block, and into it if they take it."""
        opened = self.open
        assert opened is not None
        result = execute(self.state, transaction, opened.height, opened.time_ms, opened.entries)
        number = opened.first + len(opened.rows)
        submitted = Submitted(transaction.leaf, number, opened.height, opened.entries)
        if result.accepted:
            opened.rows.append(TransactionRow.of(transaction, result, number, opened.height, opened.entries))
            opened.leaves[submitted.leaf] = submitted
            opened.entries += len(transaction.entries)
            opened.size_bytes += len(transaction.data)
        return result, submitted

    def seal(self) -> SealedBlock:
        """The open block with its roots; the values that it replaces can still be proved."""
        opened = self.open
        assert opened is not None
        changes = self.state.changes()
        before = {key: self.store.value(key) for key in changes}
        with self.proving:
            state_root = self.map.advance(opened.height, changes, before)
            self.tree.extend(b"".join(row.leaf for row in opened.rows))
            block = Block(
                height=opened.height,
                time_ms=opened.time_ms,
                first=opened.first,
                count=len(opened.rows),
                size=self.tree.size,
                root=self.tree.root(),
                state_root=state_root,
                previous=self.last.hash,
            )
            self._sealed = SealedBlock(block, opened.rows, changes, before, opened.entries)
            return self._sealed

    def keep(self, note: bytes, *, can_undo: bool = False) -> SealedBlock:
        """Store the sealed block with its note, synced; where that fails it is dropped and the error raised."""
        sealed = self._sealed
        assert sealed is not None
        block = sealed.block
        undo = wire.encode([block.height, [list(item) for item in sealed.before.items()]]) if can_undo else None
        try:
            self.store.write_block(block.height, block.encoded, note, sealed.rows, sealed.changes, undo)
        except BaseException:
            self.drop()
            raise
        self.last = block
        self.open = self._sealed = None
        self.state.seal()
        self.reader.view.refresh(sealed.changes)
        if self.tree.size - self._indexed >= INDEX_EVERY:
            with suppress(Unavailable):  # the next block tries again
                self.store.index_mentions()
                self._indexed = self.tree.size
        return sealed

    def drop(self) -> None:
        """Forget the open block, sealed or not."""
        with self.proving:
            if self._sealed is not None:
                self.tree.truncate(self._sealed.block.first)
                self.map.take_back()
            self.open = self._sealed = None
        self.state.forget_block()

    def forget_before(self, height: int) -> None:
        """Nobody will ask for proofs of the state before `height` again."""
        with self.proving:
            self.map.forget_before(height)

    # --- proofs ---

    def receipt(
        self, number: int, entry: int, size: int, note: bytes, reader: LedgerReader | None = None
    ) -> EntryProof:
        """The proof that an entry is on the ledger, under the checkpoint `note` of `size` transactions."""
        if not 0 <= number < size:
            raise Unavailable(f"ledger: transaction {number} is not under the published checkpoint yet")
        transaction = parse((reader or self.reader).row(number).data)
        if not 0 <= entry < len(transaction.entries):
            raise Misuse(f"ledger: transaction {number} has {len(transaction.entries)} entries, no {entry}")
        tree = Tree(transaction.entry_hashes)
        return EntryProof(
            entry=transaction.entries[entry],
            index=entry,
            entry_path=tuple(tree.inclusion(entry, tree.size)),
            head=transaction.head,
            signature=transaction.signature,
            number=number,
            path=tuple(self.tree.inclusion(number, size)),
            note=note,
        )

    def prove(self, key: bytes, height: int, note: bytes, reader: LedgerReader | None = None) -> StateProof:
        """A value of the state, or its absence, under the checkpoint `note` of `height`."""
        self._check_version(height)
        value, proof = self.map.prove(key, (reader or self.reader).store.value(key), height)
        return StateProof(key, value, proof, note)

    def scan(self, prefix: bytes, most: int, after: bytes, height: int) -> list[tuple[bytes, bytes]]:
        """The first `most` keys with this prefix behind `after`, each with its value, as after the block at `height`:
        every validator that has the block gives the same."""
        self._check_version(height)
        changed = self.map.changed_since(height, prefix)
        found: list[tuple[bytes, bytes]] = []
        last: bytes | None = after
        while last is not None and len(found) < most:
            rows: dict[bytes, bytes | None] = dict(self.store.values(prefix, most, last))
            end = max(rows) if len(rows) == most else None
            rows |= {key: value for key, value in changed.items() if key > last and (end is None or key <= end)}
            found += sorted((key, value) for key, value in rows.items() if value is not None)
            last = end
        return found[:most]

    def _check_version(self, height: int) -> None:
        if not self.map.has_version(height):
            raise Unavailable(f"ledger: the state of height {height} is not held, the newest is {self.last.height}")


def found(store: LedgerStore, trust: TrustFile, time_ms: int, key: SigningKey) -> None:
    """Begin an empty file with block 0, which holds no transaction; `key` signs its checkpoint."""
    if trust.number != 1:
        raise Misuse(f"ledger: a new one begins with the first trust file, this is number {trust.number}")
    genesis = identity.genesis(trust.to_json())
    state = StateMap(((name, value) for name, value in genesis.items() if value is not None), 0)
    block = Block(0, time_ms, 0, 0, 0, EMPTY_ROOT, state.root, NO_PREVIOUS)
    note = sign_checkpoint(trust.origin, block, key)
    store.set_meta("genesis", trust.to_json())
    store.write_block(0, block.encoded, note, [], genesis)


def roll_back(store: LedgerStore) -> int:
    """Take the newest block of a file back, for a validator that must finalise it again. Returns the height that is
    left.

    Only one: a file keeps how to undo its last block. Signed checkpoints of that height that are abroad stay valid.
    """
    height, undo = store.last_height(), store.meta("undo")
    undo_height, before = wire.decode(undo, "undo") if undo is not None else (None, [])
    if height is None or undo_height != height:
        raise Misuse("ledger: its newest block cannot be taken back", hint="begin again from a snapshot of a peer")
    block = LedgerReader(store).block(height)
    store.take_back(height, block.first, dict(before))
    return height - 1
