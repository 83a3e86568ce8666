"""The SQLite file of the embedded ledger: its tables and the few statements on them.

One block is one SQLite transaction, synced before it is acknowledged. One row per transaction, however many entries
it has. What can be computed from the transactions (leaf, place, kinds, result, mentions, state) is stored to be read
quickly, never to be believed: `fsck` computes all of it again. Tables are STRICT, so that SQLite itself finds a cell
whose type was changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from struct import pack
from typing import Any

import apsw

from tallystick.errors import Malformed, Misuse, Unavailable

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


@dataclass(frozen=True, slots=True)
class TransactionRow:
    """One stored transaction."""

    number: int
    leaf: bytes
    height: int
    first: int
    refused: int
    kinds: bytes
    principals: bytes
    result: bytes
    data: bytes


_ALL = """
SELECT number FROM transactions WHERE number >= :first AND number < :end
AND (:kind IS NULL OR instr(kinds, :kind) > 0) ORDER BY number
"""
_REFUSED = """
SELECT number FROM transactions WHERE refused > 0 AND number >= :first AND number < :end
AND (:kind IS NULL OR instr(kinds, :kind) > 0) ORDER BY number
"""
_NUMBER_BYTES = 8


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
            self.db.executemany(
                "INSERT INTO transactions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (r.number, r.leaf, r.height, r.first, r.refused, r.kinds, r.principals, r.result, r.data)
                    for r in rows
                ],
            )
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

    def index_mentions(self) -> None:
        """Bring the index of mentions up to date, many transactions at once: one row for each principal in them.

        With every block it would touch a page for each principal, and cost more than the block itself.
        """
        end = self.indexed
        found: dict[bytes, list[int]] = {}
        for number, principals in self._all(
            "SELECT number, principals FROM transactions WHERE number >= ? ORDER BY number", (end,)
        ):
            for at in range(0, len(principals), 16):
                found.setdefault(principals[at : at + 16], []).append(number)
            end = number + 1
        rows = [(one, numbers[0], _pack(numbers)) for one, numbers in sorted(found.items())]
        with _translated("ledger file"), self.db:
            self.db.executemany("INSERT INTO mentions VALUES (?, ?, ?)", rows)
            self.set_meta("indexed", end)

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
        found = self._one("SELECT max(height) FROM blocks")
        return None if found is None else found[0]

    def count(self) -> int:
        """Stored transactions."""
        found = self._one("SELECT count(*) FROM transactions")
        return 0 if found is None else int(found[0])

    def hold(self) -> None:
        """Read this version of the file from now on, whatever is written to it by others."""
        with _translated("ledger file"):
            self.db.execute("BEGIN")
            self.count()

    def count_values(self) -> int:
        """Keys of the state."""
        found = self._one("SELECT count(*) FROM state")
        return 0 if found is None else int(found[0])

    def leaves(self) -> Iterator[bytes]:
        return (leaf for (leaf,) in self._all("SELECT leaf FROM transactions ORDER BY number"))

    def row(self, number: int) -> TransactionRow | None:
        found = self._one("SELECT * FROM transactions WHERE number = ?", (number,))
        return None if found is None else TransactionRow(*found)

    def find(self, leaf: bytes) -> tuple[int, int, int] | None:
        """Number, height and first of a transaction by its leaf."""
        statement = "SELECT number, height, first FROM transactions WHERE leaf = ?"
        found: tuple[int, int, int] | None = self._one(statement, (leaf,))
        return found

    def rows(self, first: int, end: int) -> Iterator[TransactionRow]:
        statement = "SELECT * FROM transactions WHERE number >= ? AND number < ? ORDER BY number"
        return (TransactionRow(*row) for row in self._all(statement, (first, end)))

    def numbers(self, first: int, end: int, kind: int | None, refused: bool) -> Iterator[int]:
        """Transactions in `[first, end)` that may hold what an audit looks for, oldest first."""
        values = {"first": first, "end": end, "kind": None if kind is None else bytes([kind])}
        return (number for (number,) in self._all(_REFUSED if refused else _ALL, values))

    def value(self, key: bytes) -> bytes | None:
        found = self._one("SELECT value FROM state WHERE key = ?", (key,))
        return None if found is None else found[0]

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
        with _translated("ledger file"):
            return self.db.execute(statement, values).fetchone()

    def _all(self, statement: str, values: Any = ()) -> Iterator[Any]:
        with _translated("ledger file"):
            yield from self.db.execute(statement, values)


def _pack(numbers: Sequence[int]) -> bytes:
    return pack(f">{len(numbers)}Q", *numbers)


def _unpack(packed: bytes) -> Iterator[int]:
    return (int.from_bytes(packed[at : at + _NUMBER_BYTES], "big") for at in range(0, len(packed), _NUMBER_BYTES))


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
