"""Columns as users hold them (Arrow, pandas, polars, NumPy, lists) into columns of the topic's types.

A column is cast only where every value survives: integers into wider or fitting ones, integral floats into
integers, integers up to 2⁵³ into float64 (2²⁴ into float32), timestamps into a unit that loses nothing and into
another zone at the same instant, decimals without loss. Layouts (chunked, dictionary, large, view) are
normalised. Float64 into float32 rounds to the nearest, but never to infinity. Text is never parsed, and
numbers are never printed.

What stands for null: Arrow's nulls, polars' nulls, NumPy's NaT and masks, `None` in lists. In pandas, NaN in
a column of a float dtype stays NaN, a number like any other; None, NaN, NaT and NA in columns of objects,
strings, timestamps and pandas' nullable types are nulls. pandas' index is not a column.

pandas and polars are optional and recognised by the names of their modules: neither is ever imported here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tallystick.errors import Misuse
from tallystick.later import pc
from tallystick.record.gather_values import array_of, misuse
from tallystick.record.schema_text import show_type

_NAIVE_HINT = 'say which zone is meant: pandas .dt.tz_localize("UTC"), polars .dt.replace_time_zone("UTC")'
_NAN_HINT = "in pandas use the nullable dtype Int64, which keeps integers and marks what is missing"


def comes_from(value: object, package: str) -> bool:
    """Whether `value` is of a class of `package` or of a subclass of one."""
    return any(kind.__module__.partition(".")[0] == package for kind in type(value).__mro__)


def named_columns(source: Any) -> dict[str, Any] | None:
    """The columns of `source` by name, or `None` if it has none. Raises `Misuse` on a name given twice."""
    if isinstance(source, pa.Table | pa.RecordBatch):
        return _unique(source.schema.names, source.columns)
    if comes_from(source, "pandas") and hasattr(source, "columns"):
        return _unique(source.columns, (source.iloc[:, i] for i in range(len(source.columns))))
    if comes_from(source, "polars") and hasattr(source, "get_columns"):
        return _unique(source.columns, source.get_columns())
    if isinstance(source, Mapping):
        return _unique(source.keys(), source.values())
    return None


def _unique(names: Iterable[Any], columns: Iterable[Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for name, column in zip(names, columns, strict=True):
        if not isinstance(name, str):
            raise Misuse(f"expected columns named by str, found a name of type {type(name).__name__}")
        if name in named:
            raise Misuse(f'column "{name}": given twice')
        named[name] = column
    return named


def column_of(source: Any, field: pa.Field) -> pa.Array:
    """One array of exactly `field`'s type, contiguous and from its beginning. Raises `Misuse`.

    Whether a column may hold nulls is for the caller to check; inside nested values it is checked here.
    """
    try:
        array = _arrow_of(source, field)
    except (pa.ArrowException, TypeError, ValueError):
        raise misuse(None, field, f"{_kind_name(source)} that Arrow cannot read") from None
    if not isinstance(array, pa.Array):
        return array_of(array, field)
    try:
        array = _plain_layout(array)
        array.validate(full=True)
    except pa.ArrowException:
        raise misuse(None, field, "an invalid Arrow array") from None
    if not array.type.equals(field.type):
        return _cast(array, field)
    _check_nested(array, field.type, field, "")
    return pa.concat_arrays([array]) if array.offset else array


def _arrow_of(source: Any, field: pa.Field) -> Any:
    """`source` as one Arrow array of whatever type, or as a list of Python values."""
    if isinstance(source, pa.Array):
        return source
    if isinstance(source, list | tuple):
        return source
    if isinstance(source, pa.ChunkedArray):
        return _one(source)
    if comes_from(source, "pandas") and hasattr(source, "dtype"):
        return _pandas_arrow(source)
    if comes_from(source, "polars") and hasattr(source, "to_arrow"):
        # polars shows its column of Python objects to Arrow as their addresses in memory.
        return source.to_list() if str(source.dtype) == "Object" else source.to_arrow()
    if isinstance(source, np.ndarray):
        return _numpy_arrow(source, field)
    hint = "a single row goes in as a list of one dict" if isinstance(source, str | int | float) else None
    raise misuse(
        None, field, type(source).__name__, expected="a list, or an array of Arrow, NumPy, pandas or polars", hint=hint
    )


def _one(chunked: pa.ChunkedArray) -> pa.Array:
    if chunked.num_chunks == 1:
        return chunked.chunk(0)
    return pa.concat_arrays(chunked.chunks) if chunked.num_chunks else pa.array([], chunked.type)


def _pandas_arrow(series: Any) -> Any:
    if series.dtype == object:
        return [None if _missing(value) else value for value in series]
    # NumPy's floats as they are; from_pandas would make nulls of their NaN.
    array = pa.array(series.to_numpy() if series.dtype in (np.float64, np.float32, np.float16) else series)
    return _one(array) if isinstance(array, pa.ChunkedArray) else array


def _missing(value: Any) -> bool:
    """None, NaN, NaT and pandas' NA, without importing pandas."""
    if value is None or type(value).__name__ in ("NaTType", "NAType"):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def _numpy_arrow(source: Any, field: pa.Field) -> Any:
    if source.ndim != 1:
        raise misuse(None, field, f"a NumPy array of {source.ndim} dimensions", expected="one dimension")
    if not source.dtype.isnative:
        source = source.astype(source.dtype.newbyteorder("="))
    mask = np.ma.getmaskarray(source) if isinstance(source, np.ma.MaskedArray) else None
    values = np.asarray(source)
    if values.dtype == object:
        return [None if mask is not None and mask[i] else value for i, value in enumerate(values.tolist())]
    return pa.array(values, mask=mask)


