"""The global passive observer (2.3), from the paper's rule to one that knows the scheme.

    leaf        who receives and sends to nobody is a subscriber: the paper's
    dominance   it also knows |S| and |P|: where they are over half of M_a it names everybody, else the leaves
    counted     it knows |S|, and names that many: leaves first, others at random
    peel        it knows that covers are drawn, and takes off the leaves a given number of times before it looks
    rebuild     it does not look at links. It knows G (2.3) and the publisher, so it draws the shortest paths through
                the nodes of M_a again, as they were before any game: a game moves nodes, and takes none out of M_a. Who
                is on nobody's shortest path there has come for itself. `rebuild, peel 1` takes a layer of covers off
    scheme      it draws worlds of its own with the same settings, and notes how often a node that looks like this one
                is a subscriber: by the rounds in which it would be peeled, as seen and as rebuilt, by how many it sends
                to, by whether its link lies on a shortest path of G, and by how many neighbours it has outside M_a
    inverse     is no attacker of its own: `measures` has the better of each rule and its inverse

The first to send is the publisher: nothing hides it but a constant rate on all links. Observers are handed a
`LinkView`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tallystick.sim.anonymity.graph import Numbers
from tallystick.sim.anonymity.measures import Score, judge, top
from tallystick.sim.anonymity.mesh import PUBLISHER
from tallystick.sim.anonymity.scene import LinkView, MeshScene, MeshWorld, draw

SIZES = (4, 4, 3, 3, 3)  # how many values each trait of a node is cut down to
OUTLOOK = 2.0  # how many sightings the base rate counts for


def leaf(view: LinkView) -> Numbers:
    return view.leaves


def dominance(view: LinkView, subscribers: int, publishers: int = 1) -> Numbers:
    if (subscribers + publishers) / view.size > 0.5:
        everybody = np.ones(view.size, dtype=bool)
        everybody[view.source] = False
        return everybody
    return view.leaves


def counted(view: LinkView, subscribers: int, random: np.random.Generator) -> Numbers:
    suspicion = view.leaves.astype(float)
    suspicion[view.source] = -1
    return top(suspicion, subscribers, random)


def peel(view: LinkView, layers: int) -> Numbers:
    """Who is a leaf once `layers` rounds of leaves are gone."""
    found: Numbers = view.heights == layers
    found[view.source] = False
    return found


def rebuilt(view: LinkView) -> LinkView:
    """The members as they were joined: links of G between them that lead away from the publisher."""
    place_of = np.full(view.graph.nodes, -1)
    place_of[view.node] = np.arange(view.size)
    place, beside = view.graph.links(view.node)
    other = place_of[beside]
    onward = (other >= 0) & (view.hops[other] == view.hops[place] + 1)
    return replace(view, flow=np.stack([place[onward], other[onward]], axis=1))


def traits(view: LinkView) -> Numbers:
    """What a node looks like, as one number."""
    near = view.graph.has(view.node[view.flow]) & (view.hops[view.flow[:, 1]] == view.hops[view.flow[:, 0]] + 1)
    straight = np.bincount(view.flow[near, 1], minlength=view.size)
    astray = np.bincount(view.flow[~near, 1], minlength=view.size)
    path = np.where(astray == 0, 0, np.where(straight == 0, 1, 2))
    inside = np.zeros(view.graph.nodes, dtype=bool)
    inside[view.node] = True
    place, beside = view.graph.links(view.node)
    outside = np.bincount(place[~inside[beside]], minlength=view.size)
    looks = np.zeros(view.size, dtype=int)
    for size, trait in zip(SIZES, (rebuilt(view).heights, view.heights, view.onward, path, outside), strict=True):
        looks = looks * size + np.minimum(trait, size - 1)
    return looks


class Sightings(NamedTuple):
    """Of nodes that looked like this: the part that were subscribers."""

    posterior: Numbers

    def of(self, view: LinkView) -> Numbers:
        found: Numbers = self.posterior[traits(view)]
        found[view.source] = 0.0
        return found


def learn(scene: MeshScene, worlds: int, random: np.random.Generator) -> Sightings:
    """Draw worlds of one's own, and count."""
    cells = int(np.prod(SIZES))
    seen, subscribed = np.zeros(cells), np.zeros(cells)
    for _ in range(worlds):
        world = draw(scene, random)
        looks = traits(world.view())
        theirs = world.mesh.role != PUBLISHER
        seen += np.bincount(looks[theirs], minlength=cells)
        subscribed += np.bincount(looks[world.mesh.subscribers], minlength=cells)
    base = subscribed.sum() / max(seen.sum(), 1)
    return Sightings((subscribed + OUTLOOK * base) / (seen + OUTLOOK))


def observe(
    world: MeshWorld, table: Sightings | None, random: np.random.Generator, layers: Iterable[int] = (1, 2)
) -> dict[str, Score]:
    """What each observer gets from one look."""
    view, mesh, nodes = world.view(), world.mesh, world.graph.nodes
    subscribers, publishers = int(mesh.subscribers.sum()), int((mesh.role == PUBLISHER).sum())
    found = {
        "leaf": judge(mesh, leaf(view), nodes),
        "dominance": judge(mesh, dominance(view, subscribers, publishers), nodes),
        "counted": judge(mesh, counted(view, subscribers, random), nodes),
    }
    found |= {f"peel {count}": judge(mesh, peel(view, count), nodes) for count in layers}
    again = rebuilt(view)
    found |= {"rebuild": judge(mesh, leaf(again), nodes), "rebuild, peel 1": judge(mesh, peel(again, 1), nodes)}
    if table:
        chance = table.of(view)
        found["scheme"] = judge(mesh, chance > 0.5, nodes, chance)
        found["scheme, counted"] = judge(mesh, top(chance, subscribers, random), nodes, chance)
    return found
