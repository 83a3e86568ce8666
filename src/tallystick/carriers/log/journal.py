"""The journal: the last word on what is committed, and the node's pending operations.

One file, `journal`: a file header and frames `u32 crc · u32 length · u64 number · payload`, one frame for
each group commit. The payload (wire) is `[trimmed, marks, first sequence, records]`: marks `[token,
partition, end, retired below]` of the partitions that the group touched, and the opaque records that the
node put in. The first frame of a file holds the whole state; when the file has grown, it is replaced,
atomically, by one that starts with the present state. Numbers count by one, so the state is the fold of the
frames.

A group is committed exactly when its frame is durable (see `store.py` for why that needs no extra sync). So
an unreadable last frame was never acknowledged, and is cut. An unreadable frame with a readable one behind
it was, since a frame is written only after the one before is durable: that is damage, and the store stays
read-only.

Left out: rot in the very last frame looks like a torn write. It is found where the ledger holds an anchor
above the end, and mended by the publisher, whose spool keeps what is not anchored.
"""

from __future__ import annotations

import errno
import struct
import threading
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from tallystick import wire
from tallystick.carriers.log.limits import LogLimits
from tallystick.carriers.log.report import Cut, Damage, Recovery, UnsureLog
from tallystick.carriers.log.segments import FILE_HEADER_BYTES, JOURNAL_MAGIC, check_file_header, file_header
from tallystick.carriers.storage import Damaged, Place
from tallystick.errors import Malformed, Misuse, Unavailable
from tallystick.runtime.disk import Disk, File, write_atomic

PATH = "journal"

_FRAME = struct.Struct("<IIQ")  # crc of the rest, length of the whole, number
_NUMBER = struct.Struct("<Q")
_NOWHERE = Place(b"", 0)


@contextmanager
def unsure(what: str) -> Iterator[None]:
    """Whatever the disk fails with in here leaves the log unsure."""
    try:
        yield
    except OSError as error:
        raise UnsureLog(f"{what}: {error.strerror}") from error


class Mark(NamedTuple):
    """What is promised of a partition: every offset below `end` exists, bodies from `below` on."""

    end: int = 0
    below: int = 0


@dataclass(frozen=True)
class _Group:
    number: int
    trimmed: int
    marks: dict[Place, Mark]
    first: int
    records: list[bytes]


