"""AnonPubSub, Fig. 16: why games become rarer with time and not with their number.

Claim: with a decay by the number of games played (λ = .5) "the SG converges away from optimum", because nodes near the
leaves cool down early and subscribers switch back; without decay it converges to it.

Expected band: with λ = .5 games become rare early, and the ratio is .05 to .3 above |S|/|V_a| after two minutes, where
without decay it comes within .06. We do not see it move away again, as the paper's words have it: it stops short. The
mesh rebuilt from G gives a precision of 1 throughout.

Seed 4. `python -m experiments.anonpubsub.fig16 [--seed N] [--small]` writes build/experiments/anonpubsub/fig16.csv and
.png.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from experiments import results
from experiments.anonpubsub.convergence import BY as BY
from experiments.anonpubsub.convergence import Row, converge, lines, value
from experiments.anonpubsub.panel import outside, size_of
from experiments.results import Plot
from tallystick.sim.anonymity.games import GameRules as Rules

DECAYS = (0.0, 0.1, 0.5)
MARKS = (0.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0)
TAKEN_BACK = (10.0, 30.0, 60.0, 120.0)  # which takes the longest, so not at all marks
SMALL = (0.0, 20.0, 120.0)


def run(seed: int, small: bool = False, runs: int = 0) -> Iterator[Row]:
    for number, decay in enumerate(DECAYS):
        rules = Rules(decay=decay, by="games", seconds_max=120.0)
        marks, taken = (SMALL, ()) if small else (MARKS, TAKEN_BACK)
        yield from converge(rules, marks, True, (seed, 16, number), size_of(small, runs), taken)


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    above = {
        decay: value(rows, "leaf_ratio", 120.0, decay) - value(rows, "base_rate", 120.0, decay) for decay in DECAYS
    }
    return outside(
        ("above |S|/|V_a| without decay", above[0.0], -0.06, 0.06),
        ("above |S|/|V_a| with λ = .5", above[0.5], 0.05, 0.3),
    )


def plot(rows: Sequence[Row]) -> Plot:
    left = lines(rows, "λ = {decay}, by games", "leaf_ratio")
    left |= lines([row for row in rows if not row.decay], "|S|/|V_a|", "base_rate")
    right = lines(rows, "λ = {decay}, links stay", "rewound") | lines(
        rows, "λ = {decay}, links close", "rewound_closed"
    )
    right |= lines([row for row in rows if not row.decay], "rebuilt from G", "rebuilt")
    beside = Plot("Games taken back", "seconds", "precision", right)
    return Plot("Fig. 16: subscribers among leaves", "seconds", "part", left, beside=beside)


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("anonpubsub", "fig16", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
