"""A holder that promises places, renews its lease, and never anchors: the relays beside it, and the real contracts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from carrying_world import sealed
from ledger_world import Actor, Bench
from overlay_ledger import HEART, LEASE_MS, OverlayWorld, ordered
from without import without

from tallystick.carriers.log.store import LogStore
from tallystick.carriers.overlay.keeping import OverlayStorage
from tallystick.carriers.overlay.leading import STUCK_MS, Leading
from tallystick.carriers.rules import LedgerRules
from tallystick.carriers.storage import Place
from tallystick.ledger import entries
from tallystick.ledger.contracts import blame, leases
from tallystick.ledger.contracts.plans import ENTRUSTED
from tallystick.runtime.disk import RealDisk

PLACE = Place(HEART, 0)
STEP_MS = 500
LONG_MS = 10 * (2 * STUCK_MS + LEASE_MS)


class Edge:
    """The relays of a virtual node, each with one parcel in its tail. The first holds the lease, and clings to it."""

    def __init__(self, folder: Path) -> None:
        self.bench = Bench()
        self.overlay = OverlayWorld(self.bench.world)
        self.overlay.stand(self.bench)
        self.holder, *self.others = self.overlay.edge
        self.bench.accept(self.holder.sign(entries.lease(*PLACE, 1)))
        self.storages = {one.id: OverlayStorage(LogStore(RealDisk(folder / one.id.hex()))) for one in self.others}
        self.leading = {one.id: self._leading(one) for one in self.others}

    def _leading(self, relay: Actor) -> Leading:
        (parcel,), storage, read = sealed(1), self.storages[relay.id], self.bench.state.row
        storage.keep(ordered(self.overlay, "parcel", 1, 2, parcel=parcel.hash), parcel, is_own=True)
        rules = LedgerRules(self.overlay.world.instance, read, node=relay.id)
        block, signer = lambda: (self.bench.height, self.bench.time_ms), SimpleNamespace(principal=relay.id)
        host: Any = SimpleNamespace(rules=rules, signer=signer, block=block)
        return Leading(host, storage)

    def run(self, n_ms: int) -> None:
        """Let so much time of blocks go by, in which all write what they would."""
        for _ in range(0, n_ms, STEP_MS):
            self.step(STEP_MS)

    def step(self, n_ms: int) -> None:
        bench = self.bench
        bench.time_ms += n_ms
        if self.held_by() == (self.holder.id, 1):
            bench.run(self.holder.sign(entries.lease(*PLACE, 1)))
        for relay in self.others:
            word, station = bench.state.row(ENTRUSTED(HEART)), SimpleNamespace(ask=lambda what: None)
            assert word is not None
            given: Any = station, PLACE, word, self.overlay.plan(), bench.time_ms
            lease, suspicion = self.leading[relay.id].lead(*given)
            for entry in (*lease, *([suspicion] if suspicion else [])):
                bench.run(relay.sign(entry))  # of two that reach for it the ledger refuses one

    def held_by(self) -> tuple[bytes, int] | None:
        found = leases.find(self.bench.state.row, *PLACE, self.bench.time_ms)
        return None if found is None else found[:2]

    def is_suspected(self) -> bool:
        return blame.is_suspected(self.bench.state.row, self.holder.id, 1)


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[Edge]:
    edge = Edge(tmp_path)
    yield edge
    for storage in edge.storages.values():
        storage.close()


def test_a_holder_that_never_anchors_is_called_silent_and_another_takes_over(edge: Edge) -> None:
    edge.run(2 * STUCK_MS + LEASE_MS - STEP_MS)
    assert not edge.is_suspected()
    assert edge.held_by() == (edge.holder.id, 1)
    edge.run(STUCK_MS)
    assert edge.is_suspected()
    held = edge.held_by()
    assert held is not None
    assert (held[0] in {one.id for one in edge.others}, held[1]) == (True, 2)


def test_without_that_the_partition_stands_still_for_ever(edge: Edge) -> None:
    with without("the end of patience with a holder"):
        edge.run(LONG_MS)
    assert not edge.is_suspected()
    assert edge.held_by() == (edge.holder.id, 1)


def test_a_ledger_that_stands_still_is_not_held_against_a_holder(edge: Edge) -> None:
    """Nobody could anchor between two blocks, however far they lie apart."""
    for _ in range(4):
        edge.step(LEASE_MS - STEP_MS)
    assert not edge.is_suspected()
    assert edge.held_by() == (edge.holder.id, 1)
