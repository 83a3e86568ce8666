"""The spool: sealed parcels that the ledger does not vouch for yet.

A parcel is written here, and synced, before it is sent, so a retry sends the same bytes; sealing twice would be two
parcels under one sequence, which is equivocation, even by accident. It leaves when its anchor was checked. The newest
parcel of a lane stays until a newer one is here: after a restart the lane goes on from it.

A lane's folder holds `lane` (its topics, schema, locks and lane keys, wrapped under the publisher's own spool key, so
that it can open its own parcels again when an epoch ended while it was offline) and segments `<first sequence>` of
frames `u32 length ‖ u32 crc ‖ parcel`.

What a crash leaves is read in this way. A segment is synced before the next one is begun, and deleted, durably, before
the next one is: so what is there is one run of sequences, and only its end can be torn. A torn end was never sent, and
is cut. Whatever else does not fit is damage, and reported: to go on below a sequence that was sent would be
equivocation. The lane's record is written first and removed first: a folder without it holds nothing that counts.

Whoever sends rows from a file wants to know after a crash which of them are here. So a parcel may have a `RowsMark`,
the sender's own words, in the file `marks`: one line for each such parcel, written before it and synced before it,
which names lane, sequence and hash. The next process that takes up the spool holds the lines to the parcels that it
finds, and keeps the newest that is true (`marked`), or says that lines and parcels do not tell one story.

A full disk is `Unavailable`: the frame was not written, nothing was forgotten, and trying again later is right. After a
sync that failed nobody knows what the disk holds (Linux forgets the pages): that is `UnsureSpool`, and ends this
process's use of the spool; the next one finds out by reading.
"""

from __future__ import annotations

import errno
import json
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from tallystick.errors import Malformed, Misuse, Unavailable, describe
from tallystick.parcel.header import ParcelKind
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.disk import Disk, File, read_all, write_atomic
from tallystick.wire import is_number

_FRAME = struct.Struct("<II")
_LANE = "lane"
_MARKS = "marks"
_MARKS_BYTES_MAX = 1 << 20  # then those that no crash can make doubtful any more are left out


@dataclass
class _Segment:
    first: int
    file: File
    size: int = 0
    parcels: dict[int, tuple[int, int]] = field(default_factory=dict)  # in order: sequence → (position, length)
    kept: set[int] = field(default_factory=set)  # sequences that are not forgotten
    synced: int = 0  # bytes that are durable

    def sync(self) -> None:
        """Make durable what was written so far; more may be written meanwhile."""
        size = self.size
        if self.synced < size:
            try:
                self.file.sync()
            except OSError as error:
                raise UnsureSpool(
                    f"spool: cannot be synced: {describe(error)}", hint="start the publisher again"
                ) from error
            self.synced = max(self.synced, size)


class RowsMark(NamedTuple):
    """What a sender says of rows, to be found after a crash with the parcel that holds them."""

    text: str
    rows: int  # so many of the rows sent under this text are sealed, the first ones; -1: nobody knows which


class _MarkLine(NamedTuple):
    lane: str  # "": an earlier process found the parcel
    sequence: int
    hash: str
    mark: RowsMark

    @classmethod
    def read(cls, line: bytes) -> _MarkLine | None:
        try:
            lane, sequence, name, *mark = json.loads(line)
            return cls(lane, sequence, name, RowsMark(*mark))
        except (ValueError, TypeError):
            return None

    def encode(self) -> bytes:
        return json.dumps([self.lane, self.sequence, self.hash, *self.mark]).encode() + b"\n"


class UnsureSpool(Unavailable):
    """The spool could not be synced: what it holds is known only to the next process that reads it."""


