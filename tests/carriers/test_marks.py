"""Marks: one leaf for every offset, and none that passes for another kind."""

from __future__ import annotations

import pytest

from tallystick import wire
from tallystick.carriers.marks import MAGIC, Mark, is_mark
from tallystick.errors import Malformed
from tallystick.parcel.parcel import MAGIC as PARCEL_MAGIC


def test_what_is_encoded_is_decoded() -> None:
    for mark in (
        Mark(),
        Mark.refused(b"plain text", "plain"),
        Mark.refused(b"", "malformed"),
        Mark.repeated(b"p" * 32),
    ):
        assert is_mark(mark.encode())
        assert Mark.decode(mark.encode()) == mark


def test_leaves_differ_by_bytes_and_kind_and_not_by_reason() -> None:
    leaves = {Mark().hash, Mark.refused(b"a", "plain").hash, Mark.refused(b"b", "plain").hash}
    assert len(leaves) == 3
    assert Mark.refused(b"a", "plain").hash == Mark.refused(b"a", "no-right").hash
    assert Mark.refused(b"a", "plain").digest not in leaves
    assert Mark.repeated(b"p" * 32).hash == b"p" * 32


def test_no_parcel_is_a_mark() -> None:
    assert MAGIC != PARCEL_MAGIC
    assert not is_mark(PARCEL_MAGIC + bytes(100))


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
        Mark.decode(data)
