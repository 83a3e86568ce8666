"""Thesis, Fig. 23: time for decryption, policies of AND only and of OR only.

Claim (7.2.2): "the difference between using the AND or OR Boolean for the access policy of the publisher is bigger",
and decryption is the fastest of the three.

BSW07 opens an OR by one leaf and an AND by all, two pairings each; that it is the fastest of the three holds for the
toolkit and for OR, not for an AND on a curve whose pairings cost ten powers. Ours takes three pairings for both.

Expected band: BSW07's pairings are five for an OR (the epoch is a leaf too) and grow by two with each attribute of an
AND; ours are three.

Seed 4. `python -m experiments.thesis.fig23 [--seed N] [--small]` writes build/experiments/thesis/fig23.csv and .png.
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
    return (row for row in rows if row.operation == "decapsulate")


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    counts = sorted({row.attributes for row in rows})
    expected = {
        ("bsw07", "and"): [3 + 2 * count for count in counts],
        ("bsw07", "or"): [5] * len(counts),
        ("fabeo", "and"): [3] * len(counts),
        ("fabeo", "or"): [3] * len(counts),
    }
    return [
        f"{scheme}, {policy}: pairings {growth(rows, scheme, policy, 'pairings')}"
        for (scheme, policy), pairings in expected.items()
        if growth(rows, scheme, policy, "pairings") != pairings
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command(
        "thesis",
        "fig23",
        run,
        lambda rows: plot(rows, "decapsulate", "Decryption, AND only and OR only"),
        misses,
        arguments,
    )


if __name__ == "__main__":
    sys.exit(main())
