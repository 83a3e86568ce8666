"""What a carrier that stores nothing pushes, kept in the log of the receiver's own node: subscribers and Spark read it
there, as they read any node's.

Threat: what is pushed may come from anybody. A parcel is kept only if the publish guard takes it, by the rights, epochs
and schemas on the ledger, and only once: strangers fill no disk. A right that is bound to a host is none here, since
nobody can say where a parcel came from. The guard is asked for one thing less than at a gateway: a parcel that was lost
on the way does not keep those behind it out, and whoever reads the lane misses it. No anchor covers what lies here:
readers ask for what is stored, and say so.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from tallystick.carriers.accounts import permit_name
from tallystick.carriers.carrier import Pushed, Receiving
from tallystick.carriers.front import Front, places_of
from tallystick.carriers.storage import Location, Taken
from tallystick.errors import Refused, Unavailable
from tallystick.guards.permits import advertise
from tallystick.guards.publish import Ahead, Lanes, Repeated, check_sender, judge
from tallystick.guards.rules import Act
from tallystick.parcel.header import Header
from tallystick.parcel.locks import lock_hash
from tallystick.parcel.parcel import Parcel
from tallystick.trust.permit import Permit
from tallystick.trust.promise import Anchor

log = logging.getLogger(__name__)


class Receiver:
    """Stands where an anchorer stands: each round of the node's work takes what was pushed, and anchors nothing."""

    def __init__(self, carrier: Receiving, front: Front) -> None:
        self._carrier, self._front = carrier, front
        self._lanes = _Lossy(front.heads.lanes)
        self.refused = 0  # what was pushed and not kept

    def grown(self) -> list[Anchor]:
        return []

    def work(self, now_ms: int) -> bool:
        with self._front.syncing():
            pushed = self._carrier.pushed()
            taken = [one for data in pushed if (one := self._take(data, now_ms)) is not None]
            self._sync(taken)
        if taken:
            self._front.on_growth()
        return bool(pushed)

    def statistics(self) -> Mapping[str, int]:
        return {"pushed_refused": self.refused}

    def close(self) -> None:
        self._carrier.close()

    def _take(self, pushed: Pushed, now_ms: int) -> Taken | None:
        """Let a parcel be stored with the next sync, and what was pushed beside it. Returns None if it is not kept."""
        try:
            one = self._judge(pushed, now_ms)
            self._front.storage.store(one)
        except (Refused, Unavailable) as error:
            self.refused += 1
            log.debug("a parcel that was pushed is not kept: %s", error)
            return None
        self._front.heads.advance(one)
        return one

    def _judge(self, pushed: Pushed, now_ms: int) -> Taken:
        front, storage = self._front, self._front.storage
        parcel = Parcel.decode(pushed.parcel)
        locks = {lock_hash(data): data for data in pushed.locks}
        act = self._admit(pushed.permits, parcel)
        check_sender(len(pushed.parcel), act, front.rules, front.limits)

        def has_lock(name: bytes) -> bool:
            return name in locks or front.deposits.has_lock(name)

        judged = judge(parcel, act, front.rules, front.live, self._lanes, has_lock)
        if isinstance(judged, Repeated):
            raise Refused("a parcel that came before", reason="behind")
        front.charge(judged.permit.tenant, len(pushed.parcel), now_ms / 1000)
        for name in {name for group in parcel.header.groups for name in group.locks} & locks.keys():
            storage.deposit(name, locks[name])
        return Taken(parcel, act.principal, places_of(parcel.header, judged.partitions), now_ms)

    def _admit(self, permits: Sequence[bytes], parcel: Parcel) -> Act:
        """The parcel as an act of the principal that its first permit names; permits that came with it are admitted."""
        front, named = self._front, {topic.permit for topic in parcel.header.topics}
        time_ms = front.block()[1]
        for data in permits:
            permit = Permit.decode(data)
            if permit.identifier in named and front.live.get(permit.identifier) is None:
                advertise(data, Act(permit.principal, "", parcel.hash, time_ms), front.rules, front.live)
                front.storage.deposit(permit_name(permit.identifier), data)
        first = front.live.get(parcel.header.topics[0].permit)
        if first is None:
            raise Refused("a parcel whose permit did not come with it", reason="not-advertised")
        return Act(first.principal, "", parcel.hash, time_ms)

    def _sync(self, taken: Sequence[Taken]) -> None:
        """Make it durable; what cannot be now is lost, and missed by its readers, like anything lost on the way."""
        try:
            self._front.storage.sync()
        except Unavailable as error:
            log.warning("%d parcels that were pushed are lost: %s", len(taken), error)
            for one in taken:
                self._front.heads.take_back(one.principal, one.parcel.header.lane)
            return
        for one in taken:
            self._front.heads.stored(one.principal, one.parcel.header, Location(one.places, one.offsets))


class _Lossy(Lanes):
    """Lanes of which parcels may be lost: whatever lies behind the head is next."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes

    def check_next(self, principal: bytes, header: Header) -> bool:
        try:
            return self._lanes.check_next(principal, header)
        except Ahead:
            return False
