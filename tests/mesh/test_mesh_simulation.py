"""Fifty nodes (thirty in the short tier) under loss, churn and parallel games: the mesh is whole again, members
throughout get everything once, tables and duplicates are bounded. A seed is a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from node_world import GAME, NodeWorld, is_connected, reached

from tallystick.carriers.mesh.community import CommunityLimits
from tallystick.carriers.mesh.forwarding import CoverChoice
from tallystick.carriers.mesh.localisation import LocalisationLimits
from tallystick.carriers.mesh.membership import ViewLimits
from tallystick.carriers.mesh.mesh_node import MeshSettings, Publication
from tallystick.runtime.network import Link

pytestmark = pytest.mark.simulation

SETTINGS = MeshSettings(
    view=ViewLimits(copies=0),
    covers=CoverChoice(0.1, 0.05),
    game=replace(GAME, decay=0.01, wait_s=3.0),
    community=CommunityLimits(pulse_s=3.0, silent_s=8.0),
    localisation=LocalisationLimits(retell_s=5.0, stale_s=18.0),
    tick_s=0.5,
)
SUBSCRIBERS = [f"n{number}" for number in (10, 12, 15, 18, 20, 23, 25, 28)]
PUBLISHERS = ["n4", "n7"]


def grown(number: int, link: Link, settings: MeshSettings, nodes: int = 50) -> tuple[NodeWorld, dict[str, Publication]]:
    world = NodeWorld(number, link)
    names = [f"n{index}" for index in range(nodes)]
    for index, name in enumerate(names):
        world.add(name, names[: min(index, 3)], settings)
        world.run(0.1)
    world.run(6)
    publications = {name: world.advertise(name) for name in PUBLISHERS}
    world.subscribe(*SUBSCRIBERS)
    world.run(10)
    return world, publications


def check_bounds(world: NodeWorld, settings: MeshSettings) -> None:
    view, matching = settings.view, settings.matching
    for name in world.living():
        node = world.node(name)
        assert len(node.membership.view) <= view.view_max
        assert len(node.membership.known) <= view.view_max + view.holders_max + 2 * matching.links_max
        assert len(node.localisation.known) <= len(PUBLISHERS)
        assert len(node.matching.topics) <= 1
        assert all(len(links) <= matching.links_max for links in node.matching.topics.values())
        assert len(node.distribution.kept) <= settings.distribution.kept_max
        assert len(node.game.locks) <= 1


def check_whole(world: NodeWorld) -> None:
    links = world.links()
    assert {*SUBSCRIBERS, *PUBLISHERS} <= reached(links, PUBLISHERS[0])
    assert is_connected(links)


def run(
    number: int, loss: float = 0.05, settings: MeshSettings = SETTINGS, nodes: int = 50, rounds: int = 15
) -> NodeWorld:
    """Publish while others crash, in the middle of what they do, and come back."""
    random = Random(number)
    world, publications = grown(number, Link(loss=loss, duplicate=0.02, reorder=0.05), settings, nodes)
    others = [name for name in world.identities if name not in (*SUBSCRIBERS, *PUBLISHERS, "n0", "n1", "n2")]
    down: list[str] = []
    for count in range(rounds):
        publisher = random.choice(PUBLISHERS)
        world.publish(publisher, publications[publisher], b"%d" % count)
        chosen = random.choice(others)
        if world.alive(chosen) and len(down) < 8:
            world.network.crash_midway(world.identities[chosen].hex())
            down.append(chosen)
        elif down and not world.alive(down[0]):
            world.restart(down.pop(0))
        world.run(1.5)
        check_bounds(world, settings)
    world.run(20)
    assert is_connected(world.graph())
    check_whole(world)
    expected = Counter(b"%d" % count for count in range(rounds))
    assert {name: world.delivered()[name] for name in SUBSCRIBERS} == dict.fromkeys(SUBSCRIBERS, expected)
    check_duplicates(world)
    return world


def check_duplicates(world: NodeWorld) -> None:
    """Of an envelope a node gets at most one for each link that it had meanwhile, and for each time that it asked."""
    envelopes = world.counts["NOTIFY"]
    new = sum(len(one) for one in world.delivered().values())
    links = sum(len(near) for near in world.links().values())
    pulses = len({value.identifier for _, _, value in world.network.delivered})
    assert new <= envelopes <= 4 * pulses * links + world.counts["WANT"]


def test_members_throughout_get_everything_once(seed: int) -> None:
    world = run(seed, nodes=30, rounds=10)
    assert sum(world.node(name).game.swaps for name in world.living()) > 3


@pytest.mark.long
@pytest.mark.parametrize("number", range(12))
def test_they_do_with_many_seeds(number: int) -> None:
    run(number, loss=(0.0, 0.05, 0.15)[number % 3])


@pytest.mark.long
@pytest.mark.parametrize("number", range(4))
def test_members_that_crash_and_come_back_are_members_again(number: int) -> None:
    """Subscribers crash too: they lose what was published meanwhile, and the mesh takes them back."""
    random = Random(number)
    world, publications = grown(number, Link(loss=0.05), SETTINGS)
    for _ in range(6):
        one, other = random.sample([*SUBSCRIBERS, "n3", "n5", "n8", "n11"], 2)
        for name in (one, other):
            world.network.crash_midway(world.identities[name].hex())
        world.run(6)
        for name in (one, other):
            if not world.alive(name):
                world.restart(name)
                world.subscribe(*({name} & {*SUBSCRIBERS}))
        world.run(6)
    world.run(20)
    check_whole(world)
    world.publish("n4", publications["n4"], b"last")
    world.run(5)
    assert all(world.delivered()[name][b"last"] == 1 for name in SUBSCRIBERS)
