"""AnonPubSub, Fig. 8: how well an observer names subscribers, by the number of neighbours.

Claims, with 500 nodes of which a tenth subscribe: the baseline gives itself away (accuracy .927 at degree 2, .988 at
16). Probabilistic forwarding (μ = .7) protects "only with at least 4 neighbors" and better with more (.787 at 16). The
shell game (500 games, λ = 0) is best (.29 at degree 2, where .299 of M_a subscribe), and worse at higher degree.

No single denominator of Eq. 5 meets all of these. The baseline's .927 is the leaf rule's over V_a (over V it would be
.97), its .988 is over V. PF's .787 at 16 cannot be the leaf rule's, which calls 340 covers subscribers and has .22: its
inverse has .78. SG's .29 cannot be an accuracy, since calling nobody a subscriber has .70: it is the part of
subscribers among leaves, precision.

Expected band: these four by these readings, within .03 (SG: within .13; we find .40 after 500 games, and .32 after
2,000), and |S|/|V_a| within .02.

Beside them what the paper's observer did not try. PF drawn once: who peels one layer of leaves has a precision over .9
at degree 4 and above; where covers draw covers (PF+, .2) that falls below .6. SG: who rebuilds the mesh from G has a
precision of 1 at any degree, and finds most subscribers at degree 4; who records links and takes games back has over .8
where links are closed after use. So neither protects alone, and `tradeoff.py` has both together.

Seed 4. `python -m experiments.anonpubsub.fig08 [--seed N] [--small]` writes build/experiments/anonpubsub/fig08.csv and
.png.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from experiments import results
from experiments.anonpubsub.panel import BY as BY
from experiments.anonpubsub.panel import Row, base_rate, lines, look, outside, size_of, value
from experiments.results import Plot
from tallystick.sim.anonymity.games import GameRules as Rules
from tallystick.sim.anonymity.scene import MeshScene as Scene

MU, AGAIN, GAMES = 0.7, 0.2, 500
DEGREES, SMALL = (2, 4, 6, 8, 10, 12, 14, 16), (2, 4, 16)
PAPER = {"BL": [(2.0, 0.927), (16.0, 0.988)], "PF": [(16.0, 0.787)], "SG": [(2.0, 0.29)]}


def run(seed: int, small: bool = False, runs: int = 0) -> Iterator[Row]:
    size = size_of(small, runs)
    for degree in SMALL if small else DEGREES:
        for number, scene in enumerate(
            (
                Scene(degree=degree),
                Scene(degree=degree, mu=MU),
                Scene(degree=degree, mu=MU, again=AGAIN),
                Scene(degree=degree, rules=Rules(games_max=GAMES)),
            )
        ):
            rewinds = () if small and degree != 4 else ("stay", "close")
            yield from look(degree, scene, (seed, 8, degree, number), size, rewinds, learns=not small)


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    return outside(
        ("BL, accuracy over V_a at degree 2", value(rows, "accuracy", 2, "BL"), 0.897, 0.957),
        ("BL, accuracy over V at degree 16", value(rows, "accuracy_all", 16, "BL"), 0.958, 1),
        ("PF, the inverse over V at degree 16", 1 - value(rows, "accuracy_all", 16, "PF"), 0.757, 0.817),
        ("SG, precision at degree 2", value(rows, "precision", 2, "SG"), 0.29, 0.42),
        ("|S|/|V_a| at degree 2", value(rows, "base_rate", 2, "BL"), 0.279, 0.319),
        ("PF, precision after peeling at degree 4", value(rows, "precision", 4, "PF", "peel 1"), 0.9, 1),
        ("PF+, precision after peeling at degree 4", value(rows, "precision", 4, "PF+", "peel 1"), 0, 0.6),
        ("SG, precision rebuilt, degree 4", value(rows, "precision", 4, "SG", "rebuild"), 1, 1),
        ("SG, recall rebuilt, degree 4", value(rows, "recall", 4, "SG", "rebuild"), 0.6, 0.85),
        ("SG, precision taken back, degree 4", value(rows, "precision", 4, "SG", "rewind, links close"), 0.8, 1),
    )


def plot(rows: Sequence[Row]) -> Plot:
    left = lines(rows, "accuracy_all", [("BL", "leaf"), ("PF", "leaf"), ("PF+", "leaf")], ", over V")
    left |= lines(rows, "accuracy", [("BL", "leaf")], ", over V_a")
    left |= {
        "PF: inverse, over V": [
            (row.x, 1 - row.accuracy_all) for row in rows if (row.scheme, row.attacker) == ("PF", "leaf")
        ]
    }
    left |= lines(rows, "precision", [("SG", "leaf")], ", precision")
    told = {f"the paper's {scheme}": points for scheme, points in PAPER.items()}
    right = lines(
        rows,
        "precision",
        [
            ("BL", "leaf"),
            ("PF", "peel 1"),
            ("PF+", "peel 1"),
            ("PF+", "scheme, counted"),
            ("SG", "rebuild"),
            ("SG", "rewind, links stay"),
            ("SG", "rewind, links close"),
        ],
    )
    beside = Plot("What stronger observers get", "degree", "precision", right | base_rate(rows, "SG"))
    return Plot("Fig. 8: the leaf rule", "degree", "as it says", left, beside=beside, told=told)


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("anonpubsub", "fig08", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
