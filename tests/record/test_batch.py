"""Batches and their messages: round trips, and hostile plaintext that must be refused, never crash."""

from __future__ import annotations

import struct
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import batches

from tallystick.errors import Malformed, Misuse
from tallystick.record.batch import Batch, from_message, open_batch, to_message
from tallystick.record.leaves import encode_rows, leaf_root
from tallystick.record.schema import Schema, parse


def record_batch(schema: Schema, rows: list[dict[str, Any]]) -> Any:
    return pa.RecordBatch.from_pylist(rows, schema=schema.arrow)


def message_of(schema: Schema, rows: list[dict[str, Any]]) -> bytes:
    return bytes(to_message(record_batch(schema, rows)))


def body_start(message: bytes) -> int:
    return 8 + int(struct.unpack_from("<i", message, 4)[0])


def patch(message: bytes, at: int, new: bytes) -> bytes:
    return message[:at] + new + message[at + len(new) :]


def patch_pair(message: bytes, old: tuple[int, int], new: tuple[int, int], occurrence: int = 0) -> bytes:
    """Replace a FieldNode or a Buffer in the metadata."""
    at = -1
    for _ in range(occurrence + 1):
        at = message.index(struct.pack("<qq", *old), at + 1, body_start(message))
    return patch(message, at, struct.pack("<qq", *new))


@given(batches())
def test_messages_round_trip(batch: Batch) -> None:
    message = to_message(batch.data)
    expected = encode_rows(batch.data)  # not by Arrow's equality: to it no NaN equals another
    assert encode_rows(open_batch(message, batch.schema, batch.rows).data) == expected
    shifted = pa.py_buffer(b"x" + bytes(message)).slice(1)
    assert encode_rows(from_message(shifted, batch.schema.arrow, batch.rows)) == expected


@given(batches())
def test_groups_split_and_join(batch: Batch) -> None:
    parts = [batch.only(i) for i in range(len(batch.schema.groups))]
    for i, part in enumerate(parts):
        assert part.data.schema == batch.schema.group_arrow(i)
        assert part.schema == batch.schema.only(i)
    joined = Batch.join(batch.schema, parts)
    assert joined.schema == batch.schema
    assert encode_rows(joined.data) == encode_rows(batch.data)


def test_a_batch_equals_its_schema() -> None:
    schema = parse("a int8 not null, b struct<x int8 not null>, c list<int8 not null>")
    good = record_batch(schema, [{"a": 1, "b": None, "c": None}, {"a": 2, "b": {"x": 1}, "c": [1]}])
    assert Batch.of(schema, good).rows == 2
    for other in ("a int16 not null, b struct<x int8 not null>, c list<int8 not null>", "a int8 not null"):
        with pytest.raises(Misuse, match="does not equal the schema"):
            Batch.of(parse(other), good)
    bad: list[tuple[list[dict[str, Any]], str]] = [
        ([{"a": None}], "a"),
        ([{"a": 1, "b": {"x": None}}], "b.x"),
        ([{"a": 1, "c": [1, None]}], "c.item"),
    ]
    for rows, column in bad:
        with pytest.raises(Misuse, match=f'"{column}": has 1 nulls'):
            Batch.of(schema, record_batch(schema, rows))
        with pytest.raises(Malformed, match=f'"{column}": has 1 nulls'):
            open_batch(to_message(record_batch(schema, rows)), schema, 1)


def test_invalid_arrow_data_makes_no_batch() -> None:
    schema = parse("a string")
    offsets = pa.py_buffer(struct.pack("<iii", 0, 2**30, 2))
    column = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab")])
    with pytest.raises(Misuse, match="not valid Arrow data"):
        Batch.of(schema, pa.record_batch([column], schema=schema.arrow))


STRINGS = parse("s string")
TWO = [{"s": "alpha"}, {"s": "beta"}]


def hostile() -> dict[str, tuple[Schema, bytes, int]]:
    """Name → schema, message, promised rows; each must be Malformed."""
    good = message_of(STRINGS, TWO)
    body = body_start(good)
    nested = parse("n struct<x int64>, l list<int8>")
    nest = message_of(nested, [{"n": {"x": i}, "l": [1, 2]} for i in range(5)])
    numbers = parse("n int64")
    nulls = message_of(numbers, [{"n": 1}, {"n": None}, {"n": 3}])
    made = {
        "an offset far beyond the data": (STRINGS, patch(good, body + 8, struct.pack("<i", 2**30)), 2),
        "a falling offset": (STRINGS, patch(good, body + 4, struct.pack("<i", 100)), 2),
        "a negative offset": (STRINGS, patch(good, body + 4, struct.pack("<i", -5)), 2),
        "a negative first offset": (STRINGS, patch(good, body, struct.pack("<i", -(2**31))), 2),
        "not UTF-8": (STRINGS, good.replace(b"alpha", b"al\xff\xfea"), 2),
        "another row count": (STRINGS, good, 3),
        "a wrong schema, fewer buffers": (parse("s int64"), good, 2),
        "a wrong schema, more columns": (parse("s string, t string"), good, 2),
        "a wrong schema, nested": (parse("s list<list<string>>"), good, 2),
        "a node longer than its buffers": (STRINGS, patch_pair(good, (2, 0), (2**40, 0)), 2),
        "a negative node": (STRINGS, patch_pair(good, (2, 0), (-1, 0)), 2),
        "more nulls than rows": (STRINGS, patch_pair(good, (2, 0), (2, 3)), 2),
        "negative nulls": (STRINGS, patch_pair(good, (2, 0), (2, -1)), 2),
        "nulls without a bitmap": (STRINGS, patch_pair(good, (2, 0), (2, 1)), 2),
        "a wrong null count": (numbers, patch_pair(nulls, (3, 1), (3, 2)), 3),
        "a struct's child shorter than it": (nested, patch_pair(nest, (5, 0), (2, 0), 1), 5),
        "a struct's child without length": (nested, patch_pair(nest, (5, 0), (0, 0), 1), 5),
        "a list's child shorter than its offsets": (nested, patch_pair(nest, (10, 0), (9, 0)), 5),
        "a buffer before the body": (STRINGS, patch_pair(good, (0, 12), (-64, 12)), 2),
        "a buffer behind the body": (STRINGS, patch_pair(good, (0, 12), (2**40, 12)), 2),
        "a buffer of negative length": (STRINGS, patch_pair(good, (0, 12), (0, -12)), 2),
        "a buffer that is too short": (STRINGS, patch_pair(good, (0, 12), (0, 8)), 2),
        "overlapping buffers": (STRINGS, patch_pair(good, (16, 9), (0, 9)), 2),
        "an unaligned buffer": (STRINGS, patch_pair(good, (16, 9), (17, 9)), 2),
        "an empty data buffer under values": (numbers, patch_pair(nulls, (8, 24), (8, 0)), 3),
        "bytes behind the body": (STRINGS, good + bytes(8), 2),
        "metadata longer than the message": (STRINGS, patch(good, 4, struct.pack("<i", 2**31 - 8)), 2),
        "metadata of negative length": (STRINGS, patch(good, 4, struct.pack("<i", -8)), 2),
        "a root beyond the metadata": (STRINGS, patch(good, 8, struct.pack("<I", 2**32 - 1)), 2),
        "an older envelope": (STRINGS, good[4:], 2),
    }
    for name, message in foreign_messages().items():
        made[name] = (STRINGS, message, 2)
    return made


