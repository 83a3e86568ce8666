"""Attach and detach under load (000, Algorithms 3, 4 and 5), corrected.

Who belongs to which virtual node, and how many shares are needed there, is the plan's word on the ledger. So "change
threshold scheme" means: from the height at which version v+1 takes effect, new lane keys are split under v+1, and those
under way end under v (`PlanVersions`). A notice only asks for what the plan says already; one that contradicts it is
refused. It is the link that says who sends it.

Threat: a relay that leaves with shares in its queues, or while others still send to it, is a fault more than the f that
are borne. As printed, Algorithm 3 goes on "while not received ACK from every V and input queue not empty": it stops as
soon as its queue is empty for a moment, and what is in flight is lost (`experiments/synapse/detach.py` shows it). Here
it goes on until both are true, all acknowledgements are in *and* the queues are empty. A neighbour acknowledges once
all it had for the leaving relay was received, not sent. Liars may never acknowledge: in any case it leaves after
`hop_keep_s`, since by then nobody keeps anything for it. To wait for all but f of each virtual node would be quicker
and wrong: f liars acknowledge at once, and f honest ones who are slow still hold shares on whose arrival the plan
counts (the same experiment). Nobody waits for a relay that leaves, so its patience costs nothing.

Threat: neighbours that lie to a newcomer about routing state. A claim counts when f+1 relays of one virtual node tell
of it, and with its principal's signature and permit (`routing.py`). The paper lets the newcomer's own virtual node
tell; since claims name their edges, neighbours know as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.notices import Notice, NoticeKind
from tallystick.carriers.overlay.routing import Routing
from tallystick.errors import Misuse, Refused
from tallystick.runtime.effects import Effect, Send, WakeAt
from tallystick.trust.plan import RELAYS_MAX, RELAYS_MIN, Plan, Relay, VirtualNode


@dataclass(frozen=True)
class MembershipLimits:
    hop_keep_s: float = 30.0  # how long data that nobody acknowledges is kept
    again_s: float = 1.0  # after which a notice is repeated, and before which it is not answered again


def attached(plan: Plan, node: bytes, relay: Relay) -> Plan:
    """The next version, with a relay more. Raises `Refused`."""
    here = plan.node(node)
    if len(here.relays) >= RELAYS_MAX:
        raise Refused(f"plan: a virtual node has at most {RELAYS_MAX} relays", reason="too-many-relays")
    return _changed(plan, replace(here, relays=(*here.relays, relay)))


def detached(plan: Plan, relay: bytes) -> Plan:
    """The next version, without a relay. Raises `Refused` if too few would be left."""
    place = plan.place(relay)
    if place is None:
        raise Misuse(f"plan {plan.version}: no relay {relay.hex()}")
    left = tuple(one for one in place[0].relays if one.identifier != relay)
    if len(left) < RELAYS_MIN:
        raise Refused(
            f"plan: {len(left)} relays would be left of virtual node {place[0].identifier.hex()}",
            reason="attach-first",
            hint="attach first: a virtual node has at least three relays",
        )
    return _changed(plan, replace(place[0], relays=left))


def _changed(plan: Plan, changed: VirtualNode) -> Plan:
    nodes = tuple(changed if node.identifier == changed.identifier else node for node in plan.nodes)
    return replace(plan, version=plan.version + 1, nodes=nodes)


class PlanVersions:
    """The versions of the plan that matter now: new lane keys are split under one, others end under theirs."""

    def __init__(self, plan: Plan, height: int = 0) -> None:
        self._known = {plan.version: (height, plan)}
        self._over: dict[int, float] = {}  # when a version was replaced

    def announce(self, plan: Plan, height: int) -> None:
        """A version that stands on the ledger and takes effect at this height. Raises `Refused`."""
        newest = max(self._known)
        if plan.version != newest + 1 or height <= self._known[newest][0]:
            raise Refused(f"plan {plan.version}: version {newest + 1} at a later height expected", reason="plan-order")
        self._known[plan.version] = height, plan

    def at(self, height: int) -> Plan:
        """The version under which lane keys are split at this height."""
        return max((one for one in self._known.values() if one[0] <= height), key=lambda one: one[0])[1]

    def get(self, version: int) -> Plan | None:
        """A version that may still be spoken under: in effect, announced, or lately replaced."""
        known = self._known.get(version)
        return known[1] if known else None

    def names(self, relay: bytes) -> bool:
        """Whether one of them names this relay."""
        return any(plan.place(relay) is not None for _, plan in self._known.values())

    def sweep(self, height: int, now: float, keep_s: float) -> None:
        """Forget versions that were replaced `keep_s` ago."""
        current = self.at(height).version
        for version in [version for version in self._known if version < current]:
            if now - self._over.setdefault(version, now) >= keep_s:
                del self._known[version], self._over[version]


class Algorithm3:
    """A relay that the new plan does not name any more takes its leave. `tell` until `is_done`, then disconnect.

    Its own routing goes on under the old plan; neighbours that went over to the new one take no claims from it.
    """

    def __init__(self, me: bytes, old: Plan, new: Plan, limits: MembershipLimits = MembershipLimits()) -> None:
        place = old.place(me)
        if place is None or new.place(me) is not None:
            raise Misuse(f"relay {me.hex()} does not leave with plan {new.version}")
        self._me, self._old, self._new, self._limits = me, old, new, limits
        self._neighbours = [name for node in old.neighbours(place[0].identifier) for name in node.names]
        self._acknowledged: set[bytes] = set()
        self._began: float | None = None

    def tell(self, now: float) -> list[Effect]:
        """Line 1: tell all relays of all neighbouring virtual nodes; those that have not answered, again."""
        self._began = now if self._began is None else self._began
        notice = _framed(NoticeKind.DETACH, self._me, self._old.version, self._new.version)
        sends = [Send(name.hex(), notice) for name in self._neighbours if name not in self._acknowledged]
        return [*sends, WakeAt(now + self._limits.again_s)]

    def acknowledged(self, notice: Notice, sender: bytes) -> None:
        if (notice.kind, notice.subject, notice.plan) == (NoticeKind.ACKNOWLEDGE, self._me, self._new.version):
            self._acknowledged.add(sender)

    def is_done(self, queues_empty: bool, now: float) -> bool:
        """Line 2, corrected: until then, lines 3 to 5, go on with the queues under the old plan."""
        if self._began is not None and now - self._began >= self._limits.hop_keep_s:
            return True
        return queues_empty and self._acknowledged.issuperset(self._neighbours)


class Algorithm4:
    """A relay that a new plan names gathers routing state before the plan takes effect (lines 2 and 5); so does one
    that was started again and has forgotten all.

    Lines 1, 3 and 4 follow from the plan: its queues are those of the neighbours that the plan gives it.
    """

    def __init__(self, me: bytes, plan: Plan, routing: Routing, limits: MembershipLimits = MembershipLimits()) -> None:
        self._me, self._plan, self._routing, self._limits = me, plan, routing, limits
        self._sources = (routing.node, *plan.neighbours(routing.node.identifier))
        self._told: set[bytes] = set()  # relays that told us all they have

    def ask(self, now: float) -> list[Effect]:
        """Tell neighbours, and those who will replicate us, that we are there; those that have not answered, again."""
        notice = _framed(NoticeKind.ATTACH, self._me, self._plan.version, self._plan.version)
        names = [name for node in self._sources for name in node.names if name not in (self._me, *self._told)]
        return [*(Send(name.hex(), notice) for name in names), WakeAt(now + self._limits.again_s)]

    def receive_state(self, content: bytes, sender: bytes, now: float) -> list[Send]:
        """The content of a STATE frame. Raises `Malformed`."""
        is_last, sends = self._routing.receive_state(content, sender, now)
        if is_last:
            self._told.add(sender)
        return sends

    @property
    def is_ready(self) -> bool:
        """Whether all but f relays of each neighbouring virtual node told all: f+1 honest ones at the least did."""
        return all(len(self._told.intersection(one.names)) >= len(one.names) - one.faults for one in self._sources[1:])


class Algorithm5:
    """What the neighbours of a relay do when it comes or goes."""

    def __init__(self, routing: Routing, versions: PlanVersions, limits: MembershipLimits = MembershipLimits()) -> None:
        self._routing, self._versions, self._limits = routing, versions, limits
        self._answered: dict[bytes, float] = {}  # newcomers, and when they were sent state
        self.leaving: dict[bytes, Notice] = {}  # relays, and what they said

    def receive(self, notice: Notice, sender: bytes, now: float) -> list[Send]:
        """A notice from `sender`. Raises `Refused` where the plan says otherwise."""
        if notice.kind is NoticeKind.ATTACH:
            return self._attach(notice, sender, now)
        if notice.kind is NoticeKind.DETACH:
            self._check_leaving(notice, sender)
            self.leaving[sender] = notice  # lines 2 and 3: the plan changed the scheme, and the queue empties itself
        return []

    def acknowledge(self, is_empty: Callable[[bytes], bool]) -> list[Send]:
        """Lines 4 and 5: acknowledge to those who leave, once all that was queued for them was received by them."""
        ready = [(relay, notice) for relay, notice in self.leaving.items() if is_empty(relay)]
        for relay, _ in ready:
            del self.leaving[relay]  # a repeated notice brings it back
        frames = [(relay, _framed(NoticeKind.ACKNOWLEDGE, relay, notice.plan, notice.plan)) for relay, notice in ready]
        return [Send(relay.hex(), frame) for relay, frame in frames]

    def _attach(self, notice: Notice, sender: bytes, now: float) -> list[Send]:
        """Lines 7 and 8: the plan makes the queue and the scheme; what is left is to tell the newcomer our tables."""
        plan = self._versions.get(notice.plan)
        place = plan.place(sender) if plan and notice.subject == sender else None
        if plan is None or place is None or not self._is_near(place[0], plan):
            raise Refused("notice: the plan does not name this newcomer", reason="not-in-plan")
        if now - self._answered.get(sender, float("-inf")) < self._limits.again_s:
            raise Refused("notice: it was answered just now", reason="too-many-requests")
        self._answered[sender] = now
        return self._routing.state_for(sender, place[0].identifier)

    def _check_leaving(self, notice: Notice, sender: bytes) -> None:
        old, new = self._versions.get(notice.plan - 1), self._versions.get(notice.plan)
        place = old.place(sender) if old and notice.subject == sender else None
        if old is None or new is None or place is None or new.place(sender) or not self._is_near(place[0], old):
            raise Refused("notice: by the plan it stays, or is no neighbour", reason="not-in-plan")

    def _is_near(self, node: VirtualNode, plan: Plan) -> bool:
        here = self._routing.node.identifier
        return node.identifier == here or here in {one.identifier for one in plan.neighbours(node.identifier)}


def _framed(kind: NoticeKind, relay: bytes, spoken: int, named: int) -> bytes:
    return OverlayFrame(FrameKind.NOTICE, spoken, Notice(kind, relay, named).encode()).encode()
