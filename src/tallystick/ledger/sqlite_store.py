"""The ledger's SQLite file: its tables, the few statements on them, and how blocks, histories and audits are read.

One block is one SQLite transaction, synced before it is acknowledged. One row per transaction, however many entries
it has. What can be computed from the transactions (leaf, place, kinds, result, mentions, state) is stored to be read
quickly, never to be believed: `fsck` computes all of it again. Tables are STRICT, so that SQLite itself finds a cell
whose type was changed.

A reader has its own connection to the file or shares that of the one writer; it is not for several threads at once.
Nothing that it returns is proved. An operation's transaction holds, in its result, where the topic's operation before
it lies; so a history costs what it returns, not what the chain holds (BPS 4.1, Fig. 6).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from struct import pack, unpack
from typing import Any, NamedTuple

import apsw

from tallystick import wire
from tallystick.errors import Malformed, Misuse, Unavailable
from tallystick.ledger.block import Block, Transaction
from tallystick.ledger.contracts.execute import Result
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.operations import HISTORIES
from tallystick.ledger.contracts.state import NO_HISTORY, R, State, Table
from tallystick.ledger.engine import AuditItem, HistoryItem, Query, Submitted

FORMAT = 1

_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE blocks (height INTEGER PRIMARY KEY, data BLOB NOT NULL, note BLOB NOT NULL) STRICT;
CREATE TABLE transactions (
    number INTEGER PRIMARY KEY,  -- in the tree
    leaf BLOB NOT NULL UNIQUE,
    height INTEGER NOT NULL,
    first INTEGER NOT NULL,      -- place in its block of the first entry
    refused INTEGER NOT NULL,    -- operations that tell of a refusal
    kinds BLOB NOT NULL,         -- one byte for each kind of entry in it
    principals BLOB NOT NULL,    -- author and operators, 16 bytes each, in order
    result BLOB NOT NULL,
    data BLOB NOT NULL
) STRICT;
CREATE INDEX refusals ON transactions (number) WHERE refused > 0;
CREATE TABLE mentions (  -- who is author or operator in which transactions
    principal BLOB, first INTEGER, numbers BLOB NOT NULL, PRIMARY KEY (principal, first)
) STRICT, WITHOUT ROWID;
CREATE TABLE state (key BLOB PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;
"""


class TransactionRow(NamedTuple):
    """One stored transaction: its columns, in their order."""

    number: int
    leaf: bytes
    height: int
    first: int
    refused: int
    kinds: bytes
    principals: bytes
    result: bytes
    data: bytes

    @classmethod
    def of(cls, transaction: Transaction, result: Result, number: int, height: int, first: int) -> TransactionRow:
        """What is stored of a transaction that the contracts took."""
        principals = b"".join(sorted(result.operators | {transaction.author}))
        columns = (result.refused, result.kinds, principals, result.data, transaction.data)
        return cls(number, transaction.leaf, height, first, *columns)


_ALL = """
SELECT number FROM transactions WHERE number >= :first AND number < :end
AND (:kind IS NULL OR instr(kinds, :kind) > 0) ORDER BY number"""
_REFUSED = _ALL.replace("WHERE", "WHERE refused > 0 AND")  # a search of its index


