"""Probes: links and hosts as they are, whatever hosts and one switch say."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from fabric_world import KEY
from without import without

from tallystick.carriers.fabric.route import control, read_control
from tallystick.carriers.fabric.topology import PROBE_BYTES, FabricTopology, Probe, ProbeLimits, is_probe, prove
from tallystick.carriers.fabric.trees import PortPlace, Wiring
from tallystick.errors import Refused

# s1 ─ s2 ─ s3 in a line, a host at s1 and one at s3.
WIRES = {PortPlace("s1", 2): PortPlace("s2", 1), PortPlace("s2", 2): PortPlace("s3", 1)}
WIRES |= {there: here for here, there in WIRES.items()}
HOSTS = {PortPlace("s1", 1), PortPlace("s3", 2)}
PORTS = dict.fromkeys(("s1", "s2", "s3"), (1, 2))

Carry = Callable[[PortPlace, bytes], list[tuple[PortPlace, bytes]]]


class ProbedFabric:
    """Carries every probe as the wires do, and lets somebody carry more."""

    def __init__(self, **options: object) -> None:
        self.now = 1000.0
        self.took_s = 0.001
        self.hosts = set(HOSTS)
        self.lies: Carry = lambda _place, _payload: []
        self.wires = dict(WIRES)
        self.topology = FabricTopology(KEY, PORTS, Random(7).randbytes, ProbeLimits(), **options)  # type: ignore[arg-type]

    def round(self) -> Wiring:
        sent = self.topology.probe(self.now)
        self.now += self.took_s
        for place, frame in sent:
            payload = read_control(frame)
            assert is_probe(payload)
            arrivals = self.lies(place, payload)
            if not arrivals and place in self.wires:
                arrivals = [(self.wires[place], payload)]
            if place in self.hosts:
                arrivals = [*arrivals, (place, prove(payload))]
            for where, what in arrivals:
                self.arrive(where, what)
        self.now += 1.0 - self.took_s
        return self.topology.wiring(self.now)

    def arrive(self, place: PortPlace, payload: bytes) -> str:
        try:
            self.topology.receive(place, payload, self.now)
        except Refused as error:
            return error.reason
        return ""


def ends(wiring: Wiring) -> set[tuple[PortPlace, PortPlace]]:
    return {(link.a, link.b) for link in wiring.links}


TRUE = {(PortPlace("s1", 2), PortPlace("s2", 1)), (PortPlace("s2", 2), PortPlace("s3", 1))}


def test_links_and_hosts_are_found_with_their_latency() -> None:
    fabric = ProbedFabric()
    wiring = fabric.round()
    assert ends(wiring) == TRUE
    assert {link.latency_us for link in wiring.links} == {1000}
    assert all(fabric.topology.is_host(place, fabric.now) for place in HOSTS)
    assert not fabric.topology.is_host(PortPlace("s2", 1), fabric.now)


def test_latency_that_jitters_changes_no_tree() -> None:
    fabric = ProbedFabric()
    first = fabric.round()
    fabric.took_s = 0.0016
    assert fabric.round() == first
    fabric.took_s = 0.0025
    assert {link.latency_us for link in fabric.round().links} == {2500}


def test_a_link_that_is_cut_is_lost_and_one_that_is_mended_comes_back() -> None:
    fabric = ProbedFabric()
    fabric.round()
    cut = {PortPlace("s1", 2), PortPlace("s2", 1)}
    fabric.wires = {here: there for here, there in WIRES.items() if here not in cut}
    found = [ends(fabric.round()) for _ in range(5)]
    assert (found[0], found[-1]) == (TRUE, {(PortPlace("s2", 2), PortPlace("s3", 1))})
    fabric.wires = dict(WIRES)
    assert ends(fabric.round()) == TRUE


def test_a_host_that_is_silent_is_no_host_any_more() -> None:
    fabric = ProbedFabric()
    fabric.round()
    fabric.hosts = set()
    for _ in range(4):
        fabric.round()
    assert not any(fabric.topology.is_host(place, fabric.now) for place in HOSTS)


# --- forged, replayed ---


def test_a_forged_probe_is_none() -> None:
    fabric = ProbedFabric()
    [(place, frame), *_] = fabric.topology.probe(fabric.now)
    probe = Probe.decode(read_control(frame))
    assert fabric.arrive(PortPlace("s2", 1), Probe(1, bytes(16), probe.expiry_ms, probe.tag).encode()) == "forged"
    assert fabric.arrive(PortPlace("s2", 1), Probe(1, probe.nonce, probe.expiry_ms, bytes(16)).encode()) == "forged"
    assert fabric.arrive(PortPlace("s2", 1), b"") == "malformed"
    assert fabric.arrive(PortPlace("s2", 1), bytes(PROBE_BYTES)) == "malformed"
    assert fabric.topology.reports[PortPlace("s2", 1), "forged"] == 2
    assert place == PortPlace("s1", 1)


def test_an_expired_probe_is_none_and_its_expiry_cannot_be_moved() -> None:
    fabric = ProbedFabric()
    sent = fabric.topology.probe(fabric.now)
    fabric.now += 2.5
    probe = Probe.decode(read_control(sent[0][1]))
    assert fabric.arrive(PortPlace("s2", 1), probe.encode()) == "expired"
    probe = Probe.decode(read_control(sent[1][1]))
    later = Probe(1, probe.nonce, probe.expiry_ms + 60_000, probe.tag)
    assert fabric.arrive(PortPlace("s2", 1), later.encode()) == "forged"


def test_a_probe_that_arrives_twice_shows_nothing() -> None:
    """A switch hands a probe to two others: whose neighbour is it?"""
    fabric = ProbedFabric()

    def twice(place: PortPlace, payload: bytes) -> list[tuple[PortPlace, bytes]]:
        return [(WIRES[place], payload), (PortPlace("s3", 1), payload)] if place == PortPlace("s1", 2) else []

    fabric.lies = twice
    assert ends(fabric.round()) == {(PortPlace("s2", 2), PortPlace("s3", 1))}
    assert fabric.topology.reports[PortPlace("s3", 1), "replayed"] == 1


# --- relayed ---


def relay(one: PortPlace, other: PortPlace) -> Carry:
    """Two hosts that carry what they hear to each other."""

    def carry(place: PortPlace, payload: bytes) -> list[tuple[PortPlace, bytes]]:
        return [({one: other, other: one}[place], payload)] if place in (one, other) else []

    return carry


FEIGNED = (PortPlace("s1", 1), PortPlace("s3", 2))


def test_hosts_that_relay_probes_feign_no_link() -> None:
    fabric = ProbedFabric()
    fabric.round()
    fabric.lies = relay(*FEIGNED)
    assert ends(fabric.round()) == TRUE
    assert fabric.topology.reports[PortPlace("s3", 2), "port-role"] == 1


def test_without_the_role_of_a_port_they_would() -> None:
    fabric = ProbedFabric()
    fabric.round()
    fabric.lies = relay(*FEIGNED)
    with without("the role of a port"):
        assert ends(fabric.round()) == {*TRUE, FEIGNED}


def test_hosts_that_never_proved_themselves_need_declared_wiring() -> None:
    """What is not defended without it."""
    for declared, expected in ((None, {*TRUE, FEIGNED}), (TRUE, TRUE)):
        fabric = ProbedFabric(declared=declared)
        fabric.hosts = set()
        fabric.lies = relay(*FEIGNED)
        assert ends(fabric.round()) == expected


def test_a_relay_that_takes_long_is_late() -> None:
    fabric = ProbedFabric()
    fabric.hosts = set()
    fabric.lies = relay(*FEIGNED)
    fabric.took_s = 0.6
    assert ends(fabric.round()) == set()
    assert fabric.topology.reports[PortPlace("s3", 2), "late"] == 1


def test_a_link_s_port_is_no_host_s_until_the_link_is_lost() -> None:
    fabric = ProbedFabric()
    fabric.round()
    fabric.hosts = {*HOSTS, PortPlace("s1", 2)}  # somebody has tapped the wire
    fabric.round()
    assert not fabric.topology.is_host(PortPlace("s1", 2), fabric.now)
    assert fabric.topology.reports[PortPlace("s1", 2), "replayed"] == 1
    fabric.wires = {}  # and now cut it
    fabric.round()
    assert not fabric.topology.is_host(PortPlace("s1", 2), fabric.now)
    assert fabric.topology.reports[PortPlace("s1", 2), "port-role"] == 1
    for _ in range(4):
        fabric.round()
    assert fabric.topology.is_host(PortPlace("s1", 2), fabric.now)


def test_a_proof_counts_at_its_own_port() -> None:
    """A host proves the port at which it hears; another's proof is worth nothing there."""
    fabric = ProbedFabric()
    sent = dict(fabric.topology.probe(fabric.now))
    payload = prove(read_control(sent[PortPlace("s3", 2)]))
    assert fabric.arrive(PortPlace("s1", 1), payload) == "other-port"
    assert not fabric.topology.is_host(PortPlace("s1", 1), fabric.now)


