"""One publication after another, with covers that are drawn once or every time anew, and who watches all of them.

The observer of several publications has the paper's means (2.3): who stays in M_a from one to the next is no cover. It
drops all others, and then takes leaves for subscribers. A cover that many members may draw is there nearly every time,
so a better one looks at links: hardly any that is drawn with μ = .7 is drawn twenty times. Against covers drawn once
neither gains anything, and peeling does.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np

from experiments import results
from experiments.anonpubsub.panel import Lines
from experiments.results import Plot
from tallystick.sim.anonymity.graph import Graph, Numbers
from tallystick.sim.anonymity.measures import Score, judge
from tallystick.sim.anonymity.mesh import FORWARDER, cover
from tallystick.sim.anonymity.mesh import TopicMesh as Mesh
from tallystick.sim.anonymity.scene import MeshScene as Scene
from tallystick.sim.anonymity.scene import MeshWorld as World
from tallystick.sim.anonymity.scene import draw

PUBLICATIONS = 20


BY = ("mu", "drawn", "publications")  # what tells the lines of these rows apart


@dataclass(frozen=True)
class Row:
    mu: float
    drawn: str  # once, anew
    publications: int
    run: int
    accuracy: float  # of the leaf rule among those who were always there
    accuracy_all: float
    better: float  # the rule or its inverse, over V_a
    precision: float
    recall: float
    linked_accuracy_all: float  # of the leaf rule on links that were used every time
    linked_precision: float
    peeled_precision: float  # of the leaves' layer above those who were always there
    peeled_recall: float
    base_rate: float
    entropy: float
    size: int  # of M_a, all covers so far
    messages: int  # so far


def run_publications(
    scene: Scene, mus: Sequence[float], key: Sequence[int], runs: int, marks: Container[int]
) -> Iterator[Row]:
    """What has been seen after as many publications as `marks` has: covers of each μ, drawn once and drawn anew."""
    for index in range(runs):
        random = np.random.default_rng([*key, index])
        world = draw(scene, random)
        for mu in mus:
            for drawn in ("once", "anew"):
                for number, size, messages, scores in _publish(world, mu, drawn == "anew", random, marks):
                    leaf, linked, peeled = scores
                    told = (leaf.accuracy, leaf.accuracy_all, leaf.better, leaf.precision, leaf.recall)
                    told += (linked.accuracy_all, linked.precision, peeled.precision, peeled.recall)
                    yield Row(mu, drawn, number, index, *told, leaf.base_rate, leaf.entropy, size, messages)


def _publish(
    world: World, mu: float, anew: bool, random: np.random.Generator, marks: Container[int]
) -> Iterator[tuple[int, int, int, list[Score]]]:
    graph, mesh = world.graph, world.mesh
    always, ever = np.ones(graph.nodes, dtype=bool), np.zeros(graph.nodes, dtype=bool)
    messages, covered = 0, cover(graph, mesh, mu, random)
    links = covered.node[covered.links]
    for number in range(1, PUBLICATIONS + 1):
        if anew and number > 1:
            covered = cover(graph, mesh, mu, random)
        now = covered.node[covered.links]
        links = links[np.isin(_key(links, graph), _key(now, graph))]
        there = np.zeros(graph.nodes, dtype=bool)
        there[covered.node] = True
        always &= there
        ever |= there
        messages += len(now)
        if number not in marks:
            continue
        leaves = _leaves(now, always)
        linked = np.zeros(graph.nodes, dtype=bool)
        linked[links] = True
        everybody = np.flatnonzero(ever)
        role = np.full(graph.nodes, FORWARDER)
        role[mesh.node] = mesh.role
        union = Mesh(everybody, role[everybody], np.zeros_like(everybody), covered.links)
        guesses = (leaves, _leaves(links, linked), _leaves(now, always & ~leaves))
        scores = [judge(union, guess[everybody], graph.nodes) for guess in guesses]
        yield number, len(everybody), messages, scores


def value(rows: Sequence[Row], field: str, drawn: str = "once", **where: float) -> float:
    """The mean over the runs, at one μ or after so many publications."""
    wanted = {"drawn": drawn, **where}
    return mean(
        float(getattr(row, field)) for row in rows if all(getattr(row, name) == it for name, it in wanted.items())
    )


def plot_publications(rows: Sequence[Row], title: str, x: str, label: str, told: Lines) -> Plot:
    """The leaf rule, and beside it what stronger observers get."""
    once, anew = ([row for row in rows if row.drawn == drawn] for drawn in ("once", "anew"))
    left = results.lines(rows, "drawn {drawn}, over V", x, "accuracy_all")
    left |= results.lines(rows, "drawn {drawn}, over V_a", x, "accuracy")
    left |= results.lines(anew, "drawn anew, by links, over V", x, "linked_accuracy_all")
    right = results.lines(rows, "drawn {drawn}: leaves", x, "precision")
    right |= results.lines(anew, "drawn anew: leaves by links that stay", x, "linked_precision")
    right |= results.lines(once, "drawn once: one layer peeled", x, "peeled_precision")
    right |= results.lines(once, "|S|/|V_a|", x, "base_rate")
    beside = Plot("What stronger observers get", label, "precision", right)
    return Plot(title, label, "accuracy", left, beside=beside, told=told)


def _key(links: Numbers, graph: Graph) -> Numbers:
    found: Numbers = links[:, 0] * graph.nodes + links[:, 1]
    return found


def _leaves(links: Numbers, among: Numbers) -> Numbers:
    """Who of these sends to nobody of these."""
    sends = np.zeros(len(among), dtype=bool)
    sends[links[among[links[:, 1]], 0]] = True
    return among & ~sends
