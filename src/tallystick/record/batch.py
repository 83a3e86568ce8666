"""Batches that were checked once, and the message in which they travel.

A parcel's plaintext is hostile: its publisher may be. Arrow reads a message by trusting its offsets; a forged
string offset passes `read_next_batch()` and `validate()` and then kills the process. So `from_message` first
reads the few fields of the message's flatbuffer that decide what Arrow will do, in plain Python and within
bounds (a record batch, no inner compression, buffers inside the body that do not overlap), then lets Arrow
verify the rest, then runs `validate(full=True)`. Nothing is decompressed or copied, so memory is bounded by
the message.

`Batch` is the proof that this happened: the compiled kernels read raw addresses and take nothing else. It
does not protect from a caller in the same process who changes the memory under a batch afterwards.

Left out: a message is not canonical (bytes beneath nulls and padding are the writer's own); leaves cover
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct, unpack_from
from typing import Any

import pyarrow as pa

from tallystick.errors import Malformed, Misuse
from tallystick.record.schema import Schema, upgrade
from tallystick.record.types import kind_name

_CONTINUATION = b"\xff\xff\xff\xff"
_RECORD_BATCH = 3  # MessageHeader.RecordBatch
_METADATA_V5 = 4
_U8, _U16, _I32, _U32, _I64 = Struct("<B"), Struct("<H"), Struct("<i"), Struct("<I"), Struct("<q")
_PAIR = Struct("<qq")  # FieldNode(length, null_count) and Buffer(offset, length)
_OUTSIDE = "batch: the metadata points outside itself"


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one schema that passed every check: `data` may be read without another.

    >>> batch = Batch.of(schema, record_batch)
    """

    schema: Schema
    data: Any  # pa.RecordBatch

    def __post_init__(self) -> None:
        if not self.data.schema.equals(self.schema.arrow, check_metadata=True):
            raise Misuse(
                f'a batch of the columns "{_names(self.data.schema)}" does not equal the schema'
                f' "{_names(self.schema.arrow)}" in names, types, order and nullability',
                hint="gather the rows with the topic's schema",
            )
        try:
            self.data.validate(full=True)
        except pa.ArrowException as error:
            raise Misuse(f"the batch is not valid Arrow data: {error}") from error
        _check_presence(self.schema, self.data)

    @classmethod
    def of(cls, schema: Schema, data: Any) -> Batch:
        """`data` (a `pa.RecordBatch`) as a checked batch of `schema`. Raises `Misuse`."""
        return cls(schema, data)

    @classmethod
    def join(cls, schema: Schema, parts: Sequence[Batch]) -> Batch:
        """The batch of `schema` whose groups, in order, are `parts`. Raises `Misuse` unless they fit."""
        columns = {field.name: part.data.column(i) for part in parts for i, field in enumerate(part.data.schema)}
        if sorted(columns) != sorted(schema.arrow.names) or len({part.rows for part in parts}) != 1:
            raise Misuse("the parts of a batch must have the schema's columns and equally many rows")
        if len(parts) == 1:
            return parts[0]
        data = pa.RecordBatch.from_arrays([columns[name] for name in schema.arrow.names], schema=schema.arrow)
        return _trusted(schema, data)

    @property
    def rows(self) -> int:
        return int(self.data.num_rows)

    def only(self, *groups: int) -> Batch:
        """This batch reduced to some of its column groups, without copying."""
        schema = self.schema.only(*groups)
        return self if schema is self.schema else _trusted(schema, self.data.select(schema.arrow.names))

    def filter(self, mask: Any) -> Batch:
        """This batch reduced to the rows for which `mask`, an array of booleans, is true."""
        return _trusted(self.schema, self.data.filter(pa.array(mask)))

    def upgraded(self, schema: Schema) -> Batch:
        """This batch as one of a later version of its schema."""
        return self if schema == self.schema else _trusted(schema, upgrade(self.data, self.schema, schema))


def _trusted(schema: Schema, data: Any) -> Batch:
    """A batch made of checked parts only: checking again would double the cost of opening."""
    batch = object.__new__(Batch)
    object.__setattr__(batch, "schema", schema)
    object.__setattr__(batch, "data", data)
    return batch


def _names(arrow: Any) -> str:
    return ", ".join(arrow.names)


def _check_presence(schema: Schema, data: Any) -> None:
    for i in schema.demanding:
        field = schema.arrow.field(i)
        _check_nulls(field, data.column(i), field.name)


def _check_nulls(field: Any, array: Any, where: str) -> None:
    """Arrow records nullability but does not hold data to it."""
    if not field.nullable and array.null_count:
        raise Misuse(f'column "{where}": has {array.null_count} nulls but is declared not null')
    kind = kind_name(field.type)
    if kind == "list":
        _check_nulls(field.type.value_field, array.flatten(), f"{where}.item")
    elif kind == "struct":
        present = array.drop_null() if array.null_count else array  # fields beneath an absent struct do not count
        for i in range(field.type.num_fields):
            child = field.type.field(i)
            _check_nulls(child, present.field(i), f"{where}.{child.name}")


def to_message(data: Any) -> Any:
    """The Arrow IPC record-batch message of `data` (a `pa.RecordBatch`), uncompressed, without schema: a
    `pa.Buffer`.
    """
    return data.serialize()