class LedgerStore:
    """One ledger file; not for several threads at once. Foreign errors leave as `Unavailable`."""

    def __init__(self, path: str, vfs: str | None = None, *, create: bool = True) -> None:
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
        with _translated(f'ledger "{path}"'):
            try:
                self.db = apsw.Connection(path, flags=flags, vfs=vfs)
            except apsw.CantOpenError as error:
                raise Misuse(f'ledger "{path}": it cannot be opened', hint="name the file of a ledger") from error
            self.db.set_busy_timeout(5_000)
            # A VFS of ours has no shared memory, so no write-ahead log; and the removal of a rollback journal,
            # which is the commit, is synced by EXTRA alone.
            journal, synchronous = ("WAL", "FULL") if vfs is None else ("DELETE", "EXTRA")
            self.db.pragma("journal_mode", journal)
            self.db.pragma("synchronous", synchronous)
            if create and not self.db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'meta'").get:
                with self.db:
                    self.db.execute(_SCHEMA)
                    self.set_meta("format", FORMAT)
            found = self.meta("format")
        if found != FORMAT:
            raise Malformed(
                f'ledger "{path}": format {FORMAT} expected, found {found}',
                reason="version",
                hint="use the release that wrote it, or a newer one",
            )

    def close(self) -> None:
        with _translated("ledger file"):
            self.db.close()

    def meta(self, name: str) -> Any:
        return self.db.execute("SELECT value FROM meta WHERE name = ?", (name,)).get

    def set_meta(self, name: str, value: Any) -> None:
        self.db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def write_block(
        self,
        height: int,
        data: bytes,
        note: bytes,
        rows: Sequence[TransactionRow],
        changes: Mapping[bytes, bytes | None],
        undo: bytes | None = None,
    ) -> None:
        """All of a block, or nothing of it; `undo` says how to take it back, and replaces that of the block before."""
        with _translated(f"ledger block {height}"), self.db:
            self.db.execute("INSERT INTO blocks VALUES (?, ?, ?)", (height, data, note))
            self.db.executemany("INSERT INTO transactions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
            self._write_state(changes)
            if undo is not None:
                self.set_meta("undo", undo)

    def restore(
        self, height: int, data: bytes, note: bytes, leaves: bytes, values: Iterable[tuple[bytes, bytes]]
    ) -> None:
        """Fill an empty file with what a snapshot holds: of transactions below it only the leaves."""
        rows = ((at // 32, leaves[at : at + 32]) for at in range(0, len(leaves), 32))
        with _translated("ledger file"), self.db:
            self.db.execute("INSERT INTO blocks VALUES (?, ?, ?)", (height, data, note))
            self.db.executemany("INSERT INTO transactions VALUES (?, ?, 0, 0, 0, x'', x'', x'', x'')", rows)
            self.db.executemany("INSERT INTO state VALUES (?, ?)", values)
            self.set_meta("indexed", len(leaves) // 32)

    def take_back(self, height: int, first: int, before: Mapping[bytes, bytes | None]) -> None:
        """The newest block and its transactions, gone; the values that it replaced, back."""
        with _translated(f"ledger block {height}"), self.db:
            self.db.execute("DELETE FROM blocks WHERE height = ?", (height,))
            self.db.execute("DELETE FROM transactions WHERE number >= ?", (first,))
            self.db.execute("DELETE FROM mentions")  # made again when they are next asked for
            self.db.execute("DELETE FROM meta WHERE name IN ('undo', 'indexed')")
            self._write_state(before)

    def _write_state(self, changes: Mapping[bytes, bytes | None]) -> None:
        put = [item for item in changes.items() if item[1] is not None]
        gone = [(key,) for key, value in changes.items() if value is None]
        self.db.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", put)
        self.db.executemany("DELETE FROM state WHERE key = ?", gone)

    @property
    def indexed(self) -> int:
        """Transactions below this number are in the index of mentions."""
        return int(self.meta("indexed") or 0)

    def index_mentions(self, most: int = -1) -> bool:
        """Bring the index of mentions up to date, many transactions at once: one row for each principal in them.
        Returns whether there was anything new; if there was, more than `most` may be.

        With every block it would touch a page for each principal, and cost more than the block itself.
        """
        end = self.indexed
        found: dict[bytes, list[int]] = {}
        for number, principals in self._all(
            "SELECT number, principals FROM transactions WHERE number >= ? ORDER BY number LIMIT ?", (end, most)
        ):
            for at in range(0, len(principals), 16):
                found.setdefault(principals[at : at + 16], []).append(number)
            end = number + 1
        rows = [(one, numbers[0], pack(f">{len(numbers)}Q", *numbers)) for one, numbers in sorted(found.items())]
        if rows:
            with _translated("ledger file"), self.db:
                self.db.executemany("INSERT INTO mentions VALUES (?, ?, ?)", rows)
                self.set_meta("indexed", end)
        return bool(rows)

    def mentions(self) -> Iterator[tuple[bytes, int]]:
        """Every (principal, number) in the index."""
        for principal, numbers in self._all("SELECT principal, numbers FROM mentions"):
            for number in _unpack(numbers):
                yield principal, number

    def mentioning(self, principal: bytes, first: int, end: int) -> Iterator[int]:
        """Indexed transactions in `[first, end)` whose author or operator is `principal`, oldest first."""
        statement = "SELECT numbers FROM mentions WHERE principal = ? AND first < ? ORDER BY first"
        for (numbers,) in self._all(statement, (principal, end)):
            yield from (number for number in _unpack(numbers) if first <= number < end)

    def set_note(self, height: int, note: bytes) -> None:
        with _translated(f"ledger block {height}"), self.db:
            self.db.execute("UPDATE blocks SET note = ? WHERE height = ?", (note, height))

    def block(self, height: int) -> tuple[bytes, bytes] | None:
        """Block and note."""
        found: tuple[bytes, bytes] | None = self._one("SELECT data, note FROM blocks WHERE height = ?", (height,))
        return found

    def last_height(self) -> int | None:
        found: int | None = self._one("SELECT max(height) FROM blocks")
        return found

    def count(self) -> int:
        """Stored transactions."""
        return int(self._one("SELECT count(*) FROM transactions"))

    def hold(self) -> None:
        """Read this version of the file from now on, whatever is written to it by others."""
        with _translated("ledger file"):
            self.db.execute("BEGIN")
            self.count()

    def count_values(self) -> int:
        """Keys of the state."""
        return int(self._one("SELECT count(*) FROM state"))

    def leaves(self) -> Iterator[bytes]:
        return (leaf for (leaf,) in self._all("SELECT leaf FROM transactions ORDER BY number"))

    def row(self, number: int) -> TransactionRow | None:
        found = self._one("SELECT * FROM transactions WHERE number = ?", (number,))
        return None if found is None else TransactionRow(*found)

    def find(self, leaf: bytes) -> Submitted | None:
        found = self._one("SELECT leaf, number, height, first FROM transactions WHERE leaf = ?", (leaf,))
        return None if found is None else Submitted(*found)

    def rows(self, first: int, end: int) -> Iterator[TransactionRow]:
        statement = "SELECT * FROM transactions WHERE number >= ? AND number < ? ORDER BY number"
        return (TransactionRow(*row) for row in self._all(statement, (first, end)))

    def numbers(self, first: int, end: int, kind: int | None, refused: bool) -> Iterator[int]:
        """Transactions in `[first, end)` that may hold what an audit looks for, oldest first."""
        values = {"first": first, "end": end, "kind": None if kind is None else bytes([kind])}
        return (number for (number,) in self._all(_REFUSED if refused else _ALL, values))

    def numbers_below(self, end: int, kind: int | None, refused: bool, most: int) -> Iterator[int]:
        """As `numbers`, newest first."""
        values = {"first": 0, "end": end, "kind": None if kind is None else bytes([kind]), "most": most}
        statement = (_REFUSED if refused else _ALL) + " DESC LIMIT :most"
        return (number for (number,) in self._all(statement, values))

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Until the end of the block everything is read as of one moment."""
        with self.db:
            yield

    def value(self, key: bytes) -> bytes | None:
        found: bytes | None = self._one("SELECT value FROM state WHERE key = ?", (key,))
        return found

    def values(self, prefix: bytes = b"", most: int = -1, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys that begin with `prefix` and lie behind `after`, and their values, in order."""
        stripped = prefix.rstrip(b"\xff")  # families are named in ASCII, so something is left
        end = stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else b"\xff"
        statement = "SELECT key, value FROM state WHERE key >= ? AND key < ? AND key > ? ORDER BY key LIMIT ?"
        return self._all(statement, (prefix, end, after, most))

    def faults(self) -> list[str]:
        """What SQLite itself finds wrong with its file."""
        return [line for (line,) in self._all("PRAGMA integrity_check") if line != "ok"]

    def _one(self, statement: str, values: tuple[Any, ...] = ()) -> Any:
        """The first row, or its value where it has but one, or None where there is none."""
        with _translated("ledger file"):
            return self.db.execute(statement, values).get

    def _all(self, statement: str, values: Any = ()) -> Iterator[Any]:
        with _translated("ledger file"):
            yield from self.db.execute(statement, values)


def _unpack(packed: bytes) -> Iterator[int]:
    """Whatever the bytes are: `fsck` says what is wrong with them."""
    return (int.from_bytes(packed[at : at + 8], "big") for at in range(0, len(packed), 8))


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except apsw.FullError as error:
        raise Unavailable(f"{what}: the disk is full", hint="free some space; nothing was half-written") from error
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise Malformed(f"{what}: not an intact ledger file", hint="run tally ledger fsck") from error
    except apsw.Error as error:
        raise Unavailable(f"{what}: {error}") from error


_OPERATOR, _TOKEN, _REASON = 1, 3, 5  # fields of an operation
_PAGE = 1000  # operations of a topic that an audit looks at together


class LedgerReader:
    """What is stored, as of the newest block; `view` is to be refreshed by whoever learns of a block."""

    def __init__(self, store: LedgerStore, *, indexing: bool = True) -> None:
        """Without `indexing` the writer has brought the index of mentions up to date."""
        self.store, self._indexing = store, indexing
        self.view = State(store.value)

    @property
    def height(self) -> int:
        height = self.store.last_height()
        assert height is not None
        return height

    def block(self, height: int) -> Block:
        return Block.decode(self._stored(height)[0])

    def note(self, height: int) -> bytes:
        return self._stored(height)[1]

    def row(self, number: int) -> TransactionRow:
        """Return a stored transaction. Raises `Unavailable` where only its leaf came with a snapshot."""
        row = self.store.row(number)
        if row is None:
            raise Misuse(f"ledger: no transaction {number}")
        if not row.data:
            raise Unavailable(
                f"ledger: transaction {number} is older than the snapshot with which this node began",
                hint="ask a node that was there from the beginning",
            )
        return row

    def blocks(self, first: int, most: int) -> list[tuple[bytes, list[bytes]]]:
        found = []
        for height in range(first, min(first + most, self.height + 1)):
            block = self.block(height)
            rows = self.store.rows(block.first, block.first + block.count)
            found.append((block.encoded, [row.data for row in rows]))
        return found

    def history(self, token: bytes, most: int, before: tuple[int, int] | None) -> list[HistoryItem]:
        """Up to `most` operations of the topic, newest first, older than the place `before` if given."""
        height, index, count, _ = self.view.row(HISTORIES(token)) or NO_HISTORY
        if before is not None and before < (height, index) and self._is_in_history(token, before):
            height, index = before  # its links lead on: what is newer need not be read
        found: list[HistoryItem] = []
        while count and len(found) < most:
            row = self._row_at(height, index)
            entries = _entries(row)
            count, height, index, places = _link(row, token)
            for place in reversed(places):
                if before is None or (row.height, row.first + place) < before:
                    found.append(HistoryItem(row.height, row.first + place, entries[place]))
        return found[:most]

    def _is_in_history(self, token: bytes, place: tuple[int, int]) -> bool:
        found = self.store.block(place[0])
        if found is None or not Block.decode(found[0]).count:
            return False
        row = self._row_at(*place)
        return place[1] - row.first in _link(row, token)[3]

    def audit(self, query: Query) -> list[AuditItem]:
        """By topic along its links, by principal along the index of mentions, else through the range."""
        items = self._of_range(query) if query.token is None else self._of_topic(query, query.token)
        return list(islice((item for item in items if _matches(query, item)), query.most))

    def newest(self, query: Query, most: int, before: int | None = None) -> tuple[list[AuditItem], int]:
        """Entries that fit of up to `most` transactions below the number `before`, newest first; and the number to go
        on from, 0 where there are no more. Of the query, principal, kind and refusals count. A transaction's entries
        come whole, and no further transaction's where there are `most` already."""
        end = self.block(self.height).size if before is None else before
        if query.principal is None:
            numbers = list(self.store.numbers_below(end, query.kind, query.refused, most))
        else:
            numbers = list(self.store.mentioning(query.principal, 0, end))[-most:][::-1]
        found: list[AuditItem] = []
        for place, number in enumerate(numbers):
            if len(found) >= most:
                return found, numbers[place - 1]
            found += [item for item in list(self.items(self.row(number)))[::-1] if _matches(query, item)]
        return found, numbers[-1] if len(numbers) == most else 0

    def scan(
        self, table: Table[R], *parts: bytes | int, most: int, after: bytes = b""
    ) -> list[tuple[tuple[Any, ...], R]]:
        found = self.store.values(table.prefix(*parts), most, after)
        return [(table.parts(key), table.read(wire.decode(value))) for key, value in found]

    def _stored(self, height: int) -> tuple[bytes, bytes]:
        found = self.store.block(height)
        if found is not None:
            return found
        newest = self.height
        if 0 <= height <= newest:
            raise Unavailable(
                f"ledger: block {height} is older than the snapshot with which this node began",
                hint="ask a node that was there from the beginning",
            )
        raise Misuse(f"ledger: no block at height {height}, the newest is {newest}")

    def _first_number(self, height: int) -> int:
        newest = self.height
        return self.block(height).first if height <= newest else self.block(newest).size

    def _row_at(self, height: int, index: int) -> TransactionRow:
        """The transaction that holds entry `index` of the block at `height`."""
        block = self.block(height)
        low, high = block.first, block.first + block.count - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.row(middle).first <= index else (low, middle - 1)
        return self.row(low)

    def _of_range(self, query: Query) -> Iterator[AuditItem]:
        end_height = self.height + 1 if query.end_height is None else query.end_height
        first, end = self._first_number(query.first_height), self._first_number(end_height)
        if query.principal is not None:
            if self._indexing:
                self.store.index_mentions()
            numbers = self.store.mentioning(query.principal, first, end)
        else:
            numbers = self.store.numbers(first, end, query.kind, query.refused)
        for number in numbers:
            yield from self.items(self.row(number))

    def _of_topic(self, query: Query, token: bytes) -> Iterator[AuditItem]:
        end = None if query.end_height is None else (query.end_height, 0)
        while page := self.history(token, _PAGE, end):
            for item in page:
                if item.height < query.first_height:
                    return
                row = self._row_at(item.height, item.index)
                yield from self.items(row, item.index - row.first)
            end = (page[-1].height, page[-1].index)

    def items(self, row: TransactionRow, only: int | None = None) -> Iterator[AuditItem]:
        """The entries of a stored transaction, or one of them."""
        entries, time_ms = _entries(row), self.block(row.height).time_ms
        author = wire.decode(wire.decode(row.data)[0])[2]
        places = range(len(entries)) if only is None else (only,)
        for place, fields in zip(places, wire.decode_each([entries[place] for place in places]), strict=True):
            yield AuditItem(row.height, row.first + place, time_ms, author, fields[0], fields, entries[place])


def _matches(query: Query, item: AuditItem) -> bool:
    is_operation = item.kind == EntryKind.OPERATION
    if query.kind is not None and item.kind != query.kind:
        return False
    if query.refused and not (is_operation and item.fields[_REASON]):
        return False
    if query.token is not None and not (is_operation and item.fields[_TOKEN] == query.token):
        return False
    if query.principal is not None:
        return item.author == query.principal or (is_operation and item.fields[_OPERATOR] == query.principal)
    return True


def _entries(row: TransactionRow) -> list[bytes]:
    entries: list[bytes] = wire.decode(row.data, "transaction")[2]
    return entries


def _link(row: TransactionRow, token: bytes) -> tuple[int, int, int, list[int]]:
    """Operations before this transaction, place of the last of them, and places of those in it."""
    for name, count, height, index, packed in wire.decode(row.result, "result"):
        if name == token:
            return count, height, index, list(unpack(f">{len(packed) // 2}H", packed))
    return 0, 0, 0, []
