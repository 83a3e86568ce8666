"""Thesis, Fig. 24: the three operations with strings only, AND and OR mixed, up to 100 attributes.

Claim (7.2.3): key generation and encryption "grow linear and have the same significant execution time", decryption is
the fastest.

Expected band, on the points counted in the serialised keys and capsules: three and two for each attribute in BSW07's
keys and in its capsules; three and one in our keys, and no more than that in our capsules (an AND shares a row).

Seed 4. `python -m experiments.thesis.fig24 [--seed N] [--small]` writes build/experiments/thesis/fig24.csv and .png.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from experiments import results
from experiments.thesis.costs import Row, experiment_2, outside, plot

COUNTS = (1, *range(10, 101, 10))
SMALL = (1, 3)


def run(seed: int, small: bool = False) -> Iterator[Row]:
    counts, runs = (SMALL, 1) if small else (COUNTS, 5)
    return experiment_2(seed, counts, with_numbers=False, runs=runs)


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    steps = {("bsw07", "key_points"): 2, ("bsw07", "capsule_points"): 2, ("fabeo", "key_points"): 1}
    return outside(rows, "strings", steps, at_most={("fabeo", "capsule_points"): 1})


def main(arguments: Sequence[str] | None = None) -> int:
    title = "Three operations, strings only"
    return results.command("thesis", "fig24", run, lambda rows: plot(rows, None, title), misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
