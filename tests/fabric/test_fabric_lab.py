"""Whole fabrics of real switches in network namespaces: lines, trees and rings, programmed over P4Runtime."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lab
import pytest
from lab_fabric import LabFabric, line, ring, tree

from tallystick.carriers.fabric.p4_client import P4RuntimeSwitch
from tallystick.carriers.fabric.route import RouteHeader, control, publication
from tallystick.carriers.fabric.rules import FlowRule

WHY_NOT = lab.why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

EPOCH = 3
Trees = dict[str, list[str]]  # by switch, where it sends a flow: other switches and hosts


def label(flow: int, place: str) -> bytes:
    """What a flow is called on the way into a switch or a host."""
    return f"{flow}{place}".encode().ljust(16, b".")


def install(fabric: LabFabric, drivers: dict[str, P4RuntimeSwitch], flow: int, ways: Trees) -> None:
    """From the leaves up: switches are named along the way."""
    for switch, after in reversed(ways.items()):
        out = sorted((fabric.ports[switch, place], label(flow, place)) for place in after)
        rule = FlowRule(EPOCH, label(flow, switch), tuple(out))
        drivers[switch].write({rule.key: rule})


@pytest.fixture(params=["ebpf", "packet"])
def plane(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def closing() -> Iterator[list[LabFabric]]:
    fabrics: list[LabFabric] = []
    yield fabrics
    for fabric in fabrics:
        fabric.close()


def test_a_publication_goes_down_a_tree_under_another_name_at_every_hop(plane: str, closing: list[LabFabric]) -> None:
    fabric = LabFabric(tree(4), {"pub": "s4", "suba": "s3", "subb": "s1", "other": "s2"}, plane)
    closing.append(fabric)
    install(fabric, fabric.drivers(1), 1, {"s4": ["s2"], "s2": ["s1"], "s1": ["s3", "subb"], "s3": ["suba"]})
    fabric.taps["pub"].send(publication(RouteHeader(EPOCH, label(1, "s4")), b"news"))
    for host in ("suba", "subb"):
        assert fabric.taps[host].hear() == publication(RouteHeader(EPOCH, label(1, host)), b"news")
    assert fabric.taps["other"].heard() == fabric.taps["pub"].heard() == []
    # What one switch calls it means nothing at another.
    for guess in ("s1", "s2", "s3", "suba"):
        fabric.taps["pub"].send(publication(RouteHeader(EPOCH, label(1, guess)), b"forged"))
    fabric.taps["pub"].send(publication(RouteHeader(EPOCH, label(1, "s4")), b"more"))
    assert fabric.taps["suba"].hear() == publication(RouteHeader(EPOCH, label(1, "suba")), b"more")
    assert all(server.statistics().packet_ins == 0 for server in fabric.servers.values())


def test_a_ring_turns_the_other_way_when_a_link_is_cut(plane: str, closing: list[LabFabric]) -> None:
    """The controller's part: how it is found out is topology's."""
    fabric = LabFabric(ring(4), {"pub": "s1", "sub": "s3"}, plane)
    closing.append(fabric)
    drivers = fabric.drivers(1)
    install(fabric, drivers, 1, {"s1": ["s2"], "s2": ["s3"], "s3": ["sub"]})
    first = publication(RouteHeader(EPOCH, label(1, "s1")), b"one")
    fabric.taps["pub"].send(first)
    assert fabric.taps["sub"].hear() == publication(RouteHeader(EPOCH, label(1, "sub")), b"one")
    fabric.cut("s2", "s3")
    fabric.taps["pub"].send(first)
    assert fabric.taps["sub"].hear(0.1) is None
    install(fabric, drivers, 2, {"s1": ["s4"], "s4": ["s3"], "s3": ["sub"]})
    fabric.taps["pub"].send(publication(RouteHeader(EPOCH, label(2, "s1")), b"two"))
    assert fabric.taps["sub"].hear() == publication(RouteHeader(EPOCH, label(2, "sub")), b"two")


def test_the_data_plane_goes_on_when_the_controller_is_gone(closing: list[LabFabric]) -> None:
    fabric = LabFabric(line(2), {"pub": "s1", "sub": "s2"})
    closing.append(fabric)
    drivers = fabric.drivers(1)
    install(fabric, drivers, 1, {"s1": ["s2"], "s2": ["sub"]})
    for driver in drivers.values():
        driver.close()
    assert lab.eventually(lambda: fabric.servers["s1"]._primary is None)
    fabric.taps["pub"].send(control(b"anybody there?"))
    fabric.taps["pub"].send(publication(RouteHeader(EPOCH, label(1, "s1")), b"on"))
    assert fabric.taps["sub"].hear() == publication(RouteHeader(EPOCH, label(1, "sub")), b"on")
    assert fabric.drivers(2)["s1"].read().keys() == {(EPOCH, label(1, "s1"))}
    assert lab.eventually(lambda: fabric.servers["s1"].statistics().packet_ins_dropped == {2: 1})


@pytest.mark.long
@pytest.mark.parametrize("links", [line(12), tree(12), ring(12)], ids=["line", "tree", "ring"])
def test_twelve_switches_carry_a_hundred_thousand_publications_without_a_word_to_the_controller(
    plane: str, links: list[tuple[str, str]], closing: list[LabFabric]
) -> None:
    fabric = LabFabric(links, {"pub": "s12", **{f"sub{at}": f"s{at}" for at in (1, 3, 5)}}, plane)
    closing.append(fabric)
    towards = {child: parent for parent, child in links if child != "s1"}
    ways: Trees = {}
    for host, at in (("sub1", 1), ("sub3", 3), ("sub5", 5)):
        path, switch = ["s12"], "s12"
        while switch != "s1":
            switch = towards[switch]
            path.append(switch)
        down, switch = [], f"s{at}"
        while switch not in path:
            down.append(switch)
            switch = towards[switch]
        path = [*path[: path.index(switch) + 1], *reversed(down)]
        for one, after in zip(path, [*path[1:], host], strict=True):
            places = ways.setdefault(one, [])
            places += [] if after in places else [after]
    install(fabric, fabric.drivers(1), 1, ways)
    count = 100_000 if plane == "ebpf" else 5_000
    frame = publication(RouteHeader(EPOCH, label(1, "s12")), bytes(166))
    got = dict.fromkeys(("sub1", "sub3", "sub5"), 0)
    for start in range(0, count, 200):
        for _ in range(200):
            fabric.taps["pub"].send(frame)
        for host in got:
            for _ in range(200):
                assert fabric.taps[host].hear() == publication(RouteHeader(EPOCH, label(1, host)), bytes(166)), start
                got[host] += 1
    assert set(got.values()) == {count}
    assert all(server.statistics().packet_ins == 0 for server in fabric.servers.values())


def test_without_root_packet_sockets_work_in_a_user_namespace() -> None:
    """The vectors again, under `unshare -Urn`, where bpf() is not allowed and says what to do."""
    tests = Path(__file__).parent
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "import plane_world as world\n"
        "from tallystick.errors import Unavailable\n"
        "found = world.plugged('packet')\n"
        "[found.put(entry) for entry in world.entries(world.VECTORS['entries'])]\n"
        "for one in world.VECTORS['vectors']:\n"
        "    frame = bytes.fromhex(one['frame'])\n"
        "    found.out(one['out'], frame) if one['at'] is None else found.arrive(one['at'], frame)\n"
        "    left = [[port, frame.hex()] for port, frame in found.left()]\n"
        "    assert left == sorted(one['leaves']), one['name']\n"
        "found.close()\n"
        "try:\n"
        "    world.plugged('ebpf', [1])\n"
        "except Unavailable as error:\n"
        "    print(error, '|', error.hint)\n"
    )
    folders = [str(tests), str(tests.parent), str(tests.parent.parent / "src")]
    command = ["unshare", "-Urn", sys.executable, "-c", code, *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr:
        pytest.skip(f"no user namespace can be made here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert "choose the plane `packet`" in done.stdout
