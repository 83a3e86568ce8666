"""All attackers on meshes of one setting, over several seeds: what somebody who plans a topic asks before it exists.

    survey = AttackSurvey(TopicPlan(nodes=500, subscribers=50, mu=0.3, nu=0.05, decay=0.05), seed=4)
    findings = survey.run(worlds=10)

The mesh is drawn as it is built (`carriers/mesh`): covers draw covers, by nodes that know only the members they have
links with; publishers play; notifications flood in both directions; a link that a game needed is closed when no topic
wants it any longer. Not drawn are loss, churn, the repair after them, and other topics, which blur what an observer
sees (`experiments/anonpubsub/timing.py` has many at once): it is the worst case.

What each attacker is given:

    observers     every notification on every link, G, the settings (`observers.py`)
    rewind        and a record of all links since the topic began (`rewinding.py`)
    first sender  the same; it looks for the publisher
    first asker   with the dial off: subscriptions too; who sends one unprompted wants the topic
    N epochs      the same, each time the pseudonym changes and paths are found anew (`rounds.py`)
    insiders      G, and what neighbours say to their own nodes (`insiders.py`); the dial does nothing against these
    far links     at a constant rate, where no notification is seen: who has links outside G is in some topic's mesh

At a constant rate all but the last two have nothing to look at, and are left out for `guess`, which names |S| nodes at
random. That real nodes keep this promise is measured: `make bench-mesh`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np

from tallystick.sim.anonymity import rewinding
from tallystick.sim.anonymity.games import GameRules
from tallystick.sim.anonymity.graph import Numbers, distances, joined
from tallystick.sim.anonymity.insiders import distances_around, hidden_among, may_publish
from tallystick.sim.anonymity.measures import Score, entropy, judge, top
from tallystick.sim.anonymity.mesh import FORWARDER, PUBLISHER, SUBSCRIBER, TopicMesh
from tallystick.sim.anonymity.observers import Sightings, learn, observe, peel
from tallystick.sim.anonymity.rounds import watch_rounds
from tallystick.sim.anonymity.scene import MeshScene, MeshWorld, draw
from tallystick.sim.anonymity.traffic import PASS_S, LinkTraffic, sources

LEARNT = 20  # worlds that the observer who knows the scheme draws for itself


@dataclass(frozen=True)
class TopicPlan:
    """A topic on a mesh, as somebody thinks of it."""

    nodes: int = 500
    degree: int = 10  # neighbours of a node in the graph
    subscribers: int = 50
    publishers: int = 1
    mu: float = 0.3
    nu: float = 0.05
    decay: float = 0.05  # λ
    seconds: float = 60.0  # that games were played before the attackers look; 0: none
    dial: str = "padded"  # or off, constant
    insiders: int = 2
    epochs: int = 10

    @property
    def scene(self) -> MeshScene:
        ratio = self.subscribers / self.nodes
        rules = GameRules(self.decay, seconds_max=self.seconds, publishers_play=True) if self.seconds else None
        return MeshScene(
            *(self.nodes, self.degree, ratio, self.publishers, self.mu, self.nu),
            is_built=True,
            rules=rules,
            both_ways=True,
        )


@dataclass(frozen=True)
class AttackFinding:
    """What an attacker gets, in the mean over the worlds; None where its kind of answer has no such number."""

    attacker: str
    seeks: str  # subscribers, or the publisher
    precision: float
    recall: float
    base_rate: float  # the precision of who guesses
    named: float  # |anonSet| of Eq. 4: among how many it leaves them
    accuracy: float | None  # Eq. 5
    better: float | None  # the same of the rule or its inverse
    entropy: float | None  # bits that a node still hides


@dataclass(frozen=True)
class TopicCost:
    """What the setting takes, in the mean over the worlds."""

    members: float  # |V_a|
    subscribers: float
    messages: float  # for a notification
    hops: float  # to a subscriber
    games: float


class AttackSurvey:
    def __init__(self, plan: TopicPlan, seed: int) -> None:
        self._plan, self._scene, self._seed = plan, plan.scene, seed

    def run(
        self, worlds: int, advance: Callable[[int], None] = lambda count: None
    ) -> tuple[TopicCost, list[AttackFinding]]:
        """`advance` is told of each world that is done."""
        table = None
        if self._plan.dial != "constant":
            table = learn(self._scene, LEARNT, np.random.default_rng([self._seed, 1]))
        costs: list[TopicCost] = []
        found: dict[tuple[str, str], list[AttackFinding]] = {}
        for number in range(worlds):
            random = np.random.default_rng([self._seed, 2, number])
            world = draw(self._scene, random)
            costs.append(_cost(world))
            for one in self._attack(world, table, random):
                found.setdefault((one.seeks, one.attacker), []).append(one)
            advance(1)
        told = [AttackFinding(who, seeks, *_means(some, 2)) for (seeks, who), some in found.items()]
        return TopicCost(*_means(costs)), told

    def _attack(
        self, world: MeshWorld, table: Sightings | None, random: np.random.Generator
    ) -> Iterator[AttackFinding]:
        if table is None:
            yield from self._constant(world, random)
        else:
            yield from self._watching(world, table, random)
        if self._plan.insiders:
            yield from self._insiders(world, random)

    def _watching(self, world: MeshWorld, table: Sightings, random: np.random.Generator) -> Iterator[AttackFinding]:
        for name, score in observe(world, table, random).items():
            yield _finding(name, score)
        view, mesh, nodes = world.view(), world.mesh, self._plan.nodes
        if world.played is not None and world.played.games:
            began = rewinding.rewind(view, rewinding.record(world, closes=True), random)
            yield _finding("rewind", judge(mesh, view.leaves[began], nodes))
            yield _finding("rewind, peel 1", judge(mesh, peel(view, 1)[began], nodes))
        if self._plan.dial == "off":
            asked = np.isin(mesh.node, sources(_subscriptions(world)))
            yield _finding("first asker", judge(mesh, asked, nodes))
        if self._plan.epochs:
            *_, (_, presence, scheme) = watch_rounds(self._scene, "epoch", False, table, random, self._plan.epochs)
            base, count = self._plan.subscribers / (nodes - 1), float(self._plan.subscribers)
            for rule, part in (("presence", presence), ("scheme", scheme)):
                yield AttackFinding(
                    f"{self._plan.epochs} epochs, {rule}", "subscribers", part, part, base, count, None, None, None
                )
        first = world.mesh.node == view.node[view.source]
        right = float((first & (mesh.role == PUBLISHER)).sum())
        chance = self._plan.publishers / nodes
        yield AttackFinding(
            "first sender", "publishers", right, right / self._plan.publishers, chance, 1.0, None, None, None
        )

    def _constant(self, world: MeshWorld, random: np.random.Generator) -> Iterator[AttackFinding]:
        """Judged over all nodes: nobody sees who is in M_a."""
        everybody, nodes = _everybody(world), world.graph.nodes
        guess = top(np.zeros(nodes), self._plan.subscribers, random)
        yield _finding("guess", judge(everybody, guess, nodes))
        if world.played is not None:
            far = np.zeros(nodes, dtype=bool)
            far[[end for change in rewinding.record(world, closes=True) for end in change.link]] = True
            yield _finding("far links", judge(everybody, far, nodes))

    def _insiders(self, world: MeshWorld, random: np.random.Generator) -> Iterator[AttackFinding]:
        graph, nodes, count = world.graph, self._plan.nodes, self._plan.insiders
        publisher = int(np.flatnonzero(world.tree.hops == 0)[0])
        others = np.flatnonzero(world.tree.hops > 0)
        chosen = random.choice(others, min(count, len(others)), replace=False)
        parents = world.tree.parent[chosen]
        hops = distances_around(graph, chosen)
        may = may_publish(graph, hops, chosen, publisher, parents, chain=True)
        size = float(may.sum())
        bits = float(entropy(may / size).mean())
        accuracy = (nodes - size) / nodes  # all that it rules out, and the one
        told = (f"{count} false subscribers", "publishers", 1 / size, 1.0, 1 / (nodes - len(chosen)), size)
        yield AttackFinding(*told, accuracy, max(accuracy, 1 - accuracy), bits)
        honest = np.ones(nodes, dtype=bool)
        honest[publisher] = False
        subscribers = world.mesh.node[world.mesh.subscribers]
        relays = np.setdiff1d(others, subscribers)
        honest[random.permutation(relays)[:count]] = False
        sets = [hidden_among(graph, world.tree.parent, world.tree.hops, int(one), honest) for one in subscribers]
        base = self._plan.subscribers / (nodes - 1)
        yield AttackFinding(
            *(f"publisher and {count} relays", "subscribers", mean(1 / one for one in sets), 1.0, base),
            *(float(np.median(sets)), None, None, None),
        )


def _subscriptions(world: MeshWorld) -> LinkTraffic:
    """Every subscription on its way to the first publisher, one after the other."""
    ends, times = [], []
    for turn, subscriber in enumerate(world.first.node[world.first.subscribers].tolist()):
        at, time = subscriber, float(turn)
        while world.tree.hops[at] > 0:
            above = int(world.tree.parent[at])
            ends.append((at, above))
            times.append(time)
            at, time = above, time + PASS_S / 2
    sent = np.array(times)
    return LinkTraffic(sent, sent + PASS_S / 4, np.array(ends, dtype=int).reshape(-1, 2), np.zeros(len(ends)))


def _everybody(world: MeshWorld) -> TopicMesh:
    """All nodes with their roles: whom an observer sees who does not see M_a."""
    nodes = world.graph.nodes
    role = np.full(nodes, FORWARDER)
    role[world.mesh.node[world.mesh.subscribers]] = SUBSCRIBER
    role[world.mesh.node[world.mesh.role == PUBLISHER]] = PUBLISHER
    return TopicMesh(np.arange(nodes), role, np.zeros(nodes, dtype=int), np.zeros((0, 2), dtype=int))


def _finding(name: str, score: Score) -> AttackFinding:
    rates = score.precision, score.recall, score.base_rate, float(score.named)
    return AttackFinding(name, "subscribers", *rates, score.accuracy, score.better, score.entropy)


def _cost(world: MeshWorld) -> TopicCost:
    mesh = world.mesh
    source = int(np.flatnonzero(mesh.role == PUBLISHER)[0])
    hops: Numbers = distances(joined(mesh.size, mesh.links), source)[mesh.subscribers]
    games = float(world.played.games) if world.played else 0.0
    size, subscribers = float(mesh.size), float(mesh.subscribers.sum())
    return TopicCost(size, subscribers, float(len(world.view().flow)), float(hops.mean()) if len(hops) else 0.0, games)


def _means(some: list[AttackFinding] | list[TopicCost], first: int = 0) -> list[Any]:
    """Field by field, from the first that is a number on."""
    columns = list(zip(*(tuple(vars(one).values())[first:] for one in some), strict=True))
    return [None if None in column else mean(column) for column in columns]
