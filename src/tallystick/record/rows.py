"""The canonical row encoding: the bytes of a record that its leaf hash covers. The reference, in plain
Python.

The invariant: under a known schema, equal bytes mean equal rows and the other way round, down to the bits of
a NaN and the sign of a zero. So a leaf binds the whole row, and a row can be shown alone and read back from
its bytes. Arrow's own layout cannot serve: padding, offsets, slices and the bytes beneath nulls give one row
many forms.

docs/formats/rows.md specifies the format. `encode_rows` is what the compiled kernels are tested against and
what serves in their place where they do not work. Input is a batch that has passed `Batch.of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from struct import Struct
from typing import Any

import pyarrow as pa

from tallystick.errors import Malformed
from tallystick.record.types import kind_name

_U32 = Struct("<I")
_STRUCTS = {
    name: Struct("<" + code)
    for name, code in (
        ("int8", "b"), ("int16", "h"), ("int32", "i"), ("int64", "q"),
        ("uint8", "B"), ("uint16", "H"), ("uint32", "I"), ("uint64", "Q"),
        ("float32", "f"), ("float64", "d"), ("date32", "i"), ("timestamp", "q"),
    )
}  # fmt: skip


def encode_row(arrow_schema: Any, index: int, batch: Any) -> bytes:
    """The canonical bytes of row `index` of `batch`, over the columns of `arrow_schema` (one group)."""
    return encode_rows(batch.select(arrow_schema.names).slice(index, 1))[0]


def encode_rows(batch: Any) -> list[bytes]:
    """The canonical bytes of every row of `batch` (a `pa.RecordBatch`), over all its columns in order."""
    return [_with_bitmap(row) for row in zip(*(_pieces(column) for column in batch.columns), strict=True)]


def _with_bitmap(values: Sequence[bytes | None]) -> bytes:
    """The presence bitmap of `values` and then those that are present."""
    bitmap = bytearray((len(values) + 7) // 8)  # not one integer: a list may have millions of items
    for i, value in enumerate(values):
        bitmap[i >> 3] |= (value is not None) << (i & 7)
    return bytes(bitmap) + b"".join(filter(None, values))


def _pieces(array: Any) -> list[bytes | None]:
    """The encoding of each value of an Arrow array; None where it is null."""
    kind = kind_name(array.type)
    if kind == "struct":
        children = [_pieces(array.field(i)) for i in range(array.type.num_fields)]
        encoded = [_with_bitmap(row) for row in zip(*children, strict=True)]
    elif kind == "list":
        encoded = _list_pieces(array)
    elif kind in ("string", "binary"):
        encoded = [_U32.pack(len(value)) + value for value in _byte_strings(array)]
    elif kind == "bool":
        encoded = [b"\1" if value else b"\0" for value in array.to_pylist()]
    else:
        encoded = _fixed_pieces(array)
    if array.null_count == 0:
        return list(encoded)
    return [value if valid else None for value, valid in zip(encoded, array.is_valid().to_pylist(), strict=True)]


def _fixed_pieces(array: Any) -> list[bytes]:
    """The values' bytes as they lie in memory: any detour through Python's numbers could change a NaN."""
    width = array.type.bit_width // 8
    data = array.buffers()[1]
    if data is None:
        return [b""] * len(array)
    view = memoryview(data).cast("B")[array.offset * width : (array.offset + len(array)) * width]
    return [bytes(view[i : i + width]) for i in range(0, len(view), width)]


def _byte_strings(array: Any) -> list[bytes]:
    return [value or b"" for value in array.cast(pa.binary()).to_pylist()]


def _list_pieces(array: Any) -> list[bytes]:
    if len(array) == 0:
        return []
    bounds = array.offsets.to_pylist()
    base = bounds[0]
    elements = _pieces(array.values.slice(base, bounds[-1] - base))
    return [
        _U32.pack(end - first) + _with_bitmap(elements[first - base : end - base]) for first, end in pairwise(bounds)
    ]


def decode_row(arrow_schema: Any, data: bytes) -> dict[str, Any]:
    """The row whose canonical bytes are `data`; raises `Malformed` unless every byte is accounted for.

    Dates and timestamps come as integers (days; units since the epoch), since Python's own types cannot hold
    them all; decimals as `Decimal`.
    """
    reader = _Reader(bytes(data))
    row = reader.fields(list(arrow_schema))
    if reader.at != len(reader.data):
        raise Malformed(f"row: {len(reader.data) - reader.at} bytes too many")
    return row


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise Malformed(f"row: ends at byte {len(self.data)}, expected {end - len(self.data)} more")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def presence(self, count: int) -> list[bool]:
        bitmap = self.take((count + 7) // 8)
        if count % 8 and bitmap[-1] >> count % 8:
            raise Malformed("row: a presence bitmap has bits beyond its last value")
        return [bool(bitmap[i >> 3] >> (i & 7) & 1) for i in range(count)]

    def fields(self, fields: list[Any]) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for field, present in zip(fields, self.presence(len(fields)), strict=True):
            row[field.name] = self.field(field, present)
        return row

    def field(self, field: Any, present: bool) -> Any:
        if present:
            return self.value(field.type)
        if not field.nullable:
            raise Malformed(f'row: field "{field.name}" is absent but not nullable')
        return None

    def value(self, type_: Any) -> Any:
        kind = kind_name(type_)
        if kind in _STRUCTS:
            return _STRUCTS[kind].unpack(self.take(_STRUCTS[kind].size))[0]
        if kind == "bool":
            byte = self.take(1)
            if byte not in (b"\0", b"\1"):
                raise Malformed(f"row: a bool must be 0 or 1, found {byte[0]}")
            return byte == b"\1"
        if kind == "binary":
            return self.take(self.count())
        if kind == "string":
            return self.text()
        if kind == "decimal128":
            return self.decimal(type_)
        if kind == "struct":
            return self.fields(list(type_))
        # Each element costs at least its bit of the bitmap, so the input's length bounds the work.
        return [self.field(type_.value_field, present) for present in self.presence(self.count())]

    def count(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def text(self) -> str:
        try:
            return self.take(self.count()).decode()
        except UnicodeDecodeError as error:
            raise Malformed("row: a string is not UTF-8") from error

    def decimal(self, type_: Any) -> Decimal:
        number = int.from_bytes(self.take(16), "little", signed=True)
        digits = str(abs(number))
        if len(digits) > type_.precision:
            raise Malformed(f"row: {number} has more digits than decimal128 of precision {type_.precision} holds")
        # Built from its digits: arithmetic would round to the context's precision.
        return Decimal((int(number < 0), tuple(map(int, digits)), -type_.scale))
