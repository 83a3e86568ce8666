"""Attribute keys: bytes, refreshing, and what does not belong together."""

from __future__ import annotations

import pytest
from formulas import ACME

from tallystick import wire
from tallystick.crypto.abe.capsule import decapsulate, encapsulate
from tallystick.crypto.abe.keys import AttributeKey, AttributeMasterKey, AttributePublicKey
from tallystick.errors import Forged, Malformed, Misuse
from tallystick.policy.parse import parse
from tallystick.policy.traits import traits_of

TRAITS = traits_of(ACME.values({"role": "insurer", "clearance": 9}), ACME)


def test_the_same_arguments_give_the_same_key_and_others_other_randomness(master: AttributeMasterKey) -> None:
    key = master.issue(b"p", TRAITS, [1])
    assert key.encode() == master.issue(b"p", TRAITS, [1]).encode()
    assert AttributeMasterKey.decode(master.encode()).public == master.public
    others = [master.issue(b"q", TRAITS, [1]), master.issue(b"p", list(TRAITS)[1:], [1])]
    assert len({one.randomness.serialize() for one in (key, *others)}) == 3


def test_a_refresh_is_one_point_under_the_keys_own_randomness(master: AttributeMasterKey) -> None:
    key = AttributeKey.decode(master.issue(b"p", TRAITS, [1]).encode())
    part = master.refresh(b"p", TRAITS, 2)
    assert len(part) == 48
    refreshed = key.with_epoch(2, part)
    assert refreshed.encode() == master.issue(b"p", TRAITS, [1, 2]).encode()
    capsule, secret = encapsulate(master.public, parse("clearance >= 3", ACME), 2, b"", bytes(32))
    assert decapsulate(refreshed, capsule, b"") == secret
    for wrong in (
        master.refresh(b"q", TRAITS, 2),
        master.refresh(b"p", TRAITS, 3),
        master.refresh(b"p", list(TRAITS)[1:], 2),
    ):
        with pytest.raises(Forged):
            key.with_epoch(2, wrong)


def test_malformed_keys_are_refused(master: AttributeMasterKey) -> None:
    good = wire.decode(master.issue(b"p", TRAITS, [1]).encode())

    def with_field(place: int, value: object) -> bytes:
        fields = list(good)
        fields[place] = value
        return wire.encode(fields)

    for data in (
        with_field(0, 2),
        with_field(1, b""),
        with_field(2, bytes(48)),
        with_field(2, good[3]),
        with_field(3, b"\xff" * 96),
        with_field(4, good[4][::-1]),
        with_field(4, good[4][1:]),
        with_field(4, ["text"] * len(good[4])),
        with_field(5, good[5][:-1]),
        with_field(6, [[1, b"short"]]),
        with_field(6, [[2, good[2]], [1, good[2]]]),
        with_field(6, [[1, good[2]], [1, good[2]]]),
        b"\x00",
    ):
        with pytest.raises(Malformed):
            AttributeKey.decode(data)
    with pytest.raises(Malformed):
        AttributeMasterKey.decode(bytes(31))
    with pytest.raises(Malformed):
        AttributePublicKey.decode(bytes(96))


def test_a_part_that_is_no_point_is_refused_when_it_is_used(master: AttributeMasterKey) -> None:
    fields = wire.decode(master.issue(b"p", TRAITS, [1]).encode())
    fields[5] = b"\xff" * len(fields[5])
    key = AttributeKey.decode(wire.encode(fields))
    capsule, _ = encapsulate(master.public, parse("role::insurer", ACME), 1, b"", bytes(32))
    with pytest.raises(Malformed):
        decapsulate(key, capsule, b"")


def test_bad_arguments_are_named(master: AttributeMasterKey) -> None:
    with pytest.raises(Misuse, match="traits"):
        master.issue(b"p", [], [1])
    with pytest.raises(Misuse, match="entropy"):
        AttributeMasterKey.generate(bytes(31))


def test_secrets_are_not_printed(master: AttributeMasterKey) -> None:
    assert master.seed.hex() not in repr(master)
    assert "Point" not in repr(master.issue(b"p", TRAITS, [1]))
