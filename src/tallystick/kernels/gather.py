"""The fast path from plain dicts to columns: a compiled loop over CPython's C interface.

It is fast because it makes no Python object, and safe because of four rules:

1. Only functions of the stable ABI are called, by name; no object's layout is read.
2. The GIL is held throughout, and nothing that the loop calls on a value can run Python code: rows are exact
   dicts in a list of our own, a lookup is made only in a dict whose keys are all exact strings, a conversion
   to a number only on a value whose exact type was checked, and the one to text refuses what is no string
   without asking it. Borrowed references therefore stay good.
3. The one call that may raise (a string with a lone surrogate, or something that is no string) ends the pass
   at once, because making an exception can start the garbage collector and with it foreign code. The pass
   begins again without that column.
4. Whatever is not plain is not judged here. A column with an odd value is handed back (`HANDED_BACK`), rows
   that are odd as a whole end the attempt; the Python path in `gather.py` then decides, and words the errors.

Unset places are zero, never what lay in memory before: they would be sealed and sent.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import types

from tallystick.kernels.jit import compiled
from tallystick.kernels.memory import load1, store1, store2, store4, store8, store_float4, store_float8

HANDED_BACK, BOOL, FLOAT64, FLOAT32, INT8, INT16, INT32, INT64, STRING = range(9)
DONE, AGAIN, ODD = range(3)

# What the loop knows of a column. `data`, `valid` and `text` are places in the arena, in bytes; a string column's
# characters have `room` bytes there.
COLUMN = np.dtype(
    [(name, np.int64) for name in ("name", "kind", "low", "high", "data", "valid", "text", "room", "used", "nulls")]
)
# The layout: the keys of one row in their order, which other rows likely share: address and column.
PLACE = np.dtype([("key", np.int64), ("column", np.int64)])
# The exact types and the singletons, by address.
KNOWN = np.array([tuple(map(id, (dict, str, int, float, None, True, False)))], dtype=[
    (name, np.int64) for name in ("dict", "str", "int", "float", "none", "true", "false")
])  # fmt: skip

Columns = npt.NDArray[np.void]  # of the dtype COLUMN

_INTEGERS = {8: INT8, 16: INT16, 32: INT32, 64: INT64}
_WIDTHS = {HANDED_BACK: 0, FLOAT64: 8, FLOAT32: 4, INT8: 1, INT16: 2, INT32: 4, INT64: 8}  # bytes
_FLOAT64_EXACT = 2**53  # every int up to here is a float64
_FLOAT32_EXACT = 2**24
_TEXT_BYTES_MAX = 2**31 - 1  # string offsets are 32-bit
_TEXT_GUESS_MAX = 256  # bytes a row for the first attempt; one long string must not size all later batches
_MODELS_MAX = 16  # rows among which the layout is looked for
_TEXT_STEP = 8  # bytes by which the guess moves: batches of one kind then share one frame
_FRAMES_MAX = 16  # sizes of batches for which the arena's frame is kept
_ATTEMPTS_MAX = 3  # other threads may lengthen strings between two attempts

_int = types.intp
_list_get = types.ExternalFunction("PyList_GetItem", _int(_int, _int))
_dict_size = types.ExternalFunction("PyDict_Size", _int(_int))
_dict_next = types.ExternalFunction("PyDict_Next", types.int32(_int, _int, _int, _int))
_dict_get = types.ExternalFunction("PyDict_GetItemWithError", _int(_int, _int))
_long_get = types.ExternalFunction("PyLong_AsLongLongAndOverflow", types.int64(_int, _int))
_float_get = types.ExternalFunction("PyFloat_AsDouble", types.float64(_int))
_text_get = types.ExternalFunction("PyUnicode_AsUTF8AndSize", _int(_int, _int))
_type_new = types.ExternalFunction("PyObject_Type", _int(_int))
_decref = types.ExternalFunction("Py_DecRef", types.void(_int))
_error_clear = types.ExternalFunction("PyErr_Clear", types.void())
_memcpy = types.ExternalFunction("memcpy", _int(_int, _int, _int))
_memset = types.ExternalFunction("memset", _int(_int, types.int32, _int))


def available() -> bool:
    """Whether this interpreter keeps the promises that the loop relies on."""
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    return bool(sys.implementation.name == "cpython" and gil and sys.byteorder == "little" and sys.maxsize > 2**32)


@compiled(inline="always")
def _type_of(value: Any) -> Any:
    kind = _type_new(value)
    _decref(kind)  # the value itself keeps its type alive
    return kind


@compiled()
def _find_in_order(row: Any, layout: Any, values: Any, answer: Any) -> Any:
    """The row's values, if its keys are the layout's very objects in the same order; some may be left out."""
    answer[0] = 0
    at = answer.ctypes.data
    place = 0
    while _dict_next(row, at, at + 8, at + 16) != 0:
        while place < layout.size and layout[place].key != answer[1]:
            place += 1
        if place == layout.size:
            return False
        values[layout[place].column] = answer[2]
        place += 1
    return True


@compiled()
def _find_by_name(row: Any, columns: Any, values: Any, answer: Any, str_type: Any) -> Any:
    """The row's values by lookup; false if a key is unknown or is not exactly a string."""
    answer[0] = 0
    at = answer.ctypes.data
    while _dict_next(row, at, at + 8, at + 16) != 0:
        if _type_of(answer[1]) != str_type:
            return False
    found = 0
    for c in range(columns.size):
        values[c] = _dict_get(row, columns[c].name)
        if values[c] != 0:
            found += 1
    return found == _dict_size(row)


