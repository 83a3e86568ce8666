"""Which bits of a payload belong together, and of what kind they are, told from how often each bit flips.

Payload words of one identifier come in, in order; fields go out. A field's low bits flip more often than its high bits,
so where the rate falls, the next field begins (READ: Marchetti and Stabili, "READ: Reverse Engineering of Automotive
Data Frames", 2019, section IV). Bits that never flipped in front of a field join it up to the edge of their byte, since
a number that has grown would use them; whole stretches that never flipped are fields of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tallystick.kernels.jit import compiled

Words = npt.NDArray[np.uint64]

KINDS = ("number", "state", "counter", "noise", "constant")
NUMBER, STATE, COUNTER, NOISE, CONSTANT = range(len(KINDS))
BITS = 64
WIDTH_MAX = 32  # of a field, in bits
WINDOWS = 10  # changes over 1, 2, 4 ... 512 frames
SAME_STEP = 0.9  # so many of a counter's steps are the same
NOISE_FLIPS = 0.35  # each bit of a checksum flips in nearly every second frame
STATE_BITS = 3  # no number is this narrow
STATES = 8  # a field of so few values is a state, however wide
CLIMBS = 4  # but one of at least so many that never leaps over more than one of them is the high end of a number
LEAPS = 8  # a number crosses what it was ever seen to cover in more than so many steps; else it is noise


def flips(parts: Sequence[Words]) -> npt.NDArray[np.int64]:
    """How often each bit flipped, bit 0 being the first on the wire."""
    total = np.zeros(BITS, np.int64)
    for words in parts:
        octets = (words[1:] ^ words[:-1]).astype(">u8").view(np.uint8)
        total += np.unpackbits(octets).reshape(-1, BITS).sum(0, dtype=np.int64)
    return total


def cut(flipped: npt.NDArray[np.int64], bits: int) -> Iterator[tuple[int, int]]:
    """First bit and width of each field of a payload of so many bits."""
    first = 0
    while first < bits:
        moving = first
        while moving < bits and not flipped[moving]:
            moving += 1
        edge = max(first, moving - moving % 8) if moving < bits else bits
        if edge > first:  # what never flipped, up to the byte in which the next field begins
            edge = min(edge, first + WIDTH_MAX)
            yield first, edge - first
            first = edge
            continue
        end = moving + 1
        while end < min(bits, first + WIDTH_MAX) and flipped[end] and 2 * (flipped[end] + 2) >= flipped[end - 1]:
            end += 1
        yield first, end - first
        first = end


@compiled(nogil=True)
def value_of(word: np.uint64, first: int, bits: int, flip: int) -> int:
    """A field's number. `flip` is its sign bit where negative numbers are seen, so that -1 and 0 are neighbours."""
    mask = (np.uint64(2) << np.uint64(bits - 1)) - np.uint64(1)
    value: int = np.int64(((word >> np.uint64(64 - first - bits)) & mask) ^ np.uint64(flip))  # type: ignore[assignment]
    return value


@compiled(nogil=True)
def values_of(words: Words, first: int, bits: int, flip: int) -> npt.NDArray[np.float64]:
    values = np.empty(len(words))
    for at in range(len(words)):
        values[at] = value_of(words[at], first, bits, flip)
    return values


def steps(values: npt.NDArray[np.float64], around: float) -> npt.NDArray[np.float64]:
    """The largest change over 1, 2, 4 ... frames; over more frames it is never less."""
    found = np.zeros(WINDOWS)
    for at in range(WINDOWS):
        change = np.abs(values[1 << at :] - values[: -(1 << at)])
        if len(change):
            found[at] = np.minimum(change, around - change).max()
    return np.maximum.accumulate(found)


def kind_of(parts: Sequence[npt.NDArray[np.float64]], flipped: npt.NDArray[np.int64], bits: int) -> int:
    """The kind of a field by its values in each part and its bits' flips."""
    change = np.concatenate([np.diff(values) for values in parts])
    moved = change[change != 0]
    if not len(moved):
        return CONSTANT
    if bits > 1 and len(moved) > 8:
        _, often = np.unique(change % 2.0**bits, return_counts=True)
        if often.max() >= SAME_STEP * len(change) and len(moved) > len(change) / 2:
            return COUNTER
    if bits >= STATE_BITS and (flipped >= NOISE_FLIPS * len(change)).all():
        return NOISE
    values = np.unique(np.concatenate(parts))
    climbs = len(values) >= CLIMBS and np.abs(moved).max() <= 2 * np.diff(values).min()
    if bits <= STATE_BITS or (len(values) < STATES and not climbs):
        return STATE
    return NOISE if LEAPS * np.abs(moved).max() > values[-1] - values[0] else NUMBER
