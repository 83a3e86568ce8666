"""Bounds of the encoding that all objects share (docs/formats/parcel.md)."""

from __future__ import annotations

import pytest

from tallystick import wire
from tallystick.errors import Malformed


@pytest.mark.parametrize("innermost", [b"\x80", b"\x81\x01"])
def test_sixteen_arrays_lie_within_one_another_and_no_more(innermost: bytes) -> None:
    """An empty one counts as any other does, which the reader below would let pass."""
    within = b"\x81" * (wire.DEPTH_MAX - 1) + innermost
    assert wire.encode(wire.decode(within)) == within
    with pytest.raises(Malformed):
        wire.decode(b"\x81" + within)
