"""What Figs 14 to 16 share: the part of subscribers among leaves while games are played, and games taken back.

The leaves' part is what the paper measures. It is the precision of the leaf rule, and converges to |S|/|V_a|: then a
leaf tells nothing. What stronger observers get at the same moment is told beside it: by a record of links, and by the
shortest paths of G, which no game changes.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import numpy as np

from experiments.anonpubsub.panel import Size
from tallystick.sim.anonymity import rewinding
from tallystick.sim.anonymity.games import GameRules as Rules
from tallystick.sim.anonymity.games import Played, leaf_ratios
from tallystick.sim.anonymity.measures import judge
from tallystick.sim.anonymity.mesh import PUBLISHER
from tallystick.sim.anonymity.observers import rebuilt
from tallystick.sim.anonymity.scene import MeshScene as Scene
from tallystick.sim.anonymity.scene import MeshWorld as World
from tallystick.sim.anonymity.scene import draw

EXPECTED_GAMES, EXPECTED_S = 587.0, 22.4  # where the paper expects, and sees, convergence; 141 × 4.48 is 632


BY = ("decay", "by", "mark")  # what tells the lines of these rows apart


@dataclass(frozen=True)
class Row:
    decay: float  # λ
    by: str  # what decays: time, games
    mark: float  # games played, or seconds
    run: int
    games: int
    seconds: float
    leaf_ratio: float
    base_rate: float  # |S|/|V_a| without the publisher, which does not move: where the ratio goes
    rebuilt: float  # precision of who rebuilds the mesh from G
    rewound: float | None  # precision of the leaf rule once games are taken back; links stay
    rewound_closed: float | None  # links are closed


def until(played: Played, games: int) -> Played:
    """The first so many games."""
    seats = np.arange(len(played.seats))
    for a, b in played.swaps[:games]:
        seats[a], seats[b] = seats[b], seats[a]
    return replace(
        played, seats=seats, swaps=played.swaps[:games], movers=played.movers[:games], at_s=played.at_s[:games]
    )


def converge(
    rules: Rules, marks: Sequence[float], by_time: bool, key: Sequence[int], size: Size, rewinds: Container[float]
) -> Iterator[Row]:
    """Play each world once, and look at it at the marks. At those in `rewinds` some of the runs are taken back, too."""
    for run in range(size.runs):
        random = np.random.default_rng([*key, run])
        world = draw(Scene(rules=rules), random)
        assert world.played is not None
        ratios = leaf_ratios(world.first, world.played)
        base = float(world.first.subscribers.sum() / (world.first.role != PUBLISHER).sum())
        found = judge(world.mesh, rebuilt(world.view()).leaves, world.graph.nodes).precision
        for mark in marks:
            games = int(np.searchsorted(world.played.at_s, mark, "right")) if by_time else int(mark)
            games = min(games, world.played.games)
            seconds = float(world.played.at_s[games - 1]) if games else 0.0
            rewound: list[float | None] = [None, None]
            if mark in rewinds and run < size.rewound:
                rewound = [_take_back(world, games, closes, random) for closes in (False, True)]
            yield Row(rules.decay, rules.by, mark, run, games, seconds, float(ratios[games]), base, found, *rewound)


def _take_back(world: World, games: int, closes: bool, random: np.random.Generator) -> float:
    assert world.played is not None
    played = until(world.played, games)
    then = replace(world, mesh=world.first.seated(played.seats), played=played)
    view = then.view()
    guess = rewinding.name_rewound(view, rewinding.record(then, closes), random)
    return judge(then.mesh, guess, then.graph.nodes).precision


def value(rows: Sequence[Row], field: str, mark: float, decay: float = 0.0) -> float:
    """The mean over the runs that have it."""
    found = [getattr(row, field) for row in rows if (row.mark, row.decay) == (mark, decay)]
    return mean(float(one) for one in found if one is not None)


def lines(rows: Sequence[Row], label: str, field: str) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if (y := getattr(row, field)) is not None:
            found.setdefault(label.format(decay=row.decay), []).append((row.mark, float(y)))
    return found
