"""What a relay of a publisher's edge knows of the places of parcels: of the ledger, and of a partition."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tallystick.carriers.storage import Place
from tallystick.errors import Refused
from tallystick.parcel.header import Header
from tallystick.parcel.parcel import Parcel
from tallystick.trust.plan import Plan
from tallystick.trust.promise import JointPromise


class Lease(NamedTuple):
    holder: bytes  # a relay
    fence: int


class Bearings(Protocol):
    """What a relay knows of the ledger."""

    def newest_plan(self) -> Plan: ...

    def plan(self, version: int) -> Plan | None: ...

    def lease(self, place: Place) -> Lease | None: ...

    def anchored(self, place: Place) -> int: ...  # on the ledger

    def kept(self, place: Place) -> int: ...  # of what is anchored, in this relay's log

    def block(self) -> tuple[int, int]: ...  # height and time

    def is_next(self, place: Place, header: Header) -> bool: ...  # behind what its log has of the parcel's lane


@dataclass(frozen=True)
class OrderingLimits:
    hop_wait_s: float = 0.5
    stall_s: float = 5.0
    proposals_max: int = 4096  # of one partition
    ahead_max: int = 4096  # offsets above the newest that was counted
    stories_max: int = 4  # about one place, by one relay: an honest one tells one for each fence


class Counted(NamedTuple):
    """A parcel with its place, jointly promised."""

    promise: JointPromise
    parcel: Parcel


class Recalled(NamedTuple):
    """What was counted from this place on does not count any more: other parcels were promised or anchored there. The
    parcels wait for places again."""

    place: Place
    offset: int
    parcels: Sequence[Parcel]


class Unjudged(NamedTuple):
    """A parcel that another relay sent: whoever finds that it passes the guards proposes it. Of what is promised f+1
    relays' guards have judged it."""

    place: Place
    parcel: Parcel
    is_promised: bool


class Line:
    """Parcels in a row behind the log, each lane in its order."""

    def __init__(self) -> None:
        self._parcels: dict[int, bytes] = {}
        self._offsets: dict[bytes, int] = {}
        self._next: dict[bytes, bytes] = {}  # of each lane, which follows which

    def __contains__(self, parcel: bytes) -> bool:
        return parcel in self._offsets

    def get(self, offset: int) -> bytes | None:
        return self._parcels.get(offset)

    def put(self, offset: int, parcel: bytes, header: Header | None) -> None:
        """`header` where the parcel itself is here."""
        self._parcels[offset] = parcel
        self._offsets.setdefault(parcel, offset)
        if header is not None and header.sequence:
            self._next[header.previous] = parcel

    def fits(self, header: Header, offset: int, is_next: Callable[[Header], bool]) -> bool:
        """Whether a parcel may lie there: it lies nowhere before, and follows its lane's parcel before it, alone; that
        lies in this line or, where it `is_next`, in the log."""

        def is_before(parcel: bytes) -> bool:
            return self._offsets.get(parcel, offset) < offset

        follower = self._next.get(header.previous, header.hash) if header.sequence else header.hash
        if is_before(header.hash) or (follower != header.hash and is_before(follower)):
            return False
        return is_before(header.previous) or is_next(header)

    def cut(self, first: int, below: int | None = None) -> list[bytes]:
        """Take out everything from an offset on, or only what lies below another. Returns it."""
        places = sorted(one for one in self._parcels if first <= one and (below is None or one < below))
        found = [self._parcels.pop(one) for one in places]
        for parcel in found:
            self._offsets.pop(parcel, None)
        self._next = {before: parcel for before, parcel in self._next.items() if parcel in self._offsets}
        return found


