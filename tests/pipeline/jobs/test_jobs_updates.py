"""`campaign` and `ecu_health` over real topics and a real ledger: a Director that lies about one campaign and tells the
truth about another, and vehicles that replay, speak for others or are strangers. The rules alone are in
test_update_rules.py."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fleet_rows import FleetRows, Vehicle, record
from lake import Lake
from ledger_world import seed
from tables import pipeline

from tallystick.fleet.ota.manifest import VehicleManifest
from tallystick.ledger.contracts.firmware import CampaignStatus
from tallystick.pipeline.jobs import audit_ledger, campaign, ecu_health
from tallystick.pipeline.jobs.run import JobRun
from tallystick.pipeline.jobs.warehouse import Warehouse
from tallystick.runtime.sources import SystemClock
from tallystick.trust.campaign import manifests_root

pytestmark = pytest.mark.spark

OLD = record("brake-mk2", "1.0")
DOOR = record("door-mk1", "1.0", ["tcp/22"])
NEW = record("brake-mk2", "2.0")
BAD = record("brake-mk2", "3.0")
GOOD_CAMPAIGN, BAD_CAMPAIGN, STOPPED = (seed(name)[:16] for name in ("good campaign", "bad campaign", "stopped"))
FACTORY, UPDATED = {"brakes": OLD.image, "door": DOOR.image}, {"brakes": NEW.image, "door": DOOR.image}


def newest(warehouse: Path, table: str) -> list[dict[str, Any]]:
    batch = max((warehouse / table).glob("batch=*"), key=lambda path: int(path.name.removeprefix("batch=")))
    return [row for part in batch.glob("*.parquet") for row in pq.ParquetFile(part).read().to_pylist()]


class Fleet:
    """What happened, and what the jobs made of it."""

    def __init__(self, lake: Lake, folder: Path) -> None:
        self.cars = [Vehicle(f"car {number}") for number in range(5)]
        self.rows = rows = FleetRows(lake, folder, self.cars)
        self.lake, self.warehouse = lake, folder / "tables"
        rows.release(OLD, DOOR, NEW, BAD)
        rows.begin(GOOD_CAMPAIGN, NEW)
        installed = [car.runs(UPDATED, campaign=GOOD_CAMPAIGN, outcome="installed") for car in self.cars[:4]]
        rows.send(*installed)
        rows.report(GOOD_CAMPAIGN)
        rows.begin(STOPPED, NEW)
        rows.stop(STOPPED)
        # The second image is bad: three cars return to the one before, and the Director keeps it to itself.
        rows.begin(BAD_CAMPAIGN, BAD)
        returned = [car.runs(UPDATED, campaign=BAD_CAMPAIGN, outcome="failed: brakes") for car in self.cars[:3]]
        rows.send(*returned, self.cars[3].runs({**UPDATED, "brakes": BAD.image}))
        truth = rows.count()[BAD_CAMPAIGN]
        assert (truth.succeeded, truth.failed) == (1, 3)
        rows.tell(BAD_CAMPAIGN, 4, 0, manifests_root({car.vehicle: b"lives" for car in self.cars[:4]}))
        self._attack(installed[0])
        rows.withdraw(BAD)

    def _attack(self, old: VehicleManifest) -> None:
        """A manifest is replayed, a stranger sends one, and a primary speaks for its ECU, under another's name too."""
        car, stranger = self.cars[4], Vehicle("a stranger")
        reports = car.report("brakes", BAD.image, key=car.key), car.report("door", DOOR.image)
        forged = car.manifest(*reports, campaign=BAD_CAMPAIGN, outcome="installed")
        self.rows.send(old, stranger.runs(FACTORY), forged)
        row = {**self.cars[1].runs(UPDATED).row(), "vehicle": self.cars[0].vehicle}
        self.rows.topics["manifests"].publish([row])
        self.rows.topics["diagnoses"].publish([self.cars[0].diagnosis(UPDATED, ["tcp/22", "udp/5353"]).row()])

    def run(self, job: str, *more: object) -> None:
        where = ["--home", self.lake.home, "--warehouse", self.warehouse, "--quiet"]
        assert pipeline("run", job, *where, *more) == 0

    def look(self) -> None:
        """Both jobs, over what is there now."""
        folder = self.rows.folder
        for job in ("campaign", "ecu_health"):
            more = ["--settle-s", 0] if job == "campaign" else []
            self.run(job, "--fleet", folder / "ota.json", "--vehicles", folder / "vehicles", *more)


