"""Rows as they are printed: every value fits JSON."""

from __future__ import annotations

import json

import pyarrow as pa
from hypothesis import given
from strategies import batches

from tallystick.record.batch import Batch
from tallystick.record.leaves import decode_row, encode_row, encode_rows
from tallystick.record.schema import parse
from tallystick.record.show import readable


def test_a_row_to_read() -> None:
    schema = parse(
        "ts timestamp[ms, UTC], local timestamp[s], day date32, price decimal128(9, 2), raw binary,"
        " at struct<f float64>, l list<date32>"
    )
    rows = [
        {"ts": 1760000000123, "local": 0, "day": -1, "price": 12, "raw": b"\x0f", "at": {"f": float("nan")}}
        | {"l": [0, None]}
    ]
    batch = Batch.of(schema, pa.RecordBatch.from_pylist(rows, schema=schema.arrow))
    row = decode_row(schema.arrow, encode_row(schema.arrow, 0, batch.data))
    assert readable(schema.arrow, row) == {
        "ts": "2025-10-09T08:53:20.123Z",
        "local": "1970-01-01T00:00:00",
        "day": "1969-12-31",
        "price": "12.00",
        "raw": "0f",
        "at": {"f": "nan"},
        "l": ["1970-01-01", None],
    }


@given(batches(rows_max=4))
def test_anything_fits_json(batch: Batch) -> None:
    schema = batch.data.schema
    for row in encode_rows(batch.data):
        json.dumps(readable(schema, decode_row(schema, row)), allow_nan=False)
