"""Whole relays in a simulated network: claims, orders, parcels and lane keys from end to end, and liars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random

from carrying_world import CAR
from makers import INSTANCE, token
from overlays import AUTHORITY, GUARD, Claimant, advertiser, subscriber
from sharing_world import LINK, NOW, STARTED, chain, key_of, seeded
from shelves import MemoryShelf

from tallystick.carriers.overlay.claims import holders_key
from tallystick.carriers.overlay.content_forwarding import CarriedParcel, ContentLimits
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.places import Counted, Lease, Unjudged
from tallystick.carriers.overlay.relay import Departed, OverlayRelay, RelayLimits, RelayName
from tallystick.carriers.overlay.share_ends import Given, OpenedShares, ShareReceiver, give_shares
from tallystick.carriers.storage import Place
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Malformed, Refused
from tallystick.guards.route import RoutingGuard
from tallystick.parcel.header import SIGNATURE_CONTEXT, Header
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, Role, Send, Woken
from tallystick.runtime.network import Link, Network
from tallystick.trust.plan import Plan

TOKEN = token("brakes")
HERE = Place(TOKEN, 0)
LIMITS = RelayLimits(content=ContentLimits(hop_keep_s=60.0), refresh_s=2.0)


@dataclass
class SimLedger:
    """What all relays know of the ledger."""

    known: list[tuple[int, Plan]]
    lease_now: Lease
    keys: dict[bytes, VerifyKey]
    height: int = 1
    ended: set[bytes] = field(default_factory=set)
    permits_end: float = float("inf")

    def plans(self) -> Sequence[tuple[int, Plan]]:
        return self.known

    def newest_plan(self) -> Plan:
        return max((one for one in self.known if one[0] <= self.height), key=lambda one: one[0])[1]

    def plan(self, version: int) -> Plan | None:
        return next((plan for _, plan in self.known if plan.version == version), None)

    def lease(self, place: Place) -> Lease | None:
        return self.lease_now if place == HERE else None

    def anchored(self, place: Place) -> int:
        return 0

    kept = anchored

    def block(self) -> tuple[int, int]:
        return self.height, 1

    def is_next(self, place: Place, header: Header) -> bool:
        return header.sequence == 0

    def key_of(self, principal: bytes) -> VerifyKey | None:
        return self.keys.get(principal)

    def may_publish(self, publisher: bytes, tokens: Sequence[bytes]) -> bool:
        return publisher in self.keys

    def share_of(self, principal: bytes) -> bytes:
        return principal

    def may_pull(self, subscriber: bytes, permit: bytes, tokens: Sequence[bytes], now: float) -> bool:
        return subscriber in self.keys and now < self.permits_end

    def check_front(self, parcel: Parcel) -> None:
        CAR.public.verify(SIGNATURE_CONTEXT, parcel.signature, parcel.header.encoded)

    def is_ended(self, permit: bytes) -> bool:
        return permit in self.ended

    def is_clear(self, token: bytes) -> bool:
        return False


class HonestRelay:
    """The real role; its guards find good what its publisher signed."""

    def __init__(self, name: bytes, ledger: SimLedger, seed: int, stored: Mapping[str, bytes], started: float) -> None:
        keys = holders_key(lambda identifier: AUTHORITY if identifier == AUTHORITY.subject else None)
        who = RelayName(name, INSTANCE, key_of(name))
        random = Random(f"{seed}/{name.hex()}")
        guard = RoutingGuard(keys, frozenset(), GUARD)
        self.name, self.shelf, self._check = name, MemoryShelf(), ledger.check_front
        self.relay = OverlayRelay(who, ledger, self.shelf, guard, random.randbytes, stored, started, LIMITS)

    def receive(self, event: Event, now: float) -> list[Effect]:
        return self.judged(self.relay.receive(event, now), now)

    def judged(self, effects: list[Effect], now: float) -> list[Effect]:
        for effect in list(effects):
            if isinstance(effect, Deliver) and isinstance(effect.value, Unjudged):
                with suppress(Refused):
                    self._check(effect.value.parcel)
                    effect.value.parcel.check_body()
                    effects += self.relay.propose(effect.value.place, effect.value.parcel, now)
        return effects


class LyingRelay(HonestRelay):
    """Each thing that it should send it drops, delays by sending something older, spoils, or sends."""

    def __init__(self, name: bytes, ledger: SimLedger, seed: int, stored: Mapping[str, bytes], started: float) -> None:
        super().__init__(name, ledger, seed, stored, started)
        self._random, self._sent = Random(f"lies {seed}/{name.hex()}"), list[Send]()

    def judged(self, effects: list[Effect], now: float) -> list[Effect]:
        found: list[Effect] = []
        for effect in super().judged(effects, now):
            found += self._lie(effect) if isinstance(effect, Send) else [effect]
        return found

    def _lie(self, send: Send) -> list[Effect]:
        self._sent.append(send)
        match self._random.randrange(5):
            case 0:
                return []
            case 1:
                return [send, self._random.choice(self._sent)]
            case 2:
                data = bytearray(send.message)
                data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
                return [Send(send.to, bytes(data))]
        return [send]


class Reader:
    """A subscriber: it claims its place at its edge, now and then again, and opens."""

    def __init__(self, claimant: Claimant, plans: Mapping[int, Plan], keys: Mapping[bytes, VerifyKey]) -> None:
        principal = claimant.permit.principal
        self.claimant = claimant
        self.receiver = ShareReceiver(principal, claimant.key, plans.get, claimant.edge, keys.get, LIMITS.secrets)

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if isinstance(event, Arrived):
            try:
                return self.receiver.take(OverlayFrame.decode(event.message), bytes.fromhex(event.sender), now)
            except Malformed:
                return []  # a liar spoilt it
        return self.receiver.wake(now)


@dataclass
class RelayWorld:
    """A chain of virtual nodes: the publisher at its beginning, a subscriber at its end; `bad` by (number, index)."""

    sizes: tuple[int, ...]
    seed: int = 0
    bad: frozenset[tuple[int, int]] = frozenset()
    link: Link = LINK

    def __post_init__(self) -> None:
        plan = chain(self.sizes)
        self.publisher = advertiser("car", plan.nodes[0].identifier)
        self.reader = subscriber("reader", plan.nodes[-1].identifier)
        self.plans = {1: plan}
        people = (self.publisher, self.reader)
        keys = {one.permit.principal: one.key.public for one in people}
        self.ledger = SimLedger([(0, plan)], Lease(plan.nodes[0].relays[0].identifier, 1), keys)
        self.network = Network(self.seed, self.link)
        self.network.clock.run(NOW)
        for number, node in enumerate(plan.nodes, start=1):
            for index, relay in enumerate(node.relays, start=1):
                self.add(relay.identifier, (number, index) in self.bad)
        name = self.reader.permit.principal.hex()
        self.network.add(name, lambda _: Reader(self.reader, self.plans, keys))
        self.network.add(self.publisher.permit.principal.hex(), lambda _: Reader(self.publisher, self.plans, keys))

    def add(self, name: bytes, is_bad: bool = False, started: float = STARTED) -> None:
        self.network.add(name.hex(), partial(self._make, name, is_bad, started))

    def _make(self, name: bytes, is_bad: bool, started: float, stored: Mapping[str, bytes]) -> Role:
        return (LyingRelay if is_bad else HonestRelay)(name, self.ledger, self.seed, stored, started)

    def role(self, name: bytes) -> HonestRelay:
        role = self.network.role(name.hex())
        assert isinstance(role, HonestRelay)
        return role

    @property
    def now(self) -> float:
        return self.network.clock.now()

    def claim(self, claimant: Claimant) -> None:
        """It tells every relay of its edge."""
        content = claimant.claim(self.now)
        frame = OverlayFrame(FrameKind.ROUTE, max(self.plans), content).encode()
        for relay in self.plans[max(self.plans)].node(claimant.edge).relays:
            self.network.send(claimant.permit.principal.hex(), relay.identifier.hex(), frame)

    def give(self, number: int = 0) -> Given:
        """A new lane key."""
        plan = self.ledger.newest_plan()
        who = self.publisher.permit.principal
        fixed = plan, self.publisher.edge, who, seeded("lock", number), int(self.now * 1000), (TOKEN,)
        given = give_shares(*fixed, seeded("entropy", self.seed, number), self.publisher.key)
        for effect in given.effects:
            assert isinstance(effect, Send)
            self.network.send(who.hex(), effect.to, effect.message)
        return given

    def publish(self, parcels: Sequence[Parcel]) -> None:
        """Every relay of the publisher's edge gets them, in an order of its own, and its guards find them good."""
        random = Random(self.seed)
        for relay in self.ledger.newest_plan().node(self.publisher.edge).relays:
            role = self.role(relay.identifier)
            for parcel in random.sample(list(parcels), len(parcels)):
                self._carry(role.name, role.judged(role.relay.propose(HERE, parcel, self.now), self.now))

    def block(self) -> None:
        """The ledger moved, and every relay sees it."""
        self.ledger.height += 1
        for node in {node.identifier: node for plan in self.plans.values() for node in plan.nodes}.values():
            for plan in self.plans.values():
                for relay in plan.node(node.identifier).relays:
                    if relay.identifier.hex() in self.network._nodes and self.network.alive(relay.identifier.hex()):
                        role = self.role(relay.identifier)
                        self._carry(role.name, role.receive(Woken(), self.now))

    def _carry(self, name: bytes, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self.network._carry_out(name.hex(), effect)

    def run(self, seconds: float) -> None:
        self.network.run(self.now + seconds)

    def opened(self) -> set[bytes]:
        return {value.secret for _, _, value in self.network.delivered if isinstance(value, OpenedShares)}

    def carried(self, name: bytes) -> list[tuple[int, bytes]]:
        """What a relay has for its subscribers."""
        told = [value for _, who, value in self.network.delivered if who == name.hex()]
        return sorted((one.promise.offset, one.parcel.hash) for one in told if isinstance(one, CarriedParcel))

    def counted(self, name: bytes) -> list[tuple[int, bytes]]:
        told = [value for _, who, value in self.network.delivered if who == name.hex()]
        return [(one.promise.offset, one.parcel.hash) for one in told if isinstance(one, Counted)]

    def departed(self) -> set[str]:
        return {who for _, who, value in self.network.delivered if isinstance(value, Departed)}
