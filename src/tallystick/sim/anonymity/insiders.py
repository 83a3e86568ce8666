"""Insiders, alone and colluding (4.7): among how many nodes a publisher and a subscriber can still hide.

They know G, as the paper assumes, and play a role of their own: false subscribers look for a publisher, by the
neighbour from which its advertisement came first and by the hash chain's values; a false publisher and relays that
collude with it look for subscribers. `experiments/anonpubsub/inside.py` has what they get.
"""

from __future__ import annotations

import numpy as np

from tallystick.sim.anonymity.graph import Graph, Numbers, distances

Hops = Numbers | dict[int, Numbers]


def all_distances(graph: Graph) -> Numbers:
    """Hops between all pairs, level by level."""
    beside = np.zeros((graph.nodes, graph.nodes), dtype=np.float32)
    beside[np.repeat(np.arange(graph.nodes), np.diff(graph.first)), graph.to] = 1
    hops = np.full(beside.shape, -1)
    np.fill_diagonal(hops, 0)
    level, reached = 0, np.eye(graph.nodes, dtype=np.float32)
    while reached.any():
        level += 1
        reached = ((reached @ beside > 0) & (hops < 0)).astype(np.float32)
        hops[reached > 0] = level
    return hops


def distances_around(graph: Graph, nodes: Numbers) -> dict[int, Numbers]:
    """Hops from these nodes and from their neighbours to all: what `may_publish` needs of a large graph."""
    wanted = np.unique(np.concatenate([nodes, graph.links(nodes)[1]]))
    return {one: distances(graph, one) for one in wanted.tolist()}


def may_publish(graph: Graph, hops: Hops, insiders: Numbers, publisher: int, parents: Numbers, chain: bool) -> Numbers:
    """Which nodes may be the publisher, for all that these insiders know. `hops` has the distances from them, from
    their parents and from their neighbours to all nodes."""
    may = np.ones(graph.nodes, dtype=bool)
    may[insiders] = False
    for insider, parent in zip(insiders, parents, strict=True):
        may &= hops[int(parent)] == hops[int(insider)] - 1
    if chain:
        # A value comes from every neighbour, and all of them are compared with the first insider's.
        _, beside = graph.links(insiders)
        heard = np.concatenate([insiders, beside[~np.isin(beside, insiders)]])
        nearer = np.stack([hops[int(one)] for one in heard]) - hops[int(insiders[0])]
        may &= (nearer == nearer[:, [publisher]]).all(axis=0)
    return may


def may_subscribe(graph: Graph, away: Numbers, first: int, honest: Numbers) -> int:
    """How many honest nodes can send a subscription through `first` by honest nodes, nearer to the publisher each."""
    seen, at = np.zeros(graph.nodes, dtype=bool), np.array([first])
    while len(at):
        seen[at] = True
        place, beside = graph.links(at)
        on = honest[beside] & (away[beside] == away[at][place] + 1) & ~seen[beside]
        at = np.unique(beside[on])
    return int(seen.sum())


def hidden_among(graph: Graph, parent: Numbers, away: Numbers, subscriber: int, honest: Numbers) -> int:
    """Go up to the last honest node before an insider; count who might have begun behind it."""
    last = subscriber
    while honest[parent[last]]:
        last = int(parent[last])
    return may_subscribe(graph, away, last, honest)
