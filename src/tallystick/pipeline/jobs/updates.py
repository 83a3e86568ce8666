"""What the jobs of fleet updates share: releases, campaigns and reports of the ledger, release records, enrolled
vehicles, and every vehicle's manifests as an `Inventory` takes them.

Threat: a node that shows one campaign less, or another report. So what was written is taken from the table `ledger`,
which the audit has proved, and what it amounts to from state proofs; a release record counts only under the root that
was released. The key of an image stands in its record and goes no further than this: no table has it.

The tables of these jobs say what is known now: their newest batch counts. A round reads all manifests of `bronze` anew,
so that nothing depends on how many rounds there were. What that costs is the signatures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from tallystick import wire
from tallystick.client.session import Session
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Malformed, Misuse, Refused, Withheld
from tallystick.fleet.ota.directing import FleetView
from tallystick.fleet.ota.director import CampaignReport
from tallystick.fleet.ota.fleetfile import FleetFile
from tallystick.fleet.ota.manifest import EcuReport, EnrolledEcu, EnrolledVehicle, Inventory, VehicleManifest
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.pipeline.jobs import audit_ledger
from tallystick.pipeline.jobs.ingest import BRONZE, bronze
from tallystick.pipeline.jobs.run import JobRun, explained
from tallystick.pipeline.jobs.warehouse import reading

_ENROLLED = "vehicle binary, key binary, ecus array<struct<name: string, hardware: string, key: binary>>"
_ANCHORS = ("anchor", "notarise", "joint-anchor")
_NEVER_US = (1 << 63) - 1
_NAMED_MAX = 8  # vehicles in the text of a finding

Finding = dict[str, Any]  # a row of `audit_findings.SCHEMA`


class VehicleRows(NamedTuple):
    """All that a vehicle sent, in the order of its partition, in which the Director reads it. Rows have `us`, the time
    at which they were anchored."""

    vehicle: bytes
    enrolled: EnrolledVehicle | None
    taken: list[tuple[dict[str, Any], VehicleManifest, dict[str, EcuReport]]]
    refused: list[tuple[dict[str, Any], Refused]]
    diagnoses: list[dict[str, Any]]


Look = Callable[[VehicleRows], Iterable[dict[str, Any]]]


class FleetUpdates:
    """As of now. `director` knows what the Director does: vehicles, records, releases and campaigns."""

    def __init__(self, run: JobRun, session: Session) -> None:
        self._run, self.fleet = run, FleetFile.read(run.options["fleet"])
        if run.warehouse.facts().get("token") != self.fleet["manifests"].token.hex():
            hint = f"one of its own: tally pipeline run ingest --topic {self.fleet['manifests'].name} --warehouse …"
            raise Misuse(f"{run.warehouse.folder}: not the warehouse of the fleet's manifests", hint=hint)
        folder = run.options.get("vehicles") or self.fleet.vehicles(session.identity.home)
        with closing(FleetView(session, self.fleet, folder)) as view:
            view.read_plans()
        self.director = known = view.director
        if not known.vehicles:
            raise Misuse(f"{folder}: no vehicle is enrolled there", hint="tally ota enrol, or name another: --vehicles")
        self.records = {image: one for image, one in known.records.items() if known.is_known(image)}
        self.reports: list[tuple[CampaignReport, dict[str, Any]]] = []  # with their rows of the table `ledger`
        self._anchors: dict[tuple[str, int], tuple[Any, Any]] = {}  # times and ends, by topic and partition
        self._read_ledger()

    def _read_ledger(self) -> None:
        files = self._run.warehouse.table(audit_ledger.TABLE).files()
        if not files:
            hint = "tally pipeline run audit --home … --warehouse …"
            raise Misuse(f"{self._run.warehouse.folder}: the ledger was not audited yet", hint=hint)
        with reading(self._run.warehouse.table(audit_ledger.TABLE).folder):
            table = ds.dataset(files, audit_ledger.SCHEMA).to_table()
        table = table.append_column("us", table["time"].cast(pa.int64())).sort_by("height")
        self.now_us: int = pc.max(table["us"]).as_py()
        for topic in ("manifests", "diagnoses"):
            ours = pc.field("kind").isin(_ANCHORS) & (pc.field("token") == self.fleet[topic].token.hex())
            for partition, marks in table.filter(ours).to_pandas().groupby("partition"):
                self._anchors[topic, partition] = marks["us"].to_numpy(), marks["end"].cummax().to_numpy()
        for row in table.filter(pc.field("entry").is_valid()).to_pylist():
            kind, token, name, *rest = wire.decode(row["entry"], "entry")
            if token == self.fleet["campaigns"].token and name not in self.director.campaigns:
                raise Withheld(f"campaign {name.hex()}: it stands on the ledger, and the node does not show it")
            if token == self.fleet["campaigns"].token and kind == EntryKind.REPORT_CAMPAIGN:
                self.reports.append((CampaignReport(name, *rest), row))

    def name_of(self, image: bytes) -> str:
        """The target, or the image's hash where no record of it is known here."""
        return self.records[image].target if image in self.records else image.hex()

    def look_at(self, look: Look, schema: pa.Schema, more: str = "") -> DataFrame:
        """What `look` makes, on the executors, of each vehicle that is enrolled or sent anything. `more` is a topic
        whose rows it gets as well."""
        spark = self._run.spark
        rows = self._run.warehouse.table(BRONZE).read(spark)
        if more:
            rows = rows.unionByName(bronze(spark, str(self._run.home), self.fleet[more].name), allowMissingColumns=True)
        known = [
            (vehicle, one.key.raw, [(name, ecu.hardware, ecu.key.raw) for name, ecu in one.ecus.items()])
            for vehicle, one in self.director.vehicles.items()
        ]
        # A row counts for the vehicle that its manifest names, as the Director reads it.
        rows = rows.withColumn("vehicle", F.coalesce(F.udf(_signer, "binary", useArrow=True)("manifest"), "vehicle"))
        joined = rows.join(spark.createDataFrame(known, _ENROLLED), "vehicle", "full")
        apply = looker(look, self._anchors, schema)
        return joined.groupBy("vehicle").applyInArrow(apply, from_arrow_schema(schema))

    def write(self, name: str, rows: Sequence[Mapping[str, Any]] | DataFrame, schema: pa.Schema | None = None) -> None:
        """The newest batch of a table; none, where it would say what the last one says."""
        if not isinstance(rows, DataFrame):
            rows = self._run.spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema))
        table, digest = self._run.warehouse.table(name), F.bit_xor(F.xxhash64(*rows.columns))
        says = list(rows.agg(F.count("*"), digest).collect()[0])
        if table.last().get("says") != says:
            table.write(rows.coalesce(1), {"says": says})


