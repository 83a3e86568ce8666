"""Every data plane does what the compiled program does: the vectors, and random frames held against its interpreter."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import suppress
from importlib import resources
from typing import Any

import lab
import plane_world
import pytest
from plane_world import PORTS, REAL, VECTORS, Bare, Oracle, Plugged, Subject
from without import without

from tallystick.carriers.fabric.entries import (
    FRAME_BYTES_MAX,
    Entries,
    NextKey,
    RouteAction,
    RouteVerdict,
    SwitchEntry,
    match_of,
)
from tallystick.carriers.fabric.frame_plane import FramePlane
from tallystick.carriers.fabric.route import RouteHeader, control, publication
from tallystick.carriers.fabric.rules import GROUP_PORTS_MAX
from tallystick.carriers.fabric.wires import check_unused
from tallystick.errors import Misuse

TAGS = (b"\x81\x00", b"\x88\xa8")
WHY_NOT = lab.why_not()
PLANES = [
    "oracle",
    "bare",
    "datagrams",
    *(pytest.param(name, marks=pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)) for name in REAL),
]
needs_lab = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


def subject_named(name: str) -> Subject:
    return Oracle() if name == "oracle" else Bare() if name == "bare" else plane_world.plugged(name)


@pytest.fixture(scope="module", params=PLANES)
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    found = subject_named(request.param)
    for entry in plane_world.entries(VECTORS["entries"]):
        found.put(entry)
    yield found
    found.close()


def test_program_and_outputs_are_those_that_were_made_together() -> None:
    """No P4 compiler is packaged here: whoever changes the source has to have its outputs made anew."""
    folder = resources.files("tallystick.carriers.fabric").joinpath("program")
    made = {
        "pubsub.p4": "e00b554cab34e888b26e75916ec1d9f9a6e12679b009156557be82de9a70c56f",
        "pubsub.json": "e418501336799204e99e8f5302b913341eb920fc3791b135f764267d22fe281b",
        "pubsub.p4info.txtpb": "9541db12d019b2ba74c3c31d8e5b345f03eab958b8b3a468f5b5048fef7cb7f6",
    }
    assert {name: hashlib.sha256(folder.joinpath(name).read_bytes()).hexdigest() for name in made} == made


def play(subject: Subject, vector: dict[str, Any]) -> None:
    frame = bytes.fromhex(vector["frame"])
    if vector["at"] is None:
        subject.out(vector["out"], frame)
    else:
        subject.arrive(vector["at"], frame)


def test_the_vectors(subject: Subject) -> None:
    wrong = []
    for vector in VECTORS["vectors"]:
        play(subject, vector)
        left = [[port, frame.hex()] for port, frame in subject.left()]
        if left != sorted(vector["leaves"]):
            wrong.append((vector["name"], left))
    assert wrong == []


@pytest.mark.parametrize("name", ["oracle", "bare", "datagrams"])
def test_frames_without_a_whole_ethernet_header_vanish(name: str) -> None:
    subject = subject_named(name)
    for vector in VECTORS["short"]:
        play(subject, vector)
    assert subject.left() == []
    subject.close()


def test_random_frames_are_treated_as_the_compiled_program_treats_them(subject: Subject) -> None:
    oracle = Oracle()
    for entry in plane_world.entries(VECTORS["entries"]):
        oracle.put(entry)
    rng = random.Random(18)
    for _ in range(4):
        for port, frame in plane_world.random_frames(rng, 100):
            oracle.arrive(port, frame)
            subject.arrive(port, frame)
            if rng.random() < 0.1 and frame[12:14] not in TAGS:  # which the tap's own kernel would take off
                port = rng.choice([*PORTS, 77, 511])
                oracle.out(port, frame)
                subject.out(port, frame)
        assert subject.left() == oracle.left()


@pytest.fixture(params=["datagrams", *(pytest.param(name, marks=needs_lab) for name in REAL)])
def plugged(request: pytest.FixtureRequest) -> Iterator[Plugged]:
    found = plane_world.plugged(request.param, [1, 2, 3])
    yield found
    found.close()


LABEL, NEXT = bytes.fromhex("01" * 16), bytes.fromhex("02" * 16)
RULE = plane_world.entries({"next_labels": [], "groups": {}, "publications": [[4, "01" * 16, "forward", 2]]})[0]


def test_entries_come_and_go_while_frames_pass_and_counters_stay(plugged: Plugged) -> None:
    frame = publication(RouteHeader(4, LABEL), b"x" * 66)
    match = match_of((4, LABEL))

    def leaves() -> list[tuple[int, bytes]]:
        plugged.arrive(1, frame)
        return plugged.left()

    assert leaves() == []
    plugged.put(RULE)
    assert leaves() == [(2, frame)]
    plugged.put(SwitchEntry(Entries.NEXT_LABELS, NextKey(match, 2), NEXT))
    assert leaves() == [(2, frame.replace(LABEL, NEXT))]
    plugged.put(RULE._replace(value=RULE.value._replace(argument=3)))
    assert leaves() == [(3, frame)]
    assert plugged.plane.counters()[match] == (3, 300)
    plugged.plane.delete(Entries.NEXT_LABELS, NextKey(match, 2))
    plugged.plane.delete(Entries.PUBLICATIONS, match)
    assert leaves() == []
    plugged.put(RULE)
    assert plugged.plane.counters()[match] == (0, 0)
    assert leaves() == [(2, frame)]


def test_what_is_dropped_is_counted_by_its_reason(plugged: Plugged) -> None:
    before = plugged.plane.statistics()
    plugged.arrive(1, publication(RouteHeader(4, LABEL), b""))
    plugged.arrive(1, publication(RouteHeader(4, LABEL), b"")[:-1])
    plugged.arrive(2, control(b"hello"))
    assert plugged.left() == [(510, control(b"hello"))]
    after = plugged.plane.statistics()
    assert (before.unmatched, after.unmatched) == ({}, {1: 1})
    assert after.malformed - before.malformed == 1
    assert after.to_controller - before.to_controller >= 1
    assert after.received - before.received >= 3


def test_an_oversized_frame_is_dropped_and_counted() -> None:
    """Longer than any frame of the fabric. The compiled program has no bound: links have."""
    plugged = plane_world.plugged("datagrams", [1, 2])
    plugged.put(RULE)
    plugged.arrive(1, publication(RouteHeader(4, LABEL), bytes(FRAME_BYTES_MAX)))
    plugged.arrive(1, publication(RouteHeader(4, LABEL), bytes(FRAME_BYTES_MAX - 34)))
    assert [len(frame) for _port, frame in plugged.left()] == [FRAME_BYTES_MAX]
    assert plugged.plane.statistics().malformed == 1
    plugged.close()


def test_an_emulation_says_that_it_is_one() -> None:
    plugged = plane_world.plugged("datagrams", [1, 2])
    assert "emulation" in plugged.plane.kind
    assert "emulation" in plugged.plane.statistics().kind
    plugged.close()


@needs_lab
@pytest.mark.parametrize("plane", REAL)
def test_an_interface_in_use_is_refused_unless_told(plane: str) -> None:
    bench = lab.Bench([1, 2])
    lab.add_address(bench.switch, "p1", "192.0.2.1")
    with pytest.raises(Misuse, match="'p1' has an address"):
        bench.switch.run(lambda: plane_world.real_plane(plane, bench.interfaces))
    told = bench.switch.run(lambda: FramePlane.on_interfaces(bench.interfaces, even_if_used=True))
    told.close()
    with without("interfaces in use"):  # and the machine is cut off from whatever that address was for
        bench.switch.run(lambda: plane_world.real_plane(plane, bench.interfaces)).close()
    bench.close()


@needs_lab
def test_an_interface_with_a_default_route_or_none_at_all_is_refused() -> None:
    bench = lab.Bench([1, 2])
    lab.add_default_route(bench.switch, "p2")
    bench.switch.run(lambda: check_unused("p1"))
    with pytest.raises(Misuse, match="'p2' has a default route"):
        bench.switch.run(lambda: check_unused("p2"))
    with pytest.raises(Misuse, match="no interface 'p3'"):
        bench.switch.run(lambda: check_unused("p3"))
    bench.close()


@needs_lab
@pytest.mark.parametrize("plane", REAL)
def test_a_link_that_went_down_works_when_it_is_up_again(plane: str) -> None:
    bench = lab.Bench([1, 2])
    made = bench.switch.run(lambda: plane_world.real_plane(plane, bench.interfaces))
    made.start(lambda port, frame: None)
    made.put(RULE)
    frame = publication(RouteHeader(4, LABEL), b"x")
    for up in (False, True, False, True):
        lab.set_up(bench.switch, "p1", up=up)
        lab.set_up(bench.switch, "p2", up=up)
        if up:
            for where, name in ((bench.switch, "p1"), (bench.switch, "p2"), (bench.outside, "t1")):
                assert lab.eventually(lambda where=where, name=name: lab.is_running(where, name))  # type: ignore[misc]
            bench.taps[1].send(frame)
            assert bench.taps[2].hear() == frame
        else:
            with suppress(OSError):
                bench.taps[1].send(frame)
            assert bench.taps[2].hear(0.05) is None
    made.close()
    bench.close()


def test_a_group_has_as_many_copies_as_there_are_ports(plugged: Plugged) -> None:
    """And the kernel's verifier is content with a loop over all of them."""
    match = match_of((4, LABEL))
    plugged.put(SwitchEntry(Entries.GROUPS, 1, tuple((2, at) for at in range(GROUP_PORTS_MAX))))
    plugged.put(SwitchEntry(Entries.PUBLICATIONS, match, RouteAction(RouteVerdict.MULTICAST, 1)))
    frame = publication(RouteHeader(4, LABEL), b"x")
    plugged.arrive(1, frame)
    assert plugged.left() == [(2, frame)] * GROUP_PORTS_MAX
