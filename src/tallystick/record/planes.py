"""Byte planes: columns of numbers rearranged so that a fast compressor finds what repeats in them.

The bytes of a number are not alike: the high ones of a position or a time hardly change from record to record, the low
ones look random. Of a region of values of one width, plane k holds byte k of every value; whole numbers are first
replaced by their difference from the one before (modulo the width), so that counters, times and string offsets become
constants. lz4 then runs through the repeating planes and gives up early on the others: smaller and faster than lz4 on
the values as they lie. See Masui et al. 2015 (Bitshuffle) for the idea on bits.

The rearrangement knows nothing of Arrow. It is told regions (`Region`) that travel beside the data: `scatter` and
`gather` are exact inverses of one another for any bytes and any well-formed list of regions. `check_regions` is what a
list from outside must pass; after it, no access falls outside the data and the work is linear in its size.

Two engines give the same bytes: `kernels/planes.py`, compiled, and numpy here, the reference, where numba is missing or
there is little to rearrange.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallystick.errors import Malformed
from tallystick.kernels.demand import OnDemand
from tallystick.record.batch import front_bytes, message_buffers
from tallystick.record.schema import Schema
from tallystick.record.types import FIELDS_MAX, kind_name

REGIONS_MAX = FIELDS_MAX  # a field has at most one buffer of numbers
ALIGNMENT = 8  # of a region's first byte, as Arrow aligns its buffers
WIDTHS = (2, 4, 8)

_FLOATS = ("float32", "float64")


Region = tuple[int, int, int, int]
"""(start, values, width, delta): numbers of `width` bytes from byte `start` on; delta 1: as differences, else 0."""


def regions_of(message: memoryview, schema: Schema) -> tuple[Region, ...]:
    """The regions worth rearranging in the Arrow message of a batch of `schema`."""
    return _regions(message[: front_bytes(message)].tobytes(), schema)


@lru_cache(maxsize=64)
def _regions(front: bytes, schema: Schema) -> tuple[Region, ...]:
    """They hang on the message's metadata alone, and batches of one size often have the same."""
    return tuple(
        (start, length // width, width, delta)
        for (start, length), (width, delta) in zip(message_buffers(memoryview(front)), _widths(schema), strict=True)
        if width and length >= width
    )


def check_regions(regions: Sequence[Region], size: int) -> None:
    """Raise `Malformed` unless the regions are aligned, in order, apart, and inside `size` bytes."""
    end = 0
    for start, values, width, delta in regions:
        if width not in WIDTHS or delta > 1 or start % ALIGNMENT:
            raise Malformed("planes: a region is not well-formed")
        if start < end or start + values * width > size:
            raise Malformed("planes: a region lies outside the data or overlaps another")
        end = start + values * width


def scatter(data: Any, regions: Sequence[Region]) -> Any:
    """`data` (a buffer) with its regions, which were checked, rearranged into planes: a `pa.Buffer`."""
    return _rearrange(data, regions, forth=True)


def gather(data: Any, regions: Sequence[Region]) -> Any:
    """What `scatter` was given, from what it gave and the same regions, which were checked: a `pa.Buffer`."""
    return _rearrange(data, regions, forth=False)


def _rearrange(data: Any, regions: Sequence[Region], *, forth: bool) -> Any:
    source = np.frombuffer(data, np.uint8)
    source.flags.writeable = False  # one type of array, whatever the buffer: the kernel is compiled once
    result = pa.allocate_buffer(source.nbytes)
    if source.nbytes == 0:
        return result
    target = np.frombuffer(result, np.uint8)
    table = _table(tuple(regions))
    kernel = _kernel.after(source.nbytes)
    if kernel is None:
        _reference(source, target, table, forth)
    elif forth:
        kernel.scatter(source, target, table)
    else:
        kernel.gather(source, target, table)
    return result


@lru_cache(maxsize=64)
def _table(regions: tuple[Region, ...]) -> NDArray[np.int64]:
    return np.fromiter(chain.from_iterable(regions), np.int64, 4 * len(regions)).reshape(-1, 4)


def _reference(source: NDArray[np.uint8], target: NDArray[np.uint8], table: NDArray[np.int64], forth: bool) -> None:
    target[:] = source
    for start, values, width, delta in table.tolist():
        place = slice(start, start + values * width)
        if forth:
            numbers = source[place].view(f"<u{width}")
            if delta:
                numbers = np.diff(numbers, prepend=numbers.dtype.type(0))
            target[place] = numbers.view(np.uint8).reshape(values, width).T.reshape(-1)
        else:
            numbers = source[place].reshape(width, values).T.reshape(-1).view(f"<u{width}")
            if delta:
                numbers = np.cumsum(numbers, dtype=numbers.dtype)
            target[place] = numbers.view(np.uint8)


def load() -> ModuleType | None:
    """The compiled twin, used from now on, however little there is, or None if it does not work here or disagrees with
    the reference."""
    return _kernel.now()


def _load() -> ModuleType | None:
    try:
        from tallystick.kernels import planes as kernel

        _self_test(kernel)
    except Exception:  # whatever numba or the compiler does, numpy still works
        return None
    return kernel


_kernel = OnDemand(_load, enough=1 << 20)  # bytes, some milliseconds for numpy


def _self_test(kernel: ModuleType) -> None:
    """Compare a region of every kind with the reference. Raises RuntimeError. Compiles everything on the way."""
    source = (np.arange(40_000, dtype=np.uint32) * np.uint32(2_654_435_761) >> np.uint32(13)).astype(np.uint8)
    source.flags.writeable = False
    kinds = [(width, delta) for width in WIDTHS for delta in (0, 1)]
    table = np.array([(16 + 6_000 * i, 5_000 // kind[0], *kind) for i, kind in enumerate(kinds)], np.int64)
    there, back, expected = (np.empty(source.nbytes, np.uint8) for _ in range(3))
    kernel.scatter(source, there, table)
    there.flags.writeable = False
    kernel.gather(there, back, table)
    _reference(source, expected, table, True)
    if not (np.array_equal(there, expected) and np.array_equal(back, source)):
        raise RuntimeError("the compiled kernel disagrees with the reference")


@lru_cache(maxsize=256)
def _widths(schema: Schema) -> tuple[tuple[int, int], ...]:
    """(width, delta) for each buffer of a batch of `schema` in the order of its message; width 0: left as it is."""
    return tuple(pair for field in schema.arrow for pair in _type_widths(field.type))


def _type_widths(type_: Any) -> list[tuple[int, int]]:
    """Validity first, then offsets and values, then the children: the order of Arrow's IPC format."""
    as_it_is, offsets = (0, 0), (4, 1)
    kind = kind_name(type_)
    if kind == "struct":
        return [as_it_is, *(pair for i in range(type_.num_fields) for pair in _type_widths(type_.field(i).type))]
    if kind == "list":
        return [as_it_is, offsets, *_type_widths(type_.value_type)]
    if kind in ("string", "binary"):
        return [as_it_is, offsets, as_it_is]
    if kind == "decimal128":
        return [as_it_is, (8, 0)]  # as two numbers
    width = int(type_.bit_width) // 8
    if width < min(WIDTHS):
        return [as_it_is, as_it_is]
    return [as_it_is, (width, int(kind not in _FLOATS and width > 2))]