def from_message(message: Any, arrow_schema: Any, rows: int) -> Any:
    """The `pa.RecordBatch` that `message` holds, without copying. Raises `Malformed` for anything but a valid
    one.

    `message` is a buffer (`pa.Buffer`, bytes, memoryview), `rows` the number of records that the header
    promised.
    """
    buffer = message if isinstance(message, pa.Buffer) else pa.py_buffer(message)
    check_message(memoryview(buffer).cast("B"), rows)
    if buffer.address % 8:  # Arrow's kernels want aligned buffers; a slice of a larger message may not be
        buffer = _aligned(buffer)
    try:
        data = pa.ipc.read_record_batch(buffer, arrow_schema)
        data.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError) as error:
        raise Malformed(f"batch: not a valid record batch of its schema: {error}") from error
    if data.num_rows != rows:
        raise Malformed(f"batch: holds {data.num_rows} records, expected {rows}")
    return data


def open_batch(message: Any, schema: Schema, rows: int) -> Batch:
    """`from_message` as a `Batch`: what is opened from a parcel. Raises `Malformed`."""
    data = from_message(message, schema.arrow, rows)
    try:
        _check_presence(schema, data)
    except Misuse as error:
        raise Malformed(f"batch: {error}") from error
    return _trusted(schema, data)


def _aligned(buffer: Any) -> Any:
    copy = pa.allocate_buffer(buffer.size)
    memoryview(copy).cast("B")[:] = memoryview(buffer).cast("B")
    return copy


def check_message(view: memoryview, rows: int) -> None:
    """Read the envelope and the flatbuffer's deciding fields. Raises `Malformed`.

    The envelope: 0xFFFFFFFF, the metadata's length (int32), the flatbuffer, the body. Arrow.fbs, Message:
    version, header_type, header, bodyLength, custom_metadata; RecordBatch: length, nodes, buffers,
    compression, variadic.
    """
    if len(view) < 8 or view[:4] != _CONTINUATION:
        raise Malformed("batch: not an Arrow IPC message")
    size = _I32.unpack_from(view, 4)[0]
    if size < 8 or size % 8 or 8 + size > len(view):
        raise Malformed("batch: the metadata's length is out of range")
    message = _Table.root(view[8 : 8 + size])
    body_bytes = len(view) - 8 - size
    if message.scalar(0, _U16, 0) != _METADATA_V5:
        raise Malformed("batch: not Arrow metadata version 5")
    if message.scalar(1, _U8, 0) != _RECORD_BATCH:
        raise Malformed("batch: the message is not a record batch")
    if message.scalar(3, _I64, 0) != body_bytes:
        raise Malformed("batch: the body's length is not what the metadata says")
    if message.has(4):
        raise Malformed("batch: the message carries metadata of its own")
    batch = message.table(2)
    if batch.scalar(0, _I64, 0) != rows:
        raise Malformed(f"batch: expected {rows} records, the message says otherwise")
    if batch.has(3):
        raise Malformed("batch: inner compression is not allowed")
    if batch.has(4):
        raise Malformed("batch: variadic buffers are not allowed")
    for length, nulls in batch.pairs(1):
        if not 0 <= nulls <= length:
            raise Malformed("batch: a column's null count is out of range")
    end = 0
    for offset, length in batch.pairs(2):
        if offset < end or offset % 8 or length < 0 or offset + length > body_bytes:
            raise Malformed("batch: a buffer lies outside the body, overlaps another or is not aligned")
        end = offset + length


def front_bytes(view: memoryview) -> int:
    """How long the part before the body is, in a message that passed `check_message` or was made here."""
    return 8 + int(_I32.unpack_from(view, 4)[0])


def message_buffers(view: memoryview) -> list[tuple[int, int]]:
    """Where the buffers of such a message lie in it: (start, length). The part before the body suffices."""
    front = front_bytes(view)
    buffers = _Table.root(view[8:front]).table(2).pairs(2)
    return [(front + offset, length) for offset, length in buffers]


class _Table:
    """A table of a flatbuffer, as much of it as is needed: every access is bounded by the view, else `Malformed`."""

    def __init__(self, view: memoryview, at: int) -> None:
        self._view, self._at = view, at
        vtable = at - self._read(_I32, at)
        count = max(0, self._read(_U16, vtable) - 4) // 2
        if vtable + 4 + 2 * count > len(view):
            raise Malformed(_OUTSIDE)
        # Where each field lies; 0 when it is absent.
        self._slots: tuple[int, ...] = unpack_from(f"<{count}H", view, vtable + 4)

    @classmethod
    def root(cls, view: memoryview) -> _Table:
        """The table at which a flatbuffer begins."""
        if len(view) < _U32.size:
            raise Malformed(_OUTSIDE)
        return cls(view, _U32.unpack_from(view)[0])

    def _read(self, form: Struct, at: int) -> int:
        if at < 0 or at + form.size > len(self._view):
            raise Malformed(_OUTSIDE)
        return int(form.unpack_from(self._view, at)[0])

    def has(self, number: int) -> bool:
        return number < len(self._slots) and self._slots[number] != 0

    def scalar(self, number: int, form: Struct, default: int) -> int:
        return self._read(form, self._at + self._slots[number]) if self.has(number) else default

    def table(self, number: int) -> _Table:
        if not self.has(number):
            raise Malformed("batch: the metadata lacks a table")
        return _Table(self._view, self._pointed(number))

    def pairs(self, number: int) -> list[tuple[int, int]]:
        """A vector of structs of two int64."""
        if not self.has(number):
            return []
        start = self._pointed(number)
        count = self._read(_U32, start)
        if start + 4 + 16 * count > len(self._view):
            raise Malformed(_OUTSIDE)
        return list(_PAIR.iter_unpack(self._view[start + 4 : start + 4 + 16 * count]))

    def _pointed(self, number: int) -> int:
        at = self._at + self._slots[number]
        return at + self._read(_U32, at)
