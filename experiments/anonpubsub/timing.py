"""Timing, sizes and statistical disclosure, with many topics at once.

The paper simulates one topic, "as a strong global attacker can eliminate the occlusion of multiple overlays". Here many
topics share one graph, and the observer has to find one of them. Links are encrypted in pairs, so contents do not tell.

    source    who sends without having received anything shortly before is a publisher
    flow      from the publisher on it follows: what a node sends shortly after it received belongs together
    disclose  it knows when the topic publishes (its content is public, say) and not where. It counts how much each node
              receives in rounds with and without a publication, and names |V_a| nodes with the greatest difference

The dial: `off` (a notification has the size of its content, so that flows differ in size), `padded` (cells of one size;
notifications leave at once), `constant` (every link of every node sends in every link beat, used or not). At constant
rate nothing that these observers look at depends on any topic, so they guess: this is told for comparison, and measured
on the product's own roles in the benchmark.

All topics publish within one window of two seconds; a node takes up to 40 ms to pass a notification on, which the
observer knows, and a link 20 to 50 ms. Disclosure: each topic publishes in half of the rounds.

Expected band: with one topic, or where sizes differ, `flow` finds M_a exactly, and `source` the publisher. Padded, with
16 topics (each of them on a quarter of the nodes) the part of M_a in what it follows falls to .5 to .9, while `source`
names publishers with a precision over .95: hidden is only who passes on another topic at that very moment. Disclosure:
with 16 topics eight rounds give less than .75, and 128 over .95. Many topics delay the observer, and nothing but a
constant rate stops it.

Seed 4. `python -m experiments.anonpubsub.timing [--seed N] [--small]` writes timing.csv and .png to
build/experiments/anonpubsub.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np

from experiments import results
from experiments.anonpubsub.panel import outside, size_of
from experiments.results import Plot
from tallystick.sim.anonymity.graph import Numbers, small_world
from tallystick.sim.anonymity.mesh import TopicMesh as Mesh
from tallystick.sim.anonymity.scene import MeshScene as Scene
from tallystick.sim.anonymity.scene import draw, watch
from tallystick.sim.anonymity.traffic import PASS_S, LinkTraffic, disclose, follow, sources

TOPICS, SMALL = (1, 2, 4, 8, 16, 32), (1, 16)
ROUNDS = (8, 32, 128)
WINDOW_S, LINK_S = 2.0, (0.02, 0.05)
SCENE = Scene()
BY = ("topics", "dial", "attacker")  # what tells the lines of these rows apart


@dataclass(frozen=True)
class Row:
    topics: int
    dial: str
    attacker: str  # source, flow, disclose N
    run: int
    precision: float  # of publishers (source), of nodes in M_a
    recall: float
    base_rate: float


def notify(mesh: Mesh, source: int, start_s: float, random: np.random.Generator) -> tuple[Numbers, Numbers]:
    """When each link of the mesh carries a notification: sent, received."""
    passing = random.uniform(0, PASS_S, mesh.size)
    travel = random.uniform(*LINK_S, len(mesh.links))
    arrived = np.full(mesh.size, np.inf)
    arrived[source], passing[source] = start_s, 0.0
    while True:
        received = arrived[mesh.links[:, 0]] + passing[mesh.links[:, 0]] + travel
        sooner = arrived.copy()
        np.minimum.at(sooner, mesh.links[:, 1], received)
        if (sooner == arrived).all():
            return received - travel, received
        arrived = sooner


def run(seed: int, small: bool = False, runs: int = 0) -> Iterator[Row]:
    for topics in SMALL if small else TOPICS:
        for index in range(size_of(small, runs).runs):
            yield from _observe(topics, index, np.random.default_rng([seed, 23, topics, index]))


def _observe(topics: int, index: int, random: np.random.Generator) -> Iterator[Row]:
    graph = small_world(SCENE.nodes, SCENE.degree, random)
    meshes = [draw(SCENE, random, graph).mesh for _ in range(topics)]
    views = [watch(graph, mesh) for mesh in meshes]
    starts = random.uniform(0, WINDOW_S, topics)
    times = [notify(*one, random) for one in zip(meshes, (v.source for v in views), starts, strict=True)]
    publishers = np.array([view.node[view.source] for view in views])
    members = np.zeros((topics, SCENE.nodes), dtype=bool)
    for number, mesh in enumerate(meshes):
        members[number, mesh.node] = True
    traffic = LinkTraffic(
        np.concatenate([sent for sent, _ in times]),
        np.concatenate([received for _, received in times]),
        np.concatenate([mesh.node[mesh.links] for mesh in meshes]),
        np.repeat(np.arange(topics), [len(mesh.links) for mesh in meshes]),
    )
    base, truth = float(members[0].mean()), set(meshes[0].node.tolist())
    named = sources(traffic)
    hits = len(set(named.tolist()) & set(publishers.tolist()))
    chance = len(set(publishers.tolist())) / SCENE.nodes
    yield Row(topics, "padded", "source", index, hits / len(named), hits / len(set(publishers.tolist())), chance)
    yield Row(topics, "constant", "source", index, chance, chance, chance)
    for dial in ("off", "padded"):
        found = follow(traffic, int(publishers[0]), float(starts[0]), dial == "off")
        right = len(found & truth)
        yield Row(topics, dial, "flow", index, right / len(found), right / len(truth), base)
    yield Row(topics, "constant", "flow", index, base, 1.0, base)
    published = random.random((max(ROUNDS), topics)) < 0.5
    active = published.astype(float) @ members  # a notification of each topic that it is in
    for rounds in ROUNDS:
        guess = disclose(active[:rounds], published[:rounds, 0], len(truth), random)
        part = float((guess & members[0]).sum()) / len(truth)
        yield Row(topics, "padded", f"disclose {rounds}", index, part, part, base)


def value(rows: Sequence[Row], field: str, topics: int, dial: str, attacker: str) -> float:
    key = (topics, dial, attacker)
    return mean(float(getattr(row, field)) for row in rows if (row.topics, row.dial, row.attacker) == key)


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    return outside(
        ("flow, one topic", value(rows, "precision", 1, "padded", "flow"), 1, 1),
        ("flow, 16 topics, off", value(rows, "precision", 16, "off", "flow"), 1, 1),
        ("what it finds of M_a", value(rows, "recall", 16, "off", "flow"), 1, 1),
        ("flow, 16 topics, padded", value(rows, "precision", 16, "padded", "flow"), 0.4, 0.9),
        ("source, 16 topics", value(rows, "precision", 16, "padded", "source"), 0.95, 1),
        ("disclosure, 16 topics, 8 rounds", value(rows, "precision", 16, "padded", "disclose 8"), 0.4, 0.75),
        ("disclosure, 16 topics, 128 rounds", value(rows, "precision", 16, "padded", "disclose 128"), 0.95, 1),
    )


def plot(rows: Sequence[Row]) -> Plot:
    flows = [row for row in rows if row.attacker in ("flow", "source")]
    left = results.lines(flows, "{attacker}, {dial}", "topics", "precision")
    others = [row for row in rows if row.attacker.startswith("disclose")]
    right = results.lines(others, "{attacker} rounds", "topics", "precision")
    right |= results.lines([row for row in others if row.attacker == "disclose 8"], "|V_a|/|V|", "topics", "base_rate")
    beside = Plot("Statistical disclosure of M_a", "topics", "precision", right)
    return Plot("Timing, with many topics at once", "topics", "precision", left, beside=beside)


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("anonpubsub", "timing", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