# --- a switch that lies ---


def lying_switch(place: PortPlace, payload: bytes) -> list[tuple[PortPlace, bytes]]:
    """s2 says that what came from s1 came in where s3 is."""
    return [(PortPlace("s2", 2), payload)] if place == PortPlace("s1", 2) else []


def test_a_switch_that_lies_about_where_a_probe_came_in_is_contradicted() -> None:
    fabric = ProbedFabric()
    fabric.lies = lying_switch
    assert ends(fabric.round()) == {(PortPlace("s2", 2), PortPlace("s3", 1))}


def test_without_the_other_direction_it_would_be_believed() -> None:
    fabric = ProbedFabric()
    fabric.lies = lying_switch
    with without("probes both ways"):
        assert (PortPlace("s1", 2), PortPlace("s2", 2)) in ends(fabric.round())


def test_a_switch_that_hands_probes_on_unseen_is_a_piece_of_wire() -> None:
    """Said in the threat model: without declared wiring it is not noticed."""

    def unseen(place: PortPlace, payload: bytes) -> list[tuple[PortPlace, bytes]]:
        return {
            PortPlace("s1", 2): [(PortPlace("s3", 1), payload)],
            PortPlace("s3", 1): [(PortPlace("s1", 2), payload)],
        }.get(place, [])

    for declared, expected in ((None, {(PortPlace("s1", 2), PortPlace("s3", 1))}), (TRUE, set())):
        fabric = ProbedFabric(declared=declared)
        fabric.lies = unseen
        assert ends(fabric.round()) == expected


def test_a_probe_names_no_switch_and_no_port() -> None:
    [(_, one), (_, other), *_] = ProbedFabric().topology.probe(1000.0)
    assert len(one) == len(other) == len(control(bytes(PROBE_BYTES)))
    assert b"s1" not in one


def test_probes_that_nobody_answers_take_no_more_room_each_round() -> None:
    fabric = ProbedFabric()
    fabric.wires, fabric.hosts = {}, set()
    for _ in range(50):
        fabric.round()
    assert len(fabric.topology._sent) <= 3 * 6
