"""AnonPubSub, Fig. 14: how many games it takes until leaves tell nothing.

Claim, without decay: "the ratio converges indeed at 587 SGs" (141 nodes × 4.48; printed as 587, it is 632), and meets
the optimum once before, since games begin before the mesh is connected.

Expected band: from 1 the ratio falls to within .08 of |S|/|V_a| after 587 games and within .04 after 1,000. We let
games begin when the mesh is there, and the early dip does not appear.

Beside it: who rebuilds the mesh from G is never wrong, after any number of games, and finds as many subscribers as
without any: against the paper's own attacker, who "possess[es] topology information", the game alone does not help. Who
takes games back by a record of links has a precision of over .8 after 100 games, and after 1,000 still where links are
closed; where they stay, the games that need no new link accumulate, and it is under .65.

Seed 4. `python -m experiments.anonpubsub.fig14 [--seed N] [--small]` writes build/experiments/anonpubsub/fig14.csv and
.png.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from experiments import results
from experiments.anonpubsub.convergence import BY as BY
from experiments.anonpubsub.convergence import EXPECTED_GAMES, Row, converge, lines, value
from experiments.anonpubsub.panel import outside, size_of
from experiments.results import Plot
from tallystick.sim.anonymity.games import GameRules as Rules

MARKS = (0, 25, 50, 100, 200, 300, 400, 500, 587, 700, 850, 1000)
SMALL = (0, 100, 587, 1000)


def run(seed: int, small: bool = False, runs: int = 0) -> Iterator[Row]:
    marks = SMALL if small else MARKS
    yield from converge(Rules(games_max=1000), marks, False, (seed, 14), size_of(small, runs), marks)


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    base = value(rows, "base_rate", 0)
    return outside(
        ("before the first game", value(rows, "leaf_ratio", 0), 1, 1),
        ("above |S|/|V_a| after 587 games", value(rows, "leaf_ratio", 587) - base, -0.08, 0.08),
        ("above |S|/|V_a| after 1,000 games", value(rows, "leaf_ratio", 1000) - base, -0.04, 0.04),
        ("rebuilt from G after 1,000 games", value(rows, "rebuilt", 1000), 1, 1),
        ("100 games taken back", value(rows, "rewound", 100), 0.8, 1),
        ("1,000 games taken back, links close", value(rows, "rewound_closed", 1000), 0.8, 1),
        ("1,000 games taken back, links stay", value(rows, "rewound", 1000), 0.2, 0.65),
    )


def plot(rows: Sequence[Row]) -> Plot:
    found = lines(rows, "leaves", "leaf_ratio") | lines(rows, "|S|/|V_a|", "base_rate")
    found |= lines(rows, "taken back, links stay", "rewound") | lines(rows, "taken back, links close", "rewound_closed")
    found |= lines(rows, "rebuilt from G", "rebuilt")
    told = {"the paper's convergence": [(EXPECTED_GAMES, value(rows, "base_rate", 0))]}
    return Plot("Fig. 14: subscribers among leaves, λ = 0", "games", "part", found, told=told)


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("anonpubsub", "fig14", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
