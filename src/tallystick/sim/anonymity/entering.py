"""M_a as the product's nodes make it: one word after another, by nodes that know no more than their own links.

`mesh.py` has the paper's order: first all paths, then the covers. Nodes do not wait for each other. Whoever enters asks
the next hops at once, and draws covers at once, of the neighbours with whom it has no link yet; a cover that later
turns out to be on a path, or subscribes, asks the next hops then and draws nothing a second time. So a mesh has fewer
covers than the paper's order would give it, and an observer sees nothing of a cover that subscribes.

Words that were said in one round arrive in the next, as on links of one delay. A word is `forward` (I get the topic
through you: go on towards the publishers) or else makes the receiver a cover. Checked against the protocol's classes,
link by link, in `tests/mesh/test_mesh_simulator.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tallystick.sim.anonymity.graph import Graph, Numbers, PathTree
from tallystick.sim.anonymity.mesh import TopicMesh, seat


class Entering:
    """Nodes of one topic while they enter. `mu` and `again` are probabilities, for all nodes or for each."""

    def __init__(
        self,
        graph: Graph,
        trees: Sequence[PathTree],
        random: np.random.Generator,
        mu: float | Numbers = 0.0,
        again: float | Numbers = 0.0,
    ) -> None:
        self._graph, self._trees, self._random = graph, trees, random
        self._mu, self._again = (np.broadcast_to(one, graph.nodes) for one in (mu, again))
        self._inside, self._asked = np.zeros((2, graph.nodes), dtype=bool)
        self._layer = np.zeros(graph.nodes, dtype=int)
        self._links = np.zeros(0, dtype=int)  # as keys: above and below
        self._gets = np.zeros(0, dtype=int)  # those of them that the one below knows of

    def subscribe(self, wanted: Numbers) -> None:
        """Let nodes want the topic at the same time, in this order, and wait until nobody has anything to say."""
        reached = [tree.hops[wanted] > 0 for tree in self._trees]
        wanted = wanted[np.any(reached, axis=0)]  # the others wait for somebody who advertises it
        fresh, nobody = ~self._inside[wanted], np.full(len(wanted), -1)
        self._inside[wanted] = True
        said = _in_order(self._go_on(wanted, np.arange(len(wanted)), nobody, fresh, np.zeros((0, 2), dtype=int)))
        while len(said):
            said = self._hear(*said.T)

    def mesh(self, publishers: Numbers, subscribers: Numbers) -> TopicMesh:
        ends = np.stack([self._links // self._graph.nodes, self._links % self._graph.nodes], axis=1)
        found = seat(ends, publishers, subscribers)
        return replace(found, layer=self._layer[found.node])

    def _hear(self, sender: Numbers, receiver: Numbers, forward: Numbers) -> Numbers:
        """The words of one round, in order. Returns those of the next."""
        turn, is_cover = np.arange(len(sender)), forward == 0
        came = np.stack([self._key(sender, receiver), turn], axis=1)[is_cover]
        first = np.unique(receiver, return_index=True)[1]
        first = first[~self._inside[receiver[first]]]  # the word that makes a node a member
        self._inside[receiver[first]] = True
        covers = first[is_cover[first]]
        self._layer[receiver[covers]] = self._layer[sender[covers]] + 1
        drawn = self._draw(receiver[covers], covers, sender[covers], self._again, came[:0, 0])
        asking = turn[~is_cover]
        asking = asking[np.unique(receiver[asking], return_index=True)[1]]
        said = self._go_on(receiver[asking], asking, sender[asking], np.isin(asking, first), came)
        self._gets = np.union1d(self._gets, came[:, 0])
        return _in_order(np.concatenate([drawn, said]))

    def _go_on(self, nodes: Numbers, turn: Numbers, heard: Numbers, fresh: Numbers, came: Numbers) -> Numbers:
        """Ask the next hops, once; and draw, where it is the first thing that a node does in this mesh."""
        some = ~self._asked[nodes]
        nodes, turn, heard, fresh = nodes[some], turn[some], heard[some], fresh[some]
        self._asked[nodes], self._layer[nodes] = True, 0
        asks = [np.zeros((0, 4), dtype=int)]
        for tree in self._trees:
            some = tree.hops[nodes] > 0
            hop = tree.parent[nodes[some]]
            asks.append(np.stack([nodes[some], hop, np.ones_like(hop), turn[some]], axis=1))
        said = np.unique(np.concatenate(asks), axis=0)
        keys = self._key(said[:, 1], said[:, 0])
        sooner = (came[:, 0] == keys[:, None]) & (came[:, 1] < said[:, 3:])
        said = said[~np.isin(keys, self._gets) & ~sooner.any(axis=1)]  # who drew us sends us the topic already
        asked = self._key(said[:, 1], said[:, 0])
        self._links, self._gets = np.union1d(self._links, asked), np.union1d(self._gets, asked)
        drawn = self._draw(nodes[fresh], turn[fresh], heard[fresh], self._mu, self._key(said[:, 0], said[:, 1]))
        return np.concatenate([said, drawn])

    def _draw(self, nodes: Numbers, turn: Numbers, heard: Numbers, chance: Numbers, asked: Numbers) -> Numbers:
        """Covers among the neighbours, but for the one heard from and those asked."""
        place, beside = self._graph.links(nodes)
        drawer = nodes[place]
        taken = (beside != heard[place]) & ~np.isin(self._key(drawer, beside), asked)
        taken &= self._random.random(len(beside)) < chance[drawer]
        drawer, beside = drawer[taken], beside[taken]
        self._links = np.union1d(self._links, self._key(drawer, beside))
        return np.stack([drawer, beside, np.zeros_like(beside), turn[place[taken]]], axis=1)

    def _key(self, above: Numbers, below: Numbers) -> Numbers:
        found: Numbers = above * self._graph.nodes + below
        return found


def _in_order(said: Numbers) -> Numbers:
    """By whose turn it was; a node's own words in the order in which it says them."""
    found: Numbers = said[np.argsort(said[:, 3], kind="stable"), :3]
    return found
