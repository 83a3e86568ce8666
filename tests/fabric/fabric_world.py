"""Wirings, simulated switches and requests for tests of the fabric's controllers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from random import Random

from tallystick.carriers.fabric.requests import FlowKind, FlowRequest
from tallystick.carriers.fabric.rules import FlowRule, NotInForce, PacketIn, RuleChanges, RuleKey, RuleTable, Superseded
from tallystick.carriers.fabric.trees import FabricLink, PortPlace, Wiring

KEY = bytes(range(32))
HOST_PORTS = range(100, 110)  # links have lower numbers


def joined(pairs: Sequence[tuple[str, str, int]], switches: Sequence[str]) -> Wiring:
    """Links (one, other, latency) on the next free ports."""
    free = dict.fromkeys(switches, 1)
    links = []
    for one, other, latency in pairs:
        links.append(FabricLink.of(PortPlace(one, free[one]), PortPlace(other, free[other]), latency))
        free[one] += 1
        free[other] += 1
    return Wiring.of(switches, links)


def line(count: int) -> Wiring:
    names = [f"s{number}" for number in range(count)]
    return joined([(one, other, 10) for one, other in pairwise(names)], names)


def ring(count: int) -> Wiring:
    names = [f"s{number}" for number in range(count)]
    return joined([(names[n], names[(n + 1) % count], 10 + n) for n in range(count)], names)


def random_wiring(random: Random, switches: int, extra: int) -> Wiring:
    """A random tree and some more links."""
    names = [f"s{number}" for number in range(switches)]
    pairs = [(names[n], names[random.randrange(n)], random.randrange(1, 100)) for n in range(1, switches)]
    for _ in range(extra):
        one, other = random.sample(names, 2)
        pairs.append((one, other, random.randrange(1, 100)))
    return joined(pairs, names)


def advertise(flow: bytes, switch: str, port: int = 100, *matches: bytes, rate: int = 1000) -> FlowRequest:
    return FlowRequest(FlowKind.ADVERTISE, flow, switch, port, 10**15, rate, frozenset(matches))


def subscribe(subscription: bytes, switch: str, port: int, *flows: bytes) -> FlowRequest:
    return FlowRequest(FlowKind.SUBSCRIBE, subscription, switch, port, 10**15, 0, frozenset(flows))


def withdraw(identifier: bytes) -> FlowRequest:
    return FlowRequest(FlowKind.WITHDRAW, identifier)


def name(number: int) -> bytes:
    return number.to_bytes(16, "big")


class SimulatedSwitch:
    """A switch of plain tables."""

    def __init__(self, named: str, device: int = 1) -> None:
        self.name, self.device = named, device
        self.table: dict[RuleKey, FlowRule] = {}
        self.counts: dict[RuleKey, tuple[int, int]] = {}
        self.unmatched: dict[int, int] = {}  # by port
        self.sent: list[tuple[int, bytes]] = []
        self.writes: list[RuleChanges] = []
        self.election = 0
        self.is_down = False

    def driver(self) -> SimulatedDriver:
        return SimulatedDriver(self)


class SimulatedDriver:
    """One controller's end of it, which can be made to fail at a write that is to come (0 is the next)."""

    def __init__(self, switch: SimulatedSwitch) -> None:
        self.switch, self.name, self.device = switch, switch.name, switch.device
        self.fails_at: int | None = None
        self.on_write: Callable[[], None] = lambda: None
        self.packet_in: PacketIn | None = None
        self._election = 0

    def lead(self, election: int) -> None:
        if election < self.switch.election:
            raise Superseded(f"election {self.switch.election} leads, found {election}")
        self.switch.election = self._election = election

    def write(self, changes: RuleChanges) -> None:
        it = self.switch
        if it.election != self._election:
            raise Superseded("another leads")
        if it.is_down:
            raise NotInForce(f"switch {self.name} is away", None)
        if self.fails_at == 0:
            self.fails_at = None
            raise NotInForce(f"switch {self.name} refuses", dict(it.table))
        if self.fails_at is not None:
            self.fails_at -= 1
        it.writes.append(dict(changes))
        for key, rule in changes.items():
            if rule is None:
                it.table.pop(key, None)
                it.counts.pop(key, None)
            else:
                it.table[key] = rule
        self.on_write()

    def read(self) -> RuleTable:
        if self.switch.is_down:
            raise NotInForce(f"switch {self.name} is away", None)
        return dict(self.switch.table)

    def counters(self) -> Mapping[RuleKey, tuple[int, int]]:
        return {key: self.switch.counts.get(key, (0, 0)) for key in self.switch.table}

    def unmatched(self) -> Mapping[int, int]:
        return dict(self.switch.unmatched)

    def packet_out(self, port: int, frame: bytes) -> None:
        self.switch.sent.append((port, frame))

    def listen(self, packet_in: PacketIn) -> None:
        self.packet_in = packet_in
