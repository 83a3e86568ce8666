"""A secret at rest under a passphrase."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick import wire
from tallystick.crypto.passphrase import Cost, lock_secret, unlock_secret
from tallystick.crypto.symmetric import SALT_BYTES
from tallystick.errors import CannotOpen, Malformed, Misuse, Refused

CHEAP = Cost(memory_kib=32, iterations=1, lanes=1)
ENTROPY = bytes(range(32))
LOCKED = lock_secret(b"master", b"open sesame", ENTROPY, CHEAP)


def test_round_trip() -> None:
    assert unlock_secret(LOCKED, b"open sesame") == b"master"


def test_a_wrong_passphrase_cannot_open() -> None:
    for wrong in (b"", b"open sesam", b"open sesame "):
        with pytest.raises(CannotOpen):
            unlock_secret(LOCKED, wrong)


def test_every_flipped_byte_is_refused() -> None:
    for at in range(len(LOCKED)):
        with pytest.raises((CannotOpen, Malformed)):
            unlock_secret(LOCKED[:at] + bytes([LOCKED[at] ^ 1]) + LOCKED[at + 1 :], b"open sesame")


def test_a_planted_cost_is_refused_before_it_is_paid() -> None:
    for memory_kib, iterations, lanes in [
        (1 << 20 | 1, 1, 1),
        (1 << 40, 1, 1),
        (31, 1, 1),
        (32, 17, 1),
        (32, 0, 1),
        (32, 1, 5),
        (32, 1, 0),
    ]:
        with pytest.raises(Malformed, match="out of bounds"):
            unlock_secret(_planted(1, memory_kib, iterations, lanes, ENTROPY), b"open sesame")
        with pytest.raises(Misuse, match="out of bounds"):
            lock_secret(b"master", b"open sesame", ENTROPY, Cost(memory_kib, iterations, lanes))


def test_other_versions_and_forms_are_malformed() -> None:
    for data in (
        _planted(2, 32, 1, 1, ENTROPY),
        _planted(True, 32, 1, 1, ENTROPY),
        _planted(1, 32, 1, 1, b"short"),
        wire.encode([b"", b""]),
        wire.encode([1]),
        b"",
    ):
        with pytest.raises(Malformed):
            unlock_secret(data, b"open sesame")


@given(st.binary(max_size=80))
def test_junk_raises_only_ours(data: bytes) -> None:
    with pytest.raises(Refused):
        unlock_secret(data, b"open sesame")


def test_a_repeated_random_state_gives_two_secrets_two_keys() -> None:
    first, second = (wire.decode(lock_secret(secret, b"p", ENTROPY, CHEAP))[1] for secret in (b"aaaa", b"bbbb"))
    assert first[:SALT_BYTES] != second[:SALT_BYTES]


def test_too_little_entropy_is_a_misuse() -> None:
    with pytest.raises(Misuse):
        lock_secret(b"master", b"open sesame", bytes(31), CHEAP)


def _planted(version: int, memory_kib: int, iterations: int, lanes: int, salt: bytes) -> bytes:
    return wire.encode([wire.encode([version, memory_kib, iterations, lanes, salt]), bytes(60)])
