"""A bus of a few identifiers for tests: speeds that agree, a flag that others follow, a counter, an event."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tallystick.fleet.detect.frames import Frames, joined

SPEED, TWIN, THIRD, COUNT, FLAG, EVENT = 0x100, 0x120, 0x140, 0x160, 0x180, 0x80000300  # the last one has 29 bits
FOLLOWERS = (0x200, 0x210, 0x220)
PERIODS = {SPEED: 10_000, TWIN: 20_000, THIRD: 20_000, COUNT: 50_000, FLAG: 20_000, **dict.fromkeys(FOLLOWERS, 50_000)}


def drive(seconds: float, seed: int = 0, start_us: int = 0, gain: float = 1.0) -> Frames:
    """A benign drive; `gain` scales what one of the three senders of the speed says."""
    rng = np.random.default_rng(seed)
    end = start_us + int(seconds * 1e6)
    wave = rng.uniform(0, 6, 3)
    flips = np.cumsum(rng.uniform(3e6, 8e6, int(seconds / 3) + 2)) + start_us
    parts = []
    for number, (can_id, period) in enumerate(PERIODS.items()):
        ts = np.arange(start_us + rng.integers(period), end, period)
        ts = ts + rng.normal(0, period / 50, len(ts)).astype(np.int64)
        at = (ts - start_us) / 1e6
        angle = at[:, None] * np.array([0.11, 0.31, 0.7]) + wave
        speed = (8000 + np.sin(angle) @ np.array([4000.0, 1500.0, 500.0])) * (gain if can_id == THIRD else 1)
        word = np.zeros(len(ts), np.uint64)
        if can_id in (SPEED, TWIN, THIRD):
            word = (speed.astype(np.uint64) // np.uint64(1 + (can_id == TWIN))) << np.uint64(
                48 if can_id == SPEED else 32
            )
        elif can_id == COUNT:
            word = (np.arange(len(ts)).astype(np.uint64) % np.uint64(16)) << np.uint64(56)
            word |= rng.integers(0, 256, len(ts)).astype(np.uint64) << np.uint64(40)
        else:
            word = (np.searchsorted(flips, ts - 1000 * number) % 2).astype(np.uint64) << np.uint64(63 - number)
        parts.append(frames(ts, can_id, word))
    ts = start_us + np.sort(rng.integers(0, int(seconds * 1e6), int(seconds) + 3))
    return in_order(joined([*parts, frames(ts, EVENT, np.zeros(len(ts), np.uint64), 4)]))


def frames(ts: object, can_id: int, word: object, length: int = 8) -> Frames:
    """Frames of one identifier."""
    times = np.atleast_1d(np.asarray(ts, np.int64))
    words = np.broadcast_to(np.asarray(word, np.uint64), times.shape).copy()
    return Frames(times, np.full(len(times), can_id, np.uint32), np.full(len(times), length, np.uint8), words)


def in_order(some: Frames) -> Frames:
    return some[np.argsort(some.ts, kind="stable")]


def with_words(some: Frames, which: npt.NDArray[Any], word: npt.ArrayLike) -> Frames:
    """The same frames, some with other payloads: a masquerade."""
    words = some.word.copy()
    words[which] = np.asarray(word, np.uint64)
    return Frames(some.ts, some.can_id, some.length, words)
