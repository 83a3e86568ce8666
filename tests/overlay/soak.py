"""`make soak` for the overlay: one schedule after the other, each a function of its seed, until the time is up.

    PYTHONPATH=tests python tests/overlay/soak.py --seed 7 --count 1000

A schedule is a chain of virtual nodes drawn by the seed, with as many bad relays in each as there may be and lies
drawn for each: secrets, parcels, whole relays, or the order at an edge. It ends with the seed of the first that fails,
which alone is to be run again.
"""

from __future__ import annotations

from random import Random

import test_content_forwarding
import test_ordering
import test_relay
import test_secret_forwarding
from carrying_world import STRATEGIES, CarryingWorld, sealed
from relay_world import RelayWorld
from sharing_world import World
from soaking import soak

from tallystick.carriers.overlay.content_forwarding import ContentLimits
from tallystick.runtime.network import Link


def chain_of(random: Random, hops: int) -> tuple[int, ...]:
    return tuple(random.choice((3, 3, 5)) for _ in range(random.randint(1, hops)))


def secrets(seed: int, random: Random) -> None:
    sizes = chain_of(random, 5)
    link = Link(0.001, random.choice((0.02, 0.08)), duplicate=random.choice((0.0, 0.1)))
    test_secret_forwarding.holds(World(sizes, seed, test_secret_forwarding.liars(sizes, seed), link))


def parcels(seed: int, random: Random) -> None:
    sizes, (strategy, coded) = chain_of(random, 5), random.choice(STRATEGIES)
    link = Link(0.001, 0.02, reorder=random.choice((0.0, 0.05)), held_max_s=2.0)
    bad = test_content_forwarding.bad(sizes, seed)
    world = CarryingWorld(sizes, seed, bad, link, ContentLimits(strategy=strategy))
    test_content_forwarding.holds(world, sealed(3, test_content_forwarding.code_for(sizes, coded)))


def relays(seed: int, random: Random) -> None:
    sizes = chain_of(random, 4)
    world = RelayWorld(sizes, seed, test_relay.bad(sizes, seed), Link(0.001, 0.02, duplicate=0.05))
    test_relay.through(world)


def orders(seed: int, random: Random) -> None:
    test_ordering.holds(test_ordering.run_schedule(seed))


KINDS = (secrets, parcels, relays, orders)


def run(seed: int) -> None:
    """One schedule. Raises what failed."""
    random = Random(f"overlay soak {seed}")
    KINDS[seed % len(KINDS)](seed, random)


if __name__ == "__main__":
    soak(run, "PYTHONPATH=tests python tests/overlay/soak.py --seed {} --count 1", __doc__)
