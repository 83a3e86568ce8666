"""A fabric that runs: controller, P4Runtime over gRPC, data planes and wires. Links and switches fail, permits end."""

from __future__ import annotations

import threading
import time

import lab
import pytest
from fabric_stack import OWNER, FabricStack
from fabric_world import advertise, joined, line, name, ring, subscribe, withdraw

from tallystick.carriers.fabric.blaming import AlteringPair
from tallystick.carriers.fabric.requests import FlowKind, FlowRequest, wrap
from tallystick.carriers.fabric.trees import PortPlace, TreeKind, Wiring

NO_LAB = lab.why_not()
in_lab = pytest.mark.skipif(bool(NO_LAB), reason=NO_LAB or "a laboratory")


def tree(count: int) -> Wiring:
    """Each switch with two below it."""
    names = [f"s{number}" for number in range(count)]
    return joined([(names[n], names[(n - 1) // 2], 10) for n in range(1, count)], names)


def everywhere(wiring: Wiring) -> list[PortPlace]:
    return [PortPlace(switch, 100) for switch in sorted(wiring.switches)]


def populated(stack: FabricStack) -> set[PortPlace]:
    """A publisher at s0 and a subscriber at every other switch."""
    stack.ask(advertise(name(1), "s0", 100, rate=10_000_000))
    places = [place for place in everywhere(stack.wiring) if place.switch != "s0"]
    stack.ask(*(subscribe(name(10 + n), *place, name(1)) for n, place in enumerate(places)))
    return set(places)


def test_from_probes_to_publications_without_privileges() -> None:
    stack = FabricStack(line(3), everywhere(line(3)))
    try:
        expected = populated(stack)
        assert stack.reached(name(1), PortPlace("s0", 100)) == expected
        [(_, route, _)] = stack.hosts.heard[PortPlace("s2", 100)]
        assert [route.label] == [*stack.answers[name(11)].receive]  # the subscription's own
        stack.ask(withdraw(name(11)))
        assert stack.reached(name(1), PortPlace("s0", 100)) == expected - {PortPlace("s2", 100)}
    finally:
        stack.close()


def test_the_pair_between_which_frames_are_altered_is_found_by_verifying_hosts() -> None:
    """Use case 4: each verifying host is one more subscriber of the flow, with no key."""
    wiring = line(4)
    altered = next(link.a for link in wiring.links if {link.a.switch, link.b.switch} == {"s1", "s2"})
    verifying = [PortPlace(switch, 101) for switch in sorted(wiring.switches)]
    stack = FabricStack(wiring, [*everywhere(wiring), *verifying], altered=altered, verifying=101)
    try:
        populated(stack)
        stack.controller.receive(OWNER, wrap(FlowRequest(FlowKind.COMPLAIN, name(12))))
        deadline = time.monotonic() + 20
        while not (found := stack.controller.statistics().findings) and time.monotonic() < deadline:
            stack.publish(name(1), PortPlace("s0", 100), time.monotonic_ns().to_bytes(8) * 8)
            time.sleep(0.02)
        [pair] = found
        assert isinstance(pair, AlteringPair)
        assert (pair.before, pair.to) == ("s1", "s2")
    finally:
        stack.close()


@pytest.mark.long
def test_a_switch_that_hangs_holds_nobody_up_for_long() -> None:
    """It takes connections and answers nothing; meanwhile others are withdrawn and routed."""
    stack = FabricStack(line(3), everywhere(line(3)))
    try:
        expected = populated(stack)
        with stack.servers["s2"]._lock:
            began = time.monotonic()
            stack.ask(withdraw(name(11)))  # at s2
            assert time.monotonic() - began < 15  # one write, or one look at its counters, and no more
            assert stack.reached(name(1), PortPlace("s0", 100)) == {PortPlace("s1", 100)}
            began = time.monotonic()
            for number in range(5):
                stack.ask(withdraw(name(10)), subscribe(name(20 + number), "s1", 100, name(1)))
                stack.ask(withdraw(name(20 + number)), subscribe(name(10), "s1", 100, name(1)))
            assert time.monotonic() - began < 10  # ten writes to it would take twenty
        assert lab.eventually(lambda: not stack.controller.configurator.statistics().doubtful, 60)  # type: ignore[union-attr]
        stack.ask(subscribe(name(11), "s2", 100, name(1)))
        assert stack.reached(name(1), PortPlace("s0", 100)) == expected
    finally:
        stack.close()


@in_lab
@pytest.mark.long
@pytest.mark.parametrize("plane", ["ebpf", "packet"])
def test_no_frame_that_is_sent_after_a_withdrawal_leaves_its_port(plane: str) -> None:
    """A publisher sends numbered frames on and on while a subscriber's permit is undone; its port is watched. Frames
    are counted instead of seconds: the machine may stand still for some."""
    stack = FabricStack(line(4), everywhere(line(4)), plane)
    try:
        populated(stack)
        stop, sent = threading.Event(), [0]

        def send() -> None:
            while not stop.is_set():
                sent[0] += 1
                stack.publish(name(1), PortPlace("s0", 100), sent[0].to_bytes(8) * 25)
                time.sleep(0.0005)

        def heard(switch: str) -> list[int]:
            return [int.from_bytes(what[:8]) for _, _, what in list(stack.hosts.heard[PortPlace(switch, 100)])]

        thread = threading.Thread(target=send)
        thread.start()
        assert lab.eventually(lambda: len(heard("s3")) > 100, 60)
        stack.ask(withdraw(name(12)))  # at s3
        undone = sent[0] + 1  # one may be on its way to the wire
        assert lab.eventually(lambda: sent[0] > undone + 500, 60)
        stop.set()
        thread.join()
        assert lab.eventually(lambda: sent[0] in heard("s2"), 60)
        assert max(heard("s3")) <= undone
        assert len(heard("s2")) > 0.9 * sent[0]  # the others hear it all the time
    finally:
        stack.close()


@in_lab
@pytest.mark.long
@pytest.mark.parametrize("kind", TreeKind)
def test_a_ring_of_twelve_goes_round_a_link_that_fails_and_a_switch_that_fails(kind: TreeKind) -> None:
    wiring = ring(12)
    stack = FabricStack(wiring, everywhere(wiring), "ebpf", kind)
    try:
        expected = populated(stack)
        assert stack.reached(name(1), PortPlace("s0", 100)) == expected
        cut = next(link.a for link in sorted(wiring.links) if {link.a.switch, link.b.switch} == {"s3", "s4"})
        stack.cut(cut)
        assert lab.eventually(lambda: stack.controller.statistics().links == 11, 60)
        assert lab.eventually(lambda: stack.reached(name(1), PortPlace("s0", 100)) == expected, 60)
        stack.cut(cut, mended=True)
        assert lab.eventually(lambda: stack.controller.statistics().links == 12, 60)
        stack.servers.pop("s6").close()
        beyond = expected - {PortPlace("s6", 100)}
        assert lab.eventually(lambda: stack.reached(name(1), PortPlace("s0", 100)) == beyond, 60)
    finally:
        stack.close()


@in_lab
@pytest.mark.long
def test_a_tree_of_twelve_multicasts_and_the_controller_hears_nothing_of_it() -> None:
    """No packet-in but probes and proofs while publications pass."""
    wiring = tree(12)
    stack = FabricStack(wiring, everywhere(wiring), "ebpf")
    try:
        expected = populated(stack)
        stack.controller.stop()
        time.sleep(0.3)
        before = sum(server.statistics().packet_ins for server in stack.servers.values())
        stack.hosts.is_deaf = True
        for _ in range(100_000):
            stack.publish(name(1), PortPlace("s0", 100), bytes(64))
        time.sleep(0.5)
        assert sum(server.statistics().packet_ins for server in stack.servers.values()) == before
        counted = [max(count for count, _ in driver.counters().values()) for driver in stack.drivers.values()]
        assert min(counted) > 90_000  # a full queue loses some
        # The controller is gone, and the data plane goes on with what it knows.
        stack.hosts.is_deaf = False
        assert lab.eventually(lambda: stack.reached(name(1), PortPlace("s0", 100)) == expected, 60)
    finally:
        stack.close()
