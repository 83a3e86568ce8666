"""Streams of record batches: made once by a simulation, cut anew without changing a row, or paced by a clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tallystick.errors import Misuse
from tallystick.runtime.sources import Clock

START_MS = 1_767_592_800_000  # Monday, 2026-01-05T06:00Z
CHUNK_ROWS = 65_536
TICK_S = 0.25  # rows that are due within so much time are handed on together
SILENCE_S_MAX = 10.0  # longer waits, such as for the next day of a recording, are cut to this


class Simulation(ABC):
    """A seeded simulation: the same arguments give the same bytes, and `chunk_rows` only decides where they are cut."""

    _another: str  # in words, what to make to have the batches once more

    def __init__(self, seconds: float, step_s: float, start_ms: int) -> None:
        self._steps, self._step_s, self._start_ms = max(1, round(seconds / step_s)), step_s, start_ms
        self._begun = False

    def batches(self, chunk_rows: int = CHUNK_ROWS) -> Iterator[pa.RecordBatch]:
        """The rows in order of time and, within a step, of vehicles or sensors. May be asked for once."""
        if self._begun:
            hint = f"make {self._another} with the same arguments"
            raise Misuse("the batches of a simulation are made once", hint=hint)
        self._begun = True
        return rechunked(self._blocks(), chunk_rows)

    @abstractmethod
    def _blocks(self) -> Iterator[pa.RecordBatch]:
        """The same rows, cut as they are made."""


def rechunked(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of `rows`, the last one shorter; holds back less than one batch."""
    if rows < 1:
        raise Misuse(f"rows of a chunk: 1 or more expected, found {rows}")
    return _cut(batches, rows)


def _cut(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    held = 0
    for batch in batches:
        rest = batch
        while held + rest.num_rows >= rows:
            waiting.append(rest.slice(0, rows - held))
            rest = rest.slice(rows - held)
            yield _joined(waiting)
            waiting, held = [], 0
        if rest.num_rows:
            waiting.append(rest)
            held += rest.num_rows
    if held:
        yield _joined(waiting)


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def paced(batches: Iterable[pa.RecordBatch], clock: Clock, speed: float = 1.0) -> Iterator[pa.RecordBatch]:
    """The same rows, handed on when their `ts` is due: `speed` times as fast as it happened.

    The first row is due at once. Rows must be in order of time.
    """
    if speed <= 0:
        raise Misuse(f"speed: more than 0 expected, found {speed}")
    return _wait(batches, clock, speed)


def _wait(batches: Iterable[pa.RecordBatch], clock: Clock, speed: float) -> Iterator[pa.RecordBatch]:
    began_s = clock.monotonic()
    first_ms: int | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        ts_ms = batch.column("ts").cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()).to_numpy()
        first_ms = int(ts_ms[0]) if first_ms is None else first_ms
        ticks = np.floor((ts_ms - first_ms) / (1000.0 * speed * TICK_S))
        cuts = [0, *(np.flatnonzero(np.diff(ticks)) + 1).tolist(), batch.num_rows]
        for start, end in pairwise(cuts):
            wait_s = began_s + float(ticks[start]) * TICK_S - clock.monotonic()
            began_s -= max(0.0, wait_s - SILENCE_S_MAX)
            clock.pause(min(max(0.0, wait_s), SILENCE_S_MAX))
            yield batch.slice(start, end - start)
