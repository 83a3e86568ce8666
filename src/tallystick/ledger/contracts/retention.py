"""Retention: what a topic's owner lets carriers give up, and what the ledger knows of a partition's past to judge it.

Threat: a carrier that gives up what the owner wants kept, and calls it retention. Invariant: a mark rises no further
than the owner's word allows. What was anchored under one promise keeps it: a shorter one counts for what is anchored
after the change, a longer one for everything that is still there. What should go sooner is released by the owner, by an
entry of its own, below an offset of one partition.

How old parcels are is told by a sample of (time, size) that anchors leave, at most `POINTS_MAX` of them, which span
what is kept. Between two points the younger one counts, so rounding keeps. By default everything stays for ever.

    sample/<token><u32 partition>     [[time ms, anchored parcels], …], oldest first
    earlier/<token>                   [[until ms, age ms, parcels], …]: promises that no longer hold for what is new
    released/<token><u32 partition>   [below, height]
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from tallystick.errors import Refused
from tallystick.ledger.contracts import topics
from tallystick.ledger.contracts.state import ID, U32, Call, Table, fields_of

POINTS_MAX = 64  # of a sample, some 900 bytes
_STEPS = 32  # points are a part of the sampled time apart: an age is judged to about three parts in a hundred
_STEP_MS_MIN = 1_000
EARLIER_MAX = 8  # promises that are remembered; then the two oldest become one that keeps what either keeps


class Retention(NamedTuple):
    """What is kept: parcels up to an age, or so many of the newest of a partition. With both 0, everything."""

    age_ms: int = 0
    parcels: int = 0

    def join(self, other: Retention) -> Retention:
        """One that keeps what either keeps, and perhaps more."""
        if self.age_ms and other.age_ms:
            return Retention(age_ms=max(self.age_ms, other.age_ms))
        if self.parcels and other.parcels:
            return Retention(parcels=max(self.parcels, other.parcels))
        return Retention()


class Point(NamedTuple):
    """At this block time so many parcels were anchored."""

    time_ms: int
    size: int


class Earlier(NamedTuple):
    """A promise that held until this block time."""

    until_ms: int
    retention: Retention


class ReleasedRow(NamedTuple):
    """Below this offset the owner has let go."""

    below: int
    height: int


def _points(value: list[list[int]]) -> list[Point]:
    return [Point(*point) for point in value]


def _promises(value: list[list[int]]) -> list[Earlier]:
    return [Earlier(until_ms, Retention(*kept)) for until_ms, *kept in value]


SAMPLES = Table("sample", _points, ID, U32)
EARLIER = Table("earlier", _promises, ID)
RELEASED = Table("released", ReleasedRow, ID, U32)


def retain(call: Call, entry: list[Any]) -> None:
    """[14, token, [age ms, parcels]]: what is kept from now on; by the owner."""
    fields = fields_of(entry, "retain", 3)
    token, new = fields.octets(16), Retention(*topics.read_keeping(fields))
    topic = topics.require_owner(call, token)
    old = of_topic(topic)
    if new == old:
        raise Refused(f"topic {token.hex()} keeps that much already", reason="unchanged")
    earlier = [*(call.state.row(EARLIER(token)) or []), Earlier(call.time_ms, old)]
    earlier = [one for one in earlier if one.retention.join(new) != new]  # the new one keeps what those keep
    while len(earlier) > EARLIER_MAX:
        first, second, *rest = earlier
        earlier = [Earlier(second.until_ms, first.retention.join(second.retention)), *rest]
    written = [[one.until_ms, *one.retention] for one in earlier]
    call.state.put(EARLIER(token), written or None)
    row = topic._replace(keep_ms=new.age_ms, keep_parcels=new.parcels)
    call.state.put(topics.TOPICS(token), topics.stored(row))


def of_topic(topic: topics.TopicRow) -> Retention:
    return Retention(topic.keep_ms, topic.keep_parcels)


def lets_go(topic: topics.TopicRow | None) -> bool:
    """Whether the owner's present word lets carriers give anything up."""
    return topic is not None and any(of_topic(topic))


def sampled(sample: Sequence[Point], old: Point | None, new: Point, changed_ms: int) -> list[Point]:
    """The sample after another anchor; `old` is the anchor before it, and retention was last changed at `changed_ms`.

    What was anchored at that moment becomes a point of its own: it is where one promise ends and the next begins.
    """
    points = [*sample] or ([] if old is None else [old])
    if changed_ms and (not points or points[-1].time_ms < changed_ms):
        points.append(Point(changed_ms, 0 if old is None else old.size))
    if not points or _is_apart(points, new):
        points.append(new)
    return points[::2] if len(points) > POINTS_MAX else points


def _is_apart(points: Sequence[Point], new: Point) -> bool:
    step_ms = max(_STEP_MS_MIN, (new.time_ms - points[0].time_ms) // _STEPS)
    return new.size > points[-1].size and new.time_ms - points[-1].time_ms >= step_ms


def pruned(sample: Sequence[Point], below: int) -> list[Point]:
    """What a sample is still needed for when parcels below an offset are gone: all after them, and the last before."""
    return [*sample[max(0, bisect_right(sample, below, key=lambda point: point.size) - 1) :]]


def deletable(retention: Retention, earlier: Sequence[Earlier], sample: Sequence[Point], gone: int, now_ms: int) -> int:
    """Below which offset parcels may go, by the present promise and the earlier ones. The sample ends with the newest
    anchor; below `gone` they went already, or were released."""
    size = sample[-1].size if sample else 0

    def limit(kept: Retention) -> int:
        if kept.age_ms:
            return max([gone, *(point.size for point in sample if now_ms - point.time_ms > kept.age_ms)])
        return max(gone, size - kept.parcels) if kept.parcels else gone

    found = limit(retention)
    for until_ms, kept in earlier:
        anchored = next((point.size for point in sample if point.time_ms >= until_ms), size)
        if limit(kept) < anchored:  # some of what was anchored under it must stay
            found = min(found, limit(kept))
    return min(found, size)
