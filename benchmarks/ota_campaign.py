"""`campaign`: vehicles a second through a campaign of four phases, on one core.

What is timed is what the fleet's owner has: the Director verifies a manifest of each vehicle before and after its
update, chooses, counts and reports, and the contract opens the next phase. The vehicles' part, signatures that each
makes by itself, is done before. The world is that of the tests: contracts on a dictionary, a block a transaction.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import harness

sys.path += [str(Path(__file__).resolve().parent.parent / "tests")]

from firmware_world import CAMPAIGN, FirmwareWorld
from ledger_world import Bench, seed

from tallystick.crypto.signatures import SigningKey
from tallystick.fleet.ota.director import REPORT_S, Director
from tallystick.fleet.ota.manifest import NOTHING, EcuReport, EnrolledEcu, EnrolledVehicle, Trial, VehicleManifest
from tallystick.fleet.ota.record import ReleaseRecord
from tallystick.ledger import entries
from tallystick.ledger.contracts.firmware import CampaignStatus
from tallystick.objects.layout import ObjectReference
from tallystick.trust.campaign import WHOLE, Phase, count_members

VEHICLES, QUICK = 1_000, 50
SHARES = (WHOLE // 10, WHOLE // 4, WHOLE // 2, WHOLE)
HARDWARE, OLD = "brake-mk2", seed("old image")
SOAK_MS = 60_000


class CampaignCar:
    def __init__(self, number: int, image: bytes) -> None:
        self.name = seed(f"vehicle {number}")[:16]
        self._key, self._ecu_key = (SigningKey.from_seed(seed(f"{kind} {number}")) for kind in ("vehicle", "ecu"))
        self.enrolled = EnrolledVehicle(self._key.public, {"brakes": EnrolledEcu(self._ecu_key.public, HARDWARE)})
        self.before, self.after = (self._manifest(*told) for told in ((1, OLD, ""), (2, image, "installed")))

    def _manifest(self, number: int, image: bytes, outcome: str) -> bytes:
        told = image, 0, NOTHING, int(Trial.NONE), NOTHING, "", 1, 0
        report = EcuReport(self.name, "brakes", number, HARDWARE, *told).sign(self._ecu_key).encode()
        return VehicleManifest(self.name, number, 7, CAMPAIGN, "", outcome, (report,)).sign(self._key).encode()


class Rollout:
    def __init__(self, vehicles: int) -> None:
        self.record = ReleaseRecord(ObjectReference(seed("image"), seed("key"), 100), f"acme/{HARDWARE}/2.0")
        self.cars = {one.name: one for one in (CampaignCar(n, self.record.image) for n in range(vehicles))}

    def run(self) -> None:
        """Until every vehicle has it and the campaign is done."""
        bench = Bench()
        fleet, director = FirmwareWorld(bench.world), Director()
        bench.bring_into_force()
        for who, written in fleet.founding():
            bench.accept(who.sign(*written))
        record, sizes = self.record, count_members(CAMPAIGN, self.cars, [Phase(one, 0, 0, 0, 0) for one in SHARES])
        phases = [Phase(*one, 1, SOAK_MS) for one in zip(SHARES, sizes, (size - 1 for size in sizes), strict=True)]
        bench.accept(fleet.image.sign(entries.release_image(fleet.releases, record.image, record.contents)))
        bench.accept(fleet.owner.sign(fleet.campaign(images=[record.image], phases=phases)))
        for name, car in self.cars.items():
            director.enrol(name, car.enrolled)
        director.take_record(record)
        for car in self.cars.values():
            director.take_manifest(car.before)
        now, updated = 0.0, 0
        while (row := fleet.found(bench)).status == CampaignStatus.RUNNING:
            director.take_ledger({CAMPAIGN: row}, {record.image: fleet.found_release(bench, record.image)})
            for one in director.offers(now):
                director.sent(one, now)
                director.take_manifest(self.cars[one.vehicle].after)
                updated += 1
            now += REPORT_S
            bench.time_ms += SOAK_MS
            for report in director.reports(now, bench.time_ms):
                told = report.number, report.phase, report.succeeded, report.failed
                bench.accept(fleet.director.sign(fleet.report(*told, manifests=report.manifests)))
        assert (row.status, updated) == (CampaignStatus.DONE, len(self.cars))


def rows(quick: bool, rounds: int | None) -> Iterator[harness.Rate]:
    rollout = Rollout(QUICK if quick else VEHICLES)
    yield harness.Rate(
        "campaign", rollout.run, len(rollout.cars), "vehicles/s", rounds_max=1 if quick else rounds or harness.ROUNDS
    )
