"""AnonPubSub, Fig. 17: the shell game by how many nodes subscribe, and the least μ that goes with it.

Claims: the game is sensitive to |S|/|V|; 700 games instead of 300 "cannot sufficiently compensate". Above .25 more than
half of M_a subscribes (.514), so that the game must be combined with probabilistic forwarding (PFSG), whose μ is chosen
to keep subscribers below half.

Expected band: .514 within .02 at .25. From 300 to 700 games the leaf rule's precision falls by less than .15. PFSG,
with the least μ of a grid of .05 that keeps the mean of |S|/|V_a| under half: 0 below .25, more with each ratio, and
from .5 on none does, because |V_a| is at most twice |S|.

Beside it, the mesh rebuilt from G, and games taken back where links are closed: SG alone gives a precision of 1 and
over .85. With the least μ the leaves that come out are covers as well, and at .4 they say little (.45 to .75 rebuilt,
.35 to .6 taken back, of a base rate of .5); but who takes games back and then peels one layer has over .6 there.

Seed 4. `python -m experiments.anonpubsub.fig17 [--seed N] [--small]` writes build/experiments/anonpubsub/fig17.csv and
.png.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import cache
from statistics import mean

import numpy as np

from experiments import results
from experiments.anonpubsub.panel import BY as BY
from experiments.anonpubsub.panel import Row, base_rate, lines, look, outside, size_of, value
from experiments.results import Plot
from tallystick.sim.anonymity.games import GameRules as Rules
from tallystick.sim.anonymity.scene import MeshScene as Scene
from tallystick.sim.anonymity.scene import draw

GAMES, SG, REWIND = (300, 700), "SG, 700 games", "rewind, links close"
RATIOS, SMALL = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6), (0.1, 0.25, 0.4, 0.5)
GRID = tuple(round(0.05 * step, 2) for step in range(1, 21))


@cache
def _least_mu(ratio: float, worlds: int) -> float | None:
    """The least μ that keeps the mean of |S|/|V_a| under half; none where not even 1 does. The same for all seeds."""
    if ratio >= 0.5:
        return None
    for mu in (0.0, *GRID):
        found = [draw(Scene(ratio=ratio, mu=mu), np.random.default_rng([17, one])).mesh for one in range(worlds)]
        if mean(float(mesh.subscribers.mean()) for mesh in found) < 0.5:
            return mu
    return None


def run(seed: int, small: bool = False, runs: int = 0) -> Iterator[Row]:
    size = size_of(small, runs)
    for number, ratio in enumerate(SMALL if small else RATIOS):
        rewinds = () if small and ratio != 0.4 else ("close",)
        for games in GAMES:
            scene = Scene(ratio=ratio, rules=Rules(games_max=games))
            taken = rewinds if games == max(GAMES) else ()
            yield from look(ratio, scene, (seed, 17, number, games), size, taken, False, f"SG, {games} games")
        if mu := _least_mu(ratio, 3 if small else 10):
            scene = Scene(ratio=ratio, mu=mu, rules=Rules(games_max=max(GAMES)))
            yield from look(ratio, scene, (seed, 17, number, 1), size, rewinds, False)


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    mus = {row.x: row.mu for row in rows if row.mu}
    falls = value(rows, "precision", 0.25, "SG, 300 games") - value(rows, "precision", 0.25, SG)
    return outside(
        ("|S|/|V_a| at .25", value(rows, "base_rate", 0.25, SG), 0.494, 0.534),
        ("what 400 games more take from the precision at .25", falls, -0.05, 0.15),
        ("the least ratio with covers", min(mus), 0.24, 0.31),
        ("the greatest ratio at which covers keep subscribers under half", max(mus), 0.39, 0.46),
        ("|S|/|V_a| with covers at .4", value(rows, "base_rate", 0.4, "PFSG"), 0.4, 0.51),
        ("taken back at .4, SG", value(rows, "precision", 0.4, SG, REWIND), 0.85, 1),
        ("rebuilt at .4, SG", value(rows, "precision", 0.4, SG, "rebuild"), 1, 1),
        ("rebuilt at .4, PFSG", value(rows, "precision", 0.4, "PFSG", "rebuild"), 0.45, 0.75),
        ("taken back at .4, PFSG", value(rows, "precision", 0.4, "PFSG", REWIND), 0.35, 0.6),
        ("the same, peeled", value(rows, "precision", 0.4, "PFSG", f"{REWIND}, peel 1"), 0.6, 0.8),
    )


def plot(rows: Sequence[Row]) -> Plot:
    left = lines(rows, "precision", [(f"SG, {games} games", "leaf") for games in GAMES] + [("PFSG", "leaf")])
    left |= base_rate(rows, SG) | base_rate(rows, "PFSG")
    left |= {"PFSG: the least μ": sorted({(row.x, row.mu) for row in rows if row.mu})}
    taken = [(scheme, attacker) for scheme in (SG, "PFSG") for attacker in ("rebuild", REWIND, f"{REWIND}, peel 1")]
    right = lines(rows, "precision", taken)
    beside = Plot("Rebuilt from G, and taken back", "|S|/|V|", "precision", right)
    told = {"the paper's |S|/|V_a|": [(0.25, 0.514)]}
    return Plot("Fig. 17: the shell game, alone and with covers", "|S|/|V|", "part", left, beside=beside, told=told)


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("anonpubsub", "fig17", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
