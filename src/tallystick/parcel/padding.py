"""Lengths that say little: what is padded is padded to one of these."""

from __future__ import annotations

from tallystick.errors import Malformed


def padme(length: int) -> int:
    """The Padmé length (Nikitin et al. 2019, algorithm 1): keep as many leading bits as log log asks for."""
    if length < 2:
        return length
    exponent = length.bit_length() - 1
    mask = (1 << (exponent - exponent.bit_length())) - 1
    return (length + mask) & ~mask


def pad_to(data: bytes, length: int) -> bytes:
    """`length` bytes, whatever is in them: the data, a byte 0x80, and zeros. Raises `Malformed` if it does not fit."""
    if len(data) >= length:
        raise Malformed(f"padding: {len(data)} bytes do not fit in {length}")
    return data + b"\x80" + bytes(length - len(data) - 1)


def unpad(data: bytes) -> bytes:
    """What was padded. Raises `Malformed`."""
    unpadded = data.rstrip(b"\x00")
    if unpadded[-1:] != b"\x80":
        raise Malformed("padding: none is there")
    return unpadded[:-1]
