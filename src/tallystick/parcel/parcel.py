"""`Parcel`: well-formed, and nothing more. `VerifiedHeader`: all that a header can be held to holds, its body was not
seen. `VerifiedParcel`: every check of parcel/verify.py has passed.

On the wire: magic ‖ u16 header length ‖ u16 marks length ‖ header ‖ signature (64) ‖ marks ‖ body, integers
little-endian. Marks are what travels outside the signature (shares and routing marks of later carriers); they are
checked against commitments inside it by those who use them, and are not part of the parcel's name.

A body section is the plaintext of one column group:

    codec u32 ‖ count u32 ‖ time u64 ‖ raw bytes u32 ‖ content bytes u32 ‖ content ‖ zeros      (little-endian)

`content` is the Arrow record-batch message of the group's columns (or, in a gap or commit parcel, a wire object),
compressed as `codec` says; `raw bytes` is its size before compression and bounds what decompression may produce. Beyond
`RAW_BYTES_FLOOR` it is at most `RATIO_MAX` times the content, and a reader counts it against its own room before
anything is decompressed. With padding on, count and time stand only here and the zeros fill up to a Padmé length, which
leaks O(log log size) bits of the size at a cost of at most 12 %.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tallystick.crypto.blocks import body_root
from tallystick.errors import CannotOpen, Forged, Malformed, Misuse, TallystickError
from tallystick.parcel.header import BODY_BYTES_MAX, COUNT_MAX, HEADER_BYTES_MAX, Header, ParcelKind
from tallystick.parcel.padding import padme
from tallystick.trust.permit import Permit

_FRAME = struct.Struct("<IIQII")  # 24 bytes, so that the content keeps an alignment of eight
RAW_BYTES_MAX = 256 * 1024 * 1024
RAW_BYTES_FLOOR = 8 * 1024 * 1024  # publishers cut batches at 900 KiB before compression: no ratio is absurd below this
RATIO_MAX = 1000  # lz4 and planes reach 255; zstd 30,000 over a constant, so `pack` takes lz4 where zstd went beyond
ROW_BYTES = 64  # what a row costs beside its columns: salt and leaf


class Oversized(CannotOpen):
    """A parcel that would open to absurdly much, or to more than its reader has room for; it was not opened."""

    reason = "oversized"


class NoRoom(TallystickError):
    """What was opened before leaves too little room: the parcel is the next round's."""


class Room:
    """How many bytes may be opened in one round, by all threads together."""

    def __init__(self, bytes_max: int) -> None:
        self._left, self._bytes_max, self._lock = bytes_max, bytes_max, threading.Lock()

    def begin(self) -> None:
        """Begin another round, with all of the room."""
        self._left = self._bytes_max

    def take(self, size: int) -> None:
        """Count bytes that are about to be opened. Raises `NoRoom` if they are too many."""
        with self._lock:
            if size > self._left:
                raise NoRoom(f"opens to {size} bytes, {self._left} of {self._bytes_max} are left")
            self._left -= size

    @property
    def taken_bytes(self) -> int:
        return self._bytes_max - self._left


def check_ratio(raw_bytes: int, content_bytes: int) -> None:
    """Raise `Oversized` if a section declares absurdly more bytes than it brings."""
    if raw_bytes > max(RAW_BYTES_FLOOR, RATIO_MAX * content_bytes):
        raise Oversized(f"{content_bytes} bytes that open to {raw_bytes}, at most {RATIO_MAX} times as many expected")


@dataclass(frozen=True)
class Section:
    count: int
    time_ms: int
    content: bytes | memoryview  # uncompressed


def encode_section(codec: int, count: int, time_ms: int, raw_bytes: int, content: Sequence[Any], pad: bool) -> bytes:
    """The plaintext of a section whose content is in buffers of bytes, to be joined."""
    size = sum(map(len, content))
    plain = _FRAME.size + size
    padding = padme(plain) - plain if pad else 0
    return b"".join((_FRAME.pack(codec, count, time_ms, raw_bytes, size), *content, bytes(padding)))


def decode_section(plaintext: memoryview, room: Room | None = None) -> Section:
    """The section in `plaintext`, decompressed within its declared size. Raises `Malformed` if it lies about any, and
    before anything is decompressed `Oversized` if that is absurd and `NoRoom` if there is none for it."""
    from tallystick.record.codec import decompress  # brings Arrow, which whoever only carries parcels does without

    if len(plaintext) < _FRAME.size:
        raise Malformed("section: truncated")
    codec, count, time_ms, raw_bytes, content_bytes = _FRAME.unpack_from(plaintext)
    if count > COUNT_MAX or raw_bytes > RAW_BYTES_MAX or content_bytes > len(plaintext) - _FRAME.size:
        raise Malformed("section: a declared size is out of bounds")
    end = _FRAME.size + content_bytes
    if bytes(plaintext[end:]).strip(b"\0"):  # not any(): a hostile section may hold 64 MiB of padding
        raise Malformed("section: padding is not zero")
    check_ratio(raw_bytes, content_bytes)
    if room is not None:
        room.take(raw_bytes + count * ROW_BYTES)
    return Section(count, time_ms, decompress(plaintext[_FRAME.size : end], codec, raw_bytes))


