"""The embedded ledger: contracts over one SQLite file.

Threat: the operator of this very process, and whoever holds its disk. Nothing here defends against them by secrecy;
everything they could change is covered by a hash that others keep: blocks name their predecessor, the checkpoint
covers tree and state, clients remember checkpoints, witnesses cosign them, `fsck` replays. This module's own promise
is narrower: what it acknowledged it has, in order, after any crash; and a disk that was edited is noticed when it is
opened or proved from.

A transaction runs when it is submitted, on top of the open block; it is kept when the block is. `tick` makes a block
when enough entries wait (512: the best of BPS Fig. 7) or the window has passed, and an empty one every `block_ms`,
because leases and expiries are measured in block time. A driver submits what waits, ticks, and then wakes those who
wait: under load one sync serves many transactions. Time is handed in and never falls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tallystick import wire
from tallystick.crypto.merkle import EMPTY_ROOT, Tree
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Misuse, Refused, Unavailable
from tallystick.ledger.audit import entries_of, find_history, matches
from tallystick.ledger.block import NO_PREVIOUS, Block
from tallystick.ledger.checkpoints import Head, checkpoint_text, own_head, read_head, sign_checkpoint
from tallystick.ledger.contracts import identity
from tallystick.ledger.contracts.execute import Result, execute
from tallystick.ledger.contracts.state import State
from tallystick.ledger.engine import AuditItem, BlockListener, HistoryItem, Query, Submitted
from tallystick.ledger.proofs import StateProof
from tallystick.ledger.sqlite_store import Row, Store
from tallystick.ledger.state_map import StateMap
from tallystick.ledger.transaction import parse
from tallystick.trust.notes import Note
from tallystick.trust.receipt import EntryProof
from tallystick.trust.trustfile import TrustFile

T = TypeVar("T")

INDEX_EVERY = 64  # transactions between two updates of the index of mentions


@dataclass(frozen=True)
class LedgerSettings:
    block_entries: int = 512  # entries that make a block due (BPS 4.5, Fig. 7)
    window_ms: int = 50  # the longest that a transaction waits for company
    block_ms: int = 5_000  # an empty block at least this often: the grain of leases and head age
    block_bytes_max: int = 4 << 20  # as on the chain engine
    versions_max: int = 1_024  # blocks that may wait for witnesses; 300 bytes for each changed key


@dataclass(frozen=True)
class LedgerStatistics:
    height: int
    time_ms: int
    transactions: int
    waiting_entries: int
    published_height: int | None
    entries: int  # accepted since the start
    refusals: int  # transactions refused since the start


@dataclass(slots=True)
class _OpenBlock:
    """Transactions that ran and wait for their block."""

    height: int
    time_ms: int
    first: int
    opened_ms: int
    entries: int = 0
    size_bytes: int = 0
    rows: list[Row] = field(default_factory=list)
    leaves: dict[bytes, Submitted] = field(default_factory=dict)


class SqliteLedger:
    """An `Engine`; safe for several threads of one process. A second process on the file is told so and stopped."""

    def __init__(
        self,
        path: str,
        trust: TrustFile,
        key: SigningKey,
        now_ms: int,
        settings: LedgerSettings = LedgerSettings(),
        vfs: str | None = None,
    ) -> None:
        if key.public.raw not in trust.ledger_keys:
            raise Misuse("ledger: its key is not one of the trust file's ledger keys")
        if trust.ledger_threshold != 1:
            raise Misuse(f"ledger: one key signs here, the trust file asks for {trust.ledger_threshold}")
        self.instance = trust.instance
        self.origin = trust.origin
        self._key = key
        self._settings = settings
        self._lock = threading.RLock()
        self._stored = threading.Condition(self._lock)
        self._listeners: list[BlockListener] = []
        self._entries = self._refusals = 0
        self._open: _OpenBlock | None = None
        self._store = Store(path, vfs)
        if self._store.last_height() is None:
            self._found(trust, now_ms)
        self._load()

    def close(self) -> None:
        """Drop what was not made into a block, and the file."""
        with self._lock:
            self._drop_open()
            self._store.close()

    # --- writing ---

    def submit(self, data: bytes, now_ms: int) -> Submitted:
        transaction = parse(data)
        leaf = transaction.leaf
        with self._lock:
            known = self._find(leaf)
            if known is not None:
                return known
            if self._open is not None and self._open.size_bytes + len(data) > self._settings.block_bytes_max:
                self._seal()
            block = self._open or self._next_block(now_ms)
            result = execute(self._state, transaction, block.height, block.time_ms, block.entries)
            if not result.accepted:
                self._refusals += 1
                where = "" if result.index < 0 else f"entry {result.index}: "
                raise Refused(where + result.message, reason=result.reason)
            number = block.first + len(block.rows)
            submitted = Submitted(leaf, number, block.height, block.entries)
            block.rows.append(
                Row(
                    number=number,
                    leaf=leaf,
                    height=block.height,
                    first=block.entries,
                    refused=result.refused,
                    kinds=result.kinds,
                    principals=b"".join(sorted(result.operators | {transaction.author})),
                    result=result.data,
                    data=transaction.data,
                )
            )
            block.leaves[leaf] = submitted
            block.entries += len(transaction.entries)
            block.size_bytes += len(data)
            self._open = block
            return submitted

    def check(self, data: bytes, now_ms: int) -> Result:
        """What `submit` would make of a transaction, which entry it would refuse and why; nothing is kept."""
        transaction = parse(data)
        with self._lock:
            block = self._open or self._next_block(now_ms)
            return execute(self._state, transaction, block.height, block.time_ms, block.entries, keep=False)

    def tick(self, now_ms: int) -> Block | None:
        """Make a block if one is due."""
        with self._lock:
            if self._open is None:
                if now_ms - self._last.time_ms < self._settings.block_ms:
                    return None
                self._open = self._next_block(now_ms)
                return self._seal()
            full = self._open.entries >= self._settings.block_entries
            if full or now_ms - self._open.opened_ms >= self._settings.window_ms:
                return self._seal()
            return None

    def flush(self, now_ms: int) -> Block:
        """Make a block now, of whatever waits."""
        with self._lock:
            self._open = self._open or self._next_block(now_ms)
            return self._seal()

    def wait(self, submitted: Submitted, timeout_s: float) -> Block:
        def settled() -> bool:
            waiting = self._open is not None and submitted.leaf in self._open.leaves
            return self._tree.size > submitted.number or not waiting

        with self._lock:
            if not self._stored.wait_for(settled, timeout_s):
                raise Unavailable(f"ledger: block {submitted.height} is not made yet")
            if self._tree.size <= submitted.number or self._tree.leaf(submitted.number) != submitted.leaf:
                raise Unavailable("ledger: the block was not stored", hint="submit the transaction again")
            return self.block(submitted.height)

    def on_block(self, listener: BlockListener) -> None:
        self._listeners.append(listener)

    # --- checkpoints ---

    def checkpoint(self) -> bytes:
        return self._head().note

    def newest_note(self) -> bytes:
        """The newest note, witnesses or not: what is shown to them."""
        with self._lock:
            return self._note(self._last.height)

    def cosign(self, note: bytes) -> Head:
        """Take a note of ours back with cosignatures; it is published once they suffice. Raises `Forged`."""
        with self._lock:
            head = read_head(note, self._trust())
            text = checkpoint_text(self.origin, self.block(head.height))
            if Note.decode(note).text != text:
                raise Forged(f"checkpoint: not the one of height {head.height}")
            self._store.set_note(head.height, note)
            if self._published is None or head.height > self._published.height:
                self._publish(head)
            return head

    def consistency(self, old: int, new: int) -> list[bytes]:
        with self._lock:
            return self._tree.consistency(old, new)

    def receipt(self, number: int, entry: int) -> EntryProof:
        with self._lock:
            head = self._head()
            row = self._store.row(number)
            if row is None or number >= head.size:
                raise Unavailable(f"ledger: transaction {number} is not under the published checkpoint yet")
            transaction = parse(row.data)
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
                path=tuple(self._tree.inclusion(number, head.size)),
                note=head.note,
            )

    def state(self, key: bytes) -> StateProof:
        with self._lock:
            head = self._head()
            if not self._map.has_version(head.height):
                raise Unavailable("ledger: its witnesses are behind; the state they vouched for is no longer kept")
            value, proof = self._map.prove(key, self._store.value(key), head.height)
            return StateProof(key, value, proof, head.note)

    # --- reading ---

    @property
    def height(self) -> int:
        return self._last.height

    def block(self, height: int) -> Block:
        with self._lock:
            if not 0 <= height <= self._last.height:
                raise Misuse(f"ledger: no block at height {height}, the newest is {self._last.height}")
            return self._stored_block(height)

    def blocks(self, first: int, most: int) -> list[tuple[bytes, list[bytes]]]:
        with self._lock:
            found = []
            for height in range(first, min(first + most, self._last.height + 1)):
                block = self.block(height)
                rows = self._store.rows(block.first, block.first + block.count)
                found.append((block.encoded, [row.data for row in rows]))
            return found

    def history(self, token: bytes, most: int = 1000, before: tuple[int, int] | None = None) -> list[HistoryItem]:
        with self._lock:
            return find_history(self._view, self._row_at, token, most, before)

    def audit(self, query: Query) -> list[AuditItem]:
        with self._lock:
            if query.token is not None:
                return self._audit_topic(query, query.token)
            end_height = self._last.height + 1 if query.end_height is None else query.end_height
            first, end = self._first_number(query.first_height), self._first_number(end_height)
            if query.principal is not None:
                self._store.index_mentions()
                numbers = self._store.mentioning(query.principal, first, end)
            else:
                numbers = self._store.numbers(first, end, query.kind, query.refused)
            found: list[AuditItem] = []
            for number in numbers:
                row = self._store.row(number)
                assert row is not None
                time_ms = self.block(row.height).time_ms
                found += [item for item in entries_of(row, time_ms) if matches(query, item)]
                if len(found) >= query.most:
                    break
            return found[: query.most]

    def query(self, read: Callable[[State], T]) -> T:
        with self._lock:
            return read(self._view)

    def scan(self, prefix: bytes, most: int = 1000) -> list[tuple[bytes, Any]]:
        with self._lock:
            return [(key, wire.decode(value)) for key, value in self._store.values(prefix, most)]

    def statistics(self) -> LedgerStatistics:
        with self._lock:
            return LedgerStatistics(
                height=self._last.height,
                time_ms=self._last.time_ms,
                transactions=self._tree.size,
                waiting_entries=0 if self._open is None else self._open.entries,
                published_height=None if self._published is None else self._published.height,
                entries=self._entries,
                refusals=self._refusals,
            )

    # --- within ---

    def _found(self, trust: TrustFile, now_ms: int) -> None:
        """Block 0: no transaction, the genesis state."""
        if trust.number != 1:
            raise Misuse(f"ledger: a new one begins with the first trust file, this is number {trust.number}")
        self._store.set_meta("genesis", trust.to_json())
        genesis = identity.genesis(trust.to_json())
        state = StateMap(((key, value) for key, value in genesis.items() if value is not None), 0)
        block = Block(0, now_ms, 0, 0, 0, EMPTY_ROOT, state.root, NO_PREVIOUS)
        note = sign_checkpoint(self.origin, block, self._key)
        self._store.write_block(0, block.encoded, note, [], genesis)

    def _load(self) -> None:
        height = self._store.last_height()
        assert height is not None
        self._last = self._stored_block(height)
        self._tree = Tree(b"".join(self._store.leaves()))
        self._map = StateMap(self._store.values(), height)
        self._state = State(self._store.value)
        self._view = State(self._store.value)
        if (self._tree.size, self._tree.root()) != (self._last.size, self._last.root):
            raise Forged("ledger: its transactions are not those under its newest block", hint="run tally ledger fsck")
        if self._map.root != self._last.state_root:
            raise Forged("ledger: its state is not the one under its newest block", hint="run tally ledger fsck")
        if self._trust().instance != self.instance:
            raise Misuse("ledger: the file belongs to another instance")
        self._published = self._newest_published()
        self._indexed = self._store.indexed

    def _stored_block(self, height: int) -> Block:
        found = self._store.block(height)
        assert found is not None
        return Block.decode(found[0])

    def _next_block(self, now_ms: int) -> _OpenBlock:
        last = self._last
        return _OpenBlock(last.height + 1, max(now_ms, last.time_ms), last.size, now_ms)

    def _seal(self) -> Block:
        """Store the open block, or drop it and raise `Unavailable`."""
        opened = self._open
        assert opened is not None
        changes = self._state.changes()
        retaining = self._trust().quorum > 0
        before = {key: self._store.value(key) for key in changes} if retaining else {}
        state_root = self._map.advance(opened.height, changes, before)
        self._tree.extend(b"".join(row.leaf for row in opened.rows))
        block = Block(
            height=opened.height,
            time_ms=opened.time_ms,
            first=opened.first,
            count=len(opened.rows),
            size=self._tree.size,
            root=self._tree.root(),
            state_root=state_root,
            previous=self._last.hash,
        )
        note = sign_checkpoint(self.origin, block, self._key)
        try:
            self._store.write_block(block.height, block.encoded, note, opened.rows, changes)
        except BaseException:
            self._tree.truncate(opened.first)
            self._map.take_back()
            self._drop_open()
            raise
        self._last = block
        self._open = None
        self._entries += opened.entries
        self._state.seal()
        self._view.refresh(changes)
        if not retaining:
            self._publish(own_head(self.origin, block, note))
        else:
            self._map.forget_before(block.height - self._settings.versions_max)
        self._stored.notify_all()
        if self._tree.size - self._indexed >= INDEX_EVERY:
            self._index()
        for listener in self._listeners:
            listener(block, changes.keys())
        return block

    def _index(self) -> None:
        """Bring the index of mentions up to date; where that fails now, the next block tries again."""
        with suppress(Unavailable):
            self._store.index_mentions()
            self._indexed = self._tree.size

    def _drop_open(self) -> None:
        self._open = None
        self._state.forget_block()
        self._stored.notify_all()

    def _publish(self, head: Head) -> None:
        self._published = head
        self._map.forget_before(head.height)

    def _head(self) -> Head:
        if self._published is None:
            raise Unavailable("ledger: no checkpoint has the witnesses' quorum yet", hint="start the witnesses")
        return self._published

    def _newest_published(self) -> Head | None:
        trust = self._trust()
        for height in range(self._last.height, max(-1, self._last.height - self._settings.versions_max), -1):
            try:
                return read_head(self._note(height), trust)
            except Forged:
                continue
        return None

    def _trust(self) -> TrustFile:
        return identity.trust_file(self._view)

    def _note(self, height: int) -> bytes:
        found = self._store.block(height)
        assert found is not None
        return found[1]

    def _find(self, leaf: bytes) -> Submitted | None:
        if self._open is not None and leaf in self._open.leaves:
            return self._open.leaves[leaf]
        found = self._store.find(leaf)
        return None if found is None else Submitted(leaf, *found)

    def _first_number(self, height: int) -> int:
        return self.block(height).first if height <= self._last.height else self._tree.size

    def _row_at(self, height: int, index: int) -> Row:
        """The transaction that holds entry `index` of the block at `height`."""
        block = self.block(height)
        low, high = block.first, block.first + block.count - 1
        while low < high:
            middle = (low + high + 1) // 2
            row = self._store.row(middle)
            assert row is not None
            low, high = (middle, high) if row.first <= index else (low, middle - 1)
        row = self._store.row(low)
        assert row is not None
        return row

    def _audit_topic(self, query: Query, token: bytes) -> list[AuditItem]:
        found: list[AuditItem] = []
        end = None if query.end_height is None else (query.end_height, 0)
        while len(found) < query.most:
            page = find_history(self._view, self._row_at, token, 1000, end)
            for item in page:
                if item.height < query.first_height:
                    return found
                row = self._row_at(item.height, item.index)
                time_ms = self.block(item.height).time_ms
                audited = entries_of(row, time_ms, item.index - row.first)
                found += [one for one in audited if matches(query, one)]
            if not page:
                break
            end = (page[-1].height, page[-1].index)
        return found[: query.most]
