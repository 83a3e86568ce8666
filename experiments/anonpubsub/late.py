"""A subscriber that joins late: what the shell game and covers do for it. Not in the paper.

Games end with time (λ = .05), and a node without anybody to send to begins none. So who joins a mesh that has cooled
down comes to a leaf place, and stays there. 45 subscribers play for 100 s, then five more join, and all play for 60 s:

    cold      t is the time of membership, as the paper has it: members play no more, newcomers have nobody to ask
    joined    t begins again at a member that got a neighbour who joined
    restart   t begins again at every node whose neighbourhood changes, also by a game (the paper's Fig. 6: "s4 detects
              another change … and executes the SG algorithm")
    endless   λ = 0

An observer that compares M_a before and after need not look at places. Among nodes that are new in M_a all subscribers
that joined are found; only forwarders and covers that came with them are beside them. `covers`: newcomers on their way
draw covers too (.7, and .2 for covers of covers), as members have before.

Expected band: of all places .29 are leaves. Cold, half of the newcomers or more are leaves after a minute (ours .56;
what moves the others are forwarders that came with them and are new themselves); joined, a little fewer (.49); restart
.41; only endless games bring it to .29. And restart does not end: every game restarts some six clocks, so that over 5
games a second go on where `joined` has less than two. A decay that a game restarts is no decay. New in M_a: two in five
or more are the newcomers themselves, whatever is played; with covers of their own less than three in ten.

Seed 4. `python -m experiments.anonpubsub.late [--seed N] [--small]` writes late.csv and .png to
build/experiments/anonpubsub.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import numpy as np

from experiments import results
from experiments.anonpubsub.panel import RUNS, SMALL_RUNS, outside
from experiments.results import Plot
from tallystick.sim.anonymity.games import GameRules as Rules
from tallystick.sim.anonymity.games import play
from tallystick.sim.anonymity.graph import Graph, Numbers, advertise, small_world
from tallystick.sim.anonymity.mesh import TopicMesh as Mesh
from tallystick.sim.anonymity.mesh import attach, cover, grow

NODES, DEGREE, EARLY, LATE = 500, 4, 45, 5
BEFORE_S, AFTER_S, DECAY, MU, AGAIN = 100.0, 60.0, 0.05, 0.7, 0.2
RULES = {"cold": "time", "joined": "time", "restart": "restart", "endless": "time"}


@dataclass(frozen=True)
class Row:
    rule: str
    covers: bool
    run: int
    leaves: float  # the part of newcomers that are leaves in the end
    leaves_all: float  # of all places
    new_precision: float  # subscribers among those that are new in M_a
    games_a_second: float  # in the last half minute
    size: int


def run(seed: int, small: bool = False) -> Iterator[Row]:
    for rule in RULES:
        for covers in (False, True) if not small or rule == "joined" else (False,):
            for index in range(SMALL_RUNS if small else RUNS):
                yield _join(rule, covers, index, np.random.default_rng([seed, 24, index]))


def _join(rule: str, covers: bool, index: int, random: np.random.Generator) -> Row:
    graph = small_world(NODES, DEGREE, random)
    chosen = random.permutation(NODES)
    publisher, early = chosen[:1], chosen[1 : 1 + EARLY]
    tree = advertise(graph, int(publisher[0]), random)
    mesh = grow(NODES, [tree], publisher, early)
    if covers:
        mesh = cover(graph, mesh, MU, random, AGAIN)
    outside_yet = chosen[1 + EARLY :]
    newcomers = outside_yet[~np.isin(outside_yet, mesh.node)][:LATE]
    decay = 0.0 if rule == "endless" else DECAY
    first = play(mesh, Rules(decay, RULES[rule], seconds_max=BEFORE_S), random)
    before = mesh.seated(first.seats)
    after = attach(before, tree, newcomers)
    if covers:
        after = _cover_new(graph, after, before.size, random)
    member_s = np.where(np.arange(after.size) < before.size, BEFORE_S, 0.0)
    if rule != "cold":
        joined = after.links[after.links[:, 1] >= before.size, 0]
        member_s[joined] = 0.0
    second = play(after, Rules(decay, RULES[rule], seconds_max=AFTER_S), random, member_s)
    is_new = np.isin(after.node, newcomers)
    rate = float((second.at_s > AFTER_S / 2).sum() / (AFTER_S / 2))
    return Row(
        rule,
        covers,
        index,
        float(after.leaves[np.isin(second.seats, np.flatnonzero(is_new))].mean()),
        float(after.leaves.mean()),
        len(newcomers) / (after.size - before.size),
        rate,
        after.size,
    )


def _cover_new(graph: Graph, mesh: Mesh, old: int, random: np.random.Generator) -> Mesh:
    """Only those that came draw covers: the others' are drawn."""
    fresh = mesh.node[old:]
    alone = Mesh(fresh, mesh.role[old:], mesh.layer[old:], np.zeros((0, 2), dtype=int))
    drawn = cover(graph, alone, MU, random, AGAIN)
    known = np.isin(drawn.node, mesh.node)
    place_of = np.full(NODES, -1)
    place_of[mesh.node] = np.arange(mesh.size)
    place_of[drawn.node[~known]] = mesh.size + np.arange(int((~known).sum()))
    links: Numbers = place_of[drawn.node[drawn.links]]
    inward = (links[:, 1] >= mesh.size) & (links[:, 0] >= old)  # a cover that is a member already is none
    pieces = zip((mesh.node, mesh.role, mesh.layer), (drawn.node, drawn.role, drawn.layer), strict=True)
    node, role, layer = (np.concatenate([one, more[~known]]) for one, more in pieces)
    whole = replace(mesh, node=node, role=role, layer=layer, links=np.concatenate([mesh.links, links[inward]]))
    return _reached(whole)


