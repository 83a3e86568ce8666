"""A disk in memory that loses, on demand and by a seed, all that a real one may lose.

`kill -9` keeps the page cache and so proves nothing about syncing. Here `crash` does what a power failure
may do:

- *Contents.* Between two syncs of a file every write changes the visible contents; the operating system may
  write any 512-byte sector back at any of those moments, or never. So after a crash each sector holds its
  synced state or the state after some later write, independently of its neighbours: a write may be dropped,
  torn, or kept while an earlier one is dropped. The length is one more such datum: where it survives and
  the sectors below do not, they read zero.
- *Names.* A creation, rename or removal that no `sync_dir` of its folder followed is kept or dropped on its
  own, in any combination. One rename is atomic, as on every journalling file system. Syncing a file does
  not sync its name.
- *Sectors* are written whole, as disks guarantee; damage inside a sector is bit rot, which tests inflict by
  hand.

`power_off_after(n)` makes the n-th change from now the last: it and every later call raise `PowerLost`
until `crash`. `fill` bounds the free space: a write that does not fit leaves the part that did, as a real
one does. `fail_sync` makes the next syncs fail and forget what they should have written, which is what
Linux does after a write-back error.

The same seed and the same calls give the same bytes. One lock makes calls atomic, so threads may share the
disk.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from tallystick.runtime.disk import Data, check_path, parent_of

SECTOR_BYTES = 512


class PowerLost(OSError):
    """The simulated machine is off: the process that used this disk is to be thought dead."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the power is lost")


@dataclass
class _Change:
    """A write of `data` at `offset`, or, where `data` is None, a truncation to `offset`."""

    offset: int
    data: bytes | None


@dataclass(eq=False)
class _Inode:
    synced: bytearray = field(default_factory=bytearray)
    visible: bytearray = field(default_factory=bytearray)
    unsynced: list[_Change] = field(default_factory=list)

    def change(self, change: _Change) -> None:
        _apply(self.visible, change)
        self.unsynced.append(change)

    def sync(self) -> None:
        for change in self.unsynced:
            _apply(self.synced, change)
        self.unsynced.clear()

    def crash(self, chooser: random.Random) -> None:
        """Replay what was not synced, and at each step write back some of the sectors it touched."""
        memory = bytearray(self.synced)
        platter = bytearray(self.synced)
        length = len(self.synced)
        last = chooser.randint(0, len(self.unsynced))
        for change in self.unsynced[:last]:
            touched = _touched(memory, change)
            _apply(memory, change)
            chance = chooser.choice((0.0, 0.5, 1.0))
            for sector in touched:
                if chooser.random() < chance:
                    _copy_sector(memory, platter, sector)
            if chooser.random() < chance:
                length = len(memory)
        _resize(platter, length)
        self.synced, self.visible = platter, bytearray(platter)
        self.unsynced.clear()


@dataclass(frozen=True)
class _Entry:
    """One change of a folder: each name that it sets, with its file, or None where it takes the name away."""

    names: tuple[tuple[str, _Inode | None], ...]

    def folders(self) -> set[str]:
        return {parent_of(path) for path, _ in self.names}


