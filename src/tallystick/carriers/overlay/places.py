"""What a relay of a publisher's edge knows of the places of parcels: of the ledger, and of a partition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tallystick.carriers.storage import Place
from tallystick.parcel.parcel import Parcel
from tallystick.trust.plan import Plan
from tallystick.trust.promise import JointPromise


class Lease(NamedTuple):
    holder: bytes  # a relay
    fence: int


class Bearings(Protocol):
    """What a relay knows of the ledger."""

    def newest_plan(self) -> Plan: ...

    def lease(self, place: Place) -> Lease | None: ...

    def anchored(self, place: Place) -> int: ...

    def block(self) -> tuple[int, int]: ...  # height and time

    def stored(self, place: Place, parcel: bytes) -> Parcel | None: ...  # of what was counted and not anchored yet


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


class Unjudged(NamedTuple):
    """A parcel that another relay sent: whoever finds that it passes the guards proposes it."""

    place: Place
    parcel: Parcel


@dataclass
class OrderedPartition:
    """What one relay knows of a partition above its newest anchor."""

    fence: int = 0
    ready_at: float = 0.0  # when a new orderer has heard the others
    counted: int = 0  # offsets below have been delivered
    anchored: int = 0  # offsets below are forgotten
    next: int = 0  # as the orderer: the first offset that may be free
    heard: dict[int, dict[bytes, JointPromise]] = field(default_factory=dict)  # by offset, and by what is promised
    signed: dict[int, tuple[int, bytes]] = field(default_factory=dict)  # by offset: fence and parcel
    proposals: dict[bytes, tuple[Parcel, float]] = field(default_factory=dict)  # by hash, with the time of arrival
    unplaced: dict[bytes, None] = field(default_factory=dict)  # those of them that nothing was ordered for, in order
    awaited: dict[bytes, int] = field(default_factory=dict)  # parcels that are ordered and not here, with their offsets
    asked: dict[bytes, tuple[int, float]] = field(default_factory=dict)  # parcels: how often, and when again
    suspected: int = 0  # the fence whose holder was

    def stories(self, offset: int) -> Iterable[JointPromise]:
        return self.heard.get(offset, {}).values()

    def promised(self, offset: int, faults: int) -> JointPromise | None:
        """What more relays signed for a place than may be bad, under the highest fence."""
        found = [one for one in self.stories(offset) if len(one.signatures) > faults]
        return max(found, key=lambda one: one.fence, default=None)

    def ordered(self, offset: int, fence: int, holder: int) -> JointPromise | None:
        """What the relay at this index ordered for a place under a fence; the first, if it lied."""
        stories = self.stories(offset)
        return next((one for one in stories if one.fence == fence and holder in dict(one.signatures)), None)
