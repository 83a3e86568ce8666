"""AnonPubSub, Fig. 11: what probabilistic forwarding costs in messages. `fig10.py` has claims, band and rows.

Covers drawn anew cost as many messages as covers drawn once; each draw is of the same number. A member that two others
drew is sent to by both, and both are counted.

Seed 4. `python -m experiments.anonpubsub.fig11 [--seed N] [--small]` writes build/experiments/anonpubsub/fig11.csv and
.png.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from experiments import results
from experiments.anonpubsub.fig10 import BY as BY
from experiments.anonpubsub.fig10 import CEILING, Row, misses, run
from experiments.anonpubsub.panel import Lines
from experiments.anonpubsub.publications import PUBLICATIONS, value
from experiments.results import Plot


def plot(rows: Sequence[Row]) -> Plot:
    drawn = results.lines(rows, "drawn {drawn}", "mu", "messages")
    told = {"the paper's broadcast": [(mu, float(CEILING)) for mu in sorted({row.mu for row in rows})]}
    bought: Lines = {}
    for row in rows:
        if row.drawn == "once":
            messages = round(value(rows, "messages", mu=row.mu) / PUBLICATIONS)
            bought.setdefault("leaves", []).append((messages, row.recall))
            bought.setdefault("one layer peeled", []).append((messages, row.peeled_recall))
    beside = Plot("What they buy", "messages of a publication, mean", "part of subscribers found", bought)
    return Plot("Fig. 11: messages of 20 publications", "μ", "messages", drawn, beside=beside, told=told)


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("anonpubsub", "fig11", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
