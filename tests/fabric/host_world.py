"""Hosts, a dispatcher and a configurator over simulated switches: real roles, frames that a test may lose or alter.

world = HostWorld(line(3))
car, reader = world.host("car", "s0"), world.host("reader", "s2")
car.advertise("brakes"), reader.subscribe("brakes")
car.publish("brakes", parcel(1))
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from random import Random

from fabric_world import KEY, SimulatedSwitch
from makers import FAR_FUTURE_MS, INSTANCE, World, seed, token
from makers import TENANT as OWNER

from tallystick.carriers.accounts import Asked
from tallystick.carriers.carrier import Pushed
from tallystick.carriers.fabric.agent import FabricAgent
from tallystick.carriers.fabric.blaming import AlterationSearch, AlteringPair, VerifyingHost
from tallystick.carriers.fabric.configurator import Configurator
from tallystick.carriers.fabric.control import ControlPiece, FabricAsk, path_of
from tallystick.carriers.fabric.dispatcher import Dispatcher, DispatcherKeys, DispatcherLimits
from tallystick.carriers.fabric.exchanging import AgentLimits, AgentRequest
from tallystick.carriers.fabric.fragments import FabricKey
from tallystick.carriers.fabric.host_kit import HostKeys
from tallystick.carriers.fabric.installing import FlowInstaller
from tallystick.carriers.fabric.requests import FlowAnswer, FlowKind, FlowRequest, PortPiece, read_frame, wrap
from tallystick.carriers.fabric.route import (
    ETHERTYPE_CONTROL,
    control,
    ethertype,
    publication,
    read_control,
    read_publication,
)
from tallystick.carriers.fabric.standing import Asker
from tallystick.carriers.fabric.trees import PortPlace, Wiring
from tallystick.crypto.signatures import SigningKey, VerifyKey
from tallystick.errors import Refused
from tallystick.guards.permits import advertise, subscribe, unadvertise, unsubscribe
from tallystick.guards.route import Window
from tallystick.guards.rules import Act, Live, TopicRules
from tallystick.policy.clustering import Cutting
from tallystick.policy.formula import Formula
from tallystick.policy.topic_code import TopicCode
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, Send, StoreEffect, WakeAt, Woken
from tallystick.runtime.sources import SeededEntropy
from tallystick.trust.certificate import Certificate, subject_id
from tallystick.trust.permit import Operation, Permit, UndoOrder
from tallystick.trust.right import Right

DAY_MS = 24 * 3600 * 1000
NOW = 1_700_000_000.0
HOP_S = 0.0001
NODE = b"dispatcher node."


def principal(name: str) -> bytes:
    return subject_id(INSTANCE, SigningKey.from_seed(seed(name)).public.raw)


@dataclass
class LedgerRules:
    """The guards' view of a ledger on which everybody may do everything, until a test says otherwise."""

    world: World
    instance: bytes = INSTANCE
    ended: set[bytes] = field(default_factory=set)  # permits
    without_right: set[bytes] = field(default_factory=set)  # principals

    def authority(self, identifier: bytes) -> Certificate | None:
        return self.world.authority if identifier == self.world.authority.subject else None

    def blacklisted(self, principal: bytes) -> bool:
        return False

    def is_over(self, principal: bytes, time_ms: int) -> bool:
        return False

    def convicted(self, principal: bytes, lane: bytes, sequence: int) -> bool:
        return False

    def allows(self, principal: bytes, token: bytes, right: Right, host: str) -> bool:
        return principal not in self.without_right

    def topic(self, token: bytes) -> TopicRules | None:
        return TopicRules(OWNER, 1, closed=False)

    def carries(self, token: bytes, partition: int) -> bool:
        return True

    def carried(self, token: bytes) -> int | None:
        return 0

    def consents(self, tenant: bytes) -> bool:
        return True

    def fall_window_ms(self) -> int:
        return 1

    def schema_known(self, token: bytes, version: int, schema_hash: bytes) -> bool:
        return True

    def permit_ended(self, identifier: bytes) -> bool:
        return identifier in self.ended

    def epoch_taken(self, token: bytes, epoch: int, time_ms: int) -> bool:
        return True


class GuardedDoor:
    """A node's front without its disk: the guards, the window, and a list of what would be noted."""

    def __init__(self, rules: LedgerRules) -> None:
        self.rules, self.live, self.acts = rules, Live(1_000), list[tuple[str, str]]()
        self._window = Window(60, 5, 10_000)

    def admit(self, asked: Asked, token: bytes, data: bytes, operation: Operation) -> None:
        self._window.check(asked.envelope.principal, asked.envelope.nonce, asked.now)
        guard = advertise if operation is Operation.ADVERTISE else subscribe
        try:
            if Permit.decode(data).token != token:
                raise Refused("not the topic", reason="wrong-topic")
            guard(data, self._act(asked), self.rules, self.live)
        except Refused as error:
            self.acts.append((operation.name, error.reason))
            raise
        self.acts.append((operation.name, ""))

    def undo(self, asked: Asked, data: bytes) -> None:
        self._window.check(asked.envelope.principal, asked.envelope.nonce, asked.now)
        is_publisher = UndoOrder.decode(data).operation is Operation.ADVERTISE
        (unadvertise if is_publisher else unsubscribe)(data, self._act(asked), self.rules, self.live)
        self.acts.append(("UNDO", ""))

    def _act(self, asked: Asked) -> Act:
        return Act(asked.envelope.principal, asked.host, asked.envelope.base_hash, int(asked.now * 1000))