@dataclass
class OrderedPartition:
    """What one relay knows of a partition above its log."""

    place: Place
    kept: int  # offsets below lie in the log
    fence: int = 0
    ready_at: float = 0.0  # when a new orderer has heard the others
    ordered: Line = field(default_factory=Line)  # under this fence
    next: int = 0  # its end
    counted: Line = field(default_factory=Line)
    end: int = 0  # of what is counted: offsets below have been delivered
    heard: dict[int, dict[bytes, JointPromise]] = field(default_factory=dict)  # by offset, and by what is promised
    signed: dict[int, tuple[int, bytes]] = field(default_factory=dict)  # by offset: fence and parcel
    proposals: dict[bytes, tuple[Parcel, float]] = field(default_factory=dict)  # not counted; with the time of arrival
    unplaced: dict[bytes, None] = field(default_factory=dict)  # those of them that nothing was ordered for, in order
    held: dict[bytes, Parcel] = field(default_factory=dict)  # counted
    awaited: dict[bytes, int] = field(default_factory=dict)  # parcels that are ordered and not here, with their offsets
    asked: dict[bytes, tuple[int, float]] = field(default_factory=dict)  # parcels: how often, and when again
    told: dict[bytes, float] = field(default_factory=dict)  # relays that asked what was ordered, and when
    stuck: tuple[int, float] = 0, 0.0  # the first place that is not counted, and since when, or when it was told again
    brought_at: float = 0.0  # when the orderer was last brought what waits

    def parcel(self, name: bytes) -> Parcel | None:
        proposal = self.proposals.get(name)
        return self.held.get(name) if proposal is None else proposal[0]

    def stories(self, offset: int) -> Iterable[JointPromise]:
        return self.heard.get(offset, {}).values()

    def order_at(self, offset: int, is_order: Callable[[JointPromise], bool]) -> JointPromise | None:
        """What was ordered for a place; the first, if the orderer lied."""
        return next((one for one in self.stories(offset) if is_order(one)), None)

    def hear(self, promise: JointPromise, sender: int, stories_max: int) -> list[JointPromise]:
        """Somebody's signatures for a place. Returns what was told about it before. Raises `Refused` where the sender
        tells too much."""
        heard = self.heard.setdefault(promise.offset, {})
        before, known = list(heard.values()), heard.get(promise.body)
        if known is None:
            self._check_stories(heard, sender, stories_max)
        heard[promise.body] = promise if known is None else known.join(promise)
        if self.parcel(promise.parcel) is None:
            self.awaited[promise.parcel] = promise.offset
        return before

    def _check_stories(self, heard: Mapping[bytes, JointPromise], sender: int, stories_max: int) -> None:
        """Of each relay that tells them: were they counted all together, a liar's would keep the others out."""
        if sum(sender in dict(one.signatures) for one in heard.values()) >= stories_max:
            raise Refused("order: too many stories about one place", reason="full")

    def note_signed(self, promise: JointPromise) -> None:
        """This relay signed it."""
        self.heard.setdefault(promise.offset, {})[promise.body] = promise
        self.signed[promise.offset] = promise.fence, promise.parcel

    def is_bound(self, promise: JointPromise) -> bool:
        """Whether this relay signed another parcel for the place under this fence, or may have: of a place the newest
        fence alone is remembered, and what a relay knows of the ledger may be older after a restart."""
        fence, parcel = self.signed.get(promise.offset, (0, b""))
        return promise.fence < fence or (promise.fence == fence and promise.parcel != parcel)

    def recall(self, offset: int, now: float) -> list[Parcel]:
        """What is counted from this place on waits again. Returns the parcels."""
        found = [self.held.pop(name) for name in self.counted.cut(offset)]
        self.end = min(self.end, offset)
        self.wait(found, now)
        return found

    def wait(self, parcels: Iterable[Parcel], now: float) -> None:
        for parcel in parcels:
            self.proposals[parcel.hash] = parcel, now
            self.unplaced[parcel.hash] = None

    def settle(self, end: int, logged: Collection[bytes], now: float) -> tuple[list[int], list[Parcel]]:
        """The log ends here now, and has these. Returns the places below that this relay signed, and what was counted
        above: it is recalled if the log has other parcels than those that were counted, which wait again too."""
        was = self.counted.cut(0, end)
        lost = [parcel for name in was if (parcel := self.held.pop(name)) and name not in logged]
        is_other = bool(lost) or any(name in self.held for name in logged)
        self.end, self.next = max(self.end, end), max(self.next, end)
        self.ordered.cut(0, end)
        recalled = self.recall(end, now) if is_other else []
        self.wait(lost, now)
        for name in logged:
            self.proposals.pop(name, None)
            self.unplaced.pop(name, None)
        below = range(self.kept, end)
        for promise in [one for offset in below for one in self.heard.pop(offset, {}).values()]:
            self.awaited.pop(promise.parcel, None)
            self.asked.pop(promise.parcel, None)
        self.kept = max(end, self.kept)
        return [offset for offset in below if self.signed.pop(offset, None) is not None], recalled