class Spool:
    """Thread-safe: one hand of a publisher appends while the other reads, syncs and forgets."""

    def __init__(self, disk: Disk, segment_bytes_max: int = 8 << 20) -> None:
        self._disk = disk
        self._segment_bytes_max = segment_bytes_max
        self._lanes: dict[bytes, list[_Segment]] = {}
        self._lock = threading.RLock()
        self.size_bytes = 0  # on disk
        self.marked: RowsMark | None = None  # the newest of an earlier process
        self._marks: File | None = None  # open once this process has one
        self._marks_size = 0
        self._lines: list[_MarkLine] = []
        self._lanes_noted: set[str] = set()
        for name in _lane_folders(disk) if disk.exists("") else ():
            self._open(bytes.fromhex(name))
        if disk.exists(_MARKS):
            self._settle_marks()

    def lanes(self) -> list[bytes]:
        return list(self._lanes)

    def lane_record(self, lane: bytes) -> bytes:
        return read_all(self._disk, f"{lane.hex()}/{_LANE}")

    def put_lane(self, lane: bytes, record: bytes) -> None:
        """Write a lane's record, durable when this returns; a full disk leaves the old one."""
        try:
            self._disk.mkdir(lane.hex())
            write_atomic(self._disk, f"{lane.hex()}/{_LANE}", record)
        except OSError as error:
            if error.errno == errno.ENOSPC:  # before the rename: only writing takes space
                raise Unavailable("spool: the disk is full", retry_after_s=1.0, hint="free some space") from error
            raise UnsureSpool(f"spool: a lane cannot be recorded: {describe(error)}") from error
        self._lanes.setdefault(lane, [])

    def drop_lane(self, lane: bytes) -> None:
        """Forget a lane that is done, or that another one replaces; durable when this returns."""
        with _translated():
            self._disk.remove(f"{lane.hex()}/{_LANE}")
            self._disk.sync_dir(lane.hex())
        with self._lock:
            segments = self._lanes.pop(lane)
            self.size_bytes -= sum(segment.size for segment in segments)
        for segment in segments:
            segment.file.close()
        with _translated():
            self._clear(lane.hex())

    def append(self, parcel: Parcel, mark: RowsMark | None = None) -> None:
        """Write a parcel, and before it what its sender says of its rows; durable with the next `sync`."""
        if mark is not None:
            self._note(_MarkLine(parcel.header.lane.hex(), parcel.header.sequence, parcel.hash.hex(), mark))
        header, front = parcel.header, parcel.encode_front()
        length = len(front) + len(parcel.body)
        front = _FRAME.pack(length, zlib.crc32(parcel.body, zlib.crc32(front))) + front
        segments = self._lanes[header.lane]
        if not segments or segments[-1].size >= self._segment_bytes_max:
            self._begin_segment(header.lane, header.sequence)
        segment = segments[-1]
        with _translated():
            segment.file.pwrite(segment.size, front)
            segment.file.pwrite(segment.size + len(front), parcel.body)  # as it lies: copying it takes longer
        with self._lock:
            segment.parcels[header.sequence] = (segment.size + _FRAME.size, length)
            segment.size += _FRAME.size + length
            segment.kept.add(header.sequence)
            self.size_bytes += _FRAME.size + length

    def _begin_segment(self, lane: bytes, first: int) -> None:
        segments = self._lanes[lane]
        if segments:
            self._sync_marks()
            segments[-1].sync()
        with _translated():
            file = self._disk.open(self._path(lane, first), create=True)
            self._disk.sync_dir(lane.hex())
        with self._lock:
            segments.append(_Segment(first, file))

    def sync(self) -> None:
        """Make durable what was appended so far, while more may be appended. Raises `UnsureSpool` if the disk does not
        confirm it."""
        with self._lock:
            segments = [segment for segments in self._lanes.values() for segment in segments]
            noted = len(self._lines)
        self._sync_marks()
        for segment in segments:
            segment.sync()
        with self._lock, _translated():
            if self._marks_size > _MARKS_BYTES_MAX and noted:
                self._write_marks(self._lines[noted - 1 :])

    # ── What senders say of their rows ───────────────────────────────────────────────────────────────────────────

    def _note(self, line: _MarkLine) -> None:
        with self._lock, _translated():
            file = self._marks or self._write_marks(self._lines)
            data = line.encode()
            file.pwrite(self._marks_size, data)
            self._marks_size += len(data)
            self._lines.append(line)
        if line.lane not in self._lanes_noted:  # or a crash might leave its parcels, and no line that speaks of it
            self._sync_marks()
            self._lanes_noted.add(line.lane)

    def _sync_marks(self) -> None:
        with self._lock:
            if self._marks is not None:
                try:
                    self._marks.sync()
                except OSError as error:
                    raise UnsureSpool(f"spool: cannot be synced: {describe(error)}") from error

    def _write_marks(self, lines: list[_MarkLine]) -> File:
        data = b"".join(line.encode() for line in lines)
        write_atomic(self._disk, _MARKS, data)
        if self._marks is not None:
            self._marks.close()
        self._marks, self._marks_size, self._lines = self._disk.open(_MARKS), len(data), lines
        self._lanes_noted = {line.lane for line in lines}
        return self._marks

    def _settle_marks(self) -> None:
        """Find the newest mark whose parcel is here, or was and is anchored, and write down that it is found."""
        read = map(_MarkLine.read, read_all(self._disk, _MARKS).split(b"\n"))
        whole = takewhile(lambda one: one is not None, read)  # a line that a crash tore ends them
        # A parcel that had no room at first has two lines, and the last one counts.
        lines = [*{(one.lane, one.sequence): one for one in whole if one}.values()]
        found = [not one.lane or self._has(bytes.fromhex(one.lane), one.sequence, one.hash) for one in lines]
        kept = lines[: found.index(False)] if False in found else lines
        newest = {bytes.fromhex(one.lane): one.sequence for one in kept if one.lane}
        if any(found[len(kept) :]) or any(self._has_rows_behind(*one) for one in newest.items()):
            self.marked = lines[-1].mark._replace(rows=-1)
        elif kept:
            self.marked = kept[-1].mark
        self._lines = [] if self.marked is None else [_MarkLine("", 0, "", self.marked)]
        if lines != self._lines:
            with _translated():
                self._write_marks(self._lines)

    def _has(self, lane: bytes, sequence: int, name: str) -> bool:
        """Whether this parcel was written: it is here, or it is gone, and only what is anchored goes."""
        segments = self._lanes.get(lane)
        if segments is None:
            return True
        if any(sequence in one.parcels for one in segments):
            return Parcel.decode(self.read(lane, sequence)).hash.hex() == name
        return bool(segments) and sequence < segments[0].first

    def _has_rows_behind(self, lane: bytes, sequence: int) -> bool:
        behind = [later for one in self._lanes.get(lane, []) for later in one.parcels if later > sequence]
        return any(Parcel.decode(self.read(lane, one)).header.kind is ParcelKind.DATA for one in behind)

    # ── Reading and forgetting ───────────────────────────────────────────────────────────────────────────────────

    def read(self, lane: bytes, sequence: int) -> bytes:
        with self._lock:
            found = [(one.file, *one.parcels[sequence]) for one in self._lanes[lane] if sequence in one.parcels]
        for file, position, length in found:
            return file.pread(position, length)
        raise Misuse(f"spool: no parcel {sequence} of lane {lane.hex()[:8]}")

    def kept(self, lane: bytes) -> list[int]:
        """The sequences that were not forgotten, in order."""
        with self._lock:
            return sorted(sequence for segment in self._lanes[lane] for sequence in segment.kept)

    def newest(self, lane: bytes) -> Parcel | None:
        """The newest parcel of a lane, forgotten or not."""
        with self._lock:
            newest = next((next(reversed(one.parcels)) for one in reversed(self._lanes[lane]) if one.parcels), None)
        return None if newest is None else Parcel.decode(self.read(lane, newest))

    def forget(self, lane: bytes, sequence: int) -> None:
        """The parcel is anchored; segments that hold nothing else are deleted, if a newer parcel is safe."""
        with self._lock:
            segments, gone = self._lanes[lane], list[_Segment]()
            for segment in segments:
                segment.kept.discard(sequence)
            while len(segments) > 1 and not segments[0].kept and segments[1].synced:
                self.size_bytes -= segments[0].size
                gone.append(segments.pop(0))
        for segment in gone:
            segment.file.close()
            with _translated():
                self._disk.remove(self._path(lane, segment.first))
                self._disk.sync_dir(lane.hex())

    def close(self) -> None:
        for segments in self._lanes.values():
            for segment in segments:
                segment.file.close()
        if self._marks is not None:
            self._marks.close()

    def _open(self, lane: bytes) -> None:
        folder = lane.hex()
        if not self._disk.exists(f"{folder}/{_LANE}"):
            self._clear(folder)  # the lane was being made, or dropped
            return
        self._lanes[lane] = []
        names = sorted(int(name) for name in self._disk.listdir(folder) if is_number(name))
        for first in names:
            segment = _Segment(first, self._disk.open(self._path(lane, first)))
            data = segment.file.pread(0, segment.file.size())
            for position, length, sequence in _frames(data):
                segment.parcels[sequence] = (position, length)
                segment.size = position + length
            self._check_run(lane, segment)
            if segment.size < len(data):
                if first != names[-1]:
                    raise Malformed(f"spool: lane {folder[:8]} is damaged in the segment from parcel {first} on")
                segment.file.truncate(segment.size)
            if first == names[-1]:
                segment.sync()  # what its process wrote last and did not sync counts from now on, and will be sent
            segment.synced = segment.size
            segment.kept.update(segment.parcels)
            self._lanes[lane].append(segment)
            self.size_bytes += segment.size

    def _check_run(self, lane: bytes, segment: _Segment) -> None:
        """A segment begins where its name says, behind the one before it."""
        before = [sequence for one in self._lanes[lane][-1:] for sequence in one.parcels]
        expected = before[-1] + 1 if before else segment.first
        found = [*range(segment.first, segment.first + len(segment.parcels))]
        if segment.first != expected or list(segment.parcels) != found:
            raise Malformed(f"spool: lane {lane.hex()[:8]} lacks parcels before {segment.first}")

    def _clear(self, folder: str) -> None:
        for name in self._disk.listdir(folder):
            self._disk.remove(f"{folder}/{name}")

    @staticmethod
    def _path(lane: bytes, first: int) -> str:
        return f"{lane.hex()}/{first}"


