"""AnonPubSub, Fig. 15: the same over time, with games that become rarer.

Claims, λ of .03, .04 and .05: the ratio reaches its target before 22.4 s once, converges slower than expected, because
neighbours' games collide, and takes longer than 22.4 s for 587 games; higher λ scatters. The paper chooses .05.

Expected band: it takes between 22.4 and 80 s for 587 games without decay (ours 40; we count a game as half a second).
With decay there are 1/λ = 20 to 33 s worth of games in all, so that they come to an end: with .05 after less than 400,
and .05 to .2 above |S|/|V_a|. So .05 saves games and pays with anonymity. Beside it: fewer games are easier to take
back; the mesh rebuilt from G gives a precision of 1 throughout.

Seed 4. `python -m experiments.anonpubsub.fig15 [--seed N] [--small]` writes build/experiments/anonpubsub/fig15.csv and
.png.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from experiments import results
from experiments.anonpubsub.convergence import BY as BY
from experiments.anonpubsub.convergence import EXPECTED_S, Row, converge, lines, value
from experiments.anonpubsub.panel import outside, size_of
from experiments.results import Plot
from tallystick.sim.anonymity.games import GameRules as Rules

DECAYS = (0.0, 0.03, 0.04, 0.05)
MARKS = (0.0, 2.5, 5.0, 10.0, 15.0, 22.4, 30.0, 40.0, 60.0, 80.0, 100.0)
TAKEN_BACK = (10.0, 22.4, 40.0, 100.0)  # which takes the longest, so not at all marks
SMALL = (0.0, 22.4, 80.0, 100.0)


def run(seed: int, small: bool = False, runs: int = 0) -> Iterator[Row]:
    for number, decay in enumerate(DECAYS):
        rules = Rules(decay=decay, seconds_max=100.0)
        marks, taken = (SMALL, ()) if small else (MARKS, TAKEN_BACK)
        yield from converge(rules, marks, True, (seed, 15, number), size_of(small, runs), taken)


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    above = value(rows, "leaf_ratio", 100.0, 0.05) - value(rows, "base_rate", 100.0, 0.05)
    return outside(
        ("games after 22.4 s without decay", value(rows, "games", 22.4), 0, 587),
        ("games after 80 s without decay", value(rows, "games", 80.0), 587, 5_000),
        ("games in all with λ = .05", value(rows, "games", 100.0, 0.05), 100, 400),
        ("above |S|/|V_a| in the end with λ = .05", above, 0.05, 0.2),
    )


def plot(rows: Sequence[Row]) -> Plot:
    left = lines(rows, "λ = {decay}", "leaf_ratio") | lines([r for r in rows if not r.decay], "|S|/|V_a|", "base_rate")
    right = lines(rows, "λ = {decay}, links stay", "rewound")
    right |= lines([row for row in rows if row.decay in (0, 0.05)], "λ = {decay}, links close", "rewound_closed")
    right |= lines([row for row in rows if not row.decay], "rebuilt from G", "rebuilt")
    beside = Plot("Games taken back", "seconds", "precision", right)
    told = {"the paper expects": [(EXPECTED_S, value(rows, "base_rate", 22.4))]}
    return Plot("Fig. 15: subscribers among leaves", "seconds", "part", left, beside=beside, told=told)


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("anonpubsub", "fig15", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