@compiled()
def _prepare(columns: Any, count: Any, arena: Any, data_bytes: Any) -> None:
    """Every value zero, every row present."""
    _memset(arena, 0, data_bytes)
    for c in range(columns.size):
        valid = arena + columns[c].valid
        _memset(valid, 255, count >> 3)
        if count & 7:
            store1(valid + (count >> 3), (1 << (count & 7)) - 1)


@compiled()
def _pull(rows: Any, count: Any, exact: Any, layout: Any, columns: Any, arena: Any, data_bytes: Any) -> Any:
    known = exact[0]
    answer = np.zeros(4, np.int64)  # where C leaves what it answers beside the return value
    overflow = answer.ctypes.data + 24
    values = np.zeros(columns.size, np.int64)
    _prepare(columns, count, arena, data_bytes)
    for i in range(count):
        row = _list_get(rows, i)
        if _type_of(row) != known.dict:
            return ODD
        values[:] = 0
        if not _find_in_order(row, layout, values, answer) and not _find_by_name(
            row, columns, values, answer, known.str
        ):
            return ODD
        for c in range(columns.size):
            column = columns[c]
            kind = column.kind
            if kind == HANDED_BACK:
                continue
            value, data = values[c], arena + column.data
            if value == 0 or value == known.none:
                column.nulls += 1
                bits = arena + column.valid + (i >> 3)
                store1(bits, load1(bits) & ~(1 << (i & 7)))
                if kind == STRING:
                    store4(data + 4 * i + 4, column.used)
            elif kind == STRING:
                text = _text_get(value, overflow)
                if text == 0:
                    _error_clear()
                    column.kind = HANDED_BACK
                    return AGAIN
                length = answer[3]
                if column.used + length <= column.room:
                    _memcpy(arena + column.text + column.used, text, length)
                column.used += length
                store4(data + 4 * i + 4, column.used)
            elif kind == BOOL:
                if value == known.true:
                    store1(data + (i >> 3), load1(data + (i >> 3)) | (1 << (i & 7)))
                elif value != known.false:
                    column.kind = HANDED_BACK
            elif kind in (FLOAT64, FLOAT32):
                exact_type = _type_of(value)
                if exact_type == known.float:
                    number = _float_get(value)
                elif exact_type == known.int:
                    integer = _long_get(value, overflow)
                    limit = _FLOAT64_EXACT if kind == FLOAT64 else _FLOAT32_EXACT
                    if np.int32(answer[3]) != 0 or integer > limit or integer < -limit:
                        column.kind = HANDED_BACK
                        continue
                    number = float(integer)
                else:
                    column.kind = HANDED_BACK
                    continue
                if kind == FLOAT64:
                    store_float8(data + 8 * i, number)
                else:
                    if np.isinf(np.float32(number)) and not np.isinf(number):
                        column.kind = HANDED_BACK
                    store_float4(data + 4 * i, number)
            else:
                if _type_of(value) != known.int:
                    column.kind = HANDED_BACK
                    continue
                integer = _long_get(value, overflow)
                if np.int32(answer[3]) != 0 or integer < column.low or integer > column.high:
                    column.kind = HANDED_BACK
                elif kind == INT64:
                    store8(data + 8 * i, integer)
                elif kind == INT32:
                    store4(data + 4 * i, integer)
                elif kind == INT16:
                    store2(data + 2 * i, integer)
                else:
                    store1(data + i, integer)
    return DONE


def _kind(kind: pa.DataType) -> int:
    if pa.types.is_integer(kind):
        return _INTEGERS[kind.bit_width]
    table = {pa.bool_(): BOOL, pa.float64(): FLOAT64, pa.float32(): FLOAT32, pa.string(): STRING}
    return table.get(kind, HANDED_BACK)


