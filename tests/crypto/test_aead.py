"""One-time encryption and wrapping."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.crypto import aead
from tallystick.errors import CannotOpen, Misuse

KEY = bytes(range(32))
ENTROPY = bytes(32)


@given(st.binary(max_size=200), st.binary(max_size=40))
def test_round_trips(plaintext: bytes, aad: bytes) -> None:
    assert aead.decrypt(KEY, aead.encrypt(KEY, plaintext, aad), aad) == plaintext
    assert aead.unwrap(KEY, aead.wrap(KEY, plaintext, aad, ENTROPY), aad) == plaintext


def test_into_buffers_gives_the_same_bytes() -> None:
    plaintext = b"rows" * 100
    sealed = bytearray(len(plaintext) + aead.TAG_BYTES)
    assert aead.encrypt_into(KEY, plaintext, sealed, b"header") == len(sealed)
    assert sealed == aead.encrypt(KEY, plaintext, b"header")
    opened = bytearray(len(plaintext))
    assert aead.decrypt_into(KEY, memoryview(sealed), memoryview(opened), b"header") == len(plaintext)
    assert opened == plaintext


def test_every_flipped_byte_is_one_cannot_open() -> None:
    wrapped = aead.wrap(KEY, b"secret", b"place", ENTROPY)
    for at in range(len(wrapped)):
        broken = bytearray(wrapped)
        broken[at] ^= 1
        with pytest.raises(CannotOpen, match=r"^cannot open$"):
            aead.unwrap(KEY, bytes(broken), b"place")
    for end in range(len(wrapped)):
        with pytest.raises(CannotOpen, match=r"^cannot open$"):
            aead.unwrap(KEY, wrapped[:end], b"place")


def test_another_place_or_key_cannot_open() -> None:
    wrapped = aead.wrap(KEY, b"secret", b"place", ENTROPY)
    with pytest.raises(CannotOpen):
        aead.unwrap(KEY, wrapped, b"elsewhere")
    with pytest.raises(CannotOpen):
        aead.unwrap(bytes(32), wrapped, b"place")
    with pytest.raises(CannotOpen):
        aead.decrypt_into(KEY, b"short", bytearray(0))
    with pytest.raises(CannotOpen):
        aead.decrypt_into(KEY, bytes(20), bytearray(4))


def test_a_repeated_random_state_gives_two_secrets_two_keys() -> None:
    first, second = b"attack at dawn!!", b"defend at dusk!!"
    one = aead.wrap(KEY, first, b"", ENTROPY)[aead.SALT_BYTES :]
    two = aead.wrap(KEY, second, b"", ENTROPY)[aead.SALT_BYTES :]
    assert _xor(one, two)[:16] != _xor(first, second)
    same_text_elsewhere = aead.wrap(KEY, first, b"elsewhere", ENTROPY)[aead.SALT_BYTES :]
    assert same_text_elsewhere[:16] != one[:16]


def test_without_it_the_ciphertexts_give_away_the_difference() -> None:
    first, second = b"attack at dawn!!", b"defend at dusk!!"
    one, two = aead.encrypt(KEY, first), aead.encrypt(KEY, second)  # a one-time key used twice
    assert _xor(one, two)[:16] == _xor(first, second)


@pytest.mark.parametrize("length", [0, 16, 24, 31, 33])
def test_only_32_byte_keys(length: int) -> None:
    with pytest.raises(Misuse, match=f"expected 32 bytes, found {length}"):
        aead.encrypt(bytes(length), b"")


def test_too_little_entropy_and_wrong_buffers_are_misuse() -> None:
    with pytest.raises(Misuse, match="entropy"):
        aead.wrap(KEY, b"", b"", bytes(31))
    with pytest.raises(Misuse, match="expected 17 bytes"):
        aead.encrypt_into(KEY, b"x", bytearray(16))
    with pytest.raises(Misuse, match="expected 1 bytes"):
        aead.decrypt_into(KEY, bytes(17), bytearray(2))


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_a_fingerprint_tells_data_apart_and_hangs_on_its_key(one: bytes, two: bytes) -> None:
    assert (aead.fingerprint(KEY, one) == aead.fingerprint(KEY, two)) == (one == two)
    assert aead.fingerprint(KEY, one) != aead.fingerprint(bytes(32), one)
