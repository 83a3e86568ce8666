"""One folder of files, and what is certain about them after the power fails.

`Disk` and `File` are the only way in which the stores touch a file system, so that the same engine runs on
`RealDisk` and on the seeded disk, which forgets everything that was not synced. The contract is that of
POSIX read strictly: a write is seen by every reader at once and survives a crash only once `File.sync`
returned; a file that was created, renamed or removed survives as such only once `sync_dir` of its folder
returned; a rename replaces its target atomically. `mkdir` alone is durable on return, since it is rare and
every caller would have to do it.

A disk raises `OSError` and nothing else of its own: the engines translate it at their edge, where they know
what the file was for. Paths are relative, with forward slashes; a path that would leave the folder is a
`Misuse`.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from tallystick.errors import Misuse

Data = bytes | bytearray | memoryview

_datasync = getattr(os, "fdatasync", os.fsync)  # also writes the length, the only metadata we rely on


class File(Protocol):
    """An open file, read and written at offsets; it may be read by one thread while another writes."""

    def pread(self, offset: int, n: int) -> bytes:
        """Up to `n` bytes from `offset`; fewer only at the end of the file."""

    def pwrite(self, offset: int, data: Data) -> None:
        """Write all of `data` at `offset`; after an `OSError` any part of it may have been written."""

    def truncate(self, n: int) -> None: ...

    def size(self) -> int: ...

    def sync(self) -> None:
        """Return once contents and length would survive a crash.

        After an `OSError` nothing is known of what was written since the last success, and a second call that
        succeeds does not change that.
        """

    def close(self) -> None: ...


class Disk(Protocol):
    """One folder as the root of all paths."""

    def open(self, path: str, create: bool = False) -> File:
        """Open a file. One that is missing is made if `create`, or else a `FileNotFoundError`."""

    def exists(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]:
        """The names in a folder, sorted; `""` is the root."""

    def remove(self, path: str) -> None: ...

    def rename(self, old: str, new: str) -> None:
        """Give `old` the name `new`, replacing what had it."""

    def mkdir(self, path: str) -> None:
        """Make a folder and its missing parents, durably; one that exists is left as it is."""

    def size(self, path: str) -> int: ...

    def sync_dir(self, path: str) -> None:
        """Return once the entries of this folder would survive a crash."""

    def free_bytes(self) -> int: ...

    def held(self, path: str) -> AbstractContextManager[object]:
        """A lock that one holder has at a time, whatever its process; it ends with its holder."""


def check_path(path: str) -> str:
    """`path` itself, which is relative and stays below the root. Raises `Misuse` for any other."""
    if path and any(part in ("", ".", "..") for part in path.split("/")):
        raise Misuse(f'disk path "{path}": expected a plain relative path')
    return path


def parent_of(path: str) -> str:
    """The folder that holds the entry `path`."""
    return path.rpartition("/")[0]


def read_all(disk: Disk, path: str) -> bytes:
    """The whole contents of a file."""
    file = disk.open(path)
    try:
        return file.pread(0, file.size())
    finally:
        file.close()


def write_atomic(disk: Disk, path: str, data: Data) -> None:
    """Replace `path` by `data`; a crash at any point leaves the old contents or the new, whole.

    Whoever shares the path with other processes holds a lock meanwhile (`Disk.held`).
    """
    temporary = path + ".new"
    try:
        file = disk.open(temporary, create=True)
        try:
            file.truncate(0)
            file.pwrite(0, data)
            file.sync()
        finally:
            file.close()
    except OSError:
        with suppress(OSError):
            disk.remove(temporary)  # a full disk gets its space back
        raise
    disk.rename(temporary, path)
    disk.sync_dir(parent_of(path))


class RealFile:
    """A `File` on a descriptor of the operating system."""

    def __init__(self, path: Path, create: bool) -> None:
        flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | (os.O_CREAT if create else 0)
        try:
            self._fd = os.open(path, flags, 0o600)
        except OSError as error:
            if create or error.errno not in (errno.EACCES, errno.EROFS):
                raise
            self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))  # a stick: writing fails then

    def pread(self, offset: int, n: int) -> bytes:
        data = os.pread(self._fd, n, offset)
        if len(data) == n or not data:
            return data
        parts = [data]
        while data and (missing := n - sum(map(len, parts))):
            data = os.pread(self._fd, missing, offset + n - missing)
            parts.append(data)
        return b"".join(parts)

    def pwrite(self, offset: int, data: Data) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            written = os.pwrite(self._fd, rest, offset)
            offset += written
            rest = rest[written:]

    def truncate(self, n: int) -> None:
        os.ftruncate(self._fd, n)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def sync(self) -> None:
        _datasync(self._fd)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealDisk:
    """A `Disk` on a folder of the operating system, made if it is missing; files are the owner's alone."""

    def __init__(self, root: str | Path) -> None:
        self._root = self.root = Path(root).absolute()
        for folder in (*reversed(self._root.parents), self._root):
            if not folder.exists():
                with suppress(FileExistsError):  # another process may make it at the same moment
                    os.mkdir(folder, 0o700)
                _sync_folder(folder.parent)

    def open(self, path: str, create: bool = False) -> RealFile:
        return RealFile(self._real(path), create)

    def exists(self, path: str) -> bool:
        return self._real(path).exists()

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(self._real(path)))

    def remove(self, path: str) -> None:
        os.unlink(self._real(path))

    def rename(self, old: str, new: str) -> None:
        os.replace(self._real(old), self._real(new))

    def mkdir(self, path: str) -> None:
        parent = ""
        for name in check_path(path).split("/"):
            folder = f"{parent}/{name}" if parent else name
            with suppress(FileExistsError):
                os.mkdir(self._real(folder), 0o700)
            self.sync_dir(parent)  # also of one that exists: who made it may have died before this
            parent = folder

    def size(self, path: str) -> int:
        return os.stat(self._real(path)).st_size

    def sync_dir(self, path: str) -> None:
        _sync_folder(self._real(path))

    def free_bytes(self) -> int:
        state = os.statvfs(self._root)
        return state.f_bavail * state.f_frsize

    @contextmanager
    def held(self, path: str) -> Iterator[None]:
        file = RealFile(self._real(path), create=True)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            yield
        finally:
            file.close()

    def _real(self, path: str) -> Path:
        return self._root / check_path(path)


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
