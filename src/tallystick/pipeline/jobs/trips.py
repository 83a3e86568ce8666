"""`trips`: the table `trips` of the table `signals`; `cutting` says what a trip is.

A batch of signals goes to its vehicles together with the rows that were kept of them; out come closed trips, which are
the batch, and beside it the open trips and the rows to keep. All three are one rename (`warehouse`), so that state and
table cannot fall out of step. The trips of a batch never change; the open ones are replaced by the next batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tallystick.errors import Misuse
from tallystick.pipeline.jobs.cutting import FIELDS, cut
from tallystick.pipeline.jobs.refine import SIGNALS
from tallystick.pipeline.jobs.registry import TripSettings
from tallystick.pipeline.jobs.run import JobRun, follow
from tallystick.pipeline.jobs.warehouse import WarehouseTable

TRIPS, OPEN = "trips", "open"
_ROWS = "rows"
_EVENT = "struct<start_us: bigint, end_us: bigint, acceleration_ms2: double, latitude: double, longitude: double>"
_TRIP = (
    "start_us: bigint, end_us: bigint, duration_s: double, distance_km: double, distance_by: string, idle_s: double,"
    " fuel_l: double, speed_max_kmh: double, harsh_braking: int, harsh_acceleration: int,"
    f" events: array<{_EVENT}>, rows: int, cut: string, line: string, suspect: boolean, is_open: boolean"
)
_SIGNALS = {
    "running": "Vehicle.Powertrain.CombustionEngine.IsRunning",
    "speed_kmh": "Vehicle.Speed",
    "odometer_km": "Vehicle.TraveledDistance",
    "fuel_rate_lh": "Vehicle.OBD.FuelRate",
    "latitude": "Vehicle.CurrentLocation.Latitude",
    "longitude": "Vehicle.CurrentLocation.Longitude",
}
_ENGINE_SPEED = "Vehicle.Powertrain.CombustionEngine.Speed"


def run(run: JobRun) -> dict[str, Any]:
    """Cut what signals has and trips lacks."""
    settings = TripSettings.of(run.options)
    source, target = run.warehouse.table(SIGNALS), run.warehouse.table(TRIPS)
    _check_settings(target, settings)
    work = _Work(run, target, settings)
    summary = follow(run, "trips", source, target, work.add)
    return {**summary, "trips": work.trips, "open": target.last().get("open", 0), "late": work.late}


def trips(signals: DataFrame, settings: TripSettings | None = None) -> DataFrame:
    """The trips of refined rows; those that rows could still change say `is_open`."""
    return _shown(_cut(_rows(signals), settings or TripSettings()))


def _check_settings(target: WarehouseTable, settings: TripSettings) -> None:
    last, mine = target.last(), asdict(settings)
    if last and last.get("settings") != mine:
        changed = [name for name, value in mine.items() if last.get("settings", {}).get(name) != value]
        hint = f"give the same, or remove {target.folder} and run trips anew"
        raise Misuse(f"{target.folder}: was made with another {', '.join(changed)}", hint=hint)


class _Work:
    """The batches of one run, and what they came to."""

    def __init__(self, run: JobRun, target: WarehouseTable, settings: TripSettings) -> None:
        self._run, self._target, self._settings = run, target, settings
        self.trips = self.late = 0

    def add(self, signals: DataFrame, facts: dict[str, Any]) -> dict[str, Any]:
        rows, before = _rows(signals), self._target.read_beside(self._run.spark, _ROWS)
        found = _cut(rows if before is None else rows.unionByName(before), self._settings).persist()
        try:
            counts: Any = found.agg(F.sum("late"), F.count_if("trip.is_open")).first()
            late, opened = counts[0] or 0, counts[1]
            shown = _shown(found)
            written = self._target.write(
                shown.where("not is_open").drop("is_open").coalesce(1),
                {**facts, "settings": asdict(self._settings), "late": late, "open": opened},
                beside={
                    OPEN: shown.where("is_open").drop("is_open").coalesce(1),
                    _ROWS: found.where("row is not null").select("vehicle_id", "row.*"),
                },
            )
        finally:
            found.unpersist()
        self.trips += written["rows"]
        self.late += late
        if late:
            self._run.tell(f"warning: {late} rows came too late for their trips; a greater --late-s waits longer")
        return written


def _rows(signals: DataFrame) -> DataFrame:
    """What trips are cut from, as `cutting` wants it; a row without a time is on no trip."""
    columns: dict[str, Column] = {name: _signal(signals, path) for name, path in _SIGNALS.items()}
    engine = _signal(signals, _ENGINE_SPEED)
    columns["running"] = F.coalesce(columns["running"].cast("boolean"), engine > 0)
    columns["us"] = F.unix_micros("ts")
    for name in ("suspect", "partition", "offset", "leaf"):
        columns[name] = F.col(f"_{name}") if f"_{name}" in signals.columns else F.lit(None)
    columns["settled_us"] = F.lit(None)
    timed = signals.where("ts is not null")
    return timed.select("vehicle_id", *(columns[name].cast(kind).alias(name) for name, kind in FIELDS.items()))


def _signal(frame: DataFrame, path: str) -> Column:
    """The column of a signal, or null where the rows have none of that name."""
    fields: Any = frame.schema
    for name in path.split("."):
        if name not in fields.names:
            return F.lit(None).cast("double")
        fields = fields[name].dataType
    return F.col(path)


def _cut(rows: DataFrame, settings: TripSettings) -> DataFrame:
    """For each vehicle rows that are a trip each, rows to keep, and the number of late ones."""
    row = ", ".join(f"`{name}`: {kind}" for name, kind in FIELDS.items())
    schema: Any = StructType.fromDDL(f"vehicle_id string, trip struct<{_TRIP}>, `row` struct<{row}>, late bigint")
    return rows.groupBy("vehicle_id").applyInArrow(_cutter(settings, to_arrow_schema(schema)), schema)


def _cutter(settings: TripSettings, schema: Any) -> Callable[[Any], Any]:
    """What runs on the executors: the rows of one vehicle in, its trips and what is kept out."""

    def apply(table: pa.Table) -> pa.Table:
        columns = {name: table.column(name).to_numpy() for name in FIELDS}
        found, kept, late = cut(columns, settings)
        trip_type, row_type = schema.field("trip").type, schema.field("row").type
        count = len(kept["us"])
        rows = [pa.array(kept[one.name], one.type, from_pandas=True) for one in row_type]
        whole = [
            pa.repeat(table.column("vehicle_id")[0].cast(pa.string()), len(found) + count),
            pa.chunked_array([pa.array(found, trip_type), pa.nulls(count, trip_type)]),
            pa.chunked_array([pa.nulls(len(found), row_type), pa.StructArray.from_arrays(rows, fields=list(row_type))]),
            pa.array([late] + [0] * (len(found) + count - 1), pa.int64()),
        ]
        return pa.table(whole, schema=schema)

    return apply


def _shown(found: DataFrame) -> DataFrame:
    """The trips, with times as times."""

    def event(one: Column) -> Column:
        times = [F.timestamp_micros(one[f"{edge}_us"]).alias(f"{edge}_ts") for edge in ("start", "end")]
        return F.struct(*times, one["acceleration_ms2"], one["latitude"], one["longitude"])

    trips = found.where("trip is not null").select("vehicle_id", "trip.*")
    edges = [F.timestamp_micros(f"{edge}_us").alias(f"{edge}_ts") for edge in ("start", "end")]
    rest = [name for name in trips.columns if name not in ("vehicle_id", "start_us", "end_us")]
    return trips.withColumn("events", F.transform("events", event)).select("vehicle_id", *edges, *rest)
