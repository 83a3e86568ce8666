"""Trees over the switches: along which links a flow reaches its subscribers (thesis 6.3.4, "Spanning tree").

Two kinds. *Spanning*: one tree for everybody, of least total latency (Kruskal, as in the thesis); few links carry
anything, and paths may be long. *Shortest*: for each publisher's switch the tree of its shortest paths (Dijkstra); no
stretch, more links in use. `experiments/fabric` compares stretch, link load and rules.

Invariant: the same links give the same trees, at every controller; ties are broken by names and ports. A tree has an
identifier, a hash of its links, which stands in its labels (labels.py). Where the fabric is cut in parts a tree covers
the part of its root.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property, partial
from typing import NamedTuple

from tallystick import wire
from tallystick.crypto.symmetric import named_hash


class PortPlace(NamedTuple):
    """A port of a switch."""

    switch: str
    port: int


class FabricLink(NamedTuple):
    """A wire between two switches: `a` comes before `b`."""

    a: PortPlace
    b: PortPlace
    latency_us: int

    @classmethod
    def of(cls, one: PortPlace, other: PortPlace, latency_us: int) -> FabricLink:
        return cls(min(one, other), max(one, other), latency_us)


class TreeStep(NamedTuple):
    """How a switch hangs in a tree."""

    parent: str
    down: int  # the parent's port that leads here
    up: int  # the port here that leads to the parent


@dataclass(frozen=True)
class RouteTree:
    root: str
    steps: Mapping[str, TreeStep]  # of every switch but the root
    identifier: bytes

    def covers(self, switch: str) -> bool:
        return switch == self.root or switch in self.steps

    def path(self, switch: str) -> list[str]:
        """From the root to a switch."""
        found = [switch]
        while found[-1] != self.root:
            found.append(self.steps[found[-1]].parent)
        return found[::-1]


TreeOf = Callable[[str], RouteTree]  # a root's


class TreeKind(StrEnum):
    SPANNING = "spanning"
    SHORTEST = "shortest"


@dataclass(frozen=True)
class Wiring:
    """The switches and the links between them, as they are known."""

    switches: frozenset[str]
    links: frozenset[FabricLink]

    @classmethod
    def of(cls, switches: Iterable[str], links: Iterable[FabricLink]) -> Wiring:
        """Links to switches that are not there are left out."""
        known = frozenset(switches)
        return cls(known, frozenset(one for one in links if one.a.switch in known and one.b.switch in known))

    @cached_property
    def far_ends(self) -> Mapping[PortPlace, PortPlace]:
        """Where a frame arrives that leaves a link port."""
        return {here: there for one in self.links for here, there in ((one.a, one.b), (one.b, one.a))}

    def trees(self, kind: TreeKind) -> TreeOf:
        """The tree of every root, made when it is first asked for."""
        near: dict[str, list[tuple[int, PortPlace, PortPlace]]] = {one: [] for one in self.switches}
        for a, b, latency_us in sorted(self.links if kind is TreeKind.SHORTEST else spanning_links(self)):
            near[a.switch].append((latency_us, a, b))
            near[b.switch].append((latency_us, b, a))
        return cache(partial(_grow, near))


def _grow(near: Mapping[str, Iterable[tuple[int, PortPlace, PortPlace]]], root: str) -> RouteTree:
    """Of shortest paths over the links that may be used; over a spanning tree's that is the tree itself."""
    steps: dict[str, TreeStep] = {}
    waiting = [(0, 0, root, TreeStep("", 0, 0))]  # latency, links, switch: the nearest first
    while waiting:
        latency, links, switch, step = heapq.heappop(waiting)
        if switch in steps:
            continue
        steps[switch] = step
        for latency_us, here, there in near.get(switch, ()):
            further = TreeStep(switch, here.port, there.port)
            heapq.heappush(waiting, (latency + latency_us, links + 1, there.switch, further))
    del steps[root]
    used = sorted([name, step.parent, step.down, step.up] for name, step in steps.items())
    return RouteTree(root, steps, named_hash("tallystick route tree 1", wire.encode([root, used]))[:16])


def spanning_links(wiring: Wiring) -> list[FabricLink]:
    """The links of least total latency that connect all that can be connected (Kruskal)."""
    group = {switch: switch for switch in wiring.switches}

    def head(switch: str) -> str:
        while group[switch] != switch:
            group[switch] = switch = group[group[switch]]
        return switch

    taken = []
    for link in sorted(wiring.links, key=lambda one: (one.latency_us, one)):
        one, other = head(link.a.switch), head(link.b.switch)
        if one != other:
            group[one] = other
            taken.append(link)
    return taken
