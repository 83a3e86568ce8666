"""What relays of one virtual node tell and ask one another about the places of parcels (`ordering.py`).

Threat: who asks over and over, or for what it does not need; who sends what nobody asked for. Each is told once in a
while, at most so many places; a parcel is given to who names a place that was signed here; a parcel that is brought
counts for nothing before the guards here have judged it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from tallystick import wire
from tallystick.carriers.overlay.frames import FRAME_BYTES_MAX, FrameKind, OverlayFrame
from tallystick.carriers.overlay.places import Bearings, OrderedPartition, OrderingLimits, Unjudged
from tallystick.carriers.overlay.signatories import Signatories
from tallystick.carriers.storage import Place
from tallystick.errors import Malformed, Refused
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.effects import Deliver, Effect, Send, WakeAt
from tallystick.trust.promise import PARTITIONS_MAX, JointPromise

REPEATED_MAX = 64  # places at a time
BROUGHT_MAX, BROUGHT_BYTES = 64, 1 << 20  # parcels at a time, and about so much of them


class OrderMessages:
    def __init__(
        self,
        relay: bytes,
        bearings: Bearings,
        signatories: Signatories,
        known: Callable[[Place], OrderedPartition],
        limits: OrderingLimits,
    ) -> None:
        """`known` raises `Refused` for a partition that nobody orders."""
        self._relay, self._bearings, self._signatories = relay, bearings, signatories
        self._known, self._limits = known, limits

    def order(self, to: bytes, promise: JointPromise, parcel: Parcel | None = None) -> Send:
        content = [promise.encode(), None if parcel is None else parcel.encode()]
        return self._send(to, FrameKind.ORDER, content, promise.plan)

    def order_all(self, promise: JointPromise) -> list[Effect]:
        return [self.order(name, promise) for name in self._all(promise.plan)]

    def ask(self, place: Place, first: int) -> list[Effect]:
        """What was ordered from this place on."""
        plan = self._bearings.newest_plan().version
        return [self._send(name, FrameKind.TAKE_OVER, [*place, first], plan) for name in self._all(plan)]

    def tell(self, frame: OverlayFrame, sender: bytes, now: float) -> list[Effect]:
        """A new orderer, or who is stuck, asks what was ordered."""
        fields = frame.fields("take over", 4)
        place, first = Place(fields.octets(16), fields.number(PARTITIONS_MAX - 1)), fields.number()
        lease, partition = self._bearings.lease(place), self._known(place)
        most = self._limits.ahead_max if lease is not None and lease.holder == sender else REPEATED_MAX
        if now < partition.told.get(sender, 0.0) + self._limits.hop_wait_s / 2:
            raise Refused("take over: asked a moment ago", reason="full")
        partition.told[sender] = now
        places = sorted(offset for offset in partition.heard if first <= offset < first + most)
        return [self.order(sender, one) for offset in places for one in self._own(partition, offset)]

    def repeat(self, partition: OrderedPartition, now: float) -> list[Effect]:
        """Where a place does not move, say again what was signed here, and ask what was ordered if that is not known: a
        link may have lost it."""
        effects, (offset, since), is_signed = list[Effect](), partition.stuck, bool(self._own(partition, partition.end))
        if offset != partition.end or not (partition.proposals or max(partition.heard, default=0) >= offset):
            partition.stuck = partition.end, now
        elif now >= since + self._limits.hop_wait_s:
            partition.stuck = offset, now
            if partition.next <= offset:
                effects += self.ask(partition.place, partition.next)
            for number in range(offset, offset + REPEATED_MAX if is_signed else offset):
                effects += [send for one in self._own(partition, number) for send in self.order_all(one)]
        if partition.proposals or is_signed:
            effects.append(WakeAt(partition.stuck[1] + self._limits.hop_wait_s))
        return effects

    def fetch(self, partition: OrderedPartition, promise: JointPromise, now: float) -> list[Effect]:
        """Ask those who signed it for a parcel, one after the other."""
        wait_s, (times, due) = self._limits.hop_wait_s, partition.asked.get(promise.parcel, (0, 0.0))
        if now < due:
            return []
        partition.asked[promise.parcel] = times + 1, now + wait_s
        if times == 0:  # it may be on its way
            return [WakeAt(now + wait_s)]
        node, _ = self._signatories.seat(promise.plan)
        index, _ = promise.signatures[times % len(promise.signatures)]
        what = promise.token, promise.partition, promise.offset, promise.parcel
        asked = self._send(node.relays[index - 1].identifier, FrameKind.FETCH, what, promise.plan)
        return [asked, WakeAt(now + wait_s)]

    def give(self, frame: OverlayFrame, sender: bytes) -> list[Effect]:
        fields = frame.fields("question", 5)
        partition = self._known(Place(fields.octets(16), fields.number(PARTITIONS_MAX - 1)))
        offset, name = fields.number(), fields.octets(32)
        promise = next((one for one in self._own(partition, offset) if one.parcel == name), None)
        found = partition.parcel(name)
        if promise is None or found is None:
            raise Refused("question: for what is not here", reason="unknown")
        return [self.order(sender, promise, found)]

    def bring(self, partition: OrderedPartition, holder: bytes, now: float) -> list[Effect]:
        """To the orderer, what has waited for it a while."""
        if now < partition.brought_at + self._limits.hop_wait_s:
            return []
        partition.brought_at, left, effects = now, BROUGHT_BYTES, list[Effect]()
        for parcel, since in [partition.proposals[name] for name in islice(partition.unplaced, BROUGHT_MAX)]:
            if now >= since + self._limits.hop_wait_s and left > 0:
                plan = self._bearings.newest_plan().version
                effects.append(self._send(holder, FrameKind.BRING, [*partition.place, parcel.encode()], plan))
                left -= parcel.header.body_bytes
        return effects

    def take_brought(self, frame: OverlayFrame) -> list[Effect]:
        fields = frame.fields("brought parcel", 4)
        place = Place(fields.octets(16), fields.number(PARTITIONS_MAX - 1))
        parcel, lease = Parcel.decode(fields.octets(at_most=FRAME_BYTES_MAX)), self._bearings.lease(place)
        if lease is None or lease.holder != self._relay:
            raise Refused("brought parcel: this relay does not order it", reason="misrouted")
        if place.token not in [topic.token for topic in parcel.header.topics]:
            raise Malformed("brought parcel: of another topic")
        is_known = self._known(place).parcel(parcel.hash) is not None
        return [] if is_known else [Deliver(Unjudged(place, parcel, False))]

    def _own(self, partition: OrderedPartition, offset: int) -> list[JointPromise]:
        """What this relay signed for a place."""
        return [*filter(self._signatories.has_signed, partition.stories(offset))]

    def _send(self, to: bytes, kind: FrameKind, content: Sequence[object], plan: int) -> Send:
        return Send(to.hex(), OverlayFrame(kind, plan, wire.encode([1, *content])).encode())

    def _all(self, plan: int) -> list[bytes]:
        """The others of this virtual node, by a version of the plan."""
        return [name for name in self._signatories.seat(plan)[0].names if name != self._relay]
