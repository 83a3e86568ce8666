"""What a carrier that stores nothing pushes, kept in the log of the receiver's own node: subscribers and Spark read it
there, as they read any node's.

Threat: what is pushed may come from anybody. A parcel is kept only if the publish guard takes it, by the rights, epochs
and schemas on the ledger, and only once: strangers fill no disk. A right that is bound to a host is none here, since
nobody can say where a parcel came from. The guard is asked for one thing less than at a gateway: a parcel that was lost
on the way does not keep those behind it out, and whoever reads the lane misses it. No anchor covers what lies here:
readers ask for what is stored, and say so.

What the owners of topics let carriers give up goes here too, by the same rule (ledger/contracts/retention.py). It is
as old as it has been here, and no mark is written: it is nobody else's copy.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Container, Mapping, Sequence

from tallystick.carriers.accounts import permit_name
from tallystick.carriers.carrier import Pushed, Receiving
from tallystick.carriers.front import Front, places_of
from tallystick.carriers.storage import Location, Place, Storage, Taken
from tallystick.errors import Refused, Unavailable
from tallystick.guards.permits import advertise
from tallystick.guards.publish import Accepted, Ahead, Lanes, Repeated, check_sender, judge
from tallystick.guards.rules import Act
from tallystick.ledger.contracts.retention import EARLIER, Point, deletable, lets_go, of_topic
from tallystick.ledger.contracts.state import RowReader
from tallystick.ledger.contracts.topics import TOPICS
from tallystick.parcel.header import Header
from tallystick.parcel.locks import lock_hash
from tallystick.parcel.parcel import Parcel
from tallystick.trust.permit import Permit
from tallystick.trust.promise import Anchor

log = logging.getLogger(__name__)

RETIRE_MS = 10_000  # how often what may go is looked for


class Receiver:
    """Stands where an anchorer stands: each round of the node's work takes what was pushed, and anchors nothing."""

    def __init__(self, carrier: Receiving, front: Front, read: RowReader | None = None) -> None:
        """`read` brings rows of the ledger's state, by which what is kept is let go; without it nothing is."""
        self._carrier, self._front, self._read = carrier, front, read
        self._new_locks: set[bytes] = set()  # that came in this round, and are not durable yet
        self.refused = 0  # what was pushed and not kept
        self._retired_ms = 0

    def grown(self) -> list[Anchor]:
        return []

    def work(self, now_ms: int) -> bool:
        with self._front.storing():
            with self._front.lock:
                pushed = self._carrier.pushed()
                taken = [one for data in pushed if (one := self._take(data, now_ms)) is not None]
            self._sync(taken)
            self._new_locks.clear()
        if taken:
            self._front.on_growth()
        if self._read is not None and not 0 <= now_ms - self._retired_ms < RETIRE_MS:
            self._retired_ms = now_ms
            self.retire(self._read, now_ms)
        return bool(pushed)

    def retire(self, read: RowReader, now_ms: int) -> None:
        """Give up what owners let go."""
        for place in self._front.storage.places():
            try:
                limit = releasable(self._front.storage, place, read, now_ms)
                below = self._front.storage.retirable(place, limit) if limit else 0
                if below > self._front.storage.tree(place).below:
                    self._front.storage.retire(place, below)
            except Unavailable as error:
                log.warning("%s: nothing retired: %s", place, error)

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
        locks = {lock_hash(data): data for data in pushed.locks}
        judged, act = judge_pushed(self._front, pushed, locks.keys() | self._new_locks)
        self._front.charge(judged.permit.tenant, len(pushed.parcel), now_ms / 1000)
        header = judged.parcel.header
        for name in {name for group in header.groups for name in group.locks} & locks.keys():
            self._front.storage.deposit(name, locks[name])
            self._new_locks.add(name)
        return Taken(judged.parcel, act.principal, places_of(header, judged.partitions), now_ms)

    def _sync(self, taken: Sequence[Taken]) -> None:
        """Make it durable; what cannot be now is lost, and missed by its readers, like anything lost on the way."""
        heads, is_lost = self._front.heads, False
        try:
            self._front.storage.sync()
        except Unavailable as error:
            log.warning("%d parcels that were pushed are lost: %s", len(taken), error)
            is_lost = True
        with self._front.lock:
            for one in taken:
                if is_lost:
                    heads.take_back(one.principal, one.parcel.header.lane)
                else:
                    heads.stored(one.principal, one.parcel.header, Location(one.places, one.offsets))


def releasable(storage: Storage, place: Place, read: RowReader, now_ms: int) -> int:
    """Below which offset the owner of the topic lets go of what lies in a partition that nobody anchors."""
    topic = read(TOPICS(place.token))
    if topic is None or not lets_go(topic):
        return 0
    kept, earlier, end = of_topic(topic), read(EARLIER(place.token)) or [], storage.end(place)
    ages = [one.age_ms for one in (kept, *(promise.retention for promise in earlier)) if one.age_ms]
    times = [*(now_ms - age_ms - 1 for age_ms in ages), *(promise.until_ms for promise in earlier)]

    def count(time_ms: int) -> int:
        """How many had come then."""
        stored_ms = lambda offset: storage.read(place, offset, 1, headers_only=True)[0].stored_ms  # noqa: E731
        return bisect_right(range(end), time_ms, key=stored_ms)

    sample = [Point(time_ms, count(time_ms)) for time_ms in sorted(times)]
    return deletable(kept, earlier, [*sample, Point(now_ms, end)], storage.tree(place).below, now_ms)


def judge_pushed(front: Front, pushed: Pushed, locks: Container[bytes]) -> tuple[Accepted, Act]:
    """What somebody else than its publisher brought, judged as an act of the principal that its first permit names;
    permits that came with it are admitted, and `locks` that did count. Raises `Refused`."""
    parcel = Parcel.decode(pushed.parcel)
    act = _admit(front, pushed.permits, parcel)
    check_sender(len(pushed.parcel), act, front.rules, front.limits)

    def has_lock(name: bytes) -> bool:
        return name in locks or front.deposits.has_lock(name)

    judged = judge(parcel, act, front.rules, front.live, _Lossy(front.heads.lanes), has_lock)
    if isinstance(judged, Repeated):
        raise Refused("a parcel that came before", reason="behind")
    return judged, act


def _admit(front: Front, permits: Sequence[bytes], parcel: Parcel) -> Act:
    named = {topic.permit for topic in parcel.header.topics}
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


class _Lossy(Lanes):
    """Lanes of which parcels may be lost: whatever lies behind the head is next."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes

    def check_next(self, principal: bytes, header: Header) -> bool:
        try:
            return self._lanes.check_next(principal, header)
        except Ahead:
            return False
