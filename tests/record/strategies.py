"""Hypothesis strategies for schemas and batches of every type that a topic may use."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tallystick.record.batch import Batch
from tallystick.record.schema import Schema
from tallystick.record.types import simple_types

SIMPLE_TYPES = st.sampled_from(list(simple_types().values()))
TIMESTAMPS = st.builds(
    pa.timestamp, st.sampled_from(["s", "ms", "us", "ns"]), st.sampled_from([None, "UTC", "Europe/Berlin"])
)
DECIMALS = st.integers(1, 38).flatmap(
    lambda precision: st.integers(0, precision).map(lambda scale: pa.decimal128(precision, scale))
)
FLAT_TYPES = st.one_of(SIMPLE_TYPES, SIMPLE_TYPES, TIMESTAMPS, DECIMALS)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=3)
    return st.one_of(
        st.builds(lambda t, nullable: pa.list_(pa.field("item", t, nullable)), inner, st.booleans()),
        fields.map(lambda fs: pa.struct([pa.field(f"f{i}", t, nullable) for i, (t, nullable) in enumerate(fs)])),
    )


TYPES = st.recursive(FLAT_TYPES, _nested, max_leaves=5)
NAMES = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=6)


@st.composite
def schemas(draw: st.DrawFn, types: st.SearchStrategy[Any] = TYPES, columns_max: int = 10) -> Schema:
    names = draw(st.lists(NAMES, min_size=1, max_size=columns_max, unique=True))
    fields = [pa.field(name, draw(types), nullable=draw(st.booleans())) for name in names]
    groups: tuple[tuple[str, ...], ...] = ()
    if draw(st.booleans()) and len(names) > 1:
        cut = draw(st.integers(1, len(names) - 1))
        groups = (tuple(names[cut:]), tuple(names[:cut]))
    return Schema(pa.schema(fields), draw(st.integers(1, 5)), groups)


def values(type_: Any) -> st.SearchStrategy[Any]:
    """Values that `pa.array` takes for `type_`."""
    if pa.types.is_timestamp(type_):
        return st.integers(-(2**63), 2**63 - 1)
    if pa.types.is_date32(type_):
        return st.integers(-(2**31), 2**31 - 1)
    if pa.types.is_integer(type_):
        bits = type_.bit_width
        return (
            st.integers(0, 2**bits - 1)
            if str(type_).startswith("u")
            else st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        )
    if pa.types.is_float32(type_):
        return st.floats(width=32)
    if pa.types.is_float64(type_):
        return st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0]) | st.floats()
    if pa.types.is_boolean(type_):
        return st.booleans()
    if pa.types.is_string(type_):
        return st.text(st.characters(codec="utf-8"), max_size=40)
    if pa.types.is_binary(type_):
        return st.binary(max_size=40) | st.binary(min_size=100, max_size=200)
    if pa.types.is_decimal128(type_):
        return st.integers(1 - 10**type_.precision, 10**type_.precision - 1).map(
            lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -type_.scale))
        )
    if pa.types.is_list(type_):
        return st.lists(field_values(type_.value_field), max_size=4)
    return st.fixed_dictionaries({child.name: field_values(child) for child in type_})


def field_values(field: Any) -> st.SearchStrategy[Any]:
    return st.none() | values(field.type) if field.nullable else values(field.type)


def array(field: Any, column: list[Any]) -> Any:
    """A column of `field`; `pa.array` takes dates and timestamps as integers, at any depth."""
    return pa.array(column, field.type)


@st.composite
def batches(
    draw: st.DrawFn, schema: Schema | None = None, rows_max: int = 40, types: st.SearchStrategy[Any] = TYPES
) -> Batch:
    """A batch, often a slice of a larger one, so that arrays with offsets are seen too."""
    schema = schema if schema is not None else draw(schemas(types))
    rows = draw(st.integers(0, rows_max))
    few = draw(st.integers(1, 4))  # a short list of values per column, repeated: keeps drawing cheap
    columns = []
    for field in schema.arrow:
        pool = draw(st.lists(field_values(field), min_size=few, max_size=few))
        columns.append(array(field, [pool[(i * 7 + i // 3) % few] for i in range(rows)]))
    data = pa.RecordBatch.from_arrays(columns, schema=schema.arrow)
    first = draw(st.integers(0, rows))
    return Batch.of(schema, data.slice(first, draw(st.integers(0, rows - first))))
