"""Transactions: many entries under one signature, with one accepted form of frame and head."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_world import Bench, World, seed

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.errors import Forged, Malformed, Misuse, Refused
from tallystick.ledger import entries
from tallystick.ledger.block import ENTRIES_MAX, compose, parse

WORLD = World()
ENTRY = entries.lift(bytes(16))


def test_what_is_composed_is_parsed() -> None:
    made = WORLD.doctor.sign(ENTRY, ENTRY)
    read = parse(made.data)
    assert read == made
    assert read.leaf == merkle.leaf_hash(wire.encode([made.head, made.signature]))
    assert list(read.decode_entries()) == [[60, bytes(16)]] * 2
    read.verify(WORLD.doctor.key.public)


def test_another_key_did_not_sign_it() -> None:
    with pytest.raises(Forged):
        WORLD.doctor.sign(ENTRY).verify(WORLD.sensor.key.public)


def test_every_byte_counts() -> None:
    """A flipped bit is malformed, covered by another root, or not what the author signed."""
    data = WORLD.doctor.sign(ENTRY, entries.lift(seed("x")[:16])).data
    original = parse(data)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        with pytest.raises(Refused):
            parse(bytes(changed)).verify(WORLD.doctor.key.public)
    assert parse(data) == original


@pytest.mark.parametrize(
    "change",
    [
        lambda head, signature, written: [head, signature, []],
        lambda head, signature, written: [head, signature, [1]],
        lambda head, signature, written: [head, signature[:-1], written],
        lambda head, signature, written: [head, signature, written, b""],
        lambda head, signature, written: [head, signature, [ENTRY] * (ENTRIES_MAX + 1)],
        lambda head, signature, written: [wire.encode([2, *wire.decode(head)[1:]]), signature, written],
        lambda head, signature, written: [head[:-1] + b"\x18\x01", signature, written],
    ],
)
def test_a_frame_out_of_form_is_malformed(change: object) -> None:
    made = WORLD.doctor.sign(ENTRY)
    with pytest.raises(Malformed):
        parse(wire.encode(change(made.head, made.signature, list(made.entries))))  # type: ignore[operator]


def test_the_head_covers_its_entries() -> None:
    made = WORLD.doctor.sign(ENTRY)
    with pytest.raises(Forged, match="covers other entries"):
        parse(wire.encode([made.head, made.signature, [ENTRY, ENTRY]]))


@pytest.mark.parametrize(
    "entry",
    [
        *(b"", b"\x00\x00", b"\x82\x01", b"\xff", b"\x5f\x41a", b"\xc0\x00", b"\xa1\x01\x02"),
        b"\xd8\x1c\x81\xd8\x1d\x00",  # an array that contains itself
        b"\xc2\x41\x01",  # a number as a tagged string
        b"\x81" * 40 + b"\x00",
    ],
)
def test_an_entry_that_is_not_one_value_is_refused(entry: bytes) -> None:
    bench = Bench()
    result = bench.run(bench.world.doctor.sign(entry))
    assert not result.accepted
    assert result.index == 0


def test_entries_cannot_borrow_from_one_another() -> None:
    """Joined, these two entries are two values; each alone is none."""
    whole = entries.lift(bytes(16))
    made = WORLD.doctor.sign(whole[:5], whole[5:] + whole)
    with pytest.raises(Malformed):
        list(made.decode_entries())


@given(st.binary(max_size=200))
def test_junk_raises_our_errors_only(data: bytes) -> None:
    with pytest.raises(Refused):
        parse(data)


def test_misuse_is_named() -> None:
    with pytest.raises(Misuse, match="1 to 4096 entries"):
        compose(WORLD.instance, WORLD.doctor.id, 1, [], WORLD.doctor.key)
    with pytest.raises(Misuse, match="a number from 1"):
        compose(WORLD.instance, WORLD.doctor.id, 0, [ENTRY], WORLD.doctor.key)
    with pytest.raises(Misuse, match="bytes, at most"):
        compose(WORLD.instance, WORLD.doctor.id, 1, [bytes(1 << 20)] * 3, WORLD.doctor.key)


def test_the_leaf_needs_only_head_and_signature() -> None:
    made = WORLD.doctor.sign(ENTRY)
    assert merkle.leaf_hash(wire.encode([made.head, made.signature])) == made.leaf
