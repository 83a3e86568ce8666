"""Frames of one bus as columns, in order of time: all that detection looks at.

A payload is one 64-bit word, its first byte highest, so that a bit's number is its place on the wire. Of the longer
payloads of CAN FD the first eight bytes are looked into, and the length of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tallystick.errors import Malformed
from tallystick.fleet.schemas import schema

WORD_BYTES = 8
LENGTH_MAX = 64  # of CAN FD


@dataclass(frozen=True)
class Frames:
    """Equally long columns, one entry a frame."""

    ts: npt.NDArray[np.int64]  # microseconds
    can_id: npt.NDArray[np.uint32]  # bit 31 marks a 29-bit identifier, as in `dbc`
    length: npt.NDArray[np.uint8]  # of the payload, in bytes
    word: npt.NDArray[np.uint64]  # its first eight bytes, the first one highest; what is missing is 0

    def __len__(self) -> int:
        return len(self.ts)

    def __getitem__(self, which: Any) -> Frames:
        """Those of a slice, a mask or an array of places."""
        return Frames(*(getattr(self, one.name)[which] for one in fields(self)))

    def to_batch(self, vin: str) -> pa.RecordBatch:
        """The same frames as rows of the schema `can`; payloads beyond eight bytes are cut to them."""
        sizes = np.minimum(self.length, WORD_BYTES)
        octets = self.word.astype(">u8").view(np.uint8).reshape(-1, WORD_BYTES)
        ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        kept = octets[np.arange(WORD_BYTES) < sizes[:, None]]
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(kept)]
        columns = [
            pa.array(self.ts).cast(pa.timestamp("us", "UTC")),
            pa.repeat(vin, len(self)),
            pa.array(np.zeros(len(self), np.uint8)),
            pa.array(self.can_id),
            pa.Array.from_buffers(pa.large_binary(), len(self), buffers).cast(pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema("can").arrow)


def joined(parts: Sequence[Frames]) -> Frames:
    """One after the other."""
    return Frames(*(np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(Frames)))


def frames_of(rows: pa.RecordBatch | pa.Table) -> Frames:
    """The frames of rows of the schema `can`, all of one vehicle and bus. Raises `Malformed` for too long a payload."""
    table = pa.table(rows) if isinstance(rows, pa.RecordBatch) else rows
    payload = table.column("payload").cast(pa.large_binary()).combine_chunks()
    payload = payload.chunk(0) if isinstance(payload, pa.ChunkedArray) and payload.num_chunks else payload
    ends = np.frombuffer(payload.buffers()[1], np.int64)[payload.offset : payload.offset + len(payload) + 1]
    sizes = np.diff(ends)
    if len(sizes) and sizes.max() > LENGTH_MAX:
        raise Malformed(f"a payload has {sizes.max()} bytes, but a frame carries at most {LENGTH_MAX}")
    data = np.frombuffer(payload.buffers()[2] or b"", np.uint8)
    places = ends[:-1, None] + np.arange(WORD_BYTES)
    inside = places < ends[1:, None]
    if len(data):
        octets = np.where(inside, data[np.where(inside, places, 0)], np.uint8(0))
    else:
        octets = np.zeros(inside.shape, np.uint8)
    return Frames(
        table.column("ts").cast(pa.int64()).to_numpy(),
        table.column("can_id").to_numpy().astype(np.uint32, copy=False),
        sizes.astype(np.uint8),
        np.ascontiguousarray(octets).view(">u8").ravel().astype(np.uint64),
    )