def _kind_name(source: Any) -> str:
    return f"{type(source).__name__} of {getattr(source, 'dtype', 'an unknown type')}"


def _plain_layout(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_dictionary(kind):
        array.validate(full=True)
        return _plain_layout(array.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        array.validate(full=True)
        return _plain_layout(pc.run_end_decode(array))
    return array


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    _check_castable(array, field)
    if pa.types.is_nested(field.type) or pa.types.is_decimal(field.type):
        # Value by value, which is slow but rare. Only so is every element inside checked as strictly as outside;
        # and Arrow casts an integer to a decimal only if the widest integer would fit.
        return array_of(_values(array, field), field)
    try:
        done = array.cast(field.type)
    except pa.ArrowException:
        row = _first_failing(array, field.type)
        raise misuse(
            row, field, f"{array.type} that does not fit exactly", hint=_cast_hint(array, field.type)
        ) from None
    _check_float32(array, done, field)
    return done


def _values(array: pa.Array, field: pa.Field) -> list[object]:
    try:
        return array.to_pylist()  # type: ignore[no-any-return]
    except (pa.ArrowException, ValueError):
        raise misuse(None, field, f"{array.type} that does not fit exactly") from None


def _cast_hint(array: pa.Array, kind: pa.DataType) -> str | None:
    nan = pa.types.is_floating(array.type) and pa.types.is_integer(kind) and bool(pc.any(pc.is_nan(array)).as_py())
    return _NAN_HINT if nan else None


def _check_castable(array: pa.Array, field: pa.Field) -> None:
    source, target = array.type, field.type
    if pa.types.is_null(source):
        return
    if isinstance(source, pa.BaseExtensionType):
        raise misuse(None, field, f"the extension type {source}", hint="use its storage: column.storage")
    family = _family(target)
    if family is None or _family(source) not in (family, _ALSO.get(family)):
        raise misuse(None, field, str(source))
    if not pa.types.is_timestamp(target):
        return
    if target.tz is not None and source.tz is None:
        raise misuse(None, field, f"{source}, which has no zone", hint=_NAIVE_HINT)
    if target.tz is None and source.tz is not None:
        raise misuse(None, field, f"{source}, which has a zone", hint="drop the zone on purpose before")


# Which types, as `pa.types.is_<name>` knows them, are of one kind in different layouts.
_FAMILIES = {
    **{name: (name,) for name in ("integer", "floating", "decimal", "boolean", "date", "timestamp", "struct")},
    "string": ("string", "large_string", "string_view"),
    "binary": ("binary", "large_binary", "fixed_size_binary", "binary_view"),
    "list": ("list", "large_list", "fixed_size_list", "list_view", "large_list_view"),
}
# What may become a value of another family.
_ALSO = {"integer": "floating", "floating": "integer", "decimal": "integer"}


def _family(kind: pa.DataType) -> str | None:
    holds = ((family, getattr(pa.types, f"is_{name}")) for family, names in _FAMILIES.items() for name in names)
    return next((family for family, is_kind in holds if is_kind(kind)), None)


def _first_failing(array: pa.Array, kind: pa.DataType) -> int | None:
    """The first row that cannot be cast, by halving."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            array.slice(low, middle - low).cast(kind)
        except pa.ArrowException:
            high = middle
        else:
            low = middle
    return low


def _check_float32(before: pa.Array, after: pa.Array, field: pa.Field) -> None:
    if not pa.types.is_float32(field.type) or not pa.types.is_floating(before.type):
        return
    lost = pc.and_(pc.is_inf(after), pc.invert(pc.is_inf(before)))
    row = pc.index(lost, True).as_py()
    if row >= 0:
        raise misuse(row, field, f"{before.type} out of range")


def _check_nested(array: pa.Array, kind: pa.DataType, field: pa.Field, path: str) -> None:
    """No null where a nested field forbids it; Arrow itself does not check that."""
    if pa.types.is_list(kind):
        children = [(kind.value_field, array.flatten(), f"{path}[]")]
    elif pa.types.is_struct(kind):
        children = [
            (child, values, f"{path}.{child.name}")
            for child, values in zip(kind, array.drop_null().flatten(), strict=True)
        ]
    else:
        return
    for child, values, place in children:
        if values.null_count and not child.nullable:
            raise misuse(None, field, "no value", path=place, expected=f"{show_type(child.type)} not null")
        _check_nested(values, child.type, field, place)
