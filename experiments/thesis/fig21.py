"""Thesis, Fig. 21: time for key generation, policies of AND only and of OR only.

Claim (7.2.2): "the difference between using AND or OR is insignificant … the number of attributes increases linearly to
the execution time"; key generation is the slowest of the three.

A key does not know the policy, so the two lines are one, for both schemes. That key generation is slower than
encryption is the toolkit's, not the scheme's: both take one power in each group for an attribute.

Expected band, on the points counted in the serialised keys: for AND and for OR three (the key's own and the epoch's)
and two for each attribute in BSW07, three and one for each in ours.

Seed 4. `python -m experiments.thesis.fig21 [--seed N] [--small]` writes build/experiments/thesis/fig21.csv and .png.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from experiments import results
from experiments.thesis.costs import Row, experiment_1, outside, plot

COUNTS = (1, *range(5, 51, 5))
SMALL = (1, 3, 6)


def run(seed: int, small: bool = False) -> Iterator[Row]:
    rows = experiment_1(seed, SMALL, runs=1) if small else experiment_1(seed, COUNTS)
    return (row for row in rows if row.operation == "keygen")


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    steps = {("bsw07", "key_points"): 2, ("fabeo", "key_points"): 1}
    return [*outside(rows, "and", steps), *outside(rows, "or", steps)]


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