def _bounds(kind: pa.DataType) -> tuple[int, int]:
    """What an integer column holds, as far as the loop reads it: above 2⁶³ it hands the column back."""
    if not pa.types.is_integer(kind):
        return 0, 0
    if pa.types.is_signed_integer(kind):
        return -(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1
    return 0, min((1 << kind.bit_width) - 1, 2**63 - 1)


def _aligned(size: int) -> int:
    return (size + 63) & ~63


class _Layout(NamedTuple):
    """The keys of a row in their order. The list keeps alive the keys whose addresses the places hold."""

    keys: list[str]
    places: npt.NDArray[np.void]


class Puller:
    """The compiled loop, prepared for one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._types = list(schema.types)
        self._names: list[str] = list(schema.names)  # keeps the names alive whose addresses the columns hold
        self._index = {name: c for c, name in enumerate(self._names)}
        self._columns = np.zeros(len(self._names), COLUMN)
        self._columns["name"] = [id(name) for name in self._names]
        self._columns["kind"] = [_kind(kind) for kind in self._types]
        self._columns["low"], self._columns["high"] = zip(*map(_bounds, self._types), strict=True)
        self._text_guess = 32  # bytes a row and string column, learnt from batch to batch
        self._frame = lru_cache(_FRAMES_MAX)(self._make_frame)
        self._layout = _Layout([], np.empty(0, PLACE))

    def pull(self, rows: list[Any]) -> list[pa.Array | None] | None:
        """One array per column, `None` for each handed back; or `None` for all, if the rows are not plain.

        `rows` must be a list that nobody else holds.
        """
        layout = self._layout_of(rows)
        if layout is None:
            return None
        frame = self._frame(len(rows), self._text_guess)
        # At most one attempt is lost to each string column with a value that is no proper string.
        for _ in range(_ATTEMPTS_MAX + len(self._names)):
            columns, arena = frame.columns.copy(), pa.allocate_buffer(frame.size)
            status = _pull(id(rows), len(rows), KNOWN, layout.places, columns, arena.address, frame.data_bytes)
            longest = int(columns["used"].max())
            if status == ODD or longest > _TEXT_BYTES_MAX:
                return None
            if status == DONE and (columns["used"] <= columns["room"]).all():
                guess = longest // len(rows) // _TEXT_STEP * _TEXT_STEP + 2 * _TEXT_STEP
                self._text_guess = min(_TEXT_GUESS_MAX, guess)
                return frame.arrays(self._types, columns, arena)
            columns["room"] = np.maximum(columns["room"], columns["used"])
            frame = _Frame(columns, len(rows))
        return None

    def _layout_of(self, rows: list[Any]) -> _Layout | None:
        """That of the row with most keys among the first, most often the same as last time, or None if it is odd."""
        models = [row for row in rows[:_MODELS_MAX] if type(row) is dict]
        if not models:
            return None
        model = max(models, key=len)
        keys = list(model)
        layout = self._layout  # another thread may put its own there
        if [*map(id, keys)] != [*map(id, layout.keys)]:
            if any(type(key) is not str or key not in self._index for key in keys):
                return None
            layout = self._layout = _Layout(keys, np.array([(id(key), self._index[key]) for key in keys], PLACE))
        return layout

    def _make_frame(self, count: int, text_bytes: int) -> _Frame:
        columns = self._columns.copy()
        columns["room"][columns["kind"] == STRING] = text_bytes * count
        return _Frame(columns, count)


class _Frame:
    """Where the columns of a batch lie in its arena, one block of memory: values, then validity, then characters."""

    def __init__(self, columns: Columns, count: int) -> None:
        self._count = count
        self._bits = (count + 7) // 8
        self._sizes = [self._data_bytes(kind) for kind in columns["kind"].tolist()]
        *self._data, self.data_bytes = accumulate(map(_aligned, self._sizes), initial=0)
        bitmap = _aligned(self._bits)
        self._valid = [self.data_bytes + bitmap * c for c in range(len(columns))]
        first = self.data_bytes + bitmap * len(columns)
        *self._text, self.size = accumulate(map(_aligned, columns["room"].tolist()), initial=first)
        self.columns = columns.copy()
        self.columns["data"], self.columns["valid"], self.columns["text"] = self._data, self._valid, self._text
        self.columns["used"] = self.columns["nulls"] = 0

    def _data_bytes(self, kind: int) -> int:
        if kind == BOOL:
            return self._bits
        if kind == STRING:
            return 4 * (self._count + 1)
        return _WIDTHS[kind] * self._count

    def arrays(self, types: list[pa.DataType], columns: Columns, arena: pa.Buffer) -> list[pa.Array | None]:
        kinds, nulls, used = (columns[name].tolist() for name in ("kind", "nulls", "used"))
        return [
            None if kinds[c] == HANDED_BACK else self._array(type_, c, kinds[c], nulls[c], used[c], arena)
            for c, type_ in enumerate(types)
        ]

    def _array(self, type_: pa.DataType, c: int, kind: int, nulls: int, used: int, arena: pa.Buffer) -> pa.Array:
        valid = arena.slice(self._valid[c], self._bits) if nulls else None
        buffers = [valid, arena.slice(self._data[c], self._sizes[c])]
        if kind == STRING:
            buffers.append(arena.slice(self._text[c], used))
        return pa.Array.from_buffers(type_, self._count, buffers, nulls)
