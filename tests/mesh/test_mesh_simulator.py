"""The vectorised simulator of `experiments/anonpubsub` against the protocol's own classes, on small graphs: the same
graph, the same subscribers and the same choices give the same mesh, link by link, the same messages and the same swaps.
What is drawn anew in each is compared as a distribution."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import mean

import numpy as np
import pytest
from mesh_world import mesh_key
from node_world import GAME, STILL, NodeWorld

from tallystick.carriers.mesh.community import CommunityLimits
from tallystick.carriers.mesh.forwarding import CoverChoice
from tallystick.carriers.mesh.localisation import LocalisationLimits
from tallystick.carriers.mesh.mesh_node import MeshSettings, Publication
from tallystick.runtime.network import Link
from tallystick.sim.anonymity.entering import Entering
from tallystick.sim.anonymity.games import GameRules as Rules
from tallystick.sim.anonymity.games import play
from tallystick.sim.anonymity.graph import Graph, Numbers, distances, joined, small_world
from tallystick.sim.anonymity.graph import PathTree as Tree
from tallystick.sim.anonymity.mesh import TopicMesh as Mesh
from tallystick.sim.anonymity.mesh import grow, seat
from tallystick.sim.anonymity.scene import watch

BRAKES = mesh_key().pseudonym
QUIET = replace(STILL, community=CommunityLimits(pulse_s=10_000.0, silent_s=30_000.0))
EVEN = Link(0.005, 0.005)  # nothing overtakes anything
NODES = 40


def world_of(number: int, graph: Graph, settings: MeshSettings, link: Link = EVEN, **others: MeshSettings) -> NodeWorld:
    world = NodeWorld(number, link)
    for node in range(graph.nodes):
        world.add(f"n{node}", settings=others.get(f"n{node}", settings))
    place, beside = graph.links(np.arange(graph.nodes))
    world.connect(*[(f"n{one}", f"n{other}") for one, other in zip(place, beside, strict=True) if one < other])
    return world


def index_of(world: NodeWorld, identity: bytes) -> int:
    return int(world.names[identity.hex()][1:])


def tree_of(world: NodeWorld, publication: Publication, root: int, nodes: int) -> Tree:
    """What an advertisement left behind at the protocol's nodes, as the simulator has it."""
    parent, hops = np.full((2, nodes), -1)
    parent[root], hops[root] = root, 0
    for node in set(range(nodes)) - {root}:
        known = world.node(f"n{node}").localisation.known[publication.handle]
        assert known.next_hop is not None
        parent[node] = index_of(world, known.next_hop)
        hops[node] = publication.chain.length - known.ways[known.next_hop].steps + 1
    return Tree(parent, hops)


def downward(world: NodeWorld) -> set[tuple[int, int]]:
    """Links of the topic: who gets it through whom."""
    return {
        (int(name[1:]), index_of(world, one))
        for name in world.living()
        for one, link in world.node(name).matching.links(BRAKES).items()
        if link.is_down
    }


def links_of(mesh: Mesh) -> set[tuple[int, int]]:
    return {(above, below) for above, below in mesh.node[mesh.links].tolist()}


