"""Parcels on their way through a chain of virtual nodes in a simulated network, with relays that lie about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from random import Random

import pyarrow as pa
from makers import INSTANCE, SCHEMA, rows, seed, token
from makers import World as Publishing
from sharing_world import LINK, NOW, PUBLISHER, SUBSCRIBER, chain, key_of

from tallystick.carriers.overlay.carried import ContentMessage
from tallystick.carriers.overlay.content import Strategy
from tallystick.carriers.overlay.content_forwarding import (
    CarriedParcel,
    ContentForwarding,
    ContentLimits,
    Suspicion,
)
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.surroundings import NOWHERE, Branches
from tallystick.crypto.coding import CodedBlock, encode
from tallystick.crypto.signatures import SigningKey
from tallystick.parcel.header import SIGNATURE_CONTEXT, Header
from tallystick.parcel.labels import Wanted
from tallystick.parcel.parcel import Parcel, is_front
from tallystick.parcel.seal import Lane
from tallystick.record.batch import Batch
from tallystick.runtime.effects import Arrived, Effect, Event, Role, Send
from tallystick.runtime.network import Link, Network
from tallystick.trust.plan import Plan
from tallystick.trust.promise import JointPromise
from tallystick.wire import OCTETS_MAX

CAR = SigningKey.from_seed(seed("car"))


@cache
def sealed(count: int, coded: tuple[int, int] | None = None) -> tuple[Parcel, ...]:
    """Parcels of one lane, whole or with the marks of a code (needed, total)."""
    return tuple(seal_all(Publishing().lane(), [rows(10 * number, 10) for number in range(count)], coded))


@cache
def sealed_long(coded: tuple[int, int] | None = None) -> tuple[Parcel, ...]:
    """Two parcels of which even a half is longer than an ordinary field on the wire."""
    random, batches = Random("long"), []
    for _ in range(2):
        columns = [[random.randbytes(24).hex() for _ in range(2_000)], list(range(2_000)), [0.0] * 2_000]
        arrays = [pa.array(values, one.type) for values, one in zip(columns, SCHEMA.arrow, strict=True)]
        batches.append(Batch.of(SCHEMA, pa.RecordBatch.from_arrays(arrays, schema=SCHEMA.arrow)))
    parcels = tuple(seal_all(Publishing().lane(), batches, coded))
    assert all(len(parcel.body) > 2 * OCTETS_MAX for parcel in parcels)
    return parcels


def seal_all(lane: Lane, batches: Iterable[Batch], coded: tuple[int, int] | None) -> Iterator[Parcel]:
    for number, batch in enumerate(batches):
        parcel = lane.seal(batch, now_ms=int(NOW * 1000), entropy=seed(f"parcel {number}"))
        if coded is not None:
            header = replace(parcel.header, coding=encode(bytes(parcel.body), *coded).coding)
            parcel = Parcel(header, CAR.sign(SIGNATURE_CONTEXT, header.encoded), parcel.body)
        yield parcel


def promised(plan: Plan, parcel: Parcel, offset: int, signers: Sequence[int] = (1, 2), node: int = 0) -> JointPromise:
    edge = plan.nodes[node]
    what = INSTANCE, plan.overlay, plan.version, edge.identifier, 1, token("brakes"), 0, offset, parcel.hash, 1, 1
    promise = JointPromise(*what, ())
    for index in signers:
        promise = promise.sign(index, key_of(edge.relays[index - 1].identifier))
    return promise


@dataclass
class Routes:
    plans: dict[int, Plan]
    node: bytes
    subscribers: tuple[bytes, ...] = ()
    wanted: Wanted = field(default_factory=lambda: Wanted(()))  # by everybody who is here or behind

    def plan(self, version: int) -> Plan | None:
        return self.plans.get(version)

    def branches(self, tokens: Sequence[bytes], came_from: bytes | None) -> Branches:
        nodes = self.plans[max(self.plans)].neighbours(self.node)
        return Branches(tuple(one.identifier for one in nodes if one.identifier > self.node), self.subscribers)

    def wanting(self, tokens: Sequence[bytes], came_from: bytes | None, header: Header) -> Branches:
        found = self.branches(tokens, came_from)
        return found if self.wanted.asks_for(header) else NOWHERE

    def check_front(self, parcel: Parcel) -> None:
        CAR.public.verify(SIGNATURE_CONTEXT, parcel.signature, parcel.header.encoded)


Drop = Callable[["BadCarrier", Send, float], list[Effect]]


class HonestCarrier:
    def __init__(self, name: bytes, routes: Routes, limits: ContentLimits) -> None:
        self.name, self.routes = name, routes
        self.content = ContentForwarding(name, INSTANCE, routes, limits)

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if isinstance(event, Arrived):
            return self.content.take(OverlayFrame.decode(event.message), bytes.fromhex(event.sender), now)
        return self.content.wake(now)


class BadCarrier(HonestCarrier):
    def __init__(self, name: bytes, routes: Routes, limits: ContentLimits, manners: Sequence[Drop]) -> None:
        super().__init__(name, routes, limits)
        self.random, self._manners = Random(name.hex()), manners

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        effects: list[Effect] = []
        for effect in super().receive(event, now):
            effects += self.random.choice(self._manners)(self, effect, now) if isinstance(effect, Send) else [effect]
        return effects


def drop(liar: BadCarrier, send: Send, now: float) -> list[Effect]:
    return []


def bare_only(liar: BadCarrier, send: Send, now: float) -> list[Effect]:
    """It says that the parcel is there, acknowledges, and brings nothing."""
    frame = OverlayFrame.decode(send.message)
    if frame.kind is not FrameKind.CONTENT:
        return [send]
    return [Send(send.to, ContentMessage.decode(frame)._replace(block=None, body=None).frame(frame.plan))]


def alter(liar: BadCarrier, send: Send, now: float) -> list[Effect]:
    frame = OverlayFrame.decode(send.message)
    if frame.kind is not FrameKind.CONTENT:
        return [send]
    message = ContentMessage.decode(frame)
    if message.body:
        message = message._replace(body=message.body[:-1] + bytes([message.body[-1] ^ 1]))
    if message.block:
        block = CodedBlock.decode(message.block)
        message = message._replace(block=replace(block, data=block.data[:-1] + bytes([block.data[-1] ^ 1])).encoded)
    return [Send(send.to, message.frame(frame.plan))]


def repeat(liar: BadCarrier, send: Send, now: float) -> list[Effect]:
    return [send] * 3


def move(liar: BadCarrier, send: Send, now: float) -> list[Effect]:
    """The parcel at another offset, by its own signature alone."""
    frame = OverlayFrame.decode(send.message)
    if frame.kind is not FrameKind.CONTENT:
        return [send]
    message = ContentMessage.decode(frame)
    promise = JointPromise.decode(message.promise)
    moved = replace(promise, offset=promise.offset + 1, signatures=()).sign(1, key_of(liar.name))
    return [send, Send(send.to, message._replace(promise=moved.encode()).frame(frame.plan))]


MANNERS: dict[str, Drop] = {
    "drop": drop,
    "bare only": bare_only,
    "alter": alter,
    "repeat": repeat,
    "move": move,
}


class Deaf:
    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        return []


@dataclass
class CarryingWorld:
    """`bad` by (virtual node, index)."""

    sizes: tuple[int, ...]
    seed: int = 0
    bad: dict[tuple[int, int], Sequence[Drop]] = field(default_factory=dict)
    link: Link = LINK
    limits: ContentLimits = field(default_factory=ContentLimits)
    make_network: type[Network] = Network

    def __post_init__(self) -> None:
        plan = chain(self.sizes)
        self.plans = {1: plan}
        self.network = self.make_network(self.seed, self.link)
        self.network.clock.run(NOW)
        for number, node in enumerate(plan.nodes, start=1):
            subscribers = (SUBSCRIBER,) if number == len(plan.nodes) else ()
            for index, relay in enumerate(node.relays, start=1):
                routes = Routes(self.plans, node.identifier, subscribers)
                make = partial(self._make, relay.identifier, routes, self.bad.get((number, index)))
                self.network.add(relay.identifier.hex(), make)
        self.network.add(PUBLISHER.hex(), lambda _: Deaf())

    def _make(self, name: bytes, routes: Routes, manners: Sequence[Drop] | None, _: object) -> Role:
        if manners is None:
            return HonestCarrier(name, routes, self.limits)
        return BadCarrier(name, routes, self.limits, manners)

    def relay(self, number: int, index: int) -> HonestCarrier:
        role = self.network.role(self.plans[1].nodes[number - 1].relays[index - 1].identifier.hex())
        assert isinstance(role, HonestCarrier)
        return role

    def offer(self, parcels: Sequence[Parcel]) -> None:
        """As the relays of the publisher's edge do, each for itself."""
        plan = self.plans[1]
        signers = range(1, plan.nodes[0].faults + 2)
        for offset, parcel in enumerate(parcels):
            promise = promised(plan, parcel, offset, tuple(signers))
            for index in range(1, self.sizes[0] + 1):
                relay = self.relay(1, index)
                effects: list[Effect] = relay.content.offer(promise, parcel, self.network.clock.now())
                if isinstance(relay, BadCarrier):
                    effects = [
                        one
                        for effect in effects
                        for one in (
                            relay.random.choice(relay._manners)(relay, effect, NOW)
                            if isinstance(effect, Send)
                            else [effect]
                        )
                    ]
                for effect in effects:
                    self.network._carry_out(relay.name.hex(), effect)

    def run(self, seconds: float = 60.0) -> None:
        self.network.run(NOW + seconds)

    def delivered(self, index: int) -> list[tuple[int, bytes]]:
        """Offsets and hashes of what an edge relay of the subscriber got."""
        name = self.plans[1].nodes[-1].relays[index - 1].identifier.hex()
        told = [value for _, who, value in self.network.delivered if who == name and isinstance(value, CarriedParcel)]
        for one in told:
            if not is_front(one.parcel):
                one.parcel.check_body()
        return sorted((one.promise.offset, one.parcel.hash) for one in told)

    def suspected(self) -> set[bytes]:
        """By honest relays; bad ones may suspect whom they like."""
        bad = {self.plans[1].nodes[number - 1].relays[index - 1].identifier.hex() for number, index in self.bad}
        told = self.network.delivered
        return {value.relay for _, who, value in told if isinstance(value, Suspicion) and who not in bad}


STRATEGIES = [(Strategy.REPLICAS, None), (Strategy.ONE_COPY, None), (Strategy.CODED, (2, 3))]
