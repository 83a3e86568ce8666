"""Latency and bandwidth against anonymity, all schemes in one plot. Not in the paper.

Anonymity is what the best of our observers leaves: each names as many nodes as there are subscribers (it knows |S|), by
leaves, by leaves after one or two layers are peeled, both as seen and as rebuilt from G, by what it learnt of the
scheme, and by leaves once games are taken back (links stay; where they close it does better). `named` is the part of
subscribers that the best of them gets, in the mean over the runs; `chance` is |S|/|V|, which no scheme can be below.

Bandwidth is messages for one publication and subscriber, where a topic publishes once a second for ten minutes; a
game's messages (4.7) are shared by these 600. Latency is what a notification takes to a subscriber in the mean: a hop
takes 55 ms (a link's 35 and 20 to pass it on). At constant rate every link of every node carries a cell in each link
beat of a second, in both directions, for all topics together, and a hop waits half a beat.

`as built`: covers that draw covers, by nodes that know only the members they have links with; publishers play, and
notifications flood in both directions.

Expected band: the baseline costs under 4 messages and gives over .7 of its subscribers away, and SG as many. Covers
drawn once cost twice that, and the more are drawn, the less they protect. Covers that draw covers, with the game, bring
it under .4 for under 15 messages. A constant rate is at chance for some 46 messages and ten times the latency.

Seed 4. `python -m experiments.anonpubsub.tradeoff [--seed N] [--small]` writes tradeoff.csv and .png to
build/experiments/anonpubsub.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import numpy as np

from experiments import results
from experiments.anonpubsub.panel import LEARNT, RUNS, SMALL_LEARNT, outside
from experiments.results import Plot
from tallystick.sim.anonymity import rewinding
from tallystick.sim.anonymity.games import GameRules as Rules
from tallystick.sim.anonymity.graph import Numbers, distances, joined
from tallystick.sim.anonymity.measures import top
from tallystick.sim.anonymity.mesh import PUBLISHER
from tallystick.sim.anonymity.observers import Sightings as Table
from tallystick.sim.anonymity.observers import learn, peel, rebuilt
from tallystick.sim.anonymity.scene import MeshScene as Scene
from tallystick.sim.anonymity.scene import MeshWorld as World
from tallystick.sim.anonymity.scene import draw

PUBLICATIONS, HOP_S, BEAT_S, SMALL_RUNS = 600, 0.055, 1.0, 1
GAME = Rules(games_max=600)
BUILT = Scene(mu=0.7, is_built=True, rules=Rules(games_max=600, publishers_play=True), both_ways=True)
SCENES = {
    "BL": [Scene()],
    "PF, μ .2 .5 .9": [Scene(mu=mu) for mu in (0.2, 0.5, 0.9)],
    "PF+, μ .7, again .1 .2 .3": [Scene(mu=0.7, again=again) for again in (0.1, 0.2, 0.3)],
    "SG, 300 600 1,200 games": [Scene(rules=Rules(games_max=games)) for games in (300, 600, 1200)],
    "PFSG, μ .2 .5 .9": [Scene(mu=mu, rules=GAME) for mu in (0.2, 0.5, 0.9)],
    "PFSG+, μ .7, again .1 .2 .3": [Scene(mu=0.7, again=again, rules=GAME) for again in (0.1, 0.2, 0.3)],
    "as built, μ .7, again .1 .2 .3": [replace(BUILT, again=again) for again in (0.1, 0.2, 0.3)],
}


ONCE, AGAIN, GAMES, AS_BUILT = list(SCENES)[1], list(SCENES)[5], list(SCENES)[3], list(SCENES)[6]
JUDGED = ("BL", ONCE, AGAIN, GAMES, AS_BUILT)  # by a band


@dataclass(frozen=True)
class Row:
    scheme: str
    setting: int  # which of the scheme's
    run: int
    messages: float  # for a publication and subscriber
    latency_s: float
    attacker: str  # the best, by the mean over the runs
    named: float  # the part of subscribers that it names
    chance: float  # |S|/|V|
    size: int


def run(seed: int, small: bool = False) -> Iterator[Row]:
    for name, scenes in SCENES.items():
        for setting, scene in enumerate(scenes):
            if small and (setting != len(scenes) // 2 or name not in JUDGED):
                continue
            key = (seed, 25, list(SCENES).index(name), setting)
            yield from _try(name, setting, scene, key, small)
    yield from _constant(seed, small)


def _try(name: str, setting: int, scene: Scene, key: Sequence[int], small: bool) -> Iterator[Row]:
    table = learn(scene, SMALL_LEARNT if small else LEARNT, np.random.default_rng([*key, 1]))
    costs, named = [], []
    for index in range(SMALL_RUNS if small else RUNS):
        random = np.random.default_rng([*key, 2, index])
        world = draw(scene, random)
        costs.append(_costs(world))
        named.append(_named(world, table, random))
    best = max(named[0], key=lambda attacker: mean(one[attacker] for one in named))
    for index, ((messages, latency, size), one) in enumerate(zip(costs, named, strict=True)):
        yield Row(name, setting, index, messages, latency, best, one[best], scene.ratio, size)


def _costs(world: World) -> tuple[float, float, int]:
    subscribers = int(world.mesh.subscribers.sum())
    games = 0.0
    if world.played:
        games = (world.played.built if world.both_ways else world.played.messages) / PUBLICATIONS
    return (len(world.view().flow) + games) / subscribers, _hops(world) * HOP_S, world.mesh.size


def _hops(world: World) -> float:
    source = int(np.flatnonzero(world.mesh.role == PUBLISHER)[0])
    return float(distances(joined(world.mesh.size, world.mesh.links), source)[world.mesh.subscribers].mean())


def _named(world: World, table: Table, random: np.random.Generator) -> dict[str, float]:
    view, truth = world.view(), world.mesh.subscribers
    guesses: dict[str, Numbers] = {"leaf": view.leaves.astype(float), "scheme": table.of(view)}
    again = rebuilt(view)
    for layers in (1, 2):
        guesses[f"peel {layers}"] = peel(view, layers).astype(float)
        guesses[f"rebuild, peel {layers - 1}"] = peel(again, layers - 1).astype(float)
    if world.played:
        began = rewinding.rewind(view, rewinding.record(world), random)
        guesses |= {"rewind": view.leaves[began].astype(float), "rewind, peel 1": peel(view, 1)[began].astype(float)}
    for guess in guesses.values():
        guess[view.source] = -1  # the first to send is the publisher
    return {name: float(top(guess, int(truth.sum()), random)[truth].mean()) for name, guess in guesses.items()}


def _constant(seed: int, small: bool) -> Iterator[Row]:
    """Every link carries a cell in each beat, so that there is nothing to see."""
    for index in range(SMALL_RUNS if small else RUNS):
        world = draw(Scene(), np.random.default_rng([seed, 25, 99, index]))
        subscribers = int(world.mesh.subscribers.sum())
        latency = _hops(world) * (HOP_S + BEAT_S / 2)
        chance = subscribers / world.graph.nodes
        messages = len(world.graph.to) / BEAT_S / subscribers
        yield Row("constant rate", 0, index, messages, latency, "none", chance, chance, world.mesh.size)


def value(rows: Sequence[Row], field: str, scheme: str, setting: int) -> float:
    return mean(float(getattr(row, field)) for row in rows if (row.scheme, row.setting) == (scheme, setting))


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    return outside(
        ("BL, messages", value(rows, "messages", "BL", 0), 2, 4),
        ("BL, named", value(rows, "named", "BL", 0), 0.7, 1),
        ("PF, μ .5, what it gains", value(rows, "named", "BL", 0) - value(rows, "named", ONCE, 1), -0.05, 0.2),
        ("SG, named", value(rows, "named", GAMES, 1), 0.7, 1),
        ("PFSG+, messages", value(rows, "messages", AGAIN, 1), 5, 15),
        ("PFSG+, named", value(rows, "named", AGAIN, 1), 0.1, 0.4),
        ("as built, named", value(rows, "named", AS_BUILT, 1), 0.1, 0.4),
        ("constant rate, messages", value(rows, "messages", "constant rate", 0), 40, 55),
    )


def plot(rows: Sequence[Row]) -> Plot:
    left: dict[str, list[tuple[float, float]]] = {}
    right: dict[str, list[tuple[float, float]]] = {}
    for scheme, setting in dict.fromkeys((row.scheme, row.setting) for row in rows):
        some = [row for row in rows if (row.scheme, row.setting) == (scheme, setting)]
        messages = round(value(rows, "messages", scheme, setting), 3)
        named = round(value(rows, "named", scheme, setting), 3)
        left.setdefault(scheme, []).extend((messages, row.named) for row in some)
        right.setdefault(scheme, []).extend((named, row.latency_s) for row in some)
    told = "part of subscribers named by the best"
    beside = Plot("Latency", f"{told}, mean", "seconds to a subscriber", right, logarithmic=True)
    return Plot(
        "Bandwidth against anonymity", "messages for a publication and subscriber, mean", told, left, beside=beside
    )


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("anonpubsub", "tradeoff", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