def drawn_graph(seed: int, nodes: int = NODES) -> tuple[Graph, Numbers, np.random.Generator]:
    random = np.random.default_rng(seed)
    graph = small_world(nodes, 4, random)
    return graph, np.sort(random.permutation(np.arange(1, nodes))[: nodes // 5]), random


def subscribed(world: NodeWorld, publishers: list[int], subscribers: Numbers) -> tuple[list[Publication], list[Tree]]:
    publications = [world.advertise(f"n{one}") for one in publishers]
    world.run(3)
    trees = [tree_of(world, *one, world_size(world)) for one in zip(publications, publishers, strict=True)]
    world.subscribe(*[f"n{one}" for one in subscribers])
    world.run(1)
    return publications, trees


def world_size(world: NodeWorld) -> int:
    return len(world.identities)


# --- the mesh of a topic ---


@pytest.mark.parametrize("publishers", [[0], [0, 17]], ids=["one", "two"])
def test_the_same_advertisements_and_subscribers_give_the_same_mesh_and_messages(
    publishers: list[int], seed: int
) -> None:
    graph, subscribers, _ = drawn_graph(seed)
    subscribers = subscribers[~np.isin(subscribers, publishers)]
    world = world_of(seed, graph, QUIET)
    publications, trees = subscribed(world, publishers, subscribers)
    for tree, root in zip(trees, publishers, strict=True):
        assert (tree.hops == distances(graph, root)).all()
    mesh = grow(graph.nodes, trees, np.array(publishers), subscribers)
    assert links_of(mesh) == downward(world)
    before = world.counts["NOTIFY"]
    world.publish("n0", publications[0], b"parcel")
    world.run(0.4)  # before anybody tells names
    view = watch(graph, mesh, both_ways=True)
    assert world.counts["NOTIFY"] - before == len(view.flow)
    assert world.delivered().keys() == {f"n{one}" for one in subscribers}
    leaves = {int(name[1:]) for name, near in world.links().items() if len(near) == 1}
    assert set(view.node[view.leaves].tolist()) == leaves - {publishers[0]}


def hops_after_one_overtook(number: int, settle_s: float) -> list[int]:
    """0 reaches 2 sooner by way of 1 than directly, so 2 says two values to 3, and the second comes first."""
    graph = joined(4, np.array([(0, 1), (1, 2), (0, 2), (2, 3)]))
    world = world_of(number, graph, replace(QUIET, localisation=LocalisationLimits(settle_s=settle_s)))
    ends = [world.identities[f"n{node}"].hex() for node in range(4)]
    world.network.set_link(ends[0], ends[2], Link(0.2, 0.2))
    world.network.set_link(ends[2], ends[3], Link(1.0, 1.0))
    publication = world.advertise("n0")
    world.run(0.1)  # the way by 1
    world.network.set_link(ends[2], ends[3], EVEN)
    world.run(8)
    return [int(hops) for hops in tree_of(world, publication, 0, 4).hops]


def test_paths_are_the_shortest_though_advertisements_overtake_each_other(seed: int) -> None:
    assert hops_after_one_overtook(seed, 5.0) == [0, 1, 1, 2]
    assert hops_after_one_overtook(seed, 300.0) == [0, 1, 1, 3]  # without a second telling
    graph, _, _ = drawn_graph(seed, 20)
    world = world_of(seed, graph, QUIET, Link(reorder=0.3))
    publication = world.advertise("n0")
    world.run(8)
    assert (tree_of(world, publication, 0, 20).hops == distances(graph, 0)).all()


# --- covers ---


@pytest.mark.parametrize("number", range(3))
def test_the_same_covers_give_the_same_mesh(number: int, seed: int) -> None:
    """Who draws is given in: some draw all their neighbours, the others none; in one part as covers, too."""
    graph, subscribers, random = drawn_graph(seed + number)
    mu, again = (random.random(NODES) < 0.5).astype(float), (random.random(NODES) < 0.2 * number).astype(float)
    choices = {f"n{node}": replace(QUIET, covers=CoverChoice(mu[node], again[node])) for node in range(NODES)}
    world = world_of(seed, graph, QUIET, EVEN, **choices)
    _, trees = subscribed(world, [0], subscribers)
    entering = Entering(graph, trees, random, mu, again)
    entering.subscribe(subscribers)
    mesh = entering.mesh(np.array([0]), subscribers)
    assert links_of(mesh) == downward(world)
    assert mesh.size > grow(NODES, trees, np.array([0]), subscribers).size


# --- the shell game ---


def standing(number: int, graph: Graph, subscribers: Numbers, settings: MeshSettings) -> tuple[NodeWorld, Mesh]:
    """A mesh that stands, in both."""
    world = world_of(number, graph, settings)
    _, trees = subscribed(world, [0], subscribers)
    return world, grow(graph.nodes, trees, np.array([0]), subscribers)


def spent(world: NodeWorld, before: Counter[str]) -> int:
    """Messages of games since then. Words are repeated as well, so they are counted by what they release."""
    kinds = ("LOCK", "VOTE", "DECIDE", "UNSUBSCRIBE", "UNSUBSCRIBE")
    return sum((world.counts - before)[kind] for kind in kinds)


def test_the_same_swaps_give_the_same_mesh_for_the_same_messages(seed: int) -> None:
    graph, subscribers, random = drawn_graph(seed)
    world, mesh = standing(seed, graph, subscribers, QUIET)
    played = play(mesh, Rules(games_max=8, publishers_play=True), random)
    seats, told = np.arange(mesh.size), 0
    for v, w in played.swaps.tolist():
        before = Counter(world.counts)
        challenge(world, *(f"n{mesh.node[seats[place]]}" for place in (v, w)))
        world.run(3)  # until all have said a word again: whoever has not been heard is not settled
        seats[[v, w]] = seats[[w, v]]
        assert links_of(mesh.seated(seats)) == downward(world)
        told += spent(world, before)
    assert (seats == played.seats).all()
    assert told == played.built
    assert played.estimated <= played.built <= 5 * played.estimated  # 4.7 asks no neighbour of w, and nobody answers


def challenge(world: NodeWorld, name: str, partner: str) -> None:
    node = world.node(name)
    node._outbox.append(lambda now: node.game.challenge(BRAKES, world.identities[partner], now))


def played_by_nodes(number: int, seconds: float) -> tuple[Mesh, Mesh, int]:
    """The mesh before and after games of the protocol's nodes, and how many these were. A game itself takes a moment
    on these links; its two players take part in the next when their new neighbours have said a word."""
    graph, subscribers, _ = drawn_graph(number)
    world, mesh = standing(number, graph, subscribers, replace(QUIET, game=replace(QUIET.game, decay=0.0)))
    for name in world.living():
        world.node(name).game._limits = replace(GAME, decay=0.0, wait_s=5.0)
    world.run(seconds)
    for name in world.living():
        world.node(name).game._limits = replace(GAME, plays=False)
    world.run(6)
    after = seat(np.array(sorted(downward(world))), np.array([0]), subscribers)
    return mesh, after, sum(world.node(name).game.swaps for name in world.living())


def leaves_that_subscribe(mesh: Mesh) -> float:
    return float(mesh.subscribers[mesh.leaves].mean())


@pytest.mark.long
def test_as_many_games_are_played_and_leaves_tell_as_much() -> None:
    seconds, rules = 40.0, Rules(seconds_max=40.0, game_s=1.5, publishers_play=True)
    theirs: list[tuple[float, float]] = []
    ours: list[tuple[float, float]] = []
    for number in range(8):
        mesh, after, games = played_by_nodes(number, seconds)
        assert sorted(np.diff(mesh.around().first)) == sorted(np.diff(after.around().first))
        theirs.append((games, leaves_that_subscribe(after)))
        for again in range(10):
            played = play(mesh, rules, np.random.default_rng([number, again]))
            ours.append((played.games, leaves_that_subscribe(mesh.seated(played.seats))))
    games, leaves = np.mean(theirs, axis=0) - np.mean(ours, axis=0)
    assert abs(games) < 0.2 * np.mean(ours, axis=0)[0]
    assert abs(leaves) < 0.12


@pytest.mark.long
def test_covers_drawn_by_nodes_are_as_many_as_in_the_simulator() -> None:
    """With choices of their own, on graphs of the same kind."""
    sizes: list[tuple[float, float]] = []
    for number in range(12):
        graph, subscribers, random = drawn_graph(number)
        world = world_of(number, graph, replace(QUIET, covers=CoverChoice(0.5, 0.1)))
        _, trees = subscribed(world, [0], subscribers)
        meshes = []
        for _ in range(10):
            entering = Entering(graph, trees, random, 0.5, 0.1)
            entering.subscribe(subscribers)
            meshes.append(entering.mesh(np.array([0]), subscribers))
        links = {frozenset(pair) for pair in downward(world)}
        sizes.append((len(links), mean(len(mesh.around().to) // 2 for mesh in meshes)))
    theirs, ours = np.mean(sizes, axis=0)
    assert abs(theirs - ours) < 0.06 * ours
