"""An overlay in a simulated network as far as secrets go: a chain of virtual nodes, a publisher at its beginning, a
subscriber at its end and one without a right, and liars of every kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from hashlib import sha256
from random import Random

from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.relayed_keys import Evidence, ForwardingLimits, SharesMessage
from tallystick.carriers.overlay.secret_forwarding import SecretForwarding
from tallystick.carriers.overlay.share_ends import Given, OpenedShares, ShareReceiver, give_shares
from tallystick.carriers.overlay.surroundings import Branches
from tallystick.crypto.signatures import SigningKey, VerifyKey
from tallystick.errors import Malformed, Refused
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, Role, Send, WakeAt
from tallystick.runtime.network import Link, Network
from tallystick.trust.plan import Plan, Relay, VirtualNode
from tallystick.trust.shares import NO_LINEAGE, Complaint, Origin, ScalarShare, ShareList, ShareSet

TOKEN = b"t" * 16
STARTED, NOW = 1_000.0, 1_100.0
LIMITS = ForwardingLimits(hop_wait_s=0.5)
LINK = Link(0.001, 0.02)
PERMIT = b"subscriber's one"
PUBLISHER, SUBSCRIBER, STRANGER = (name * 16 for name in (b"P", b"S", b"X"))


def seeded(*words: object) -> bytes:
    return sha256(repr(words).encode()).digest()


@cache
def key_of(name: bytes) -> SigningKey:
    return SigningKey.from_seed(seeded("key", name))


def relay_name(node: int, index: int) -> bytes:
    return bytes([node, index]) * 8


@cache
def chain(sizes: tuple[int, ...], version: int = 1) -> Plan:
    nodes = []
    for number, size in enumerate(sizes, start=1):
        relays = tuple(
            Relay(
                relay_name(number, index),
                key_of(relay_name(number, index)).public.raw,
                key_of(b"link" + relay_name(number, index)).public.raw,
                f"10.0.{number}.{index}:1",
                f"operator {index}",
                f"host {index}",
            )
            for index in range(1, size + 1)
        )
        parent = bytes([number - 1]) * 16 if number > 1 else b""
        nodes.append(VirtualNode(bytes([number]) * 16, parent, relays))
    return Plan(b"o" * 16, version, tuple(nodes))


@dataclass
class Around:
    """Routes of a chain: everything goes towards its end, where one client has a permit."""

    plans: dict[int, Plan]
    node: bytes
    subscribers: tuple[bytes, ...] = ()
    publishers: tuple[bytes, ...] = (PUBLISHER,)
    ended: set[bytes] = field(default_factory=set)  # permits
    permitted: tuple[bytes, ...] = (TOKEN,)  # topics of the subscriber's permit
    tenants: dict[bytes, bytes] = field(default_factory=dict)  # of publishers; of others their own name

    def plan(self, version: int) -> Plan | None:
        return self.plans.get(version)

    def key_of(self, principal: bytes) -> VerifyKey | None:
        return key_of(principal).public

    def branches(self, tokens: Sequence[bytes], came_from: bytes | None) -> Branches:
        nodes = self.plans[max(self.plans)].neighbours(self.node)
        return Branches(tuple(one.identifier for one in nodes if one.identifier > self.node), self.subscribers)

    def may_publish(self, publisher: bytes, tokens: Sequence[bytes]) -> bool:
        return publisher in self.publishers

    def share_of(self, principal: bytes) -> bytes:
        return self.tenants.get(principal, principal)

    def has_ended(self, permit: bytes) -> bool:
        return permit in self.ended

    def may_pull(self, subscriber: bytes, permit: bytes, tokens: Sequence[bytes], now: float) -> bool:
        return (subscriber, permit) == (SUBSCRIBER, PERMIT) and bool(set(tokens) & set(self.permitted))


Lie = Callable[["Liar", Send, float], list[Effect]]


class Honest:
    """A relay, as far as shares go."""

    def __init__(self, name: bytes, around: Around, seed: int, limits: ForwardingLimits = LIMITS) -> None:
        self.name, self.around = name, around
        random = Random(f"{seed}/{name.hex()}")
        self.forwarding = SecretForwarding(name, key_of(name), around, random.randbytes, STARTED, limits)

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if isinstance(event, Arrived):
            frame, sender = OverlayFrame.decode(event.message), bytes.fromhex(event.sender)
            pulled = frame.kind is FrameKind.PULL
            return self.pulled(frame, sender, now) if pulled else self.forwarding.take(frame, sender, now)
        return self.forwarding.wake(now)

    def pulled(self, frame: OverlayFrame, sender: bytes, now: float) -> Sequence[Effect]:
        """As a relay does it."""
        try:
            return self.forwarding.pull(frame, sender, now)
        except Refused as error:
            self.forwarding.dropped[error.reason] += 1
            return []


class Liar(Honest):
    """A relay that does what an honest one would, and then something else with what it would send."""

    def __init__(self, name: bytes, around: Around, seed: int, lies: Sequence[Lie]) -> None:
        super().__init__(name, around, seed)
        self.random, self.lies = Random(f"liar/{seed}/{name.hex()}"), lies
        self.saw: list[tuple[str, bytes]] = []
        self._later: list[tuple[float, Send]] = []

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        effects: list[Effect] = [send for time, send in self._later if time <= now]
        self._later = [one for one in self._later if one[0] > now]
        if isinstance(event, Arrived):
            self.saw.append((event.sender, event.message))
        for effect in super().receive(event, now):
            if isinstance(effect, Send):
                effects += self.random.choice(self.lies)(self, effect, now)
            elif not isinstance(effect, Deliver):
                effects.append(effect)
        return effects

    def postpone(self, send: Send, time: float) -> WakeAt:
        self._later.append((time, send))
        return WakeAt(time)

    def sign_shares(self, send: Send, change: Callable[[ShareSet, ShareList], tuple[ShareSet, ShareList]]) -> Send:
        """The same frame with other shares in it, signed."""
        frame = OverlayFrame.decode(send.message)
        message = SharesMessage.decode(frame)
        if message.shares is None or message.listed is None:
            return send
        shares, listed = change(ShareSet.decode(message.shares), ShareList.decode(message.listed))
        key = key_of(self.name)
        signed = shares.sign(key)
        mine = replace(listed, set_hash=signed.hash).sign(key)
        told = message._replace(shares=signed.encode(), listed=mine.encode())
        return Send(send.to, told.frame(frame.plan))


def silent(liar: Liar, send: Send, now: float) -> list[Effect]:
    return []


def sometimes(liar: Liar, send: Send, now: float) -> list[Effect]:
    return [send] if liar.random.random() < 0.5 else []


def late(liar: Liar, send: Send, now: float) -> list[Effect]:
    return [liar.postpone(send, now + liar.random.uniform(0, 3))]


def twice(liar: Liar, send: Send, now: float) -> list[Effect]:
    return [send, liar.postpone(send, now + liar.random.uniform(0, 3))]


def false_shares(liar: Liar, send: Send, now: float) -> list[Effect]:
    def change(shares: ShareSet, listed: ShareList) -> tuple[ShareSet, ShareList]:
        wrong = [ScalarShare(one.value + liar.random.choice((0, 1)), one.blind).encode() for one in listed.shares]
        return shares, replace(listed, encoded=tuple(wrong))

    return [liar.sign_shares(send, change)]


def fewer_lineages(liar: Liar, send: Send, now: float) -> list[Effect]:
    """Another set for every receiver: of what it holds some, drawn anew."""

    def change(shares: ShareSet, listed: ShareList) -> tuple[ShareSet, ShareList]:
        kept = [at for at in range(len(shares.lineages)) if liar.random.random() < 0.6]
        lineages, encoded = [shares.lineages[at] for at in kept], [listed.encoded[at] for at in kept]
        return replace(shares, lineages=tuple(lineages)), replace(listed, encoded=tuple(encoded))

    return [liar.sign_shares(send, change)]


def two_sets(liar: Liar, send: Send, now: float) -> list[Effect]:
    """What it should, and then all but one lineage."""

    def change(shares: ShareSet, listed: ShareList) -> tuple[ShareSet, ShareList]:
        return replace(shares, lineages=shares.lineages[1:]), replace(listed, encoded=listed.encoded[1:])

    return [send, liar.sign_shares(send, change)]


def garbage(liar: Liar, send: Send, now: float) -> list[Effect]:
    data = bytearray(send.message)
    data[liar.random.randrange(len(data))] ^= 1 << liar.random.randrange(8)
    try:
        frame = OverlayFrame.decode(bytes(data))
    except Malformed:  # the driver drops it
        return []
    return [Send(send.to, frame.encode())]


def false_alarms(liar: Liar, send: Send, now: float) -> list[Effect]:
    """Complain about every attempt at once, to one relay of many."""
    frame = OverlayFrame.decode(send.message)
    origin = Origin.decode(SharesMessage.decode(frame).origin)
    plan = liar.around.plans[origin.plan]
    node, index = plan.place(liar.name) or (plan.nodes[0], 1)
    what = origin.lane_key, origin.plan, liar.random.randrange(4), node.identifier, index, NO_LINEAGE, ()
    complaint = Complaint(*what).sign(key_of(liar.name)).encode()
    told = SharesMessage.decode(frame)._replace(complaint=complaint, shares=None, listed=None)
    return [Send(send.to, told.frame(frame.plan)), send]


def early(liar: Liar, send: Send, now: float) -> list[Effect]:
    """Tell half of the receivers at once and the others never: it ends the waits of some before honest sets come."""
    return [send] if int(send.to[:4], 16) % 2 else []


LIES: dict[str, Lie] = {
    "silent": silent,
    "sometimes": sometimes,
    "late": late,
    "twice": twice,
    "false shares": false_shares,
    "fewer lineages": fewer_lineages,
    "two sets": two_sets,
    "garbage": garbage,
    "false alarms": false_alarms,
    "early": early,
}


class Client:
    """A subscriber with a live permit, or without."""

    def __init__(self, name: bytes, plans: dict[int, Plan], edge: bytes, limits: ForwardingLimits = LIMITS) -> None:
        self.receiver = ShareReceiver(name, key_of(name), plans.get, edge, lambda one: key_of(one).public, limits)

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if isinstance(event, Arrived):
            return self.receiver.take(OverlayFrame.decode(event.message), bytes.fromhex(event.sender), now)
        return self.receiver.wake(now)


class Mute:
    """A publisher that has said what it had to say."""

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        return []


@dataclass
class World:
    """One lane key through a chain of virtual nodes of these sizes; `lies` by (virtual node, index)."""

    sizes: tuple[int, ...]
    seed: int = 0
    lies: dict[tuple[int, int], Sequence[Lie]] = field(default_factory=dict)
    link: Link = LINK
    limits: ForwardingLimits = LIMITS
    make_network: type[Network] = Network

    def __post_init__(self) -> None:
        plan = chain(self.sizes)
        self.plans, self.liars = {1: plan}, list[Liar]()
        self.network = self.make_network(self.seed, self.link)
        self.network.clock.run(NOW)
        for number, node in enumerate(plan.nodes, start=1):
            subscribers = (SUBSCRIBER,) if number == len(plan.nodes) else ()
            for index, relay in enumerate(node.relays, start=1):
                around = Around(self.plans, node.identifier, subscribers)
                self._add(relay.identifier, around, self.lies.get((number, index)))
        edge = plan.nodes[-1].identifier
        for name in (SUBSCRIBER, STRANGER):
            self.network.add(name.hex(), partial(self._client, name, edge))
        self.network.add(PUBLISHER.hex(), lambda _: Mute())

    def _client(self, name: bytes, edge: bytes, _: object) -> Role:
        return Client(name, self.plans, edge, self.limits)

    def _add(self, name: bytes, around: Around, lies: Sequence[Lie] | None) -> None:
        def make(_: object) -> Role:
            if lies is None:
                return Honest(name, around, self.seed, self.limits)
            self.liars.append(Liar(name, around, self.seed, lies))
            return self.liars[-1]

        self.network.add(name.hex(), make)

    def publish(self, number: int = 0, lock: bytes | None = None) -> Given:
        name = lock or seeded("lock", number)
        fixed = self.plans[1], self.plans[1].nodes[0].identifier, PUBLISHER, name, int(NOW * 1000)
        given = give_shares(*fixed, (TOKEN,), seeded("entropy", self.seed, number), key_of(PUBLISHER))
        for effect in given.effects:
            assert isinstance(effect, Send)
            self.network.send(PUBLISHER.hex(), effect.to, effect.message)
        return given

    def run(self, seconds: float = 120.0) -> None:
        self.network.run(NOW + seconds)

    def opened(self, name: bytes = SUBSCRIBER) -> list[bytes]:
        told = [value for _, who, value in self.network.delivered if who == name.hex()]
        return [value.secret for value in told if isinstance(value, OpenedShares)]

    def opened_locks(self) -> dict[bytes, bytes]:
        """Of the subscriber: secrets by the names of their locks."""
        told = [value for _, who, value in self.network.delivered if who == SUBSCRIBER.hex()]
        return {value.lock: value.secret for value in told if isinstance(value, OpenedShares)}

    def evidence(self) -> list[Evidence]:
        return [value for _, _, value in self.network.delivered if isinstance(value, Evidence)]
