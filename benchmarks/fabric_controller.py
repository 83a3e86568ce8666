"""The configurator's own time, without switches: a dozen of them in a ring, tables in memory.

    controller_advertise_N   one more advertisement where N flows stand, each with one subscriber
    controller_subscribe_N   one more subscription to a flow that has N subscribers already
    controller_withdraw_N    and its end
    controller_rewire_N      N flows laid along other trees when a link fails, for each flow

Each counts everything from the request to the plan carried out and the answer told; what a switch takes to write is in
the row `rules`. N goes up to 100,000 by tens; flows end at 10,000, above which two rules for each at every switch on
the way would not fit a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import harness

from tallystick.carriers.fabric.configurator import Configurator, ConfiguratorSettings
from tallystick.carriers.fabric.flows import FlowLimits
from tallystick.carriers.fabric.installing import FlowInstaller
from tallystick.carriers.fabric.requests import FlowAnswer, FlowKind, FlowRequest
from tallystick.carriers.fabric.rules import FlowRule, PacketIn, RuleChanges, RuleKey, RuleTable
from tallystick.carriers.fabric.trees import FabricLink, PortPlace, Wiring
from tallystick.errors import Refused

SWITCHES = 12
SUBSCRIBERS, FLOWS = (1_000, 10_000, 100_000), (1_000, 10_000)
SAMPLE = 200  # operations a round
LIMITS = FlowLimits(flows_max=1 << 20, subscriptions_max=1 << 20, pairs_max=1 << 20)


@dataclass
class MemorySwitch:
    name: str
    device: int = 1
    table: dict[RuleKey, FlowRule] = field(default_factory=dict)

    def lead(self, election: int) -> None:
        pass

    def write(self, changes: RuleChanges) -> None:
        for key, rule in changes.items():
            if rule is None:
                self.table.pop(key, None)
            else:
                self.table[key] = rule

    def read(self) -> RuleTable:
        return dict(self.table)

    def counters(self) -> Mapping[RuleKey, tuple[int, int]]:
        return {}

    def unmatched(self) -> Mapping[int, int]:
        return {}

    def packet_out(self, port: int, frame: bytes) -> None:
        pass

    def listen(self, packet_in: PacketIn) -> None:
        pass


class Bench:
    """A ring of switches, and as many requests as wanted."""

    def __init__(self) -> None:
        names = [f"s{number}" for number in range(SWITCHES)]
        ends = [(PortPlace(names[n], 1), PortPlace(names[(n + 1) % SWITCHES], 2)) for n in range(SWITCHES)]
        self.wiring = Wiring.of(names, [FabricLink.of(*pair, 10 + n) for n, pair in enumerate(ends)])
        drivers = {name: MemorySwitch(name) for name in names}
        installer = FlowInstaller(drivers, lambda seconds: None, 0.0)
        self.configurator = Configurator(
            bytes(32), installer, self.tell, lambda place: True, lambda: 0.0, ConfiguratorSettings(limits=LIMITS)
        )
        self.configurator.lead(1)
        self.configurator.rewire(self.wiring)
        self.configurator.gathered()
        self.refused = 0
        self._next = 0

    def tell(self, owner: str, answer: FlowAnswer) -> None:
        self.refused += bool(answer.refused)

    def name(self) -> bytes:
        self._next += 1
        return self._next.to_bytes(16)

    def ask(self, *requests: FlowRequest) -> None:
        self.configurator.receive("bench", requests)

    def advertise(self) -> bytes:
        flow = self.name()
        self.ask(FlowRequest(FlowKind.ADVERTISE, flow, f"s{self._next % SWITCHES}", 3, 1 << 50, 1))
        return flow

    def wanting(self, flow: bytes) -> FlowRequest:
        """At one of the 6,000 host ports."""
        name = self.name()
        place = f"s{self._next % SWITCHES}", 4 + self._next // SWITCHES % 500
        return FlowRequest(FlowKind.SUBSCRIBE, name, *place, 1 << 50, 0, frozenset({flow}))

    def subscribe(self, flow: bytes) -> bytes:
        request = self.wanting(flow)
        self.ask(request)
        return request.identifier

    def withdraw(self, name: bytes) -> None:
        self.ask(FlowRequest(FlowKind.WITHDRAW, name))


def rows(quick: bool, rounds: int | None) -> Iterator[harness.Case]:
    most = 1 if quick else rounds or 5
    for cases in (_by_subscribers(SUBSCRIBERS[:1] if quick else SUBSCRIBERS), _by_flows(FLOWS[:1] if quick else FLOWS)):
        for case in cases:  # each finds what stands when it is measured
            yield replace(case, rounds_max=most)


def _by_subscribers(sizes: Sequence[int]) -> Iterator[harness.Case]:
    bench = Bench()
    flow = bench.advertise()
    standing = 0
    for size in sizes:
        while standing < size:
            bench.ask(*(bench.wanting(flow) for _ in range(500)))
            standing += 500
        added: list[bytes] = []

        def subscribe(added: list[bytes] = added) -> None:
            added += [bench.subscribe(flow) for _ in range(SAMPLE)]

        def withdraw(added: list[bytes] = added) -> None:
            for _ in range(SAMPLE):
                bench.withdraw(added.pop() if added else bench.subscribe(flow))

        yield harness.Case(f"controller_subscribe_{size}", subscribe, None, SAMPLE, "µs", scale=1e6)
        yield harness.Case(f"controller_withdraw_{size}", withdraw, None, SAMPLE, "µs", scale=1e6)


def _by_flows(sizes: Sequence[int]) -> Iterator[harness.Case]:
    bench = Bench()
    standing = 0
    links = sorted(bench.wiring.links)
    for size in sizes:
        while standing < size:
            bench.subscribe(bench.advertise())
            standing += 1

        def advertise() -> None:
            for _ in range(SAMPLE):
                bench.withdraw(bench.advertise())

        def rewire(state: list[int] = [0]) -> None:  # noqa: B006 (the link that is down)
            state[0] += 1
            down = links[state[0] % len(links)]
            with suppress(Refused):
                bench.configurator.rewire(Wiring.of(bench.wiring.switches, bench.wiring.links - {down}))

        yield harness.Case(f"controller_advertise_{size}", advertise, None, SAMPLE, "µs", scale=1e6)
        yield harness.Case(f"controller_rewire_{size}", rewire, None, size, "µs", scale=1e6)
