"""What the principal of a mesh node publishes, on its way from the guards into the mesh.

It lies in the node's own log first: what was answered as stored is durable here, before anybody else has it. Then it
goes out, once for each of its topics, in an envelope with the permits and locks that nobody can ask for later. These go
with the first parcel of a lane and whenever they change, and again with one of every few parcels, so that whoever comes
late or missed one opens the lane from there on.

On the fabric, where time counts, it leaves while the disk works: until it is answered as stored, its publisher has it
in the spool, and sends the same bytes again.

Threat: a publisher that sends more than the others' guards let pass in their window. What is beyond is turned away
here, where the publisher hears of it, instead of being lost on the way.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tallystick.carriers.accounts import Deposits
from tallystick.carriers.carrier import PUSHED_PARCEL_BYTES, Pushed, is_void
from tallystick.carriers.log.store import LogStore
from tallystick.carriers.mesh.limits import MeshLimits
from tallystick.carriers.storage import Place, Taken
from tallystick.errors import TallystickError, Unavailable
from tallystick.parcel.header import Header
from tallystick.parcel.parcel import Parcel

log = logging.getLogger(__name__)

AGAIN_MS, AGAIN_PARCELS = 5_000, 16  # after which permits and locks of a lane go again with a parcel
LANES_MAX = 4_096  # of which it is known when they last went
SENT_AGAIN_MAX, SENT_AGAIN_BYTES = 64, 8 << 20  # of each partition, when the node starts
SOON_S = 5.0


@dataclass
class _Introduced:
    """When and with how many parcels since the names of a lane's permits and locks went out."""

    names: tuple[bytes, ...]
    at_ms: int
    parcels: int = 0


class ParcelsOut(Protocol):
    """Where parcels go out: the station of a carrier that stores nothing."""

    @property
    def room(self) -> int: ...  # how many more may wait to leave

    def may_publish(self, token: bytes, now_ms: int) -> bool: ...

    def publish(self, token: bytes, pushed: Pushed) -> None: ...


class MeshStorage:
    """A `Storage`: the node's log, from which its principal's parcels go out."""

    notes_publishers = False

    def __init__(
        self, log: LogStore, station: Callable[[], ParcelsOut | None], limits: MeshLimits, name: str = "mesh"
    ) -> None:
        """`name` is that of the carrier, for those who are told what is missing."""
        self._name, self._is_hasty = name, name == "fabric"
        self.log, self.disk, self.blobs = log, log.disk, log.blobs
        self.store, self.deposit, self.share, self.statistics = log.store, log.deposit, log.share, log.statistics
        self.places, self.end, self.read, self.tree = log.places, log.end, log.read, log.tree
        self.underway, self.promised, self.bytes_stored = log.underway, log.promised, log.bytes_stored
        self.retirable, self.retire, self.close = log.retirable, log.retire, log.close
        self._station, self._limits, self._deposits = station, limits, Deposits(log.blobs)
        self._leaving: list[Taken] = []
        self._sent_ms: deque[int] = deque()
        self._introduced: OrderedDict[bytes, _Introduced] = OrderedDict()

    def carry(self, parcels: Sequence[Taken]) -> None:
        """Turn away what could not go out now."""
        station = self._station()
        room = min(self._room(parcels[0].now_ms), station.room) if parcels and station is not None else 0
        for one in parcels:
            needed = len(one.places)
            one.error = self._obstacle(one, station, room - needed)
            room -= 0 if one.error else needed
        self._leaving = [one for one in parcels if one.error is None]

    def sync(self) -> None:
        """What was stored goes out once it is durable, or just before."""
        staged = [one for one in self._leaving if one.offsets]
        self._leaving = [one for one in self._leaving if not one.offsets]
        if not self._is_hasty:
            self.log.sync()
        for one in staged:
            self._let_go(one.parcel, one.places, one.now_ms)
        if self._is_hasty:
            self.log.sync()

    def _room(self, now_ms: int) -> int:
        """How many envelopes the others' guards let pass now; some are left for those that keep the mesh whole."""
        while self._sent_ms and self._sent_ms[0] <= now_ms - self._limits.delay_max_ms - self._limits.skew_max_ms:
            self._sent_ms.popleft()
        return self._limits.window_share_max * 9 // 10 - len(self._sent_ms)

    def _obstacle(self, one: Taken, station: ParcelsOut | None, room: int) -> TallystickError | None:
        if station is None:
            message = f"this node has no keys of the {self._name}"
            return Unavailable(message, retry_after_s=SOON_S, hint=f"tally {self._name} join")
        if not all(station.may_publish(place.token, one.now_ms) for place in one.places):
            message = f"this node has no publisher's key of the topic for this epoch of the {self._name}"
            return Unavailable(message, retry_after_s=SOON_S, hint=f"tally {self._name} join brings it")
        if room < 0:
            return Unavailable(f"more envelopes than a {self._name} takes from one publisher", retry_after_s=1.0)
        return None

    def send_again(self, owner: bytes, now_ms: int) -> None:
        """What its owner published just before the node ended may not have left: let it go once more. Whoever has it
        drops it."""
        for place in self.places():
            for entry in self.read(place, max(0, self.end(place) - SENT_AGAIN_MAX), SENT_AGAIN_BYTES):
                if is_void(entry.header) or entry.stored_ms < now_ms - self._limits.delay_max_ms:
                    continue
                parcel = Parcel.decode(bytes(entry.parcel))
                if self._deposits.principal_of(parcel.header) == owner:
                    self._let_go(parcel, [place], now_ms)

    def _let_go(self, parcel: Parcel, places: Sequence[Place], now_ms: int) -> None:
        station = self._station()
        if station is None:
            return  # it was stopped meanwhile
        pushed = Pushed(parcel.encode(), *self._introduction(parcel.header, now_ms))
        for place in places:
            self._sent_ms.append(now_ms)
            try:
                station.publish(place.token, pushed)
            except Unavailable as error:  # it is stored all the same, and goes when the node starts again
                log.warning("a parcel did not leave: %s", error)

    def _introduction(self, header: Header, now_ms: int) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """Permits and locks that go with a parcel: all, or none."""
        permits = tuple(dict.fromkeys(topic.permit for topic in header.topics))
        locks = tuple(dict.fromkeys(name for group in header.groups for name in group.locks))
        last = self._introduced.get(header.lane)
        is_routed = self._is_hasty and bool(header.labels)  # then others may get it than got the one before
        if last is not None and last.names == (*permits, *locks) and not is_routed:
            last.parcels += 1
            if last.parcels < AGAIN_PARCELS and now_ms - last.at_ms < AGAIN_MS:
                return (), ()
        self._introduced[header.lane] = _Introduced((*permits, *locks), now_ms)
        self._introduced.move_to_end(header.lane)
        if len(self._introduced) > LANES_MAX:
            self._introduced.popitem(last=False)
        return tuple(map(self._deposits.permit, permits)), tuple(map(self._deposits.lock, locks))


def parcel_bytes_max(limits: MeshLimits) -> int:
    """The longest parcel that fits an envelope, with locks beside it and padding around it."""
    return min(PUSHED_PARCEL_BYTES * 5 // 4, limits.envelope_bytes_max * 4 // 5)
