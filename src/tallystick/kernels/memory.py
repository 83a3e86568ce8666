"""Raw loads and stores for compiled loops, by address and without alignment.

These are as unsafe as they look. They exist because numpy views of a batch's buffers would cost more than the
work on a small batch; every address they see comes from a `Batch`, whose buffers were checked in full.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

Copy = Callable[[int, int], None]
Load = Callable[[int], int]
Store = Callable[[int, int], None]

I64 = types.int64


def _copy(size: int) -> Copy:
    """`copy(to, source)`: move `size` bytes through a register."""

    def copy(_context: Any, to: Any, source: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            type_ = ir.IntType(8 * size)
            pointer = type_.as_pointer()
            value = builder.load(builder.inttoptr(arguments[1], pointer), align=1, typ=type_)
            builder.store(value, builder.inttoptr(arguments[0], pointer), align=1)
            return context.get_dummy_value()

        return types.void(I64, I64), generate

    return cast(Copy, intrinsic(copy))


def _load(size: int) -> Load:
    """`load(address)`: `size` bytes, little-endian and unsigned, as an int64."""

    def load(_context: Any, address: Any) -> Any:
        def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            type_ = ir.IntType(8 * size)
            value = builder.load(builder.inttoptr(arguments[0], type_.as_pointer()), align=1, typ=type_)
            return value if size == 8 else builder.zext(value, ir.IntType(64))

        return I64(I64), generate

    return cast(Load, intrinsic(load))


def _store(size: int, big_endian: bool = False) -> Store:
    """`store(address, value)`: the low `size` bytes of an int64."""

    def store(_context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            type_ = ir.IntType(8 * size)
            value = arguments[1] if size == 8 else builder.trunc(arguments[1], type_)
            if big_endian:
                value = builder.bswap(value)
            builder.store(value, builder.inttoptr(arguments[0], type_.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(I64, I64), generate

    return cast(Store, intrinsic(store))


def _store_float(size: int) -> Callable[[int, float], None]:
    """`store(address, value)`: a float64, rounded to `size` bytes."""

    def store(_context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            type_ = ir.DoubleType() if size == 8 else ir.FloatType()
            value = arguments[1] if size == 8 else builder.fptrunc(arguments[1], type_)
            builder.store(value, builder.inttoptr(arguments[0], type_.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(I64, types.float64), generate

    return cast(Callable[[int, float], None], intrinsic(store))


copy1, copy2, copy4, copy8, copy16, copy32 = (_copy(size) for size in (1, 2, 4, 8, 16, 32))
load1, load4, load8 = (_load(size) for size in (1, 4, 8))
store1, store2, store4, store8 = (_store(size) for size in (1, 2, 4, 8))
store_float4, store_float8 = _store_float(4), _store_float(8)
store4_big, store8_big = _store(4, big_endian=True), _store(8, big_endian=True)
