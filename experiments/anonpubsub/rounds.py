"""Intersection: who is there every time is a subscriber.

`tallystick.sim.anonymity.rounds` has the two observers, `presence` and `scheme`, and the defence, `sticky`.

Expected band, with covers that draw covers (PF+: .7, .2), which fill three quarters of the graph: to `presence` half of
the subscribers are known after 8 rounds of churn or restarts or more, and not within 20 leases or epochs, since
forwarders near the publisher stay as well. To `scheme` they are known after one to three rounds everywhere, and nearly
all after ten restarts. With games too (PFSG+, 600 in each round) its first look names less than .4, and twenty restarts
over .5. Sticky forwarders stop what later rounds add: `presence` names no more than chance would (a tenth to a fifth),
and `scheme` stays where it was. They do not take the first look back. The price is a mesh of nearly all nodes from the
third round on; over leases, where paths stay, it hardly grows.

Seed 4. `python -m experiments.anonpubsub.rounds [--seed N] [--small]` writes rounds.csv and .png to
build/experiments/anonpubsub.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import mean, median

import numpy as np

from experiments import results
from experiments.anonpubsub.panel import LEARNT, RUNS, SMALL_LEARNT, outside
from experiments.results import Plot
from tallystick.sim.anonymity.games import GameRules as Rules
from tallystick.sim.anonymity.observers import Sightings as Table
from tallystick.sim.anonymity.observers import learn
from tallystick.sim.anonymity.rounds import EVENTS, ROUNDS, watch_rounds
from tallystick.sim.anonymity.scene import MeshScene as Scene

SCENE = Scene(mu=0.7, again=0.2)
PLAYED = replace(SCENE, rules=Rules(games_max=600))
SMALL_RUNS = 1


@dataclass(frozen=True)
class Row:
    defence: str  # PF+, PFSG+
    event: str
    sticky: bool
    round: int
    run: int
    size: int  # of M_a in this round
    presence: float  # the part of subscribers that it names
    scheme: float


def run(seed: int, small: bool = False) -> Iterator[Row]:
    for kind, scene in enumerate((SCENE, PLAYED)):
        table = learn(scene, SMALL_LEARNT if small else LEARNT, np.random.default_rng([seed, 20, kind]))
        runs = (SMALL_RUNS if small else RUNS) // (kind * 2 + 1)  # games take their time
        for (number, event), sticky in product(enumerate(EVENTS), (False, True)):
            if small and kind and event != "restart":
                continue
            for index in range(max(runs, 1)):
                random = np.random.default_rng([seed, 21, number, index])
                yield from _watch(scene, event, sticky, index, table, random)


def _watch(
    scene: Scene, event: str, sticky: bool, index: int, table: Table, random: np.random.Generator
) -> Iterator[Row]:
    for number, (size, *named) in enumerate(watch_rounds(scene, event, sticky, table, random), 1):
        yield Row(scene.name, event, sticky, number, index, size, *named)


def half(rows: Sequence[Row], event: str, sticky: bool, attacker: str, defence: str = "PF+") -> float:
    """The median round in which half of the subscribers are named; a round more than we watched where it never is."""
    first: dict[int, int] = {}
    for row in rows:
        if (row.defence, row.event, row.sticky) == (defence, event, sticky):
            first.setdefault(row.run, ROUNDS + 1)
            if getattr(row, attacker) >= 0.5:
                first[row.run] = min(first[row.run], row.round)
    return median(first.values())


def value(rows: Sequence[Row], field: str, event: str, sticky: bool, number: int, defence: str = "PF+") -> float:
    key = (defence, event, sticky, number)
    found = [row for row in rows if (row.defence, row.event, row.sticky, row.round) == key]
    return mean(float(getattr(row, field)) for row in found)


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    found: list[tuple[str, float, float, float]] = [
        (f"rounds until half are known, {event}", half(rows, event, False, "presence"), least, ROUNDS + 1)
        for event, least in (("lease", ROUNDS), ("epoch", ROUNDS), ("churn", 8), ("restart", 8))
    ]
    for event in EVENTS:
        last = value(rows, "presence", event, True, ROUNDS)
        found += [
            (f"the same to who knows the scheme, {event}", half(rows, event, False, "scheme"), 1, 3),
            (f"named after {ROUNDS} rounds, sticky, {event}", last, 0.08, 0.25),
        ]
    games = [
        value(rows, "scheme", "restart", sticky, number, "PFSG+")
        for sticky, number in ((False, 1), (False, ROUNDS), (True, ROUNDS))
    ]
    found += [
        ("with games, first look", games[0], 0.1, 0.4),
        ("with games, twenty restarts", games[1], 0.5, 0.8),
        ("with games, twenty restarts, sticky", games[2], 0.1, 0.4),
    ]
    return outside(*found)


def plot(rows: Sequence[Row]) -> Plot:
    covers, both = [row for row in rows if row.defence == "PF+"], [row for row in rows if row.defence == "PFSG+"]
    loose = [row for row in covers if not row.sticky]
    left = results.lines(loose, "{event}: presence", "round", "presence")
    left |= results.lines(loose, "{event}: scheme", "round", "scheme")
    sticky = [row for row in covers if row.sticky and row.event == "restart"]
    left |= results.lines(sticky, "restart, sticky: presence", "round", "presence")
    left |= results.lines(sticky, "restart, sticky: scheme", "round", "scheme")
    right = results.lines([row for row in both if not row.sticky], "{event}: scheme", "round", "scheme")
    sticky = [row for row in both if row.sticky and row.event == "restart"]
    right |= results.lines(sticky, "restart, sticky: scheme", "round", "scheme")
    right |= {"restart, sticky: part of nodes in M_a": [(row.round, row.size / SCENE.nodes) for row in sticky]}
    beside = Plot("Covers that draw covers, and games", "rounds", "part of subscribers named", right)
    return Plot("Intersection, covers that draw covers", "rounds", "part of subscribers named", left, beside=beside)


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("anonpubsub", "rounds", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
