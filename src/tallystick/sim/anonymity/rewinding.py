"""An observer that keeps a record of links, and takes the shell game back.

Two nodes that exchange places need links with each other's neighbours, and most of these are not neighbours in G. The
messages of the game hide in link beats; the beats of a new link do not. So the observer notes when each link is opened
and closed. In the end it sees M_a by its notifications, and goes back in time: whenever a link of M_a was not open yet,
two neighbours must have exchanged places, and it undoes the exchange that leaves the fewest such links. Where links are
closed, one that was open and that M_a had no use for is as impossible. Where it began nobody had moved, and leaves are
subscribers again.

`closes`: a link outside G is closed when M_a does not need it any longer, so that it shows again when it is next used.
Otherwise links stay, and an exchange that needs no new one is not seen.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from tallystick.sim.anonymity.graph import Graph, Numbers
from tallystick.sim.anonymity.scene import LinkView, MeshWorld

Link = tuple[int, int]


class Change(NamedTuple):
    at_s: float
    link: Link  # names of nodes in G, the lesser first
    opened: bool


def _link(one: int, other: int) -> Link:
    return (one, other) if one < other else (other, one)


def _open_in_g(graph: Graph, names: list[int]) -> set[Link]:
    return {_link(v, w) for v in names for w in graph.to[graph.first[v] : graph.first[v + 1]].tolist()}


def record(world: MeshWorld, closes: bool = False) -> list[Change]:
    """The links that are opened and closed while the games are played, as all can see them."""
    assert world.played is not None
    node = world.first.node.tolist()
    always = _open_in_g(world.graph, node)
    known = set(always)
    around = world.first.around()
    beside = [around.to[around.first[place] : around.first[place + 1]].tolist() for place in range(len(node))]
    found = []
    for (a, b), now in zip(world.played.swaps.tolist(), world.played.at_s.tolist(), strict=True):
        before = _needed(a, b, node, beside)
        node[a], node[b] = node[b], node[a]
        needed = _needed(a, b, node, beside)
        found += [Change(now, link, True) for link in sorted(needed - known)]
        known |= needed
        if closes:
            ended = before - needed - always
            found += [Change(now, link, False) for link in sorted(ended)]
            known -= ended
    return found


def rewind(view: LinkView, changes: list[Change], random: np.random.Generator) -> Numbers:
    """Undo what cannot have been, the last first. Return for each node the place in the flow that it began on."""
    node = view.node.tolist()
    beside: list[list[int]] = [[] for _ in node]
    for one, other in sorted({_link(*ends) for ends in view.flow.tolist()}):
        beside[one].append(other)
        beside[other].append(one)
    past = _Past(node, beside, _open_in_g(view.graph, node), not all(change.opened for change in changes))
    steps: dict[float, list[Change]] = defaultdict(list)
    for change in changes:
        steps[change.at_s].append(change)
        past.turn(change.link, change.opened)
    for at_s in sorted(steps, reverse=True):
        for change in reversed(steps[at_s]):
            past.turn(change.link, not change.opened)
        past.repair(random)
    place_of = {name: place for place, name in enumerate(node)}
    return np.array([place_of[name] for name in view.node.tolist()])


class _Past:
    """Who the observer thinks was on which place, and the links that were open then."""

    def __init__(self, node: list[int], beside: list[list[int]], in_g: set[Link], closes: bool) -> None:
        self._node, self._beside, self._in_g, self._closes = node, beside, in_g, closes
        self._place_of = {name: place for place, name in enumerate(node)}
        self._opened: dict[int, set[Link]] = defaultdict(set)  # outside G, by both ends
        self._changed: set[int] = set()  # places that may have become impossible

    def turn(self, link: Link, opened: bool) -> None:
        for name in link:
            (self._opened[name].add if opened else self._opened[name].discard)(link)
            self._changed.add(self._place_of[name])

    def repair(self, random: np.random.Generator) -> None:
        """Exchange neighbours as long as fewer impossible links are left."""
        while True:
            self._changed = {place for place in self._changed if self._is_impossible(place)}
            best = 0
            chosen: list[Link] = []
            for a, b in sorted({_link(one, near) for one in self._changed for near in self._beside[one]}):
                before = self._impossible(a, b)
                self._exchange(a, b)
                gain = before - self._impossible(a, b)
                self._exchange(a, b)
                if gain > best:
                    best, chosen = gain, []
                if gain == best > 0:
                    chosen.append((a, b))
            if not chosen:
                return
            a, b = chosen[int(random.integers(len(chosen)))]
            self._exchange(a, b)
            self._changed.update((a, b), self._beside[a], self._beside[b])

    def _is_impossible(self, place: int) -> bool:
        opened = self._opened[self._node[place]]
        needed = {_link(self._node[place], self._node[near]) for near in self._beside[place]}
        return bool(needed - self._in_g - opened) or (self._closes and not opened <= needed)

    def _exchange(self, a: int, b: int) -> None:
        self._node[a], self._node[b] = self._node[b], self._node[a]
        self._place_of[self._node[a]], self._place_of[self._node[b]] = a, b

    def _impossible(self, a: int, b: int) -> int:
        opened = self._opened[self._node[a]] | self._opened[self._node[b]]
        needed = _needed(a, b, self._node, self._beside)
        return len(needed - self._in_g - opened) + (len(opened - needed) if self._closes else 0)


def _needed(a: int, b: int, node: list[int], beside: list[list[int]]) -> set[Link]:
    """The links that the nodes on these two places have in M_a."""
    return {_link(node[place], node[near]) for place in (a, b) for near in beside[place]}


def name_rewound(view: LinkView, changes: list[Change], random: np.random.Generator) -> Numbers:
    """The leaf rule, on the places where everybody began."""
    return view.leaves[rewind(view, changes, random)]
