"""Python values into one column, strictly.

Arrow's own conversion is obliging: it cuts 1.5 down to 1, drops microseconds, takes bytes for text, makes
infinity of what float32 cannot hold, ignores unknown keys of a struct. Each would be a silent change of what
the publisher meant to seal. Here a value either arrives whole or is a `Misuse`; the one rounding that is
meant is that of a Python float to the nearest float32. NumPy's scalars and subclasses of the plain types
count as what they hold.

Messages name row, column and type but never quote a value: rows are what a topic keeps secret, and errors
end in logs. For the same reason Arrow's own errors, which do quote values, are not chained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from tallystick.errors import Misuse
from tallystick.record.schema_text import show_type

Taker = Callable[[Any], object]

_TICKS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}  # microseconds
_EPOCH = datetime(1970, 1, 1)  # in UTC, without saying so
_FEW_MAX = 4_096  # values; by then the way through compiled code is open
_INT32_MAX = (1 << 31) - 1
_ZONE_HINT = "say which instant is meant: value.replace(tzinfo=…) or value.astimezone()"


class Wrong(Exception):
    """A value that its column cannot hold: what was found, and where inside a nested value."""

    def __init__(self, found: str, *, expected: str | None = None, hint: str | None = None) -> None:
        super().__init__(found)
        self.found = found
        self.expected = expected
        self.hint = hint
        self.path = ""

    def inside(self, step: str) -> Wrong:
        self.path = step + self.path
        return self


class BadRow(Misuse):
    """A row that its topic cannot hold. `row` is its place in what was given, from 0; `complaint` says the rest."""

    def __init__(self, row: int, complaint: str, *, hint: str | None = None) -> None:
        super().__init__(f"row {row}{complaint}", hint=hint)
        self.row, self.complaint = row, complaint


def misuse(row: int | None, field: pa.Field, found: str, *, path: str = "", **more: Any) -> Misuse:
    """The one wording of every complaint about a value."""
    expected, hint = more.get("expected") or show_type(field.type), more.get("hint")
    complaint = f'column "{field.name}{path}": expected {expected}, found {found}'
    return Misuse(complaint, hint=hint) if row is None else BadRow(row, f", {complaint}", hint=hint)


def array_of(values: Sequence[object], field: pa.Field) -> pa.Array:
    """One array of `field`'s type from Python values, `None` for null. Raises `Misuse` naming the row.

    Whether the column may hold nulls is for the caller to check; inside nested values it is checked here.
    """
    array = _plain_array(values, field.type)
    if array is None:
        array = _arrow_array(_taken(values, field), field)
    return array


def _plain_array(values: Sequence[object], kind: pa.DataType) -> pa.Array | None:
    """The quick way, for values all of the one type that Arrow converts as strictly as we do."""
    plain = _PLAIN.get(kind)
    if plain is None or not set(map(type, values)) <= {plain, type(None)}:
        return None
    try:
        array = _few(values, kind)
        if array is None:
            array = pa.array(values, kind)
    except (pa.ArrowException, OverflowError, UnicodeError):
        return None
    if not isinstance(array, pa.Array):
        return None
    # An infinity in float32 may have been finite before: then it takes the way on which that is seen.
    if pa.types.is_float32(kind) and np.isinf(array.to_numpy(zero_copy_only=False)).any():
        return None
    return array


def _few(values: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """The array of a few plain values (or None), laid out here, or None for many, and for kinds that are not plain.

    Arrow would import pandas for them, where that is installed, to see whether a list is a Series: half a second of a
    core, in a process that may have ten rows to publish. Raises as Arrow does.
    """
    if not 0 < len(values) <= _FEW_MAX:
        return None
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        pieces = [b"" if value is None else value if pa.types.is_binary(kind) else value.encode() for value in values]
        ends = np.fromiter(accumulate(map(len, pieces), initial=0), np.int64, len(pieces) + 1)
        if ends[-1] > _INT32_MAX:
            return None
        buffers = [ends.astype(np.int32).tobytes(), b"".join(pieces)]
    elif pa.types.is_boolean(kind):
        buffers = [_bits([value is True for value in values])]
    elif pa.types.is_timestamp(kind):
        if not set(map(type, values)) <= {datetime, type(None)}:  # a subclass may hold more than it shows
            return None
        buffers = [np.array([0 if value is None else _ticks(value, kind.unit) for value in values], np.int64).tobytes()]
    elif pa.types.is_date32(kind):
        days = [0 if value is None else value.toordinal() - _EPOCH.toordinal() for value in values]
        buffers = [np.array(days, np.int32).tobytes()]
    elif kind in _PLAIN:
        with np.errstate(over="ignore"):
            numbers = np.array([0 if value is None else value for value in values], _number_type(kind))
        buffers = [numbers.tobytes()]
    else:
        return None
    present = [value is not None for value in values]
    validity = None if all(present) else pa.py_buffer(_bits(present))
    return pa.Array.from_buffers(kind, len(values), [validity, *map(pa.py_buffer, buffers)])


def _number_type(kind: pa.DataType) -> str:
    """Numpy's name of it. Arrow's own `to_pandas_dtype` imports pandas in version 20."""
    return {"float": "f4", "double": "f8"}.get(str(kind), str(kind))


def _bits(flags: list[bool]) -> bytes:
    return np.packbits(np.array(flags, bool), bitorder="little").tobytes()


def _ticks(instant: datetime, unit: str) -> int:
    """Since 1970, in UTC where the instant has a zone; it is exact in the unit."""
    since = instant - (_EPOCH if instant.tzinfo is None else _EPOCH.replace(tzinfo=UTC))
    microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return microseconds * 1_000 if unit == "ns" else microseconds // _TICKS[unit]


def _taken(values: Sequence[object], field: pa.Field) -> list[object]:
    take = taker(field.type)
    taken: list[object] = []
    for row, value in enumerate(values):
        try:
            taken.append(None if value is None else take(value))
        except Wrong as wrong:
            raise misuse(row, field, wrong.found, path=wrong.path, expected=wrong.expected, hint=wrong.hint) from None
        except Exception as error:  # a foreign class failed in one of its own methods
            found = f"{_name(value)}, which raised {type(error).__name__}"
            raise misuse(row, field, found) from error
    return taken


def _arrow_array(taken: list[object], field: pa.Field) -> pa.Array:
    try:
        array = _few(taken, field.type)
        if array is None:
            array = pa.array(taken, field.type)
    except (pa.ArrowException, OverflowError, ValueError):
        for row, value in enumerate(taken):
            try:
                pa.array([value], field.type)
            except (pa.ArrowException, OverflowError, ValueError):
                raise misuse(row, field, f"{_name(value)} that it cannot hold exactly") from None
        raise misuse(None, field, "values that do not fit together") from None
    if isinstance(array, pa.ChunkedArray):
        raise misuse(None, field, "more than 2 GiB in one batch", hint="publish fewer rows at once")
    return array


def _name(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def key_name(key: Any) -> str:
    """How a message names a key that should be there under no name."""
    return f'"{str.__str__(key)}"' if issubclass(type(key), str) else f"of type {_name(key)}"


def taker(kind: pa.DataType) -> Taker:
    """The function that takes one value other than `None` for a column of type `kind`, or raises `Wrong`."""
    if pa.types.is_integer(kind):
        return _integer_taker(kind)
    if pa.types.is_timestamp(kind):
        return _timestamp_taker(kind)
    if pa.types.is_list(kind):
        return _list_taker(kind.value_field)
    if pa.types.is_struct(kind):
        return _struct_taker(kind)
    if pa.types.is_decimal128(kind):
        return _take_decimal
    take = _TAKERS.get(kind)
    if take is None:
        raise Misuse(f"a topic cannot hold the type {kind}")
    return take


# The questions below are put to `type(value)`, never to `value.__class__`, which foreign code may answer; and
# plain values are read through the plain type's own methods, which a subclass may have overridden.


def _as_int(value: Any) -> int | None:
    kind = type(value)
    if issubclass(kind, int) and kind is not bool:
        return int.__index__(value)
    return int(value) if issubclass(kind, np.integer) else None


def _integer_taker(kind: pa.DataType) -> Taker:
    bits = kind.bit_width
    low, high = (
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if pa.types.is_signed_integer(kind) else (0, (1 << bits) - 1)
    )

    def take(value: Any) -> object:
        integer = _as_int(value)
        if integer is None:
            raise Wrong(_name(value))
        if not low <= integer <= high:
            raise Wrong("int out of range")
        return integer

    return take


def _take_float64(value: Any) -> object:
    kind = type(value)
    if issubclass(kind, float):
        return float.__float__(value)
    if issubclass(kind, np.floating) and value.dtype.itemsize < 8:
        return float(value)
    integer = _as_int(value)
    if integer is None:
        raise Wrong(_name(value))
    try:
        number = float(integer)
    except OverflowError:
        raise Wrong("int out of range") from None
    if number != integer:
        raise Wrong("int that is no exact float")
    return number


def _take_float32(value: Any) -> object:
    number = _take_float64(value)
    assert isinstance(number, float)
    with np.errstate(over="ignore"):
        narrow = float(np.float32(number))
    if math.isinf(narrow) and not math.isinf(number):
        raise Wrong(f"{_name(value)} out of range")
    if narrow != number and _as_int(value) is not None:
        raise Wrong("int that is no exact float")
    return narrow


def _take_bool(value: Any) -> object:
    if type(value) is bool or issubclass(type(value), np.bool_):
        return bool(value)
    raise Wrong(_name(value))


def _take_string(value: Any) -> object:
    if not issubclass(type(value), str):
        raise Wrong(_name(value))
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Wrong("str with a lone surrogate, which is no text") from None
    return text


def _take_bytes(value: Any) -> object:
    if not issubclass(type(value), bytes | bytearray | memoryview):
        raise Wrong(_name(value))
    return b"".join((value,))


def _take_date(value: Any) -> object:
    if not issubclass(type(value), date):
        raise Wrong(_name(value))
    if issubclass(type(value), datetime):
        raise Wrong(_name(value), hint="drop the time on purpose: value.date()")
    return value


def _timestamp_taker(kind: pa.DataType) -> Taker:
    tick, nanoseconds, zoned = _TICKS[kind.unit], kind.unit == "ns", kind.tz is not None

    def take(value: Any) -> object:
        if not issubclass(type(value), datetime) or type(value).__name__ == "NaTType":
            raise Wrong(_name(value), expected=f"a datetime for {show_type(kind)}")
        aware = value.utcoffset() is not None
        if zoned and not aware:
            raise Wrong("a datetime without a zone", hint=_ZONE_HINT)
        if aware and not zoned:
            raise Wrong("a datetime with a zone", hint="drop it on purpose: value.replace(tzinfo=None)")
        instant = value.astimezone(UTC) if aware else value
        # pandas' Timestamp is a datetime with nanoseconds beside its microseconds.
        if instant.microsecond % tick or (getattr(instant, "nanosecond", 0) and not nanoseconds):
            raise Wrong("a datetime of finer resolution")
        return instant

    return take


def _take_decimal(value: Any) -> object:
    if issubclass(type(value), Decimal):
        return value
    integer = _as_int(value)
    if integer is None:
        raise Wrong(_name(value))
    return integer


def _list_taker(element: pa.Field) -> Taker:
    take_element = _child_taker(element)

    def take(value: Any) -> object:
        if issubclass(type(value), np.ndarray):
            value = value.tolist()
        if not issubclass(type(value), list | tuple):
            raise Wrong(_name(value))
        taken = []
        for i, item in enumerate(tuple(value)):
            try:
                taken.append(take_element(item))
            except Wrong as wrong:
                raise wrong.inside(f"[{i}]") from None
        return taken

    return take


def _struct_taker(kind: pa.DataType) -> Taker:
    takers = {child.name: _child_taker(child) for child in kind}

    def take(value: Any) -> object:
        if not issubclass(type(value), dict):
            raise Wrong(_name(value))
        given = {}
        for key, item in list(dict.items(value)):
            name = str.__str__(key) if issubclass(type(key), str) else None
            if name is None or name not in takers:
                raise Wrong(f"the unknown key {key_name(key)}")
            given[name] = item
        taken = {}
        for name, take_child in takers.items():
            try:
                taken[name] = take_child(given.get(name))
            except Wrong as wrong:
                raise wrong.inside(f".{name}") from None
        return taken

    return take


def _child_taker(child: pa.Field) -> Taker:
    take = taker(child.type)
    expected = show_type(child.type)

    def take_child(value: Any) -> object:
        if value is None:
            if not child.nullable:
                raise Wrong("no value", expected=f"{expected} not null")
            return None
        try:
            return take(value)
        except Wrong as wrong:
            wrong.expected = wrong.expected or expected
            raise

    return take_child


_TAKERS: dict[pa.DataType, Taker] = {
    pa.float64(): _take_float64,
    pa.float32(): _take_float32,
    pa.bool_(): _take_bool,
    pa.string(): _take_string,
    pa.binary(): _take_bytes,
    pa.date32(): _take_date,
}
_PLAIN: dict[pa.DataType, type] = {
    **{getattr(pa, f"{sign}int{bits}")(): int for sign in ("", "u") for bits in (8, 16, 32, 64)},
    pa.float64(): float,
    pa.float32(): float,
    pa.bool_(): bool,
    pa.string(): str,
    pa.binary(): bytes,
    pa.date32(): date,
}
