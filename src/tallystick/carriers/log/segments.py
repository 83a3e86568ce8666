"""The files of a partition: segments, indexes, headers.

A *segment* (`<base offset>.segment`) is a file header and frames without gaps. A frame is

    u32 crc of all up to the end of the header · u32 frame length · u32 crc of the rest · u64 offset
    u64 after · u64 stored ms · u8 kind · 32 bytes parcel hash · u32 header length · u32 body length
    header · rest

little-endian, crc is CRC-32. The rest is the body (kind 1), or where another partition holds the body (kind
2: token, u32 partition, u64 offset), or nothing since retention took it (kind 3). The two checksums let a
header be read and checked without its body. `after` is the number of the newest group known durable when
the frame was written; recovery uses it (see `store.py`).

An *index* (`<base offset>.index`) is made once, when its segment is full: for each entry a row of fixed
size, so that opening reads no headers and bodies. It also lists the segment's *pins*: of each partition in
which bodies of its entries lie, the lowest offset. Indexes are derived and can be rebuilt from their
segments, until retention replaces the segment by a *headers* file (`<base offset>.headers`): the same
frames, kind 3.

The checksums find accidents, not malice: what an attacker with the disk changes is found by readers,
through header signatures and anchors. The file header keeps its layout in every later version; a file of a
newer version is refused by name.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tallystick import wire
from tallystick.carriers.storage import Damaged, Place
from tallystick.errors import Malformed, Misuse

VERSION = 1
SEGMENT_MAGIC = b"TALLYSEG"
INDEX_MAGIC = b"TALLYIDX"
HEADERS_MAGIC = b"TALLYHDR"
JOURNAL_MAGIC = b"TALLYJNL"

BODY, REFERENCE, RETIRED = 1, 2, 3

_FILE = struct.Struct("<8sII16sIQ")  # magic, version, crc of the others, token, partition, base offset
_CRC = struct.Struct("<I")
_HEAD = struct.Struct("<IIQQQB32sII")
_PLACE = struct.Struct("<16sIQ")
_ROW = struct.Struct("<QIIQB32s")  # position, header length, body length, stored ms, kind, parcel hash

FILE_HEADER_BYTES = _FILE.size
HEAD_BYTES = _CRC.size + _HEAD.size
ROW_BYTES = _ROW.size
HASH_BYTES = 32
TOKEN_BYTES = 16


class Reference(NamedTuple):
    """Where the body of an entry lies, if not with it."""

    place: Place
    offset: int


class NewEntry(NamedTuple):
    """What an entry is made of; `body` is a reference where another partition holds it."""

    parcel_hash: bytes
    header: bytes
    body: bytes | Reference
    body_bytes: int
    stored_ms: int


class SegmentRow(NamedTuple):
    """What the index knows of an entry."""

    position: int
    header_bytes: int
    body_bytes: int
    stored_ms: int
    kind: int
    parcel_hash: bytes

    @property
    def head_bytes(self) -> int:
        return HEAD_BYTES + self.header_bytes

    @property
    def frame_bytes(self) -> int:
        if self.kind == BODY:
            return self.head_bytes + self.body_bytes
        return self.head_bytes + (_PLACE.size if self.kind == REFERENCE else 0)


class Frame(NamedTuple):
    """A frame that passed its checks; `rest` is empty if only the head was asked for."""

    row: SegmentRow
    offset: int
    after: int
    header: bytes
    rest: bytes | memoryview
    content: bytes | memoryview = b""  # both, as they lie


# File headers.


def file_header(magic: bytes, place: Place, base: int) -> bytes:
    blank = _FILE.pack(magic, VERSION, 0, place.token, place.partition, base)
    return _FILE.pack(magic, VERSION, zlib.crc32(blank), place.token, place.partition, base)


def check_file_header(data: bytes, magic: bytes, place: Place, base: int, path: str) -> None:
    """Raises `Damaged` for a header that is not this file's, `Misuse` for one of a newer version."""
    if len(data) < _FILE.size:
        raise Damaged(f"{path}: the file header is cut short")
    found, version, crc, *_ = _FILE.unpack_from(data)
    blank = data[:12] + bytes(4) + data[16 : _FILE.size]
    if found != magic or crc != zlib.crc32(blank):
        raise Damaged(f"{path}: the file header does not match its checksum")
    if version > VERSION:
        raise Misuse(
            f"{path}: format version {version}, this release reads up to {VERSION}",
            hint="use the release that wrote it, or a newer one",
        )
    if data[: _FILE.size] != file_header(magic, place, base):
        raise Damaged(f"{path}: the file header is that of another file")


# Frames.


def pack_frame(entry: NewEntry, offset: int, after: int) -> tuple[bytes, bytes]:
    """Head and rest of the frame of an entry."""
    if isinstance(entry.body, Reference):
        kind, rest = REFERENCE, pack_reference(entry.body)
    else:
        kind, rest = BODY, entry.body
    return _pack(entry, kind, rest, offset, after), rest


def pack_retired(frame: Frame) -> bytes:
    """The frame that outlives the body: `kind` 3 and the same header."""
    row = frame.row
    entry = NewEntry(row.parcel_hash, frame.header, b"", row.body_bytes, row.stored_ms)
    return _pack(entry, RETIRED, b"", frame.offset, frame.after)


