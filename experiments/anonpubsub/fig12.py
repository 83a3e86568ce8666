"""AnonPubSub, Fig. 12: how many nodes probabilistic forwarding draws into the mesh. `fig10.py` has claims, band and
rows.

Seed 4. `python -m experiments.anonpubsub.fig12 [--seed N] [--small]` writes build/experiments/anonpubsub/fig12.csv and
.png.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from experiments import results
from experiments.anonpubsub.fig10 import BY as BY
from experiments.anonpubsub.fig10 import Row, misses, run
from experiments.results import Plot

PAPER = [(0.0, 141.0), (0.6, 282.0)]


def plot(rows: Sequence[Row]) -> Plot:
    once = [row for row in rows if row.drawn == "once"]
    sizes = results.lines(once, "|V_a|", "mu", "size")
    rates = results.lines(once, "|S|/|V_a|", "mu", "base_rate")
    rates |= results.lines(once, "leaves", "mu", "precision")
    rates |= results.lines(once, "one layer peeled", "mu", "peeled_precision")
    beside = Plot("What it does for the base rate, and what observers get", "μ", "part, precision", rates)
    return Plot("Fig. 12: nodes in the mesh", "μ", "nodes", sizes, beside=beside, told={"the paper's": PAPER})


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("anonpubsub", "fig12", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
