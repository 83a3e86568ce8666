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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import apsw

from tallystick.errors import Misuse, Unavailable

STORE_FILE = "authority.db"

Row = tuple[Any, ...]

VERSION = 1  # of each table; one that changes gets a version of its own

TABLES = {
    "meta": "key TEXT PRIMARY KEY, value BLOB NOT NULL",
    "tenants": "id BLOB PRIMARY KEY, name TEXT NOT NULL UNIQUE, owner BLOB",
    "invites": "hash BLOB PRIMARY KEY, tenant BLOB NOT NULL, owns INTEGER NOT NULL, expires_ms INTEGER NOT NULL,"
    " used INTEGER NOT NULL DEFAULT 0",
    "pending": "invite BLOB PRIMARY KEY, principal BLOB NOT NULL UNIQUE, name TEXT NOT NULL, signing_key BLOB NOT NULL,"
    " sealing_key BLOB NOT NULL, challenge BLOB NOT NULL, certificate BLOB",
    "subjects": "id BLOB PRIMARY KEY, kind INTEGER NOT NULL, tenant BLOB NOT NULL, name TEXT NOT NULL,"
    " certificate BLOB NOT NULL, revoked INTEGER NOT NULL",
    "topics": "token BLOB PRIMARY KEY, tenant BLOB NOT NULL, owner BLOB NOT NULL, name TEXT NOT NULL,"
    " partitions INTEGER NOT NULL, flags INTEGER NOT NULL, schema_version INTEGER NOT NULL, schema_hash BLOB NOT NULL,"
    " closed INTEGER NOT NULL, due_ms INTEGER NOT NULL DEFAULT 0, version INTEGER NOT NULL",
    "drafts": "token BLOB NOT NULL, owner BLOB NOT NULL, name TEXT NOT NULL, schema BLOB NOT NULL,"
    " public BLOB NOT NULL, secret BLOB NOT NULL, PRIMARY KEY (token, owner)",
    "schemas": "token BLOB NOT NULL, version INTEGER NOT NULL, hash BLOB NOT NULL, text BLOB NOT NULL,"
    " changed INTEGER NOT NULL, PRIMARY KEY (token, version, hash)",
    "epochs": "token BLOB NOT NULL, epoch INTEGER NOT NULL, public BLOB, secret BLOB, not_before_ms INTEGER NOT NULL,"
    " end_ms INTEGER NOT NULL DEFAULT 0, announced INTEGER NOT NULL DEFAULT 0, begun INTEGER NOT NULL DEFAULT 0,"
    " changed INTEGER NOT NULL, PRIMARY KEY (token, epoch)",
    "erasure_keys": "number INTEGER PRIMARY KEY AUTOINCREMENT, token BLOB NOT NULL, publisher BLOB NOT NULL,"
    " period INTEGER NOT NULL, public BLOB, secret BLOB, begins_ms INTEGER NOT NULL, ends_ms INTEGER NOT NULL,"
    " erased INTEGER NOT NULL DEFAULT 0, changed INTEGER NOT NULL, UNIQUE (token, publisher, period)",
    "permits": "id BLOB PRIMARY KEY, operation INTEGER NOT NULL, token BLOB NOT NULL, principal BLOB NOT NULL,"
    " signing_key BLOB NOT NULL, first_epoch INTEGER NOT NULL, not_after_ms INTEGER NOT NULL, status INTEGER NOT NULL,"
    " handed INTEGER NOT NULL DEFAULT 0, permit BLOB",
    "labels": "token BLOB PRIMARY KEY, code BLOB NOT NULL, changed INTEGER NOT NULL",
    "attribute_spaces": "tenant BLOB PRIMARY KEY, namespace TEXT NOT NULL UNIQUE, space BLOB NOT NULL,"
    " changed INTEGER NOT NULL",
    "attributes": "tenant BLOB NOT NULL, principal BLOB NOT NULL, pseudonym BLOB NOT NULL, commitment BLOB NOT NULL,"
    " content BLOB NOT NULL, not_after_ms INTEGER NOT NULL, state INTEGER NOT NULL,"
    " PRIMARY KEY (tenant, principal, pseudonym, commitment)",
    "attribute_epochs": "epoch INTEGER PRIMARY KEY, not_before_ms INTEGER NOT NULL,"
    " announced INTEGER NOT NULL DEFAULT 0, changed INTEGER NOT NULL",
    "attribute_turns": "tenant BLOB PRIMARY KEY, paid_ms INTEGER NOT NULL",
    "policies": "token BLOB NOT NULL, column_group INTEGER NOT NULL, version INTEGER NOT NULL,"
    " commitment BLOB NOT NULL, content BLOB, state INTEGER NOT NULL, made INTEGER NOT NULL,"
    " begins_ms INTEGER NOT NULL, changed INTEGER NOT NULL, PRIMARY KEY (token, column_group, version, commitment)",
    "policy_keys": "token BLOB NOT NULL, column_group INTEGER NOT NULL, version INTEGER NOT NULL,"
    " epoch INTEGER NOT NULL, record BLOB NOT NULL, changed INTEGER NOT NULL,"
    " PRIMARY KEY (token, column_group, version, epoch)",
    "mesh_holders": "token BLOB NOT NULL, principal BLOB NOT NULL, operations INTEGER NOT NULL,"
    " last_epoch INTEGER NOT NULL, renewal INTEGER NOT NULL, PRIMARY KEY (token, principal)",
    "mesh_renewals": "token BLOB NOT NULL, epoch INTEGER NOT NULL, renewal INTEGER NOT NULL,"
    " PRIMARY KEY (token, epoch)",
    "mesh_guises": "token BLOB NOT NULL, epoch INTEGER NOT NULL, guise INTEGER NOT NULL, PRIMARY KEY (token, epoch)",
    "mesh_floors": "token BLOB PRIMARY KEY, k_min INTEGER NOT NULL",
    "mesh_nodes": "principal BLOB PRIMARY KEY, key BLOB NOT NULL, until_ms INTEGER NOT NULL",
    "answers": "principal BLOB NOT NULL, nonce BLOB NOT NULL, answer BLOB NOT NULL, time_ms INTEGER NOT NULL,"
    " PRIMARY KEY (principal, nonce)",
    "patterns": "tenant BLOB NOT NULL, author BLOB NOT NULL, pattern TEXT NOT NULL, principal BLOB NOT NULL,"
    " allow INTEGER NOT NULL, operations INTEGER NOT NULL, host TEXT NOT NULL,"
    " PRIMARY KEY (tenant, author, pattern, principal, allow, operations, host)",
    "outbox": "place INTEGER PRIMARY KEY AUTOINCREMENT, entries BLOB NOT NULL, number INTEGER",
    "sent": "number INTEGER PRIMARY KEY, data BLOB NOT NULL",
    "backups": "id BLOB PRIMARY KEY, time_ms INTEGER NOT NULL, last_key INTEGER NOT NULL, recipients TEXT NOT NULL",
}

