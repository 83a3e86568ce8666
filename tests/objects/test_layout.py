"""Slips, dockets, references and uncle layers: every flipped byte and every contradiction is found and named."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.crypto.blocks import block_hash, blocks_root
from tallystick.crypto.symmetric import NumberedCipher
from tallystick.errors import CannotOpen, Forged, Malformed, Misuse
from tallystick.objects.layout import (
    COUNT_MAX,
    DOCKET_BYTES_MAX,
    FIXED,
    GEAR,
    LENGTH_MAX,
    PLAIN,
    SLIP_BYTES,
    TARGET_MAX,
    ZSTD,
    Docket,
    ObjectKey,
    ObjectReference,
    Slip,
    Slips,
    slips_root,
)

DOCKET = Docket(FIXED, 4096, PLAIN, 3, 10_000, 10_048, b"r" * 32)


def slips_of(count: int) -> bytes:
    return b"".join(Slip(n.to_bytes(32, "big"), 4112, 4096, bytes(32)).encode() for n in range(count))


def docket_of(slips: bytes) -> Docket:
    count = len(slips) // SLIP_BYTES
    return Docket(FIXED, 4096, PLAIN, count, count * 4096, count * 4112, slips_root(slips))


@given(st.integers(1, 300), st.integers(0, 12))
def test_an_uncle_layer_is_the_tree_cut_at_a_depth(size: int, depth: int) -> None:
    leaves = [block_hash(n.to_bytes(4, "big")) for n in range(size)]
    parts = merkle.cut(size, depth)
    assert [low for low, _ in parts] == [0, *(high for _, high in parts[:-1])]
    assert parts[-1][1] == size
    assert len(parts) <= 1 << depth
    assert blocks_root([blocks_root(leaves[low:high]) for low, high in parts]) == blocks_root(leaves)


def test_a_cut_is_a_function_of_size_alone() -> None:
    assert merkle.cut(11, 2) == [(0, 4), (4, 8), (8, 10), (10, 11)]
    assert merkle.cut(5, 9) == [(n, n + 1) for n in range(5)]
    assert merkle.cut(1, 3) == [(0, 1)]
    assert merkle.cut(0, 3) == []
    for size, depth in ((-1, 1), (4, -1)):
        with pytest.raises(Misuse):
            merkle.cut(size, depth)


@given(st.integers(2, 40), st.integers(0, 4), st.data())
def test_a_bad_uncle_or_slip_is_found_before_it_is_used(count: int, depth: int, data: st.DataObject) -> None:
    slips = slips_of(count)
    docket = docket_of(slips)
    parts = merkle.cut(count, depth)
    uncles = [slips_root(slips[low * SLIP_BYTES : high * SLIP_BYTES]) for low, high in parts]
    assert docket.check_uncles(depth, uncles) == parts
    bad = data.draw(st.integers(0, len(parts) - 1))
    forged = [*uncles[:bad], bytes(32), *uncles[bad + 1 :]]
    for layer in (forged, uncles[:-1], [*uncles, uncles[0]], [*uncles[:-1], b"short"]):
        with pytest.raises(Forged, match="uncle layer"):
            docket.check_uncles(depth, layer)
    low, high = parts[bad]
    honest = slips[low * SLIP_BYTES : high * SLIP_BYTES]
    assert len(docket.check_slips(low, high, uncles[bad], honest)) == high - low
    at = data.draw(st.integers(0, len(honest) - 1))
    flipped = honest[:at] + bytes([honest[at] ^ 1]) + honest[at + 1 :]
    for sent in (flipped, honest[:-SLIP_BYTES], honest + honest, honest[:-1]):
        with pytest.raises(Forged, match=f"slips {low} to {high - 1}"):
            docket.check_slips(low, high, uncles[bad], sent)


def test_slips_that_lie_about_lengths_are_refused_with_the_number() -> None:
    good = Slip(bytes(32), 4112, 4096, bytes(32))
    for bad in (
        good._replace(plain_length=1 << 31),
        good._replace(sealed_length=15),
        good._replace(sealed_length=4113),
        good._replace(plain_length=TARGET_MAX * 4 + 1, sealed_length=100),
    ):
        with pytest.raises(Malformed, match="slip 8:"):
            Slips(good.encode() + bad.encode(), 7)
    with pytest.raises(Malformed, match="multiple"):
        Slips(good.encode()[:-1])
    short = good._replace(plain_length=4000, sealed_length=4016).encode() + good.encode()
    with pytest.raises(Malformed, match="slip 0: a chunk of 4000 bytes"):
        docket_of(short).check_slips(0, 2, slips_root(short), short)
    docket = replace(docket_of(slips_of(3)), plain_length=12_000, sealed_length=12_048)
    with pytest.raises(Malformed, match="docket says otherwise"):
        docket.check_lengths(Slips(slips_of(3)))


def test_a_docket_is_short_and_reads_back() -> None:
    largest = Docket(GEAR, TARGET_MAX, ZSTD, COUNT_MAX, LENGTH_MAX, LENGTH_MAX, b"r" * 32)
    for docket in (DOCKET, largest, Docket(FIXED, 65536, PLAIN, 1, 0, 16, bytes(32))):
        assert len(docket.encode()) < DOCKET_BYTES_MAX
        assert Docket.decode(docket.encode()) == docket


def test_every_flipped_bit_of_a_docket_is_refused_or_another_docket() -> None:
    """Its signature is outside; here no flip is read as the same docket, and none as an error that is not ours."""
    data = DOCKET.encode()
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with suppress(Malformed):
            assert Docket.decode(bytes(flipped)) != DOCKET


@pytest.mark.parametrize(
    "change",
    [
        {"target_bytes": 5000},
        {"count": 4},
        {"count": 2},
        {"plain_length": 0},
        {"sealed_length": 10_047},
        {"sealed_length": 10_049, "compression": ZSTD},
        {"sealed_length": 47, "compression": ZSTD},
        {"cut": GEAR, "count": 11},
    ],
)
def test_a_docket_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match="docket"):
        replace(DOCKET, **change)


def test_dockets_beyond_the_bounds_are_refused() -> None:
    fields = [1, FIXED, 4096, PLAIN, 3, 10_000, 10_048, b"r" * 32]
    for at, value in ((0, 2), (1, 2), (2, 1 << 30), (3, 2), (4, 0), (4, COUNT_MAX + 1), (5, LENGTH_MAX + 1), (7, b"")):
        with pytest.raises(Malformed):
            Docket.decode(_encoded([*fields[:at], value, *fields[at + 1 :]]))
    with pytest.raises(Malformed, match="at most"):
        Docket.decode(bytes(DOCKET_BYTES_MAX + 1))


def _encoded(fields: list[object]) -> bytes:
    return wire.encode(fields)


def test_a_number_seals_once_and_opens_only_in_its_place() -> None:
    cipher = NumberedCipher(bytes(32))
    sealed = [cipher.seal(0, b"first"), cipher.seal(1, b"second")]
    for number in (0, 1):
        with pytest.raises(Misuse, match="serves once"):
            cipher.seal(number, b"another")
    for number in (-1, 1 << 32):
        with pytest.raises(Misuse):
            cipher.open(number, sealed[0])
    assert cipher.open(1, sealed[1]) == b"second"
    for number, chunk in ((0, sealed[1]), (1, sealed[0]), (0, sealed[0][:-1]), (0, b"")):
        with pytest.raises(CannotOpen):
            cipher.open(number, chunk)


def test_two_numbers_sealed_alike_would_give_away_their_difference() -> None:
    """The attack that the rising number stops: under one key and nonce, ciphertexts differ as plaintexts do."""
    one, other = NumberedCipher(bytes(32)).seal(0, b"attack"), NumberedCipher(bytes(32)).seal(0, b"defend")
    assert bytes(a ^ b for a, b in zip(one[:6], other[:6], strict=True)) == bytes(
        a ^ b for a, b in zip(b"attack", b"defend", strict=True)
    )


def test_a_repeated_random_state_repeats_no_key_for_other_content() -> None:
    secret, entropy = b"s" * 32, b"e" * 32
    drawn = {
        ObjectKey.draw(secret, *others)
        for others in (
            (entropy, b"one", GEAR, 4096, 3),
            (entropy, b"other", GEAR, 4096, 3),
            (b"f" * 32, b"one", GEAR, 4096, 3),
            (entropy, b"one", FIXED, 4096, 3),
            (entropy, b"one", GEAR, 8192, 3),
            (entropy, b"one", GEAR, 4096, 0),
        )
    }
    assert len(drawn) == 6
    key = ObjectKey.draw(secret, entropy, b"one", GEAR, 4096, 3)
    assert key in drawn
    assert key.plain_hash(b"x") != ObjectKey(bytes(32)).plain_hash(b"x")
    with pytest.raises(Misuse):
        ObjectKey.draw(secret, b"short", b"one", GEAR, 4096, 3)


def test_keys_are_not_shown() -> None:
    assert "6b6b" not in repr(ObjectReference(bytes(32), b"k" * 32, 1)) + repr(ObjectKey(b"k" * 32))
    assert "kkkk" not in repr(ObjectReference(bytes(32), b"k" * 32, 1)) + repr(ObjectKey(b"k" * 32))
    for root, key, length in ((b"", bytes(32), 1), (bytes(32), b"", 1), (bytes(32), bytes(32), -1)):
        with pytest.raises(Malformed):
            ObjectReference(root, key, length)
