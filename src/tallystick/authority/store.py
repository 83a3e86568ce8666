"""The authority's memory: one SQLite file in its folder.

Threat: a crash between a decision and its answer; so what an answer tells was committed before (rollback journal,
`synchronous=EXTRA`). Threat: a destroyed key that lives on in a free page; so SQLite overwrites what it deletes
(`secure_delete`), and there is no write-ahead log to keep old pages. What a file system or a disk keeps of
overwritten blocks is outside. Every private half in it is wrapped by `master.MasterKey`; names of topics,
principals and tenants are plain here, and nowhere else.

Every table has a version; a newer one is refused by name.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import apsw

from tallystick.errors import Misuse, Unavailable

STORE_FILE = "authority.db"

Row = tuple[Any, ...]

# name → (version, columns)
TABLES: dict[str, tuple[int, str]] = {
    "meta": (1, "key TEXT PRIMARY KEY, value BLOB NOT NULL"),
    "tenants": (1, "id BLOB PRIMARY KEY, name TEXT NOT NULL UNIQUE, owner BLOB"),
    "invites": (
        1,
        "hash BLOB PRIMARY KEY, tenant BLOB NOT NULL, owns INTEGER NOT NULL, expires_ms INTEGER NOT NULL,"
        " used INTEGER NOT NULL DEFAULT 0",
    ),
    "pending": (
        1,
        "invite BLOB PRIMARY KEY, principal BLOB NOT NULL UNIQUE, name TEXT NOT NULL, signing_key BLOB NOT NULL,"
        " sealing_key BLOB NOT NULL, challenge BLOB NOT NULL, certificate BLOB",
    ),
    "subjects": (
        1,
        "id BLOB PRIMARY KEY, kind INTEGER NOT NULL, tenant BLOB NOT NULL, name TEXT NOT NULL,"
        " certificate BLOB NOT NULL, revoked INTEGER NOT NULL",
    ),
    "topics": (
        1,
        "token BLOB PRIMARY KEY, tenant BLOB NOT NULL, owner BLOB NOT NULL, name TEXT NOT NULL,"
        " partitions INTEGER NOT NULL, flags INTEGER NOT NULL, schema_version INTEGER NOT NULL,"
        " schema_hash BLOB NOT NULL, closed INTEGER NOT NULL, due_ms INTEGER NOT NULL DEFAULT 0,"
        " version INTEGER NOT NULL",
    ),
    "drafts": (
        1,
        "token BLOB NOT NULL, owner BLOB NOT NULL, name TEXT NOT NULL, schema BLOB NOT NULL,"
        " public BLOB NOT NULL, secret BLOB NOT NULL, PRIMARY KEY (token, owner)",
    ),
    "schemas": (
        1,
        "token BLOB NOT NULL, version INTEGER NOT NULL, hash BLOB NOT NULL, text BLOB NOT NULL,"
        " changed INTEGER NOT NULL, PRIMARY KEY (token, version, hash)",
    ),
    "epochs": (
        1,
        "token BLOB NOT NULL, epoch INTEGER NOT NULL, public BLOB, secret BLOB, not_before_ms INTEGER NOT NULL,"
        " end_ms INTEGER NOT NULL DEFAULT 0, announced INTEGER NOT NULL DEFAULT 0, begun INTEGER NOT NULL DEFAULT 0,"
        " changed INTEGER NOT NULL, PRIMARY KEY (token, epoch)",
    ),
    "erasure_keys": (
        1,
        "number INTEGER PRIMARY KEY AUTOINCREMENT, token BLOB NOT NULL, publisher BLOB NOT NULL,"
        " period INTEGER NOT NULL, public BLOB, secret BLOB, begins_ms INTEGER NOT NULL, ends_ms INTEGER NOT NULL,"
        " erased INTEGER NOT NULL DEFAULT 0, changed INTEGER NOT NULL, UNIQUE (token, publisher, period)",
    ),
    "permits": (
        1,
        "id BLOB PRIMARY KEY, operation INTEGER NOT NULL, token BLOB NOT NULL, principal BLOB NOT NULL,"
        " signing_key BLOB NOT NULL, first_epoch INTEGER NOT NULL, not_after_ms INTEGER NOT NULL,"
        " status INTEGER NOT NULL, handed INTEGER NOT NULL DEFAULT 0, permit BLOB",
    ),
    "labels": (1, "token BLOB PRIMARY KEY, code BLOB NOT NULL, changed INTEGER NOT NULL"),
    "attribute_spaces": (
        1,
        "tenant BLOB PRIMARY KEY, namespace TEXT NOT NULL UNIQUE, space BLOB NOT NULL, changed INTEGER NOT NULL",
    ),
    "attributes": (
        1,
        "tenant BLOB NOT NULL, principal BLOB NOT NULL, pseudonym BLOB NOT NULL, commitment BLOB NOT NULL,"
        " content BLOB NOT NULL, not_after_ms INTEGER NOT NULL, state INTEGER NOT NULL,"
        " PRIMARY KEY (tenant, principal, pseudonym, commitment)",
    ),
    "attribute_epochs": (
        1,
        "epoch INTEGER PRIMARY KEY, not_before_ms INTEGER NOT NULL, announced INTEGER NOT NULL DEFAULT 0,"
        " changed INTEGER NOT NULL",
    ),
    "attribute_turns": (1, "tenant BLOB PRIMARY KEY, paid_ms INTEGER NOT NULL"),
    "policies": (
        1,
        "token BLOB NOT NULL, column_group INTEGER NOT NULL, version INTEGER NOT NULL, commitment BLOB NOT NULL,"
        " content BLOB, state INTEGER NOT NULL, made INTEGER NOT NULL, begins_ms INTEGER NOT NULL,"
        " changed INTEGER NOT NULL, PRIMARY KEY (token, column_group, version, commitment)",
    ),
    "policy_keys": (
        1,
        "token BLOB NOT NULL, column_group INTEGER NOT NULL, version INTEGER NOT NULL, epoch INTEGER NOT NULL,"
        " record BLOB NOT NULL, changed INTEGER NOT NULL, PRIMARY KEY (token, column_group, version, epoch)",
    ),
    "answers": (
        1,
        "principal BLOB NOT NULL, nonce BLOB NOT NULL, answer BLOB NOT NULL, time_ms INTEGER NOT NULL,"
        " PRIMARY KEY (principal, nonce)",
    ),
    "patterns": (
        1,
        "tenant BLOB NOT NULL, author BLOB NOT NULL, pattern TEXT NOT NULL, principal BLOB NOT NULL,"
        " allow INTEGER NOT NULL, operations INTEGER NOT NULL, host TEXT NOT NULL,"
        " PRIMARY KEY (tenant, author, pattern, principal, allow, operations, host)",
    ),
    "outbox": (1, "place INTEGER PRIMARY KEY AUTOINCREMENT, entries BLOB NOT NULL, number INTEGER"),
    "sent": (1, "number INTEGER PRIMARY KEY, data BLOB NOT NULL"),
    "backups": (
        1,
        "id BLOB PRIMARY KEY, time_ms INTEGER NOT NULL, last_key INTEGER NOT NULL, recipients TEXT NOT NULL",
    ),
}

INDICES = (
    "CREATE INDEX IF NOT EXISTS permits_by_topic ON permits (token, principal, status)",
    "CREATE INDEX IF NOT EXISTS permits_by_principal ON permits (principal, status)",
    "CREATE INDEX IF NOT EXISTS erasure_keys_by_change ON erasure_keys (token, changed)",
    "CREATE INDEX IF NOT EXISTS attributes_by_principal ON attributes (principal, state)",
    "CREATE INDEX IF NOT EXISTS attributes_by_end ON attributes (state, not_after_ms)",
    "CREATE INDEX IF NOT EXISTS policy_keys_by_change ON policy_keys (token, changed)",
    "CREATE INDEX IF NOT EXISTS topics_by_tenant ON topics (tenant, name)",
    "CREATE INDEX IF NOT EXISTS topics_by_time ON topics (due_ms)",
)


class AuthorityStore:
    """The tables, behind one lock: a method that reads and then writes does so inside `transaction`."""

    def __init__(self, path: str, vfs: str | None = None) -> None:
        """Open or create; raises `Misuse` for a file that a newer program wrote."""
        self.lock = threading.RLock()
        try:
            self._connection = apsw.Connection(path, vfs=vfs)
            try:
                self._prepare()
            except BaseException:
                with suppress(apsw.Error):  # it says nothing that the first error did not
                    self._connection.close()
                raise
        except apsw.BusyError as error:
            raise Unavailable("authority store: another process has it open") from error
        except (apsw.NotADBError, apsw.CorruptError) as error:
            raise Misuse("authority store: the file is damaged, or not an authority's store") from error

    def _prepare(self) -> None:
        self._connection.set_busy_timeout(0)
        for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=DELETE", "synchronous=EXTRA", "secure_delete=ON"):
            self._connection.execute(f"PRAGMA {pragma}")
        with self.transaction():
            self._prepare_tables()

    def _prepare_tables(self) -> None:
        self._connection.execute("CREATE TABLE IF NOT EXISTS tables (name TEXT PRIMARY KEY, version INTEGER NOT NULL)")
        found: dict[str, int] = dict(self.rows("SELECT name, version FROM tables"))
        for name, version in found.items():
            known = TABLES.get(name, (0, ""))[0]
            if version > known:
                raise Misuse(
                    f'authority store: table "{name}" has version {version}, this program knows {known}',
                    hint="use the program that wrote it, or a newer one",
                )
        for name, (version, columns) in TABLES.items():
            self._connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns}) STRICT")
            self._connection.execute("INSERT OR IGNORE INTO tables VALUES (?, ?)", (name, version))
        for statement in INDICES:
            self._connection.execute(statement)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, durable when it returns; nests. `Unavailable` where the disk is full or fails."""
        try:
            with self.lock, self._connection:
                yield
        except (apsw.FullError, apsw.IOError) as error:
            raise Unavailable(f"authority store: {error}", hint="check the disk") from error

    def rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[Row]:
        with self.lock:
            return self._connection.execute(sql, values).fetchall()

    def row(self, sql: str, values: tuple[Any, ...] = ()) -> Row | None:
        """The first row, or None."""
        with self.lock:
            return self._connection.execute(sql, values).fetchone()

    def scalar(self, sql: str, values: tuple[Any, ...] = ()) -> Any:
        row = self.row(sql, values)
        return None if row is None else row[0]

    def write(self, sql: str, values: tuple[Any, ...] = ()) -> int:
        """Run a change. Returns the number of rows it touched."""
        with self.lock:
            self._connection.execute(sql, values)
            return self._connection.changes()

    def insert(self, table: str, **values: Any) -> int:
        """Insert a row. Returns its rowid."""
        names = ", ".join(values)  # table and columns are words of this package, never a caller's
        marks = ", ".join("?" * len(values))
        with self.lock:
            self._connection.execute(
                f"INSERT INTO {table} ({names}) VALUES ({marks})",  # noqa: S608
                tuple(values.values()),
            )
            return self._connection.last_insert_rowid()

    def meta(self, key: str) -> bytes | None:
        value: bytes | None = self.scalar("SELECT value FROM meta WHERE key = ?", (key,))
        return value

    def set_meta(self, key: str, value: bytes | None) -> None:
        if value is None:
            self.write("DELETE FROM meta WHERE key = ?", (key,))
        else:
            self.write("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def snapshot(self) -> bytes:
        """The whole database as one byte string."""
        with self.lock:
            return self._connection.serialize("main")

    def close(self) -> None:
        with self.lock:
            self._connection.close()