def _reached(mesh: Mesh) -> Mesh:
    """Without places that no link leads to: covers of a cover that was left out."""
    stays = np.ones(mesh.size, dtype=bool)
    stays[np.setdiff1d(np.arange(mesh.size), mesh.links.ravel())] = False
    place = np.cumsum(stays) - 1
    return Mesh(mesh.node[stays], mesh.role[stays], mesh.layer[stays], place[mesh.links])


def value(rows: Sequence[Row], field: str, rule: str, covers: bool = False) -> float:
    return mean(float(getattr(row, field)) for row in rows if (row.rule, row.covers) == (rule, covers))


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    return outside(
        ("newcomers that are leaves, cold", value(rows, "leaves", "cold"), 0.4, 0.75),
        ("newcomers that are leaves, joined", value(rows, "leaves", "joined"), 0.3, 0.7),
        ("newcomers that are leaves, endless", value(rows, "leaves", "endless"), 0.1, 0.45),
        ("games a second, joined", value(rows, "games_a_second", "joined"), 0, 2),
        ("games a second, restart", value(rows, "games_a_second", "restart"), 5, 50),
        ("newcomers among the new", value(rows, "new_precision", "joined"), 0.35, 1),
        ("newcomers among the new, covers", value(rows, "new_precision", "joined", True), 0, 0.3),
    )


def plot(rows: Sequence[Row]) -> Plot:
    at = {rule: float(number) for number, rule in enumerate(RULES)}
    left: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if not row.covers:
            left.setdefault("newcomers that are leaves", []).append((at[row.rule], row.leaves))
            left.setdefault("places that are leaves", []).append((at[row.rule], row.leaves_all))
        told = "newcomers among the new" + (", with covers" if row.covers else "")
        left.setdefault(told, []).append((at[row.rule], row.new_precision))
    right = {"games a second, last half minute": [(at[row.rule], row.games_a_second) for row in rows if not row.covers]}
    axis = ", ".join(f"{number:.0f}: {rule}" for rule, number in at.items())
    beside = Plot("What it costs", axis, "games a second", right)
    return Plot("Five subscribers that join late", axis, "part", left, beside=beside)


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("anonpubsub", "late", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