INDICES = (
    "CREATE INDEX IF NOT EXISTS permits_by_topic ON permits (token, principal, status)",
    "CREATE INDEX IF NOT EXISTS permits_by_principal ON permits (principal, status)",
    "CREATE INDEX IF NOT EXISTS erasure_keys_by_change ON erasure_keys (token, changed)",
    "CREATE INDEX IF NOT EXISTS attributes_by_principal ON attributes (principal, state)",
    "CREATE INDEX IF NOT EXISTS attributes_by_end ON attributes (state, not_after_ms)",
    "CREATE INDEX IF NOT EXISTS policy_keys_by_change ON policy_keys (token, changed)",
    "CREATE INDEX IF NOT EXISTS mesh_holders_by_principal ON mesh_holders (principal)",
    "CREATE INDEX IF NOT EXISTS topics_by_tenant ON topics (tenant, name)",
    "CREATE INDEX IF NOT EXISTS topics_by_time ON topics (due_ms)",
)


class AuthorityStore:
    """The tables, behind one lock: a method that reads and then writes does so inside `transaction`."""

    def __init__(self, path: str, vfs: str | None = None) -> None:
        """Open or create. Raises `Misuse` for a file that a newer program wrote."""
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
            raise Unavailable(
                f"authority store {path}: another process has it open", hint="use the one that runs, or end it first"
            ) from error
        except (apsw.CantOpenError, apsw.ReadOnlyError) as error:
            hint = "name the folder of an instance, and act as a user who may write there"
            raise Misuse(f"authority store {path}: cannot be written: {error}", hint=hint) from error
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
            known = VERSION if name in TABLES else 0
            if version > known:
                raise Misuse(
                    f'authority store: table "{name}" has version {version}, this program knows {known}',
                    hint="use the program that wrote it, or a newer one",
                )
        for name, columns in TABLES.items():
            self._connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns}) STRICT")
            self._connection.execute("INSERT OR IGNORE INTO tables VALUES (?, ?)", (name, VERSION))
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

    def column(self, sql: str, values: tuple[Any, ...] = ()) -> tuple[Any, ...]:
        """The first value of each row."""
        return tuple(row[0] for row in self.rows(sql, values))

    def write(self, sql: str, values: tuple[Any, ...] = ()) -> int:
        """Run a change. Returns the number of rows it touched."""
        with self.lock:
            self._connection.execute(sql, values)
            return self._connection.changes()

    def insert(self, table: str, **values: Any) -> int:
        """Insert a row. Returns its rowid."""
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        with self.lock:  # table and columns are words of this package, never a caller's
            self.write(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(values.values()))  # noqa: S608
            return self._connection.last_insert_rowid()

    def update(self, table: str, where: Mapping[str, Any], **values: Any) -> int:
        """Change the rows that have these values. Returns their number."""
        change, condition = ", ".join(f"{name} = ?" for name in values), " AND ".join(f"{name} = ?" for name in where)
        sql = f"UPDATE {table} SET {change} WHERE {condition}"  # noqa: S608 words of this package, as in `insert`
        return self.write(sql, (*values.values(), *where.values()))

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
