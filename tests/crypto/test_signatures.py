"""Signatures under contexts, and hybrid roots."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tallystick.crypto import signatures
from tallystick.crypto.signatures import RootKey, RootVerifyKey, SigningKey, VerifyKey
from tallystick.errors import Forged, Malformed, Misuse

KEY = SigningKey.from_seed(bytes(32))
ROOT = RootKey.from_seed(bytes(32))
CONTEXT = "tallystick parcel 1"


def test_a_signature_verifies_under_the_key_that_travelled() -> None:
    signature = KEY.sign(CONTEXT, b"header")
    assert len(signature) == signatures.SIGNATURE_BYTES
    VerifyKey(KEY.public.raw).verify(CONTEXT, signature, b"header")
    assert VerifyKey(KEY.public.raw) == KEY.public
    assert len({VerifyKey(KEY.public.raw), KEY.public}) == 1


def test_the_covered_bytes_are_length_context_message() -> None:
    KEY.public.verify_raw(KEY.sign(CONTEXT, b"header"), b"\x13" + CONTEXT.encode() + b"header")


@pytest.mark.parametrize(
    ("context", "message"),
    [
        ("tallystick permit 1", b"header"),
        (CONTEXT, b"headers"),
        ("tallystick parcel 1h", b"eader"),
        ("tallystick parcel ", b"1header"),
    ],
)
def test_another_context_or_message_is_forged(context: str, message: bytes) -> None:
    signature = KEY.sign(CONTEXT, b"header")
    with pytest.raises(Forged):
        KEY.public.verify(context, signature, message)


@pytest.mark.parametrize("signature", [b"", bytes(63), bytes(64), bytes(65)])
def test_what_is_no_signature_is_forged(signature: bytes) -> None:
    with pytest.raises(Forged):
        KEY.public.verify(CONTEXT, signature, b"header")
    with pytest.raises(Forged):
        ROOT.public.verify(CONTEXT, signature, b"header")


def test_contexts_are_ours_and_raw_messages_are_not() -> None:
    for context in ("", "parcel", "tallystick", "tallystick " + "x" * 250):
        with pytest.raises(Misuse):
            KEY.sign(context, b"")
    # Otherwise whoever gets a note signed could get a parcel signed.
    with pytest.raises(Misuse, match="reads like a context"):
        KEY.sign_raw(b"\x13" + CONTEXT.encode() + b"header")
    KEY.public.verify_raw(KEY.sign_raw(b"tallystick/ab\n7\n"), b"tallystick/ab\n7\n")


def test_keys_of_small_order_are_malformed() -> None:
    for text in sorted(key.hex() for key in signatures._SMALL_ORDER):
        for sign_bit in (0, 0x80):
            raw = bytearray.fromhex(text)
            raw[31] |= sign_bit
            with pytest.raises(Malformed, match="small order"):
                VerifyKey(bytes(raw))


def test_without_it_one_signature_fits_every_message() -> None:
    identity = b"\x01" + bytes(31)
    for message in (b"one", b"another"):
        Ed25519PublicKey.from_public_bytes(identity).verify(identity + bytes(32), message)


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_odd_lengths_are_malformed(length: int) -> None:
    for make in (VerifyKey, RootVerifyKey, SigningKey.from_seed, RootKey.from_seed):
        with pytest.raises(Malformed, match=f"found {length}"):
            make(bytes(length))


def test_a_root_signature_needs_both_halves() -> None:
    signature = ROOT.sign(CONTEXT, b"trust")
    assert len(signature) == signatures.ROOT_SIGNATURE_BYTES
    public = RootVerifyKey(ROOT.public.raw)
    public.verify(CONTEXT, signature, b"trust")
    other = ROOT.sign(CONTEXT, b"other")
    for broken in (other[:64] + signature[64:], signature[:64] + other[64:]):
        with pytest.raises(Forged):
            public.verify(CONTEXT, broken, b"trust")
    with pytest.raises(Forged):
        public.verify("tallystick permit 1", signature, b"trust")


def test_half_a_root_signature_verifies_nowhere_else() -> None:
    signature = ROOT.sign(CONTEXT, b"trust")
    with pytest.raises(Forged):
        VerifyKey(ROOT.public.raw[:32]).verify(CONTEXT, signature[:64], b"trust")
    # A root made of one root's Ed25519 half and another's ML-DSA half takes neither's signature.
    other = RootKey.from_seed(b"\x01" * 32)
    mixed = RootVerifyKey(ROOT.public.raw[:32] + other.public.raw[32:])
    with pytest.raises(Forged):
        mixed.verify(CONTEXT, signature[:64] + other.sign(CONTEXT, b"trust")[64:], b"trust")


def test_a_root_key_of_small_order_is_malformed() -> None:
    with pytest.raises(Malformed):
        RootVerifyKey(bytes(32) + ROOT.public.raw[32:])
