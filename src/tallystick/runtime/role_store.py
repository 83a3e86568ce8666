"""What roles keep through crashes, in one SQLite file.

A role's driver puts the changes of one turn together: they are durable, all or none, when `put` returns, and only then
does anything that the role said behind them leave (`effects.StoreEffect`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import apsw

from tallystick.errors import Misuse, Unavailable

Change = tuple[str, bytes | None]


class RoleStore(Protocol):
    """Keys and values of one role."""

    def put(self, changes: Sequence[Change]) -> None:
        """Return once all of them would survive a crash, in their order; None forgets a key. Called from any thread,
        never from two at once."""
        ...

    def items(self) -> dict[str, bytes]:
        """What is kept, for a role that starts."""
        ...


class SqliteRoleStore:
    """A `RoleStore` in a file, which one process has open at a time."""

    def __init__(self, path: str | Path) -> None:
        self._lock = threading.Lock()
        try:
            self._connection = apsw.Connection(str(path))
            try:
                self._prepare()
            except BaseException:
                self.close()
                raise
        except apsw.BusyError as error:
            raise Unavailable(f"role store {path}: another process has it open") from error
        except (apsw.CantOpenError, apsw.ReadOnlyError) as error:
            raise Misuse(f"role store {path}: cannot be written: {error}") from error
        except (apsw.NotADBError, apsw.CorruptError) as error:
            raise Misuse(f"role store {path}: the file is damaged, or not a role's store") from error

    def _prepare(self) -> None:
        for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=DELETE", "synchronous=EXTRA", "secure_delete=ON"):
            self._connection.execute(f"PRAGMA {pragma}")
        with self._connection:
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS kept_1 (key TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID"
            )

    def put(self, changes: Sequence[Change]) -> None:
        """Raises `Unavailable` where the disk is full or fails; then nothing of it is kept."""
        try:
            with self._lock, self._connection:
                for key, value in changes:
                    if value is None:
                        self._connection.execute("DELETE FROM kept_1 WHERE key = ?", (key,))
                    else:
                        self._connection.execute("REPLACE INTO kept_1 VALUES (?, ?)", (key, value))
        except (apsw.FullError, apsw.IOError) as error:
            raise Unavailable(f"role store: {error}", hint="check the disk") from error

    def items(self) -> dict[str, bytes]:
        with self._lock:
            return dict(self._connection.execute("SELECT key, value FROM kept_1"))

    def close(self) -> None:
        with suppress(apsw.Error):
            self._connection.close()
