"""Voids: one leaf for every offset, and none that passes for another kind."""

from __future__ import annotations

import pytest

from tallystick import wire
from tallystick.carriers.carrier import MAGIC, Void, is_void
from tallystick.errors import Malformed
from tallystick.parcel.parcel import MAGIC as PARCEL_MAGIC


def test_what_is_encoded_is_decoded() -> None:
    for void in (
        Void(),
        Void.refused(b"plain text", "plain"),
        Void.refused(b"", "malformed"),
        Void.repeated(b"p" * 32),
    ):
        assert is_void(void.encode())
        assert Void.decode(void.encode()) == void


def test_leaves_differ_by_bytes_and_kind_and_not_by_reason() -> None:
    leaves = {Void().hash, Void.refused(b"a", "plain").hash, Void.refused(b"b", "plain").hash}
    assert len(leaves) == 3
    assert Void.refused(b"a", "plain").hash == Void.refused(b"a", "no-right").hash
    assert Void.refused(b"a", "plain").digest not in leaves
    assert Void.repeated(b"p" * 32).hash == b"p" * 32


def test_no_parcel_is_a_void() -> None:
    assert MAGIC != PARCEL_MAGIC
    assert not is_void(PARCEL_MAGIC + bytes(100))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        MAGIC,
        MAGIC + wire.encode([b"", ""]) + b"\x00",
        MAGIC + wire.encode([b"", "plain"]),
        MAGIC + wire.encode([bytes(31), "plain"]),
        MAGIC + wire.encode([bytes(32), "r" * 33]),
        MAGIC + bytes(1 << 20),
    ],
)
def test_anything_else_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        Void.decode(data)