@pytest.fixture(scope="module")
def fleet(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    fleet = Fleet(lake, tmp_path_factory.mktemp("updates"))
    fleet.run("ingest", "--topic", fleet.rows.topics["manifests"].name)
    table, reader = Warehouse(fleet.warehouse).table(audit_ledger.TABLE), lake.reader  # as the audit does
    audit_ledger.follow(table, lake.spark, reader.node, reader.identity.trust, reader.view.refresh())
    fleet.look()
    return fleet


def test_entries_of_updates_stand_in_the_ledgers_table_as_they_were_written(fleet: Fleet) -> None:
    rows = newest(fleet.warehouse, "ledger")
    kinds = {row["kind"]: row["token"] for row in rows if row["entry"] is not None}
    releases, campaigns = (fleet.rows.topics[what].token.hex() for what in ("releases", "campaigns"))
    assert kinds == {
        **dict.fromkeys(("release-image", "withdraw-image"), releases),
        **dict.fromkeys(("campaign", "report-campaign", "stop-campaign", "resume-campaign"), campaigns),
    }


def test_the_contract_takes_a_lie_and_the_recount_finds_it(fleet: Fleet) -> None:
    told = fleet.rows.row(BAD_CAMPAIGN)
    assert (told.status, told.succeeded, told.failed) == (CampaignStatus.RUNNING, 4, 0)
    campaigns = {row["campaign"]: row for row in newest(fleet.warehouse, "campaigns")}
    counts = ("status", "agrees", "told_succeeded", "told_failed", "succeeded", "failed")
    assert [campaigns[GOOD_CAMPAIGN.hex()][name] for name in counts] == ["running", True, 4, 0, 4, 0]
    assert [campaigns[BAD_CAMPAIGN.hex()][name] for name in counts] == ["running", False, 4, 0, 1, 3]
    lies = [row for row in newest(fleet.warehouse, "campaign_findings") if row["rule"].startswith("campaign")]
    assert [(row["rule"], row["severity"]) for row in lies] == [("campaign-miscounted", "alarm")]
    assert lies[0]["principal"] == fleet.rows.director.hex()
    assert [car.vehicle.hex() in lies[0]["message"] for car in fleet.cars] == [True, True, True, False, False]
    (place,) = lies[0]["evidence"]
    entries = {(row["height"], row["index"]): row["kind"] for row in newest(fleet.warehouse, "ledger")}
    assert entries[place["height"], place["index"]] == "report-campaign"


def test_manifests_that_do_not_count_are_findings(fleet: Fleet) -> None:
    found = {row["rule"]: row for row in newest(fleet.warehouse, "campaign_findings")}
    named = {"manifest-replayed": fleet.cars[0], "manifest-forged": fleet.cars[4]}
    named["manifest-unknown-vehicle"] = Vehicle("a stranger")
    assert found.keys() == {"campaign-miscounted", *named}
    assert all(car.vehicle.hex() in found[rule]["message"] for rule, car in named.items())


def test_the_health_of_every_ecu(fleet: Fleet) -> None:
    rows = {(row["vehicle"], row["ecu"]): row for row in newest(fleet.warehouse, "ecus")}
    assert rows.keys() == {(car.vehicle.hex(), ecu) for car in fleet.cars for ecu in ("brakes", "door")}
    runs = [rows[car.vehicle.hex(), "brakes"]["image"] for car in fleet.cars]
    assert runs == [*[NEW.image.hex()] * 3, BAD.image.hex(), None]
    found = {row["rule"]: (row["count"], row["message"]) for row in newest(fleet.warehouse, "ecu_findings")}
    assert found.keys() == {"image-withdrawn", "surface-undeclared", "vehicle-silent"}
    assert "udp/5353" in found["surface-undeclared"][1]
    assert fleet.cars[4].vehicle.hex() in found["vehicle-silent"][1]


def test_tables_hold_no_key_and_a_round_without_news_no_batch(fleet: Fleet) -> None:
    folder, stop = fleet.rows.folder, threading.Event()
    stop.set()
    given = {"fleet": folder / "ota.json", "vehicles": folder / "vehicles", "every_s": 60.0}
    given |= {"settle_s": 0, "silence_s": 14 * 86_400, "returns_min": 2}
    for job in (campaign, ecu_health):  # a stream that is stopped in its first round
        run = JobRun(Warehouse(fleet.warehouse), SystemClock(), given, fleet.lake.home, follow=True, stop=stop)
        assert job.run(run)["findings"] > 0
    for name in ("campaigns", "campaign_findings", "releases", "ecus", "ecu_findings"):
        assert [path.name for path in (fleet.warehouse / name).glob("batch=*")] == ["batch=0"], name
    everything = b"".join(path.read_bytes() for path in fleet.warehouse.rglob("*.parquet"))
    keys = [one.reference.key for one in (OLD, DOOR, NEW, BAD)]
    assert not any(key in everything or key.hex().encode() in everything for key in keys)
