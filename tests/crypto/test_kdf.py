"""HKDF under registered labels."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from tallystick import wire
from tallystick.crypto import symmetric
from tallystick.errors import Misuse

KEY = bytes(range(32))


def test_derive_is_hkdf_expand_with_encoded_info() -> None:
    info = wire.encode(["tallystick body key 1", b"parcel", 7])
    expected = HKDFExpand(SHA256(), 32, info).derive(KEY)
    assert symmetric.derive(KEY, "tallystick body key 1", b"parcel", 7) == expected


def test_extract_is_hkdf_extract() -> None:
    assert symmetric.extract(b"salt", b"secret") == HKDF.extract(SHA256(), b"salt", b"secret")


def test_every_label_gives_another_key() -> None:
    assert len({symmetric.derive(KEY, label) for label in symmetric.LABELS}) == len(symmetric.LABELS)


def test_context_parts_do_not_run_into_one_another() -> None:
    label = "tallystick undo subscribe 1"
    contexts: list[tuple[bytes | int, ...]]
    contexts = [(b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"abc", b""), (1,), (b"\x01",)]
    assert len({symmetric.derive(KEY, label, *context) for context in contexts}) == len(contexts)


def test_an_undo_token_is_not_a_topic_token_of_the_same_name() -> None:
    # EventGuard derives both alike: who names a topic after another's identifier gets its undo token.
    name = b"subscription-42"
    assert symmetric.derive(KEY, "tallystick token 1", name) != symmetric.derive(
        KEY, "tallystick undo subscribe 1", name
    )


def test_an_unregistered_label_is_a_misuse() -> None:
    with pytest.raises(Misuse, match="not registered"):
        symmetric.derive(KEY, "tallystick body key 2")


def test_a_short_key_is_a_misuse() -> None:
    with pytest.raises(Misuse, match="at least 32 bytes, found 31"):
        symmetric.derive(KEY[:31], "tallystick body key 1")
