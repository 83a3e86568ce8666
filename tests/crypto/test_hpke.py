"""Hybrid public-key encryption."""

from __future__ import annotations

import pytest

from tallystick.crypto import hpke
from tallystick.errors import CannotOpen, Malformed, Misuse

PRIVATE = hpke.PrivateKey.generate(bytes(32))


def test_seals_and_opens_with_keys_that_travelled() -> None:
    public = hpke.PublicKey.decode(PRIVATE.public.encode())
    private = hpke.PrivateKey.decode(PRIVATE.encode())
    assert public == PRIVATE.public
    assert private == PRIVATE
    sealed = hpke.seal(public, b"lane key", b"lock")
    assert len(sealed) == len(b"lane key") + hpke.SEAL_BYTES
    assert hpke.open_(private, sealed, b"lock") == b"lane key"


def test_entropy_determines_the_key() -> None:
    assert hpke.PrivateKey.generate(bytes(32)).public == PRIVATE.public
    assert hpke.PrivateKey.generate(bytes(33)).public != PRIVATE.public
    assert hpke.PrivateKey.generate(b"\x01" + bytes(31)).public != PRIVATE.public
    with pytest.raises(Misuse, match="at least 32"):
        hpke.PrivateKey.generate(bytes(31))


def test_all_failures_have_one_face() -> None:
    sealed = hpke.seal(PRIVATE.public, b"lane key", b"lock")
    attempts = [
        (PRIVATE, sealed, b"another lock"),
        (hpke.PrivateKey.generate(b"\x01" * 32), sealed, b"lock"),
        (PRIVATE, sealed[:-1], b"lock"),
        (PRIVATE, sealed[:100], b"lock"),
        (PRIVATE, b"", b"lock"),
        (PRIVATE, sealed + b"\x00", b"lock"),
        (PRIVATE, sealed[:1088] + bytes(32) + sealed[1120:], b"lock"),  # an X25519 point of small order
    ]
    attempts += [(PRIVATE, _flip(sealed, at), b"lock") for at in range(0, len(sealed), 61)]
    for private, data, info in attempts:
        with pytest.raises(CannotOpen, match=r"^cannot open$") as caught:
            hpke.open_(private, data, info)
        assert caught.value.__cause__ is None


@pytest.mark.parametrize("length", [0, 31, 1184, 1215, 1217])
def test_odd_lengths_are_malformed(length: int) -> None:
    with pytest.raises(Malformed, match=f"found {length}"):
        hpke.PublicKey.decode(bytes(length))
    with pytest.raises(Malformed, match=f"found {length}"):
        hpke.PrivateKey.decode(bytes(length))


def test_invalid_halves_are_malformed() -> None:
    raw = PRIVATE.public.encode()
    with pytest.raises(Malformed, match="not a valid pair"):
        hpke.PublicKey.decode(b"\xff" * 1184 + raw[1184:])  # coefficients not below q
    with pytest.raises(Malformed, match="not a valid pair"):
        hpke.PublicKey.decode(raw[:1184] + bytes(32))  # small order


def test_a_private_key_does_not_print_itself() -> None:
    assert PRIVATE.encode().hex() not in repr(PRIVATE)
    assert repr(PRIVATE.encode()) not in repr(PRIVATE)


def _flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
