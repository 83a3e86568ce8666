"""Trees over the switches: least total latency, shortest paths, the same for everybody who knows the same links."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from fabric_world import random_wiring, ring

from tallystick.carriers.fabric.trees import FabricLink, PortPlace, TreeKind, Wiring, spanning_links


def total(links: list[FabricLink]) -> int:
    return sum(one.latency_us for one in links)


def connects(switches: frozenset[str], links: list[FabricLink]) -> bool:
    reached = {min(switches)}
    while more := {end.switch for one in links for end in one[:2] if {one.a.switch, one.b.switch} & reached} - reached:
        reached |= more
    return reached == switches


@pytest.mark.parametrize("number", range(8))
def test_a_spanning_tree_has_the_least_latency_of_all(number: int, seed: int) -> None:
    wiring = random_wiring(Random(f"{seed}/{number}"), switches=5, extra=3)
    found = spanning_links(wiring)
    all_of_them = [list(one) for one in combinations(sorted(wiring.links), 4) if connects(wiring.switches, list(one))]
    assert connects(wiring.switches, found)
    assert total(found) == min(map(total, all_of_them))


@pytest.mark.parametrize("number", range(8))
def test_shortest_paths_are_shortest(number: int, seed: int) -> None:
    """Compared with Floyd and Warshall's table."""
    wiring = random_wiring(Random(f"{seed}/{number}"), switches=7, extra=5)
    names = sorted(wiring.switches)
    far = {(a, b): 0 if a == b else 1 << 40 for a in names for b in names}
    latency = {}
    for one in wiring.links:
        pair = (one.a.switch, one.b.switch)
        latency[one.a] = latency[one.b] = one.latency_us
        far[pair] = far[pair[::-1]] = min(far[pair], one.latency_us)
    for k in names:
        for i in names:
            for j in names:
                far[i, j] = min(far[i, j], far[i, k] + far[k, j])
    trees = wiring.trees(TreeKind.SHORTEST)
    for root in names:
        tree = trees(root)
        for switch in names:
            path = tree.path(switch)
            assert (path[0], path[-1]) == (root, switch)
            assert sum(latency[PortPlace(one, tree.steps[one].up)] for one in path[1:]) == far[root, switch]


@pytest.mark.parametrize("kind", TreeKind)
def test_a_cut_ring_becomes_a_line_and_a_cut_line_two_parts(kind: TreeKind) -> None:
    whole = ring(6)
    tree = whole.trees(kind)("s0")
    assert max(len(tree.path(one)) for one in whole.switches) in (4, 6)
    [first, second] = [one for one in sorted(whole.links) if "s0" in (one.a.switch, one.b.switch)]
    once = Wiring.of(whole.switches, whole.links - {first})
    line = once.trees(kind)("s0")
    assert max(len(line.path(one)) for one in whole.switches) == 6
    twice = Wiring.of(whole.switches, whole.links - {first, second})
    alone = twice.trees(kind)("s0")
    assert [one for one in sorted(whole.switches) if alone.covers(one)] == ["s0"]


def test_a_tree_is_known_by_its_links_and_its_root() -> None:
    wiring = ring(6)
    again = Wiring.of(sorted(wiring.switches), sorted(wiring.links, reverse=True))
    for kind in TreeKind:
        trees, others = wiring.trees(kind), again.trees(kind)
        found = {root: trees(root).identifier for root in wiring.switches}
        assert found == {root: others(root).identifier for root in wiring.switches}
        assert len(set(found.values())) == 6
