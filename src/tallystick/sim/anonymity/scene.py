"""A drawn world, and what an observer of all its links sees of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tallystick.sim.anonymity.entering import Entering
from tallystick.sim.anonymity.games import GameRules, Played, play
from tallystick.sim.anonymity.graph import Graph, Numbers, PathTree, advertise, distances, joined, small_world
from tallystick.sim.anonymity.mesh import PUBLISHER, TopicMesh, cover, grow


@dataclass(frozen=True)
class MeshScene:
    """What a figure varies. The paper's setting, where it has one."""

    nodes: int = 500
    degree: int = 4
    ratio: float = 0.1  # |S|/|V|
    publishers: int = 1
    mu: float = 0.0  # μ: covers of a member
    again: float = 0.0  # covers of a cover
    is_built: bool = False  # M_a as the product's nodes make it, who know less than the paper's
    rules: GameRules | None = None  # of the shell game
    both_ways: bool = False  # notifications flood M_a in both directions

    @property
    def name(self) -> str:
        covers = "PF" if self.mu else ""
        return (covers + ("SG" if self.rules else "") or "BL") + ("+" if self.again else "")


@dataclass(frozen=True)
class MeshWorld:
    graph: Graph
    tree: PathTree  # of the first publisher's advertisement
    first: TopicMesh  # before the games
    mesh: TopicMesh  # after them
    played: Played | None
    both_ways: bool = False

    def view(self) -> LinkView:
        """What an observer of all links sees of a notification."""
        return watch(self.graph, self.mesh, self.both_ways)


@dataclass(frozen=True)
class LinkView:
    """What an observer of all links has: the neighbours, who sent a notification to whom, and who sent first. Nodes are
    counted from 0 here, in an order that tells nothing; `node` has their names in G."""

    graph: Graph
    node: Numbers
    flow: Numbers  # pairs of nodes: who sent, who received
    source: int

    @property
    def size(self) -> int:
        return len(self.node)

    @property
    def onward(self) -> Numbers:
        return np.bincount(self.flow[:, 0], minlength=self.size)

    @property
    def leaves(self) -> Numbers:
        """Who received and sent to nobody."""
        found: Numbers = self.onward == 0
        found[self.source] = False
        return found

    @cached_property
    def hops(self) -> Numbers:
        """How far each is in G from the first to send."""
        return distances(self.graph, int(self.node[self.source]))[self.node]

    @cached_property
    def heights(self) -> Numbers:
        """In which round of peeling leaves each node would be taken; who never is comes a round after the last."""
        height, left, level = np.full(self.size, -1), self.flow, 0
        while True:
            sends = np.bincount(left[:, 0], minlength=self.size)
            taken = (height < 0) & (sends == 0)
            if not taken.any():
                height[height < 0] = level
                return height
            height[taken] = level
            left, level = left[height[left[:, 1]] < 0], level + 1


def draw(scene: MeshScene, random: np.random.Generator, graph: Graph | None = None) -> MeshWorld:
    graph = graph or small_world(scene.nodes, scene.degree, random)
    chosen = random.permutation(scene.nodes)
    publishers = chosen[: scene.publishers]
    subscribers = chosen[scene.publishers :][: round(scene.ratio * scene.nodes)]
    trees = [advertise(graph, int(publisher), random) for publisher in publishers]
    if scene.is_built:
        entering = Entering(graph, trees, random, scene.mu, scene.again)
        for wanting in (publishers, subscribers):
            entering.subscribe(wanting)
        mesh = entering.mesh(publishers, subscribers)
    else:
        mesh = grow(scene.nodes, trees, publishers, subscribers)
        mesh = cover(graph, mesh, scene.mu, random, scene.again) if scene.mu else mesh
    played = play(mesh, scene.rules, random) if scene.rules else None
    return MeshWorld(graph, trees[0], mesh, mesh.seated(played.seats) if played else mesh, played, scene.both_ways)


def watch(graph: Graph, mesh: TopicMesh, both_ways: bool = False) -> LinkView:
    """A notification of the first publisher, seen on all links. As the paper has it, it goes along directed links; as
    it is built, every node sends it on to all of its neighbours in M_a but the one that it came from."""
    source = int(np.flatnonzero(mesh.role == PUBLISHER)[0])
    if not both_ways:
        return LinkView(graph, mesh.node, mesh.links, source)
    around = mesh.around()
    came = advertise(around, source, np.random.default_rng(0))
    ends = np.stack(around.links(np.arange(mesh.size)), axis=1)  # once each, though two may get the topic both ways
    sent = (came.hops[ends[:, 0]] >= 0) & (came.parent[ends[:, 0]] != ends[:, 1])
    return LinkView(graph, mesh.node, ends[sent], source)


def heard(mesh: TopicMesh, both_ways: bool) -> float:
    """The part of subscribers that a notification reaches."""
    source = int(np.flatnonzero(mesh.role == PUBLISHER)[0])
    if both_ways:
        reached = distances(joined(mesh.size, mesh.links), source) >= 0
    else:
        reached = np.zeros(mesh.size, dtype=bool)
        reached[source] = True
        while True:
            more = reached[mesh.links[:, 0]] & ~reached[mesh.links[:, 1]]
            if not more.any():
                break
            reached[mesh.links[more, 1]] = True
    return float(reached[mesh.subscribers].mean())