class HostWorld:
    def __init__(
        self,
        wiring: Wiring,
        number: int = 1,
        limits: AgentLimits = AgentLimits(),
        cuttings: Mapping[bytes, Cutting] = {},
    ) -> None:
        self.cuttings = cuttings
        self.wiring, self.number, self.limits, self.now = wiring, number, limits, NOW
        self.world, self.rules = World(), LedgerRules(World())
        self.door = GuardedDoor(self.rules)
        self.hosts: dict[str, Host] = {}
        self.ports: dict[PortPlace, Host | Verifier] = {}
        self.keys = DispatcherKeys(INSTANCE, NODE, SigningKey.from_seed(seed("dispatcher")))
        self.known: dict[bytes, VerifyKey] = {}
        self.stored: dict[str, bytes] = {}
        self.said: list[bytes] = []  # all that the configurator heard from the dispatcher, and told it
        self.dispatcher = self.start_dispatcher()
        self.switches = {name: SimulatedSwitch(name) for name in wiring.switches}
        installer = FlowInstaller({name: one.driver() for name, one in self.switches.items()}, self.pause)
        self.configurator = Configurator(KEY, installer, self.tell, lambda place: True, lambda: self.now)
        self.configurator.lead(1)
        self.configurator.rewire(wiring)
        self.configurator.gathered()
        self.verifying: dict[str, int] = {}  # port of the verifying host of a switch
        self.found: list[AlteringPair] = []
        self.search = AlterationSearch(self.configurator, self.verifying, self.found.append)
        self.lose: Callable[[PortPlace, bytes], bool] = lambda place, frame: False  # at the switch's port out
        self.alter: Callable[[PortPlace, bytes], bytes] = lambda place, frame: frame
        self.seen: list[tuple[str, bytes]] = []  # every publication that a switch saw
        self.packet_ins = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def pause(self, seconds: float) -> None:
        """A controller that waits lets the switches work."""

    def start_dispatcher(self) -> Dispatcher:
        def is_live(permit: Permit, now_ms: int) -> bool:
            allowed = permit.principal not in self.rules.without_right
            return allowed and permit.identifier not in self.rules.ended and now_ms < permit.not_after_ms

        limits = DispatcherLimits(cuttings=self.cuttings)
        started = Dispatcher(self.keys, self.door, self.known.get, is_live, limits)
        for data in self.stored.values():
            started.standing.enter(Asker.decode(data))
        return started

    def host(self, name: str, switch: str, port: int = 100) -> Host:
        place = PortPlace(switch, port)
        self.known[principal(name)] = SigningKey.from_seed(seed(name)).public
        entropy = SeededEntropy(f"{self.number} {name}")
        keys = HostKeys(seed(f"host of {name}"))
        agent = FabricAgent(self.keys.card, keys, DAY_MS, Random(f"{self.number} {name}"), entropy, self.limits)
        self.hosts[name] = self.ports[place] = Host(self, name, place, agent)
        return self.hosts[name]

    def verifier(self, switch: str, port: int = 200) -> None:
        """A verifying host of the operator's at a switch."""
        self.verifying[switch] = port
        self.ports[PortPlace(switch, port)] = Verifier(self, PortPlace(switch, port))

    # --- time ---

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(time, self.now), next(self._order), action))

    def run(self, seconds: float = 0.5) -> None:
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until
        self.heard_by_dispatcher(Woken())
        self.configurator.tick()
        self.search.step(self.now)

    # --- switches ---

    def enter(self, place: PortPlace, frame: bytes) -> None:
        """A frame comes to a switch."""
        if ethertype(frame) == ETHERTYPE_CONTROL:
            self.packet_ins += 1
            payload = frame[14:]
            if ControlPiece.decode(payload).party == NODE:
                self.heard_by_dispatcher(Arrived("configurator", PortPiece(*place, payload).encode()))
            return
        route, payload = read_publication(frame)
        self.seen.append((place.switch, frame))
        rule = self.switches[place.switch].table.get((route.epoch, route.label))
        for port, label in rule.out if rule is not None else ():
            if port == place.port and rule is not None and len(rule.out) > 1:
                continue  # a multicast copy never returns the way it came
            self.leave(PortPlace(place.switch, port), publication(replace(route, label=label), payload))

    def leave(self, place: PortPlace, frame: bytes) -> None:
        if self.lose(place, frame):
            return
        frame, end = self.alter(place, frame), self.wiring.far_ends.get(place)
        if end is not None:
            self.at(self.now + HOP_S, lambda: self.enter(end, frame))
        elif place in self.ports:
            self.at(self.now + HOP_S, lambda: self.ports[place].hear(frame))

    # --- controllers ---

    def heard_by_dispatcher(self, event: Event) -> None:
        if isinstance(event, Arrived):
            self.said.append(event.message)
        self.obey(self.dispatcher.receive(event, self.now))

    def obey(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, StoreEffect):
                self.stored.pop(effect.key, None)
                self.stored |= {} if effect.value is None else {effect.key: effect.value}
            elif isinstance(effect, Send):
                self.said.append(effect.message)
                said = read_frame(effect.message)
                if isinstance(said, FlowRequest) and said.kind is FlowKind.COMPLAIN:
                    with suppress(Refused):
                        self.search.complain("acme", said.identifier, self.now)
                elif isinstance(said, FlowRequest):
                    self.configurator.receive("acme", [said])
                elif isinstance(said, PortPiece):
                    self.leave(PortPlace(said.switch, said.port), control(said.payload))

    def tell(self, owner: str, answer: FlowAnswer) -> None:
        self.at(self.now, lambda: self.heard_by_dispatcher(Arrived("configurator", wrap(answer))))


