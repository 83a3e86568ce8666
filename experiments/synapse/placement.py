"""SYNAPSE, the second phase of placing replicas, and its variant with one pack of replicas for each node.

Claims: with ρ = 2, 3, 5 and ten replicas the paths get 2, 3 and 5 (Fig. 7); nodes on several paths "receive a batch of
replicas more than once"; a possible variation is "to assign a pack of replicas only once to a node", the rest going "to
any under-provisioned nodes"; a virtual node of two cannot share secrets.

Assumed: twelve subscribers on a drawn tree of 400 brokers, the publisher at the root; brokers on the paths fail at
random (Poisson); ρ = hops × the path's failures, ω = 1; largest remainder. The variant keeps a node's largest pack and
gives the rest, one by one, to the node that lacks least to three.

Expected band: on every tree the variant places as many replicas and has at least as many nodes of three or more, and in
the sum more. Whole paths are another matter: with 120 replicas for some 52 nodes most paths have a node of fewer than
three either way, which is why the product has a floor of three.

Seed 4. `python -m experiments.synapse.placement [--seed N] [--small]` writes placement.csv and .png to
build/experiments/synapse.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from experiments import results
from experiments.results import Plot
from experiments.synapse.overlay import BROKERS, grow_tree


@dataclass(frozen=True)
class Row:
    variant: str  # packs, once
    tree: int
    replicas: int
    nodes: int  # on any path
    twos: int  # nodes of exactly two replicas
    sharing: int  # nodes of three or more
    whole_paths: int  # of three or more all along, out of twelve


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Share out `total` in proportion, by largest remainder; evenly where all weights are nought."""
    weights = weights if sum(weights) else [1.0] * len(weights)
    exact = [total * weight / sum(weights) for weight in weights]
    parts = [int(one) for one in exact]
    for one in sorted(range(len(parts)), key=lambda one: parts[one] - exact[one])[: total - sum(parts)]:
        parts[one] += 1
    return parts


def packs(total: int, paths: Sequence[Sequence[int]], failures: Mapping[int, float]) -> dict[int, list[int]]:
    """Run phases one and two: for each node the packs that it gets, one from every path through it."""
    found: dict[int, list[int]] = {node: [] for path in paths for node in path}
    priorities = [len(path) * sum(failures[node] for node in path) for path in paths]
    for path, given in zip(paths, apportion(total, priorities), strict=True):
        for node, part in zip(path, apportion(given, [failures[node] for node in path]), strict=True):
            found[node].append(part)
    return found


def once(given: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """The variant: the largest pack only, and the rest where fewest are missing to three."""
    placed = {node: max(parts) for node, parts in given.items()}
    for _ in range(sum(map(sum, given.values())) - sum(placed.values())):
        lacking = [node for node in placed if placed[node] < 3]
        placed[max(lacking, key=placed.__getitem__) if lacking else min(placed, key=placed.__getitem__)] += 1
    return placed


def run(seed: int, small: bool = False) -> Iterator[Row]:
    random = np.random.default_rng([seed, 7])
    for tree in range(10 if small else 100):
        parents = grow_tree(2, random)
        paths = [[int(end)] for end in random.choice(np.arange(1, BROKERS), 12, replace=False)]
        for path in paths:
            while path[-1]:
                path.append(parents[path[-1]])
        failures = {node: float(random.poisson(2.0)) for node in sorted(set().union(*paths))}
        for replicas in (60, 120, 240):
            given = packs(replicas, paths, failures)
            summed = {node: sum(parts) for node, parts in given.items()}
            for variant, placed in (("packs", summed), ("once", once(given))):
                counts = list(placed.values())
                sharing = {node for node, count in placed.items() if count > 2}
                whole = sum(sharing.issuperset(path) for path in paths)
                yield Row(variant, tree, sum(counts), len(counts), counts.count(2), len(sharing), whole)


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    pairs = list(zip(rows[::2], rows[1::2], strict=True))
    missed = [str(pair) for pair in pairs if pair[0].replicas != pair[1].replicas or pair[1].sharing < pair[0].sharing]
    helped = any(one.sharing > packed.sharing for packed, one in pairs)
    return missed if helped else [*missed, "one pack for each node helps nowhere"]


def plot(rows: Sequence[Row]) -> Plot:
    lines = results.lines(rows, "{variant}: nodes of three or more", "replicas", "sharing")
    lines |= results.lines(rows, "{variant}: whole paths of such", "replicas", "whole_paths")
    return Plot("Nodes and paths that can share secrets", "replicas", "number", lines)


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("synapse", "placement", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
