"""Passages: a gateway's word for exactly the parcels that it took, at that height, under one signature."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import pytest

from tallystick.carriers.kafka.passage import Passage, sign_passages
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Malformed

KEY = SigningKey.from_seed(sha256(b"gateway").digest())
NODE = b"n" * 16
PARCELS = [sha256(b"parcel %d" % number).digest() for number in range(5)]


def test_each_is_shown_and_verified_alone() -> None:
    for parcel, passage in zip(PARCELS, sign_passages(NODE, 7, PARCELS, KEY), strict=True):
        Passage.decode(passage.encode()).verify(parcel, KEY.public)


def test_it_vouches_for_nothing_else() -> None:
    passages = sign_passages(NODE, 7, PARCELS, KEY)
    other = SigningKey.from_seed(sha256(b"another").digest())
    with pytest.raises(Forged):
        passages[0].verify(PARCELS[1], KEY.public)  # moved to another parcel
    with pytest.raises(Forged):
        passages[0].verify(PARCELS[0], other.public)
    for changed in (
        replace(passages[0], node=b"m" * 16),
        replace(passages[0], height=8),
        replace(passages[0], index=1),
        replace(passages[0], count=4),
        replace(passages[0], path=()),
        replace(passages[0], signature=bytes(64)),
    ):
        with pytest.raises(Forged):
            changed.verify(PARCELS[0], KEY.public)


@pytest.mark.parametrize(
    "data", [b"", b"\x80", bytes(5000), sign_passages(NODE, 7, PARCELS, KEY)[0].encode() + b"\x00"]
)
def test_junk_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        Passage.decode(data)
