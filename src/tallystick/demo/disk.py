"""What whoever owns a broker's disk does to the log: parcels altered, dropped, reordered, the tail cut off.

The frames are packed anew, so that offsets and checksums fit: the log's own checks find accidents, and this is none.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tallystick.carriers.log.segments import (
    BODY,
    FILE_HEADER_BYTES,
    Frame,
    NewEntry,
    frames,
    pack_frame,
    unpack_reference,
)

Change = Callable[[list[Frame]], list[Frame]]


def edit(segment: Path, change: Change) -> None:
    """Rewrite a segment that has no index yet, as the newest of a partition."""
    segment.write_bytes(rewritten(segment.read_bytes(), change, int(segment.stem)))


def rewritten(whole: bytes, change: Change, base: int = 0) -> bytes:
    """The segment with its frames changed."""
    parts = [whole[:FILE_HEADER_BYTES]]
    for offset, frame in enumerate(change(list(frames(whole, base))), base):
        row = frame.row
        body = bytes(frame.rest) if row.kind == BODY else unpack_reference(frame.rest)
        entry = NewEntry(row.parcel_hash, frame.header, body, row.body_bytes, row.stored_ms)
        parts += pack_frame(entry, offset, frame.after)
    return b"".join(parts)


def newest_segment(node: Path, token: bytes, partition: int) -> Path:
    """Of a partition, in the folder of a node."""
    return max(partition_folder(node, token, partition).glob("*.segment"))


def partition_folder(node: Path, token: bytes, partition: int) -> Path:
    return node / "log" / "topics" / token.hex() / str(partition)


def altered(at: int, *, in_header: bool = False) -> Change:
    """One bit of the parcel's body, or of its header, is another."""

    def change(found: list[Frame]) -> list[Frame]:
        frame = found[at]
        data = bytearray(frame.header if in_header else frame.rest)
        data[len(data) // 2] ^= 1
        spoilt = frame._replace(header=bytes(data)) if in_header else frame._replace(rest=bytes(data))
        return [*found[:at], spoilt, *found[at + 1 :]]

    return change


def dropped(at: int) -> Change:
    return lambda found: found[:at] + found[at + 1 :]


def swapped(at: int) -> Change:
    return lambda found: [*found[:at], found[at + 1], found[at], *found[at + 2 :]]


def cut(count: int) -> Change:
    """The last `count` parcels are gone."""
    return lambda found: found[:-count]
