"""Writes rows.json: schemas, batches, their canonical rows, leaves and roots, and rows that must be refused.

    python tests/vectors/make_rows.py

The vectors are made by the reference alone and are a function of this file: a change of the output is a
change of the format. The messages are Arrow's and may differ in padding from one version of pyarrow to the
next; the rest not.
"""

from __future__ import annotations

import hashlib
import json
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from tallystick.record.batch import Batch, to_message
from tallystick.record.leaves import encode_rows, reference_hashes, reference_root
from tallystick.record.schema import Schema

PATH = Path(__file__).with_name("rows.json")

GOOD: list[tuple[str, str, list[tuple[str, ...]], list[dict[str, Any]]]] = [
    ("one integer", "n int16 not null", [], [{"n": 258}]),
    ("no records", "n int16", [], []),
    (
        "integers at their limits",
        "a int8, b int16, c int32, d int64, e uint8, f uint16, g uint32, h uint64",
        [],
        [
            {"a": -128, "b": -(2**15), "c": -(2**31), "d": -(2**63), "e": 0, "f": 0, "g": 0, "h": 0},
            {"a": 127, "b": 2**15 - 1, "c": 2**31 - 1, "d": 2**63 - 1, "e": 255, "f": 2**16 - 1, "g": 2**32 - 1}
            | {"h": 2**64 - 1},
            dict.fromkeys("abcdefgh"),
        ],
    ),
    (
        "text, bytes, bool",
        "s string, b binary, t bool",
        [],
        [
            {"s": "", "b": b"", "t": False},
            {"s": "Grüße, 車", "b": bytes(range(70)), "t": True},
            {"s": None, "b": b"\0", "t": None},
        ],
    ),
    (
        "dates, timestamps, decimals",
        "d date32, s timestamp[s], n timestamp[ns, Europe/Berlin], p decimal128(38, 10), q decimal128(3, 1)",
        [],
        [
            {"d": -1, "s": 1760000000, "n": -(2**63), "p": Decimal("-1234567890123456789012345678.0123456789")}
            | {"q": Decimal("99.9")},
            {"d": 2**31 - 1, "s": None, "n": 0, "p": Decimal("0E-10"), "q": Decimal("-0.1")},
        ],
    ),
    (
        "lists and structs",
        "l list<int32>, m list<list<string not null>>, p struct<lat float64, lon float64 not null>,"
        " q list<struct<k string, v struct<x bool>>>",
        [],
        [
            {"l": [], "m": [[], None, ["a", "bc"]], "p": {"lat": None, "lon": 13.5}, "q": []},
            {"l": [1, None, -1] * 3, "m": None, "p": None, "q": [{"k": "k", "v": {"x": True}}, None, {}]},
        ],
    ),
    (
        "nine columns take two bytes of bitmap",
        ", ".join(f"c{i} int8" for i in range(9)),
        [],
        [{"c8": 8}, {f"c{i}": i for i in range(9)}, {}],
    ),
    (
        "two groups",
        "vin string not null, ts timestamp[ms, UTC] not null, lat float64, lon float64, speed float32",
        [("vin", "ts", "speed"), ("lat", "lon")],
        [
            {"vin": f"WVWZZZ1JZ{i:08d}", "ts": 1760000000000 + i, "lat": 52.5, "lon": 13.4, "speed": i / 2}
            for i in range(5)
        ],
    ),
]

BAD: list[tuple[str, str, str]] = [
    ("a byte too many", "n int16", "01020100"),
    ("a byte missing", "n int16", "0102"),
    ("no bitmap", "n int16", ""),
    ("a bit beyond the last column", "n int16", "030201"),
    ("a null in a column that has none", "n int16 not null", "00"),
    ("a bool of 2", "t bool", "0102"),
    ("a string that is not UTF-8", "s string", "0102000000c328"),
    ("a length beyond the end", "s string", "01ffffffff"),
    ("a list's bit beyond its last element", "l list<bool>", "010100000002"),
    ("a struct's bit beyond its last field", "p struct<x bool>", "0102"),
    ("a decimal of too many digits", "q decimal128(2, 1)", "0164" + "00" * 15),
]


def floats() -> tuple[Schema, Any]:
    """Bits that Python's own floats would not keep: NaNs with payloads, −0, infinities, a subnormal."""
    schema = Schema.parse("f float32, d float64")
    singles = struct.pack("<5I", 0x7FA00001, 0x80000000, 0xFF800000, 0x00000001, 0x7FC00000)
    doubles = struct.pack("<5Q", 0x7FF4000000000001, 1 << 63, 0xFFF << 52, 1, 0x7FF8 << 48)
    columns = [
        pa.Array.from_buffers(type_, 5, [None, pa.py_buffer(data)])
        for type_, data in ((pa.float32(), singles), (pa.float64(), doubles))
    ]
    return schema, pa.RecordBatch.from_arrays(columns, schema=schema.arrow)


def vector(name: str, schema: Schema, data: Any) -> dict[str, Any]:
    batch = Batch.of(schema, data)
    groups = []
    for number in range(len(schema.groups)):
        part = batch.only(number)
        salts = hashlib.shake_128(f"{name}/{number}".encode()).digest(16 * part.rows)
        leaves = reference_hashes(part, salts)
        groups.append(
            {
                "message": bytes(to_message(part.data)).hex(),
                "salts": salts.hex(),
                "rows": [row.hex() for row in encode_rows(part.data)],
                "leaves": [leaf.hex() for leaf in leaves],
                "root": reference_root(leaves).hex(),
            }
        )
    return {
        "name": name,
        "schema_text": str(schema),
        "schema": schema.encode().hex(),
        "schema_hash": schema.hash.hex(),
        "count": batch.rows,
        "groups": groups,
    }


def vectors() -> dict[str, Any]:
    good = []
    for name, text, groups, rows in GOOD:
        schema = Schema.parse(text, groups=groups)
        good.append(vector(name, schema, pa.RecordBatch.from_pylist(rows, schema=schema.arrow)))
    good.append(vector("floats by their bits", *floats()))
    bad = [{"name": name, "schema_text": text, "row": row, "error": "Malformed"} for name, text, row in BAD]
    return {"good": good, "bad": bad}


if __name__ == "__main__":
    PATH.write_text(json.dumps(vectors(), indent=1, ensure_ascii=False) + "\n")
