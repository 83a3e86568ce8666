"""The canonical row encoding: lossless, strict, and equal to hand-made bytes."""

from __future__ import annotations

import math
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from strategies import batches

from tallystick.errors import Malformed
from tallystick.record.batch import Batch
from tallystick.record.leaves import decode_row, encode_row, encode_rows
from tallystick.record.schema import Schema


def test_a_row_by_hand() -> None:
    schema = Schema.parse("vin string, speed float32, on bool, tags list<int16>, pos struct<lat float64, lon float64>")
    batch = pa.RecordBatch.from_pylist(
        [{"vin": "WVW", "on": True, "tags": [1, None, -1], "pos": {"lon": -0.0}}], schema=schema.arrow
    )
    row = encode_row(schema.arrow, 0, batch)
    assert row == (
        b"\x1d" + b"\x03\0\0\0WVW" + b"\x01" + b"\x03\0\0\0\x05\x01\0\xff\xff" + b"\x02" + struct.pack("<d", -0.0)
    )
    assert decode_row(schema.arrow, row) == {
        "vin": "WVW",
        "speed": None,
        "on": True,
        "tags": [1, None, -1],
        "pos": {"lat": None, "lon": 0.0},
    }


def test_bits_of_floats_survive() -> None:
    signalling = 0x7FA00001
    column = pa.Array.from_buffers(pa.float32(), 2, [None, pa.py_buffer(struct.pack("<II", signalling, 1 << 31))])
    batch = pa.RecordBatch.from_arrays([column], schema=pa.schema([("x", pa.float32())]))
    assert encode_rows(batch) == [
        b"\x01" + struct.pack("<I", signalling),
        b"\x01" + struct.pack("<I", 1 << 31),
    ]
    zero = decode_row(batch.schema, encode_rows(batch)[1])["x"]
    assert math.copysign(1, zero) == -1


@given(batches())
def test_a_row_reads_back(batch: Batch) -> None:
    """Values read from the bytes make the same bytes again."""
    rows = encode_rows(batch.data)
    decoded = [decode_row(batch.data.schema, row) for row in rows]
    columns = [pa.array([row[field.name] for row in decoded], field.type) for field in batch.data.schema]
    again = pa.RecordBatch.from_arrays(columns, schema=batch.data.schema)
    assert encode_rows(again) == rows
    assert [encode_row(batch.data.schema, i, batch.data) for i in range(batch.rows)] == rows


@given(batches(rows_max=3))
def test_every_byte_counts(batch: Batch) -> None:
    for row in encode_rows(batch.data):
        with pytest.raises(Malformed):
            decode_row(batch.data.schema, row + b"\0")
        with pytest.raises(Malformed):
            decode_row(batch.data.schema, row[:-1])


@pytest.mark.parametrize(
    ("schema", "row", "message"),
    [
        ("a bool", b"\x01\x02", "bool"),
        ("a bool", b"\x02", "beyond its last"),
        ("a bool not null", b"\x00", "not nullable"),
        ("a string", b"\x01\x01\0\0\0\xff", "UTF-8"),
        ("a string", b"\x01\xff\xff\xff\xff", "expected"),
        ("a list<bool>", b"\x01\xff\xff\xff\xff", "expected"),
        ("a list<bool>", b"\x01\x01\0\0\0\x02", "beyond its last"),
        ("a decimal128(2, 1)", b"\x01\x64" + bytes(15), "digits"),
    ],
)
def test_malformed_rows(schema: str, row: bytes, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        decode_row(Schema.parse(schema).arrow, row)
