"""The watch over one bus: a profile, a state and frames come in; the state after them and their hits go out.

All checks are one walk over the frames in order, so however frames are cut into batches, the hits are the same bits.
The state is one flat buffer, copied once a call; the one handed in is never changed. Its size depends on the profile
alone: identifiers that the profile does not know are told and leave nothing behind.

- *unknown*: an identifier or a length that was never seen.
- *schedule*: each frame takes a slot of its identifier's period. Of two that contend for one, the intruder is the one
  whose states differ from those before, or else the one farther from its time.
- *rate*: too many frames in a tenth of a second, where there is no schedule.
- *jump*: a number changed more than it ever did. A frame is held to the last accepted one, so honest frames between
  injected ones stay clean and a false value stays marked until the true one returns.
- *alone*: a slow bit flipped, and the bits of others that always flip with it did not.
- *together*: a number contradicts the numbers of all others from which it follows.
- *silence*: an identifier that always came does not come any more.
- *clock*: time went back, or leapt; after a leap the watch begins anew, since no score is better than a wrong one.

*schedule* and *jump* speak at the second hit within `AGAIN_US`, and tell the first one with it. So hits come in the
order in which they are told, and a hit may name a frame of an earlier batch.

A car reacts to a lie: while one identifier is told, what others do weighs less (`reacts`). Who wants to hide behind a
first lie is told for that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tallystick.errors import Malformed
from tallystick.fleet.detect.fields import WINDOWS, value_of
from tallystick.fleet.detect.frames import Frames
from tallystick.fleet.detect.profile import FIELD, LENGTHS, RATE_US, SENDER, Profile, follow
from tallystick.fleet.detect.ties import BIT, HELD_US, LIE, LINE, PARTNER, TIE
from tallystick.kernels.jit import compiled

CHECKS = ("unknown", "schedule", "rate", "jump", "alone", "together", "silence", "clock", "network")
UNKNOWN, SCHEDULE, RATE, JUMP, ALONE, TOGETHER, SILENCE, CLOCK, NETWORK = range(len(CHECKS))

AGAIN_US = 2_000_000  # a second hit within this time confirms the first; as long as an alert stays open
STOOD_US = 1_000_000  # a reference that stood for less yields to a value that contradicts it
YIELD_US = 60_000_000  # what stayed for so long has been told, and is taken as given
SWEEP_US = 50_000  # how often the watch looks for who is absent
REPEAT_US = 1_000_000  # how often it says that somebody still is
ORDER_US = 10_000  # a frame so little late was held up on its way to us; any more, and the clock was set back
LEAP_US = 1_000_000  # no frame for so long, and the bus or the capture stood still
LEAP_TIMES = 4  # or for so many times the longest pause of the calibration
BENT = 0.5  # beyond what was seen, a line may bend by so much of its slope
ROOM = 4096  # hits that one call of the walk has room for, besides those of one frame
TOLD = 255  # in place of a check: this first hit needs not be told again

HIT = np.dtype(
    [
        ("frame", "<i8"),  # number of the frame since the watch began
        ("ts", "<i8"),
        ("can_id", "<u4"),
        ("check", "u1"),
        ("field", "<i2"),  # in the profile's list of this identifier's fields; -1: the whole frame
        ("seen", "<f8"),  # and the band expected: times in microseconds, counts, raw values
        ("low", "<f8"),
        ("high", "<f8"),
        ("strength", "<f4"),  # at least 1: how far outside
    ]
)
HEAD = np.dtype(
    [
        ("frame", "<i8"),  # frames so far
        ("now", "<i8"),
        ("sweep", "<i8"),  # when to look for the absent
        ("running", "<i8"),
        ("culprit", "<i8"),  # the sender that was told first, -1 for unknown ones
        ("since", "<i8"),
        ("marked", "<i8"),  # when it was told last
        ("hits", "<i8"),  # in this call of the walk
    ]
)
SEEN = np.dtype(
    [
        ("last", "<i8"),  # when any frame of this identifier came
        ("told", "<i8"),  # when its silence was told
        ("slot", "<i8"),  # expected time of the last slot taken
        ("ts", "<i8"),  # of the frame that took it, which is the reference
        ("frame", "<i8"),
        ("word", "<u8"),
        ("before", "<u8"),  # the reference that it replaced
        ("gap", "<i8"),  # frames since the reference
        ("since", "<i8"),  # when this run of references began
        ("rejected", "<u8"),  # the last frame that was not accepted
        ("began", "<i8"),  # when the first of them came
        ("window", "<i8"),  # in which frames are counted
        ("count", "<i4"),
        ("bursting", "u1"),
        ("known", "u1"),  # whether there is a reference and a slot
    ]
)
FLIP = np.dtype(
    [
        ("last", "<i8"),  # when this bit flipped
        ("frame", "<i8"),  # in which it did
        ("weight", "<f4"),  # how much likelier a lie is, as a logarithm
        ("known", "u1"),  # whether it flipped since the watch began
        ("doubt", "u1"),  # 1: it flipped, and partners may follow; 2: they did not
    ]
)
APART = np.dtype([("since", "<i8"), ("apart", "u1")])  # since when a number contradicts its partners
PENDING = 2  # hits of a sender that wait for a second: one of schedule, one of jump


@dataclass(frozen=True)
class WatchState:
    """Where a watch stands; a value."""

    data: npt.NDArray[np.uint8]

    def to_bytes(self) -> bytes:
        return self.data.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, profile: Profile) -> WatchState:
        """Raises `Malformed` if it is not the state of a watch with this profile."""
        size = len(begin(profile).data)
        if len(data) != size:
            raise Malformed(f"state of a watch: {size} bytes expected for this profile, found {len(data)}")
        return cls(np.frombuffer(data, np.uint8))


@lru_cache(maxsize=64)
def layout(profile: Profile) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """A profile's tables in one buffer; and where they end in it, where those of a state do, and what is a leap."""
    tables = profile.tables
    senders, bits, ties = len(tables.senders), len(tables.bits), len(tables.ties)
    counts = (HEAD, 1), (SEEN, senders), (HIT, PENDING * senders), (FLIP, bits), (APART, ties)
    known = np.cumsum([table.nbytes for table in tables])
    held = np.cumsum([kind.itemsize * count for kind, count in counts])
    octets = np.frombuffer(b"".join(table.tobytes() for table in tables), np.uint8)
    return octets.copy(), np.array([*known, *held, max(LEAP_US, LEAP_TIMES * profile.longest)])


