"""A body section: the plaintext of one column group.

    codec u32 ‖ count u32 ‖ time u64 ‖ raw bytes u32 ‖ content bytes u32 ‖ content ‖ zeros      (little-endian)

`content` is the Arrow record-batch message of the group's columns (or, in a gap or commit parcel, a wire object),
compressed as `codec` says; `raw bytes` is its size before compression and bounds what decompression may produce. With
padding on, count and time stand only here and the zeros fill up to a Padmé length, which leaks O(log log size) bits
of the size at a cost of at most 12 %.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tallystick.errors import Malformed
from tallystick.parcel.header import COUNT_MAX
from tallystick.parcel.padding import padme
from tallystick.record.codec import decompress

_FRAME = struct.Struct("<IIQII")  # 24 bytes, so that the content keeps an alignment of eight
RAW_BYTES_MAX = 256 * 1024 * 1024


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


def decode_section(plaintext: memoryview) -> Section:
    """The section in `plaintext`, decompressed within its declared size; `Malformed` if it lies about any."""
    if len(plaintext) < _FRAME.size:
        raise Malformed("section: truncated")
    codec, count, time_ms, raw_bytes, content_bytes = _FRAME.unpack_from(plaintext)
    if count > COUNT_MAX or raw_bytes > RAW_BYTES_MAX or content_bytes > len(plaintext) - _FRAME.size:
        raise Malformed("section: a declared size is out of bounds")
    end = _FRAME.size + content_bytes
    if bytes(plaintext[end:]).strip(b"\0"):  # not any(): a hostile section may hold 64 MiB of padding
        raise Malformed("section: padding is not zero")
    return Section(count, time_ms, decompress(plaintext[_FRAME.size : end], codec, raw_bytes))