def foreign_messages() -> dict[str, bytes]:
    """Well-formed Arrow messages of other kinds."""

    def stream(data: Any, **options: Any) -> list[Any]:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, data.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
            writer.write_batch(data)
        return list(pa.ipc.MessageReader.open_stream(sink.getvalue()))

    data = record_batch(STRINGS, TWO)
    words = pa.record_batch([data.column(0).dictionary_encode()], names=["s"])
    return {
        "a schema": bytes(stream(data)[0].serialize()),
        "a dictionary batch": bytes(stream(words)[1].serialize()),
        "a batch of dictionary indices": bytes(stream(words)[2].serialize()),
        "inner compression by lz4": bytes(stream(data, compression="lz4")[1].serialize()),
        "inner compression by zstd": bytes(stream(data, compression="zstd")[1].serialize()),
    }


@pytest.mark.parametrize("name", sorted(hostile()))
def test_hostile_messages_are_malformed(name: str) -> None:
    schema, message, rows = hostile()[name]
    with pytest.raises(Malformed):
        from_message(message, schema.arrow, rows)


def test_truncated_messages_are_malformed() -> None:
    message = message_of(STRINGS, TWO)
    for length in range(len(message)):
        with pytest.raises(Malformed):
            from_message(message[:length], STRINGS.arrow, 2)


def test_a_forged_offset_kills_who_trusts_arrow() -> None:
    """The attack that `validate(full=True)` stops: without it, the process dies of the value's first reader."""
    script = """
import struct, pyarrow as pa
data = pa.record_batch([pa.array(["alpha", "beta"])], names=["s"])
message = bytearray(data.serialize())
body = 8 + struct.unpack_from("<i", message, 4)[0]
struct.pack_into("<ii", message, body + 4, 2**30, 2**31 - 1)
batch = pa.ipc.read_record_batch(pa.py_buffer(bytes(message)), data.schema)
batch.validate()
batch.column(0)[1].as_py()
"""
    died = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert died.returncode != 0
    message = message_of(STRINGS, TWO)
    forged = patch(message, body_start(message) + 4, struct.pack("<ii", 2**30, 2**31 - 1))
    with pytest.raises(Malformed):
        from_message(forged, STRINGS.arrow, 2)


def test_no_changed_byte_crashes() -> None:
    """Every byte of a message of many types set to four other values: refused, or a batch that is safe to use."""
    script = """
import pyarrow as pa
from tallystick.errors import Malformed
from tallystick.record.batch import open_batch, to_message
from tallystick.record.leaves import leaf_root
from tallystick.record.leaves import decode_row, encode_rows
from tallystick.record.schema import parse
schema = parse("a int8, b string, c list<string>, d struct<x bool, y list<int16>>, e decimal128(5, 2), f binary")
row = {"a": 1, "b": "x", "c": ["y", None], "d": {"x": True, "y": [7]}, "e": 1, "f": b"z"}
rows = [row, dict.fromkeys(row), row]
message = bytes(to_message(pa.RecordBatch.from_pylist(rows, schema=schema.arrow)))
accepted = 0
for i in range(len(message)):
    for value in {message[i] ^ 1, message[i] ^ 0x80, 0, 0xFF} - {message[i]}:
        forged = message[:i] + bytes([value]) + message[i + 1 :]
        try:
            batch = open_batch(forged, schema, 3)
        except Malformed:
            continue
        accepted += 1
        leaf_root(batch, bytes(48))
        for encoded in encode_rows(batch.data):
            decode_row(schema.arrow, encoded)
print(accepted)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 0


@examples(60)
@given(batch=batches(rows_max=8), data=st.data())
def test_random_damage(batch: Batch, data: st.DataObject) -> None:
    message = bytearray(to_message(batch.data))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(message) - 1))
        message[at] = data.draw(st.integers(0, 255))
    try:
        opened = open_batch(bytes(message), batch.schema, batch.rows)
    except Malformed:
        return
    leaf_root(opened, bytes(16 * opened.rows))
