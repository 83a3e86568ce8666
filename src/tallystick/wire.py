"""Strict CBOR: the one encoding of everything that is signed, hashed or stored.

Every object is an array of fixed order, made of unsigned and negative integers, byte strings, text, arrays,
booleans and null; no maps, floats, tags or indefinite lengths. There is exactly one encoding of a value (RFC 8949,
section 4.2, core deterministic), and `decode` holds its input to it by encoding again and comparing: what is
accepted under a hash or a signature has no second form. Work is bounded by the input's length and `DEPTH_MAX`.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import cbor2

from tallystick.errors import Malformed

DEPTH_MAX = 16  # the deepest of our objects has six levels

Value = int | bytes | str | bool | None | list["Value"]


def encode(value: Any) -> bytes:
    """The deterministic encoding of `value`."""
    return cbor2.dumps(value)


def decode(data: bytes | memoryview, what: str = "object") -> Any:
    """The value whose one encoding is `data`; raises `Malformed`, naming `what`, for anything else."""
    data = bytes(data)
    try:
        stream = BytesIO(data)
        value = cbor2.CBORDecoder(stream).decode()
        _check_types(value, DEPTH_MAX)
        same = cbor2.dumps(value) == data
    except Malformed:
        raise
    except Exception as error:  # cbor2 raises a whole family, and ValueError and OverflowError besides
        raise Malformed(f"{what}: not valid CBOR") from error
    if not same:
        raise Malformed(f"{what}: not the deterministic encoding")
    return value


def _check_types(value: Any, depth: int) -> None:
    kind = type(value)
    if kind is list:
        if depth == 0:
            raise Malformed("nested too deep")
        for item in value:
            _check_types(item, depth - 1)
    elif kind is int:
        if not -(1 << 63) <= value < 1 << 64:
            raise Malformed("integer out of range")
    elif kind not in (bytes, str, bool, type(None)):
        raise Malformed(f"type {kind.__name__} is not allowed")
