"""The rules of `campaign` and `ecu_health` on the rows of single vehicles, as Spark calls them, in this process: with
each defence, and without it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from fleet_rows import HARDWARE, Vehicle, record
from ledger_world import seed
from without import without

from tallystick.fleet.ota.diagnosis import VehicleDiagnosis
from tallystick.fleet.ota.director import CampaignReport
from tallystick.fleet.ota.manifest import Trial, VehicleManifest
from tallystick.pipeline.jobs import campaign as campaign_job
from tallystick.pipeline.jobs import ecu_health, updates
from tallystick.pipeline.jobs.campaign import counted, disagreement
from tallystick.pipeline.jobs.ecu_health import HealthRules, examine
from tallystick.trust.campaign import WHOLE, Phase, manifests_root

OLD, NEW, DOOR = record("brake-mk2", "1.0"), record("brake-mk2", "2.0", ["tcp/22"]), record("door-mk1", "1.0")
GONE = record("brake-mk2", "0.9")
CAMPAIGN = seed("campaign")[:16]
WANTED = {CAMPAIGN: {NEW.image: NEW.hardware}}
FACTORY, UPDATED = {"brakes": OLD.image, "door": DOOR.image}, {"brakes": NEW.image, "door": DOOR.image}
S = 1_000_000


def rows_of(car: Vehicle, *sent: VehicleManifest | VehicleDiagnosis, is_enrolled: bool = True) -> pa.Table:
    """As they come to an executor: a parcel each, anchored a second apart."""
    ecus = [{"name": ecu, "hardware": HARDWARE[ecu], "key": car.keys[ecu].public.raw} for ecu in HARDWARE]
    known = {"key": car.key.public.raw, "ecus": ecus} if is_enrolled else {"key": None, "ecus": None}
    rows = [
        {
            "vehicle": car.vehicle,
            "_partition": 0,
            "_offset": place,
            "_leaf": 0,
            "_publisher": "ab" * 16,
            "manifest": one.encode() if isinstance(one, VehicleManifest) else None,
            "diagnosis": one.encode() if isinstance(one, VehicleDiagnosis) else None,
            **known,
        }
        for place, one in enumerate(sent)
    ]
    empty = {"vehicle": car.vehicle, **dict.fromkeys(("_partition", "_offset", "_leaf", "manifest", "diagnosis"))}
    return pa.Table.from_pylist(rows or [{**empty, **known}])


def looked(look: updates.Look, schema: pa.Schema, table: pa.Table) -> list[dict[str, Any]]:
    times, ends = [S * place for place in range(1, 100)], list(range(1, 100))
    marks = dict.fromkeys([("manifests", 0), ("diagnoses", 0)], (times, ends))
    found = updates.looker(look, marks, schema)(table)
    return [{name: value for name, value in row.items() if value is not None} for row in found.to_pylist()]


def told(car: Vehicle, *sent: VehicleManifest, is_enrolled: bool = True) -> list[dict[str, Any]]:
    look = partial(campaign_job.look, wanted=WANTED)
    return looked(look, campaign_job.FOUND, rows_of(car, *sent, is_enrolled=is_enrolled))


# --- what counts ---


def test_the_first_manifest_of_each_kind_decides() -> None:
    car = Vehicle("car")
    before, good, again = car.runs(FACTORY), car.runs(UPDATED), car.runs(UPDATED)
    bad = car.runs(FACTORY, campaign=CAMPAIGN, outcome="failed: brakes")
    found = told(car, before, good, again, bad)
    assert [(row["failed"], row["us"]) for row in found] == [(False, 2 * S), (True, 4 * S)]
    rows = [(row["us"], row["name"], row["failed"], row["hash"]) for row in found]
    assert counted(CAMPAIGN, rows, 3 * S).tell(WHOLE) == (1, 0, manifests_root({car.vehicle: good.encode()}))
    assert counted(CAMPAIGN, rows, 4 * S).tell(WHOLE) == (0, 1, manifests_root({car.vehicle: bad.encode()}))
    assert counted(CAMPAIGN, rows, S).tell(WHOLE) == (0, 0, manifests_root({}))


def test_a_manifest_of_a_vehicle_that_is_not_enrolled_counts_for_nobody() -> None:
    (found,) = told(stranger := Vehicle("a stranger"), stranger.runs(UPDATED), is_enrolled=False)
    assert (found["rule"], found["severity"]) == ("manifest-unknown-vehicle", "warning")
    assert (found["principal"], found["vehicle"]) == ("ab" * 16, stranger.vehicle.hex())


def test_a_primary_does_not_speak_for_its_ecu() -> None:
    car = Vehicle("car")
    lie = car.manifest(car.report("brakes", NEW.image, key=car.key), outcome="installed", campaign=CAMPAIGN)
    (found,) = told(car, lie)
    assert (found["rule"], found["severity"]) == ("manifest-forged", "alarm")
    with without("the ECU's key on its report"):
        (found,) = told(car, lie)
    assert found["failed"] is False


# --- reports of the Director ---


PHASE = Phase(WHOLE, 100, 3, 2, 0)
ROW = {"us": 100 * S, "time": None, "author": "d1" * 16, "height": 7, "index": 1}
CARS = [seed(f"car {number}")[:16] for number in range(6)]
DECIDED = [(number * S, car, number >= 4, seed(f"manifest {number}")) for number, car in enumerate(CARS)]
TRUTH = counted(CAMPAIGN, DECIDED, 100 * S).tell(WHOLE)


def judged(succeeded: int, failed: int, root: bytes, rows: Any = DECIDED, settle_s: int = 0) -> Any:
    return disagreement(CampaignReport(CAMPAIGN, 1, 0, succeeded, failed, root), ROW, PHASE, rows, settle_s * S)


def test_an_honest_report_is_none_and_one_that_keeps_failures_to_itself_is() -> None:
    assert TRUTH[:2] == (4, 2)
    assert judged(*TRUTH) is None
    lie = judged(6, 0, TRUTH[2])
    assert (lie["rule"], lie["severity"], lie["principal"]) == ("campaign-miscounted", "alarm", "d1" * 16)
    assert lie["evidence"] == [{"height": 7, "index": 1}]
    assert lie["count"] == 4
    assert all((car.hex() in lie["message"]) is failed for _, car, failed, _ in DECIDED)


@pytest.mark.parametrize(("succeeded", "failed"), [(5, 2), (4, 3), (3, 2), (0, 0)])
def test_a_vehicle_more_or_less_is_found(succeeded: int, failed: int) -> None:
    assert judged(succeeded, failed, TRUTH[2])["rule"] == "campaign-miscounted"


def test_the_root_of_other_manifests_is_found() -> None:
    assert judged(4, 2, seed("another root"))["rule"] == "campaign-other-manifests"


def test_a_director_may_be_a_little_late_and_no_later() -> None:
    late = counted(CAMPAIGN, DECIDED, 4 * S).tell(WHOLE)
    assert late[:2] == (4, 1)
    assert judged(*late, settle_s=96) is None
    assert judged(*late, settle_s=94)["rule"] == "campaign-miscounted"
    behind = DECIDED[:4] + [(200 * S, *row[1:]) for row in DECIDED[4:]]  # anchored after the report
    assert judged(*counted(CAMPAIGN, behind, 100 * S).tell(WHOLE), behind) is None
    assert judged(4, 2, TRUTH[2], behind)["rule"] == "campaign-miscounted"  # nobody can have counted them yet


def test_only_those_whom_the_phase_reaches_count() -> None:
    half = Phase(WHOLE // 2, 100, 1, 2, 0)
    truth = counted(CAMPAIGN, DECIDED, 100 * S).tell(half.share)
    assert truth != TRUTH
    assert disagreement(CampaignReport(CAMPAIGN, 1, 0, *truth), ROW, half, DECIDED, 0) is None
    assert disagreement(CampaignReport(CAMPAIGN, 1, 0, *TRUTH), ROW, half, DECIDED, 0) is not None


# --- the health of ECUs ---


RECORDS = {one.image: (one.hardware, one.surfaces) for one in (OLD, NEW, DOOR, GONE)}
LIVE = {OLD.image: True, NEW.image: True, DOOR.image: True, GONE.image: False}
RULES = HealthRules(50 * S, 49 * S, 2, LIVE, RECORDS, [{NEW.image}])


def found(car: Vehicle, *sent: Any, rules: HealthRules = RULES) -> set[tuple[str, str]]:
    examined = looked(partial(examine, rules=rules), ecu_health.EXAMINED, rows_of(car, *sent))
    assert [row["ecu"] for row in examined] == ["", *HARDWARE]
    return {(row["ecu"], one["rule"]) for row in examined for one in row["found"]}


def test_a_vehicle_that_runs_what_was_released_is_well() -> None:
    car = Vehicle("car")
    assert found(car, car.runs(FACTORY), car.runs(UPDATED), car.diagnosis(UPDATED, ["tcp/22"])) == set()


def test_images_that_are_no_live_release_or_for_other_hardware() -> None:
    car = Vehicle("car")
    assert found(car, car.runs({**FACTORY, "brakes": seed("nobody's")})) == {("brakes", "image-unreleased")}
    assert found(car, car.runs({**FACTORY, "brakes": GONE.image})) == {("brakes", "image-withdrawn")}
    assert found(car, car.runs({**FACTORY, "brakes": DOOR.image})) == {("brakes", "image-hardware")}


def test_drift() -> None:
    car = Vehicle("car")
    updated = car.runs(UPDATED)
    assert found(car, updated, car.runs(FACTORY)) == {("brakes", "drift")}
    tried = car.manifest(car.report("brakes", OLD.image, trial=Trial.HEALTHY), car.report("door", DOOR.image))
    assert found(car, updated, tried) == set()
    high, low = (car.manifest(car.report("brakes", OLD.image, counter=count)) for count in (9, 8))
    assert ("brakes", "counter-fell") in found(car, high, low)
    first, last = (car.manifest(car.report("brakes", OLD.image, returns=count)) for count in (1, 3))
    assert ("brakes", "returns-rose") in found(car, first, last)


def test_an_old_manifest_does_not_make_an_ecu_well_again() -> None:
    """Whoever replays it wants a vehicle to look as it did."""
    car = Vehicle("car")
    well, ill = car.runs(UPDATED), car.runs({**UPDATED, "brakes": seed("nobody's")})
    assert ("brakes", "image-unreleased") in found(car, well, ill, well)
    (replayed,) = [row for row in told(car, well, ill, well) if "rule" in row]
    assert (replayed["rule"], replayed["severity"]) == ("manifest-replayed", "notice")
    with without("the numbers of manifests"):
        assert found(car, well, ill, well) == set()


def test_silence() -> None:
    car = Vehicle("car")
    whole, part = car.runs(FACTORY), car.manifest(car.report("door", DOOR.image))
    late = replace(RULES, silence_us=48 * S)
    assert found(car, whole, part, rules=late) == {("brakes", "ecu-silent")}
    assert found(car, whole, rules=late) == {("", "vehicle-silent")}
    assert found(car, rules=late) == {("", "vehicle-silent")}
    assert found(car, whole, part, car.diagnosis(FACTORY), rules=late) == set()  # it answered there
    early = replace(RULES, now_us=S, silence_us=S)  # the audit is behind the topic
    examined = looked(partial(examine, rules=early), ecu_health.EXAMINED, rows_of(car, whole, car.runs(FACTORY)))
    assert {row["heard"].timestamp() for row in examined if row["ecu"]} == {1.0}


def test_diagnoses() -> None:
    car, other = Vehicle("car"), Vehicle("another car")
    runs = car.runs(UPDATED)
    ill = car.diagnosis(UPDATED, ["tcp/22", "paired/phone"], slot_ok=0, codes=("P0420",))
    both = {(ecu, rule) for ecu in HARDWARE for rule in ("slot-damaged", "trouble-code")}
    assert found(car, runs, ill) == both | {("", "surface-undeclared")}
    assert found(car, runs, ill, car.diagnosis(UPDATED)) == set()  # the newest counts
    well = car.diagnosis(UPDATED)
    assert found(car, runs, car.diagnosis(UPDATED, slot_ok=0), well) >= {("door", "slot-damaged")}  # and no older one
    assert found(car, runs, other.diagnosis(UPDATED)) == {("", "diagnosis-forged")}
