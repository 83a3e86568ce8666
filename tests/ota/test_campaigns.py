"""A thousand vehicles through the phases of campaigns: a good image reaches all of them, a bad one those of the first
phase, and a Director that lies is shown by its own report."""

from __future__ import annotations

from random import Random

import pytest
from firmware_world import CAMPAIGN, IMAGE, FirmwareWorld
from ledger_world import Bench, seed
from ledger_world import bench as bench

from tallystick.errors import Refused
from tallystick.fleet.ota.released import require_spread
from tallystick.ledger.contracts.firmware import CampaignRow, CampaignStatus, require_live
from tallystick.trust.campaign import WHOLE, Phase, count_members, manifests_root

VEHICLES = [seed(f"vehicle {number}")[:16] for number in range(1_000)]
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
SHARES = (WHOLE // 100, WHOLE // 10, WHOLE // 2, WHOLE)


def planned() -> list[Phase]:
    """Nine of ten vehicles of a phase must have succeeded, one of twenty may fail, and room for a tenth more."""
    bare = [Phase(share, 0, 0, 0, 0) for share in SHARES]
    sizes = count_members(CAMPAIGN, VEHICLES, bare)
    return [
        Phase(share, size + size // 10 + 1, size * 9 // 10, max(1, size // 20), DAY_MS)
        for share, size in zip(SHARES, sizes, strict=True)
    ]


class Rollout:
    """The fleet, whose vehicles ask the ledger every few hours, and an honest Director, which reports once a day."""

    def __init__(self, bench: Bench, fails: float) -> None:
        self.bench, self.fleet, self._fails, self._chooser = bench, FirmwareWorld(bench.world), fails, Random(7)
        bench.bring_into_force()
        for who, written in self.fleet.founding():
            bench.accept(who.sign(*written))
        bench.accept(self.fleet.image.sign(self.fleet.release()))
        bench.accept(self.fleet.owner.sign(self.fleet.campaign(phases=planned())))
        self.outcomes: dict[bytes, bool] = {}  # whether an image lives, by vehicle

    def row(self) -> CampaignRow:
        return self.fleet.found(self.bench)

    def may_install(self, vehicle: bytes) -> bool:
        try:
            release, campaign = (self.fleet.releases, IMAGE), (self.fleet.campaigns, CAMPAIGN)
            require_live(self.bench.state.row, *release)
            require_spread(self.bench.state.row, release, campaign, vehicle)
        except Refused:
            return False
        return True

    def go_on(self, vehicles: list[bytes], days: int = 40) -> None:
        """Until the campaign ends one way or the other."""
        for _ in range(days):
            waiting = [one for one in vehicles if one not in self.outcomes]
            for vehicle in filter(self.may_install, waiting):
                if self._chooser.random() < 0.8:  # the others are parked, or have no charge
                    self.outcomes[vehicle] = self._chooser.random() >= self._fails
            self.bench.time_ms += DAY_MS
            self.report()
            if self.row().status != CampaignStatus.RUNNING:
                return

    def manifests(self) -> dict[bytes, bytes]:
        return {vehicle: b"lives" if lives else b"failed" for vehicle, lives in self.outcomes.items()}

    def report(self) -> None:
        row, lives = self.row(), sum(self.outcomes.values())
        counted = row.reports + 1, row.phase, lives, len(self.outcomes) - lives
        told = self.fleet.report(*counted, manifests=manifests_root(self.manifests()))
        self.bench.accept(self.fleet.director.sign(told))


def test_a_good_image_reaches_every_vehicle_and_later_ones_fall_in(bench: Bench) -> None:
    rollout, later = Rollout(bench, fails=0.01), [seed(f"later vehicle {number}")[:16] for number in range(50)]
    rollout.go_on([*VEHICLES, *later])
    row = rollout.row()
    assert (row.status, row.phase, row.share) == (CampaignStatus.DONE, len(SHARES) - 1, WHOLE)
    assert len(rollout.outcomes) > 900
    assert row.manifests == manifests_root(rollout.manifests())
    assert rollout.may_install(seed("a vehicle of next year")[:16])


def test_a_bad_image_stops_in_the_first_phase_and_nobody_else_has_it(bench: Bench) -> None:
    rollout = Rollout(bench, fails=0.5)
    rollout.go_on(VEHICLES)
    row = rollout.row()
    [first, *_] = count_members(CAMPAIGN, VEHICLES, planned())
    assert (row.status, row.phase) == (CampaignStatus.FAILED, 0)
    assert 0 < len(rollout.outcomes) <= first < 20
    assert not any(map(rollout.may_install, VEHICLES))


def test_a_report_that_lies_is_shown_by_whoever_recounts_the_manifests(bench: Bench) -> None:
    """The contract took it, a day passes before the next phase opens, and the owner stops it meanwhile."""
    rollout = Rollout(bench, fails=1.0)
    for vehicle in filter(rollout.may_install, VEHICLES):
        rollout.outcomes[vehicle] = False
    lie = manifests_root(dict.fromkeys(rollout.outcomes, b"lives"))
    bench.time_ms += HOUR_MS
    told = rollout.fleet.report(1, 0, len(rollout.outcomes), 0, manifests=lie)
    bench.accept(rollout.fleet.director.sign(told))
    row = rollout.row()
    assert (row.status, row.phase) == (CampaignStatus.RUNNING, 0)
    assert row.manifests != manifests_root(rollout.manifests())
    assert row.succeeded != sum(rollout.outcomes.values())
    bench.accept(rollout.fleet.owner.sign(rollout.fleet.stop()))
    assert not any(map(rollout.may_install, VEHICLES))


@pytest.mark.parametrize("change", ["one more", "one less", "another word", "another vehicle"])
def test_the_root_of_the_manifests_is_of_these_and_no_others(change: str) -> None:
    honest = dict.fromkeys(VEHICLES[:9], b"lives")
    other = dict(reversed(honest.items()))
    assert manifests_root(other) == manifests_root(honest)
    match change:
        case "one more":
            other[VEHICLES[9]] = b"lives"
        case "one less":
            del other[VEHICLES[0]]
        case "another word":
            other[VEHICLES[0]] = b"failed"
        case _:
            other[VEHICLES[9]] = other.pop(VEHICLES[8])
    assert manifests_root(other) != manifests_root(honest)
