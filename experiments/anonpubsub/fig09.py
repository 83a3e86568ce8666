"""AnonPubSub, Fig. 9: how well an observer names subscribers, by how many nodes subscribe.

Claims, at degree 4: the accuracy against probabilistic forwarding (μ = .7) falls with the ratio |S|/|V| and rises again
when nobody is left to be a cover; it is least at .65. The shell game (500 games) is "optimal".

Expected band: PF's accuracy over V is least between .45 and .7 (ours at .5; from there to .65 it rises by .014). SG:
the leaf rule's precision is within a fifth of the base rate at .5, where 500 games are few for some 356 nodes. But the
base rate itself is what the paper's attacker may use: from a ratio of .25 on more than half of M_a subscribes, so
whoever names all of it is right more often than not (at .5 in over seven of ten cases). No game changes that.

Beside them: who peels one layer off PF has a precision over .9 at .1; covers that draw covers do not change much for
high ratios, where hardly anybody is outside M_a. Who rebuilds the mesh of SG from G is never wrong.

Seed 4. `python -m experiments.anonpubsub.fig09 [--seed N] [--small]` writes build/experiments/anonpubsub/fig09.csv and
.png.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from experiments import results
from experiments.anonpubsub.fig08 import AGAIN, GAMES, MU
from experiments.anonpubsub.panel import BY as BY
from experiments.anonpubsub.panel import Row, base_rate, lines, look, outside, size_of, value
from experiments.results import Plot
from tallystick.sim.anonymity.games import GameRules as Rules
from tallystick.sim.anonymity.scene import MeshScene as Scene

RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.8, 0.9)
SMALL = (0.1, 0.5, 0.6, 0.9)


def run(seed: int, small: bool = False, runs: int = 0) -> Iterator[Row]:
    size = size_of(small, runs)
    for number, ratio in enumerate(SMALL if small else RATIOS):
        for kind, scene in enumerate(
            (
                Scene(ratio=ratio, mu=MU),
                Scene(ratio=ratio, mu=MU, again=AGAIN),
                Scene(ratio=ratio, rules=Rules(games_max=GAMES)),
            )
        ):
            yield from look(ratio, scene, (seed, 9, number, kind), size, (), learns=not small)


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    ratios = sorted({row.x for row in rows})
    least = min(ratios, key=lambda ratio: value(rows, "accuracy_all", ratio, "PF"))
    return outside(
        ("the ratio at which PF's accuracy is least", least, 0.45, 0.7),
        ("SG, precision over base rate at .5", _gain(rows, 0.5), 0.98, 1.2),
        ("SG, dominance's precision at .5", value(rows, "precision", 0.5, "SG", "dominance"), 0.7, 0.85),
        ("SG, precision rebuilt at .5", value(rows, "precision", 0.5, "SG", "rebuild"), 1, 1),
        ("PF, precision after peeling at .1", value(rows, "precision", 0.1, "PF", "peel 1"), 0.9, 1),
    )


def _gain(rows: Sequence[Row], ratio: float) -> float:
    return value(rows, "precision", ratio, "SG") / value(rows, "base_rate", ratio, "SG")


def plot(rows: Sequence[Row]) -> Plot:
    left = lines(rows, "accuracy_all", [("PF", "leaf"), ("PF+", "leaf"), ("SG", "leaf")], ", over V")
    left |= lines(rows, "accuracy", [("PF", "leaf"), ("SG", "leaf")], ", over V_a")
    told = {"where the paper has PF's least": [(0.65, value(rows, "accuracy_all", _near(rows), "PF"))]}
    wanted = [("PF", "peel 1"), ("PF+", "scheme, counted"), ("SG", "leaf"), ("SG", "dominance"), ("SG", "rebuild")]
    right = lines(rows, "precision", wanted) | base_rate(rows, "SG") | base_rate(rows, "PF")
    beside = Plot("What stronger observers get", "|S|/|V|", "precision", right)
    return Plot("Fig. 9: the leaf rule", "|S|/|V|", "accuracy", left, beside=beside, told=told)


def _near(rows: Sequence[Row]) -> float:
    return min({row.x for row in rows}, key=lambda ratio: abs(ratio - 0.65))


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("anonpubsub", "fig09", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
