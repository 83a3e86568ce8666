"""The shell game (4.5): adjacent nodes of a mesh exchange places, so that a place no longer tells a role.

Rebuilt, since the procedure is not in our copy. After a wait drawn from Exp(5 s) a node v plays if random < e^(−λt),
with t the time since it became a member, and otherwise waits again. It asks one w of those it sends to; v, w and all
their neighbours are locked, and where one of them is locked already it votes no and the game is off. Time goes in steps
of one game's duration, which the paper does not tell: of the games of a step that want the same lock the first gets it,
and one that lost holds what it had until the step is over, so that both may fail with a third. We take half a second
(`game_s`). Where votes wait for link beats of one second, as they do in the product, it is some four: three until the
locks are gone, one until all new neighbours were heard.

`restart`: t begins again at every node whose neighbourhood changes, by a game too. `games`: t is the number of games
played, the control that fails (Fig. 16).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from tallystick.sim.anonymity.graph import Graph, Numbers
from tallystick.sim.anonymity.mesh import PUBLISHER, TopicMesh

WAIT_S = 5.0  # the mean; the paper's


@dataclass(frozen=True)
class GameRules:
    decay: float = 0.0  # λ
    by: str = "time"  # time, restart, games
    games_max: float = inf
    seconds_max: float = 600.0
    game_s: float = 0.5  # how long one lasts
    publishers_play: bool = False  # along directed links nobody would hear a publisher that moved


@dataclass(frozen=True)
class Played:
    seats: Numbers  # for each place, whose first place its node had
    swaps: Numbers  # pairs of places, in order
    movers: Numbers  # pairs of nodes by their first places: who left the place beside it
    at_s: Numbers
    refused: int  # games that a lock ended
    messages: int  # 3|N⁺(v)|+|N⁺(w)|+3|N⁻(v)|+|N⁻(w)| for each (4.7)
    estimated: int  # 3|N⁻(v)|+|N⁻(w)|+4
    built: int  # what the product's nodes send: all neighbours are asked, and the new ones say a word

    @property
    def games(self) -> int:
        return len(self.swaps)


def play(mesh: TopicMesh, rules: GameRules, random: np.random.Generator, member_s: Numbers | None = None) -> Played:
    """Play until the games or the seconds are up. `member_s` says how long each node is a member already."""
    around, first, onward = mesh.around(), *_children(mesh)
    inward = np.bincount(mesh.links[:, 1], minlength=mesh.size)
    fans = np.diff(first)
    seats = np.arange(mesh.size)
    since = np.zeros(mesh.size) if member_s is None else -member_s  # when t began, of each node by its first place
    count = np.zeros(mesh.size)
    may_play = np.ones(mesh.size, dtype=bool) if rules.publishers_play else mesh.role != PUBLISHER
    due = random.exponential(WAIT_S, mesh.size)
    swaps, movers, times, refused, done, now = [], [], [], 0, 0, 0.0
    while done < rules.games_max and now < rules.seconds_max:
        now += rules.game_s
        on_time = due < now
        due[on_time] = now + random.exponential(WAIT_S, int(on_time.sum()))
        age = count if rules.by == "games" else now - since
        wants = on_time & may_play & (random.random(mesh.size) < np.exp(-rules.decay * age))
        places = np.flatnonzero(wants[seats] & (fans > 0))
        others = onward[first[places] + (random.random(len(places)) * fans[places]).astype(int)]
        pairs = np.stack([places, others], axis=1)[may_play[seats[others]]]
        won = _locked(around, pairs, random)
        refused += int((~won).sum())
        pairs = pairs[won][: int(min(rules.games_max - done, len(pairs)))]
        nodes = seats[pairs]
        seats[pairs[:, 0]], seats[pairs[:, 1]] = nodes[:, 1], nodes[:, 0]
        if rules.by == "restart":
            _, beside = around.links(pairs.ravel())
            since[seats[beside]] = now  # the two of each game are neighbours of one another
        count[nodes] += 1
        swaps.append(pairs)
        movers.append(nodes)
        times.append(np.full(len(pairs), now))
        done += len(pairs)
    none = np.zeros((0, 2), dtype=int)
    all_swaps = np.concatenate([none, *swaps])
    v, w = all_swaps[:, 0], all_swaps[:, 1]
    messages = 3 * inward[v] + inward[w] + 3 * fans[v] + fans[w]
    estimated = 3 * fans[v] + fans[w] + 4
    at_s = np.concatenate([np.zeros(0), *times])
    told = (refused, int(messages.sum()), int(estimated.sum()), int(_built(around, all_swaps).sum()))
    return Played(seats, all_swaps, np.concatenate([none, *movers]), at_s, *told)


def _built(around: Graph, swaps: Numbers) -> Numbers:
    """Locks, votes and decisions for all neighbours and between the two; a word and a release where one is new."""
    degrees = np.diff(around.first)
    place, beside = around.links(swaps[:, 0])
    both = around.has(np.stack([swaps[place, 1], beside], axis=1))
    common = np.bincount(place[both], minlength=len(swaps))
    found: Numbers = 5 * (degrees[swaps].sum(axis=1) - 2) + 3 - 4 * common
    return found


def leaf_ratios(mesh: TopicMesh, played: Played) -> Numbers:
    """The part of subscribers among leaves, before the first game and after each."""
    leaf, subscribes = mesh.leaves.astype(int), mesh.subscribers.astype(int)
    v, w = played.swaps[:, 0], played.swaps[:, 1]
    left, right = played.movers[:, 0], played.movers[:, 1]
    change = (leaf[v] - leaf[w]) * (subscribes[right] - subscribes[left])
    start = int((leaf * subscribes).sum())
    ratios: Numbers = (start + np.concatenate([[0], np.cumsum(change)])) / max(int(leaf.sum()), 1)
    return ratios


def _children(mesh: TopicMesh) -> tuple[Numbers, Numbers]:
    order = np.argsort(mesh.links[:, 0], kind="stable")
    return np.searchsorted(mesh.links[order, 0], np.arange(mesh.size + 1)), mesh.links[order, 1]


def _locked(around: Graph, pairs: Numbers, random: np.random.Generator) -> Numbers:
    """Which games got the locks of both nodes and of all their neighbours, each of which goes to the first to ask."""
    turn = random.permutation(len(pairs))
    place, beside = around.links(pairs.ravel())
    game = np.concatenate([place // 2, np.arange(len(pairs))])  # a link names v's or w's neighbours, w and v among them
    wanted = np.concatenate([beside, pairs[:, 0]])
    earliest = np.full(around.nodes, len(pairs))
    np.minimum.at(earliest, wanted, turn[game])
    won = np.ones(len(pairs), dtype=bool)
    won[game[earliest[wanted] < turn[game]]] = False
    return won
