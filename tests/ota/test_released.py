"""What a vehicle asks the ledger before it installs anything, by proofs of the embedded engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from firmware_world import CAMPAIGN, IMAGE, OTHER_CAMPAIGN, OTHER_IMAGE, SOAK_MS, FirmwareWorld
from ledger_world import NOW_MS, Actor, World, seed
from without import without

from tallystick.client.ties import LedgerSource, View
from tallystick.errors import Forged, Refused, Withheld
from tallystick.fleet.ota.released import require_spread
from tallystick.ledger import entries
from tallystick.ledger.contracts.execute import newest
from tallystick.ledger.contracts.firmware import RELEASES, require_live
from tallystick.ledger.proofs import CheckpointMemory, StateProof
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.runtime.sources import ManualClock
from tallystick.trust.campaign import WHOLE, draw

HEAD_AGE_MAX_S = 60
CARS = sorted((seed(f"car {number}")[:16] for number in range(60)), key=lambda car: draw(CAMPAIGN, car))
FIRST, LAST = CARS[0], CARS[-1]  # of those whom the first phase reaches, and of all


class Road:
    """A ledger on which one image is released and spread, and the view that a car has of it."""

    def __init__(self, folder: Path) -> None:
        self.world, self.clock = World(), ManualClock(NOW_MS / 1000)
        self.ledger = SqliteLedger(str(folder / "ledger.db"), self.world.trust, self.world.ledger_key, NOW_MS)
        for transaction in self.world.founding():
            self._submit(transaction.data)
        height = self.ledger.height + 2
        self.write(self.world.authority, *(entries.activate(*one, height) for one in newest().items()))
        self.fleet = FirmwareWorld(self.world)
        self.write(self.world.authority, entries.set_("rise_max", 10))  # a block, and they are in force
        for who, written in self.fleet.founding():
            self.write(who, *written)
        self.write(self.fleet.image, self.fleet.release())
        self.write(self.fleet.owner, self.fleet.campaign())
        self.view = self.view_of(self.ledger)

    def view_of(self, source: LedgerSource) -> View:
        """A view that begins now."""
        memory = CheckpointMemory(self.world.trust, SeededDisk(1))
        return View(source, memory, self.clock, HEAD_AGE_MAX_S)

    def write(self, who: Actor, *written: bytes) -> None:
        self._submit(who.sign(*written).data)

    def _submit(self, data: bytes) -> None:
        self.clock.advance(0.1)
        time_ms = int(self.clock.now() * 1000)
        self.ledger.submit(data, time_ms)
        self.ledger.flush(time_ms)

    def ask(self, image: bytes = IMAGE, campaign: bytes = CAMPAIGN, car: bytes = FIRST) -> str:
        """Nothing if the car may install, or why not."""
        try:
            release = (self.fleet.releases, image)
            require_live(self.view.row, *release)
            require_spread(self.view.row, release, (self.fleet.campaigns, campaign), car)
        except Refused as refused:
            return refused.reason
        return ""


@pytest.fixture
def road(tmp_path: Path) -> Iterator[Road]:
    found = Road(tmp_path)
    yield found
    found.ledger.close()


def test_a_car_installs_what_is_released_and_spread_to_it(road: Road) -> None:
    assert draw(CAMPAIGN, FIRST) < WHOLE // 10 <= draw(CAMPAIGN, LAST)
    assert (road.ask(), road.ask(car=LAST)) == ("", "not-in-phase")
    with without("the share of a phase"):
        assert {road.ask(car=car) for car in CARS} == {""}, "a Director reaches all of them at once"
    road.clock.advance(SOAK_MS / 1000)
    road.write(road.fleet.director, road.fleet.report(1, 0, 5, 0))
    assert (road.ask(), road.ask(car=LAST)) == ("", "")


def test_what_stands_on_no_ledger_is_installed_nowhere_whoever_signed_it(road: Road) -> None:
    """And to put it there is to show it to everybody."""
    assert road.ask(OTHER_IMAGE) == "not-released"
    road.write(road.fleet.image, road.fleet.release(OTHER_IMAGE))
    assert road.ask(OTHER_IMAGE) == "no-campaign"
    assert road.ask(campaign=OTHER_CAMPAIGN) == "no-campaign"
    seen = road.view_of(road.ledger).row(RELEASES(road.fleet.releases, OTHER_IMAGE))
    assert seen is not None
    assert seen.author == road.fleet.image.id


def test_a_withdrawal_and_a_stop_reach_the_car(road: Road) -> None:
    road.write(road.fleet.director, road.fleet.stop())
    assert road.ask() == "campaign-stopped"
    road.write(road.fleet.owner, road.fleet.resume())
    assert road.ask() == ""
    road.write(road.fleet.image, road.fleet.withdraw())
    assert road.ask() == "withdrawn"


class Frozen:
    """A node that shows the ledger as it was when it began to."""

    def __init__(self, honest: SqliteLedger, *keys: bytes) -> None:
        self._kept, self.checkpoint = {key: honest.state(key) for key in keys}, honest.checkpoint
        self.consistency = honest.consistency

    def state(self, key: bytes) -> StateProof:
        return self._kept[key]


class Altering(Frozen):
    """And that says what it likes."""

    def __init__(self, honest: SqliteLedger, proof: StateProof) -> None:
        super().__init__(honest)
        self._kept = {proof.key: proof}


def test_a_node_that_keeps_a_withdrawal_back_does_so_for_a_minute(road: Road) -> None:
    """Freeze attack (Uptane 2.1). Without the age of a checkpoint it lasts for ever."""
    key = RELEASES(road.fleet.releases, IMAGE)
    frozen = View(
        Frozen(road.ledger, key), CheckpointMemory(road.world.trust, SeededDisk(2)), road.clock, HEAD_AGE_MAX_S
    )
    road.write(road.fleet.image, road.fleet.withdraw())
    row = frozen.row(key)
    assert row is not None
    assert not row.withdrawn
    road.clock.advance(HEAD_AGE_MAX_S + 1)
    with pytest.raises(Withheld, match="accepted are 60"):
        frozen.row(key)
    with without("the age of a checkpoint"):
        assert frozen.row(key) == row


def test_a_proof_that_was_touched_is_refused(road: Road) -> None:
    """A release that is none: another's value, an invented one, and an absence that is not."""
    key, other = (RELEASES(road.fleet.releases, image) for image in (IMAGE, OTHER_IMAGE))
    good = road.ledger.state(key)
    assert good.value is not None
    flipped = good.value[:-1] + bytes([good.value[-1] ^ 1])
    for lie in (replace(good, key=other), replace(good, value=flipped), replace(good, value=None)):
        liar = road.view_of(Altering(road.ledger, lie))
        with pytest.raises(Forged):
            liar.row(key if lie.key == key else other)
