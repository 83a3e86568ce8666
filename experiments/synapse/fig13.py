"""SYNAPSE, Fig. 13: messages sent again because of brokers that drop them, fan-out 5.

Claims: with α = 1, c = .5 and f = 15 "the number of required re-transmissions exceeded 2.5 million" for 1.4 million
interactions; they are most at α = 1 in a number of cases, and do not grow in proportion to f.

Assumed: c places the people and α the droppers, both by rank from the root; each of the f is drawn on its own, so one
broker may be drawn twice (if not, α = 2 would have most, which the paper denies); one copy of the content travels, and
each dropper on its path costs one sending more.

Expected band, means over all draws: 2 to 3.1 million at α = 1, c = .5, f = 15; more there than at α = 0, .5 and 3;
twice the droppers cost less than twice the sendings. Our peak lies between α = 1 and 2, not at 1.

Seed 4. `python -m experiments.synapse.fig13 [--seed N] [--small]` writes build/experiments/synapse/fig13.csv and .png.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean

import numpy as np

from experiments import results
from experiments.results import Plot
from experiments.synapse.overlay import BROKERS, MONTH, along_paths, drawn_trace, grow_tree, zipf


@dataclass(frozen=True)
class Row:
    c: float
    alpha: float
    droppers: int  # drawn, with repetition
    draw: int
    million: float  # sent again in a month


def run(seed: int, small: bool = False) -> Iterator[Row]:
    random = np.random.default_rng([seed, 13])
    trace, parents = drawn_trace(random, "even", 20_000), grow_tree(5)
    counts, skews = ((15, 30), (0.5,)) if small else ((5, 10, 15, 30), (0.5, 1.0, 2.0))
    for draw, c in product(range(40 if small else 100), skews):
        at = zipf(random, c, trace.people)
        for alpha, count in product((0.0, 0.5, 1.0, 1.5, 2.0, 3.0), counts):
            drops = np.zeros(BROKERS)
            drops[zipf(random, alpha, count)] = 1
            met = along_paths(parents, drops)[at[trace.senders], at[trace.receivers]]
            yield Row(c, alpha, count, draw, float(met.mean()) * MONTH / 1e6)


def million(rows: Sequence[Row], alpha: float, droppers: int = 15, c: float = 0.5) -> float:
    return mean(row.million for row in rows if (row.c, row.alpha, row.droppers) == (c, alpha, droppers))


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    here = million(rows, 1.0)
    missed = [] if 2.0 <= here <= 3.1 else [f"{here:.2f} million at α 1, c .5, f 15"]
    missed += [f"α {alpha} has more than α 1" for alpha in (0.0, 0.5, 3.0) if million(rows, alpha) >= here]
    return missed if million(rows, 1.0, 30) < 2 * here else [*missed, "twice the droppers cost twice the sendings"]


def plot(rows: Sequence[Row]) -> Plot:
    lines = results.lines([row for row in rows if row.droppers == 15], "c {c}", "alpha", "million")
    return Plot("Messages sent again, 15 droppers", "α of the droppers", "million", lines)


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("synapse", "fig13", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
