"""Trees of virtual nodes on the simulated network: relays with the real routing, principals with permits, liars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import sha256
from itertools import product
from random import Random
from types import MappingProxyType
from typing import Any

from makers import World, token

from tallystick.carriers.overlay.claim_store import RoutingLimits
from tallystick.carriers.overlay.claims import Claim, holders_key, sign_claim
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.membership import Algorithm5, PlanVersions
from tallystick.carriers.overlay.notices import Notice, NoticeKind, RoutingState
from tallystick.carriers.overlay.routing import Routing
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Refused
from tallystick.guards.route import MessageKind, RoutingGuard
from tallystick.guards.rules import GuardLimits
from tallystick.runtime.effects import Arrived, Effect, Event, Send, WakeAt
from tallystick.runtime.network import Link, Network
from tallystick.trust.permit import Operation, Permit, UndoOrder
from tallystick.trust.plan import Plan, Relay, VirtualNode

WORLD = World()
AUTHORITY = WORLD.authority
GUARD = GuardLimits(delay_max_s=60, skew_max_s=5, window_share_max=64)
OVERLAY = bytes(16)
REFRESH_S = 4.0


def name(*words: object) -> bytes:
    return sha256(repr(words).encode()).digest()[:16]


@cache
def relay(node: int, index: int) -> Relay:
    key, link = sha256(b"key %d %d" % (node, index)).digest(), sha256(b"link %d %d" % (node, index)).digest()
    place = f"relay-{node}-{index}.example:7000"
    return Relay(name("relay", node, index), key, link, place, f"operator {index}", f"host {index}")


def node_name(number: int) -> bytes:
    return name("node", number)


def tree(parents: Sequence[int], sizes: Sequence[int], version: int = 1) -> Plan:
    """Virtual nodes by the number of their parents; that of the first does not count."""
    nodes = []
    for number, (parent, size) in enumerate(zip(parents, sizes, strict=True)):
        above = node_name(parent) if number else b""
        nodes.append(VirtualNode(node_name(number), above, tuple(relay(number, index) for index in range(size))))
    return Plan(OVERLAY, version, tuple(nodes))


@cache
def line(nodes: int, size: int = 3, version: int = 1) -> Plan:
    return tree([number - 1 for number in range(nodes)], [size] * nodes, version)


# --- principals ---


@dataclass
class Claimant:
    """A permit, its holder, and what it signs."""

    who: str
    topic: str
    operation: Operation
    edge: bytes
    number: int = 0  # of the permit
    labels: tuple[bytes, ...] = ()

    @property
    def permit(self) -> Permit:
        identifier = name("permit", self.who, self.topic, self.operation, self.number)
        return _permit(self.who, self.topic, self.operation, identifier, self.labels)

    @property
    def key(self) -> SigningKey:
        return SigningKey.from_seed(sha256(self.who.encode()).digest())

    def claim(self, now: float = 0.0, edge: bytes | None = None) -> bytes:
        kind = MessageKind.SUBSCRIBE if self.operation is Operation.SUBSCRIBE else MessageKind.ADVERTISE
        return self._sign(kind, now, None, edge or self.edge)

    def undo(self, now: float = 0.0) -> bytes:
        kind = MessageKind.UNSUBSCRIBE if self.operation is Operation.SUBSCRIBE else MessageKind.UNADVERTISE
        return self._sign(kind, now, order_for(self.permit), self.edge)

    def _sign(self, kind: MessageKind, now: float, order: UndoOrder | None, edge: bytes) -> bytes:
        identifier = name("message", self.permit.identifier, kind, now, edge)
        return sign_claim(kind, edge, self.permit, self.key, identifier, int(now * 1000), order)


@cache
def _permit(who: str, topic: str, operation: Operation, identifier: bytes, labels: tuple[bytes, ...]) -> Permit:
    return WORLD.permit(who, topic, operation, identifier=identifier, labels=labels)


def order_for(permit: Permit) -> UndoOrder:
    values = (permit.instance, permit.identifier, permit.operation, permit.token, permit.tenant, permit.principal)
    return UndoOrder(*values, 0, permit.authority).sign(WORLD.authority_key)


def subscriber(who: str, edge: bytes, topic: str = "brakes", **options: Any) -> Claimant:
    return Claimant(who, topic, Operation.SUBSCRIBE, edge, **options)


def advertiser(who: str, edge: bytes, topic: str = "brakes", **options: Any) -> Claimant:
    return Claimant(who, topic, Operation.ADVERTISE, edge, **options)


# --- relays ---


@dataclass
class Ledger:
    """What all relays know at once: permits that ended."""

    ended: set[bytes] = field(default_factory=set)

    def is_ended(self, identifier: bytes) -> bool:
        return identifier in self.ended


def make_routing(
    me: bytes,
    plan: Plan,
    ledger: Ledger | None = None,
    limits: RoutingLimits = RoutingLimits(),
    guard: GuardLimits = GUARD,
    clear: frozenset[bytes] = frozenset(),
    tenants: Mapping[bytes, bytes] = MappingProxyType({}),
) -> Routing:
    keys = holders_key(lambda identifier: AUTHORITY if identifier == AUTHORITY.subject else None)
    judge = RoutingGuard(keys, frozenset(), guard)
    is_ended = (ledger or Ledger()).is_ended
    return Routing(me, plan, judge, is_ended, clear.__contains__, limits, lambda one: tenants.get(one, one))


class RelayRole:
    """Routing as a role: what comes goes to it, and from time to time it tells its neighbours all they are to know."""

    def __init__(self, routing: Routing, plan: Plan, me: bytes) -> None:
        self.routing, self.plan, self.me = routing, plan, me
        self.versions = PlanVersions(plan)
        self.neighbour = Algorithm5(routing, self.versions)

    def adopt(self, plan: Plan) -> Sequence[Effect]:
        self.plan = plan
        return self.routing.adopt(plan)

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if isinstance(event, Arrived):
            try:
                return self._take(OverlayFrame.decode(event.message), bytes.fromhex(event.sender), now)
            except Refused:
                return []
        told: list[Effect] = [*self.routing.sweep(now), WakeAt(now + REFRESH_S)]
        here = self.routing.node
        for node in (here, *self.plan.neighbours(here.identifier)):
            for other in node.relays:
                if other.identifier != self.me:
                    told += self.routing.state_for(other.identifier, node.identifier)
        return told

    def _take(self, frame: OverlayFrame, sender: bytes, now: float) -> Sequence[Effect]:
        match frame.kind:
            case FrameKind.ROUTE:
                return self.routing.receive(frame.content, sender, now)
            case FrameKind.STATE:
                return self.routing.receive_state(frame.content, sender, now)[1]
            case FrameKind.NOTICE:
                notice = Notice.decode(frame.content)
                if notice.kind is NoticeKind.REFUSE:
                    return self.routing.receive_refusal(notice, sender)
                return self.neighbour.receive(notice, sender, now)
        return []


class SilentRole:
    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        return []


class LyingRole:
    """Keeps every claim it hears, from its friends too, and for ever. It sends them anywhere: whole, spoilt, as state,
    without the orders that ended them, many times over; and it refuses whatever it is told."""

    def __init__(self, plan: Plan, me: bytes, heard: list[bytes], random: Random) -> None:
        self.plan, self.heard, self.random = plan, heard, random
        place = plan.place(me)
        assert place is not None
        nodes = (place[0], *plan.neighbours(place[0].identifier))
        self.others = [other.identifier.hex() for node in nodes for other in node.relays if other.identifier != me]

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if not isinstance(event, Arrived):
            return [*self._lies(15), WakeAt(now + 10 * self.random.random())]
        frame = OverlayFrame.decode(event.message)
        if frame.kind is not FrameKind.ROUTE:
            return []
        self.heard.append(frame.content)
        try:
            permit = Claim.decode(frame.content).identifier
        except Refused:  # a friend spoilt it
            return []
        if event.sender not in self.others:
            return []
        notice = Notice(NoticeKind.REFUSE, permit, self.plan.version)
        return [Send(event.sender, OverlayFrame(FrameKind.NOTICE, self.plan.version, notice.encode()).encode())]

    def _lies(self, count: int) -> Iterator[Send]:
        for _ in range(count if self.heard else 0):
            claim = bytearray(self.random.choice(self.heard))
            if self.random.random() < 0.3:
                claim[self.random.randrange(len(claim))] ^= 1
            kind, content = FrameKind.ROUTE, bytes(claim)
            if self.random.random() < 0.3:
                kind, content = FrameKind.STATE, RoutingState(True, (bytes(claim),)).encode()
            yield Send(self.random.choice(self.others), OverlayFrame(kind, self.plan.version, content).encode())


# --- overlays ---


class Overlay:
    """A network of one plan, with the last f relays of each virtual node in `bad` hands."""

    def __init__(self, plan: Plan, seed: int, bad: str = "", link: Link = Link(), **options: Any) -> None:
        self.plan, self.network, self.ledger = plan, Network(seed, link), Ledger()
        self.honest: dict[bytes, list[RelayRole]] = {}
        self._random, self._heard = Random(seed), []  # type: ignore[var-annotated]
        for node in plan.nodes:
            self.honest[node.identifier] = []
            for index, one in enumerate(node.relays):
                is_bad = bool(bad) and index >= len(node.relays) - node.faults
                self.network.add(
                    one.identifier.hex(), self._maker(one.identifier, node, bad if is_bad else "", options)
                )

    def _maker(
        self, me: bytes, node: VirtualNode, bad: str, options: dict[str, Any]
    ) -> Callable[[Mapping[str, bytes]], Any]:
        def make(stored: Mapping[str, bytes]) -> Any:
            if bad:
                lying = LyingRole(self.plan, me, self._heard, Random(self._random.random()))
                return SilentRole() if bad == "silent" else lying
            role = RelayRole(make_routing(me, self.plan, self.ledger, **options), self.plan, me)
            self.honest[node.identifier].append(role)
            return role

        return make

    def say(self, at: float, one: Claimant, claim: Callable[[float], bytes], *edges: bytes) -> None:
        """Let a principal tell the relays of its edge, or of these, and repeat itself."""
        self.network.clock.at(at, lambda: self._say(at, one, claim(at), edges or (one.edge,)))

    def _say(self, at: float, one: Claimant, data: bytes, edges: Sequence[bytes]) -> None:
        frame = OverlayFrame(FrameKind.ROUTE, self.plan.version, data).encode()
        relays = [other for edge in edges for other in self.plan.node(edge).relays]
        for other, delay in product(relays, (0, 1, 3)):
            send = partial(self.network.send, one.permit.principal.hex(), other.identifier.hex(), frame)
            self.network.clock.at(at + delay, send)

    def reached(self, one: Claimant, header: Any = None) -> dict[bytes, set[bytes]]:
        """Where an advertiser's publications go by every honest relay: virtual nodes, and who is served there."""
        found: dict[bytes, set[bytes]] = {}
        waiting = [(one.edge, one.edge)]
        while waiting:
            here, came_from = waiting.pop()
            source = None if came_from == here else came_from
            answers = {role.routing.branches([token(one.topic)], source, header) for role in self.honest[here]}
            assert len(answers) == 1, "honest relays of one virtual node disagree"
            assert here not in found, "it goes in a circle"
            nodes, subscribers = answers.pop()
            found[here] = set(subscribers)
            waiting += [(node, here) for node in nodes]
        return found

    def expected(self, one: Claimant, live: Sequence[Claimant]) -> dict[bytes, set[bytes]]:
        found: dict[bytes, set[bytes]] = {one.edge: set()}
        for other in live:
            if (other.topic, other.operation) == (one.topic, Operation.SUBSCRIBE):
                for node in self.plan.path(one.edge, other.edge):
                    found.setdefault(node.identifier, set())
                found[other.edge].add(other.permit.principal)
        return found
