"""The spool: sealed parcels that the ledger does not vouch for yet.

A parcel is written here, and synced, before it is sent, so a retry sends the same bytes; sealing twice would be two
parcels under one sequence, which is equivocation, even by accident. It leaves when its anchor was checked. The newest
parcel of a lane stays until a newer one is here: after a restart the lane goes on from it.

A lane's folder holds `lane` (its topics, schema, locks and lane keys, wrapped under the publisher's own spool key, so
that it can open its own parcels again when an epoch ended while it was offline) and segments `<first sequence>` of
frames `u32 length ‖ u32 crc ‖ parcel`. A torn last frame was never sent, and is cut.
"""

from __future__ import annotations

import struct
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tallystick.errors import Malformed, Misuse
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.disk import Disk, File, read_all, write_atomic

_FRAME = struct.Struct("<II")
_LANE = "lane"


@dataclass
class _Segment:
    first: int
    file: File
    size: int = 0
    parcels: OrderedDict[int, tuple[int, int]] = field(default_factory=OrderedDict)  # sequence → (position, length)
    dirty: bool = False


class Spool:
    """Single-threaded by its caller's lock."""

    def __init__(self, disk: Disk, segment_bytes_max: int = 8 << 20) -> None:
        self._disk = disk
        self._segment_bytes_max = segment_bytes_max
        self._lanes: dict[bytes, list[_Segment]] = {}
        self._kept: dict[bytes, set[int]] = {}  # sequences that are not forgotten
        for name in disk.listdir("") if disk.exists("") else ():
            self._open(bytes.fromhex(name))

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        return sum(segment.size for segments in self._lanes.values() for segment in segments)

    def lanes(self) -> list[bytes]:
        return list(self._lanes)

    def lane_record(self, lane: bytes) -> bytes:
        return read_all(self._disk, f"{lane.hex()}/{_LANE}")

    def put_lane(self, lane: bytes, record: bytes) -> None:
        """Write a lane's record, durable when this returns."""
        if lane not in self._lanes:
            self._disk.mkdir(lane.hex())
            self._lanes[lane], self._kept[lane] = [], set()
        write_atomic(self._disk, f"{lane.hex()}/{_LANE}", record)

    def drop_lane(self, lane: bytes) -> None:
        """Forget a lane that is closed, or that another one continues."""
        for segment in self._lanes.pop(lane):
            segment.file.close()
            self._disk.remove(self._path(lane, segment.first))
        self._kept.pop(lane)
        self._disk.remove(f"{lane.hex()}/{_LANE}")
        self._disk.sync_dir(lane.hex())

    def append(self, parcel: Parcel) -> None:
        """Write a parcel; durable after `sync`."""
        header, data = parcel.header, parcel.encode()
        segments = self._lanes[header.lane]
        if not segments or segments[-1].size >= self._segment_bytes_max:
            path = self._path(header.lane, header.sequence)
            segments.append(_Segment(header.sequence, self._disk.open(path, create=True)))
            self._disk.sync_dir(header.lane.hex())
        segment = segments[-1]
        segment.file.pwrite(segment.size, _FRAME.pack(len(data), zlib.crc32(data)) + data)
        segment.parcels[header.sequence] = (segment.size + _FRAME.size, len(data))
        segment.size += _FRAME.size + len(data)
        segment.dirty = True
        self._kept[header.lane].add(header.sequence)

    def sync(self) -> None:
        for segments in self._lanes.values():
            for segment in segments:
                if segment.dirty:
                    segment.file.sync()
                    segment.dirty = False

    def read(self, lane: bytes, sequence: int) -> bytes:
        for segment in self._lanes[lane]:
            if sequence in segment.parcels:
                position, length = segment.parcels[sequence]
                return segment.file.pread(position, length)
        raise Misuse(f"spool: no parcel {sequence} of lane {lane.hex()[:8]}")

    def kept(self, lane: bytes) -> list[int]:
        """The sequences that were not forgotten, in order."""
        return sorted(self._kept[lane])

    def newest(self, lane: bytes) -> Parcel | None:
        """The newest parcel of a lane, forgotten or not."""
        for segment in reversed(self._lanes[lane]):
            if segment.parcels:
                return Parcel.decode(self.read(lane, next(reversed(segment.parcels))))
        return None

    def forget(self, lane: bytes, sequence: int) -> None:
        """The parcel is anchored; segments that hold nothing else are deleted, but for the newest."""
        self._kept[lane].discard(sequence)
        segments = self._lanes[lane]
        while len(segments) > 1 and not self._kept[lane].intersection(segments[0].parcels):
            gone = segments.pop(0)
            gone.file.close()
            self._disk.remove(self._path(lane, gone.first))

    def close(self) -> None:
        for segments in self._lanes.values():
            for segment in segments:
                segment.file.close()

    def _open(self, lane: bytes) -> None:
        folder = lane.hex()
        names = sorted(int(name) for name in self._disk.listdir(folder) if name != _LANE and not name.endswith(".new"))
        if not self._disk.exists(f"{folder}/{_LANE}"):
            return  # the lane was being made, or dropped
        self._lanes[lane], self._kept[lane] = [], set()
        for first in names:
            segment = _Segment(first, self._disk.open(self._path(lane, first)))
            data = segment.file.pread(0, segment.file.size())
            for position, parcel in _frames(data):
                segment.parcels[parcel.header.sequence] = (
                    position,
                    len(data[position : position + _length(data, position)]),
                )
                segment.size = position + _length(data, position)
            if segment.size < len(data):
                segment.file.truncate(segment.size)
                segment.file.sync()
            self._kept[lane].update(segment.parcels)
            self._lanes[lane].append(segment)

    @staticmethod
    def _path(lane: bytes, first: int) -> str:
        return f"{lane.hex()}/{first}"


def _length(data: bytes, position: int) -> int:
    return int(_FRAME.unpack_from(data, position - _FRAME.size)[0])


def _frames(data: bytes) -> Iterator[tuple[int, Parcel]]:
    """Position and parcel of each whole frame; the first that is not whole ends them."""
    at = 0
    while at + _FRAME.size <= len(data):
        length, crc = _FRAME.unpack_from(data, at)
        parcel = data[at + _FRAME.size : at + _FRAME.size + length]
        if len(parcel) < length or zlib.crc32(parcel) != crc:
            return
        try:
            yield at + _FRAME.size, Parcel.decode(parcel)
        except Malformed:
            return
        at += _FRAME.size + length