MAGIC = b"TLY\x01"
SIGNATURE_BYTES = 64
MARKS_BYTES_MAX = 16 * 1024
PARCEL_BYTES_MAX = 8 + HEADER_BYTES_MAX + SIGNATURE_BYTES + MARKS_BYTES_MAX + BODY_BYTES_MAX
_PREFIX = struct.Struct("<4sHH")


@dataclass(frozen=True)
class Parcel:
    """A well-formed parcel: the header parses and its sizes fit. Nothing is known of who made it."""

    header: Header
    signature: bytes
    body: bytes | memoryview
    marks: bytes = b""

    @property
    def hash(self) -> bytes:
        return self.header.hash

    def encode_front(self) -> bytes:
        """Everything but the body: what a carrier keeps when bodies are retired."""
        header = self.header.encoded
        return _PREFIX.pack(MAGIC, len(header), len(self.marks)) + header + self.signature + self.marks

    def encode(self) -> bytes:
        return self.encode_front() + self.body

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Parcel:
        """Parse a whole parcel. Raises `Malformed` for anything but exactly one."""
        parcel = cls.decode_front(data)
        body = memoryview(data)[len(data) - parcel.header.body_bytes :] if parcel.header.body_bytes else b""
        expected = front_bytes(data) + parcel.header.body_bytes
        if len(data) != expected:
            raise Malformed(f"parcel: {expected} bytes expected, found {len(data)}")
        return cls(parcel.header, parcel.signature, body, parcel.marks)

    @classmethod
    def decode_front(cls, data: bytes | memoryview) -> Parcel:
        """Parse the part before the body; the body is left empty and unread."""
        end = front_bytes(data)
        if len(data) < end:
            raise Malformed(f"parcel: truncated, at least {end} bytes expected, found {len(data)}")
        _, header_bytes, marks_bytes = _PREFIX.unpack_from(data)
        view = memoryview(data)
        signature_at = _PREFIX.size + header_bytes
        marks_at = signature_at + SIGNATURE_BYTES
        return cls(
            header=Header.decode(bytes(view[_PREFIX.size : signature_at])),
            signature=bytes(view[signature_at:marks_at]),
            body=b"",
            marks=bytes(view[marks_at : marks_at + marks_bytes]),
        )

    def check_body(self) -> None:
        """Raise `Forged` unless the body is the one whose root stands in the header."""
        if len(self.body) != self.header.body_bytes or body_root(self.body) != self.header.body_root:
            raise Forged(f"{describe(self.header)}: body does not match the header", reason="altered")


_KEY = object()


class VerifiedHeader:
    """A parcel whose signature, permits and chain hold, whatever its body is. Only parcel/verify.py makes one."""

    __slots__ = ("__weakref__", "parcel", "permits")

    def __init__(self, parcel: Parcel, permits: tuple[Permit, ...], key: object) -> None:
        if key is not _KEY:
            raise Misuse(f"a {type(self).__name__} comes from tallystick.parcel.verify only")
        self.parcel = parcel
        self.permits = permits

    @property
    def header(self) -> Header:
        return self.parcel.header

    @property
    def publisher(self) -> bytes:
        """The principal that sealed it."""
        return self.permits[0].principal


class VerifiedParcel(VerifiedHeader):
    """A parcel whose signature, permits, chain and body hold. Only parcel/verify.py makes one."""

    __slots__ = ()


def is_front(parcel: Parcel) -> bool:
    """Whether its body was left behind."""
    return parcel.header.body_bytes > 0 and not parcel.body


def front_bytes(data: bytes | memoryview) -> int:
    """How long the part before the body is, read from the first eight bytes."""
    if len(data) < _PREFIX.size:
        raise Malformed("parcel: truncated")
    magic, header_bytes, marks_bytes = _PREFIX.unpack_from(data)
    if magic[:3] != MAGIC[:3]:
        raise Malformed("not a parcel", reason="plain", hint="a plain record on a sealed topic is refused")
    if magic != MAGIC:
        raise Malformed(f"parcel: format version 1 expected, found {magic[3]}", reason="version")
    if header_bytes > HEADER_BYTES_MAX or marks_bytes > MARKS_BYTES_MAX:
        raise Malformed("parcel: header or marks too long")
    return int(_PREFIX.size + header_bytes + SIGNATURE_BYTES + marks_bytes)


def describe(header: Header) -> str:
    """How errors name a parcel."""
    kind = "" if header.kind is ParcelKind.DATA else f"{header.kind.name.lower()} "
    return f"{kind}parcel {header.sequence} of lane {header.lane.hex()[:8]}"
