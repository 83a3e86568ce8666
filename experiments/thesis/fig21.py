"""Thesis, Fig. 21: time for key generation, policies of AND only and of OR only.

Claim (7.2.2): "the difference between using AND or OR is insignificant … the number of attributes increases linearly to
the execution time"; key generation is the slowest of the three.

A key does not know the policy, so the two lines are one, for both schemes; key points grow by one (ours) or two (BSW07)
with each attribute. That key generation is slower than encryption is the toolkit's, not the scheme's: both take one
power in each group for an attribute.

Expected band: the points of a key are the same for AND and OR and grow by the same number with every attribute.

Seed 4. `python -m experiments.thesis.fig21 [--seed N] [--small]` writes build/experiments/thesis/fig21.csv and .png.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from experiments import results
from experiments.thesis.costs import Row, experiment_1, growth, plot

COUNTS = (1, 5, 10, 20, 30, 40, 50)
SMALL = (1, 3, 6)


def run(seed: int, small: bool = False) -> Iterator[Row]:
    rows = experiment_1(seed, SMALL, runs=1) if small else experiment_1(seed, COUNTS)
    return (row for row in rows if row.operation == "keygen")


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    missed = []
    for scheme, step in (("bsw07", 2), ("fabeo", 1)):
        found = {policy: growth(rows, scheme, policy, "key_points") for policy in ("and", "or")}
        counts = sorted({row.attributes for row in rows})
        if found["and"] != found["or"]:
            missed.append(f"{scheme}: a key's size depends on the policy")
        if [points - step * count for points, count in zip(found["and"], counts, strict=True)] != [3] * len(counts):
            missed.append(f"{scheme}: a key does not grow by {step} points for each attribute")
    return missed


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command(
        "thesis",
        "fig21",
        run,
        lambda rows: plot(rows, "keygen", "Key generation, AND only and OR only"),
        misses,
        arguments,
    )


if __name__ == "__main__":
    sys.exit(main())
