"""Who alters frames: on complaint verifying hosts look, switch by switch, and the pair is named."""

from __future__ import annotations

from random import Random

import pytest
from fabric_world import advertise, name, subscribe
from test_fabric_controller import OWNER, WiredFabric
from without import without

from tallystick.carriers.fabric.blaming import COPIES_HEAD, COPIES_MAX, AlteringPair, VerifyingHost, copy_digest
from tallystick.carriers.fabric.requests import FlowKind, FlowRequest, wrap
from tallystick.carriers.fabric.route import RouteHeader, control, publication, read_control
from tallystick.carriers.fabric.topology import PROBE_BYTES
from tallystick.carriers.fabric.trees import PortPlace
from tallystick.runtime.effects import Arrived, Send, WakeAt, Woken

VERIFYING = 102


class VerifiedFabric(WiredFabric):
    """Five switches in a ring with a verifying host at each; whatever leaves by the port `altered` is altered."""

    def __init__(self, altered: PortPlace | None = None) -> None:
        super().__init__()
        self.altered, self.random, self.loss, self.count = altered, Random(4), 0.0, 0
        self.silent: set[str] = set()  # whose verifying hosts are away
        self.verifying = dict.fromkeys(self.switches, VERIFYING)
        self.verifiers = {one: VerifyingHost() for one in self.switches}
        self.controller()
        self.run(3)
        self.speak()
        self.ask(advertise(name(1), "s0", 100))
        self.ask(*(subscribe(name(10 + n), f"s{n}", 101, name(1)) for n in range(5)))
        self.run(0.5)

    def publish(self, frames: int) -> None:
        [(_, first)] = self.answers[name(1)].send
        for _ in range(frames):
            self.count += 1
            self._carry("s0", first, self.count.to_bytes(8) * 20)

    def _carry(self, switch: str, label: bytes, payload: bytes) -> None:
        for port, next_label in self.switches[switch].table[1, label].out:
            place, sent = PortPlace(switch, port), payload
            if place == self.altered:
                sent = b"altered" + payload[7:]
            if (end := self.wiring.far_ends.get(place)) is not None:
                self._carry(end.switch, next_label, sent)
            elif port == VERIFYING and switch not in self.silent and self.random.random() >= self.loss:
                self.tell(switch, publication(RouteHeader(1, next_label), sent))

    def tell(self, switch: str, frame: bytes | None = None) -> None:
        event = Woken() if frame is None else Arrived("wire", frame)
        for effect in self.verifiers[switch].receive(event, self.clock.now()):
            if isinstance(effect, Send):
                self.packet_in(PortPlace(switch, VERIFYING), effect.message)

    def go_on(self, seconds: float, frames: int = 5) -> None:
        """With so many publications every quarter of a second."""
        for _ in range(round(seconds * 4)):
            self.publish(frames)
            for one in self.verifiers:
                self.tell(one)
            self.run(0.25)

    def complain(self, subscription: bytes = name(12), owner: str = OWNER.hex()) -> None:
        self.controllers[0].receive(owner, wrap(FlowRequest(FlowKind.COMPLAIN, subscription)))

    @property
    def found(self) -> list[AlteringPair]:
        return [one for one in self.controllers[0].statistics().findings if isinstance(one, AlteringPair)]


def between(fabric: WiredFabric, one: str, other: str) -> PortPlace:
    """The port of the one that leads to the other."""
    ends = fabric.wiring.far_ends.items()
    return next(place for place, end in ends if (place.switch, end.switch) == (one, other))


def altering(one: str, other: str) -> VerifiedFabric:
    fabric = VerifiedFabric()
    fabric.altered = between(fabric, one, other)
    return fabric


@pytest.mark.parametrize(("one", "other", "frames"), [("s0", "s1", 1), ("s1", "s2", 1), ("s1", "s2", 100)])
def test_the_pair_between_which_copies_differ_is_named(one: str, other: str, frames: int) -> None:
    """Use case 4 of section 7.1.2. A busy flow has more copies than reports hold."""
    fabric = altering(one, other)
    before = {switch: dict(it.table) for switch, it in fabric.switches.items()}
    fabric.complain()
    fabric.go_on(14, frames)
    [pair] = fabric.found
    assert (pair.flow, pair.before, pair.to) == (name(1), one, other)
    assert 8 <= pair.differing <= pair.copies
    assert str(pair).startswith(f"altering: flow {name(1).hex()} between {one} and {other}")
    fabric.go_on(25)
    assert {switch: dict(it.table) for switch, it in fabric.switches.items()} == before  # verifying hosts are gone


def test_where_copies_agree_it_was_at_one_of_the_ends() -> None:
    fabric = VerifiedFabric(PortPlace("s2", 101))  # the last hop
    fabric.complain()
    fabric.go_on(30)
    assert [(one.before, one.to) for one in fabric.found] == [("", "")]
    assert "own switch" in str(fabric.found[0])


