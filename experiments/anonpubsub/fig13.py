"""AnonPubSub, Fig. 13: what each further publication tells where covers are drawn anew.

Claim, with μ = .7 and three nodes in ten subscribing: the attacker's accuracy increases with every publication, so that
"PF should select neighbors only once".

Expected band: over V the accuracy by who stays is under .5 after the first publication, does not fall from one to the
next (by more than .01), and is over .6 after twenty (ours .68); by which links stay it is over .8 after ten. With
covers drawn once both stay where they were, and peeling one layer has a precision over .85 after a single publication:
drawing once stops the intersection, and nothing else.

Seed 4. `python -m experiments.anonpubsub.fig13 [--seed N] [--small]` writes build/experiments/anonpubsub/fig13.csv and
.png.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise

from experiments import results
from experiments.anonpubsub.panel import outside, size_of
from experiments.anonpubsub.publications import BY as BY
from experiments.anonpubsub.publications import PUBLICATIONS, Row, plot_publications, run_publications, value
from experiments.results import Plot
from tallystick.sim.anonymity.scene import MeshScene as Scene

MU, RATIO = 0.7, 0.3
EVERY = range(1, PUBLICATIONS + 1)


def run(seed: int, small: bool = False, runs: int = 0) -> Iterator[Row]:
    yield from run_publications(Scene(ratio=RATIO), (MU,), (seed, 13), size_of(small, runs).runs, EVERY)


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    anew = [value(rows, "accuracy_all", "anew", publications=number) for number in EVERY]
    once = [value(rows, "accuracy_all", publications=number) for number in (1, PUBLICATIONS)]
    return outside(
        ("after the first publication", anew[0], 0, 0.5),
        ("after the last", anew[-1], 0.6, 0.8),
        ("by links, after ten", value(rows, "linked_accuracy_all", "anew", publications=10), 0.8, 1),
        ("the least step", min(after - before for before, after in pairwise(anew)), -0.01, 1),
        ("what twenty publications add where covers stay", once[1] - once[0], 0, 0),
        ("precision after peeling, one publication", value(rows, "peeled_precision", publications=1), 0.85, 1),
    )


def plot(rows: Sequence[Row]) -> Plot:
    return plot_publications(rows, "Fig. 13: the leaf rule, μ = .7, |S|/|V| = .3", "publications", "publications", {})


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("anonpubsub", "fig13", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
