"""M_a, the mesh of one topic: publishers, subscribers, forwarders on the shortest paths between them, and covers.

A mesh is a set of places with directed links, away from the publisher, and a node on each place. The shell game moves
nodes and keeps places (4.5: two nodes exchange their neighbours), so a game is a permutation and no link is ever drawn
anew.

Probabilistic forwarding (4.6): a node adds each neighbour outside M_a with probability μ, once. As the paper has it, a
node knows which of its neighbours are in M_a, and covers draw none (`again` = 0); or they draw with a probability of
their own, to no fixed depth. `entering.py` has the mesh as it is built, by nodes that know less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from tallystick.sim.anonymity.graph import Graph, Numbers, PathTree, joined

FORWARDER, SUBSCRIBER, PUBLISHER = range(3)


@dataclass(frozen=True)
class TopicMesh:
    node: Numbers  # on each place
    role: Numbers  # of that node; a cover is a forwarder, as it believes itself
    layer: Numbers  # of that node: 0 on a path, 1 a cover, 2 a cover's cover …
    links: Numbers  # pairs of places, away from the publisher

    @property
    def size(self) -> int:
        return len(self.node)

    @property
    def subscribers(self) -> Numbers:
        """Which places have a subscriber."""
        return cast(Numbers, self.role == SUBSCRIBER)

    @property
    def onward(self) -> Numbers:
        """How many links lead on from each place: |N⁻|."""
        return np.bincount(self.links[:, 0], minlength=self.size)

    @property
    def leaves(self) -> Numbers:
        return cast(Numbers, self.onward == 0)

    def around(self) -> Graph:
        """Places that have a link with one another, in either direction."""
        return joined(self.size, self.links)

    def seated(self, seats: Numbers) -> TopicMesh:
        """The same places, where `seats` says whose first place each node had."""
        return replace(self, node=self.node[seats], role=self.role[seats], layer=self.layer[seats])


def grow(nodes: int, trees: Sequence[PathTree], publishers: Numbers, subscribers: Numbers) -> TopicMesh:
    """Subscribe: from each subscriber, and each further publisher (4.3, Fig. 5), back to every publisher on the path by
    which its advertisement came. A subscription names the topic and no publisher, so that whoever gets one goes on
    towards all of them. Who was not reached stays outside."""
    keys, at = [], np.unique(np.concatenate([subscribers, publishers]))
    seen = np.zeros(nodes, dtype=bool)
    while len(at):
        seen[at] = True
        asked = []
        for tree in trees:
            below = at[tree.hops[at] > 0]
            asked.append(tree.parent[below])
            keys.append(asked[-1] * nodes + below)
        above = np.unique(np.concatenate(asked))
        at = above[~seen[above]]
    ends = np.unique(np.concatenate([*keys, np.zeros(0, dtype=int)]))
    return seat(np.stack([ends // nodes, ends % nodes], axis=1), publishers, subscribers)


def seat(ends: Numbers, publishers: Numbers, subscribers: Numbers) -> TopicMesh:
    """The mesh of these links, each a pair of nodes, away from the publisher."""
    members = np.unique(np.concatenate([ends.ravel(), publishers]))
    role = np.full(len(members), FORWARDER)
    role[np.isin(members, subscribers)] = SUBSCRIBER
    role[np.isin(members, publishers)] = PUBLISHER
    return TopicMesh(members, role, np.zeros_like(members), np.searchsorted(members, ends))


def cover(graph: Graph, mesh: TopicMesh, mu: float, random: np.random.Generator, again: float = 0.0) -> TopicMesh:
    """Add covers: every member's with probability `mu` for each neighbour, then theirs with probability `again`."""
    place_of = np.full(graph.nodes, -1)
    place_of[mesh.node] = np.arange(mesh.size)
    node, layer, links, drawing, depth = mesh.node, mesh.layer, [mesh.links], np.arange(mesh.size), 0
    while len(drawing) and (mu if depth == 0 else again) > 0:
        depth += 1
        drawer, chosen = graph.links(node[drawing])
        drawer = drawing[drawer]
        may = place_of[chosen] < 0
        taken = may & (random.random(len(chosen)) < (mu if depth == 1 else again))
        drawer, chosen = drawer[taken], chosen[taken]
        fresh = np.unique(chosen[place_of[chosen] < 0])
        drawing = len(node) + np.arange(len(fresh))
        place_of[fresh] = drawing
        node, layer = np.concatenate([node, fresh]), np.concatenate([layer, np.full(len(fresh), depth)])
        links.append(np.stack([drawer, place_of[chosen]], axis=1))
    role = np.concatenate([mesh.role, np.full(len(node) - mesh.size, FORWARDER)])
    return TopicMesh(node, role, layer, np.concatenate(links))


def attach(mesh: TopicMesh, tree: PathTree, newcomers: Numbers) -> TopicMesh:
    """Let nodes subscribe to a mesh that is there already, wherever games have put its members. A subscription goes up
    the path by which the advertisement came until it meets a member, and stays with it."""
    place_of = np.full(len(tree.parent), -1)
    place_of[mesh.node] = np.arange(mesh.size)
    node, links = mesh.node.tolist(), mesh.links.tolist()
    for newcomer in newcomers.tolist():
        below, at = -1, newcomer
        while place_of[at] < 0:
            place_of[at] = len(node)
            node.append(at)
            if below >= 0:
                links.append([place_of[at], place_of[below]])
            below, at = at, int(tree.parent[at])
        if below >= 0:
            links.append([place_of[at], place_of[below]])
    role = np.concatenate([mesh.role, np.full(len(node) - mesh.size, FORWARDER)])
    role[place_of[newcomers]] = SUBSCRIBER
    layer = np.concatenate([mesh.layer, np.zeros(len(node) - mesh.size, dtype=int)])
    return TopicMesh(np.array(node), role, layer, np.array(links))
