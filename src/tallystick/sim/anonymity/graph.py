"""The basic overlay G: who is whose neighbour, and the shortest paths that an advertisement finds in it.

The paper has "small-world networks generated according to the Watts–Strogatz model" of 500 nodes. Rewiring links, as
that model does, gives none of its numbers at degree 2, where it cuts the ring. A ring lattice with one random link more
at about three nodes in ten does (141 nodes in the mesh, .299 and .514 of them subscribers), so this is what we draw.

Everything is an array over all nodes, level by level, so that the cost of a node does not grow with their number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]
ADDED = 0.31  # random links for each node of the lattice


class Graph(NamedTuple):
    """Neighbours in one array: those of node v are `to[first[v]:first[v + 1]]`, in order."""

    first: Numbers
    to: Numbers

    @property
    def nodes(self) -> int:
        return len(self.first) - 1

    def links(self, nodes: Numbers) -> tuple[Numbers, Numbers]:
        """All links of the given nodes: for each the place of its node in `nodes`, and the neighbour."""
        begin, count = self.first[nodes], np.diff(self.first)[nodes]
        place = np.repeat(np.arange(len(nodes)), count)
        within = np.arange(len(place)) - np.repeat(np.cumsum(count) - count, count)
        return place, self.to[begin[place] + within]

    def has(self, ends: Numbers) -> Numbers:
        """Whether each pair of nodes is a link."""
        keys = np.repeat(np.arange(self.nodes), np.diff(self.first)) * self.nodes + self.to
        wanted = ends[:, 0] * self.nodes + ends[:, 1]
        found = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        return keys[found] == wanted if len(keys) else np.zeros(len(wanted), dtype=bool)


class PathTree(NamedTuple):
    """What an advertisement leaves behind: for each node the neighbour it came from first, and how many hops it took.
    The root is its own parent; who was not reached has -1 in both."""

    parent: Numbers
    hops: Numbers


def joined(nodes: int, ends: Numbers) -> Graph:
    """The graph of these pairs, taken in both directions and once each."""
    ends = ends[ends[:, 0] != ends[:, 1]]
    keys = np.unique(np.concatenate([ends[:, 0] * nodes + ends[:, 1], ends[:, 1] * nodes + ends[:, 0]]))
    first = np.searchsorted(keys, np.arange(nodes + 1) * nodes)
    return Graph(first, keys % nodes)


def small_world(nodes: int, degree: int, random: np.random.Generator, added: float = ADDED) -> Graph:
    ring = np.arange(nodes)
    near = [np.stack([ring, (ring + far) % nodes], axis=1) for far in range(1, degree // 2 + 1)]
    some = np.flatnonzero(random.random(nodes) < added)
    return joined(nodes, np.concatenate([*near, np.stack([some, random.integers(0, nodes, len(some))], axis=1)]))


def advertise(graph: Graph, publisher: int, random: np.random.Generator, away: Numbers | None = None) -> PathTree:
    """Flood an advertisement (4.3). Of several neighbours at the same distance any may be the first. Nodes that are
    `away` neither take nor pass it."""
    parent, hops = np.full((2, graph.nodes), -1)
    parent[publisher], hops[publisher] = publisher, 0
    closed = np.zeros(graph.nodes, dtype=bool) if away is None else away
    reached = np.array([publisher])
    while len(reached):
        place, heard = graph.links(reached)
        new = np.flatnonzero((hops[heard] < 0) & ~closed[heard])
        new = random.permutation(new)
        parent[heard[new]] = reached[place[new]]
        level = hops[reached[0]] + 1
        reached = np.unique(heard[new])
        hops[reached] = level
    return PathTree(parent, hops)


def distances(graph: Graph, root: int) -> Numbers:
    """Hops from one node to all; -1 where there is no way."""
    return advertise(graph, root, np.random.default_rng(0)).hops
