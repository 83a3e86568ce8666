"""The plan of an overlay: one encoding, a tree, and nothing listed twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ledger_world import seed

from tallystick import wire
from tallystick.errors import Malformed
from tallystick.trust.plan import PLAN_BYTES_MAX, Plan, Relay, VirtualNode, node_id, overlay_id, shared_fates

TREE = {"hub": "", "edge": "hub", "rim": "hub", "far": "rim"}


def relay(name: str, operator: str = "", host: str = "") -> Relay:
    return Relay(
        seed(name)[:16], seed(f"key {name}"), seed(f"link {name}"), f"{name}:7443", operator or name, host or name
    )


def named(name: str) -> bytes:
    return node_id(bytes(16), name)


def made(tree: dict[str, str] = TREE, size: int = 3) -> Plan:
    nodes = [
        VirtualNode(named(name), named(parent) if parent else b"", tuple(relay(f"{name} {n}") for n in range(size)))
        for name, parent in tree.items()
    ]
    return Plan(bytes(16), 1, tuple(nodes))


def test_a_plan_has_one_encoding() -> None:
    plan = made()
    assert Plan.decode(plan.encode()) == plan
    assert Plan.decode(plan.encode()).hash == plan.hash != replace(plan, version=2).hash
    assert overlay_id(bytes(32), "city") != overlay_id(bytes(32), "town") != node_id(bytes(16), "city")


def test_relays_are_found_by_their_principals_and_paths_lead_through_the_tree() -> None:
    plan = made()
    hub, edge, rim, far = plan.nodes
    assert plan.place(seed("rim 2")[:16]) == (rim, 3)
    assert plan.place(seed("nobody")[:16]) is None
    assert plan.neighbours(hub.identifier) == (edge, rim)
    assert plan.path(edge.identifier, far.identifier) == (edge, hub, rim, far)
    assert plan.path(far.identifier, rim.identifier) == (far, rim)
    assert plan.path(hub.identifier, hub.identifier) == (hub,)
    assert (plan.has_node(far.identifier), plan.has_node(bytes(16))) == (True, False)


@pytest.mark.parametrize(("size", "need", "faults"), [(3, 2, 1), (4, 3, 1), (5, 3, 2), (6, 4, 2), (7, 4, 3)])
def test_more_than_half_are_needed_and_fewer_than_half_may_be_bad(size: int, need: int, faults: int) -> None:
    node = made({"hub": ""}, size).nodes[0]
    assert (node.need, node.faults) == (need, faults)


BAD_TREES: dict[str, dict[str, str]] = {
    "two roots": {"hub": "", "edge": ""},
    "no root": {"edge": "hub"},
    "a child before its parent": {"hub": "", "far": "rim", "rim": "hub"},
    "a circle": {"hub": "", "edge": "rim", "rim": "edge"},
    "its own parent": {"hub": "hub"},
}


@pytest.mark.parametrize("tree", BAD_TREES.values(), ids=BAD_TREES)
def test_virtual_nodes_form_one_tree(tree: dict[str, str]) -> None:
    with pytest.raises(Malformed, match="a tree expected"):
        made(tree)


@pytest.mark.parametrize("what", ["identifier", "key", "link_key", "address"])
def test_nothing_is_listed_twice(what: str) -> None:
    plan = made()
    hub, edge, *others = plan.nodes
    twin = replace(edge.relays[0], **{what: getattr(hub.relays[2], what)})
    with pytest.raises(Malformed, match="listed twice"):
        replace(plan, nodes=(hub, replace(edge, relays=(twin, *edge.relays[1:])), *others))


def test_a_relay_s_two_keys_are_two() -> None:
    first, *others = made({"hub": ""}).nodes[0].relays
    with pytest.raises(Malformed, match="a relay's key is listed twice"):
        Plan(bytes(16), 1, (VirtualNode(named("hub"), b"", (replace(first, key=first.link_key), *others)),))


@pytest.mark.parametrize("size", [0, 1, 2, 8])
def test_three_to_seven_relays_form_a_virtual_node(size: int) -> None:
    with pytest.raises(Malformed):
        Plan.decode(made({"hub": ""}, size).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(PLAN_BYTES_MAX + 1),
        wire.encode([2, bytes(16), 1, []]),
        wire.encode([1, bytes(16), 1, []]),
        wire.encode([1, bytes(15), 1, [[bytes(16), b"", []]]]),
        wire.encode([1, bytes(16), -1, [[bytes(16), b"", []]]]),
        wire.encode([1, bytes(16), 1, [[bytes(16), b"", [[bytes(16), bytes(32), bytes(32), "a", "b"]] * 3]]]),
    ],
)
def test_what_is_no_plan_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        Plan.decode(data)


def test_an_operator_or_host_with_more_relays_than_may_be_bad_is_named() -> None:
    seats = (relay("a", "acme", "one"), relay("b", "acme", "two"), relay("c", "other", "two"))
    plan = Plan(bytes(16), 1, (VirtualNode(named("hub"), b"", seats),))
    assert [name for _, name in shared_fates(plan)] == ["acme", "two"]
    assert not list(shared_fates(made()))
