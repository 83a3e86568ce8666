"""Rows for people and for JSON: what `prove` and `verify` print of a record that was read from its bytes."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

_NO_TIME = -(2**63)  # numpy's "not a time"; to Arrow a timestamp like any other


def readable(arrow_schema: Any, row: dict[str, Any]) -> dict[str, Any]:
    """`row`, as `decode_row` gives it, in values that JSON holds: times in ISO 8601, bytes in hexadecimal."""
    return {field.name: _value(field.type, row[field.name]) for field in arrow_schema}


def _value(type_: Any, value: Any) -> Any:
    if value is None:
        return None
    if pa.types.is_date32(type_):
        return str(np.datetime64(value, "D"))
    if pa.types.is_timestamp(type_):
        return value if value == _NO_TIME else f"{np.datetime64(value, type_.unit)}{'Z' if type_.tz else ''}"
    if pa.types.is_list(type_):
        return [_value(type_.value_type, element) for element in value]
    if pa.types.is_struct(type_):
        return readable(type_, value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