def in_rounds(run: JobRun, job: str, look: Callable[[FleetUpdates], dict[str, Any]]) -> dict[str, Any]:
    """Once, or with `--stream` again every so many seconds."""
    with run.warehouse.writing(job), explained(), Session.open(run.home) as session:
        while True:
            summary = look(FleetUpdates(run, session))
            if not run.follow or run.stop.wait(run.options["every_s"]):
                return summary


def _signer(manifest: bytes | None) -> bytes | None:
    with suppress(Malformed):
        return None if manifest is None else VehicleManifest.decode(manifest).vehicle
    return None


def looker(
    look: Look, anchors: Mapping[tuple[str, int], tuple[Any, Any]], schema: pa.Schema
) -> Callable[[pa.Table], pa.Table]:
    """What runs on the executors, for the rows of one vehicle."""

    def apply(table: pa.Table) -> pa.Table:
        rows = table.sort_by([(name, "ascending") for name in ("_partition", "_offset", "_leaf")]).to_pylist()
        vehicle, key, enrolled = rows[0]["vehicle"], rows[0]["key"], None
        if key is not None:
            ecus = {one["name"]: EnrolledEcu(VerifyKey(one["key"]), one["hardware"]) for one in rows[0]["ecus"]}
            enrolled = EnrolledVehicle(VerifyKey(key), ecus)
        inventory = Inventory(lambda one: enrolled if one == vehicle else None)
        found = VehicleRows(vehicle, enrolled, [], [], [])
        for row in rows:
            is_manifest, is_diagnosis = row["manifest"] is not None, row.get("diagnosis") is not None
            times, ends = anchors.get(("manifests" if is_manifest else "diagnoses", row["_partition"]), ((), ()))
            place = np.searchsorted(ends, row["_offset"] or 0, side="right")
            row["us"] = int(times[place]) if place < len(times) else _NEVER_US
            if is_diagnosis:
                found.diagnoses.append(row)
            elif is_manifest:
                try:
                    found.taken.append((row, *inventory.take(row["manifest"])))
                except Refused as error:
                    found.refused.append((row, error))
        return pa.Table.from_pylist(list(look(found)), schema=schema)

    return apply


def tell(frame: DataFrame) -> list[Finding]:
    """One finding for each rule and principal of the rows, with the vehicles that come first; the tables have all."""
    first = F.slice(F.sort_array(F.collect_set("vehicle")), 1, _NAMED_MAX).alias("vehicles")
    columns = [F.min("message").alias("message"), F.min("next").alias("next"), F.count("*").alias("count"), first]
    rows = frame.groupBy("rule", "severity", "principal").agg(*columns).sort("rule", "principal").collect()
    found = [row.asDict() for row in rows]
    return [{**one, "message": naming(one["message"], one.pop("vehicles")), "evidence": []} for one in found]


def naming(message: str, vehicles: Sequence[str]) -> str:
    """A message, with the vehicles that it is about, or the first of them."""
    told = ", ".join(vehicles[:_NAMED_MAX]) + ", …" * (len(vehicles) > _NAMED_MAX)
    return f"{message} (vehicles {told})" if told else message
