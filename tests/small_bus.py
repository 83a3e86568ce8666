"""A bus of six senders that anybody can follow by eye, and an attacker on it: made in no time."""

from __future__ import annotations

import numpy as np

from tallystick.fleet.detect.frames import Frames, joined

PERIODS_MS = (10, 10, 20, 50, 100, 200)
FIRST_ID, STRANGER = 0x100, 0x7F0
BEGAN_US = 1_700_000_000_000_000


def small_bus(seconds: float, seed: int = 0, start_us: int = BEGAN_US) -> Frames:
    """Each sender at its period, a tenth of a millisecond early or late, with a counter and a number that sways."""
    chance, parts = np.random.default_rng(seed), []
    for number, period_ms in enumerate(PERIODS_MS):
        count = int(seconds * 1000 / period_ms)
        at = start_us + number * 300 + np.arange(count) * period_ms * 1000 + chance.integers(-100, 100, count)
        sways = 20_000 + 9_000 * np.sin(at / 3e6 + number)
        word = (np.arange(count) % 16 << 56) + (sways.astype(np.int64) << 16)
        parts.append(Frames(at, np.full(count, FIRST_ID + number, np.uint32), _eights(count), word.astype(np.uint64)))
    return in_order(joined(parts))


def attacked(frames: Frames, begin_us: int, seconds: float = 2.0) -> Frames:
    """Somebody speaks in the name of the first sender, in between its frames, and under a name that nobody has."""
    at = begin_us + np.arange(int(seconds * 100)) * 10_000 + 5_000
    zeros = np.zeros(len(at), np.uint64)
    false = Frames(at, np.full(len(at), FIRST_ID, np.uint32), _eights(len(at)), zeros)
    strange = Frames(at[::10] + 100, np.full(len(at[::10]), STRANGER, np.uint32), _eights(len(at[::10])), zeros[::10])
    return in_order(joined([frames, false, strange]))


def in_order(frames: Frames) -> Frames:
    return frames[np.argsort(frames.ts, kind="stable")]


def _eights(count: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.full(count, 8, np.uint8)
