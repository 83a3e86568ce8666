"""What several figures share: a scene drawn some thirty times, and what each attacker gets of it each time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from statistics import mean
from typing import NamedTuple

import numpy as np

from experiments import results
from tallystick.sim.anonymity import rewinding
from tallystick.sim.anonymity.measures import judge
from tallystick.sim.anonymity.observers import Sightings as Table
from tallystick.sim.anonymity.observers import learn, observe, peel
from tallystick.sim.anonymity.scene import MeshScene as Scene
from tallystick.sim.anonymity.scene import draw


class Size(NamedTuple):
    """How much is drawn for a point. The command draws thirty worlds itself; a sweep draws one for each seed."""

    runs: int = 30
    learnt: int = 40  # worlds that the observer who knows the scheme draws for itself
    rewound: int = 10  # runs in which games are taken back, which takes the longest
    is_small: bool = False


SMALL = Size(runs=3, learnt=6, rewound=1, is_small=True)
RUNS, SMALL_RUNS, LEARNT, SMALL_LEARNT = Size().runs, SMALL.runs, Size().learnt, SMALL.learnt


def size_of(small: bool, runs: int = 0) -> Size:
    """`runs`: so many worlds, and games are taken back in all of them."""
    size = SMALL if small else Size()
    return size._replace(runs=runs, rewound=runs) if runs else size


@dataclass(frozen=True)
class Row:
    x: float  # what the figure varies
    scheme: str  # BL, PF, SG, PFSG; + where covers draw covers
    mu: float  # μ, 0 without covers
    attacker: str
    run: int
    size: int  # |V_a|
    accuracy: float
    accuracy_all: float
    better: float
    better_all: float
    precision: float
    recall: float
    base_rate: float
    named: int
    entropy: float


BY = ("x", "scheme", "attacker")  # what tells the lines of these rows apart
CLOSING = {"stay": False, "close": True}  # what becomes of links outside G that M_a needs no longer


@lru_cache(maxsize=64)
def _learnt(scene: Scene, worlds: int) -> Table:
    """One observer for all seeds: what it draws for itself is no part of what it is shown."""
    return learn(scene, worlds, np.random.default_rng([worlds, 1]))


def look(
    x: float,
    scene: Scene,
    key: Sequence[int],
    size: Size,
    rewinds: Sequence[str] = ("stay", "close"),
    learns: bool = True,
    name: str = "",
) -> Iterator[Row]:
    """A row for each attacker and run; `key` seeds the draws. `rewinds`: some of the runs are taken back as well."""
    table = _learnt(scene, size.learnt) if learns else None
    for run in range(size.runs):
        random = np.random.default_rng([*key, 2, run])
        world = draw(scene, random)
        scores = observe(world, table, random)
        for links in rewinds if scene.rules and run < size.rewound else ():
            view = world.view()
            began = rewinding.rewind(view, rewinding.record(world, CLOSING[links]), random)
            scores[f"rewind, links {links}"] = judge(world.mesh, view.leaves[began], scene.nodes)
            scores[f"rewind, links {links}, peel 1"] = judge(world.mesh, peel(view, 1)[began], scene.nodes)
        for attacker, score in scores.items():
            yield Row(x, name or scene.name, scene.mu, attacker, run, world.mesh.size, **asdict(score))


def value(rows: Iterable[Row], field: str, x: float, scheme: str, attacker: str = "leaf") -> float:
    """The mean over the runs."""
    found = [float(getattr(row, field)) for row in rows if (row.x, row.scheme, row.attacker) == (x, scheme, attacker)]
    return mean(found)


def outside(*checks: tuple[str, float, float, float]) -> list[str]:
    """Of (what, ours, least, most) those that leave their band."""
    return [
        f"{what}: {ours:.3f} is not in {least:.3f} to {most:.3f}"
        for what, ours, least, most in checks
        if not least <= ours <= most
    ]


Lines = dict[str, list[tuple[float, float]]]


def lines(rows: Sequence[Row], field: str, wanted: Iterable[tuple[str, str]], more: str = "") -> Lines:
    """A line for each scheme and attacker."""
    found: Lines = {}
    for scheme, attacker in wanted:
        some = [row for row in rows if (row.scheme, row.attacker) == (scheme, attacker)]
        found |= results.lines(some, "{scheme}: {attacker}" + more, "x", field)
    return found


def base_rate(rows: Sequence[Row], scheme: str) -> Lines:
    some = [row for row in rows if (row.scheme, row.attacker) == (scheme, "leaf")]
    return results.lines(some, "|S|/|V_a| of {scheme}", "x", "base_rate")
