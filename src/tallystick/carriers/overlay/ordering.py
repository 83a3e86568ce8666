"""One order for the parcels of a partition, at the virtual node where publishers give them in.

Threat: an orderer that stalls, leaves parcels out, or gives one place to two parcels; other relays that sign nothing,
or anything; a new orderer that forgets what was ordered before it. A tree of parcels needs one order, and 2f+1 relays
cannot agree on one by themselves if f lie. So the ledger decides: one relay orders a partition under a fenced lease,
and the first anchor wins (`ledger/contracts/plans.py`). What is promised here is evidence: f+1 relays signed the place,
so at least one honest relay holds the parcel, under its guards, and whoever signs two parcels for one place under one
fence is convicted by its own hand.

    propose      a parcel that passed the guards here waits until it is ordered
    ORDER        the orderer gives it the next offset, signs, and tells the others
    ORDER        whoever has the parcel signs too, if it signed no other for this place, and tells all
    counted      with f+1 signatures it is a joint promise; delivered in the order of offsets, once
    ORDER        again, where a place does not move: a link may have lost it
    FETCH        who has not got the parcel asks those who signed, and judges it by its own guards
    BRING        what waits too long is brought to the orderer, which judges it by its own guards

Threat: an orderer that turns a lane's parcels round, or gives one of them two places. So nobody orders, signs or counts
a parcel before the one that its lane has before it, or a second time (`places.Line`). Threat: a publisher that shows
the orderer nothing, or shows it alone, so that it seems to stall. So relays bring it what waits, and ask it for what
it ordered and they have not.

A new orderer first asks the others what they know above its log, waits `hop_wait_s` for them, and orders all of it
under its own fence: what was counted keeps its place as long as honest relays answer in time, and what was not is
ordered anew. No relay signs a parcel for a place where it has seen another one counted. But an orderer that forks gets
two parcels counted for one place, by itself and an honest relay each; then the next orderer chooses among them, all
others sign what it chose, and who had counted the other recalls it: else honest relays would never come to one root.
A parcel that is not ordered within `stall_s` makes the orderer suspected, and f+1 suspicions cost it the lease.

Who signs a place keeps the parcel through crashes until it lies in its log, which grows behind the anchors: what is
anchored elsewhere is passed over here, and nobody orders before its own log holds all that is anchored.

A promise counts by the version of the plan that it names: what is under way when the plan changes ends under the old
one, with the indices that relays had there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tallystick.carriers.carrier import join_frames, split_frames
from tallystick.carriers.overlay.content_forwarding import Suspicion
from tallystick.carriers.overlay.frames import FRAME_BYTES_MAX, FrameKind, OverlayFrame
from tallystick.carriers.overlay.order_messages import OrderMessages
from tallystick.carriers.overlay.places import (
    Bearings,
    Counted,
    Lease,
    Line,
    OrderedPartition,
    OrderingLimits,
    Recalled,
    Unjudged,
)
from tallystick.carriers.overlay.signatories import Signatories, convict, verify_signatures
from tallystick.carriers.storage import Place
from tallystick.crypto.signatures import Signer
from tallystick.errors import Malformed, Refused
from tallystick.parcel.header import Header
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.effects import Deliver, Effect, StoreEffect, WakeAt
from tallystick.trust.promise import JointPromise


class Ordering:
    """What one relay of a publisher's edge does to give parcels a place."""

    def __init__(
        self,
        relay: bytes,
        instance: bytes,
        signer: Signer,
        bearings: Bearings,
        stored: Mapping[str, bytes],
        limits: OrderingLimits = OrderingLimits(),
        started: float = 0.0,
    ) -> None:
        """`stored` is what it stored in earlier lives: signatures that it may not contradict, and their parcels."""
        self._relay, self._instance, self._signer, self._bearings = relay, instance, signer, bearings
        self._limits, self._signatories = limits, Signatories(relay, bearings)
        self._others = OrderMessages(relay, bearings, self._signatories, self._known, limits)
        self._partitions: dict[Place, OrderedPartition] = {}
        self._forgotten: list[Effect] = []
        self.dropped: Counter[str] = Counter()
        for key, value in stored.items():
            signed, data = split_frames(value)
            promise, parcel = JointPromise.decode(signed), Parcel.decode(data)
            partition = self._partition(Place(promise.token, promise.partition))
            if promise.offset < partition.kept:  # it came into the log: ordered by nobody again
                self._forgotten.append(StoreEffect(key, None))
            else:
                partition.note_signed(promise)
                partition.wait([parcel], started)

    def propose(self, place: Place, parcel: Parcel, now: float) -> list[Effect]:
        """A new parcel that passed the guards here, which know those that are stored. Raises `Refused` where too many
        wait."""
        partition, effects = self._partition(place), list[Effect]()
        if partition.parcel(parcel.hash) is None:
            if len(partition.proposals) >= self._limits.proposals_max:
                raise Refused("ordering: too many parcels wait for their place", reason="full")
            partition.wait([parcel], now)
            partition.asked.pop(parcel.hash, None)
            effects.append(WakeAt(now + self._limits.hop_wait_s))
        offset = partition.awaited.pop(parcel.hash, None)
        self._advance(partition, now, effects, offset)
        return effects

    def settle(self, place: Place, end: int, logged: Sequence[bytes], now: float) -> list[Effect]:
        """The log ends here, and these came into it last, wherever they came from: they need no place any more."""
        partition = self._partition(place)
        signed, recalled = partition.settle(end, {*logged}, now)
        effects: list[Effect] = [StoreEffect(_key(place, offset), None) for offset in signed]
        effects += [Deliver(Recalled(place, end, recalled))] if recalled else []
        self._advance(partition, now, effects)
        return effects

    def take(self, frame: OverlayFrame, sender: bytes, now: float) -> list[Effect]:
        """A frame from a relay of the same virtual node. What does not fit is dropped, counted by reason."""
        effects: list[Effect] = []
        try:
            node, _ = self._signatories.seat(frame.plan)
            if sender not in node.names:
                raise Refused("order: not from this virtual node", reason="misrouted")
            match frame.kind:
                case FrameKind.ORDER:
                    self._hear(frame, sender, now, effects)
                case FrameKind.FETCH:
                    effects += self._others.give(frame, sender)
                case FrameKind.BRING:
                    effects += self._others.take_brought(frame)
                case _:
                    effects += self._others.tell(frame, sender, now)
        except Refused as error:
            self.dropped[error.reason] += 1
        return effects

    def wake(self, now: float) -> list[Effect]:
        """Go on where somebody, or a block, was waited for, and suspect an orderer that lets parcels wait."""
        effects, self._forgotten = self._forgotten, []
        for place, partition in self._partitions.items():
            self._advance(partition, now, effects)
            effects += self._others.repeat(partition, now)
            lease = self._bearings.lease(place)
            if lease is None or lease.holder == self._relay:
                continue
            effects += self._others.bring(partition, lease.holder, now)
            _, oldest = next(iter(partition.proposals.values()), (None, now))
            if now >= oldest + self._limits.stall_s:
                effects.append(Deliver(Suspicion(self._bearings.newest_plan().version, lease.holder)))
        return effects

    # --- what is known ---

    def _partition(self, place: Place) -> OrderedPartition:
        partition = self._partitions.get(place)
        if partition is None:
            kept = self._bearings.kept(place)
            partition = self._partitions[place] = OrderedPartition(place, kept, next=kept, end=kept)
        return partition

    def _known(self, place: Place) -> OrderedPartition:
        """A partition that another relay names: one of those that parcels came for, or that somebody may order."""
        if place not in self._partitions and self._bearings.lease(place) is None:
            raise Refused("order: of a partition that nobody orders", reason="unknown")
        return self._partition(place)

    def _advance(self, partition: OrderedPartition, now: float, effects: list[Effect], came: int | None = None) -> None:
        """Everything that can be done now: take a lease up, order, sign, also what `came` late, and count."""
        lease = self._bearings.lease(partition.place)
        if lease is not None:
            if lease.fence > partition.fence:
                self._take_up(partition, lease, now, effects)
            if lease.holder != self._relay:
                effects += self._agree(partition, lease, came, now)
            elif now >= partition.ready_at and partition.kept >= self._bearings.anchored(partition.place):
                self._order(partition, lease, now, effects)
        self._count(partition, lease, now, effects)

    def _take_up(self, partition: OrderedPartition, lease: Lease, now: float, effects: list[Effect]) -> None:
        """A new fence: everything behind the log is ordered under it."""
        partition.fence, partition.next, partition.ordered = lease.fence, partition.kept, Line()
        partition.unplaced = dict.fromkeys(partition.proposals)
        if lease.holder == self._relay:
            partition.ready_at = now + self._limits.hop_wait_s
            effects.append(WakeAt(partition.ready_at))
            effects += self._others.ask(partition.place, partition.kept)

    def _promised(self, partition: OrderedPartition, line: Line, offset: int) -> list[JointPromise]:
        """What more relays signed for a place than may be bad, under the highest fence, and fits the line before it.
        More than one only if somebody forked."""
        found = [one for one in partition.stories(offset) if self._signatories.is_counted(one)]
        found = [one for one in found if self._fits(partition, line, one) is not False]
        newest = max(((one.fence, one.plan) for one in found), default=None)
        return [one for one in found if (one.fence, one.plan) == newest]

    def _fits(self, partition: OrderedPartition, line: Line, promise: JointPromise) -> bool | None:
        """None where the parcel is not here."""
        parcel = partition.parcel(promise.parcel)
        return None if parcel is None else line.fits(parcel.header, promise.offset, self._is_next(partition))

    def _is_next(self, partition: OrderedPartition) -> Callable[[Header], bool]:
        return partial(self._bearings.is_next, partition.place)

    def _count(self, partition: OrderedPartition, lease: Lease | None, now: float, effects: list[Effect]) -> None:
        while promised := self._promised(partition, partition.counted, partition.end):
            promise = promised[0]
            parcel = partition.parcel(promise.parcel)
            if parcel is None:
                effects += self._others.fetch(partition, promise, now)
                return
            partition.proposals.pop(promise.parcel, None)
            partition.unplaced.pop(promise.parcel, None)
            partition.held[promise.parcel] = parcel
            partition.counted.put(promise.offset, promise.parcel, parcel.header)
            partition.end += 1
            effects.append(Deliver(Counted(promise, parcel)))
        effects += self._fetch_ordered(partition, lease, now)

    def _fetch_ordered(self, partition: OrderedPartition, lease: Lease | None, now: float) -> list[Effect]:
        """What is ordered next and is not here: its publisher may have shown it to few."""
        order = None if lease is None else partition.order_at(partition.end, partial(self._signatories.is_order, lease))
        if order is None or partition.parcel(order.parcel) is not None:
            return []
        return self._others.fetch(partition, order, now)

    def _recount(self, partition: OrderedPartition, offset: int, now: float) -> list[Effect]:
        """Recall what was counted, if another parcel is promised for its place now."""
        if not partition.kept <= offset < partition.end:
            return []
        promised = {one.parcel for one in self._promised(partition, partition.counted, offset)}
        if not promised or partition.counted.get(offset) in promised:
            return []
        return [Deliver(Recalled(partition.place, offset, partition.recall(offset, now)))]

    # --- ordering ---

    def _order(self, partition: OrderedPartition, lease: Lease, now: float, effects: list[Effect]) -> None:
        """As the orderer: what was promised before keeps its place under the new fence, then comes what waits."""
        if partition.ready_at:  # the others have told what they know
            partition.ready_at = 0.0
            for promise in [one for offset in partition.heard for one in partition.stories(offset)]:
                if self._signatories.is_counted(promise):
                    partition.unplaced.pop(promise.parcel, None)
        while partition.next < partition.end + self._limits.ahead_max:
            offset = partition.next
            order = partition.order_at(offset, partial(self._signatories.is_order, lease))
            if order is None:
                parcel = self._choose(partition, offset)
                if parcel is None:
                    return  # nothing waits, or what was promised is not here yet
                order = self._place(partition.place, lease.fence, offset, parcel.hash)
                self._sign(partition, order, now, effects)
            self._put(partition, order)

    def _choose(self, partition: OrderedPartition, offset: int) -> Parcel | None:
        """Which parcel is to lie there; where two are promised, the one that was counted here."""
        promised = [one.parcel for one in self._promised(partition, partition.ordered, offset)]
        if promised:
            counted = partition.counted.get(offset)
            return partition.parcel(counted if counted in promised else promised[0])
        for name in partition.unplaced:
            parcel = partition.parcel(name)
            if parcel is not None and partition.ordered.fits(parcel.header, offset, self._is_next(partition)):
                return parcel
        return None

    def _put(self, partition: OrderedPartition, order: JointPromise) -> None:
        """What others were told to lie there waits for another place."""
        parcel, told = partition.parcel(order.parcel), [one.parcel for one in partition.stories(order.offset)]
        partition.ordered.put(order.offset, order.parcel, None if parcel is None else parcel.header)
        free = [one for one in told if one in partition.proposals and one not in partition.ordered]
        partition.unplaced |= dict.fromkeys(free)
        partition.unplaced.pop(order.parcel, None)
        partition.next = max(partition.next, order.offset + 1)

    def _agree(self, partition: OrderedPartition, lease: Lease, came: int | None, now: float) -> list[Effect]:
        """As one of the others: sign what was ordered, place after place, up to one that must not be. What is ordered
        and not here is signed when it came."""
        effects, is_order = list[Effect](), partial(self._signatories.is_order, lease)
        if came is not None and partition.kept <= came < partition.next:
            late = partition.order_at(came, is_order)
            if late is not None and self._may_be(partition, late):
                self._sign(partition, late, now, effects)
                self._put(partition, late)
        while (order := partition.order_at(partition.next, is_order)) is not None:
            may_be = self._may_be(partition, order)
            if may_be is False:
                break
            if may_be:
                self._sign(partition, order, now, effects)
            self._put(partition, order)
        return effects

    def _may_be(self, partition: OrderedPartition, order: JointPromise) -> bool | None:
        """Whether a parcel may lie where it was ordered: it fits, and no other is promised there. None if it is not
        here."""
        fits = self._fits(partition, partition.ordered, order)
        promised = [one.parcel for one in self._promised(partition, partition.ordered, order.offset)]
        return fits and (not promised or order.parcel in promised)

    def _place(self, place: Place, fence: int, offset: int, parcel: bytes) -> JointPromise:
        plan = self._bearings.newest_plan()
        where = self._instance, plan.overlay, plan.version, self._signatories.seat(plan.version)[0].identifier
        return JointPromise(*where, fence, *place, offset, parcel, *self._bearings.block(), ())

    def _hear(self, frame: OverlayFrame, sender: bytes, now: float, effects: list[Effect]) -> None:
        """An order, or somebody's signature for one, and perhaps the parcel that was asked for."""
        fields = frame.fields("order", 3)
        promise, parcel = JointPromise.decode(fields.octets()), fields.optional_octets(FRAME_BYTES_MAX)
        node, _ = self._signatories.seat(frame.plan)
        where = self._instance, self._bearings.newest_plan().overlay, frame.plan, node.identifier
        if (promise.instance, promise.overlay, promise.plan, promise.node) != where:
            raise Malformed("order: of another virtual node or plan", reason="plan")
        index = node.names.index(sender) + 1
        place = Place(promise.token, promise.partition)
        partition = self._known(place)
        if promise.offset >= partition.end + self._limits.ahead_max:
            raise Refused("order: too far ahead", reason="full")
        if promise.offset < max(partition.kept, self._bearings.anchored(place)):
            raise Refused("order: below the anchor", reason="late")
        known = partition.heard.get(promise.offset, {}).get(promise.body)
        verify_signatures(promise, node, index, () if known is None else known.signatures)
        if parcel is not None and promise.parcel in partition.asked:
            found = Parcel.decode(parcel)
            if found.hash == promise.parcel:
                is_promised = self._signatories.is_counted(promise if known is None else known.join(promise))
                effects.append(Deliver(Unjudged(place, found, is_promised)))
        if known is not None and {*promise.signatures} <= {*known.signatures} != {*promise.signatures}:
            effects.append(self._others.order(sender, known))  # it was repeated
        others = partition.hear(promise, index, self._limits.stories_max)
        effects += [Deliver(evidence) for other in others for evidence in convict(other, promise, node)]
        effects += self._recount(partition, promise.offset, now)
        self._advance(partition, now, effects)

    def _sign(self, partition: OrderedPartition, promise: JointPromise, now: float, effects: list[Effect]) -> None:
        """Sign an order, unless this place is another's under this fence."""
        _, index = self._signatories.seat(promise.plan)
        parcel = partition.parcel(promise.parcel)
        if parcel is None or index in dict(promise.signatures) or partition.is_bound(promise):
            return
        mine = promise.sign(index, self._signer)
        partition.note_signed(mine)
        key, kept = _key(partition.place, promise.offset), join_frames([mine.encode(), parcel.encode()])
        effects += [StoreEffect(key, kept), *self._recount(partition, mine.offset, now)]
        effects += self._others.order_all(mine)


def _key(place: Place, offset: int) -> str:
    token, partition = place
    return f"signed/{token.hex()}/{partition}/{offset}"
