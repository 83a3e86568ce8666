"""Thesis, Fig. 25: the three operations with 32-bit numbers, AND and OR mixed, up to 100 attributes.

Claim (7.2.3): with numbers key generation takes far longer than encryption, and the key grows "by approximately 24kb
per attribute".

A number is 32 traits of a key and at most 32 leaves of a policy, so a key never has fewer points than a capsule. But a
comparison takes nearly as many, so that neither scheme makes a key in far longer than a capsule: 6,403 and 6,201 points
in BSW07 at a hundred numbers, 3,203 and 2,314 in ours. Nor do we reach the thesis's 24 kB: the points of a number take
4.6 kB in a key of BSW07 on this curve, and 1.5 kB in ours.

Expected band, on the points counted in the serialised keys and capsules: three and 64 for each number in BSW07's keys,
three and 32 in ours; capsules have no more than that in either.

Seed 4. `python -m experiments.thesis.fig25 [--seed N] [--small]` writes build/experiments/thesis/fig25.csv and .png.
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
    return experiment_2(seed, counts, with_numbers=True, runs=runs)


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    keys = {("bsw07", "key_points"): 64, ("fabeo", "key_points"): 32}
    return outside(rows, "numbers", keys, at_most={("bsw07", "capsule_points"): 64, ("fabeo", "capsule_points"): 32})


def main(arguments: Sequence[str] | None = None) -> int:
    title = "Three operations, 32-bit numbers"
    return results.command("thesis", "fig25", run, lambda rows: plot(rows, None, title), misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
