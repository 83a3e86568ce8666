"""Faults that a node must survive, one at a time, on the seeded disk and a clock that jumps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from tallystick.carriers.log.store import LogStore
from tallystick.carriers.scribe import Note, Numbers, Scribe, ScribeSettings
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Unavailable
from tallystick.ledger.contracts.operations import Role
from tallystick.ledger.engine import Submitted
from tallystick.runtime.entropy import SeededEntropy
from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.sim.sealing import seeded_sealing
from tallystick.sim.world import World


@pytest.fixture
def world() -> Iterator[World]:
    with seeded_sealing(SeededEntropy("faults")):
        yield World(2)


def work(world: World, rounds: int = 3) -> None:
    for _ in range(rounds):
        world.pass_time(1.0)
        world.node_works()
        for publisher in world.publishers:
            publisher.pump()


def test_a_clock_that_was_set_back_while_the_node_was_off_keeps_nothing_from_the_ledger(world: World) -> None:
    world.node_clock.offset_s = 4.0
    world.publishers[0].produce(4)
    work(world)
    world.host.stop()
    world.node_clock.offset_s = -4.0
    world.host.start()
    before = len(world.host.open_core.ledger.history(world.token))
    world.publishers[0].produce(4)
    world.publishers[0].pump()
    world.node_works()
    core = world.host.open_core
    assert core.carrier.statistics().operations_waiting == 0
    assert len(core.ledger.history(world.token)) > before
    assert all(anchored == end for anchored, end in (core.carrier.ends(world.token, p) for p in range(2)))


def test_a_transaction_that_is_durable_outlives_a_sync_that_fails_behind_it() -> None:
    """While the ledger works on it, another request meets a full disk."""
    disk = SeededDisk(1)
    store = LogStore(disk)
    submitted: list[bytes] = []

    def submit(transaction: bytes) -> Submitted:
        submitted.append(transaction)
        return Submitted(bytes(32), 0, 1, 0)

    scribe = Scribe(
        bytes(32), bytes(16), SigningKey.from_seed(bytes(32)), store.journal, submit, Numbers(0), ScribeSettings()
    )
    note = Note(bytes(16), Role.PUBLISHER, bytes(16), 2, "", "host", 0, 0, 1, 1_000, bytes(32), bytes(16))
    scribe.note(note)
    transaction = scribe.prepare([], 1_000)
    assert transaction is not None
    store.sync()
    scribe.submit(transaction)
    scribe.note(note)
    disk.fill(0)
    with pytest.raises(Unavailable):
        store.sync()
    scribe.revert()
    scribe.finish(1_000)
    disk.fill(None)
    assert scribe.waiting == 0


@pytest.mark.parametrize("change", range(1, 40, 3))
def test_a_node_that_loses_power_anywhere_between_parcels_and_anchor_forgets_nothing(world: World, change: int) -> None:
    world.publishers[0].produce(10)
    world.host.disk.power_off_after(change)
    work(world, 1)
    while not world.host.is_up:
        with suppress(Unavailable):
            world.host.disk.power_off_after(change)  # and once more, in the middle of the recovery
            world.host.start()
        world.host.disk.disarm()
        if not world.host.is_up:
            world.host.start()
    world.host.disk.disarm()
    work(world, 4)
    for _ in range(3):
        world.alone.poll()
    assert world.alone.rows == set(range(10))
    world.check_ledger_file()