def test_frames_that_are_lost_accuse_nobody() -> None:
    fabric = VerifiedFabric()
    fabric.loss = 0.02
    fabric.complain()
    fabric.go_on(14, 100)
    assert [one.to for one in fabric.found] == [""]


@pytest.mark.parametrize("altered", [False, True])
def test_switches_without_a_verifying_host_are_passed_over(altered: bool) -> None:
    """However long they were waited for, copies of those before and behind them are compared, and of the same time."""
    fabric = altering("s1", "s2") if altered else VerifiedFabric()
    fabric.silent = {"s1", "s2"}
    fabric.complain(name(13))
    fabric.go_on(35)
    assert [(one.before, one.to) for one in fabric.found] == [("s0", "s3") if altered else ("", "")]


def test_where_nothing_is_published_nobody_is_named_and_the_search_ends() -> None:
    fabric = altering("s0", "s1")
    fabric.complain()
    fabric.go_on(125, 0)
    assert fabric.found == []
    fabric.go_on(60, 0)
    fabric.complain()
    fabric.go_on(30)
    assert len(fabric.found) == 1


def test_a_switch_that_lies_to_the_search_is_within_the_pair() -> None:
    """It alters what it sends on, and reports copies in its verifying host's place, so small that no others count."""
    fabric = altering("s1", "s2")
    lie = COPIES_HEAD + bytes((COPIES_MAX,)) + b"".join(n.to_bytes(16) for n in range(COPIES_MAX))
    fabric.complain()
    for _ in range(40):
        fabric.packet_in(PortPlace("s1", VERIFYING), control(lie))
        fabric.go_on(1)
    assert [(one.before, one.to) for one in fabric.found] == [("s0", "s1")]


def dropped(fabric: VerifiedFabric) -> dict[str, int]:
    return dict(fabric.controllers[0].statistics().dropped)


def test_one_search_at_a_time_a_pause_between_and_only_on_the_word_of_the_owner() -> None:
    fabric = altering("s1", "s2")
    fabric.complain(owner="ab" * 16)
    fabric.complain(name(99))
    fabric.complain(name(1))  # a flow, no subscription
    for _ in range(10):
        fabric.complain()
    fabric.go_on(30)
    fabric.complain()
    fabric.go_on(1)
    assert len(fabric.found) == 1
    assert (dropped(fabric)["not-owner"], dropped(fabric)["searched"]) == (2, 10)
    fabric.go_on(60)
    fabric.complain()
    fabric.go_on(30)
    assert len(fabric.found) == 2


def test_without_a_rest_between_searches_a_host_that_complains_keeps_every_search_from_its_end() -> None:
    fabric = altering("s1", "s2")
    with without("the rest between two searches"):
        for _ in range(30):
            fabric.complain()
            fabric.go_on(1)
    assert fabric.found == []
    fabric.go_on(30)
    assert len(fabric.found) == 1


def test_copies_count_from_verifying_hosts_alone_and_while_they_are_asked_for() -> None:
    fabric = VerifiedFabric()
    report = control(COPIES_HEAD + b"\x01" + bytes(16))
    for port, payload in ((VERIFYING, report), (101, report), (VERIFYING, control(COPIES_HEAD + b"\x02" + bytes(16)))):
        fabric.packet_in(PortPlace("s0", port), payload)
    fabric.complain()
    fabric.run(0.5)
    fabric.packet_in(PortPlace("s0", 101), report)
    fabric.run(0.5)
    assert (dropped(fabric)["not-asked"], dropped(fabric)["malformed"]) == (3, 1)


def test_a_verifying_host_proves_its_port_and_reports_the_least_digests() -> None:
    host = VerifyingHost()
    [proof] = host.receive(Arrived("wire", control(b"\x01\x01" + bytes(PROBE_BYTES - 2))), 0.0)
    assert isinstance(proof, Send)
    assert read_control(proof.message)[:2] == b"\x01\x02"
    assert host.receive(Arrived("wire", b"a runt"), 0.0) == []
    payloads = [n.to_bytes(8) * 9 for n in range(200)]
    frames = [publication(RouteHeader(1, bytes(16)), one) for one in payloads]
    [first] = host.receive(Arrived("wire", frames[0]), 0.0)  # the first at once
    assert isinstance(first, Send)
    for one in frames[1:]:
        assert host.receive(Arrived("wire", one), 0.1) == [WakeAt(0.25)]
    [report] = host.receive(Woken(), 0.25)
    assert isinstance(report, Send)
    least = sorted(map(copy_digest, payloads[1:]))[:COPIES_MAX]
    assert read_control(report.message) == COPIES_HEAD + bytes((COPIES_MAX,)) + b"".join(least)
    assert len(report.message) < 1_500
