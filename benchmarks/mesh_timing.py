"""Does a constant rate keep its promise? Real nodes, every datagram noted at its socket, and an attacker who knows
when.

The attacker sees times, ends and lengths of all datagrams. It knows when every topic publishes (their content is
public, say), and wants to know by whom each is carried. So it cuts time into windows, in each of which each topic
publishes or does not, and explains what each node did by that (`features`, and the simulator's `traffic.regress`),
better than other times would explain it. Of each topic it names as many nodes as its mesh has, which it knows too.

Peer is the base rate: the precision of who names as many nodes of each topic at random, |V_a|/|V| of them right. The
ratio is base rate over precision, 1 where the attacker learns nothing. Both are of all names of all topics together, so
that a topic with a larger mesh, which is easier to guess, weighs as much in one as in the other. At a constant rate
there are eight topics, since it takes many names to see that none is better than a guess. The rows of the other dials,
with two topics, show that the same attacker finds them where it can.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import harness
import numpy as np
from mesh_nodes import MeshTown, Seen, Shape

from tallystick.carriers.mesh.forwarding import CoverChoice
from tallystick.carriers.mesh.link_layer import Dial
from tallystick.sim.anonymity.graph import Numbers
from tallystick.sim.anonymity.measures import top
from tallystick.sim.anonymity.traffic import regress

SHAPE = Shape(nodes=16, topics=8, subscribers=2, beat_s=0.5, beat_cells=2, covers=CoverChoice(0.05, 0.0))
SMALL = replace(SHAPE, nodes=10, topics=2, beat_s=0.25)
TARGET = 0.95
ARRIVED_S = 15.0
SHUFFLES = 99


@dataclass(frozen=True)
class Watch:
    rounds: int = 8
    windows: int = 20
    window_s: float = 1.5


QUICK = Watch(1, 8, 1.0)


def features(seen: Sequence[Seen], starts: Sequence[float], end: float, shape: Shape) -> Numbers:
    """What each node did in each window: links on which it sent, and received, more cells, and more bytes, than the
    sender's quietest link carried (how many, not how much more: what goes again would drown the rest); how late its
    beats were, and how long they took. Not how much it sent in all: a window lasts until its notifications have come,
    which is no work of the nodes', and the attacker would learn from it whom our waiting concerns."""
    found = np.zeros((len(starts), shape.nodes, 6))
    edges, times = np.array([*starts, end]), np.array([one.time for one in seen])
    ends, sizes = np.array([one[1:3] for one in seen]), np.array([one.bytes for one in seen], dtype=float)
    window = np.searchsorted(edges, times, "right") - 1
    for number in range(len(starts)):
        inside = window == number
        for place, weight in enumerate((np.ones(len(sizes)), sizes)):
            carried = np.zeros((shape.nodes, shape.nodes))
            np.add.at(carried, (ends[inside, 0], ends[inside, 1]), weight[inside])
            beyond = carried > np.where(carried > 0, carried, np.inf).min(axis=1, keepdims=True)
            found[number, :, 2 * place : 2 * place + 2] = np.stack([beyond.sum(axis=1), beyond.sum(axis=0)], axis=1)
    for node in range(shape.nodes):
        at = times[ends[:, 0] == node]
        first, late, took = _beats(at, shape.beat_s)
        beat = np.searchsorted(edges, at[first], "right") - 1
        for number in range(len(starts)):
            if (there := beat == number).any():
                found[number, node, 4:] = late[there].mean(), took[there].mean()
    return found


def _beats(at: Numbers, beat_s: float) -> tuple[Numbers, Numbers, Numbers]:
    """Where each burst of a node's cells begins, how late it is for its beat, and how long it takes."""
    first = np.flatnonzero(np.diff(at, prepend=-np.inf) > beat_s / 3)
    last = np.append(first[1:], len(at)) - 1
    phase = at[first] % beat_s
    return first, (phase - np.median(phase) + beat_s / 2) % beat_s, at[last] - at[first]


async def watch(dial: Dial, watched: Watch, shape: Shape = SHAPE, seed: int = 4) -> list[tuple[float, float]]:
    """The attacker's precision and the base rate, in each round."""
    shape = replace(shape, dial=dial)
    town, random, found = MeshTown(shape, tapped=True), np.random.default_rng([seed, list(Dial).index(dial)]), []
    wanted: Counter[int] = Counter()
    async with town.running():
        for _ in range(watched.rounds):
            published = _halves(watched.windows, shape.topics, random)
            town.seen.clear()
            starts: list[float] = []
            loop = asyncio.get_running_loop()
            for now in published:
                starts.append(loop.time())
                for topic in np.flatnonzero(now).tolist():
                    town.publish(topic)
                    wanted.update(shape.readers(topic))
                await asyncio.sleep(watched.window_s)
                try:
                    await town.arrive(list(wanted.items()), ARRIVED_S)  # a slow machine has long windows
                except TimeoutError:  # too slow: links were lost, and a notification with them
                    wanted = Counter(town.delivered)
            did = features(list(town.seen), starts, loop.time(), shape)
            found.append(_judge(town, did, published, random))
    return found


def _halves(windows: int, topics: int, random: np.random.Generator) -> Numbers:
    """Each topic publishes in half of the windows."""
    return random.permuted(np.tile(np.arange(windows)[:, None] % 2 == 0, (1, topics)), axis=0)


def _judge(town: MeshTown, did: Numbers, published: Numbers, random: np.random.Generator) -> tuple[float, float]:
    hits = names = 0
    guessed = 0.0
    shown = _ranked(did, published, random)
    for topic in range(town.shape.topics):
        members = np.zeros(town.shape.nodes, dtype=bool)
        members[list(town.links(topic))] = True
        named = top(shown[topic], int(members.sum()), random)
        hits, names = hits + int((named & members).sum()), names + int(members.sum())
        guessed += int(members.sum()) ** 2 / town.shape.nodes
    return max(hits, 1) / names, guessed / names


def _ranked(did: Numbers, published: Numbers, random: np.random.Generator) -> Numbers:
    """How often a node shows a topic more than it would if the topic had published at other times. So a node with many
    links, which varies more, and is in many meshes, is suspected for its times alone."""
    shown = regress(did, published)
    other = [regress(did, random.permutation(published)) for _ in range(SHUFFLES)]
    found: Numbers = np.mean([shown > one + 1e-9 for one in other], axis=0)
    return found


def rows(watched: Watch, shape: Shape = SHAPE) -> Iterator[harness.Row]:
    for dial in Dial:
        topics, rounds = (shape.topics, watched.rounds) if dial is Dial.CONSTANT else (2, min(watched.rounds, 3))
        seen = watch(dial, replace(watched, rounds=rounds), replace(shape, topics=topics))
        precision, base = zip(*asyncio.run(seen), strict=True)
        target = TARGET if dial is Dial.CONSTANT else None
        yield asdict(harness.compare(f"timing_{dial.name.lower()}", precision, base, "precision", target))
