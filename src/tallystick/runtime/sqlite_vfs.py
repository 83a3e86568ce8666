"""SQLite on a `Disk`: the file layer (VFS) through which a database can live on the seeded disk.

    vfs = DiskVFS("ledger", disk)
    connection = apsw.Connection("ledger.db", vfs=vfs.vfs_name)

The layer promises SQLite no more than a `Disk` does: no atomic writes, no ordering between syncs. What
SQLite expects of a Unix file system beyond that is done here, as its own Unix layer does: the first sync of
a new file also syncs its name, and so does a removal that asks for it (the removal of the rollback journal
is the moment of commit).

Locks hold between connections of this process only; a second process on one folder is for the owner of the
folder to prevent. There is no shared memory, so a write-ahead log needs `locking_mode=EXCLUSIVE` set before
`journal_mode=WAL`; the rollback journal works with any number of connections, and needs
`synchronous=EXTRA`: with `FULL` SQLite does not sync the removal of the journal, so a crash may roll the
last commit back.

An `OSError` of the disk reaches the caller as `apsw.FullError` or `apsw.IOError`, whose cause it is.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import apsw

from tallystick.runtime.disk import Disk, parent_of

# Wider than the sectors of any disk in use: SQLite then takes for torn whatever lies in the same 4 KiB.
SECTOR_BYTES = 4096


class DiskVFS(apsw.VFS):  # type: ignore[misc, unused-ignore]
    """A VFS registered under `name` until it is closed or collected."""

    def __init__(self, name: str, disk: Disk) -> None:
        super().__init__(name, base="")
        self.vfs_name = name
        self._disk = disk
        self._locks: dict[str, _Locks] = {}
        self._temporaries = 0

    def xOpen(self, name: Any, flags: list[int]) -> DiskVFSFile:  # type: ignore[override, unused-ignore]
        path = self._temporary() if name is None else _plain(name)
        is_new = not self._disk.exists(path)
        create = bool(flags[0] & apsw.SQLITE_OPEN_CREATE)
        if is_new and not create:
            raise apsw.CantOpenError(f"{path}: no such file")
        flags[1] = flags[0]
        locks = self._locks.setdefault(path, _Locks())
        with _translated(path):
            return DiskVFSFile(self._disk, path, create, locks, is_new, flags[0])

    def xDelete(self, filename: str, syncdir: bool) -> None:
        with _translated(filename):
            if not self._disk.exists(filename):
                raise apsw.IOError(f"{filename}: no such file")
            self._disk.remove(filename)
            if syncdir:
                self._disk.sync_dir(parent_of(filename))

    def xAccess(self, pathname: str, flags: int) -> bool:
        with _translated(pathname):
            return self._disk.exists(pathname)

    def xFullPathname(self, name: Any) -> str:
        return _plain(name)

    def _temporary(self) -> str:
        self._temporaries += 1
        return f"{self.vfs_name}-temporary-{self._temporaries}"


class DiskVFSFile:
    """One open database, journal or log file of SQLite."""

    def __init__(self, disk: Disk, path: str, create: bool, locks: _Locks, is_new: bool, flags: int) -> None:
        self._disk = disk
        self._path = path
        self._file = disk.open(path, create)
        self._name_unsynced = is_new
        self._remove_on_close = bool(flags & apsw.SQLITE_OPEN_DELETEONCLOSE)
        self._locks = locks

    def xRead(self, amount: int, offset: int) -> bytes:
        with _translated(self._path):
            return self._file.pread(offset, amount)

    def xWrite(self, data: bytes, offset: int) -> None:
        with _translated(self._path):
            self._file.pwrite(offset, data)

    def xTruncate(self, newsize: int) -> None:
        with _translated(self._path):
            self._file.truncate(newsize)

    def xFileSize(self) -> int:
        with _translated(self._path):
            return self._file.size()

    def xSync(self, flags: int) -> None:
        with _translated(self._path):
            self._file.sync()
            if self._name_unsynced:
                self._disk.sync_dir(parent_of(self._path))
                self._name_unsynced = False

    def xClose(self) -> None:
        self._locks.release(self, apsw.SQLITE_LOCK_NONE)
        with _translated(self._path):
            self._file.close()
            if self._remove_on_close:
                self._disk.remove(self._path)

    def xLock(self, level: int) -> None:
        self._locks.acquire(self, level)

    def xUnlock(self, level: int) -> None:
        self._locks.release(self, level)

    def xCheckReservedLock(self) -> bool:
        return self._locks.is_reserved()

    def xSectorSize(self) -> int:
        return SECTOR_BYTES

    def xDeviceCharacteristics(self) -> int:
        return 0

    def xFileControl(self, op: int, pointer: int) -> bool:
        return False


@dataclass(eq=False)
class _Locks:
    """SQLite's five lock levels on one file: many share, one reserves, one waits, then holds it alone."""

    held: dict[DiskVFSFile, int] = field(default_factory=dict)
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def acquire(self, file: DiskVFSFile, level: int) -> None:
        with self.mutex:
            mine = self.held.get(file, apsw.SQLITE_LOCK_NONE)
            others = [held for holder, held in self.held.items() if holder is not file]
            highest = max(others, default=apsw.SQLITE_LOCK_NONE)
            if level <= mine:
                return
            if level == apsw.SQLITE_LOCK_SHARED:
                free = highest < apsw.SQLITE_LOCK_PENDING
            else:
                free = highest < apsw.SQLITE_LOCK_RESERVED
            if free and level == apsw.SQLITE_LOCK_EXCLUSIVE and others:
                # No new reader gets in; the present ones may finish before the next attempt.
                self.held[file] = apsw.SQLITE_LOCK_PENDING
                free = False
            if not free:
                raise apsw.BusyError("locked by another connection")
            self.held[file] = level

    def release(self, file: DiskVFSFile, level: int) -> None:
        with self.mutex:
            if level == apsw.SQLITE_LOCK_NONE:
                self.held.pop(file, None)
            elif self.held.get(file, apsw.SQLITE_LOCK_NONE) > level:
                self.held[file] = level

    def is_reserved(self) -> bool:
        with self.mutex:
            return any(level >= apsw.SQLITE_LOCK_RESERVED for level in self.held.values())


def _plain(name: Any) -> str:
    """The path in a name that SQLite hands over; names given as URI come as an object."""
    filename: Callable[[], str] | None = getattr(name, "filename", None)
    return filename() if filename else str(name)


@contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = apsw.FullError if error.errno == errno.ENOSPC else apsw.IOError
        raise kind(f"{path}: {error.strerror}") from error
