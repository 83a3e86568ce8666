"""Framed bodies: u32 little-endian length before each item; what publish and fetch carry."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tallystick.errors import Malformed

_LENGTH = struct.Struct("<I")
ITEMS_MAX = 65_536


def join_frames(items: Sequence[bytes | memoryview]) -> bytes:
    return b"".join(part for item in items for part in (_LENGTH.pack(len(item)), item))


def split_frames(data: bytes | memoryview, items_max: int = ITEMS_MAX) -> list[bytes]:
    """The items of a framed body; raises `Malformed` unless it is made of whole frames."""
    return [bytes(item) for item in frame_views(data, items_max)]


def frame_views(data: bytes | memoryview, items_max: int = ITEMS_MAX) -> list[memoryview]:
    """As `split_frames`, without copying; the whole lives as long as any of its items."""
    view, at = memoryview(data), 0
    items: list[memoryview] = []
    while at < len(view):
        if at + 4 > len(view) or len(items) == items_max:
            raise Malformed("frames: truncated, or too many")
        end = at + 4 + _LENGTH.unpack_from(view, at)[0]
        if end > len(view):
            raise Malformed("frames: truncated")
        items.append(view[at + 4 : end])
        at = end
    return items