def begin(profile: Profile) -> WatchState:
    """A watch that has seen nothing yet."""
    return WatchState(np.zeros(layout(profile)[1][-2], np.uint8))


def step(profile: Profile, state: WatchState, frames: Frames) -> tuple[WatchState, npt.NDArray[np.void]]:
    """The state after these frames, and their hits in the order in which they are told."""
    known, ends = layout(profile)
    data = state.data.copy()
    # The walk takes plain arrays only: numba looks long at the type of any other.
    columns = np.empty((4, len(frames)), np.int64)
    columns[0], columns[1], columns[2], columns[3] = frames.ts, frames.can_id, frames.length, frames.word.view(np.int64)
    found: list[npt.NDArray[np.void]] = []
    at = 0
    while at < len(frames) or not found:
        room = min(ROOM, 2 * (len(frames) - at)) + len(profile.senders) + 2 * len(CHECKS)
        hits = np.zeros(room * HIT.itemsize, np.uint8)
        at, count = walk(known, ends, data, columns, at, hits)
        found.append(hits[: count * HIT.itemsize].view(HIT))
    return WatchState(data), found[0] if len(found) == 1 else np.concatenate(found)


class Watch(NamedTuple):
    """The tables of profile and state, and the hits, as the walk sees them.

    To hand it to a function costs a dozen counts of references, so what every frame passes is inlined.
    """

    senders: Any
    signals: Any
    bits: Any
    partners: Any
    ties: Any
    lines: Any
    head: Any
    seen: Any
    first: Any
    flip: Any
    apart: Any
    hits: Any


@compiled(nogil=True)
def walk(known: Any, ends: Any, data: Any, columns: Any, start: int, hits: Any) -> tuple[int, int]:
    """Go on from frame `start` while there is room for hits. Returns the frame to go on from, and how many hits."""
    w = Watch(
        known[: ends[0]].view(SENDER),
        known[ends[0] : ends[1]].view(FIELD),
        known[ends[1] : ends[2]].view(BIT),
        known[ends[2] : ends[3]].view(PARTNER),
        known[ends[3] : ends[4]].view(TIE),
        known[ends[4] : ends[5]].view(LINE),
        data[: ends[6]].view(HEAD),
        data[ends[6] : ends[7]].view(SEEN),
        data[ends[7] : ends[8]].view(HIT),
        data[ends[8] : ends[9]].view(FLIP),
        data[ends[9] : ends[10]].view(APART),
        hits.view(HIT),
    )
    head = w.head[0]
    head.hits = 0
    at = start
    while at < columns.shape[1] and len(w.hits) - head.hits >= len(w.seen) + 2 * len(CHECKS):
        look(w, ends[11], columns[0, at], columns[1, at], columns[2, at], np.uint64(columns[3, at]))
        at += 1
    count = head.hits
    head.hits = 0
    return at, count