def _pack(entry: NewEntry, kind: int, rest: bytes, offset: int, after: int) -> bytes:
    length = HEAD_BYTES + len(entry.header) + len(rest)
    fields = _HEAD.pack(
        *(length, zlib.crc32(rest), offset, after, entry.stored_ms, kind),
        *(entry.parcel_hash, len(entry.header), entry.body_bytes),
    )
    crc = zlib.crc32(entry.header, zlib.crc32(fields))
    return b"".join((_CRC.pack(crc), fields, entry.header))


def parse_frame(data: bytes, at: int, position: int, offset: int, *, head_only: bool = False) -> Frame:
    """The frame at `data[at:]`, which lies at `position` of its file and must be that of `offset`; rest and content
    are views of `data`.

    Raises `Damaged`, saying what is wrong, for anything but the whole frame (or its whole head).
    """
    head_end = at + HEAD_BYTES
    if len(data) < head_end:
        raise Damaged("the frame is cut short")
    length, rest_crc, found, after, stored_ms, kind, parcel_hash, header_bytes, body_bytes = _HEAD.unpack_from(
        data, at + _CRC.size
    )
    header_end = head_end + header_bytes
    if len(data) < header_end:
        raise Damaged("the frame is cut short")
    if zlib.crc32(memoryview(data)[at + _CRC.size : header_end]) != _CRC.unpack_from(data, at)[0]:
        raise Damaged("the frame's head does not match its checksum")
    row = SegmentRow(position, header_bytes, body_bytes, stored_ms, kind, parcel_hash)
    if found != offset:
        raise Damaged(f"the frame is that of offset {found}")
    if length != row.frame_bytes:
        raise Damaged(f"the frame's length is {length}, its parts take {row.frame_bytes}")
    if head_only:
        return Frame(row, offset, after, data[head_end:header_end], b"")
    view = memoryview(data)
    rest = view[header_end : at + length]
    if len(rest) != length - row.head_bytes:
        raise Damaged("the frame is cut short")
    if zlib.crc32(rest) != rest_crc:
        raise Damaged("the body does not match its checksum")
    return Frame(row, offset, after, data[head_end:header_end], rest, view[head_end : at + length])


def frames(data: bytes, base: int) -> Iterator[Frame]:
    """The frames of a segment from its first on. Raises `Damaged` at the first that is not whole."""
    position, offset = FILE_HEADER_BYTES, base
    while position < len(data):
        frame = parse_frame(data, position, position, offset)
        yield frame
        position += frame.row.frame_bytes
        offset += 1


def pack_reference(reference: Reference) -> bytes:
    return _PLACE.pack(reference.place.token, reference.place.partition, reference.offset)


def unpack_reference(data: bytes | memoryview) -> Reference:
    token, partition, offset = _PLACE.unpack(data)
    return Reference(Place(token, partition), offset)


# Indexes.


@dataclass
class SegmentIndex:
    """The rows of one segment, and the lowest offset that it pins in each other partition."""

    base: int
    rows: bytearray = field(default_factory=bytearray)
    pins: dict[Place, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.rows) // ROW_BYTES

    @property
    def end(self) -> int:
        """The offset after the last."""
        return self.base + self.count

    def row(self, offset: int) -> SegmentRow:
        return SegmentRow(*_ROW.unpack_from(self.rows, (offset - self.base) * ROW_BYTES))

    def add(self, row: SegmentRow, reference: Reference | None) -> None:
        self.rows += _ROW.pack(*row)
        if reference is not None:
            self.pin(reference)

    def pin(self, reference: Reference) -> None:
        lowest = self.pins.get(reference.place, reference.offset)
        self.pins[reference.place] = min(lowest, reference.offset)

    def file_bytes(self) -> int:
        """The length of the file whose frames these are."""
        if not self.rows:
            return FILE_HEADER_BYTES
        last = self.row(self.end - 1)
        return last.position + last.frame_bytes

    def hashes(self) -> list[bytes]:
        return [row[5] for row in _ROW.iter_unpack(self.rows)]

    def retired(self) -> SegmentIndex:
        """The index of the headers file that replaces the segment: the same entries without their rests."""
        position = FILE_HEADER_BYTES
        index = SegmentIndex(self.base)
        for fields in _ROW.iter_unpack(self.rows):
            row = SegmentRow(*fields)._replace(position=position, kind=RETIRED)
            index.rows += _ROW.pack(*row)
            position += row.frame_bytes
        return index

    def encode(self, place: Place) -> bytes:
        pins = [[token, partition, lowest] for (token, partition), lowest in sorted(self.pins.items())]
        payload = wire.encode([bytes(self.rows), pins])
        return file_header(INDEX_MAGIC, place, self.base) + _CRC.pack(zlib.crc32(payload)) + payload

    @classmethod
    def decode(cls, data: bytes, place: Place, base: int, path: str) -> SegmentIndex:
        """Raises `Damaged`."""
        check_file_header(data, INDEX_MAGIC, place, base, path)
        payload = data[FILE_HEADER_BYTES + _CRC.size :]
        if data[FILE_HEADER_BYTES : FILE_HEADER_BYTES + _CRC.size] != _CRC.pack(zlib.crc32(payload)):
            raise Damaged(f"{path}: the index does not match its checksum")
        try:
            rows, pins = wire.decode(payload, path)
            index = cls(base, bytearray(rows))
            for token, partition, lowest in pins:
                index.pins[Place(token, partition)] = lowest
        except (Malformed, ValueError, TypeError) as error:
            raise Damaged(f"{path}: not an index") from error
        return index
