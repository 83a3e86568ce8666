"""What several identifiers say together: bits that flip with others' bits, and numbers that move with others' numbers.

Drives come in, with what is known of each sender; out go the bits and numbers that others vouch for. *Bits*: a slow
bit, and slow bits of other identifiers that flipped within `HELD_US` whenever it did, and only then, in two drives at
least. Each partner carries two weights, the logarithms of how much likelier a lie is than the truth if the partner
flipped too, and if it did not. *Numbers*: a number, and numbers of two other identifiers at least from each of which it
follows by a line. One partner that lies is outvoted: a number is false only where it contradicts all its partners.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tallystick.fleet.detect.fields import BITS, NUMBER, STATE, values_of
from tallystick.fleet.detect.frames import Frames

HELD_US = 500_000  # what belongs together has flipped, or agrees again, within this time
SLOW = 0.5  # flips a second at most of a slow bit
FOLLOWED = 0.9  # of its flips a partner follows so many at least
PARTNERS = 8  # at most, the best of as many identifiers
LIE = float(np.log(1000))  # a lie is told when it is so much likelier than the truth: some bits flip often in an hour
GRID_US = 100_000  # numbers are compared at such times
ALIKE = 0.98  # correlation of a number with each of its partners
CLOSE = 0.25  # a line tells something if it misses by at most this part of the number's range, in a drive left out
LINE_MARGIN = 1.5  # the farthest that a line missed in a drive left out, and so much more
GRID_MIN = 100  # times of comparison, before numbers are tied

BIT = np.dtype([("bit", "u1"), ("first", "<i4"), ("partners", "<i4")])  # without partners: it is one itself
PARTNER = np.dtype([("at", "<i4"), ("flipped", "<f4"), ("still", "<f4")])
TIE = np.dtype([("signal", "<i4"), ("first", "<i4"), ("partners", "<i4")])
LINE = np.dtype([("sender", "<i4"), ("signal", "<i4"), ("slope", "<f8"), ("offset", "<f8"), ("limit", "<f8")])

Table = npt.NDArray[np.void]
Own = Sequence[Sequence[Frames]]  # of each sender, its frames in each part


def tie_bits(senders: Table, signals: Table, own: Own, seconds: float) -> tuple[Table, Table]:
    """The tracked bits, those of each sender in a row, and their partners; `senders` is told where its own are."""
    flips: dict[tuple[int, int], list[npt.NDArray[np.int64]]] = {}
    for at, parts in enumerate(own):
        changed = [part.word[1:] ^ part.word[:-1] for part in parts]
        for bit in range(BITS):
            shift = np.uint64(BITS - 1 - bit)
            times = [part.ts[1:][(x >> shift) & np.uint64(1) == 1] for part, x in zip(parts, changed, strict=True)]
            if 0 < sum(map(len, times)) <= SLOW * seconds:
                flips[at, bit] = times
    watched = {
        (at, bit)
        for at, sender in enumerate(senders)
        for one in signals[sender["first"] : sender["first"] + sender["fields"]]
        if one["kind"] == STATE
        for bit in range(one["first_bit"], one["first_bit"] + one["bits"])
    }
    found = {
        key: _partners(key, flips, seconds)
        for key in flips
        if key in watched and sum(map(bool, map(len, flips[key]))) > 1
    }
    found = {key: partners for key, partners in found.items() if sum(still for _, _, still in partners) > LIE}
    tracked = sorted({*found, *(other for partners in found.values() for other, _, _ in partners)})
    place = {key: at for at, key in enumerate(tracked)}
    bits = np.zeros(len(tracked), BIT)
    weights: list[tuple[int, float, float]] = []
    for at, key in enumerate(tracked):
        sender = senders[key[0]]
        sender["bit_first"] = at if not sender["bits"] else sender["bit_first"]
        sender["bits"] += 1
        bits[at] = key[1], len(weights), len(found.get(key, ()))
        weights += [(place[other], flipped, still) for other, flipped, still in found.get(key, ())]
    return bits, np.array(weights, PARTNER)


def _partners(
    key: tuple[int, int], flips: dict[tuple[int, int], list[npt.NDArray[np.int64]]], seconds: float
) -> list[tuple[tuple[int, int], float, float]]:
    """Who flips when this bit does, the most telling bit of each identifier."""
    total = sum(map(len, flips[key]))
    best: dict[int, tuple[tuple[int, int], float, float]] = {}
    for other, times in flips.items():
        theirs = sum(map(len, times))
        if other[0] == key[0] or min(total, theirs) < FOLLOWED * max(total, theirs):
            continue
        followed = sum(_near(*both) for both in zip(flips[key], times, strict=True))
        if min(followed, sum(_near(*both) for both in zip(times, flips[key], strict=True))) < FOLLOWED * max(
            total, theirs
        ):
            continue
        honest = (followed + 1) / (total + 2)
        chance = 1 - np.exp(-(theirs + 1) / seconds * 2 * HELD_US / 1e6)
        weights = float(np.log(chance / honest)), float(np.log((1 - chance) / (1 - honest)))
        if weights[1] > 0 and (other[0] not in best or weights[1] > best[other[0]][2]):
            best[other[0]] = (other, *weights)
    return sorted(best.values(), key=lambda one: -one[2])[:PARTNERS]


def _near(mine: npt.NDArray[np.int64], theirs: npt.NDArray[np.int64]) -> int:
    """How many of my times have one of theirs beside them."""
    return int((np.searchsorted(theirs, mine - HELD_US) < np.searchsorted(theirs, mine + HELD_US, "right")).sum())


def tie_numbers(senders: Table, signals: Table, own: Own, spans: Sequence[tuple[int, int]]) -> tuple[Table, Table]:
    """The numbers that others vouch for, those of each sender in a row, and the lines; `senders` is told where."""
    numbers = [
        (at, place)
        for at, sender in enumerate(senders)
        if sender["slack"] and all(map(len, own[at]))
        for place in range(sender["first"], sender["first"] + sender["fields"])
        if signals[place]["kind"] == NUMBER
    ]
    grids = [np.arange(begin + HELD_US, end, GRID_US) for begin, end in spans]
    if sum(map(len, grids)) < GRID_MIN or not numbers:
        return np.zeros(0, TIE), np.zeros(0, LINE)
    columns = [np.zeros((len(numbers), len(grid))) for grid in grids]
    for row, (at, place) in enumerate(numbers):
        one = signals[place]
        for column, part, grid in zip(columns, own[at], grids, strict=True):
            when = np.searchsorted(part.ts, grid, "right") - 1
            values = values_of(part.word, int(one["first_bit"]), int(one["bits"]), int(one["flip"]))
            column[row] = np.where(when >= 0, values[when], values[0])
    every = np.concatenate(columns, axis=1)
    ties: list[tuple[int, int, int]] = []
    lines: list[tuple[int, int, float, float, float]] = []
    with np.errstate(invalid="ignore", divide="ignore"):
        alike = np.abs(np.nan_to_num(np.atleast_2d(np.corrcoef(every))))
    for row, (at, place) in enumerate(numbers):
        chosen: dict[int, tuple[int, int, float, float, float]] = {}
        for other in np.argsort(-alike[row]):
            sender = numbers[other][0]
            if alike[row, other] < ALIKE or len(chosen) == PARTNERS:
                break
            if sender == at or sender in chosen:
                continue
            missed = max(_misses([c[other] for c in columns], [c[row] for c in columns]))
            if missed <= CLOSE * (signals[place]["high"] - signals[place]["low"]):
                slope, offset = np.polyfit(every[other], every[row], 1)
                chosen[sender] = (sender, numbers[other][1], slope, offset, LINE_MARGIN * missed + 1)
        if len(chosen) > 1:
            senders[at]["tie_first"] = len(ties) if not senders[at]["ties"] else senders[at]["tie_first"]
            senders[at]["ties"] += 1
            ties.append((place, len(lines), len(chosen)))
            lines += chosen.values()
    return np.array(ties, TIE), np.array(lines, LINE)


def _misses(xs: Sequence[npt.NDArray[np.float64]], ys: Sequence[npt.NDArray[np.float64]]) -> list[float]:
    """How far the line through all other parts misses each part."""
    found = []
    for out in range(len(xs)):
        x, y = (np.concatenate([one for at, one in enumerate(all_) if at != out]) for all_ in (xs, ys))
        if len(xs[out]) and len(x) > 1 and np.ptp(x) > 0:
            slope, offset = np.polyfit(x, y, 1)
            found.append(float(np.abs(ys[out] - slope * xs[out] - offset).max()))
        elif len(xs[out]):
            found.append(float("inf"))
    return found