@compiled(nogil=True, inline="always")
def look(w: Watch, leap: int, ts: int, can_id: int, length: int, word: np.uint64) -> None:
    """All checks of one frame."""
    head = w.head[0]
    head.frame += 1
    if not check_clock(w, leap, ts, can_id):
        return
    if ts >= head.sweep:
        check_silence(w, ts)
    at = find(w.senders, can_id)
    if at < 0 or not has_length(w.senders[at].lengths, length):
        put(w, head.frame - 1, ts, can_id, UNKNOWN, -1, length, 0, 0, 1)
        mark(w, -1, ts)
        return
    sender, one = w.senders[at], w.seen[at]
    one.last = ts
    if sender.rate:
        check_rate(w, at, ts)
    if not one.known:
        one.known, one.slot, one.since, one.before = 1, ts, ts, word
    elif check_jump(w, at, word, ts) and (not sender.slack or check_schedule(w, at, word, ts)):
        check_alone(w, at, word, ts)
        check_together(w, at, word, ts)
        one.before = one.word
    else:
        one.gap += 1
        return
    one.word, one.ts, one.frame, one.gap = word, ts, head.frame - 1, 1


@compiled(nogil=True)
def put(
    w: Watch,
    frame: int,
    ts: int,
    can_id: int,
    check: int,
    field: int,
    seen: float,
    low: float,
    high: float,
    strength: float,
) -> None:
    """Tell a hit."""
    head = w.head[0]
    _write(w.hits[head.hits], frame, ts, can_id, check, field, seen, low, high, strength)
    head.hits += 1


