"""What came out of envelopes, put in the order of its lanes again.

On a mesh parcels overtake each other: each takes the quickest of many ways, and one that was lost comes seconds later.
The log of the receiver's node keeps what lies behind the head of a lane and nothing before it (`received.py`), so a
parcel that was overtaken would be lost for good. Here the parcels of a lane wait for those before them, for `hold_s` at
most: what has not come by then is missing, and its reader is told so. Where the carrier knows that nothing older is
still under way, they wait for `settle_s` only: on the fabric what an interest leaves out never comes.

Threat: whoever has a topic's mesh key and a publisher's certificate, and names the lanes of others. Lanes are kept
apart by the key under which the envelope was signed, so nobody stands in another's way. What waits is bounded, in
bytes and in lanes; beyond that the oldest lane is let go as it is, in order and with gaps. Nothing is believed here:
the guard judges whatever leaves.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tallystick.carriers.carrier import Pushed
from tallystick.carriers.front import Front
from tallystick.errors import Malformed, Refused
from tallystick.parcel.header import Header
from tallystick.parcel.parcel import Parcel


@dataclass(frozen=True)
class ArrivalLimits:
    hold_s: float = 10.0  # several rounds in which nodes tell each other what they have
    settle_s: float = 0.05  # where nothing is under way: what goes another way may be so much slower
    bytes_max: int = 32 << 20
    lanes_max: int = 4_096


@dataclass
class _Lane:
    due: int | None  # the sequence that may go; None where any parcel may be the first that we get
    since: float = 0.0  # when something began to wait for it
    waiting: dict[int, tuple[Pushed, float]] = field(default_factory=dict)  # and when it came


class Arrivals:
    """One thread puts and another takes. `head` tells the sequence that is due in a lane, where the log has some of it;
    it is asked by who takes."""

    def __init__(
        self,
        head: Callable[[Header], int | None],
        limits: ArrivalLimits = ArrivalLimits(),
        under_way: Callable[[], float] = lambda: float("-inf"),
    ) -> None:
        """`under_way` tells since when the oldest of what is still coming is; infinity where nothing is."""
        self._head, self._limits, self._under_way = head, limits, under_way
        self._came: deque[tuple[bytes, Pushed, float]] = deque()
        self._lanes: OrderedDict[tuple[bytes, bytes], _Lane] = OrderedDict()
        self._ready: list[Pushed] = []
        self._counting = threading.Lock()
        self._bytes = 0
        self.dropped = 0  # no parcels, or too much at once

    def put(self, publisher: bytes, pushed: Pushed, now: float) -> None:
        """Something came that this publisher's key signed."""
        with self._counting:
            if self._bytes + _weight(pushed) > 2 * self._limits.bytes_max:  # the node does not keep up
                self.dropped += 1
                return
            self._bytes += _weight(pushed)
        self._came.append((publisher, pushed, now))

    def take(self, now: float) -> list[Pushed]:
        """What may go, in order; with it what has waited long enough."""
        dropped = sum(_weight(one[1]) for one in self._arrived() if not self._place(*one))
        if self._bytes > self._limits.bytes_max:
            self._let_go_oldest()
        under_way = self._under_way()
        for lane in self._lanes.values():
            if lane.waiting and now - lane.since >= self._limits.hold_s:
                self._skip(lane)
                lane.since = now
            while lane.waiting and self._has_settled(lane, under_way, now):
                self._skip(lane)
        ready, self._ready = self._ready, []
        with self._counting:
            self._bytes -= dropped + sum(map(_weight, ready))
        return ready

    def _arrived(self) -> Iterator[tuple[bytes, Pushed, float]]:
        while self._came:
            yield self._came.popleft()

    def _place(self, publisher: bytes, pushed: Pushed, now: float) -> bool:
        """Whether it stays: it is ready, or waits in its lane."""
        try:
            header = Parcel.decode_front(pushed.parcel).header
        except Malformed:
            self.dropped += 1
            return False
        lane = self._lane(publisher, header, now)
        if lane.due is not None and header.sequence < lane.due:  # late after all: the guard says what it is
            self._ready.append(pushed)
            return True
        if header.sequence in lane.waiting:
            return False
        if not lane.waiting:
            lane.since = now
        lane.waiting[header.sequence] = pushed, now
        self._advance(lane)
        return True

    def _lane(self, publisher: bytes, header: Header, now: float) -> _Lane:
        name = publisher, header.lane
        if name not in self._lanes:
            due = self._head(header)
            self._lanes[name] = _Lane(0 if due is None and header.sequence == 0 else due, now)
            if len(self._lanes) > self._limits.lanes_max:
                _, oldest = self._lanes.popitem(last=False)
                self._drain(oldest)
        self._lanes.move_to_end(name)
        return self._lanes[name]

    def _advance(self, lane: _Lane) -> None:
        if lane.due is None and 0 in lane.waiting:
            lane.due = 0
        while lane.due is not None and lane.due in lane.waiting:
            self._ready.append(lane.waiting.pop(lane.due)[0])
            lane.due += 1

    def _skip(self, lane: _Lane) -> None:
        """Give up on what is missing before the first that waits."""
        lane.due = min(lane.waiting)
        self._advance(lane)

    def _has_settled(self, lane: _Lane, under_way: float, now: float) -> bool:
        """Whether nothing is coming any more that was sent before the first that waits."""
        _, came = lane.waiting[min(lane.waiting)]
        return now - came >= self._limits.settle_s and under_way > came

    def _drain(self, lane: _Lane) -> None:
        while lane.waiting:
            self._skip(lane)

    def _let_go_oldest(self) -> None:
        if waiting := [lane for lane in self._lanes.values() if lane.waiting]:
            self._drain(min(waiting, key=lambda lane: lane.since))


def due_by(front: Front) -> Callable[[Header], int | None]:
    """The sequence that follows what a node's log has of a lane. The receiver asks, who holds the front's lock."""

    def due(header: Header) -> int | None:
        try:
            head = front.heads.lanes.head(front.deposits.principal_of(header), header.lane)
        except Refused:  # no parcel under this permit came yet
            return None
        return None if head is None else head.sequence + 1

    return due


def _weight(pushed: Pushed) -> int:
    """In bytes, about."""
    return 500 + len(pushed.parcel) + sum(map(len, (*pushed.permits, *pushed.locks)))
