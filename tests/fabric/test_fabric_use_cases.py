"""Section 7.1 of the thesis, as far as rules decide: what compromised switches and hosts can do with labels."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import lab
import plane_world
import pytest
from fabric_world import advertise, name, random_wiring, subscribe
from test_fabric_configurator import FabricWorld, started
from without import without

from tallystick.carriers.fabric.entries import DataPlane, Entries, RouteAction, RouteVerdict, SwitchEntry, match_of
from tallystick.carriers.fabric.frame_plane import Pipeline
from tallystick.carriers.fabric.p4_client import P4RuntimeSwitch
from tallystick.carriers.fabric.p4_server import SwitchServer
from tallystick.carriers.fabric.planning import follow
from tallystick.carriers.fabric.route import RouteHeader, publication, read_publication
from tallystick.carriers.fabric.trees import PortPlace
from tallystick.runtime.sources import SystemClock


def peopled(seed: int) -> FabricWorld:
    """Eight switches, four flows, a subscriber of two of them at each switch."""
    random = Random(seed)
    world, controller = started(random_wiring(random, switches=8, extra=3))
    flows = [name(n) for n in range(4)]
    controller.ask(*(advertise(one, f"s{n * 2}", 100 + n) for n, one in enumerate(flows)))
    controller.ask(*(subscribe(name(10 + n), f"s{n}", 105, *random.sample(flows, 2)) for n in range(8)))
    return world


def test_use_case_3_a_frame_on_a_way_that_was_not_authorised_is_dropped_at_the_next_switch(seed: int) -> None:
    """Any switch sends any frame it has, under any label it knows, to any other switch: all combinations."""
    world = peopled(seed)
    tables = world.tables()
    tried = 0
    for switch, table in tables.items():
        known = {label for _, label in table} | {label for rule in table.values() for _, label in rule.out}
        led = {
            (end.switch, label)
            for rule in table.values()
            for port, label in rule.out
            if (end := world.wiring.far_ends.get(PortPlace(switch, port))) is not None
        }
        for other in tables.keys() - {switch}:
            for label in known:
                if (other, label) not in led:
                    tried += 1
                    assert follow(tables, world.wiring.far_ends, other, 1, label).hops == ()
    assert tried > 200


def test_use_case_5_what_nobody_was_told_reaches_nobody(seed: int) -> None:
    """An unauthorised publisher: no label, a label of another epoch, another switch's first label, a subscriber's."""
    world = peopled(seed)
    book, tables = world.first.configurator.book, world.tables()
    [(_, first)] = book.answer(name(0)).send
    own = book.answer(name(10)).receive
    for switch in tables:
        for epoch, label in ((1, bytes(16)), (2, first), *((1, one) for one in own), (0, first)):
            assert follow(tables, world.wiring.far_ends, switch, epoch, label).hops == ()
        if switch != "s0":
            assert follow(tables, world.wiring.far_ends, switch, 1, first).hops == ()


def linked_by_tables(world: FabricWorld) -> set[frozenset[str]]:
    """Switches in whose tables one label stands that are no neighbours."""
    seen = {
        switch: {label for _, label in table} | {label for rule in table.values() for _, label in rule.out}
        for switch, table in world.tables().items()
    }
    neighbours = {frozenset((link.a.switch, link.b.switch)) for link in world.wiring.links}
    linked = {frozenset((a, b)) for a in seen for b in seen if a < b and seen[a] & seen[b]}
    assert linked & neighbours  # for what goes from one to the other they share a name, or they could not work
    return linked - neighbours


@pytest.mark.parametrize("number", range(3))
def test_tables_link_neighbours_and_nobody_else(number: int, seed: int) -> None:
    assert linked_by_tables(peopled(seed + number)) == set()


def test_without_the_way_in_a_label_up_the_neighbours_of_a_switch_are_linked(seed: int) -> None:
    with without("the way in a label up"):
        worlds = [peopled(seed + number) for number in range(3)]
    assert any(linked_by_tables(one) for one in worlds)


def test_colluding_switches_link_a_frame_by_its_bytes(seed: int) -> None:
    """What does not hold, whatever the labels: the payload is the same at both ends of the fabric."""
    world = peopled(seed)
    book = world.first.configurator.book
    flow = next(one for one in book.flows if max(hop.depth for hop in world.trace(one).hops) >= 2)
    trace = world.trace(flow)
    near, far = trace.hops[0], max(trace.hops, key=lambda hop: hop.depth)
    frames = [publication(RouteHeader(1, hop.label), b"sealed, and the same everywhere") for hop in (near, far)]
    (one, payload), (other, same) = map(read_publication, frames)
    assert one.label != other.label
    assert payload == same


# --- labels that are guessed ---


def forwarding(plane: DataPlane | Pipeline, labels: Iterable[bytes]) -> None:
    for label in labels:
        plane.put(SwitchEntry(Entries.PUBLICATIONS, match_of((1, label)), RouteAction(RouteVerdict.FORWARD, 2)))


def test_use_case_5_a_label_of_16_bits_is_hit_within_65_536_frames() -> None:
    """Use case 5: the thesis's random numbers, were they all of a label. Whoever counts through them gets in."""
    switch = Pipeline()
    forwarding(switch, [bytes(14) + bytes.fromhex("b055")])
    frames = (publication(RouteHeader(1, guess.to_bytes(16)), b"let me in") for guess in range(1 << 16))
    assert sum(len(switch.receive(7, frame)) for frame in frames) == 1
    assert switch.unmatched == {7: (1 << 16) - 1}


@pytest.mark.long
@pytest.mark.skipif(bool(lab.why_not()), reason=lab.why_not() or "a laboratory")
def test_use_case_5_a_million_guesses_at_128_bits_hit_nothing_and_the_port_is_named() -> None:
    """Use case 5: 2^20 frames from one port of a real switch with a thousand rules; its controller is told which."""
    bench, random = lab.Bench([1, 2, 3]), Random(18)
    plane = bench.switch.run(lambda: plane_world.real_plane("ebpf", bench.interfaces))
    forwarding(plane, (random.randbytes(16) for _ in range(1_000)))
    server = SwitchServer(1, plane, SystemClock())
    controller = P4RuntimeSwitch("one", 1, f"127.0.0.1:{server.start()}")
    try:
        head, wire = publication(RouteHeader(1, bytes(16)), b"")[:-16], bench.taps[3].wire
        for _ in range(1 << 20):
            wire.send(head + random.randbytes(16) + b"let me in")
        assert lab.eventually(lambda: plane.statistics().unmatched == {3: 1 << 20})
        assert not any(packets for packets, _bytes in plane.counters().values())
        assert bench.taps[2].heard() == []
        controller.lead(1)
        controller.counters()
        assert lab.eventually(lambda: controller.unmatched() == {3: 1 << 20})
    finally:
        controller.close()
        server.close()
        bench.close()
