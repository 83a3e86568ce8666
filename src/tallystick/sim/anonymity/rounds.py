"""Intersection: who is there every time is a subscriber.

An observer keeps watching: while leases end and covers are drawn again, while a tenth of the nodes is away in each
round (`churn`), while epochs change and advertisements find other shortest paths, and when everybody restarts with
other neighbours. Forwarders and covers change, subscribers stay. After each round it names |S| nodes:

    presence   those that were in M_a in the greatest part of the rounds in which they were there at all
    scheme     the same with what a node looks like each time (`observers.Sightings`), added up as evidence

`sticky`, the defence: who was once in M_a subscribes again as if for itself, in all later rounds, so that from the
second on all members behave alike. `scheme` knows that, and keeps to its first look. It costs a mesh that grows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tallystick.sim.anonymity.games import play
from tallystick.sim.anonymity.graph import Graph, Numbers, advertise, small_world
from tallystick.sim.anonymity.measures import top
from tallystick.sim.anonymity.mesh import FORWARDER, PUBLISHER, TopicMesh, cover, grow
from tallystick.sim.anonymity.observers import Sightings
from tallystick.sim.anonymity.scene import MeshScene, watch

ROUNDS, AWAY = 20, 0.1
EVENTS = ("lease", "epoch", "churn", "restart")


def watch_rounds(
    scene: MeshScene,
    event: str,
    sticky: bool,
    table: Sightings,
    random: np.random.Generator,
    rounds: int = ROUNDS,
) -> Iterator[tuple[int, float, float]]:
    """After each round: the size of M_a in it, and the parts of subscribers that `presence` and `scheme` name."""
    nodes = scene.nodes
    chosen = random.permutation(nodes)
    publisher, subscribers = chosen[:1], chosen[1 : 1 + round(scene.ratio * nodes)]
    graph = small_world(nodes, scene.degree, random)
    paths = random.integers(2**32)  # shortest paths stay until an epoch ends
    members = np.zeros(0, dtype=int)
    there, looked, present, evidence = np.zeros((4, nodes))
    for number in range(1, rounds + 1):
        if event == "restart":
            graph = small_world(nodes, scene.degree, random)
        away = random.random(nodes) < (AWAY if event == "churn" else 0)
        away[publisher] = False
        ties = np.random.default_rng(paths) if event == "lease" else random
        wanted = np.union1d(subscribers, members) if sticky else subscribers
        complete = sticky and event == "lease" and number > 1
        mesh = _mesh(scene, graph, away, publisher, wanted, subscribers, ties, random, complete)
        if sticky:
            members = np.union1d(members, mesh.node)
        if scene.rules:
            mesh = mesh.seated(play(mesh, scene.rules, random).seats)
        there += ~away
        present[mesh.node] += 1
        chance = np.zeros(nodes)
        chance[mesh.node] = table.of(watch(graph, mesh, scene.both_ways))
        if number == 1 or not sticky:
            looked += ~away
            evidence[~away] += np.log(np.clip(chance, 1e-3, None)[~away])
        rate = present / np.maximum(there, 1)
        rate[publisher] = -1
        suspicion = np.where(looked > 0, evidence / np.maximum(looked, 1), -np.inf)
        suspicion[publisher] = -np.inf
        presence, scheme = (top(one, len(subscribers), random)[subscribers].mean() for one in (rate, suspicion))
        yield mesh.size, float(presence), float(scheme)


def _mesh(
    scene: MeshScene,
    graph: Graph,
    away: Numbers,
    publisher: Numbers,
    wanted: Numbers,
    subscribers: Numbers,
    ties: np.random.Generator,
    random: np.random.Generator,
    complete: bool,
) -> TopicMesh:
    """This round's mesh; `complete` where the covers of a former one are all wanted themselves."""
    tree = advertise(graph, int(publisher[0]), ties, away)
    mesh = grow(graph.nodes, [tree], publisher, wanted[~away[wanted]])
    pretends = ~np.isin(mesh.node, subscribers) & (mesh.role != PUBLISHER)
    mesh = replace(mesh, role=np.where(pretends, FORWARDER, mesh.role))
    if complete:
        return mesh
    covered = cover(graph, mesh, scene.mu, random, scene.again)
    return _without(covered, away)


def _without(mesh: TopicMesh, away: Numbers) -> TopicMesh:
    """Covers that are away are not there."""
    stays = ~away[mesh.node]
    place = np.cumsum(stays) - 1
    links = mesh.links[stays[mesh.links].all(axis=1)]
    return TopicMesh(mesh.node[stays], mesh.role[stays], mesh.layer[stays], place[links])
