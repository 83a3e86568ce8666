"""How a relay passes parcels on: its parts at once, and what did not come is asked for (000, "Propagation of encrypted
content"; `content.py` says which part goes where).

Threat: in every virtual node up to f relays drop, alter, delay or repeat what they carry, invent parcels, or ask
without end. Promised: a parcel that the publisher's edge promised reaches every honest relay on the way to its
subscribers, unaltered and once, as long as `hop_keep_s` suffices.

A parcel travels with the joint promise of the edge that ordered it, f+1 signatures over its place and its header's
hash: so nobody on the way can invent one or move it, and memory is bounded by what the edge's guards let in. Every
relay tells all relays of the next virtual node that the parcel is there; those who carry a part get it with that. Who
misses its part, or wants the body for its own subscribers, asks those before it, one after the other, and a relay that
is asked for what it has not fetches it in turn. So the three strategies need no timetable but `hop_wait_s`.

Everybody on the way to a subscriber is told of a parcel, so that each edge can prove its whole log; the body goes only
where somebody's labels ask for it (`parcel/labels.py`). A relay goes by its own tables for what it fetches and by its
own again for what it sends unasked: where these differ, those behind ask, and get it. An edge where nobody wants the
body delivers the front, and whoever comes later and wants it has it fetched (`keeping.py`).

Whoever has its parts acknowledges. What is copied to all, and acknowledged by all, is let go; everything else is kept
for `hop_keep_s`, and whoever has not acknowledged by then is suspected, which is no proof. Nothing waits for an
acknowledgement meanwhile: f silent relays slow nobody down. A parcel of which nothing is missing is looked at
once more, when `hop_keep_s` is over.

"Once" is within `hop_keep_s`: then a parcel is forgotten, and whoever shows an old message again has it delivered
again. Whoever stores knows the place, and drops it (`keeping.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from tallystick import wire
from tallystick.carriers.overlay.carried import ContentMessage, RelayedParcel, name_carried
from tallystick.carriers.overlay.content import Strategy, gather, sends
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.surroundings import NOWHERE, Branches, ContentRoutes
from tallystick.crypto.coding import TOTAL_MAX
from tallystick.errors import Forged, Malformed, Refused
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.alarms import Alarms
from tallystick.runtime.effects import Deliver, Effect, Send
from tallystick.trust.plan import VirtualNode
from tallystick.trust.promise import JointPromise


@dataclass(frozen=True)
class ContentLimits:
    hop_wait_s: float = 0.5  # before what is missing is asked for, and between two questions
    hop_keep_s: float = 30.0
    bytes_max: int = 256 << 20  # of bodies and blocks in memory; beyond it the oldest go
    answers_max: int = 16  # to one relay for one part
    strategy: Strategy = Strategy.REPLICAS  # of bodies that are not coded


class CarriedParcel(NamedTuple):
    """For the subscribers of this relay; a front where none of them wants the body."""

    promise: JointPromise
    parcel: Parcel


class Suspicion(NamedTuple):
    """A relay that did not acknowledge: whoever judges it needs f+1 who say so."""

    plan: int
    relay: bytes


@dataclass
class _Errand:
    """One parcel at this relay, and what is to be done with it."""

    carried: RelayedParcel
    born: float
    silent: set[int] = field(default_factory=set)  # relays before this one that were asked
    sent: set[tuple[bytes, int | None]] = field(default_factory=set)  # to whom which part, None is that it is there
    answered: Counter[tuple[bytes, int]] = field(default_factory=Counter)
    unacknowledged: set[bytes] = field(default_factory=set)
    owed: set[bytes] = field(default_factory=set)  # relays before this one that wait for its acknowledgement
    delivered: bool = False
    routes: tuple[Branches | None, Branches] = None, NOWHERE  # as they were last
    rests: bool = False  # nothing is missing, and it is not looked at before it is over
    size: int = 0  # in bytes, as last weighed


class ContentForwarding:
    """What one relay does with parcels: a part of its role, told what arrives and when it is time."""

    def __init__(self, relay: bytes, instance: bytes, around: ContentRoutes, limits: ContentLimits) -> None:
        self._relay, self._instance, self._around, self._limits = relay, instance, around, limits
        self._errands: dict[bytes, _Errand] = {}  # the oldest first
        self._alarms: Alarms[bytes] = Alarms()
        self._bytes = 0  # of all errands
        self.dropped: Counter[str] = Counter()

    def offer(self, promise: JointPromise, parcel: Parcel, now: float) -> list[Effect]:
        """At the publisher's edge: a parcel that is stored here and jointly promised."""
        effects: list[Effect] = []
        if name_carried(promise) not in self._errands:
            errand = self._new(promise, parcel, None, now, effects)
            errand.carried.take_body(bytes(parcel.body))
            self._progress(errand, effects)
        return effects

    def take(self, frame: OverlayFrame, sender: bytes, now: float) -> list[Effect]:
        """A frame of content, a question or an acknowledgement. What does not fit is dropped, counted by reason."""
        effects: list[Effect] = []
        try:
            if frame.kind is FrameKind.CONTENT:
                self._receive(frame, sender, now, effects)
            elif frame.kind is FrameKind.ASK:
                self._answer(frame, sender, now, effects)
            else:
                self._hear(frame, sender)
        except Refused as error:
            self.dropped[error.reason] += 1
        return effects

    def wake(self, now: float) -> list[Effect]:
        """Ask for what is missing, and let go of what is old."""
        effects: list[Effect] = []
        for name in self._alarms.due(now):
            errand = self._errands.get(name)
            if errand is not None and now >= errand.born + self._limits.hop_keep_s:
                version = errand.carried.promise.plan
                effects += [Deliver(Suspicion(version, relay)) for relay in sorted(errand.unacknowledged)]
                self._drop(name)
            elif errand is not None:
                self._watch(name, errand, now, effects)
                if not errand.rests:
                    self._ask(name, errand, effects)
        return effects

    def is_owed(self, node: VirtualNode) -> bool:
        """Whether more relays of a virtual node than may be bad have not acknowledged something yet (Algorithm 3)."""
        owing = [errand.unacknowledged.intersection(node.names) for errand in self._errands.values()]
        return any(len(names) > node.faults for names in owing)

    def owes(self, relay: bytes) -> bool:
        """Whether a relay has not acknowledged something yet."""
        return any(relay in errand.unacknowledged for errand in self._errands.values())

    def _receive(self, frame: OverlayFrame, sender: bytes, now: float, effects: list[Effect]) -> None:
        message = ContentMessage.decode(frame)
        promise = JointPromise.decode(message.promise)
        errand = self._errands.get(name_carried(promise))
        if errand is None:
            if promise.plan != frame.plan:
                raise Malformed(f"frame: of plan {frame.plan}, with a promise of plan {promise.plan}")
            errand = self._new(promise, Parcel.decode_front(message.front), sender, now, effects)
        carried = errand.carried
        if sender not in carried.before:
            raise Refused("content: not from the virtual node before this one", reason="misrouted")
        if carried.take(message):
            errand.silent.discard(carried.before.index(sender))
        errand.owed.add(sender)
        self._progress(errand, effects)

    def _new(
        self, promise: JointPromise, front: Parcel, sender: bytes | None, now: float, effects: list[Effect]
    ) -> _Errand:
        plan = self._around.plan(promise.plan)
        place = None if plan is None else plan.place(self._relay)
        if plan is None or place is None:
            raise Refused(f"content: plan {promise.plan} does not count here", reason="plan")
        here, index = place
        one_way = self._limits.strategy is Strategy.ONE_COPY
        carried = RelayedParcel(promise, front, plan, plan.path(promise.node, here.identifier), index - 1, one_way)
        if sender is not None and sender not in carried.before:
            raise Refused("content: not from the virtual node before this one", reason="misrouted")
        if promise.instance != self._instance or front.hash != promise.parcel:
            raise Forged("content: not the parcel that was promised")
        if promise.token not in [topic.token for topic in front.header.topics]:
            raise Malformed("content: not of the topic that was promised")
        if sender is not None:  # what was ordered here was verified then, signature by signature, and judged
            promise.verify(plan)
            self._around.check_front(front)
        name = name_carried(promise)
        errand = self._errands[name] = _Errand(carried, now)
        if any(self._routes(errand)[0]) and not any(self._routes(errand)[1]):
            carried.wanted.clear()  # until somebody asks
        self._watch(name, errand, now, effects)
        return errand

    def _progress(self, errand: _Errand, effects: list[Effect]) -> None:
        """Do what can be done with what is here: rebuild, deliver, send on, acknowledge, let go."""
        carried, (branches, wanting) = errand.carried, self._routes(errand)
        if wanting.subscribers or not carried.is_satisfied:
            carried.rebuild()
        parcel = carried.whole() or (None if wanting.subscribers else carried.front)
        if branches.subscribers and parcel is not None and not errand.delivered:
            errand.delivered = True
            effects.append(Deliver(CarriedParcel(carried.promise, parcel)))
        for branch in branches.nodes:
            self._send_on(errand, carried.plan.node(branch), branch in wanting.nodes, effects)
        if carried.is_satisfied:
            content = wire.encode([1, name_carried(carried.promise)])
            frame = OverlayFrame(FrameKind.ACK, carried.promise.plan, content).encode()
            effects += [Send(relay.hex(), frame) for relay in sorted(errand.owed)]
            errand.owed.clear()
        self._let_go(errand)
        while self._bytes > self._limits.bytes_max:
            self._drop(next(iter(self._errands)))
            self.dropped["full"] += 1

    def _routes(self, errand: _Errand) -> tuple[Branches, Branches]:
        """Where the topic goes, and where the body is wanted, which is looked up anew only when the tables change."""
        where = [errand.carried.promise.token], errand.carried.came_from
        branches = self._around.branches(*where)
        if errand.routes[0] is not branches:
            errand.routes = branches, self._around.wanting(*where, errand.carried.front.header)
        return branches, errand.routes[1]

    def _send_on(self, errand: _Errand, branch: VirtualNode, is_wanted: bool, effects: list[Effect]) -> None:
        """Tell every relay of the branch that the parcel is there; where it is wanted, send the parts that are ours."""
        carried = errand.carried
        sizes = [len(node.relays) for node in (*carried.path, branch)]
        errands = sends(carried.index, carried.depth, sizes, carried.split) if is_wanted else []
        for index, name in enumerate(branch.names):
            parts = [part for at, part in errands if at == index and part in carried.held]
            messages = carried.messages(part for part in parts if (name, part) not in errand.sent)
            if (name, None) not in errand.sent:
                errand.unacknowledged.add(name)
                messages = messages or [carried.bare()]
            effects += [Send(name.hex(), message.frame(carried.promise.plan)) for message in messages]
            errand.sent |= {(name, None), *((name, part) for part in parts)}

    def _let_go(self, errand: _Errand) -> None:
        """Of what all behind have whole, and nobody here waits for; who has a part, or a front, may ask for more."""
        carried, (branches, wanting) = errand.carried, self._routes(errand)
        told, done = errand.sent or not branches.nodes, errand.delivered or not branches.subscribers
        is_copied = carried.split.needed == 1 < carried.split.total  # who has its part has the whole
        is_taken = not errand.unacknowledged and set(branches.nodes) <= set(wanting.nodes)
        if told and done and is_taken and carried.is_satisfied and is_copied and carried.held:
            carried.release()
        self._weigh(errand)

    def _watch(self, name: bytes, errand: _Errand, now: float, effects: list[Effect]) -> None:
        """Look at a parcel again soon while something of it is missing, else when it is over."""
        errand.rests, end = not self._is_missing(errand), errand.born + self._limits.hop_keep_s
        self._alarms.set(end if errand.rests else min(now + self._limits.hop_wait_s, end), name, effects)

    def _is_missing(self, errand: _Errand) -> bool:
        """Whether there is something to ask for."""
        carried = errand.carried
        waits = self._routes(errand)[1].subscribers and not errand.delivered
        return bool(carried.depth and (waits or not carried.is_satisfied))

    def _ask(self, name: bytes, errand: _Errand, effects: list[Effect]) -> None:
        carried = errand.carried
        place = carried.depth - 1, len(carried.before), carried.split
        first = min(carried.wanted, default=carried.index % carried.split.total)
        others = [index for index in range(len(carried.before)) if index not in errand.silent]
        asked = gather(carried.held, errand.silent, *place, first=first) or [(index, first) for index in others[:1]]
        if not asked:  # all were asked: those that had nothing then may have it now
            errand.silent.clear()
            asked = gather(carried.held, errand.silent, *place, first=first)
        for index in sorted({relay for relay, _ in asked}):
            content = wire.encode([1, name, [part for relay, part in asked if relay == index]])
            frame = OverlayFrame(FrameKind.ASK, carried.promise.plan, content).encode()
            effects.append(Send(carried.before[index].hex(), frame))
            errand.silent.add(index)

    def _answer(self, frame: OverlayFrame, sender: bytes, now: float, effects: list[Effect]) -> None:
        fields = frame.fields("question", 3)
        name, parts = fields.octets(32), {one.number(TOTAL_MAX - 1) for one in fields.each(TOTAL_MAX, 1)}
        errand = self._errands.get(name)
        place = None if errand is None else errand.carried.plan.place(sender)
        if errand is None or place is None or place[0].identifier not in self._routes(errand)[0].nodes:
            raise Refused("question: for what is not here, or not from the virtual node behind", reason="unknown")
        carried = errand.carried
        for part in sorted(part for part in parts if part < carried.split.total):
            if errand.answered[sender, part] >= self._limits.answers_max:
                raise Refused("question: asked too often", reason="full")
            errand.answered[sender, part] += 1
            if part in carried.held:
                messages = carried.messages([part])
                self._weigh(errand)
                effects += [Send(sender.hex(), message.frame(carried.promise.plan)) for message in messages]
            elif not carried.is_released:
                carried.wanted.add(part)  # fetched in turn; whoever asked asks again
        if errand.rests and self._is_missing(errand):
            self._watch(name, errand, now, effects)

    def _hear(self, frame: OverlayFrame, sender: bytes) -> None:
        errand = self._errands.get(frame.fields("acknowledgement", 2).octets(32))
        if errand is None or sender not in errand.unacknowledged:
            raise Refused("acknowledgement: of what was not sent", reason="unknown")
        errand.unacknowledged.discard(sender)
        self._let_go(errand)

    def _weigh(self, errand: _Errand) -> None:
        size = errand.carried.size
        self._bytes += size - errand.size
        errand.size = size

    def _drop(self, name: bytes) -> None:
        self._bytes -= self._errands.pop(name).size