@dataclass
class Verifier:
    world: HostWorld
    place: PortPlace
    role: VerifyingHost = field(default_factory=VerifyingHost)

    def hear(self, frame: bytes) -> None:
        self.act(Arrived("wire", frame))

    def act(self, event: Event) -> None:
        for effect in self.role.receive(event, self.world.now):
            if isinstance(effect, Send):
                with suppress(Refused):
                    self.world.search.heard(self.place, read_control(effect.message), self.world.now)
            elif isinstance(effect, WakeAt):
                self.world.at(effect.time, lambda: self.act(Woken()))


@dataclass
class Host:
    world: HostWorld
    name: str
    place: PortPlace
    agent: FabricAgent
    got: list[Pushed] = field(default_factory=list)
    heard: list[bytes] = field(default_factory=list)

    @property
    def who(self) -> tuple[bytes, SigningKey]:
        return principal(self.name), SigningKey.from_seed(seed(self.name))

    def hear(self, frame: bytes) -> None:
        self.heard.append(frame)
        self.act(Arrived("wire", frame))

    def act(self, event: Event) -> None:
        for effect in self.agent.receive(event, self.world.now):
            if isinstance(effect, Send):
                self.world.at(self.world.now + HOP_S, partial(self.world.enter, self.place, effect.message))
            elif isinstance(effect, Deliver):
                self.got.append(effect.value)
            elif isinstance(effect, WakeAt):
                self.world.at(effect.time, lambda: self.act(Woken()))

    def keys(self, *topics: str) -> None:
        epoch = int(self.world.now * 1000) // DAY_MS
        keys = [(token(one), FabricKey.of_mesh(seed(f"mesh key {one}"), epoch + n)) for one in topics for n in (0, 1)]
        self.agent.set_keys(keys)

    def request(
        self, operation: Operation, topic: str, content: bytes = b"", code: TopicCode | None = None,
        policy: Formula | None = None, permit: Permit | None = None,
    ) -> AgentRequest:  # fmt: skip
        permit = permit or self.world.world.permit(self.name, topic, operation, not_after_ms=FAR_FUTURE_MS)
        coded, said = b"" if code is None else code.encode(), b"" if policy is None else policy.encode()
        ask = FabricAsk(permit.encode(), self.agent.keys.public, content, coded, said)
        nonce = SeededEntropy(f"nonce {self.world.now} {self.name} {topic} {operation}").bytes(16)
        sealed = ask.seal(path_of(operation, token(topic)), self.world.keys.card, self.who, self.world.now, nonce)
        return AgentRequest(operation, token(topic), sealed, permit=permit.identifier)

    def ask(self, one: AgentRequest) -> AgentRequest:
        self.agent.ask(one, self.world.now)
        self.act(Woken())
        return one

    def advertise(
        self, topic: str, content: bytes = b"", code: TopicCode | None = None, policy: Formula | None = None
    ) -> AgentRequest:
        self.keys(topic)
        one = self.ask(self.request(Operation.ADVERTISE, topic, content, code, policy))
        self.world.run()
        return one

    def subscribe(self, topic: str, interest: Formula | None = None) -> AgentRequest:
        self.keys(topic)
        content = b"" if interest is None else interest.encode()
        one = self.ask(self.request(Operation.SUBSCRIBE, topic, content))
        self.world.run()
        return one

    def publish(self, topic: str, *parcels: Pushed) -> None:
        for one in parcels:
            assert self.agent.publish(token(topic), one, self.world.now)
            self.act(Woken())
        self.world.run()

    @property
    def dropped(self) -> Counter[str]:
        return Counter(self.agent.statistics().dropped)
