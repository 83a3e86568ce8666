"""A hundred thousand nodes: what a node costs, in the mesh and in this simulator. Not in the paper, which has 500.

Four topics, a tenth of the nodes subscribing to each, degree 4, covers that draw covers (.3, .1), and the shell game
for thirty seconds (λ = .05); then one publication of each topic, and the observer who peels.

Expected band: what a node sends and keeps for a publication does not grow: messages for each node and topic are within
a third of one another from 1,000 to 100,000 nodes. Paths grow with the logarithm. The simulator's own time for a node
is told and not judged here; the benchmark has it as `sim_100000`.

Seed 4. `python -m experiments.anonpubsub.scale [--seed N] [--small]` writes scale.csv and .png to
build/experiments/anonpubsub.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean
from time import process_time

import numpy as np

from experiments import results
from experiments.anonpubsub.panel import outside
from experiments.results import Plot
from tallystick.sim.anonymity.games import GameRules as Rules
from tallystick.sim.anonymity.graph import small_world
from tallystick.sim.anonymity.measures import judge
from tallystick.sim.anonymity.observers import peel
from tallystick.sim.anonymity.scene import MeshScene as Scene
from tallystick.sim.anonymity.scene import draw

NODES, SMALL = (1_000, 3_000, 10_000, 30_000, 100_000), (1_000, 10_000)
TOPICS, RUNS = 4, 3


@dataclass(frozen=True)
class Row:
    nodes: int
    run: int
    size: float  # |V_a|, mean over the topics
    messages_a_node: float  # for a publication of each topic, by all nodes and topics
    entries_a_node: float  # links in M_a that a node keeps, by topics
    game_messages_a_member: float
    hops_max: int
    peeled: float  # precision
    cpu_us_a_node: float


def simulate(nodes: int, random: np.random.Generator, topics: int = TOPICS) -> tuple[float, ...]:
    """All fields of a row but the first two."""
    started = process_time()
    graph = small_world(nodes, 4, random)
    sizes, messages, games, hops, peeled = [], [], [], [], []
    for _ in range(topics):
        scene = Scene(nodes=nodes, mu=0.3, again=0.1, rules=Rules(decay=0.05, seconds_max=30.0))
        world = draw(scene, random, graph)
        view = world.view()
        assert world.played is not None
        sizes.append(world.mesh.size)
        messages.append(len(world.mesh.links))
        games.append(world.played.messages / world.mesh.size)
        hops.append(int(world.tree.hops.max()))
        peeled.append(judge(world.mesh, peel(view, 1), nodes).precision)
    spent = process_time() - started
    each = mean(messages) / nodes
    return mean(sizes), each, 2 * each, mean(games), max(hops), mean(peeled), spent / nodes * 1e6


def cost_per_node_us(nodes: int, seed: int) -> float:
    """CPU time of the simulator for one node, in microseconds: for the benchmark."""
    return simulate(nodes, np.random.default_rng([seed, 26, nodes]))[-1]


def run(seed: int, small: bool = False) -> Iterator[Row]:
    for nodes in SMALL if small else NODES:
        for index in range(1 if small else RUNS):
            size, each, entries, games, hops, peeled, cpu = simulate(
                nodes, np.random.default_rng([seed, 26, nodes, index])
            )
            yield Row(nodes, index, size, each, entries, games, int(hops), peeled, cpu)


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    nodes = sorted({row.nodes for row in rows})
    each = [mean(row.messages_a_node for row in rows if row.nodes == one) for one in nodes]
    hops = [mean(row.hops_max for row in rows if row.nodes == one) for one in nodes]
    growth = np.log(nodes[-1] / nodes[0])
    return outside(
        ("messages a node, the most by the least", max(each) / min(each), 1, 1.34),
        ("hops by which paths grow with each factor e", float((hops[-1] - hops[0]) / growth), 0.5, 4),
    )


def plot(rows: Sequence[Row]) -> Plot:
    thousand = [(row.nodes / 1000, row) for row in rows]
    left = {
        "messages for a publication, by nodes and topics": [(x, row.messages_a_node) for x, row in thousand],
        "|V_a|/|V|": [(x, row.size / row.nodes) for x, row in thousand],
        "precision after peeling": [(x, row.peeled) for x, row in thousand],
    }
    right = {"the simulator's µs": [(x, row.cpu_us_a_node) for x, row in thousand]}
    beside = Plot("What a node costs here", "thousand nodes", "µs of CPU time a node, four topics", right)
    return Plot("What a node costs in the mesh", "thousand nodes", "as it says", left, beside=beside)


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("anonpubsub", "scale", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
