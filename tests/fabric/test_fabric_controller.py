"""The controller as a whole on simulated switches and wires: from probes to rules, to a successor, under floods."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from fabric_world import KEY, SimulatedDriver, SimulatedSwitch, advertise, name, ring, subscribe, withdraw
from without import without

from tallystick.carriers.carrier import join_frames
from tallystick.carriers.fabric.configurator import ConfiguratorSettings
from tallystick.carriers.fabric.control import REQUEST_KIND, split_message
from tallystick.carriers.fabric.controller import ControllerSettings, FabricController
from tallystick.carriers.fabric.floods import FlowExcess, GuessingPort
from tallystick.carriers.fabric.leases import NOBODY, ControllerLease
from tallystick.carriers.fabric.planning import TracedHop, follow
from tallystick.carriers.fabric.requests import FlowAnswer, FlowRequest, PortPiece, read_frame, wrap
from tallystick.carriers.fabric.route import control, read_control
from tallystick.carriers.fabric.topology import is_probe, prove
from tallystick.carriers.fabric.trees import PortPlace, Wiring
from tallystick.engines.fabric_dispatchers import RemoteDispatchers
from tallystick.errors import Malformed
from tallystick.runtime.sources import ManualClock, SeededEntropy

OWNER = bytes(range(16))
PIECE = split_message(REQUEST_KIND, OWNER, b"sealed" * 30, 1_400)[0]


class WiredDriver(SimulatedDriver):
    """What leaves a link port is a packet-in at the other end; hosts answer probes."""

    fabric: WiredFabric

    def packet_out(self, port: int, frame: bytes) -> None:
        self.fabric.carry(PortPlace(self.name, port), frame)


class WiredFabric:
    """Simulated switches in a ring with wires, hosts at ports 100 to 102, and a dispatcher that notes what it hears."""

    def __init__(self, count: int = 5) -> None:
        self.wiring: Wiring = ring(count)
        self.cut: set[PortPlace] = set()
        self.switches = {one: SimulatedSwitch(one) for one in sorted(self.wiring.switches)}
        self.clock = ManualClock(1000.0)
        self.answers: dict[bytes, FlowAnswer] = {}
        self.pieces: list[PortPiece] = []
        self.at_hosts: list[tuple[PortPlace, bytes]] = []
        self.repeated = 0
        self.lease: ControllerLease = NOBODY
        self.verifying: dict[str, int] = {}
        self.controllers: list[FabricController] = []

    def controller(self, holder: bytes = b"one", **configurator: float) -> FabricController:
        drivers = {}
        for one, switch in self.switches.items():
            drivers[one] = WiredDriver(switch)
            drivers[one].fabric = self
        settings = ControllerSettings(
            ports=dict.fromkeys(self.switches, (1, 2, 100, 101, 102)),
            dispatchers={OWNER.hex()},
            configurator=ConfiguratorSettings(gather_s=2.5, **configurator),  # type: ignore[arg-type]
            drain_s=0.0,
            verifying=self.verifying,
        )
        entropy = SeededEntropy(holder.hex())
        found = FabricController(KEY, drivers, self.leased(holder), self, self.clock, entropy, settings)
        self.controllers.append(found)
        return found

    def leased(self, holder: bytes) -> Callable[[int], int | None]:
        def take(now_ms: int) -> int | None:
            taken = self.lease.taken(holder, now_ms, 3_000)
            if taken is not None:
                self.lease = taken
            return None if taken is None else taken.fence

        return take

    # --- the wires ---

    def carry(self, place: PortPlace, frame: bytes) -> None:
        payload = read_control(frame)
        end = self.wiring.far_ends.get(place)
        if end is not None:
            if place not in self.cut and end not in self.cut:
                self.packet_in(end, frame)
        elif is_probe(payload):
            self.packet_in(place, control(prove(payload)))
        else:
            self.at_hosts.append((place, payload))

    def packet_in(self, place: PortPlace, frame: bytes) -> None:
        """Every controller that listens hears it, as of a switch that has several."""
        for one in self.controllers:
            driver = one.drivers[place.switch]
            assert isinstance(driver, SimulatedDriver)
            if driver.packet_in is not None and driver._election == self.switches[place.switch].election:
                driver.packet_in(place.port, frame)

    # --- the dispatcher ---

    def send(self, owner: str, data: bytes) -> None:
        assert owner == OWNER.hex()
        said = read_frame(data)
        if isinstance(said, FlowAnswer):
            self.answers[said.identifier] = said
        elif isinstance(said, PortPiece):
            self.pieces.append(said)

    def repeat(self) -> None:
        self.repeated += 1

    def ask(self, *requests: FlowRequest, of: int = 0) -> None:
        for one in requests:
            self.controllers[of].receive(OWNER.hex(), wrap(one))

    def speak(self) -> None:
        """Every host asks the dispatcher for something."""
        for switch in self.switches:
            for port in (100, 101, 102):
                self.packet_in(PortPlace(switch, port), control(PIECE))
        self.run(0.25)
        self.pieces.clear()

    def run(self, seconds: float, *who: int) -> None:
        for _ in range(round(seconds * 4)):
            for one in who or range(len(self.controllers)):
                self.controllers[one].step()
            self.clock.advance(0.25)

    def reached(self, flow: bytes, switch: str) -> list[PortPlace]:
        answer = self.answers[flow]
        [(_, first)] = answer.send
        tables = {one: dict(it.table) for one, it in self.switches.items()}
        trace = follow(tables, self.wiring.far_ends, switch, answer.epoch, first)
        assert trace.faults == ()
        return [place for place, _ in trace.delivered]


def populated() -> WiredFabric:
    fabric = WiredFabric()
    fabric.controller()
    fabric.run(3)
    fabric.speak()
    fabric.ask(advertise(name(1), "s0", 100))
    fabric.ask(*(subscribe(name(10 + n), f"s{n}", 101, name(1)) for n in range(5)))
    fabric.run(0.5)
    return fabric


EVERYBODY = [PortPlace(f"s{n}", 101) for n in range(5)]


def test_from_bare_switches_to_everybody_reached() -> None:
    fabric = populated()
    assert fabric.reached(name(1), "s0") == EVERYBODY
    statistics = fabric.controllers[0].statistics()
    assert (statistics.fence, statistics.links) == (1, 5)
    assert statistics.configurator is not None
    assert statistics.configurator.subscriptions == 5


@pytest.mark.parametrize("link", range(5))
def test_a_link_that_is_cut_is_gone_round(link: int) -> None:
    fabric = populated()
    [cut] = [one for number, one in enumerate(sorted(fabric.wiring.links)) if number == link]
    fabric.cut = {cut.a, cut.b}
    fabric.run(5)
    assert fabric.reached(name(1), "s0") == EVERYBODY
    used = {PortPlace(hop.switch, port) for hop in trace_of(fabric) for port, _ in hop.out}
    assert not used & fabric.cut
    fabric.cut = set()
    fabric.run(2)
    assert fabric.reached(name(1), "s0") == EVERYBODY


def trace_of(fabric: WiredFabric) -> list[TracedHop]:
    [(_, first)] = fabric.answers[name(1)].send
    tables = {one: dict(it.table) for one, it in fabric.switches.items()}
    epoch = fabric.answers[name(1)].epoch
    return list(follow(tables, fabric.wiring.far_ends, "s0", epoch, first).hops)


def test_another_takes_the_lease_over_and_changes_nothing_that_is_right() -> None:
    fabric = populated()
    before = {one: dict(it.table) for one, it in fabric.switches.items()}
    fabric.controller(b"other")
    fabric.run(2)
    assert fabric.controllers[1].statistics().fence == 0
    for switch in fabric.switches.values():
        switch.writes.clear()
    fabric.run(4, 1)  # the first stands still
    assert fabric.controllers[1].statistics().fence == 2
    assert fabric.repeated == 2
    fabric.ask(advertise(name(1), "s0", 100), of=1)
    fabric.ask(*(subscribe(name(10 + n), f"s{n}", 101, name(1)) for n in range(5)), of=1)
    fabric.run(3, 1)
    assert {one: dict(it.table) for one, it in fabric.switches.items()} == before
    assert [one.writes for one in fabric.switches.values()] == [[]] * 5
    # The first wakes up and does not know: nothing that it does counts.
    fabric.ask(withdraw(name(11)))
    fabric.lease = ControllerLease(1, b"one", 10**12)
    fabric.controllers[0].step()
    assert {one: dict(it.table) for one, it in fabric.switches.items()} == before
    assert fabric.controllers[0].statistics().fence == 0
    assert fabric.controllers[0].statistics().dropped["superseded"] == 1


def test_host_s_pieces_reach_the_dispatcher_that_they_name_and_answers_leave_by_the_port() -> None:
    fabric = populated()
    fabric.packet_in(PortPlace("s2", 102), control(PIECE))
    stranger = split_message(REQUEST_KIND, bytes(16), b"sealed" * 30, 1_400)[0]
    fabric.packet_in(PortPlace("s2", 102), control(stranger))
    fabric.packet_in(PortPlace("s2", 102), control(b"\x01\x63nonsense"))
    fabric.run(0.5)
    assert fabric.pieces == [PortPiece("s2", 102, PIECE)]
    dropped = fabric.controllers[0].statistics().dropped
    assert (dropped["unknown-dispatcher"], dropped["malformed"]) == (1, 1)
    controller = fabric.controllers[0]
    for place in (PortPlace("s2", 102), PortPlace("s2", 1), PortPlace("s9", 1)):  # a host's port, a link's, nobody's
        controller.receive(OWNER.hex(), PortPiece(*place, PIECE).encode())
    controller.receive("ab" * 16, PortPiece("s2", 102, PIECE).encode())
    fabric.run(0.5)
    assert fabric.at_hosts == [(PortPlace("s2", 102), PIECE)]
    assert controller.statistics().dropped["not-a-host-port"] == 2
    assert controller.statistics().dropped["unknown-dispatcher"] == 2


def test_a_host_that_floods_control_frames_delays_nobody_and_forges_nothing() -> None:
    fabric = populated()
    before = {one: dict(it.table) for one, it in fabric.switches.items()}

    def flood() -> int:
        """For ten seconds; returns how many of them the controller looked at."""
        before = fabric.controllers[0].statistics().dropped.get("forged", 0)
        for _ in range(40):
            for _ in range(500):
                fabric.packet_in(PortPlace("s3", 102), control(b"\x01\x01" + bytes(40)))
            fabric.run(0.25)
        return fabric.controllers[0].statistics().dropped["forged"] - before

    assert flood() <= 64 + 200  # a burst, and twenty a second
    statistics = fabric.controllers[0].statistics()
    assert statistics.dropped["packet-in-rate"] > 19_000
    assert statistics.links == 5
    assert {one: dict(it.table) for one, it in fabric.switches.items()} == before
    fabric.ask(subscribe(name(20), "s3", 100, name(1)))
    fabric.run(0.25)
    assert PortPlace("s3", 100) in fabric.reached(name(1), "s0")
    with without("the rate of packet-ins"):
        assert flood() == 20_000


def test_a_flow_that_floods_is_stopped_within_a_poll() -> None:
    fabric = populated()
    [(_, first)] = fabric.answers[name(1)].send
    key = fabric.answers[name(1)].epoch, first
    assert key in fabric.switches["s0"].table
    fabric.switches["s0"].counts[key] = (1_000_000, 0)
    fabric.run(1.5)
    assert key not in fabric.switches["s0"].table
    [excess] = fabric.controllers[0].statistics().findings
    assert isinstance(excess, FlowExcess)
    assert str(excess).startswith("flood: flow")
    assert (excess.frames, excess.ports) == (1_000_000, 5)
    assert excess.reaction_s <= 1.25


def test_a_port_at_which_labels_are_guessed_is_named_once_and_again_when_it_begins_again() -> None:
    fabric = populated()
    fabric.ask(advertise(name(2), "s1", 102, rate=300))  # to whom nobody has subscribed
    fabric.run(1)
    guessed = fabric.switches["s3"].unmatched
    for rate in (40, 2_000, 2_000, 40, 2_000):  # some are late at every change
        guessed[102] = guessed.get(102, 0) + rate
        fabric.switches["s1"].unmatched[102] = fabric.switches["s1"].unmatched.get(102, 0) + 300
        fabric.run(1)
    found = fabric.controllers[0].statistics().findings
    assert [one.place for one in found if isinstance(one, GuessingPort)] == [PortPlace("s3", 102)] * 2
    assert str(found[0]) == "guessing: port 102 of s3, 2000 frames a second under labels that nobody knows"


def test_what_is_asked_in_one_breath_is_done_in_its_order() -> None:
    fabric = populated()
    one = subscribe(name(20), "s3", 100, name(1))
    fabric.ask(one, withdraw(name(20)))
    fabric.run(0.25)
    assert PortPlace("s3", 100) not in fabric.reached(name(1), "s0")
    fabric.ask(one, withdraw(name(20)), one)
    fabric.run(0.25)
    assert PortPlace("s3", 100) in fabric.reached(name(1), "s0")


def test_a_dispatcher_routes_nothing_to_hosts_that_never_asked_it() -> None:
    """Another tenant's dispatcher, which knows where a host is plugged in."""
    fabric = WiredFabric()
    fabric.controller()
    fabric.run(3)
    fabric.packet_in(PortPlace("s0", 100), control(PIECE))
    fabric.run(0.25)
    fabric.ask(advertise(name(1), "s0", 100), subscribe(name(10), "s1", 101, name(1)))
    fabric.run(0.25)
    assert fabric.answers[name(10)].refused == "not-asked"
    assert fabric.reached(name(1), "s0") == []
    with without("the hosts of a dispatcher"):
        fabric.ask(subscribe(name(10), "s1", 101, name(1)))
        fabric.run(0.25)
    assert fabric.reached(name(1), "s0") == [PortPlace("s1", 101)]


def test_a_lease_that_cannot_be_read_stops_no_controller() -> None:
    fabric = populated()
    controller = fabric.controllers[0]
    real, controller.lease = controller.lease, torn
    with pytest.raises(Malformed):
        controller.step()
    controller.start()
    controller.stop()
    controller.lease = real
    fabric.run(0.5)
    assert fabric.reached(name(1), "s0") == EVERYBODY


def torn(now_ms: int) -> int | None:
    raise Malformed("controller lease: torn")


class AskedNode:
    """A dispatcher's node that counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def post(self, path: str, body: bytes) -> bytes:
        self.asked.set()
        return join_frames([])


def test_a_controller_that_does_not_lead_takes_nothing_from_dispatchers() -> None:
    """What a dispatcher says it says once: a second controller would hear half of it, and lose that."""
    node, leading = AskedNode(), threading.Event()
    dispatchers = RemoteDispatchers({OWNER.hex(): node}, interval_s=0.01)  # type: ignore[dict-item]
    dispatchers.start(lambda *_: None, leading.is_set)
    try:
        assert not node.asked.wait(0.1)
        leading.set()
        assert node.asked.wait(60)
    finally:
        dispatchers.stop()
