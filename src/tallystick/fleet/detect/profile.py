"""What is usual on one bus: its identifiers, their times and lengths, and what their fields do.

Frames of benign drives come in; out goes a `Profile`, a value that nothing changes afterwards: watching never does, so
whoever drifts slowly is held to what was learnt at first. A new profile is a new signed file. Each limit is what was
seen, widened by what leaving out a drive in turn shows: where one drive went farther than all the others, the next may
go as much farther again. What an attacker did during the calibration is taken as usual; this cannot be told from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tallystick import wire
from tallystick.errors import Malformed, Misuse
from tallystick.fleet.detect.fields import (
    CONSTANT,
    KINDS,
    NUMBER,
    STATE,
    WINDOWS,
    cut,
    flips,
    kind_of,
    steps,
    values_of,
)
from tallystick.fleet.detect.frames import Frames
from tallystick.fleet.detect.ties import BIT, LINE, PARTNER, PARTNERS, TIE, tie_bits, tie_numbers
from tallystick.kernels.jit import compiled

VERSION = 1
BYTES_MAX = 4 << 20
SENDERS_MAX = 4096  # identifiers; a whole 11-bit bus has 2,048
SOURCES_MAX = 1024
RATE_US = 100_000  # frames are counted in such windows
CUTS = 4  # a single drive is cut into so many parts
FAMILIAR = 3  # an identifier seen less often stays unknown: so does one that somebody invented during the calibration
FRAMES_MIN = 100  # of an identifier, before anything is said about its times and values
SECONDS_MIN = {
    "schedule": 2.0,
    "rate": 2.0,
    "silence": 2.0,
    "jump": 10.0,
    "alone": 10.0,
    "together": 10.0,
}  # of calibration; below that a check is off
MARGIN = 1.25  # each limit is at least so much wider than what was seen
MARGIN_MAX = 4.0  # and at most so much, however far one drive went beyond the others
SMALL = 16  # a change of less than this part of the range seen is never told
PERIODIC = 0.8  # so many intervals are about one period, or there is none
CONTENDING = 1e-3  # so many frames out of their slot, and the identifier has no schedule
SILENT_PERIODS = 5
LENGTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24, 32, 48, 64)  # of payloads, in bytes; those above 8 are CAN FD's

SENDER = np.dtype(
    [
        ("can_id", "<u4"),
        ("lengths", "<u2"),  # a bit for each of LENGTHS that was seen
        ("first", "<i4"),  # of its fields
        ("fields", "<i4"),
        ("frames", "<i8"),  # seen in calibration
        ("period", "<i8"),  # microseconds; 0: none
        ("slack", "<i8"),  # farthest from its slot; 0: no schedule
        ("silence", "<i8"),  # absent longer than that; 0: may be absent
        ("rate", "<i4"),  # at most so many frames in RATE_US; 0: not watched
        ("steady", "<u8"),  # its bits that are no number, counter or noise
        ("bit_first", "<i4"),  # of its tracked bits
        ("bits", "<i4"),
        ("tie_first", "<i4"),  # of its numbers that others vouch for
        ("ties", "<i4"),
        ("jitter", "<f8"),  # standard deviation of the intervals, microseconds
    ]
)
FIELD = np.dtype(
    [
        ("first_bit", "u1"),
        ("bits", "u1"),
        ("kind", "u1"),
        ("flip", "<u8"),  # the sign bit of a number that is sometimes negative
        ("around", "<f8"),  # changes are taken modulo this: a number that uses all its bits may run over, or below 0
        ("mean", "<f8"),
        ("spread", "<f8"),
        ("low", "<f8"),
        ("high", "<f8"),
        ("limits", "<f4", (WINDOWS,)),  # of changes over 1, 2, 4 ... frames; negative: not watched
    ]
)
Table = npt.NDArray[np.void]


class ProfileTables(NamedTuple):
    """What the checks look at; the rows of each sender, bit or tie lie side by side in the next table."""

    senders: Table  # SENDER, by identifier
    signals: Table  # FIELD
    bits: Table  # BIT
    partners: Table  # PARTNER
    ties: Table  # TIE
    lines: Table  # LINE


LAYOUTS = (SENDER, FIELD, BIT, PARTNER, TIE, LINE)


@dataclass(frozen=True, eq=False)
class Profile:
    micros: int  # of calibration
    parts: int
    longest: int  # microseconds without any frame
    sources: tuple[str, ...]
    off: dict[str, str]  # checks that are off, and why
    tables: ProfileTables

    @property
    def seconds(self) -> float:
        return self.micros / 1e6

    @property
    def senders(self) -> Table:
        return self.tables.senders

    @property
    def signals(self) -> Table:
        return self.tables.signals

    @cached_property
    def ids(self) -> npt.NDArray[np.uint32]:
        return np.ascontiguousarray(self.senders["can_id"])

    def fields(self, can_id: int) -> list[tuple[int, int, str]]:
        """First bit, width and kind of each field of an identifier; none of an unknown one."""
        at = int(np.searchsorted(self.ids, can_id))
        if at == len(self.ids) or self.ids[at] != can_id:
            return []
        sender = self.senders[at]
        found = self.signals[sender["first"] : sender["first"] + sender["fields"]]
        return [(int(one["first_bit"]), int(one["bits"]), KINDS[one["kind"]]) for one in found]

    def encode(self) -> bytes:
        off = [[check, why] for check, why in sorted(self.off.items())]
        numbers = [VERSION, self.micros, self.parts, self.longest]
        return wire.encode([*numbers, list(self.sources), off, *(table.tobytes() for table in self.tables)])

    @classmethod
    def decode(cls, data: bytes) -> Profile:
        """Raises `Malformed`: another version, too large, or bytes that are no profile."""
        if len(data) > BYTES_MAX:
            raise Malformed(f"profile: {len(data)} bytes, at most {BYTES_MAX} expected")
        read = wire.Fields.parse(data, "profile", 6 + len(LAYOUTS))
        read.version(VERSION)
        micros, parts, longest = read.number(), read.number(), read.number()
        sources = tuple(one.text() for one in read.each(SOURCES_MAX))
        pairs = [one.array(2) for one in read.each(16)]
        off = {pair.text(): pair.text() for pair in pairs}
        tables = ProfileTables(*(_table(read.octets(at_most=BYTES_MAX), kind) for kind in LAYOUTS))
        profile = cls(micros, parts, longest, sources, off, tables)
        _check(profile)
        return profile


def _table(data: bytes, kind: np.dtype[np.void]) -> npt.NDArray[np.void]:
    if len(data) % kind.itemsize:
        raise Malformed("profile: a table of another layout")
    return np.frombuffer(data, kind)


def _check(profile: Profile) -> None:
    """Hold every number to its bounds: the checks, which are compiled, must never reach outside a table, and one frame
    must be bounded work."""
    senders, signals, bits, partners, ties, lines = profile.tables
    rows = [
        (senders, "first", "fields", signals, 64),
        (senders, "bit_first", "bits", bits, 64),
        (senders, "tie_first", "ties", ties, 64),
        (bits, "first", "partners", partners, PARTNERS),
        (ties, "first", "partners", lines, PARTNERS),
    ]
    inside = [
        (partners["at"], bits),
        (ties["signal"], signals),
        (lines["sender"], senders),
        (lines["signal"], signals),
    ]
    numbers = [table[name] for table in (senders, signals, partners, lines) for name in table.dtype.fields or ()]
    sound = [
        len(senders) <= SENDERS_MAX,
        (np.diff(senders["can_id"].astype(np.int64)) > 0).all(),
        *(((senders[name] >= 0) & (senders[name] < 1 << 40)).all() for name in ("period", "slack", "silence", "rate")),
        ((senders["period"] > 0) | (senders["slack"] == 0)).all(),
        ((signals["bits"] > 0) & (signals["first_bit"].astype(int) + signals["bits"] <= 64)).all(),
        (signals["kind"] < len(KINDS)).all(),
        (bits["bit"] < 64).all(),
        *(np.isfinite(column).all() for column in numbers),
        *(((at >= 0) & (at < len(table))).all() for at, table in inside),
    ]
    for table, first, count, other, most in rows:
        begin, size = table[first].astype(np.int64), table[count].astype(np.int64)
        sound.append(((begin >= 0) & (size >= 0) & (size <= most) & (begin + size <= len(other))).all())
    if not all(sound) or profile.longest > 1 << 40:
        raise Malformed("profile: a number outside its bounds")


def learn(parts: Sequence[Frames], sources: Sequence[str] = ()) -> Profile:
    """The profile of benign drives, each an uninterrupted one. Raises `Misuse` if there is nothing to learn from."""
    parts = [part for part in parts if len(part)]
    if not parts:
        raise Misuse("no frames to learn from", hint="give some minutes of benign driving")
    micros = sum(int(part.ts[-1] - part.ts[0]) for part in parts)
    if min((int(np.diff(part.ts).min()) for part in parts if len(part) > 1), default=0) < 0:
        raise Misuse("frames to learn from are not in order of time", hint="sort them, and cut where the clock jumped")
    longest = max((int(np.diff(part.ts).max()) for part in parts if len(part) > 1), default=0)
    if len(parts) == 1:
        at = np.linspace(0, len(parts[0]), CUTS + 1).astype(int)
        parts = [parts[0][a:b] for a, b in pairwise(at) if b > a]
    ids, often = np.unique(np.concatenate([part.can_id for part in parts]), return_counts=True)
    ids = ids[often >= FAMILIAR]
    if len(ids) > SENDERS_MAX:
        raise Misuse(
            f"{len(ids)} identifiers in the calibration, at most {SENDERS_MAX} expected",
            hint="somebody invents identifiers there: calibrate on a drive that was not attacked",
        )
    off = {
        check: f"{micros / 1e6:.1f} s of calibration, at least {least:g} s expected"
        for check, least in SECONDS_MIN.items()
        if micros < least * 1e6
    }
    senders = np.zeros(len(ids), SENDER)
    senders["can_id"] = ids
    orders = [np.argsort(part.can_id, kind="stable") for part in parts]
    bounds = [np.searchsorted(part.can_id[order], [ids, ids + 1]) for part, order in zip(parts, orders, strict=True)]
    own = [
        [part[order[low[at] : high[at]]] for part, order, (low, high) in zip(parts, orders, bounds, strict=True)]
        for at in range(len(ids))
    ]
    fields = [learn_sender(sender, frames, off) for sender, frames in zip(senders, own, strict=True)]
    senders["fields"] = [len(one) for one in fields]
    senders["first"] = np.cumsum(senders["fields"]) - senders["fields"]
    signals = np.concatenate([np.zeros(0, FIELD), *fields])
    bits = tie_bits(senders, signals, own if "alone" not in off else [], micros / 1e6)
    spans = [(int(part.ts[0]), int(part.ts[-1])) for part in parts]
    ties = tie_numbers(senders, signals, own, spans if "together" not in off else [])
    return Profile(micros, len(parts), longest, tuple(sources), off, ProfileTables(senders, signals, *bits, *ties))


def learn_sender(sender: np.void, parts: Sequence[Frames], off: dict[str, str]) -> npt.NDArray[np.void]:
    """Fill in what one identifier does, and return its fields."""
    lengths = np.unique(np.concatenate([part.length for part in parts]))
    sender["lengths"] = sum(1 << LENGTHS.index(int(length)) for length in lengths if length in LENGTHS)
    sender["frames"] = sum(map(len, parts))
    gaps = np.concatenate([np.diff(part.ts) for part in parts])
    if len(gaps):
        sender["jitter"] = gaps.std()
    whole = all(len(part) > 1 for part in parts)
    if sender["frames"] >= FRAMES_MIN and "schedule" not in off:
        learn_times(sender, [part.ts for part in parts], gaps)
        if sender["period"] and whole and "silence" not in off:
            sender["silence"] = max(SILENT_PERIODS * sender["period"], 2 * int(gaps.max()))
    if not sender["slack"] and "rate" not in off:
        counts = [np.unique(part.ts // RATE_US, return_counts=True)[1].max() for part in parts if len(part)]
        sender["rate"] = 2 * max(counts) + 2
    words = [part.word for part in parts if len(part)]
    width = 8 * min(8, int(lengths.max()))
    flipped = flips(words)
    found = np.zeros(64, FIELD)
    count = 0
    for start, bits in cut(flipped, width):
        learn_field(
            found[count],
            words,
            start,
            bits,
            flipped[start : start + bits],
            sender["frames"] >= FRAMES_MIN and "jump" not in off,
        )
        count += 1
        if found[count - 1]["kind"] in (STATE, CONSTANT):
            sender["steady"] |= np.uint64(((1 << bits) - 1) << (64 - start - bits))
    return found[:count]


def learn_times(sender: np.void, parts: Sequence[npt.NDArray[np.int64]], gaps: npt.NDArray[np.int64]) -> None:
    """The period, if there is one, and how far from their slots its frames come."""
    middle = float(np.median(gaps))
    if middle < 1:
        return
    slots = np.rint(gaps / middle)
    if np.mean(slots == 1) < PERIODIC:
        return
    period = round(float(gaps.sum() / slots.sum()))
    contended, farthest = 0, 0
    for ts in parts:
        found = track(ts, period)
        contended, farthest = contended + found[0], max(farthest, found[1])
    if contended <= CONTENDING * sender["frames"]:
        sender["period"] = period
        sender["slack"] = int(MARGIN * farthest) + 1


@compiled(nogil=True)
def follow(slot: int, ts: int, before: int, period: int) -> tuple[int, bool]:
    """The slot of a frame at `ts`, the last one having been at `before` in `slot`: its expected time, and whether it is
    free. An eighth of each deviation is taken over, so a sender's clock may drift; one that was away begins anew."""
    expected = slot + period + (before - slot) // 8
    late = ts - expected
    if late < -(period // 2):
        return slot, False
    return ts if late >= period else expected, True


@compiled(nogil=True)
def track(ts: npt.NDArray[np.int64], period: int) -> tuple[int, int]:
    """How many frames contended for a slot, and the farthest that one came from its own."""
    contended, farthest = 0, 0
    if len(ts) == 0:
        return 0, 0
    slot, before = ts[0], ts[0]
    for at in range(1, len(ts)):
        slot, own = follow(slot, ts[at], before, period)
        if own:
            before = ts[at]
            farthest = max(farthest, abs(before - slot))
        else:
            contended += 1
            if abs(ts[at] - slot) < abs(before - slot):
                before = ts[at]
    return contended, farthest


def learn_field(
    one: np.void,
    words: Sequence[npt.NDArray[np.uint64]],
    first: int,
    bits: int,
    flipped: npt.NDArray[np.int64],
    watched: bool,
) -> None:
    """Fill in what one field does."""
    sign = 1 << (bits - 1)
    plain = [values_of(part, first, bits, 0) for part in words]
    turned = [values_of(part, first, bits, sign) for part in words]
    flip = sign if max(map(_farthest, turned)) < max(map(_farthest, plain)) else 0
    parts = turned if flip else plain
    every = np.concatenate(parts)
    one["first_bit"], one["bits"], one["flip"] = first, bits, flip
    one["kind"] = kind_of(parts, flipped, bits)
    one["mean"], one["spread"], one["low"], one["high"] = every.mean(), every.std(), every.min(), every.max()
    one["limits"] = -1
    one["around"] = 2.0**bits
    if one["kind"] == NUMBER and watched:
        each = np.sort([steps(part, one["around"]) for part in parts], axis=0)
        most, second = each[-1], each[-2] if len(each) > 1 else each[-1] * 0
        wider = most * np.clip(most / np.maximum(second, 1e-9), MARGIN, MARGIN_MAX)
        one["limits"] = wider + 1 + (one["high"] - one["low"]) / SMALL


def _farthest(values: npt.NDArray[np.float64]) -> float:
    return float(np.abs(np.diff(values)).max()) if len(values) > 1 else 0.0


def merge(profiles: Sequence[Profile]) -> Profile:
    """One profile of several drives whose frames are gone: what was learnt is widened, never narrowed.

    A number that one profile knows and another cuts otherwise is not watched any more, and neither are ties between
    identifiers: to keep those, `learn` from all drives at once. Raises `Misuse` for none.
    """
    if not profiles:
        raise Misuse("no profiles to merge")
    ids = np.unique(np.concatenate([profile.ids for profile in profiles]))
    if len(ids) > SENDERS_MAX:
        raise Misuse(f"{len(ids)} identifiers in these profiles, at most {SENDERS_MAX} expected")
    senders, fields = np.zeros(len(ids), SENDER), []
    for at, can_id in enumerate(ids):
        known = [(one, profile.signals) for profile in profiles for one in profile.senders[profile.ids == can_id]]
        known.sort(key=lambda pair: -int(pair[0]["frames"]))
        own = [table[one["first"] : one["first"] + one["fields"]].copy() for one, table in known]
        senders[at] = known[0][0]
        for one, _ in known[1:]:
            _widen_sender(senders[at], one)
        for other in own[1:]:
            _widen_fields(own[0], other)
        fields.append(own[0])
    senders["fields"] = [len(one) for one in fields]
    senders["first"] = np.cumsum(senders["fields"]) - senders["fields"]
    for name in ("bit_first", "bits", "tie_first", "ties"):
        senders[name] = 0
    off = {check: why for profile in profiles for check, why in profile.off.items()}
    off |= dict.fromkeys(("alone", "together"), "merged from profiles: ties need the frames of all drives")
    sources = tuple(dict.fromkeys(source for profile in profiles for source in profile.sources))[:SOURCES_MAX]
    none = (np.zeros(0, kind) for kind in LAYOUTS[2:])
    tables = ProfileTables(senders, np.concatenate([np.zeros(0, FIELD), *fields]), *none)
    micros, parts = sum(one.micros for one in profiles), sum(one.parts for one in profiles)
    return Profile(micros, parts, max(one.longest for one in profiles), sources, off, tables)


def _widen_sender(one: np.void, other: np.void) -> None:
    same = abs(int(one["period"]) - int(other["period"])) * 100 <= one["period"]  # one clock, give or take a hundredth
    for name in ("period", "slack", "silence"):
        one[name] = max(one[name], other[name]) if same else 0
    one["rate"] = max(one["rate"], other["rate"])
    one["lengths"] |= other["lengths"]
    one["steady"] &= other["steady"]
    one["frames"] += other["frames"]
    one["jitter"] = max(one["jitter"], other["jitter"])


def _widen_fields(own: npt.NDArray[np.void], others: npt.NDArray[np.void]) -> None:
    for one in own:
        begin, end = int(one["first_bit"]), int(one["first_bit"]) + int(one["bits"])
        over = others[(others["first_bit"] < end) & (others["first_bit"].astype(int) + others["bits"] > begin)]
        moving = over[over["kind"] != CONSTANT]
        alike = moving[(moving["first_bit"] == one["first_bit"]) & (moving["bits"] == one["bits"])]
        if len(alike) and alike[0]["flip"] == one["flip"]:
            one["limits"] = np.maximum(one["limits"], alike[0]["limits"])
            one["low"], one["high"] = min(one["low"], alike[0]["low"]), max(one["high"], alike[0]["high"])
            one["spread"] = max(one["spread"], alike[0]["spread"])
            one["kind"] = alike[0]["kind"] if one["kind"] == CONSTANT else one["kind"]
        elif len(moving):
            one["limits"] = -1
