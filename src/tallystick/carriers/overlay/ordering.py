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
    FETCH        who has not got the parcel asks those who signed, and judges it by its own guards

A new orderer first asks the others what they know above the newest anchor, waits `hop_wait_s` for them, and goes on
from there: so what was counted keeps its place as long as honest relays answer in time, and what was not is ordered
anew. No relay signs a parcel for a place where it has seen another one counted. A parcel that is not ordered within
`stall_s` makes the orderer suspected, and f+1 suspicions cost it the lease.

A promise counts by the version of the plan that it names: what is under way when the plan changes ends under the old
one, with the indices that relays had there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from tallystick import wire
from tallystick.carriers.overlay.content_forwarding import Suspicion
from tallystick.carriers.overlay.frames import FRAME_BYTES_MAX, FrameKind, OverlayFrame
from tallystick.carriers.overlay.places import Bearings, Counted, Lease, OrderedPartition, OrderingLimits, Unjudged
from tallystick.carriers.overlay.relayed_keys import Evidence
from tallystick.carriers.storage import Place
from tallystick.crypto.signatures import Signer, VerifyKey
from tallystick.errors import Malformed, Refused
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.effects import Deliver, Effect, Send, StoreEffect, WakeAt
from tallystick.trust.plan import VirtualNode
from tallystick.trust.promise import JOINT_CONTEXT, PARTITIONS_MAX, JointPromise
from tallystick.wire import Fields


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
    ) -> None:
        """`stored` is what it stored in earlier lives: signatures that it may not contradict."""
        self._relay, self._instance, self._signer, self._bearings = relay, instance, signer, bearings
        self._limits = limits
        self._partitions: dict[Place, OrderedPartition] = {}
        self.dropped: Counter[str] = Counter()
        for value in stored.values():
            promise = JointPromise.decode(value)
            partition = self._partition(Place(promise.token, promise.partition))
            partition.signed[promise.offset] = promise.fence, promise.parcel
            partition.heard.setdefault(promise.offset, {})[promise.body] = promise

    def propose(self, place: Place, parcel: Parcel, now: float) -> list[Effect]:
        """A new parcel that passed the guards here, which know those that are stored. Raises `Refused` where too many
        wait."""
        partition, effects = self._partition(place), list[Effect]()
        if parcel.hash not in partition.proposals:
            if len(partition.proposals) >= self._limits.proposals_max:
                raise Refused("ordering: too many parcels wait for their place", reason="full")
            partition.proposals[parcel.hash] = parcel, now
            partition.unplaced[parcel.hash] = None
            partition.asked.pop(parcel.hash, None)
            effects.append(WakeAt(now + self._limits.stall_s))
        offset = partition.awaited.pop(parcel.hash, None)
        self._advance(place, now, effects, [] if offset is None else [offset])
        return effects

    def take(self, frame: OverlayFrame, sender: bytes, now: float) -> list[Effect]:
        """A frame from a relay of the same virtual node. What does not fit is dropped, counted by reason."""
        effects: list[Effect] = []
        try:
            node, _ = self._seat(frame.plan)
            if sender not in [relay.identifier for relay in node.relays]:
                raise Refused("order: not from this virtual node", reason="misrouted")
            if frame.kind is FrameKind.ORDER:
                self._hear(frame, sender, now, effects)
            elif frame.kind is FrameKind.FETCH:
                self._give(frame, sender, effects)
            else:
                self._tell(frame, sender, effects)
        except Refused as error:
            self.dropped[error.reason] += 1
        return effects

    def wake(self, now: float) -> list[Effect]:
        """Go on where somebody, or a block, was waited for, and suspect an orderer that lets parcels wait."""
        effects: list[Effect] = []
        for place, partition in self._partitions.items():
            self._advance(place, now, effects)
            lease = self._bearings.lease(place)
            _, oldest = next(iter(partition.proposals.values()), (None, now))
            waits = now >= oldest + self._limits.stall_s
            if waits and lease is not None and lease.holder != self._relay and partition.suspected != lease.fence:
                partition.suspected = lease.fence
                effects.append(Deliver(Suspicion(self._bearings.newest_plan().version, lease.holder)))
        return effects

    # --- what is known ---

    def _seat(self, version: int) -> tuple[VirtualNode, int]:
        """This relay's virtual node and index by a version of the plan. Raises `Refused`."""
        plan = self._bearings.plan(version)
        place = None if plan is None else plan.place(self._relay)
        if place is None:
            raise Refused(f"order: this relay is not in plan {version}, or it does not count", reason="plan")
        return place

    def _is_counted(self, promise: JointPromise) -> bool:
        """Whether more relays signed it than may be bad."""
        plan = self._bearings.plan(promise.plan)
        return plan is not None and len(promise.signatures) > plan.node(promise.node).faults

    def _is_order(self, lease: Lease, promise: JointPromise) -> bool:
        """Whether the holder of the lease signed it."""
        plan = self._bearings.plan(promise.plan)
        seat = None if plan is None or promise.fence != lease.fence else plan.place(lease.holder)
        return seat is not None and seat[0].identifier == promise.node and seat[1] in dict(promise.signatures)

    def _partition(self, place: Place) -> OrderedPartition:
        partition = self._partitions.get(place)
        if partition is None:
            anchored = self._bearings.anchored(place)
            partition = OrderedPartition(counted=anchored, anchored=anchored, next=anchored)
            self._partitions[place] = partition
        return partition

    def _known(self, place: Place) -> OrderedPartition:
        """A partition that another relay names: one of those that parcels came for, or that somebody may order."""
        if place not in self._partitions and self._bearings.lease(place) is None:
            raise Refused("order: of a partition that nobody orders", reason="unknown")
        return self._partition(place)

    def _advance(self, place: Place, now: float, effects: list[Effect], touched: Iterable[int] = ()) -> None:
        """Everything that can be done now: take a lease up, order, sign what was `touched`, count, forget."""
        partition, lease = self._partition(place), self._bearings.lease(place)
        if lease is not None:
            is_order = partial(self._is_order, lease)
            if lease.fence > partition.fence:
                touched = self._take_up(place, partition, lease, now, effects)
            if lease.holder == self._relay and now >= partition.ready_at:
                self._order(place, partition, lease, effects)
            for offset in touched:
                if (order := partition.ordered(offset, is_order)) is not None:
                    self._sign(partition, order, effects)
        self._count(place, partition, now, effects)
        self._forget(place, partition, effects)

    def _take_up(
        self, place: Place, partition: OrderedPartition, lease: Lease, now: float, effects: list[Effect]
    ) -> list[int]:
        """A new fence. Returns the offsets that somebody may have ordered under it already."""
        partition.fence, partition.next = lease.fence, partition.counted
        if lease.holder == self._relay:
            partition.ready_at = now + self._limits.hop_wait_s
            partition.unplaced = dict.fromkeys(partition.proposals)
            effects.append(WakeAt(partition.ready_at))
            question = [*place, self._bearings.anchored(place)]
            self._broadcast(FrameKind.TAKE_OVER, question, self._bearings.newest_plan().version, effects)
        return sorted(partition.heard)

    def _count(self, place: Place, partition: OrderedPartition, now: float, effects: list[Effect]) -> None:
        while (promise := partition.promised(partition.counted, self._is_counted)) is not None:
            proposal = partition.proposals.pop(promise.parcel, None)
            if proposal is None:
                self._fetch(partition, promise, now, effects)
                return
            partition.unplaced.pop(promise.parcel, None)
            partition.counted += 1
            effects.append(Deliver(Counted(promise, proposal[0])))

    def _forget(self, place: Place, partition: OrderedPartition, effects: list[Effect]) -> None:
        """What is anchored, and delivered, is the ledger's."""
        end = min(self._bearings.anchored(place), partition.counted)
        for offset in range(partition.anchored, end):
            for promise in partition.heard.pop(offset, {}).values():
                partition.awaited.pop(promise.parcel, None)
            if partition.signed.pop(offset, None) is not None:
                effects.append(StoreEffect(_key(place, offset), None))
        partition.anchored = max(end, partition.anchored)

    # --- ordering ---

    def _order(self, place: Place, partition: OrderedPartition, lease: Lease, effects: list[Effect]) -> None:
        """As the orderer: what was promised before keeps its place under the new fence, then comes what waits."""
        if partition.ready_at:  # what the others told
            partition.ready_at = 0.0
            for known in partition.heard:
                if (promise := partition.promised(known, self._is_counted)) is not None:
                    partition.unplaced.pop(promise.parcel, None)
        while partition.next < partition.counted + self._limits.ahead_max:
            offset = max(partition.next, partition.counted)
            if partition.ordered(offset, partial(self._is_order, lease)) is None:
                earlier = partition.promised(offset, self._is_counted)
                parcel = next(iter(partition.unplaced), None) if earlier is None else earlier.parcel
                if parcel is None or parcel not in partition.proposals:
                    return  # nothing waits, or what was promised is not here yet
                self._sign(partition, self._place(place, lease.fence, offset, parcel), effects)
            partition.next = offset + 1

    def _place(self, place: Place, fence: int, offset: int, parcel: bytes) -> JointPromise:
        plan = self._bearings.newest_plan()
        where = self._instance, plan.overlay, plan.version, self._seat(plan.version)[0].identifier
        return JointPromise(*where, fence, *place, offset, parcel, *self._bearings.block(), ())

    def _hear(self, frame: OverlayFrame, sender: bytes, now: float, effects: list[Effect]) -> None:
        """An order, or somebody's signature for one, and perhaps the parcel that was asked for."""
        fields = Fields.parse(frame.content, "order", 3)
        fields.version(1)
        promise, parcel = JointPromise.decode(fields.octets()), fields.optional_octets(FRAME_BYTES_MAX)
        node, _ = self._seat(frame.plan)
        where = self._instance, self._bearings.newest_plan().overlay, frame.plan, node.identifier
        if (promise.instance, promise.overlay, promise.plan, promise.node) != where:
            raise Malformed("order: of another virtual node or plan", reason="plan")
        index = [relay.identifier for relay in node.relays].index(sender) + 1
        place = Place(promise.token, promise.partition)
        partition = self._known(place)
        if promise.offset >= partition.counted + self._limits.ahead_max:
            raise Refused("order: too far ahead", reason="full")
        if promise.offset < self._bearings.anchored(place):
            raise Refused("order: below the anchor", reason="late")
        self._verify(promise, node, index)
        if parcel is not None and promise.parcel in partition.asked:
            found = Parcel.decode(parcel)
            if found.hash == promise.parcel:
                effects.append(Deliver(Unjudged(place, found)))
        heard = partition.heard.setdefault(promise.offset, {})
        known = heard.get(promise.body)
        if known is None:
            self._check_stories(heard, index)
        for other in heard.values():
            self._convict(other, promise, node, effects)
        heard[promise.body] = promise if known is None else known.join(promise)
        if promise.parcel not in partition.proposals:
            partition.awaited[promise.parcel] = promise.offset
        self._advance(place, now, effects, [promise.offset])

    def _check_stories(self, heard: Mapping[bytes, JointPromise], sender: int) -> None:
        """Of each relay that tells them: were they counted all together, a liar's would keep the others out."""
        if sum(sender in dict(one.signatures) for one in heard.values()) >= self._limits.stories_max:
            raise Refused("order: too many stories about one place", reason="full")

    def _verify(self, promise: JointPromise, node: VirtualNode, sender: int) -> None:
        if promise.signatures[-1][0] > len(node.relays) or sender not in dict(promise.signatures):
            raise Malformed("order: not signed by who sends it, or by a relay that the plan has not")
        for index, signature in promise.signatures:
            VerifyKey(node.relays[index - 1].key).verify(JOINT_CONTEXT, signature, promise.body)

    def _convict(self, one: JointPromise, other: JointPromise, node: VirtualNode, effects: list[Effect]) -> None:
        """Whoever signed two parcels for a place under one fence, and by one plan: indices of another are others'."""
        if one.contradicts(other):
            for index in sorted(dict(one.signatures).keys() & dict(other.signatures).keys()):
                both = one.encode(), other.encode()
                effects.append(Deliver(Evidence(node.relays[index - 1].identifier, "two-orders", both)))

    def _sign(self, partition: OrderedPartition, promise: JointPromise, effects: list[Effect]) -> None:
        """Sign an order, if its parcel passed the guards here and this place is no other's."""
        _, index = self._seat(promise.plan)
        offset, counted = promise.offset, partition.promised(promise.offset, self._is_counted)
        if (
            index in dict(promise.signatures)
            or promise.parcel not in partition.proposals
            or self._is_bound(partition, promise)
            or (counted is not None and counted.parcel != promise.parcel)
        ):
            return
        mine = promise.sign(index, self._signer)
        partition.heard.setdefault(offset, {})[mine.body] = mine
        partition.signed[offset] = promise.fence, promise.parcel
        partition.unplaced.pop(promise.parcel, None)
        effects.append(StoreEffect(_key(Place(promise.token, promise.partition), offset), mine.encode()))
        self._broadcast(FrameKind.ORDER, [mine.encode(), None], promise.plan, effects)

    def _is_bound(self, partition: OrderedPartition, promise: JointPromise) -> bool:
        """Whether this relay signed another parcel for the place under this fence, or may have: of a place the newest
        fence alone is remembered, and what a relay knows of the ledger may be older after a restart."""
        fence, parcel = partition.signed.get(promise.offset, (0, b""))
        return promise.fence < fence or (promise.fence == fence and promise.parcel != parcel)

    # --- to the others ---

    def _tell(self, frame: OverlayFrame, sender: bytes, effects: list[Effect]) -> None:
        """A new orderer asks what was ordered."""
        fields = Fields.parse(frame.content, "take over", 4)
        fields.version(1)
        place, first = Place(fields.octets(16), fields.number(PARTITIONS_MAX - 1)), fields.number()
        lease = self._bearings.lease(place)
        if lease is None or lease.holder != sender:
            raise Refused("take over: not from who holds the lease", reason="no-right")
        for offset, heard in sorted(self._partition(place).heard.items()):
            for promise in heard.values():
                if offset >= first and self._has_signed(promise):
                    effects.append(self._send(sender, FrameKind.ORDER, [promise.encode(), None], promise.plan))

    def _fetch(self, partition: OrderedPartition, promise: JointPromise, now: float, effects: list[Effect]) -> None:
        """Ask those who signed for the parcel, one after the other."""
        times, due = partition.asked.get(promise.parcel, (0, now + self._limits.hop_wait_s))
        if now >= due:
            node, _ = self._seat(promise.plan)
            index, _ = promise.signatures[times % len(promise.signatures)]
            what = promise.token, promise.partition, promise.offset, promise.parcel
            effects.append(self._send(node.relays[index - 1].identifier, FrameKind.FETCH, what, promise.plan))
            times, due = times + 1, now + self._limits.hop_wait_s
        partition.asked[promise.parcel] = times, due
        effects.append(WakeAt(due))

    def _give(self, frame: OverlayFrame, sender: bytes, effects: list[Effect]) -> None:
        fields = Fields.parse(frame.content, "question", 5)
        fields.version(1)
        place, offset = Place(fields.octets(16), fields.number(PARTITIONS_MAX - 1)), fields.number()
        parcel, heard = fields.octets(32), self._known(place).stories(offset)
        promise = next((one for one in heard if one.parcel == parcel and self._has_signed(one)), None)
        found = None if promise is None else self._find(place, parcel)
        if promise is None or found is None:
            raise Refused("question: for what is not here", reason="unknown")
        effects.append(self._send(sender, FrameKind.ORDER, [promise.encode(), found.encode()], promise.plan))

    def _has_signed(self, promise: JointPromise) -> bool:
        plan = self._bearings.plan(promise.plan)
        place = None if plan is None else plan.place(self._relay)
        return place is not None and place[1] in dict(promise.signatures)

    def _find(self, place: Place, parcel: bytes) -> Parcel | None:
        proposal = self._partition(place).proposals.get(parcel)
        return proposal[0] if proposal is not None else self._bearings.stored(place, parcel)

    def _send(self, to: bytes, kind: FrameKind, content: Sequence[object], plan: int) -> Send:
        return Send(to.hex(), OverlayFrame(kind, plan, wire.encode([1, *content])).encode())

    def _broadcast(self, kind: FrameKind, content: Sequence[object], plan: int, effects: list[Effect]) -> None:
        """To all others of this virtual node, by a version of the plan."""
        others = [relay.identifier for relay in self._seat(plan)[0].relays if relay.identifier != self._relay]
        effects += [self._send(name, kind, content, plan) for name in others]


def _key(place: Place, offset: int) -> str:
    token, partition = place
    return f"signed/{token.hex()}/{partition}/{offset}"
