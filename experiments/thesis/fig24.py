"""Thesis, Fig. 24: the three operations with strings only, AND and OR mixed, up to 100 attributes.

Claim (7.2.3): key generation and encryption "grow linear and have the same significant execution time", decryption is
the fastest.

Expected band: keys grow by two points with an attribute in BSW07 and by one in ours; BSW07's capsules by two.

Seed 4. `python -m experiments.thesis.fig24 [--seed N] [--small]` writes build/experiments/thesis/fig24.csv and .png.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from experiments import results
from experiments.thesis.costs import Row, experiment_2, growth, plot

COUNTS = (1, 5, 10, 20, 50, 100)
SMALL = (1, 3)


def run(seed: int, small: bool = False) -> Iterator[Row]:
    counts, runs = (SMALL, 1) if small else (COUNTS, 5)
    return experiment_2(seed, counts, with_numbers=False, runs=runs)


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    counts = sorted({row.attributes for row in rows})
    expected = {
        ("bsw07", "key_points"): [3 + 2 * count for count in counts],
        ("bsw07", "capsule_points"): [3 + 2 * count for count in counts],
        ("fabeo", "key_points"): [3 + count for count in counts],
    }
    return [
        f"{scheme}: {column} {growth(rows, scheme, 'strings', column)}"
        for (scheme, column), points in expected.items()
        if growth(rows, scheme, "strings", column) != points
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    title = "Three operations, strings only"
    return results.command("thesis", "fig24", run, lambda rows: plot(rows, None, title), misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
