"""AnonPubSub, Figs 10, 11 and 12: probabilistic forwarding by μ: accuracy, messages, and the size of the mesh.

Claims, with 500 nodes of degree 4 of which a tenth subscribe. Fig. 10: with neighbours chosen once the accuracy falls
in proportion to μ and does not reach .5; chosen anew for each of 20 publications it "increases significantly". Fig. 11:
PF's messages stay below those of a broadcast, "479 · 20 = 9580" (480 nodes, since our 500 would send 499). Fig. 12: the
baseline's mesh has 141 nodes, with μ = .6 it has 282.

Expected band: accuracy over V falls from .9 at μ = .1 to just above .5 at .9, nearly along a line; over V_a it is below
.5 from μ = .3 on, and there the inverse of the rule is the better one. Drawn anew, by who stays: between .85 and .95
over V at μ = .7, since a cover that many may draw is nearly always there. Messages below the ceiling. Size: 141 and
282, within 5 %.

Beside them: who looks at which links stay has .98 over V at μ = .7 where covers are drawn anew, as without any cover.
Drawn once, one layer peeled has a precision over .9 from μ = .6 on: more covers help the observer, and what twice the
messages bought is nothing.

Seed 4. `python -m experiments.anonpubsub.fig10 [--seed N] [--small]` writes fig10.csv and .png to
build/experiments/anonpubsub; fig11 and fig12 draw the same rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np

from experiments import results
from experiments.anonpubsub.panel import outside, size_of
from experiments.anonpubsub.publications import BY as BY
from experiments.anonpubsub.publications import PUBLICATIONS, Row, plot_publications, run_publications, value
from experiments.results import Plot
from tallystick.sim.anonymity.scene import MeshScene as Scene

MUS, SMALL = tuple(round(0.1 * step, 1) for step in range(10)), (0.0, 0.1, 0.3, 0.6, 0.7, 0.9)
CEILING = 479 * PUBLICATIONS


def run(seed: int, small: bool = False, runs: int = 0) -> Iterator[Row]:
    size = size_of(small, runs)
    yield from run_publications(Scene(), SMALL if small else MUS, (seed, 10), size.runs, (PUBLICATIONS,))


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected, in all three figures."""
    mus = sorted({row.mu for row in rows})
    straight = np.corrcoef(mus, [value(rows, "accuracy_all", mu=mu) for mu in mus])[0, 1]
    return outside(
        ("accuracy over V at .1", value(rows, "accuracy_all", mu=0.1), 0.85, 0.95),
        ("accuracy over V at .9", value(rows, "accuracy_all", mu=0.9), 0.5, 0.6),
        ("how nearly it falls along a line", -float(straight), 0.97, 1),
        ("accuracy over V at .7, drawn anew", value(rows, "accuracy_all", "anew", mu=0.7), 0.85, 0.95),
        ("the same by links", value(rows, "linked_accuracy_all", "anew", mu=0.7), 0.95, 1),
        ("size at 0", value(rows, "size", mu=0.0), 134, 148),
        ("size at .6", value(rows, "size", mu=0.6), 268, 296),
        ("messages at .9", value(rows, "messages", mu=0.9), 0.8 * CEILING, CEILING),
        ("precision after peeling at .7", value(rows, "peeled_precision", mu=0.7), 0.9, 1),
    )


def plot(rows: Sequence[Row]) -> Plot:
    told = {"the paper's bound, not reached": [(mu, 0.5) for mu in sorted({row.mu for row in rows})]}
    return plot_publications(rows, "Fig. 10: the leaf rule after 20 publications", "mu", "μ", told)


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("anonpubsub", "fig10", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
