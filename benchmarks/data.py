"""Telemetry of a fleet: eleven columns, about 167 bytes a record as JSON, the same for every suite and every peer.

A function of its seed. The values are those of a vehicle's report: positions with six decimals, speeds and levels with
one, so that neither JSON nor compression is flattered by random mantissas or by constants.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from tallystick.record.schema import Schema

SCHEMA_TEXT = (
    "vin string, ts int64, seq int64, lat float64, lon float64, odo float64,"
    " speed float32, soc float32, temp float32, heading int16, brake bool"
)
SCHEMA = Schema.parse(SCHEMA_TEXT)
VEHICLES = 2_000
FIRST_MS = 1_760_000_000_000
SEED = 20


def columns(count: int, first: int = 0, seed: int = SEED) -> pa.RecordBatch:
    """`count` records from number `first` on, as a record batch of `SCHEMA`."""
    random = np.random.default_rng([seed, first])
    vehicle = random.integers(0, VEHICLES, count)
    number = first + np.arange(count)
    values: dict[str, Any] = {
        "vin": [f"WVWZZZ1JZ{v:08}" for v in vehicle.tolist()],
        "ts": FIRST_MS + 10 * number + random.integers(0, 10, count),
        "seq": number,
        "lat": (52 + random.normal(0, 0.2, count)).round(6),
        "lon": (13 + random.normal(0, 0.3, count)).round(6),
        "odo": (vehicle * 37.3 + random.random(count) * 100).round(1),
        "speed": random.gamma(4, 12, count).round(1).astype(np.float32),
        "soc": (random.random(count) * 100).round(1).astype(np.float32),
        "temp": random.normal(25, 4, count).round(1).astype(np.float32),
        "heading": random.integers(0, 360, count).astype(np.int16),
        "brake": random.random(count) < 0.1,
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(values[field.name], field.type) for field in SCHEMA.arrow], schema=SCHEMA.arrow
    )


def dicts(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The records as an application makes them: one dict literal after another, each with values of its own. Values
    that were made column by column would lie far apart in memory, which slows every reader of dicts down."""
    values = [
        np.asarray(column).astype(np.float64).round(1).tolist() if column.type == pa.float32() else column.to_pylist()
        for column in batch.columns
    ]
    return [_report(*row) for row in zip(*values, strict=True)]


def _report(
    vin: str,
    ts: int,
    seq: int,
    lat: float,
    lon: float,
    odo: float,
    speed: float,
    soc: float,
    temp: float,
    heading: int,
    brake: bool,
) -> dict[str, Any]:
    return {
        "vin": (vin + " ")[:-1],
        "ts": ts + 1 - 1,
        "seq": seq + 1 - 1,
        "lat": lat * 1.0,
        "lon": lon * 1.0,
        "odo": odo * 1.0,
        "speed": speed * 1.0,
        "soc": soc * 1.0,
        "temp": temp * 1.0,
        "heading": heading + 1 - 1,
        "brake": brake,
    }


def lines(rows: list[dict[str, Any]]) -> list[bytes]:
    """The records as JSON, one by one."""
    return [orjson.dumps(row) for row in rows]
