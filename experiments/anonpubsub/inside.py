"""Insiders, alone and colluding (4.7): how many nodes a publisher and a subscriber can hide among.

They know G, as the paper assumes, and play a role of their own.

    publisher   A false subscriber knows from which neighbour an advertisement came first. The publisher is then one of
                the nodes to which the way may begin there (`branch`); several put together what each of them knows.
                With the hash chain they know more (`chain`): whichever of two values can be hashed into the other was
                nearer, and by how many hops. The length D is secret, so distances are not known, but all differences
                are.
    subscriber  A false publisher knows which neighbours subscribed; with it some relays collude, who know the same of
                their own neighbours. A subscription that came out of a link was begun by one of the honest nodes that
                could send it there through honest nodes only.

The paper's bounds: |N⁺(p)|+1 for a publisher, which is 1 where there is one; |N⁻(s)|+1 for a subscriber.

Expected band: of 500 nodes, one insider leaves a publisher among 150 to 350 by branch and among 30 to 80 by chain. Two
leave one to three by chain, and four name it in eight of ten cases, where sixteen are needed without the chain: what
keeps insiders from lying about distances tells colluders the distances. A false publisher alone leaves a subscriber
among more than 100 nodes, with a tenth of all relays colluding among 40 to 140, with half of them among fewer than ten,
and one or two in ten subscribers stand alone. The bounds hold, except for one case in a hundred with half of all relays
colluding; but they are so low (1 for a leaf) that this says little.

Seed 4. `python -m experiments.anonpubsub.inside [--seed N] [--small]` writes inside.csv and .png to
build/experiments/anonpubsub.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median

import numpy as np

from experiments import results
from experiments.anonpubsub.panel import RUNS, SMALL_RUNS, outside
from experiments.results import Plot
from tallystick.sim.anonymity.graph import advertise, small_world
from tallystick.sim.anonymity.insiders import all_distances, hidden_among, may_publish
from tallystick.sim.anonymity.mesh import grow

NODES, DEGREE, RATIO = 500, 4, 0.1
AGAINST_PUBLISHER = (1, 2, 4, 8, 16, 32)
AGAINST_SUBSCRIBER = (0, 5, 25, 50, 100, 250)  # beside the false publisher


@dataclass(frozen=True)
class Row:
    hides: str  # publisher, subscriber
    knows: str  # branch, chain
    colluders: int
    run: int
    anonymity_set: float  # nodes that it may be; for subscribers the median
    alone: float  # the part of cases in which it can only be the one
    bound_holds: float  # the part of cases in which the set is at least as large as the paper's bound


def run(seed: int, small: bool = False) -> Iterator[Row]:
    for index in range(SMALL_RUNS if small else RUNS):
        random = np.random.default_rng([seed, 22, index])
        graph = small_world(NODES, DEGREE, random)
        hops = all_distances(graph)
        chosen = random.permutation(NODES)
        publisher, others = int(chosen[0]), chosen[1:]
        tree = advertise(graph, publisher, random)
        for count in AGAINST_PUBLISHER:
            for chain in (False, True):
                insiders = others[:count]
                may = may_publish(graph, hops, insiders, publisher, tree.parent[insiders], chain)
                size = int(may.sum())
                yield Row(
                    "publisher", "chain" if chain else "branch", count, index, size, float(size == 1), float(size >= 1)
                )
        subscribers = others[: round(RATIO * NODES)]
        mesh = grow(NODES, [tree], np.array([publisher]), subscribers)
        onward = np.zeros(NODES, dtype=int)
        onward[mesh.node] = mesh.onward
        relays = others[len(subscribers) :]
        for count in AGAINST_SUBSCRIBER:
            honest = np.ones(NODES, dtype=bool)
            honest[publisher], honest[relays[:count]] = False, False
            sizes = np.array([hidden_among(graph, tree.parent, tree.hops, int(one), honest) for one in subscribers])
            told = (
                float(np.median(sizes)),
                float((sizes == 1).mean()),
                float((sizes >= onward[subscribers] + 1).mean()),
            )
            yield Row("subscriber", "branch", count, index, *told)


def value(rows: Sequence[Row], field: str, hides: str, colluders: int, knows: str = "branch") -> float:
    key = (hides, colluders, knows)
    found = [float(getattr(row, field)) for row in rows if (row.hides, row.colluders, row.knows) == key]
    return median(found) if field == "anonymity_set" else mean(found)


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    return outside(
        ("a publisher, one insider, branch", value(rows, "anonymity_set", "publisher", 1), 150, 350),
        ("a publisher, one insider, chain", value(rows, "anonymity_set", "publisher", 1, "chain"), 30, 80),
        ("a publisher, two, chain", value(rows, "anonymity_set", "publisher", 2, "chain"), 1, 3),
        ("a publisher named by four, chain", value(rows, "alone", "publisher", 4, "chain"), 0.6, 1),
        ("a publisher named by four, branch", value(rows, "alone", "publisher", 4), 0, 0.2),
        ("a subscriber, the publisher alone", value(rows, "anonymity_set", "subscriber", 0), 100, NODES),
        ("a subscriber, a tenth collude", value(rows, "anonymity_set", "subscriber", 50), 40, 150),
        ("a subscriber, half collude", value(rows, "anonymity_set", "subscriber", 250), 1, 10),
        ("the bound, the publisher alone", value(rows, "bound_holds", "subscriber", 0), 1, 1),
        ("the bound, half collude", value(rows, "bound_holds", "subscriber", 250), 0.95, 0.999),
    )


def plot(rows: Sequence[Row]) -> Plot:
    towards = [row for row in rows if row.hides == "publisher"]
    left = results.lines(towards, "a publisher, by {knows}", "colluders", "anonymity_set")
    others = [row for row in rows if row.hides == "subscriber"]
    right = results.lines(others, "stand alone", "colluders", "alone")
    right |= results.lines(others, "the paper's bound holds", "colluders", "bound_holds")
    right |= {"set, part of nodes": [(row.colluders, row.anonymity_set / NODES) for row in others]}
    beside = Plot("Subscribers, towards a false publisher and relays", "colluding relays", "part", right)
    return Plot("Publishers, towards false subscribers", "insiders", "nodes it may be", left, True, beside)


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("anonpubsub", "inside", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
