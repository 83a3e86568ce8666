"""`refine`: the table `signals`: every row of bronze with its signals by their names in the COVESA Vehicle Signal
Specification, in its units and types.

VSS is a tree and so is the column `Vehicle`: `select("Vehicle.Speed", "Vehicle.CurrentLocation.Latitude")`. Beside it
stand `ts`, `vehicle_id`, what has no name in VSS as it was, and the provenance columns: a refined row is proved as its
bronze row is. Rows that hold CAN frames are decoded by a DBC (fleet/dbc.py): `message`, `problem` where the frame is no
good, signals with a path under `Vehicle`, all others in the map `other`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tallystick.errors import Misuse
from tallystick.fleet import can
from tallystick.fleet.dbc import Dbc, Decoded
from tallystick.fleet.signals import BY_COLUMN, BY_PATH
from tallystick.pipeline.columns import PROVENANCE
from tallystick.pipeline.jobs.ingest import BRONZE
from tallystick.pipeline.jobs.run import JobRun, follow

SIGNALS = "signals"
_VEHICLES = ("vin", "vehicle", "drive")  # columns that say whose row it is
# VSS has unsigned numbers; Spark's next wider type holds them. Other types have the same name in both.
_TYPES = {"int8": "tinyint", "uint8": "smallint", "uint16": "int"}


def run(run: JobRun) -> dict[str, Any]:
    """Refine what bronze has and signals lacks."""
    text = dbc_text(run.options.get("dbc"))
    source, target = run.warehouse.table(BRONZE), run.warehouse.table(SIGNALS)
    return follow(run, "refine", source, target, lambda frame, facts: target.write(refine(frame, text), facts))


def refine(bronze: DataFrame, dbc: str | None = None) -> DataFrame:
    """The signals of rows of the fleet: telemetry, positions, drives, or CAN frames by the text of a DBC (else ours).

    Raises `Misuse` where no column is a signal, or none says whose row it is.
    """
    names = bronze.columns
    vehicle = next((name for name in _VEHICLES if name in names), None)
    if vehicle is None or "ts" not in names:
        hint = f"refine wants a column ts and one of {', '.join(_VEHICLES)}: see tally fleet schema"
        raise Misuse(f"rows of {', '.join(names)} are not of vehicles", hint=hint)
    if {"can_id", "payload"} <= set(names):
        return _refine_frames(bronze, vehicle, dbc or can.dbc_text())
    known = {BY_COLUMN[name].path: name for name in names if name in BY_COLUMN}
    if not known:
        hint = "tally fleet schema telemetry shows columns that are"
        raise Misuse(f"none of {', '.join(names)} is a signal", hint=hint)
    tree = _tree({path: _typed(bronze, path, name) for path, name in known.items()})
    others = [name for name in names if name not in BY_COLUMN and name not in ("ts", vehicle, *PROVENANCE.names)]
    return bronze.select("ts", F.col(vehicle).alias("vehicle_id"), tree, *others, *_provenance(names))


def _typed(frame: DataFrame, path: str, name: str) -> Column:
    """A column in the type that VSS gives the signal: rounded where that is whole, null where it does not fit.

    Doubles stay doubles: the odometer of an old car would lose sixteen metres as a float.
    """
    datatype = BY_PATH[path].datatype
    kind, column = _TYPES.get(datatype, datatype), F.col(f"`{name}`")
    if kind == "float" and frame.schema[name].dataType.simpleString() == "double":
        return column
    return (F.round(column) if kind.endswith("int") else column).try_cast(kind)


def _tree(columns: Mapping[str, Column]) -> Column:
    """Columns by their paths as nested structs under `Vehicle`."""

    def nest(prefix: str) -> Column:
        names = dict.fromkeys(path.removeprefix(prefix).split(".")[0] for path in columns if path.startswith(prefix))
        parts = {name: columns.get(prefix + name) for name in names}
        whole = {name: nest(f"{prefix}{name}.") if part is None else part for name, part in parts.items()}
        return F.struct(*(part.alias(name) for name, part in whole.items()))

    return nest("Vehicle.").alias("Vehicle")


def _provenance(names: Iterable[str]) -> list[str]:
    return [name for name in PROVENANCE.names if name in names]


def dbc_text(path: Path | None) -> str | None:
    """The text of a DBC file. Raises `Misuse` where it is none."""
    if path is None:
        return None
    try:
        text = path.read_text(encoding="cp1252")  # the format's own encoding
    except OSError as error:
        raise Misuse(f"{path}: cannot be read: {error.strerror}", hint="name a DBC file with --dbc") from error
    Dbc.parse(text)
    return text


# --- frames ---


def _refine_frames(bronze: DataFrame, vehicle: str, text: str) -> DataFrame:
    paths = sorted(key for key in Dbc.parse(text).units() if key in BY_PATH)
    kept = [name for name in bronze.columns if name not in ("payload", vehicle)]
    fields = [f"`{field.name}` {field.dataType.simpleString()}" for field in bronze.select(*kept).schema.fields]
    fields += ["vehicle_id string", "message string", "problem string", "other map<string, double>"]
    schema = ", ".join([*fields, *(f"`{path}` double" for path in paths)])
    frames = bronze.withColumnRenamed(vehicle, "vehicle_id")
    decoded = frames.mapInArrow(_decoder(text, paths, [*kept, "vehicle_id"]), schema)
    own = [name for name in kept if name != "ts" and name not in PROVENANCE.names]
    tree = [_tree({path: _typed(decoded, path, path) for path in paths})] if paths else []
    own += ["message", "problem", "other"]
    return decoded.select("ts", "vehicle_id", *tree, *own, *_provenance(bronze.columns))


def _decoder(text: str, paths: list[str], kept: list[str]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What runs on the executors: record batches of frames to record batches of signals."""

    def decode(batches: Iterator[Any]) -> Iterator[Any]:
        dbc = Dbc.parse(text)
        for batch in batches:
            ids = batch.column("can_id").to_numpy(zero_copy_only=False).astype(np.int64)
            found = dbc.decode(ids, batch.column("payload"))
            columns = [batch.column(name) for name in kept]
            columns += [_names(found, batch.num_rows), _problems(found, batch.num_rows)]
            columns += [_others(found, batch.num_rows, set(paths))]
            columns += [_values(found, batch.num_rows, path) for path in paths]
            yield pa.RecordBatch.from_arrays(columns, names=[*kept, "message", "problem", "other", *paths])

    return decode