@compiled(nogil=True)
def put_second(
    w: Watch,
    at: int,
    frame: int,
    ts: int,
    can_id: int,
    check: int,
    field: int,
    seen: float,
    low: float,
    high: float,
    strength: float,
) -> None:
    """Tell a hit if there was one lately, and that one with it if it was not told; else keep it in mind."""
    old = w.first[at]
    again = old.strength > 0 and ts - old.ts <= AGAIN_US
    if again:
        if old.check != TOLD:
            put(w, old.frame, old.ts, old.can_id, old.check, old.field, old.seen, old.low, old.high, old.strength)
        put(w, frame, ts, can_id, check, field, seen, low, high, strength)
        mark(w, at // PENDING, ts)
    _write(old, frame, ts, can_id, TOLD if again else check, field, seen, low, high, strength)


@compiled(nogil=True)
def _write(
    one: Any,
    frame: int,
    ts: int,
    can_id: int,
    check: int,
    field: int,
    seen: float,
    low: float,
    high: float,
    strength: float,
) -> None:
    one.frame, one.ts, one.can_id, one.check, one.field = frame, ts, can_id, check, field
    one.seen, one.low, one.high, one.strength = seen, low, high, max(1.0, strength)


@compiled(nogil=True)
def mark(w: Watch, at: int, ts: int) -> None:
    """Remember who was told first: a sender, or -1 for all unknown ones."""
    head = w.head[0]
    if ts - head.marked > AGAIN_US:
        head.culprit, head.since = at, ts
    if head.culprit == at:
        head.marked = ts


@compiled(nogil=True)
def reacts(w: Watch, at: int, ts: int, within: int) -> bool:
    """Whether another one was told first and still is. An identifier that a repair has added is told all the time, and
    excuses nobody for long."""
    head = w.head[0]
    return bool(head.culprit != at and ts - head.marked <= within and ts - head.since <= YIELD_US)


@compiled(nogil=True)
def find(senders: Any, can_id: int) -> int:
    low, high = 0, len(senders)
    while low < high:
        middle = (low + high) // 2
        if senders[middle].can_id < can_id:
            low = middle + 1
        else:
            high = middle
    return low if low < len(senders) and senders[low].can_id == can_id else -1


@compiled(nogil=True)
def has_length(lengths: int, length: int) -> bool:
    for code in range(len(LENGTHS)):
        if LENGTHS[code] == length:
            return (lengths >> code) & 1 == 1
    return False


@compiled(nogil=True)
def restart(w: Watch, ts: int) -> None:
    """Forget all but the number of frames; everybody is due from now on."""
    for one in w.seen:
        one.last, one.told, one.known, one.window, one.count, one.bursting, one.gap = ts, 0, 0, 0, 0, 0, 1
    for one in w.first:
        one.strength = 0
    for one in w.flip:
        one.known, one.doubt = 0, 0
    for one in w.apart:
        one.apart = 0
    head = w.head[0]
    head.running, head.marked, head.sweep = 1, ts - 2 * AGAIN_US, ts + SWEEP_US


@compiled(nogil=True, inline="always")
def check_clock(w: Watch, leap: int, ts: int, can_id: int) -> bool:
    """Whether this frame can be scored."""
    head = w.head[0]
    if not head.running:
        restart(w, ts)
        head.now = ts
    stepped = ts - head.now
    if 0 <= stepped <= leap:
        head.now = ts
        return True
    put(w, head.frame - 1, ts, can_id, CLOCK, -1, stepped, 0, leap, abs(stepped) / leap)
    if -ORDER_US <= stepped < 0:
        return False
    restart(w, ts)
    head.now = ts
    return True


@compiled(nogil=True)
def check_silence(w: Watch, ts: int) -> None:
    head = w.head[0]
    head.sweep = ts + SWEEP_US
    for at in range(len(w.seen)):
        limit, one = w.senders[at].silence, w.seen[at]
        absent = ts - one.last
        if limit and absent > limit and ts - one.told >= REPEAT_US:
            one.told = ts
            put(w, head.frame - 1, ts, w.senders[at].can_id, SILENCE, -1, absent, 0, limit, absent / limit)


@compiled(nogil=True)
def check_rate(w: Watch, at: int, ts: int) -> None:
    """Beyond the limit every frame is a hit, until a window has passed that kept to it."""
    sender, one = w.senders[at], w.seen[at]
    window = ts // RATE_US
    if window != one.window:
        one.bursting = one.bursting and one.count > sender.rate and window == one.window + 1
        one.window, one.count = window, 0
    one.count += 1
    one.bursting = one.bursting or one.count > sender.rate
    if one.bursting:
        strength = one.count / sender.rate
        put(w, w.head[0].frame - 1, ts, sender.can_id, RATE, -1, one.count, 0, sender.rate, strength)


@compiled(nogil=True, inline="always")
def field_of(what: Any, word: np.uint64) -> int:
    """A field's number in a payload."""
    return value_of(word, what.first_bit, what.bits, what.flip)


@compiled(nogil=True, inline="always")
def apart_by(what: Any, one: np.uint64, other: np.uint64) -> float:
    """How far a field changed between two words. One that runs over, or below 0, has changed little."""
    change = abs(field_of(what, one) - field_of(what, other))
    return float(min(change, what.around - change))


@compiled(nogil=True, inline="always")
def check_jump(w: Watch, at: int, word: np.uint64, ts: int) -> bool:
    """Whether this frame may become the reference."""
    sender, one = w.senders[at], w.seen[at]
    if word == one.word:
        return True
    gap = one.gap if not sender.period else max(one.gap, (ts - one.ts + sender.period // 2) // sender.period)
    window = 0
    while window < WINDOWS - 1 and (1 << window) < gap:
        window += 1
    worst, ratio = -1, 1.0
    for place in range(sender.first, sender.first + sender.fields):
        limit = w.signals[place].limits[window]
        if limit > 0:
            far = apart_by(w.signals[place], word, one.word) / limit
            if far > ratio:
                worst, ratio = place, far
    if worst < 0:
        return True
    what = w.signals[worst]
    value, held, limit = field_of(what, word), field_of(what, one.word), what.limits[window]
    moved = apart_by(what, word, one.rejected) if one.gap > 1 else 0.0
    if one.gap == 1:
        one.began = ts
    one.rejected = word
    old = w.first[PENDING * at + 1]
    told = old.strength > 0 and old.check == TOLD and ts - old.ts <= AGAIN_US
    if (
        ts - one.since < STOOD_US
        or (told and 0 < moved <= what.limits[0])  # it lives: a liar repeats himself, or leaps again
        or (told and reacts(w, at, ts, AGAIN_US))
        or (ts - one.began > AGAIN_US and what.low <= value <= what.high)  # the car has been seen like this: it may be
        or ts - one.ts > YIELD_US
    ):
        one.since = ts
        return True
    frame, slot = w.head[0].frame - 1, PENDING * at + 1
    put_second(w, slot, frame, ts, sender.can_id, JUMP, worst - sender.first, value, held - limit, held + limit, ratio)
    return False


@compiled(nogil=True, inline="always")
def check_schedule(w: Watch, at: int, word: np.uint64, ts: int) -> bool:
    """Whether this frame has its slot. If an earlier frame took it wrongly, that one is the hit."""
    sender, one = w.senders[at], w.seen[at]
    slot, free = follow(one.slot, ts, one.ts, sender.period)
    if free:
        one.slot = slot
        return True
    stranger = bits_set((word ^ one.before) & sender.steady) - bits_set((one.word ^ one.before) & sender.steady)
    wrong = stranger < 0 or (stranger == 0 and abs(ts - slot) < abs(one.ts - slot))
    frame, when = (one.frame, one.ts) if wrong else (w.head[0].frame - 1, ts)
    slack, seen = sender.slack, when - slot
    put_second(w, PENDING * at, frame, when, sender.can_id, SCHEDULE, -1, seen, -slack, slack, abs(seen) / slack)
    if wrong:
        one.word = one.before
    return wrong


@compiled(nogil=True)
def bits_set(word: np.uint64) -> int:
    count = 0
    while word:
        word &= word - np.uint64(1)
        count += 1
    return count


@compiled(nogil=True, inline="always")
def check_alone(w: Watch, at: int, word: np.uint64, ts: int) -> None:
    """Follow the flips of the reference, for whose slot nobody contends any more. A bit is in doubt from its flip until
    its partners had their time; if they did not follow, each frame with that value is a hit."""
    sender, one = w.senders[at], w.seen[at]
    for place in range(sender.bit_first, sender.bit_first + sender.bits):
        what, mine = w.bits[place], w.flip[place]
        shift = np.uint64(63 - what.bit)
        if ((one.word ^ one.before) >> shift) & np.uint64(1):
            # A bit that flips back has returned to what was believed: nobody needs to follow.
            mine.doubt = 1 if what.partners and not mine.doubt else 0
            mine.last, mine.known, mine.frame = one.ts, 1, one.frame
        if mine.doubt == 1 and ts - mine.last >= HELD_US:
            weight = 0.0
            for number in range(what.first, what.first + what.partners):
                partner = w.partners[number]
                other = w.flip[partner.at]
                weight += partner.flipped if other.known and other.last >= mine.last - HELD_US else partner.still
            mine.weight = weight
            mine.doubt = 2 if weight > LIE and not reacts(w, at, ts, HELD_US) else 0
            if mine.doubt:
                put_bit(w, sender, what.bit, one.word, mine.frame, mine.last, weight)
        if mine.doubt == 2 and not ((word ^ one.word) >> shift) & np.uint64(1):
            put_bit(w, sender, what.bit, word, w.head[0].frame - 1, ts, mine.weight)
            if ts - mine.last > YIELD_US:
                mine.doubt = 0
            return


@compiled(nogil=True)
def put_bit(w: Watch, sender: Any, bit: int, word: np.uint64, frame: int, ts: int, weight: float) -> None:
    """A hit in the field that has this bit; the other value of the bit was expected."""
    for at in range(sender.first, sender.first + sender.fields):
        what = w.signals[at]
        if what.first_bit <= bit < what.first_bit + what.bits:
            value = field_of(what, word)
            other = value ^ (1 << (what.first_bit + what.bits - 1 - bit))
            put(w, frame, ts, sender.can_id, ALONE, at - sender.first, value, other, other, weight / LIE)


@compiled(nogil=True, inline="always")
def check_together(w: Watch, at: int, word: np.uint64, ts: int) -> None:
    """Hold each number to the partner that it contradicts least."""
    sender = w.senders[at]
    for number in range(sender.tie_first, sender.tie_first + sender.ties):
        tie, mine = w.ties[number], w.apart[number]
        value = field_of(w.signals[tie.signal], word)
        least, nearest, limit = np.inf, 0.0, 0.0
        for place in range(tie.first, tie.first + tie.partners):
            line = w.lines[place]
            other, theirs = w.signals[line.signal], field_of(w.signals[line.signal], w.seen[line.sender].word)
            beyond = max(0.0, other.low - theirs, theirs - other.high)
            expected, wide = line.offset + line.slope * theirs, line.limit + BENT * abs(line.slope) * beyond
            if not w.seen[line.sender].known:
                least = 0.0
            elif abs(value - expected) < least * wide:
                least, nearest, limit = abs(value - expected) / wide, expected, wide
        if least <= 1:
            mine.apart = 0
        elif not mine.apart:
            if not reacts(w, at, ts, HELD_US):
                mine.apart, mine.since = 1, ts
        elif ts - mine.since >= HELD_US:
            frame, field = w.head[0].frame - 1, tie.signal - sender.first
            put(w, frame, ts, sender.can_id, TOGETHER, field, value, nearest - limit, nearest + limit, least)
            return
