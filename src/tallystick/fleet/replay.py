"""Real files, read as they are and streamed in order of time: bus positions of CapMetro, OBD-II drives of a car, and
captures of a CAN bus.

A source is a file, a folder of them, or a tar archive of them; see `sources`. One file is in memory at a time.

What the files hide, and what becomes of it:

- *CapMetro positions.* Several days hold a header and nothing else: they give no rows. Files are ordered by vehicle,
  or not at all: rows are sorted by time. Speeds are in miles an hour until the autumn of 2015 and in metres a second
  from 2015-12-30 on, when the agency changed its feed (the later values are whole miles an hour times 0.44704, and
  agree with the distance between positions; the earlier ones exceed it by the factor 2.2). 255 miles an hour means
  "unknown", and so does a position at 0, 0: both become null.
- *OBD drives.* A line ends with a comma that no column belongs to (hence `index_col=False` in pandas), or does not, or
  lacks the last three values. The last line may be cut off, and is then left out. Time is whole seconds since the
  engine started, several rows to a second; drives have no date, so each is placed after the one before.
- *Duplicates.* Rows that repeat another of the same file exactly are left out, unless asked for: the recorders wrote
  the same reading again. Frames of a bus may repeat, and are all kept.
- *Captures of a bus.* See `detect.readers`. The labels of attacks are left behind: a bus does not tell them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tallystick.errors import Malformed
from tallystick.fleet.batches import CHUNK_ROWS, START_MS, rechunked
from tallystick.fleet.detect.readers import parse_capture, pattern_of
from tallystick.fleet.schemas import schema
from tallystick.fleet.sources import opened

KMH_PER_MPH = 1.609344
MPH_MS = 0.44704
UNKNOWN_MPH = 255.0
METRIC_FROM = "2015-12-01"  # between the last file in miles and the first in metres
BETWEEN_DRIVES_MS = 60_000

POSITIONS_HEADER = "vehicle_id,timestamp,speed,route_id,trip_id,latitude,longitude,trip_headsign"
DRIVES_HEADER = "ENGINE_RUN_TINE ()"  # sic
DRIVES_COLUMNS = 27


@dataclass
class RecordingReplay:
    """A replay of one source, positions, drives or frames by the first line of its files, and what was left out so
    far."""

    path: Path
    keep_duplicates: bool = False
    vin: str | None = None  # of the vehicle whose frames these are; None: each capture's name
    files: int = 0
    empty: int = 0  # files without a row
    duplicates: int = 0  # rows left out as such
    torn: int = 0  # rows left out because their line was cut off
    unordered: int = 0  # frames earlier than the one before, which are put in order

    def batches(self, chunk_rows: int = CHUNK_ROWS) -> Iterator[pa.RecordBatch]:
        """All rows in order of time, by the schema `positions`, `drives` or `can`. Raises `Misuse`, `Malformed`."""
        return rechunked(self._files(), chunk_rows)

    def _files(self) -> Iterator[pa.RecordBatch]:
        with opened(self.path) as source:
            at_ms, first, kind = START_MS, next(iter(source)), ""
            for name, read in source.items():
                data = read()
                found = _kind(data, name)
                kind = kind or found
                if found != kind:
                    raise Malformed(f"{name}: holds {found}, but {first} holds {kind}")
                if kind == "frames":
                    table = self._frames(data, name)
                else:
                    table = _positions(data, name) if kind == "positions" else self._drive(data, name, at_ms)
                self.files += 1
                self.empty += not table.num_rows
                if not table.num_rows:
                    continue
                if not self.keep_duplicates and kind != "frames":
                    whole, table = table, _distinct(table)
                    self.duplicates += whole.num_rows - table.num_rows
                table = table.take(pc.sort_indices(table, [("ts", "ascending")]))
                at_ms = table.column("ts")[-1].value + BETWEEN_DRIVES_MS
                yield from table.combine_chunks().to_batches()

    def _frames(self, data: bytes, name: str) -> pa.Table:
        capture = parse_capture(data, name)
        self.torn += capture.torn
        self.unordered += capture.unordered
        return pa.table(capture.frames.to_batch(self.vin or capture.name))

    def _drive(self, data: bytes, name: str, start_ms: int) -> pa.Table:
        lines, torn = _regular_lines(data, name)
        self.torn += torn
        arrow = schema("drives").arrow
        columns = arrow.names[2:]
        table = _read_csv(b"\n".join([",".join(columns).encode(), *lines]), name, dict.fromkeys(columns, pa.float32()))
        ts = pc.cast(pc.multiply(pc.cast(table.column("engine_run_s"), pa.float64()), 1000.0), pa.int64())
        ts = pc.cast(pc.add(ts, start_ms), pa.timestamp("ms", "UTC"))
        drive = pa.array([Path(name).stem] * table.num_rows, pa.string())
        return pa.table([ts, drive, *table.columns], schema=arrow)


def _distinct(table: pa.Table) -> pa.Table:
    """The first of every set of equal rows, in the old order."""
    numbered = table.append_column("row", pa.array(np.arange(table.num_rows)))
    first = numbered.group_by(table.column_names, use_threads=False).aggregate([("row", "min")])
    return table.take(pa.array(np.sort(first.column("row_min").to_numpy())))


# --- the two formats ---


def _kind(data: bytes, name: str) -> str:
    header = data[: data.find(b"\n") if b"\n" in data else len(data)].decode("utf-8", "replace").strip()
    if header == POSITIONS_HEADER:
        return "positions"
    if header.startswith(DRIVES_HEADER):
        return "drives"
    if pattern_of(data) is not None:
        return "frames"
    raise Malformed(
        f'{name}: the header begins "{header[:40]}", expected that of CapMetro positions, OBD drives or a CAN capture',
        hint="replay reads these formats; for your own rows use tally publish",
    )


def _positions(data: bytes, name: str) -> pa.Table:
    types = dict.fromkeys(POSITIONS_HEADER.split(","), pa.string())
    types |= dict.fromkeys(("speed", "latitude", "longitude"), pa.float64())
    table = _read_csv(data, name, types)
    try:
        ts = pc.cast(table.column("timestamp"), pa.timestamp("ms", "UTC"))
    except pa.ArrowInvalid as error:
        raise Malformed(f"{name}: a timestamp is not ISO 8601 with an offset: {error}") from error
    speed = table.column("speed")
    mph = pc.divide(speed, MPH_MS) if _is_metric(name, ts) else speed
    mph = pc.if_else(pc.greater(mph, UNKNOWN_MPH - 0.5), None, mph)
    nowhere = pc.and_(pc.equal(table.column("latitude"), 0.0), pc.equal(table.column("longitude"), 0.0))
    columns = [
        ts,
        table.column("vehicle_id"),
        pc.cast(pc.multiply(mph, KMH_PER_MPH), pa.float32()),
        table.column("route_id"),
        table.column("trip_id"),
        pc.if_else(nowhere, None, table.column("latitude")),
        pc.if_else(nowhere, None, table.column("longitude")),
        pc.if_else(pc.equal(table.column("trip_headsign"), ""), None, table.column("trip_headsign")),
    ]
    return pa.table(columns, schema=schema("positions").arrow)


def _is_metric(name: str, ts: pa.ChunkedArray) -> bool:
    """By the day in the file's name, or else by its first row."""
    day = re.search(r"\d{4}-\d{2}-\d{2}", Path(name).name)
    if day:
        return day[0] >= METRIC_FROM
    return bool(len(ts)) and str(ts[0].as_py().date()) >= METRIC_FROM


def _regular_lines(data: bytes, name: str) -> tuple[list[bytes], int]:
    """The lines below the header with 27 values each, missing ones empty, and how many were cut off."""
    lines = [line.rstrip(b"\r ").removesuffix(b",").replace(b" ", b"") for line in data.split(b"\n")[1:]]
    lines = [line for line in lines if line]
    torn = 0
    if len(lines) > 1 and lines[-1].count(b",") < lines[-2].count(b","):
        lines.pop()
        torn = 1
    if any(line.count(b",") >= DRIVES_COLUMNS for line in lines):
        raise Malformed(f"{name}: a line has more than {DRIVES_COLUMNS} values")
    return [line + b"," * (DRIVES_COLUMNS - 1 - line.count(b",")) for line in lines], torn


def _read_csv(data: bytes, name: str, types: dict[str, Any]) -> pa.Table:
    options = pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=False)
    try:
        return pyarrow.csv.read_csv(io.BytesIO(data), convert_options=options)
    except pa.ArrowInvalid as error:
        raise Malformed(f"{name}: not readable as CSV: {error}") from error