def _values(found: list[Decoded], rows: int, key: str) -> pa.Array:
    values, missing = np.zeros(rows), np.ones(rows, np.bool_)
    for one in found:
        if key in one.values:
            values[one.rows], missing[one.rows] = one.values[key][0], ~one.values[key][1]
    return pa.array(values, mask=missing)


def _names(found: list[Decoded], rows: int) -> pa.Array:
    number = np.full(rows, -1)
    for place, one in enumerate(found):
        number[one.rows] = place if one.name else -1
    return _chosen(number, [one.name for one in found])


def _problems(found: list[Decoded], rows: int) -> pa.Array:
    kinds = sorted({kind for one in found for kind in one.problems})
    number = np.full(rows, -1)
    for one in found:
        for kind, where in one.problems.items():
            number[one.rows[where]] = kinds.index(kind)
    return _chosen(number, kinds)


def _chosen(number: Any, texts: list[str]) -> pa.Array:
    """The text of each number, null for -1."""
    return pa.array(texts, pa.string()).take(pa.array(number, pa.int64(), mask=number < 0))


def _others(found: list[Decoded], rows: int, known: set[str]) -> pa.Array:
    """For each frame a map of the signals that have no path, null where it has none."""
    parts = [
        (key, one.rows[valid], value[valid])
        for one in found
        for key, (value, valid) in one.values.items()
        if key not in known
    ]
    places = np.concatenate([np.zeros(0, np.int64), *(where for _, where, _ in parts)])
    values = np.concatenate([np.zeros(0), *(value for _, _, value in parts)])
    names = pa.array([key for key, _, _ in parts], pa.string())
    number = np.repeat(np.arange(len(parts)), [len(where) for _, where, _ in parts])
    order, count = np.argsort(places, kind="stable"), np.bincount(places, minlength=rows)
    offsets = pa.array(np.append(0, np.cumsum(count)), pa.int32(), mask=np.append(count == 0, False))
    return pa.MapArray.from_arrays(offsets, names.take(pa.array(number[order], pa.int64())), pa.array(values[order]))