class LaneSeen(NamedTuple):
    """What lies in a lane's folder."""

    lane: bytes
    record: bytes
    parcels: list[Parcel]
    size_bytes: int


def look(disk: Disk) -> Iterator[LaneSeen]:
    """What lies in a spool, lane by lane, without taking it up: nothing is mended, and its publisher may be running."""
    for folder in _lane_folders(disk):
        try:
            record = read_all(disk, f"{folder}/{_LANE}")
            segments = sorted(int(name) for name in disk.listdir(folder) if is_number(name))
            read = [read_all(disk, f"{folder}/{first}") for first in segments]
        except FileNotFoundError:  # the lane was being made, or dropped
            continue
        parcels = [Parcel.decode(data[at : at + length]) for data in read for at, length, _ in _frames(data)]
        yield LaneSeen(bytes.fromhex(folder), record, parcels, sum(map(len, read)))


def _lane_folders(disk: Disk) -> list[str]:
    return [name for name in disk.listdir("") if not name.startswith(_MARKS)]


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"spool: {describe(error)}", retry_after_s=1.0, hint="free some space") from error


def _frames(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Position, length and sequence of the parcel in each whole frame; the first that is not whole ends them."""
    at = 0
    while at + _FRAME.size <= len(data):
        length, crc = _FRAME.unpack_from(data, at)
        parcel = data[at + _FRAME.size : at + _FRAME.size + length]
        if len(parcel) < length or zlib.crc32(parcel) != crc:
            return
        try:
            yield at + _FRAME.size, length, Parcel.decode(parcel).header.sequence
        except Malformed:
            return
        at += _FRAME.size + length