class Journal:
    """The committed state in memory, its file, and the records staged for the next commit.

    The store calls it under its own locks; a node uses `append`, `replay` and `trim`.
    """

    def __init__(self, disk: Disk, limits: LogLimits, recovery: Recovery, lock: threading.RLock) -> None:
        self._disk = disk
        self._limits = limits
        self._lock = lock
        self.number = 0
        self.marks: dict[Place, Mark] = {}
        self.is_damaged = False
        self._trimmed = 0  # records below this sequence are done with
        self._pending: deque[bytes] = deque()  # committed, from `_trimmed` on
        self._pending_bytes = 0
        self._staged: list[bytes] = []
        self._taken: list[bytes] = []  # staged, and in the group that is being committed
        self._staged_bytes = 0  # of both
        self._size = 0
        self._file: File | None = None
        if disk.exists(PATH):
            self._file = self._load(recovery)
        else:
            self._report(recovery, "the file is missing")

    @classmethod
    def create(cls, disk: Disk) -> None:
        """Write the journal of an empty store."""
        write_atomic(disk, PATH, _whole_file(_Group(0, 0, {}, 0, [])))

    # For the node.

    def append(self, record: bytes) -> int:
        """Stage a record for the next commit; returns its sequence number, which counts once that is durable.

        Raises `Unavailable` while more is pending than the journal may hold.
        """
        with self._lock:
            held = self._pending_bytes + self._staged_bytes
            if held + len(record) > self._limits.journal_pending_bytes_max:
                raise Unavailable(f"journal: {held} bytes of operations wait for the ledger")
            self._staged.append(record)
            self._staged_bytes += len(record)
            return self.replay_end + len(self._taken) + len(self._staged) - 1

    def replay(self) -> list[tuple[int, bytes]]:
        """The committed records that were not trimmed, with their sequence numbers."""
        with self._lock:
            return list(enumerate(self._pending, self._trimmed))

    def trim(self, upto: int) -> None:
        """Forget the records below `upto`; durable with the next commit, so replay may show them again."""
        with self._lock:
            if upto > self.replay_end:
                raise Misuse(f"journal: cannot trim up to {upto}, {self.replay_end} is the end")
            while self._trimmed < upto:
                self._pending_bytes -= len(self._pending.popleft())
                self._trimmed += 1

    @property
    def replay_end(self) -> int:
        """The sequence number after the last committed record."""
        return self._trimmed + len(self._pending)

    @property
    def pending(self) -> int:
        """The number of records that `replay` would give."""
        return len(self._pending)

    @property
    def file_bytes(self) -> int:
        return self._size

    # For the store.

    def take(self) -> bool:
        """Let the staged records belong to the group that is committed next. Returns whether there are any."""
        with self._lock:
            self._taken, self._staged = self._staged, []
            return bool(self._taken)

    def drop(self) -> None:
        """Forget the staged records, taken or not: the group failed, and with it what was to follow."""
        with self._lock:
            self._taken, self._staged, self._staged_bytes = [], [], 0

    def commit(self, marks: Mapping[Place, Mark]) -> None:
        """Make the next group durable: these marks and the records taken.

        An `OSError` leaves the file as it was before; `UnsureLog` says that nobody knows.
        """
        with self._lock:
            group = _Group(self.number + 1, self._trimmed, dict(marks), self.replay_end, self._taken)
            state = self._state_after(group) if self._size > self._limits.journal_file_bytes_max else None
        if state is None:
            self._extend(group)
        else:
            self._replace(state)
        with self._lock:
            self._apply(group)
            self._staged_bytes -= sum(map(len, group.records))
            self._taken = []

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _extend(self, group: _Group) -> None:
        assert self._file is not None
        frame = _encode(group)
        try:
            self._file.pwrite(self._size, frame)
        except OSError:
            with unsure("journal: a failed write could not be undone"):
                self._file.truncate(self._size)
            raise
        with unsure("journal: could not be synced"):
            self._file.sync()
        self._size += len(frame)

    def _state_after(self, group: _Group) -> _Group:
        marks = {**self.marks, **group.marks}
        return _Group(group.number, self._trimmed, marks, self._trimmed, [*self._pending, *group.records])

    def _replace(self, state: _Group) -> None:
        """Start the file anew with the whole state."""
        data = _whole_file(state)
        try:
            write_atomic(self._disk, PATH, data)
        except OSError as error:
            if error.errno == errno.ENOSPC:  # before the rename: only writing takes space
                raise
            raise UnsureLog(f"journal: could not be replaced: {error.strerror}") from error
        self.close()
        with unsure("journal: could not be opened again"):
            self._file = self._disk.open(PATH)
        self._size = len(data)

    def _apply(self, group: _Group) -> None:
        self.number = group.number
        self.marks.update(group.marks)
        self._pending.extend(group.records)
        self._pending_bytes += sum(map(len, group.records))

    # Opening.

    def _load(self, recovery: Recovery) -> File:
        file = self._disk.open(PATH)
        data = file.pread(0, file.size())
        self._size = FILE_HEADER_BYTES
        try:
            check_file_header(data, JOURNAL_MAGIC, _NOWHERE, 0, PATH)
            self._restore(_decode(data, self._size, None))
        except Damaged as error:
            self._report(recovery, str(error))
            return file
        while self._size < len(data):
            try:
                self._restore(_decode(data, self._size, self.number + 1))
            except Damaged as error:
                self._end(file, data, recovery, str(error))
                break
        return file

    def _restore(self, group_and_bytes: tuple[_Group, int]) -> None:
        group, n_bytes = group_and_bytes
        if self.replay_end == 0:
            self._trimmed = group.first
        if group.first != self.replay_end:
            raise Damaged(f"records {self.replay_end} to {group.first} are missing")
        self._apply(group)
        self.trim(group.trimmed)
        self._size += n_bytes

    def _end(self, file: File, data: bytes, recovery: Recovery, what: str) -> None:
        """Cut an unreadable tail, or report damage if a later frame proves that it was committed."""
        if _holds_frame(data, self._size, self.number + 2):
            self._report(recovery, f"{what}, and a later group is readable")
            return
        recovery.cuts.append(Cut(PATH, self.number, 0, len(data) - self._size))
        file.truncate(self._size)
        file.sync()

    def _report(self, recovery: Recovery, what: str) -> None:
        self.is_damaged = True
        recovery.damages.append(Damage(PATH, self.number, what))


def _whole_file(state: _Group) -> bytes:
    return file_header(JOURNAL_MAGIC, _NOWHERE, 0) + _encode(state)


def _encode(group: _Group) -> bytes:
    marks = [[*place, *mark] for place, mark in sorted(group.marks.items())]
    payload = wire.encode([group.trimmed, marks, group.first, group.records])
    rest = _FRAME.pack(0, _FRAME.size + len(payload), group.number)[4:] + payload
    return zlib.crc32(rest).to_bytes(4, "little") + rest


def _decode(data: bytes, at: int, number: int | None) -> tuple[_Group, int]:
    if len(data) < at + _FRAME.size:
        raise Damaged(f"group {number}: cut short")
    crc, length, found = _FRAME.unpack_from(data, at)
    whole = data[at : at + length]
    if length < _FRAME.size or len(whole) < length or zlib.crc32(whole[4:]) != crc:
        raise Damaged(f"group {number}: does not match its checksum")
    if number is not None and found != number:
        raise Damaged(f"group {number}: the frame is that of group {found}")
    try:
        trimmed, marks, first, records = wire.decode(whole[_FRAME.size :], PATH)
        by_place = {Place(token, partition): Mark(end, below) for token, partition, end, below in marks}
    except (Malformed, ValueError, TypeError) as error:
        raise Damaged(f"group {found}: not a group") from error
    return _Group(found, trimmed, by_place, first, records), length


def _holds_frame(data: bytes, start: int, number: int) -> bool:
    """Whether a whole frame of this number stands anywhere behind `start`."""
    wanted = _NUMBER.pack(number)
    hit = data.find(wanted, start + 8)
    while hit >= 0:
        try:
            _decode(data, hit - 8, number)
        except Damaged:
            hit = data.find(wanted, hit + 1)
        else:
            return True
    return False
