"""Thesis, Fig. 22: time for encryption, policies of AND only and of OR only.

Claim (7.2.2): AND or OR makes no significant difference, and time grows linearly.

True of BSW07: two points for every leaf. Ours differs: an AND is one row however long (docs/decisions/0012), an OR has
a row for every attribute.

Expected band: BSW07's capsules have the same number of points for AND and OR, two more for each attribute; ours have
the same number for every AND, and one more with each attribute of an OR (of one attribute neither is different).

Seed 4. `python -m experiments.thesis.fig22 [--seed N] [--small]` writes build/experiments/thesis/fig22.csv and .png.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from experiments import results
from experiments.thesis.costs import Row, experiment_1, growth, plot

COUNTS = (1, *range(5, 51, 5))
SMALL = (1, 3, 6)


def run(seed: int, small: bool = False) -> Iterator[Row]:
    rows = experiment_1(seed, SMALL, runs=1) if small else experiment_1(seed, COUNTS)
    return (row for row in rows if row.operation == "encapsulate")


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    counts = sorted({row.attributes for row in rows})
    expected = {
        ("bsw07", "and"): [3 + 2 * count for count in counts],
        ("bsw07", "or"): [3 + 2 * count for count in counts],
        ("fabeo", "and"): [3] * len(counts),
        ("fabeo", "or"): [3 + count if count > 1 else 3 for count in counts],
    }
    return [
        f"{scheme}, {policy}: points {growth(rows, scheme, policy, 'capsule_points')}"
        for (scheme, policy), points in expected.items()
        if growth(rows, scheme, policy, "capsule_points") != points
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command(
        "thesis",
        "fig22",
        run,
        lambda rows: plot(rows, "encapsulate", "Encryption, AND only and OR only"),
        misses,
        arguments,
    )


if __name__ == "__main__":
    sys.exit(main())
