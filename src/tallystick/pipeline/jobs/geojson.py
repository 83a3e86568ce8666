"""Trips for a map: a GeoJSON file (RFC 7946) of lines, and points where somebody braked or accelerated harshly.

It reads the parquet files themselves: no Spark is started to draw a map. Coordinates are WGS 84, longitude first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from tallystick.errors import Misuse, Unavailable
from tallystick.pipeline.jobs import lines
from tallystick.pipeline.jobs.warehouse import Warehouse, reading


def export(warehouse: Warehouse, out: Path, *, with_open: bool = False) -> dict[str, int]:
    """Write closed trips and their events, with `with_open` the open ones too. Returns how many of each have a
    place."""
    counts = {"trips": 0, "events": 0, "without_place": 0}
    hidden = out.with_name(f".{out.name}")
    try:
        with hidden.open("w", encoding="utf-8") as file:
            file.write('{"type": "FeatureCollection", "features": [')
            for feature in _features(warehouse, with_open, counts):
                separator = ",\n" if counts["trips"] + counts["events"] > 1 else "\n"
                file.write(separator + json.dumps(feature, default=datetime.isoformat))
            file.write("\n]}\n")
        hidden.replace(out)
    except OSError as error:
        raise Unavailable(f"{out}: cannot be written: {error.strerror}") from error
    return counts


def _features(warehouse: Warehouse, with_open: bool, counts: dict[str, int]) -> Iterator[dict[str, Any]]:
    for trip in _trips(warehouse, with_open):
        line, events = lines.geometry(trip.pop("line")), trip.pop("events")
        if line is None:
            counts["without_place"] += 1
            continue
        counts["trips"] += 1
        yield {"type": "Feature", "geometry": line, "properties": trip}
        for event in events:
            place = [event.pop("longitude"), event.pop("latitude")]
            if None not in place:
                counts["events"] += 1
                event["kind"] = "harsh braking" if event["acceleration_ms2"] < 0 else "harsh acceleration"
                properties = {"vehicle_id": trip["vehicle_id"], **event}
                yield {"type": "Feature", "geometry": {"type": "Point", "coordinates": place}, "properties": properties}


def _trips(warehouse: Warehouse, with_open: bool) -> Iterator[dict[str, Any]]:
    table = warehouse.table("trips")
    if not table.batches():
        raise Misuse(f"{table.folder}: there are no trips yet", hint="run the jobs ingest, refine and trips")
    files = [(file, False) for file in table.files()]
    if with_open:
        files += [(file, True) for file in table.files(beside="open")]
    for file, is_open in files:
        with reading(table.folder):
            for batch in ds.dataset([file]).to_batches():
                for trip in batch.to_pylist():
                    yield {**trip, "is_open": is_open}
