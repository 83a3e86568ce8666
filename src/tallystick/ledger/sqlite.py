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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Misuse, Refused, Unavailable
from tallystick.ledger.block import Block, Head, checkpoint_text, own_head, parse, read_head, sign_checkpoint
from tallystick.ledger.book import Book, found
from tallystick.ledger.contracts.state import R, State, Table
from tallystick.ledger.engine import AuditItem, BlockListener, HistoryItem, LedgerStatistics, Query, Submitted
from tallystick.ledger.proofs import StateProof
from tallystick.ledger.sqlite_store import LedgerReader, LedgerStore
from tallystick.runtime.counting import Counts
from tallystick.trust.notes import Note
from tallystick.trust.receipt import EntryProof
from tallystick.trust.trustfile import TrustFile

T = TypeVar("T")

_INDEXED_AT_ONCE = 4_096  # transactions, some milliseconds


@dataclass(frozen=True)
class LedgerSettings:
    block_entries: int = 512  # entries that make a block due (BPS 4.5, Fig. 7)
    window_ms: int = 50  # the longest that a transaction waits for company
    block_ms: int = 5_000  # an empty block at least this often: the grain of leases and head age
    block_bytes_max: int = 4 << 20  # as on the chain engine
    versions_max: int = 1_024  # blocks that may wait for witnesses; 300 bytes for each changed key


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
        self.instance, self.origin = trust.instance, trust.origin
        self._key, self._settings = key, settings
        self._lock = threading.RLock()  # of those who write: blocks are made one after the other
        self._stored = threading.Condition()  # a block was, or was dropped
        self._listeners: list[BlockListener] = []
        self._entries, self._refusals = 0, Counts()
        self._opened_ms = 0  # when the open block got its first transaction
        self._store = LedgerStore(path, vfs)
        # A file under a VFS of ours, or in memory, has one connection.
        self._path = path if vfs is None and path != ":memory:" else None
        self._idle: list[LedgerStore] = []  # connections of those who searched
        if self._store.last_height() is None:
            found(self._store, trust, now_ms, key)
        self._book = Book(self._store, self.instance)
        self._reader = self._book.reader
        self._published = self._newest_published()
        self._sealing = False
        self._told = self._book.last  # the newest block that listeners have heard of

    def close(self) -> None:
        """Drop what was not made into a block, and the file."""
        with self._lock:
            self._book.drop()
            self._wake()
            self._store.close()
            for store in self._idle:
                store.close()

    # --- writing ---

    def submit(self, data: bytes, now_ms: int) -> Submitted:
        transaction = parse(data)
        with self._lock:
            known = self._find(transaction.leaf)
            if known is not None:
                return known
            opened = self._book.open
            if opened is not None and opened.size_bytes + len(data) > self._settings.block_bytes_max:
                self._seal()
            is_first = self._book.open is None
            self._open(now_ms)
            result, submitted = self._book.run(transaction)
            if not result.accepted:
                self._refusals.add(result.reason)
                if is_first:
                    self._book.open = None  # nothing is in it: no block is due
                raise Refused(result.told, reason=result.reason)
            return submitted

    def tick(self, now_ms: int) -> Block | None:
        """Make a block if one is due."""
        with self._lock:
            opened, settings = self._book.open, self._settings
            if opened is None:
                is_due = now_ms - self._book.last.time_ms >= settings.block_ms
            else:
                is_full = opened.entries >= settings.block_entries
                is_due = is_full or now_ms - self._opened_ms >= settings.window_ms
            return self.flush(now_ms) if is_due else None

    def flush(self, now_ms: int) -> Block:
        """Make a block now, of whatever waits."""
        with self._lock:
            self._open(now_ms)
            return self._seal()

    def wait(self, submitted: Submitted, timeout_s: float) -> Block:
        def settled() -> bool:
            opened = self._book.open
            waiting = opened is not None and submitted.leaf in opened.leaves
            return self._told.size > submitted.number or not (waiting or self._sealing)

        with self._stored:
            if not self._stored.wait_for(settled, timeout_s):
                raise Unavailable(f"ledger: block {submitted.height} is not made yet")
        with self._book.proving:
            is_stored = self._told.size > submitted.number
            if not is_stored or self._book.tree.leaf(submitted.number) != submitted.leaf:
                raise Unavailable("ledger: the block was not stored", hint="submit the transaction again")
        return self.block(submitted.height)

    def _wake(self) -> None:
        with self._stored:
            self._stored.notify_all()

    def on_block(self, listener: BlockListener) -> None:
        self._listeners.append(listener)

    # --- checkpoints ---

    def checkpoint(self) -> bytes:
        return self._head().note

    def newest_note(self) -> bytes:
        """The newest note, witnesses or not: what is shown to them."""
        with self._searching() as reader:
            return reader.note(self.height)

    def cosign(self, note: bytes) -> Head:
        """Take a note of ours back with cosignatures; it is published once they suffice. Raises `Forged`."""
        with self._lock:
            head = read_head(note, self._book.trust)
            text = checkpoint_text(self.origin, self.block(head.height))
            if Note.decode(note).text != text:
                raise Forged(f"checkpoint: not the one of height {head.height}")
            self._store.set_note(head.height, note)
            if self._published is None or head.height > self._published.height:
                self._publish(head)
            return head

    def consistency(self, old: int, new: int) -> list[bytes]:
        with self._book.proving:
            return self._book.tree.consistency(old, new)

    def receipt(self, number: int, entry: int) -> EntryProof:
        with self._searching() as reader, self._book.proving:
            head = self._head()
            return self._book.receipt(number, entry, head.size, head.note, reader)

    def state(self, key: bytes) -> StateProof:
        # The file may hold the block behind the published head already; what that replaced is known.
        with self._searching() as reader, self._book.proving:
            head = self._head()
            return self._book.prove(key, head.height, head.note, reader)

    # --- reading ---

    @property
    def height(self) -> int:
        return self._book.last.height

    def block(self, height: int) -> Block:
        last = self._book.last
        if last.height == height:  # what nearly everybody asks for, with every request
            return last
        with self._searching() as reader:
            return reader.block(height)

    def blocks(self, first: int, most: int) -> list[tuple[bytes, list[bytes]]]:
        with self._searching() as reader:
            return reader.blocks(first, most)

    def history(self, token: bytes, most: int = 1000, before: tuple[int, int] | None = None) -> list[HistoryItem]:
        with self._searching() as reader:
            return reader.history(token, most, before)

    def audit(self, query: Query) -> list[AuditItem]:
        while query.principal is not None:  # the index is written here, and by steps: others want the lock meanwhile
            with self._lock:
                if not self._store.index_mentions(_INDEXED_AT_ONCE):
                    break
        with self._searching() as reader:
            return reader.audit(query)

    @contextmanager
    def _searching(self) -> Iterator[LedgerReader]:
        """A reader with a connection of its own: whoever looks for long keeps nobody from a block or a right."""
        if self._path is None:
            with self._lock:
                yield self._reader
            return
        try:
            store = self._idle.pop()
        except IndexError:
            store = LedgerStore(self._path, create=False)
        try:
            yield LedgerReader(store, indexing=False)
        finally:
            self._idle.append(store)

    def query(self, read: Callable[[State], T]) -> T:
        # Guards ask for rights with the carrier's lock held: they do not wait for a large transaction, or for the disk.
        with self._searching() as reader, reader.store.snapshot():
            return read(reader.view)

    def scan(self, table: Table[R], *parts: bytes | int, most: int = 1000) -> list[tuple[tuple[Any, ...], R]]:
        with self._searching() as reader:
            return reader.scan(table, *parts, most=most)

    def statistics(self) -> LedgerStatistics:
        last, opened, published = self._book.last, self._book.open, self._published  # whole values, without the lock
        return LedgerStatistics(
            height=last.height,
            time_ms=last.time_ms,
            transactions=last.size,
            waiting_entries=0 if opened is None else opened.entries,
            published_height=None if published is None else published.height,
            entries=self._entries,
            refusals=self._refusals.snapshot(),
        )

    # --- within ---

    def _open(self, now_ms: int) -> None:
        if self._book.open is None:
            self._opened_ms = now_ms
            self._book.begin(now_ms)

    def _seal(self) -> Block:
        """Store the open block, or drop it and raise `Unavailable`."""
        is_witnessed = self._book.trust.quorum > 0
        self._sealing = True
        try:
            block = self._book.seal().block
            note = sign_checkpoint(self.origin, block, self._key)
            kept = self._book.keep(note)
            self._entries += kept.entries
            if is_witnessed:
                self._book.forget_before(block.height - self._settings.versions_max)
            else:
                self._publish(own_head(self.origin, block, note))
            for listener in self._listeners:
                listener(block, kept.changes.keys())
            self._told = block
            return block
        finally:
            self._sealing = False
            self._wake()

    def _publish(self, head: Head) -> None:
        with self._book.proving:
            self._published = head
            self._book.forget_before(head.height)

    def _head(self) -> Head:
        if self._published is None:
            raise Unavailable("ledger: no checkpoint has the witnesses' quorum yet", hint="start the witnesses")
        return self._published

    def _newest_published(self) -> Head | None:
        newest, trust = self.height, self._book.trust
        for height in range(newest, max(-1, newest - self._settings.versions_max), -1):
            try:
                return read_head(self._reader.note(height), trust)
            except Forged:
                continue
        return None

    def _find(self, leaf: bytes) -> Submitted | None:
        opened = self._book.open
        if opened is not None and leaf in opened.leaves:
            return opened.leaves[leaf]
        return self._store.find(leaf)
