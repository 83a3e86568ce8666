"""One-time encryption and wrapping."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.crypto import symmetric
from tallystick.errors import CannotOpen, Misuse

KEY = bytes(range(32))
ENTROPY = bytes(32)


@given(st.binary(max_size=200), st.binary(max_size=40))
def test_round_trips(plaintext: bytes, aad: bytes) -> None:
    assert symmetric.decrypt(KEY, symmetric.encrypt(KEY, plaintext, aad), aad) == plaintext
    assert symmetric.unwrap(KEY, symmetric.wrap(KEY, plaintext, aad, ENTROPY), aad) == plaintext


def test_into_buffers_gives_the_same_bytes() -> None:
    plaintext = b"rows" * 100
    sealed = bytearray(len(plaintext) + symmetric.TAG_BYTES)
    assert symmetric.encrypt_into(KEY, plaintext, sealed, b"header") == len(sealed)
    assert sealed == symmetric.encrypt(KEY, plaintext, b"header")
    opened = bytearray(len(plaintext))
    assert symmetric.decrypt_into(KEY, memoryview(sealed), memoryview(opened), b"header") == len(plaintext)
    assert opened == plaintext


def test_every_flipped_byte_is_one_cannot_open() -> None:
    wrapped = symmetric.wrap(KEY, b"secret", b"place", ENTROPY)
    for at in range(len(wrapped)):
        broken = bytearray(wrapped)
        broken[at] ^= 1
        with pytest.raises(CannotOpen, match=r"^cannot open$"):
            symmetric.unwrap(KEY, bytes(broken), b"place")
    for end in range(len(wrapped)):
        with pytest.raises(CannotOpen, match=r"^cannot open$"):
            symmetric.unwrap(KEY, wrapped[:end], b"place")


def test_another_place_or_key_cannot_open() -> None:
    wrapped = symmetric.wrap(KEY, b"secret", b"place", ENTROPY)
    with pytest.raises(CannotOpen):
        symmetric.unwrap(KEY, wrapped, b"elsewhere")
    with pytest.raises(CannotOpen):
        symmetric.unwrap(bytes(32), wrapped, b"place")
    with pytest.raises(CannotOpen):
        symmetric.decrypt_into(KEY, b"short", bytearray(0))
    with pytest.raises(CannotOpen):
        symmetric.decrypt_into(KEY, bytes(20), bytearray(4))


def test_a_repeated_random_state_gives_two_secrets_two_keys() -> None:
    first, second = b"attack at dawn!!", b"defend at dusk!!"
    one = symmetric.wrap(KEY, first, b"", ENTROPY)[symmetric.SALT_BYTES :]
    two = symmetric.wrap(KEY, second, b"", ENTROPY)[symmetric.SALT_BYTES :]
    assert _xor(one, two)[:16] != _xor(first, second)
    same_text_elsewhere = symmetric.wrap(KEY, first, b"elsewhere", ENTROPY)[symmetric.SALT_BYTES :]
    assert same_text_elsewhere[:16] != one[:16]


def test_without_it_the_ciphertexts_give_away_the_difference() -> None:
    first, second = b"attack at dawn!!", b"defend at dusk!!"
    one, two = symmetric.encrypt(KEY, first), symmetric.encrypt(KEY, second)  # a one-time key used twice
    assert _xor(one, two)[:16] == _xor(first, second)


@pytest.mark.parametrize("length", [0, 16, 24, 31, 33])
def test_only_32_byte_keys(length: int) -> None:
    with pytest.raises(Misuse, match=f"expected 32 bytes, found {length}"):
        symmetric.encrypt(bytes(length), b"")


def test_too_little_entropy_and_wrong_buffers_are_misuse() -> None:
    with pytest.raises(Misuse, match="entropy"):
        symmetric.wrap(KEY, b"", b"", bytes(31))
    with pytest.raises(Misuse, match="expected 17 bytes"):
        symmetric.encrypt_into(KEY, b"x", bytearray(16))
    with pytest.raises(Misuse, match="expected 1 bytes"):
        symmetric.decrypt_into(KEY, bytes(17), bytearray(2))


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_a_fingerprint_tells_data_apart_and_hangs_on_its_key(one: bytes, two: bytes) -> None:
    assert (symmetric.fingerprint(KEY, one) == symmetric.fingerprint(KEY, two)) == (one == two)
    assert symmetric.fingerprint(KEY, one) != symmetric.fingerprint(bytes(32), one)
