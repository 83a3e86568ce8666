"""Filters that Spark hands down (`DataSourceReader.pushFilters`): rows that a query does not want are not sent to it.

A filter is taken only where its meaning here is exactly Spark's, and given back otherwise: top-level columns of plain
types, and values that the column's type can hold. Spark's meaning is three-valued (a comparison with null is null, and
null drops the row), NaN equals itself and is greater than every number, zeros of both signs are equal, strings are
compared by their bytes. Of a filter that is given back Spark keeps its own copy, so taking fewer is never wrong.

Filters on where a row comes from are known before anything is opened: the driver passes over the parcels that they
exclude (`plan`). Those are still proved, but neither fetched nor opened.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as spark
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

_ORDERS: dict[type, Any] = {
    spark.GreaterThan: pc.greater,
    spark.GreaterThanOrEqual: pc.greater_equal,
    spark.LessThan: pc.less,
    spark.LessThanOrEqual: pc.less_equal,
}
_TEXTS: dict[type, Any] = {
    spark.StringStartsWith: pc.starts_with,
    spark.StringEndsWith: pc.ends_with,
    spark.StringContains: pc.match_substring,
}
_PLAIN = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date,
    pa.types.is_timestamp,
)


class Filters:
    """The filters of a query that are applied here: all of them must hold."""

    def __init__(self, wanted: StructType) -> None:
        self._arrow = to_arrow_schema(wanted, timezone="UTC")
        self._taken: list[tuple[str, spark.Filter]] = []

    def take(self, one: spark.Filter) -> bool:
        """Whether this filter is applied here from now on."""
        plain = one.child if isinstance(one, spark.Not) else one
        path: tuple[str, ...] = getattr(plain, "attribute", ())
        if len(path) != 1 or path[0] not in self._arrow.names or not _is_exact(plain, self._arrow.field(path[0]).type):
            return False
        self._taken.append((path[0], one))
        return True

    def mask(self, columns: Mapping[str, Any]) -> Any | None:
        """Which rows pass the filters of these columns (true, false or null for each); None where there are none."""
        found = [_holds(one, columns[name]) for name, one in self._taken if name in columns]
        return reduce(pc.and_kleene, found) if found else None

    def apply(self, batch: Any) -> Any:
        """The rows of a `pa.RecordBatch` of the wanted columns that pass."""
        mask = self.mask(dict(zip(batch.schema.names, batch.columns, strict=True))) if self._taken else None
        return batch if mask is None else batch.filter(mask)


def _is_exact(one: spark.Filter, type_: Any) -> bool:
    if not any(is_type(type_) for is_type in _PLAIN):
        return False
    if isinstance(one, (spark.IsNull, spark.IsNotNull)):
        return True
    if type(one) in _TEXTS:
        return bool(pa.types.is_string(type_))
    if isinstance(one, spark.In):
        return bool(one.value) and all(_is_held(value, type_) for value in one.value)
    if isinstance(one, (spark.EqualTo, spark.EqualNullSafe)):
        return _is_held(one.value, type_)
    return type(one) in _ORDERS and not pa.types.is_boolean(type_) and _is_held(getattr(one, "value", None), type_)


def _is_held(value: Any, type_: Any) -> bool:
    """Whether a column of this type can hold exactly this value, which is not null."""
    if value is None or (isinstance(value, bool) != pa.types.is_boolean(type_)):
        return False
    if isinstance(value, datetime) and (value.tzinfo is None) != (getattr(type_, "tz", None) is None):
        return False
    try:
        held = pa.scalar(value, type_).as_py()
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return bool(held == value) or _is_nan(value)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _holds(one: spark.Filter, column: Any) -> Any:
    """Three-valued: true, false or null for each row."""
    match one:
        case spark.Not(child):
            return pc.invert(_holds(child, column))
        case spark.IsNull():
            return pc.is_null(column)
        case spark.IsNotNull():
            return pc.is_valid(column)
        case spark.EqualNullSafe(_, value):
            return pc.fill_null(_equal(column, value), False)
        case spark.EqualTo(_, value):
            return _equal(column, value)
        case spark.In(_, values):
            return _is_in(column, values)
        case spark.StringStartsWith(_, text) | spark.StringEndsWith(_, text) | spark.StringContains(_, text):
            return _TEXTS[type(one)](column, text)
    return _ordered(one, column)


def _equal(column: Any, value: Any) -> Any:
    return pc.is_nan(column) if _is_nan(value) else pc.equal(column, pa.scalar(value, column.type))


def _is_in(column: Any, values: Sequence[Any]) -> Any:
    if pa.types.is_floating(column.type):  # a set would tell the zeros apart
        return reduce(pc.or_, [_equal(column, value) for value in values])
    found = pc.is_in(column, value_set=pa.array(values, column.type))
    return pc.if_else(pc.is_valid(column), found, pa.scalar(None, pa.bool_()))


def _ordered(one: Any, column: Any) -> Any:
    """An order in which NaN is the greatest of all."""
    if not pa.types.is_floating(column.type):
        return _ORDERS[type(one)](column, pa.scalar(one.value, column.type))
    is_nan, wants_greater = pc.is_nan(column), isinstance(one, (spark.GreaterThan, spark.GreaterThanOrEqual))
    if not _is_nan(one.value):
        found = _ORDERS[type(one)](column, pa.scalar(one.value, column.type))
        return pc.or_(found, is_nan) if wants_greater else found
    if isinstance(one, spark.GreaterThanOrEqual):
        return is_nan
    if isinstance(one, spark.LessThan):
        return pc.invert(is_nan)
    return pc.equal(is_nan, is_nan) if isinstance(one, spark.LessThanOrEqual) else pc.and_not(is_nan, is_nan)