class SeededFile:
    """A `File` of a `SeededDisk`; useless after a crash, as a dead process's descriptor."""

    def __init__(self, disk: SeededDisk, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._life = disk.crashes

    def pread(self, offset: int, n: int) -> bytes:
        with self._alive():
            return bytes(self._inode.visible[offset : offset + n])

    def pwrite(self, offset: int, data: Data) -> None:
        data = bytes(data)
        with self._alive():
            growth = max(0, offset + len(data) - len(self._inode.visible))
            lacking = max(0, growth - self._disk.free_bytes())
            fitting = data[: max(0, len(data) - lacking)] if lacking else data
            if fitting:
                self._inode.change(_Change(offset, fitting))
            self._disk.count_change()
            if lacking:
                raise _error(errno.ENOSPC)

    def truncate(self, n: int) -> None:
        with self._alive():
            self._inode.change(_Change(n, None))
            self._disk.count_change()

    def size(self) -> int:
        with self._alive():
            return len(self._inode.visible)

    def sync(self) -> None:
        with self._alive():
            self._disk.count_change()
            self._disk.sync_file(self._inode)

    def close(self) -> None:
        """Closing syncs nothing."""

    @contextmanager
    def _alive(self) -> Iterator[None]:
        with self._disk.powered():
            if self._life != self._disk.crashes:
                raise OSError(errno.EBADF, "opened before the crash")
            yield


class SeededDisk:
    """A `Disk` in memory; see the module's text for what `crash` may take away."""

    def __init__(self, seed: int) -> None:
        self.lock = threading.RLock()
        self._holder = threading.Lock()
        self.crashes = 0
        self.syncs = 0
        self._chooser = random.Random(seed)  # noqa: S311 (a simulation, repeatable by its seed)
        self._folders = {""}
        self._visible: dict[str, _Inode] = {}
        self._synced: dict[str, _Inode] = {}
        self._unsynced: list[_Entry] = []
        self._capacity: int | None = None
        self._changes_left: int | None = None
        self._off = False
        self._failing_syncs = 0

    # The Disk interface.

    def open(self, path: str, create: bool = False) -> SeededFile:
        with self.powered():
            inode = self._visible.get(check_path(path))
            if inode is None:
                if not create or parent_of(path) not in self._folders:
                    raise _error(errno.ENOENT, path)
                inode = _Inode()
                self._change_names((path, inode))
            return SeededFile(self, inode)

    def exists(self, path: str) -> bool:
        with self.powered():
            return check_path(path) in self._visible or path in self._folders

    def listdir(self, path: str) -> list[str]:
        with self.powered():
            if check_path(path) not in self._folders:
                raise _error(errno.ENOENT, path)
            entries: Iterable[str] = (*self._visible, *(self._folders - {""}))
            return sorted(entry.rpartition("/")[2] for entry in entries if parent_of(entry) == path)

    def remove(self, path: str) -> None:
        with self.powered():
            self._find(path)
            self._change_names((path, None))

    def rename(self, old: str, new: str) -> None:
        with self.powered():
            inode = self._find(old)
            if parent_of(check_path(new)) not in self._folders:
                raise _error(errno.ENOENT, new)
            self._change_names((old, None), (new, inode))

    def mkdir(self, path: str) -> None:
        with self.powered():
            parts = check_path(path).split("/")
            self._folders |= {"/".join(parts[: n + 1]) for n in range(len(parts))}

    def size(self, path: str) -> int:
        with self.powered():
            return len(self._find(path).visible)

    def sync_dir(self, path: str) -> None:
        """Settle the entries of this folder; a rename between two folders is settled by either."""
        with self.powered():
            self.count_change()
            self.syncs += 1
            for entry in self._unsynced:
                if path in entry.folders():
                    _enter(self._synced, entry)
            self._unsynced = [entry for entry in self._unsynced if path not in entry.folders()]

    def free_bytes(self) -> int:
        if self._capacity is None:
            return 1 << 62
        return max(0, self._capacity - self._used())

    def held(self, path: str) -> AbstractContextManager[object]:
        """One lock for all paths: whoever shares this disk is a thread of one process."""
        check_path(path)
        return self._holder

    # What a test does to the disk.

    def crash(self) -> None:
        """Fail and restore the power: keep what was synced, and of the rest what the seed says."""
        with self.lock:
            for entry in self._unsynced:
                if self._chooser.random() < 0.5:
                    _enter(self._synced, entry)
            self._unsynced = []
            self._visible = dict(self._synced)
            for _, inode in sorted(self._visible.items()):
                inode.crash(self._chooser)
            self.crashes += 1
            self._off, self._changes_left = False, None

    def power_off_after(self, changes: int) -> None:
        """Lose the power during the change of that number, counting writes, syncs and names from now."""
        self._changes_left = changes

    def disarm(self) -> None:
        """Take back `power_off_after`."""
        self._changes_left = None

    def power_off(self) -> None:
        """Lose the power now."""
        self._off = True

    @property
    def is_off(self) -> bool:
        return self._off

    def fill(self, free_bytes: int | None) -> None:
        """Leave so many bytes free; None takes the bound away."""
        with self.lock:
            self._capacity = None if free_bytes is None else self._used() + free_bytes

    def fail_sync(self, times: int = 1) -> None:
        """Let so many of the next file syncs fail with EIO."""
        self._failing_syncs = times

    def flip(self, path: str, offset: int, mask: int = 0xFF) -> None:
        """Bit rot: change one byte of a file, on the platter too."""
        with self.powered():
            inode = self._find(path)
            inode.sync()
            inode.visible[offset] ^= mask
            inode.synced[offset] ^= mask

    # What files need of their disk.

    @contextmanager
    def powered(self) -> Iterator[None]:
        """One call at a time, as long as there is power."""
        with self.lock:
            if self._off:
                raise PowerLost
            yield

    def count_change(self) -> None:
        if self._changes_left is None:
            return
        self._changes_left -= 1
        if self._changes_left <= 0:
            self._off = True
            raise PowerLost

    def sync_file(self, inode: _Inode) -> None:
        self.syncs += 1
        if self._failing_syncs:
            self._failing_syncs -= 1
            inode.unsynced.clear()
            raise _error(errno.EIO)
        inode.sync()

    def _find(self, path: str) -> _Inode:
        inode = self._visible.get(check_path(path))
        if inode is None:
            raise _error(errno.ENOENT, path)
        return inode

    def _change_names(self, *names: tuple[str, _Inode | None]) -> None:
        entry = _Entry(names)
        _enter(self._visible, entry)
        self._unsynced.append(entry)
        self.count_change()

    def _used(self) -> int:
        return sum(len(inode.visible) for inode in self._visible.values())


def _error(number: int, *path: str) -> OSError:
    """As the operating system words it."""
    return OSError(number, os.strerror(number), *path)


def _enter(names: dict[str, _Inode], entry: _Entry) -> None:
    for path, inode in entry.names:
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode


def _apply(contents: bytearray, change: _Change) -> None:
    if change.data is None:
        _resize(contents, change.offset)
        return
    if len(contents) < change.offset:
        _resize(contents, change.offset)
    contents[change.offset : change.offset + len(change.data)] = change.data


def _touched(before: bytearray, change: _Change) -> range:
    first = min(change.offset, len(before)) // SECTOR_BYTES
    last = len(before) if change.data is None else change.offset + len(change.data)
    return range(first, -(-max(last, change.offset) // SECTOR_BYTES))


def _copy_sector(source: bytearray, target: bytearray, sector: int) -> None:
    first = sector * SECTOR_BYTES
    content = source[first : first + SECTOR_BYTES].ljust(SECTOR_BYTES, b"\0")
    if len(target) < first + SECTOR_BYTES:
        _resize(target, first + SECTOR_BYTES)
    target[first : first + SECTOR_BYTES] = content


def _resize(contents: bytearray, length: int) -> None:
    if len(contents) > length:
        del contents[length:]
    else:
        contents.extend(bytes(length - len(contents)))
