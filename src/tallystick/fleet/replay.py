"""Real files, read as they are and streamed in order of time: bus positions of CapMetro and OBD-II drives of a car.

A source is a CSV file, a folder of them, or a tar archive of them (`.tar`, `.tar.xz`, `.tar.gz`), which is unpacked
once to a temporary file, because compressed archives cannot be read in another order than their own. One CSV file is
in memory at a time.

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
  the same reading again.
"""

from __future__ import annotations

import io
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tallystick.errors import Malformed, Misuse, Unavailable
from tallystick.fleet.batches import CHUNK_ROWS, START_MS, rechunked
from tallystick.fleet.schemas import schema
from tallystick.wire import is_number

FILE_BYTES_MAX = 256 << 20  # of one CSV file; the largest real one has 4 MB
KMH_PER_MPH = 1.609344
MPH_MS = 0.44704
UNKNOWN_MPH = 255.0
METRIC_FROM = "2015-12-01"  # between the last file in miles and the first in metres
BETWEEN_DRIVES_MS = 60_000

POSITIONS_HEADER = "vehicle_id,timestamp,speed,route_id,trip_id,latitude,longitude,trip_headsign"
DRIVES_HEADER = "ENGINE_RUN_TINE ()"  # sic
DRIVES_COLUMNS = 27


Source = dict[str, tuple[int, Callable[[], bytes]]]  # CSV files by name, in the order of replay: size, what reads it


@dataclass
class RecordingReplay:
    """A replay of one source, positions or drives by the header of its files, and what was left out so far."""

    path: Path
    keep_duplicates: bool = False
    files: int = 0
    empty: int = 0  # files without a row
    duplicates: int = 0  # rows left out as such
    torn: int = 0  # rows left out because their line was cut off

    def batches(self, chunk_rows: int = CHUNK_ROWS) -> Iterator[pa.RecordBatch]:
        """All rows in order of time, by the schema `positions` or `drives`. Raises `Misuse`, `Malformed`."""
        return rechunked(self._files(), chunk_rows)

    def _files(self) -> Iterator[pa.RecordBatch]:
        with _open(self.path) as source:
            at_ms, first, kind = START_MS, next(iter(source)), ""
            for name, (size, read) in source.items():
                if size > FILE_BYTES_MAX:
                    raise Misuse(f"{name}: has {size} bytes, but at most {FILE_BYTES_MAX} are read at once")
                data = read()
                found = _kind(data, name)
                kind = kind or found
                if found != kind:
                    raise Malformed(f"{name}: holds {found}, but {first} holds {kind}")
                table = _positions(data, name) if kind == "positions" else self._drive(data, name, at_ms)
                self.files += 1
                self.empty += not table.num_rows
                if not table.num_rows:
                    continue
                if not self.keep_duplicates:
                    whole, table = table, _distinct(table)
                    self.duplicates += whole.num_rows - table.num_rows
                table = table.take(pc.sort_indices(table, [("ts", "ascending")]))
                at_ms = table.column("ts")[-1].value + BETWEEN_DRIVES_MS
                yield from table.combine_chunks().to_batches()

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
    raise Malformed(
        f'{name}: the header begins "{header[:40]}", expected that of CapMetro positions or of OBD drives',
        hint="replay reads these two formats; for your own rows use tally publish",
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


# --- files, folders and archives ---


@contextmanager
def _open(path: Path) -> Iterator[Source]:
    if not path.exists():
        raise Misuse(f"{path}: there is no such file or folder")
    with ExitStack() as stack:
        if path.is_dir() or path.suffix == ".csv":
            paths = path.glob("*.csv") if path.is_dir() else [path]
            found: Source = {one.name: (one.stat().st_size, one.read_bytes) for one in paths}
        else:
            archive = stack.enter_context(tarfile.open(fileobj=stack.enter_context(_unpacked(path))))
            members = [member for member in archive if member.isfile() and member.name.endswith(".csv")]
            found = {member.name: (member.size, partial(_read_member, archive, member)) for member in members}
        if not found:
            raise Misuse(f"{path}: holds no CSV file")
        yield {name: found[name] for name in sorted(found, key=_place)}


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None  # a regular file
    return file.read()


@contextmanager
def _unpacked(path: Path) -> Iterator[Any]:
    """The members of an archive as a tar file without compression."""
    with tempfile.TemporaryFile() as file:
        try:
            with tarfile.open(path, "r|*") as packed, tarfile.open(fileobj=file, mode="w") as plain:
                for member in packed:
                    if member.isfile():
                        plain.addfile(member, packed.extractfile(member))
        except tarfile.TarError as error:
            hint = "a CSV file, a folder of them or a tar archive of them is expected"
            raise Malformed(f"{path}: not a tar archive: {error}", hint=hint) from error
        except OSError as error:
            raise Unavailable(f"{path}: cannot be unpacked: {error}") from error
        file.seek(0)
        yield file


def _place(name: str) -> list[int | str]:
    """Of a file in its order: by name, numbers by value, so that days are in order, and drive2 is before drive10."""
    return [int(part) if is_number(part) else part for part in re.split(r"(\d+)", name)]
