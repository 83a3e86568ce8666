"""Cutting a stream of record batches anew, without changing its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from tallystick.errors import Misuse


def rechunked(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of `rows`, the last one shorter; holds back less than one batch."""
    if rows < 1:
        raise Misuse(f"rows of a chunk: 1 or more expected, found {rows}")
    return _cut(batches, rows)


def _cut(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    held = 0
    for batch in batches:
        at = 0
        while held + batch.num_rows - at >= rows:
            taken = rows - held
            waiting.append(batch.slice(at, taken))
            yield _joined(waiting)
            waiting, held, at = [], 0, at + taken
        if at < batch.num_rows:
            waiting.append(batch.slice(at))
            held += batch.num_rows - at
    if held:
        yield _joined(waiting)


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)
