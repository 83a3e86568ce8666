"""`ecu_health`: every ECU of every enrolled vehicle, by its last word: what it runs, and what is wrong with that.

Threat: an image that no release has, although whoever runs it reports as ever; an ECU that was cut off; one that was
brought back to an old image; a port that somebody opened. What an ECU says of itself is its word, so nothing here shows
that a vehicle is well: it shows which ones are not.

The rules look at one vehicle at a time (`examine`): its verified reports, oldest first, and its newest diagnosis that
is signed as it should be. The table `ecus` has a row for each ECU, the table `ecu_findings` one for each rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F

from tallystick.errors import Refused
from tallystick.fleet.ota.diagnosis import EcuDiagnosis, read_diagnosis, undeclared
from tallystick.fleet.ota.manifest import EcuReport, EnrolledVehicle, Trial
from tallystick.pipeline.jobs.audit_findings import ALARM, NOTICE, SCHEMA, WARNING
from tallystick.pipeline.jobs.run import JobRun
from tallystick.pipeline.jobs.updates import FleetUpdates, VehicleRows, in_rounds, tell

ECUS, FINDINGS = "ecus", "ecu_findings"  # tables
_RULES = {  # how grave, and what to do
    "ecu-silent": (WARNING, "ask for a diagnosis: tally ota diagnose; an ECU that stays silent wants a workshop"),
    "vehicle-silent": (NOTICE, "look whether the vehicle is still on the road"),
    "image-unreleased": (ALARM, "call the vehicle in: it runs what nobody released"),
    "image-withdrawn": (WARNING, "begin a campaign with an image that is live"),
    "image-hardware": (ALARM, "call the vehicle in: its image is made for other hardware"),
    "drift": (WARNING, "find out who changed it: it ran its campaign's image, and does not any more"),
    "counter-fell": (ALARM, "call the vehicle in: a rollback counter never falls by itself"),
    "returns-rose": (WARNING, "look at the image and at the codes of this hardware"),
    "slot-damaged": (ALARM, "call the vehicle in, or release the image anew for it"),
    "trouble-code": (NOTICE, "look the code up"),
    "surface-undeclared": (WARNING, "close it, or declare it in the next release"),
    "diagnosis-forged": (ALARM, "ask whoever publishes this; a vehicle that lost a key is enrolled anew"),
}
EXAMINED = pa.schema(
    [(name, pa.string()) for name in ("vehicle", "ecu", "hardware", "image")]
    + [(name, pa.int64()) for name in ("counter", "boots", "returns")]
    + [("heard", pa.timestamp("us", "UTC"))]
    + [("found", pa.list_(pa.struct([("rule", pa.string()), ("message", pa.string())])))]
)


@dataclass(frozen=True)
class HealthRules:
    """What the executors are told."""

    now_us: int  # of the ledger's last block
    silence_us: int
    returns_min: int
    live: dict[bytes, bool]  # released images, and whether they are not withdrawn
    records: dict[bytes, tuple[str, tuple[str, ...]]]  # hardware and surfaces
    spread: list[set[bytes]]  # the images of campaigns, the newest campaign first


def run(run: JobRun) -> dict[str, Any]:
    return in_rounds(run, "ecu_health", lambda known: _examine_all(known, run.options))


def examine(rows: VehicleRows, rules: HealthRules) -> Iterator[dict[str, Any]]:
    """A row for each ECU, and one without a name for the vehicle as a whole."""
    if rows.enrolled is None:
        return
    heard: dict[str, int] = dict.fromkeys(rows.enrolled.ecus, 0)
    past: dict[str, list[EcuReport]] = {name: [] for name in heard}
    for row, _, reports in rows.taken:
        for name, report in reports.items():
            heard[name] = min(row["us"], rules.now_us)  # it may be anchored in a block that was not audited yet
            past[name].append(report)
    us, surfaces, answers, whole = _diagnosed(rows.diagnoses, rows.enrolled)
    for name in answers:
        heard[name] = max(heard[name], min(us, rules.now_us))
    silent = {name for name, us in heard.items() if us < rules.now_us - rules.silence_us}
    is_silent = len(silent) == len(heard)
    declared = {one for ecu in past.values() if ecu for one in rules.records.get(ecu[-1].image, ("", ()))[1]}
    whole += [
        ("surface-undeclared", f"{one} is open, and no release declares it") for one in undeclared(surfaces, declared)
    ]
    whole += [("vehicle-silent", "nothing was heard of the vehicle for too long")] * is_silent
    told = {"vehicle": rows.vehicle.hex(), "ecu": "", "found": whole}
    yield told
    for name, ecu in rows.enrolled.ecus.items():
        found = [("ecu-silent", f"{name} is silent, its vehicle is not")] * (name in silent and not is_silent)
        row = {**told, "ecu": name, "hardware": ecu.hardware, "heard": heard[name] or None, "found": found}
        if past[name]:
            last = past[name][-1]
            found += _drift(name, past[name], rules)
            row |= {"image": last.image.hex(), "counter": last.counter, "boots": last.boots, "returns": last.returns}
        if name in answers:
            found += [("slot-damaged", f"{name}: its slot is not what was installed")] * (not answers[name].slot_ok)
            found += [("trouble-code", f"{name}: {code}") for code in answers[name].codes]
        yield row


def _diagnosed(
    rows: list[dict[str, Any]], enrolled: EnrolledVehicle
) -> tuple[int, tuple[str, ...], dict[str, EcuDiagnosis], list[tuple[str, str]]]:
    """The newest diagnosis: when it was anchored, its surfaces and answers; and what is wrong with others."""
    newest, found, forged = -1, (0, tuple[str, ...](), dict[str, EcuDiagnosis]()), []
    for row in rows:
        try:
            diagnosis, answers = read_diagnosis(row["diagnosis"], enrolled)
        except Refused as error:
            forged.append(("diagnosis-forged", str(error)))
            continue
        if diagnosis.number > newest:
            newest, found = diagnosis.number, (row["us"], diagnosis.surfaces, answers)
    return (*found, forged)


def _drift(name: str, past: list[EcuReport], rules: HealthRules) -> Iterator[tuple[str, str]]:
    last, shown = past[-1], past[-1].image.hex()[:16]
    if last.image not in rules.live:
        yield "image-unreleased", f"{name} runs {shown}…, which is no release"
    elif not rules.live[last.image]:
        yield "image-withdrawn", f"{name} runs {shown}…, which was withdrawn"
    if rules.records.get(last.image, (last.hardware, ()))[0] != last.hardware:
        yield "image-hardware", f"{name} runs {shown}…, which is for other hardware"
    ran = {one.image for one in past if one.trial == Trial.NONE}
    meant = next((images & ran for images in rules.spread if images & ran), {last.image})
    if last.trial == Trial.NONE and last.image not in meant:
        yield "drift", f"{name} runs {shown}…, after an image of its newest campaign"
    if any(after.counter < before.counter for before, after in pairwise(past)):
        yield "counter-fell", f"{name}: its rollback counter fell"
    if last.returns - past[0].returns >= rules.returns_min:
        yield "returns-rose", f"{name} went back to its image before again and again"


def _examine_all(known: FleetUpdates, options: Mapping[str, Any]) -> dict[str, Any]:
    newest = sorted(known.director.campaigns.values(), key=lambda row: -row.height)
    rules = HealthRules(
        known.now_us,
        options["silence_s"] * 1_000_000,
        options["returns_min"],
        {image: not row.withdrawn for image, row in known.director.releases.items()},
        {image: (one.hardware, one.surfaces) for image, one in known.records.items()},
        [{image for _, image in row.images} for row in newest],
    )
    frame = known.look_at(partial(examine, rules=rules), EXAMINED, "diagnoses").persist()
    try:
        known.write(ECUS, frame.where("ecu <> ''"))
        found = frame.select("vehicle", F.inline("found")).withColumn("principal", F.lit(None).cast("string"))
        rows = [(rule, *told) for rule, told in _RULES.items()]
        told = frame.sparkSession.createDataFrame(rows, "rule string, severity string, next string")
        findings = tell(found.join(F.broadcast(told), "rule"))
        known.write(FINDINGS, findings, SCHEMA)
        return {"ecus": frame.where("ecu <> ''").count(), "findings": len(findings)}
    finally:
        frame.unpersist()
