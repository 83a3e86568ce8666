"""Letting a stream of record batches run at the speed of a clock instead of as fast as it can be made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tallystick.errors import Misuse
from tallystick.runtime.sources import Clock

TICK_S = 0.25  # rows that are due within so much time are handed on together
SILENCE_S_MAX = 10.0  # longer waits, such as for the next day of a recording, are cut to this


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
