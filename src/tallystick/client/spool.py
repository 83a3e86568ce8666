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

A full disk is `Unavailable`: the frame was not written, nothing was forgotten, and trying again later is right. After a
sync that failed nobody knows what the disk holds (Linux forgets the pages): that is `UnsureSpool`, and ends this
process's use of the spool; the next one finds out by reading.
"""

from __future__ import annotations

import errno
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tallystick.errors import Malformed, Misuse, Unavailable
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.disk import Disk, File, read_all, write_atomic

_FRAME = struct.Struct("<II")
_LANE = "lane"


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
                    f"spool: cannot be synced: {error.strerror}", hint="start the publisher again"
                ) from error
            self.synced = max(self.synced, size)


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
        for name in disk.listdir("") if disk.exists("") else ():
            self._open(bytes.fromhex(name))

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
            raise UnsureSpool(f"spool: a lane cannot be recorded: {error.strerror}") from error
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

    def append(self, parcel: Parcel) -> None:
        """Write a parcel; durable with the next `sync`."""
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
        for segment in segments:
            segment.sync()

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

    def _open(self, lane: bytes) -> None:
        folder = lane.hex()
        if not self._disk.exists(f"{folder}/{_LANE}"):
            self._clear(folder)  # the lane was being made, or dropped
            return
        self._lanes[lane] = []
        names = sorted(int(name) for name in self._disk.listdir(folder) if name.isdecimal())
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


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"spool: {error.strerror}", retry_after_s=1.0, hint="free some space") from error


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
