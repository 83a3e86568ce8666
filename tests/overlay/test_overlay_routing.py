"""Routing on trees of virtual nodes, honest and not: publications reach all who may have them, and nobody else."""

from __future__ import annotations

from random import Random

import pytest
from overlays import Claimant, Overlay, advertiser, line, node_name, subscriber, tree

from tallystick.runtime.network import Link

LOSSY = Link(delay_min_s=0.001, delay_max_s=0.8, loss=0.1, duplicate=0.1, reorder=0.1, held_max_s=3.0)


def play(overlay: Overlay, random: Random, topics: int = 2) -> list[Claimant]:
    """Principals come, go and come back at random. Returns those that stayed."""
    live = []
    nodes = [node.identifier for node in overlay.plan.nodes]
    for number in range(8):
        make = advertiser if number % 3 == 0 else subscriber
        one = make(f"principal {number}", random.choice(nodes), f"topic {random.randrange(topics)}")
        at = 20 * random.random()
        overlay.say(at, one, one.claim)
        for _ in range(random.randrange(3)):
            at += 10 * random.random()
            overlay.say(at, one, one.undo)
            identifier = one.permit.identifier
            overlay.network.clock.at(at + 2, lambda identifier=identifier: overlay.ledger.ended.add(identifier))
            if one is None or random.random() < 0.3:
                break
            one = make(one.who, one.edge, one.topic, number=one.number + 1)
            at += 5 * random.random()
            overlay.say(at, one, one.claim)
        else:
            live.append(one)
    return live


def check(overlay: Overlay, live: list[Claimant]) -> None:
    publishers = [one for one in live if one.operation.name == "ADVERTISE"]
    for one in publishers:
        assert overlay.reached(one) == overlay.expected(one, live)


@pytest.mark.parametrize("bad", ["", "silent", "lying"])
@pytest.mark.parametrize(("nodes", "size"), [(1, 3), (3, 5), (5, 3), (7, 3)])
def test_publications_reach_every_subscriber_along_honest_relays_and_nobody_else(
    nodes: int, size: int, bad: str, seed: int
) -> None:
    random = Random(seed)
    parents = [random.randrange(max(number, 1)) for number in range(nodes)]
    overlay = Overlay(tree(parents, [size] * nodes), seed, bad, LOSSY)
    live = play(overlay, random)
    overlay.network.run(until=130.0)
    check(overlay, live)


def test_smoke() -> None:
    overlay = Overlay(line(3), 1)
    publisher, reader = advertiser("car", node_name(0)), subscriber("shop", node_name(2))
    overlay.say(0.5, reader, reader.claim)
    overlay.say(1.0, publisher, publisher.claim)
    overlay.network.run(until=3.0)
    check(overlay, [publisher, reader])
