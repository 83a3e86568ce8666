"""Faults of the world that the clients must survive, one at a time: each of them once lost or doubled something.

The world is that of the simulation in calm weather, so every part is real and every fault is placed by hand.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tallystick.ledger import entries
from tallystick.runtime.entropy import SeededEntropy
from tallystick.sim.sealing import seeded_sealing
from tallystick.sim.world import World


@pytest.fixture
def world() -> Iterator[World]:
    with seeded_sealing(SeededEntropy("faults")):
        yield World(1)


def test_two_processes_of_one_name_write_to_the_ledger_though_one_clock_is_behind(world: World) -> None:
    one, two = (member.person.author for member in world.members)
    world.members[0].person.clock.offset_s = 3.0
    one.write(entries.group(bytes(16), 15_000, [world.token]))
    world.members[0].person.clock.offset_s = -3.0
    two.write(entries.join(bytes(16), b"m" * 16))  # its number lies below the last one
    two.write(entries.leave(bytes(16), b"m" * 16))
