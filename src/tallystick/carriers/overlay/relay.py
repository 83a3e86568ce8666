"""A relay: one role made of six, each of which keeps its own promise. They share the plan, the routes and the links.

    ROUTE, NOTICE, STATE        who is where, and who comes and goes        routing.py, membership.py
    ORDER, TAKE_OVER, FETCH,
    BRING                       a parcel's place, at publishers' edges      ordering.py
    CONTENT, ASK, ACK           parcels on their way                        content_forwarding.py
    SHARES, PULL                lane keys on their way, or out of band      secret_forwarding.py
    ANCHOR                      what the ledger is to anchor                anchoring.py
    CATCH_UP                    what is anchored and not here               catching_up.py, proved.py

What is ordered here is offered to the way; a topic that got a branch has its lane keys served to it; a new version of
the plan is adopted, or, where it does not name this relay any more, left by Algorithm 3. A relay that begins, or
begins again, asks for routing state by Algorithm 4. What is refused is counted, never raised: a driver ends with its
role.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tallystick.carriers.overlay.accuse import Accusations
from tallystick.carriers.overlay.anchoring import Anchoring
from tallystick.carriers.overlay.catching_up import CatchingUp, CatchUpLimits
from tallystick.carriers.overlay.claim_store import RoutingLimits
from tallystick.carriers.overlay.content_forwarding import ContentForwarding, ContentLimits
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.membership import Algorithm3, Algorithm4, Algorithm5, MembershipLimits, PlanVersions
from tallystick.carriers.overlay.notices import Notice, NoticeKind
from tallystick.carriers.overlay.ordering import Ordering
from tallystick.carriers.overlay.places import Bearings, Counted, OrderingLimits
from tallystick.carriers.overlay.proved import ParcelShelf
from tallystick.carriers.overlay.relayed_keys import ForwardingLimits
from tallystick.carriers.overlay.routing import Routing
from tallystick.carriers.overlay.secret_forwarding import SecretForwarding
from tallystick.carriers.storage import Place
from tallystick.crypto.signatures import Signer, VerifyKey
from tallystick.errors import Misuse, Refused
from tallystick.guards.route import RoutingGuard
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, WakeAt
from tallystick.trust.plan import Plan

_CONTENT = {FrameKind.CONTENT, FrameKind.ASK, FrameKind.ACK}
_ORDERS = {FrameKind.ORDER, FrameKind.TAKE_OVER, FrameKind.FETCH, FrameKind.BRING}


class RelayLedger(Bearings, Protocol):
    """What a relay knows of the ledger, as of its newest block."""

    def plans(self) -> Sequence[tuple[int, Plan]]: ...  # that matter now, with their first heights, oldest first

    def key_of(self, principal: bytes) -> VerifyKey | None: ...

    def may_publish(self, publisher: bytes, tokens: Sequence[bytes]) -> bool: ...

    def may_pull(self, subscriber: bytes, permit: bytes, tokens: Sequence[bytes], now: float) -> bool: ...

    def check_front(self, parcel: Parcel) -> None: ...

    def is_ended(self, permit: bytes) -> bool: ...

    def share_of(self, principal: bytes) -> bytes: ...

    def is_clear(self, token: bytes) -> bool: ...


class RelayName(NamedTuple):
    """Who a relay is, where, and the key by which it signs."""

    relay: bytes
    instance: bytes
    signer: Signer


@dataclass(frozen=True)
class RelayLimits:
    secrets: ForwardingLimits = field(default_factory=ForwardingLimits)
    content: ContentLimits = field(default_factory=ContentLimits)
    ordering: OrderingLimits = field(default_factory=OrderingLimits)
    routing: RoutingLimits = field(default_factory=RoutingLimits)
    membership: MembershipLimits = field(default_factory=MembershipLimits)
    catching_up: CatchUpLimits = field(default_factory=CatchUpLimits)
    refresh_s: float = 5.0  # between two times that a neighbour is told what it is to know


class Departed(NamedTuple):
    """This relay has left, by the version of the plan that does not name it: its links may be closed."""

    plan: int


class OverlayRelay:
    """The role of one relay."""

    def __init__(
        self,
        name: RelayName,
        ledger: RelayLedger,
        shelf: ParcelShelf,
        guard: RoutingGuard,
        entropy: Callable[[int], bytes],
        stored: Mapping[str, bytes],
        started: float,
        limits: RelayLimits = RelayLimits(),
    ) -> None:
        """`stored` is what it stored in earlier lives. Raises `Misuse` where no plan names this relay."""
        self._name, self._ledger, self._limits = name, ledger, limits
        known = ledger.plans()
        if not known:
            raise Misuse("relay: the ledger has no plan of this overlay", hint="tally overlay plan submit brings one")
        (first, plan), *later = known
        self._versions = PlanVersions(plan, first)
        for height, newer in later:
            self._versions.announce(newer, height)
        now = self._versions.at(ledger.block()[0])
        coming = (one for _, one in later if one.version > now.version and one.place(name.relay) is not None)
        self._plan = now if now.place(name.relay) is not None else next(coming, now)
        knows = ledger.is_ended, ledger.is_clear, limits.routing, ledger.share_of
        self.routing = Routing(name.relay, self._plan, guard, *knows)
        around = _Around(ledger, self._versions, self.routing)
        self.secrets = SecretForwarding(name.relay, name.signer, around, entropy, started, limits.secrets)
        self.content = ContentForwarding(name.relay, name.instance, around, limits.content)
        self.ordering = Ordering(*name, ledger, stored, limits.ordering, started)
        self.anchoring = Anchoring(*name, ledger, shelf.root_at)
        who = self._versions.names, lambda: self._plan.version
        self.catching_up = CatchingUp(name.relay, shelf, *who, limits.catching_up)
        self._coming: Algorithm4 | None = Algorithm4(name.relay, self._plan, self.routing, limits.membership)
        self._beside = Algorithm5(self.routing, self._versions, limits.membership)
        self._leaving: Algorithm3 | None = None
        self._next_refresh, self._accusations = started, Accusations()
        self._turn = 0
        self.dropped: Counter[str] = Counter()

    def receive(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, Arrived):
            try:
                effects = self._take(OverlayFrame.decode(event.message), bytes.fromhex(event.sender), now)
            except Refused as error:
                self.dropped[error.reason] += 1
                return []
        else:
            effects = self._wake(now)
        return self._settle(effects, now)

    def propose(self, place: Place, parcel: Parcel, now: float) -> list[Effect]:
        """A new parcel that passed the publish guard here. Raises `Refused` where too many wait."""
        return self._settle(self.ordering.propose(place, parcel, now), now)

    # --- what arrives ---

    def _take(self, frame: OverlayFrame, sender: bytes, now: float) -> list[Effect]:
        if frame.kind in _CONTENT:
            return self.content.take(frame, sender, now)
        if frame.kind in _ORDERS:
            return self.ordering.take(frame, sender, now)
        match frame.kind:
            case FrameKind.SHARES:
                return self.secrets.take(frame, sender, now)
            case FrameKind.ANCHOR:
                return self.anchoring.take(frame, sender, now)
            case FrameKind.CATCH_UP:
                return self.catching_up.take(frame, sender, now)
            case FrameKind.PULL:
                return self.secrets.pull(frame, sender, now)
            case FrameKind.ROUTE:
                return [*self.routing.receive(frame.content, sender, now)]
            case FrameKind.STATE if self._coming is not None:
                return [*self._coming.receive_state(frame.content, sender, now)]
            case FrameKind.STATE:
                return [*self.routing.receive_state(frame.content, sender, now)[1]]
        notice = Notice.decode(frame.content)
        if notice.kind is NoticeKind.REFUSE:
            return [*self.routing.receive_refusal(notice, sender)]
        if notice.kind is NoticeKind.ACKNOWLEDGE and self._leaving is not None:
            self._leaving.acknowledged(notice, sender)
            return []
        return [*self._beside.receive(notice, sender, now)]

    def _settle(self, effects: list[Effect], now: float) -> list[Effect]:
        """What one part does concerns another."""
        for effect in list(effects):
            if isinstance(effect, Deliver) and isinstance(effect.value, Counted):
                try:
                    effects += self.content.offer(*effect.value, now)
                except Refused as error:  # a publisher whose blocks are not its body's
                    self.dropped[error.reason] += 1
        for token in sorted(self.routing.grown()):
            effects += self.secrets.serve(token)
        if self._beside.leaving:
            effects += self._beside.acknowledge(lambda relay: not self.content.owes(relay))
        return self._accusations.sift(effects, self._plan.version)

    # --- time ---

    def _wake(self, now: float) -> list[Effect]:
        effects = [*self.secrets.wake(now), *self.content.wake(now), *self.ordering.wake(now)]
        effects += self.catching_up.wake(now)
        self._follow(now, effects)
        if now >= self._next_refresh:
            self._next_refresh = now + self._limits.refresh_s
            effects += [WakeAt(self._next_refresh), *self.routing.sweep(now), *self._refresh()]
            if self._coming is not None:
                effects += self._coming.ask(now)
                self._coming = None if self._coming.is_ready else self._coming
            if self._leaving is not None:
                effects += self._leave(self._leaving, now)
        return effects

    def _refresh(self) -> list[Effect]:
        """Tell one neighbour after the other all that it is to know: what was lost is mended so."""
        here = self.routing.node
        nodes = (here, *self._plan.neighbours(here.identifier))
        others = [(relay.identifier, node.identifier) for node in nodes for relay in node.relays]
        relay, node = others[self._turn % len(others)]
        self._turn += 1
        return [] if relay == self._name.relay else [*self.routing.state_for(relay, node)]

    def _follow(self, now: float, effects: list[Effect]) -> None:
        """Go by the plan that is in force."""
        height = self._ledger.block()[0]
        for first, plan in self._ledger.plans():
            if self._versions.get(plan.version) is None and plan.version > self._plan.version:
                self._versions.announce(plan, first)
        newest = self._versions.at(height)
        if newest.version > self._plan.version and self._leaving is None:
            if newest.place(self._name.relay) is None:
                self._leaving = Algorithm3(self._name.relay, self._plan, newest, self._limits.membership)
                self._next_refresh = now
            else:
                self._plan = newest
                effects += self.routing.adopt(newest)
        self._versions.sweep(height, now, self._limits.secrets.keep_s)

    def _leave(self, leaving: Algorithm3, now: float) -> list[Effect]:
        neighbours = self._plan.neighbours(self.routing.node.identifier)
        if not leaving.is_done(not any(self.content.is_owed(node) for node in neighbours), now):
            return leaving.tell(now)
        return [Deliver(Departed(self._plan.version + 1))]


class _Around:
    """What secrets and parcels on their way need to know: of the ledger, of plans and of routes."""

    def __init__(self, ledger: RelayLedger, versions: PlanVersions, routing: Routing) -> None:
        self.plan, self.branches, self.wanting = versions.get, routing.branches, routing.branches
        self.key_of, self.check_front, self.share_of = ledger.key_of, ledger.check_front, ledger.share_of
        self.may_publish, self.may_pull, self.has_ended = ledger.may_publish, ledger.may_pull, routing.has_ended
