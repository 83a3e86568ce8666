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
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tallystick import wire
from tallystick.carriers.overlay.content_forwarding import Suspicion
from tallystick.carriers.overlay.frames import FRAME_BYTES_MAX, FrameKind, OverlayFrame
from tallystick.carriers.overlay.places import Bearings, Counted, OrderedPartition, OrderingLimits, Unjudged
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
            partition.asked.pop(parcel.hash, None)
            effects.append(WakeAt(now + self._limits.stall_s))
        self._advance(place, now, effects)
        return effects

    def take(self, frame: OverlayFrame, sender: bytes, now: float) -> list[Effect]:
        """A frame from a relay of the same virtual node. What does not fit is dropped, counted by reason."""
        effects: list[Effect] = []
        try:
            node, _ = self._here()
            index = [relay.identifier for relay in node.relays].index(sender) + 1 if _is_of(node, sender) else 0
            if not index:
                raise Refused("order: not from this virtual node", reason="misrouted")
            if frame.kind is FrameKind.ORDER:
                self._hear(frame.content, index, now, effects)
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
            waits = any(now >= came + self._limits.stall_s for _, came in partition.proposals.values())
            if waits and lease is not None and lease.holder != self._relay and partition.suspected != lease.fence:
                partition.suspected = lease.fence
                effects.append(Deliver(Suspicion(self._bearings.newest_plan().version, lease.holder)))
        return effects

    # --- what is known ---

    def _here(self) -> tuple[VirtualNode, int]:
        place = self._bearings.newest_plan().place(self._relay)
        if place is None:
            raise Refused("order: this relay is in no plan that counts", reason="plan")
        return place

    def _partition(self, place: Place) -> OrderedPartition:
        partition = self._partitions.get(place)
        if partition is None:
            partition = self._partitions[place] = OrderedPartition(counted=self._bearings.anchored(place))
        return partition

    def _promised(self, partition: OrderedPartition, offset: int) -> JointPromise | None:
        """What f+1 relays signed for a place, under the highest fence."""
        node, _ = self._here()
        found = [one for one in partition.heard.get(offset, {}).values() if len(one.signatures) > node.faults]
        return max(found, key=lambda one: one.fence, default=None)

    def _ordered(self, place: Place, offset: int) -> JointPromise | None:
        """What the holder of the lease ordered for a place; the first, if it lied."""
        lease, partition = self._bearings.lease(place), self._partition(place)
        holder = None if lease is None else self._bearings.newest_plan().place(lease.holder)
        if lease is None or holder is None:
            return None
        heard = partition.heard.get(offset, {}).values()
        return next((one for one in heard if one.fence == lease.fence and holder[1] in dict(one.signatures)), None)

    def _advance(self, place: Place, now: float, effects: list[Effect]) -> None:
        """Everything that can be done now: take a lease up, order, sign, count, ask for what is missing, forget."""
        partition, lease = self._partition(place), self._bearings.lease(place)
        if lease is not None and lease.fence > partition.fence:
            partition.fence = lease.fence
            if lease.holder == self._relay:
                partition.ready_at = now + self._limits.hop_wait_s
                effects.append(WakeAt(partition.ready_at))
                self._broadcast(FrameKind.TAKE_OVER, [*place, self._bearings.anchored(place)], effects)
        if lease is not None and lease.holder == self._relay and now >= partition.ready_at:
            self._order(place, partition, lease.fence, effects)
        for offset in sorted(offset for offset in partition.heard if offset >= partition.counted):
            if (order := self._ordered(place, offset)) is not None:
                self._sign(partition, order, effects)
        self._count(place, partition, now, effects)

    def _count(self, place: Place, partition: OrderedPartition, now: float, effects: list[Effect]) -> None:
        while (promise := self._promised(partition, partition.counted)) is not None:
            proposal = partition.proposals.get(promise.parcel)
            if proposal is None:
                self._fetch(partition, promise, now, effects)
                break
            del partition.proposals[promise.parcel]
            partition.counted += 1
            effects.append(Deliver(Counted(promise, proposal[0])))
        anchored = self._bearings.anchored(place)
        for offset in [offset for offset in partition.heard if offset < min(anchored, partition.counted)]:
            del partition.heard[offset]
        for offset in [offset for offset in partition.signed if offset < anchored]:
            del partition.signed[offset]
            effects.append(StoreEffect(_key(place, offset), None))

    # --- ordering ---

    def _order(self, place: Place, partition: OrderedPartition, fence: int, effects: list[Effect]) -> None:
        """As the orderer: what was promised before keeps its place under the new fence, then comes what waits."""
        offsets = range(partition.counted, partition.counted + self._limits.ahead_max)
        known = {at: self._ordered(place, at) or self._promised(partition, at) for at in partition.heard}
        placed = {one.parcel for one in known.values() if one is not None}
        waiting = iter([name for name in partition.proposals if name not in placed])
        for offset in offsets:
            if self._ordered(place, offset) is not None:
                continue
            earlier = known.get(offset)
            parcel = next(waiting, None) if earlier is None else earlier.parcel
            if parcel is None or parcel not in partition.proposals:
                return  # nothing waits, or what was promised is not here yet
            self._sign(partition, self._place(place, fence, offset, parcel), effects)

    def _place(self, place: Place, fence: int, offset: int, parcel: bytes) -> JointPromise:
        plan, (node, _) = self._bearings.newest_plan(), self._here()
        where = self._instance, plan.overlay, plan.version, node.identifier
        return JointPromise(*where, fence, *place, offset, parcel, *self._bearings.block(), ())

    def _hear(self, content: bytes, sender: int, now: float, effects: list[Effect]) -> None:
        """An order, or somebody's signature for one, and perhaps the parcel that was asked for."""
        fields = Fields.parse(content, "order", 3)
        fields.version(1)
        promise, parcel = JointPromise.decode(fields.octets()), fields.optional_octets(FRAME_BYTES_MAX)
        plan, (node, _) = self._bearings.newest_plan(), self._here()
        where = self._instance, plan.overlay, plan.version, node.identifier
        if (promise.instance, promise.overlay, promise.plan, promise.node) != where:
            raise Malformed("order: of another virtual node or plan", reason="plan")
        place = Place(promise.token, promise.partition)
        partition = self._partition(place)
        if promise.offset >= partition.counted + self._limits.ahead_max:
            raise Refused("order: too far ahead", reason="full")
        if promise.offset < self._bearings.anchored(place):
            raise Refused("order: below the anchor", reason="late")
        self._verify(promise, node, sender)
        if parcel is not None and promise.parcel in partition.asked:
            found = Parcel.decode(parcel)
            if found.hash == promise.parcel:
                effects.append(Deliver(Unjudged(place, found)))
        heard = partition.heard.setdefault(promise.offset, {})
        known = heard.get(promise.body)
        if known is None and len(heard) >= 2 * len(node.relays):
            raise Refused("order: too many stories about one place", reason="full")
        for other in heard.values():
            self._convict(other, promise, node, effects)
        heard[promise.body] = promise if known is None else known.join(promise)
        self._advance(place, now, effects)

    def _verify(self, promise: JointPromise, node: VirtualNode, sender: int) -> None:
        if promise.signatures[-1][0] > len(node.relays) or sender not in dict(promise.signatures):
            raise Malformed("order: not signed by who sends it, or by a relay that the plan has not")
        for index, signature in promise.signatures:
            VerifyKey(node.relays[index - 1].key).verify(JOINT_CONTEXT, signature, promise.body)

    def _convict(self, one: JointPromise, other: JointPromise, node: VirtualNode, effects: list[Effect]) -> None:
        """Whoever signed two parcels for a place under one fence."""
        if one.fence == other.fence and one.parcel != other.parcel:
            for index in sorted(dict(one.signatures).keys() & dict(other.signatures).keys()):
                both = one.encode(), other.encode()
                effects.append(Deliver(Evidence(node.relays[index - 1].identifier, "two-orders", both)))

    def _sign(self, partition: OrderedPartition, promise: JointPromise, effects: list[Effect]) -> None:
        """Sign an order, if its parcel passed the guards here and this place is no other's."""
        _, index = self._here()
        offset = promise.offset
        fence, parcel = partition.signed.get(offset, (0, b""))
        counted = self._promised(partition, offset)
        if (
            index in dict(promise.signatures)
            or promise.parcel not in partition.proposals
            or (fence == promise.fence and parcel != promise.parcel)
            or (counted is not None and counted.parcel != promise.parcel)
        ):
            return
        mine = promise.sign(index, self._signer)
        partition.heard.setdefault(offset, {})[mine.body] = mine
        partition.signed[offset] = promise.fence, promise.parcel
        effects.append(StoreEffect(_key(Place(promise.token, promise.partition), offset), mine.encode()))
        self._broadcast(FrameKind.ORDER, [mine.encode(), None], effects)

    # --- to the others ---

    def _tell(self, frame: OverlayFrame, sender: bytes, effects: list[Effect]) -> None:
        """A new orderer asks what was ordered."""
        fields = Fields.parse(frame.content, "take over", 4)
        fields.version(1)
        place, first = Place(fields.octets(16), fields.number(PARTITIONS_MAX - 1)), fields.number()
        lease, (_, index) = self._bearings.lease(place), self._here()
        if lease is None or lease.holder != sender:
            raise Refused("take over: not from who holds the lease", reason="no-right")
        for offset, heard in sorted(self._partition(place).heard.items()):
            for promise in heard.values():
                if offset >= first and index in dict(promise.signatures):
                    effects.append(self._send(sender, FrameKind.ORDER, [promise.encode(), None]))

    def _fetch(self, partition: OrderedPartition, promise: JointPromise, now: float, effects: list[Effect]) -> None:
        """Ask those who signed for the parcel, one after the other."""
        times, due = partition.asked.get(promise.parcel, (0, now + self._limits.hop_wait_s))
        if now >= due:
            node, _ = self._here()
            index, _ = promise.signatures[times % len(promise.signatures)]
            name = node.relays[index - 1].identifier
            what = promise.token, promise.partition, promise.offset, promise.parcel
            effects.append(self._send(name, FrameKind.FETCH, what))
            times, due = times + 1, now + self._limits.hop_wait_s
        partition.asked[promise.parcel] = times, due
        effects.append(WakeAt(due))

    def _give(self, frame: OverlayFrame, sender: bytes, effects: list[Effect]) -> None:
        fields = Fields.parse(frame.content, "question", 5)
        fields.version(1)
        place, offset = Place(fields.octets(16), fields.number(PARTITIONS_MAX - 1)), fields.number()
        parcel, (_, index) = fields.octets(32), self._here()
        heard = self._partition(place).heard.get(offset, {}).values()
        promise = next((one for one in heard if one.parcel == parcel and index in dict(one.signatures)), None)
        found = None if promise is None else self._find(place, parcel)
        if promise is None or found is None:
            raise Refused("question: for what is not here", reason="unknown")
        effects.append(self._send(sender, FrameKind.ORDER, [promise.encode(), found.encode()]))

    def _find(self, place: Place, parcel: bytes) -> Parcel | None:
        proposal = self._partition(place).proposals.get(parcel)
        return proposal[0] if proposal is not None else self._bearings.stored(place, parcel)

    def _send(self, to: bytes, kind: FrameKind, content: Sequence[object]) -> Send:
        frame = OverlayFrame(kind, self._bearings.newest_plan().version, wire.encode([1, *content]))
        return Send(to.hex(), frame.encode())

    def _broadcast(self, kind: FrameKind, content: Sequence[object], effects: list[Effect]) -> None:
        node, _ = self._here()
        others = [relay.identifier for relay in node.relays if relay.identifier != self._relay]
        effects += [self._send(name, kind, content) for name in others]


def _is_of(node: VirtualNode, relay: bytes) -> bool:
    return relay in [one.identifier for one in node.relays]


def _key(place: Place, offset: int) -> str:
    token, partition = place
    return f"signed/{token.hex()}/{partition}/{offset}"
