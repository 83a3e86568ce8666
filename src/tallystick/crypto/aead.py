"""AES-256-GCM in two forms: a key that serves once, and a key that wraps often.

Threat: two messages under one key and nonce give away their difference and the authentication key. `encrypt`
has no nonce to choose (it is zero) and its key must serve **once**; the caller derives it from something
that never repeats. `wrap` is for keys that serve often: each call derives a one-time key through a 32-byte
salt that is itself derived from the entropy, the associated data *and* the plaintext, so that a repeated
random state repeats a key only for the same message, and then repeats the same bytes. Left out: key
commitment. GCM can be made to open one ciphertext under two keys; where that matters (parcels) a commitment
stands beside the ciphertext.
"""

from __future__ import annotations

import hashlib

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tallystick.crypto.kdf import KEY_BYTES, derive
from tallystick.errors import CannotOpen, Misuse

TAG_BYTES = 16
SALT_BYTES = 32
WRAP_BYTES = SALT_BYTES + TAG_BYTES  # what `wrap` adds to a plaintext

Buffer = bytes | bytearray | memoryview

_NONCE = bytes(12)


def encrypt(key: bytes, plaintext: Buffer, aad: Buffer = b"") -> bytes:
    """Ciphertext and tag. The key must never be used again."""
    return _cipher(key).encrypt(_NONCE, plaintext, aad)


def decrypt(key: bytes, ciphertext: Buffer, aad: Buffer = b"") -> bytes:
    """The plaintext; raises `CannotOpen`."""
    try:
        return _cipher(key).decrypt(_NONCE, ciphertext, aad)
    except InvalidTag:
        raise CannotOpen from None


def encrypt_into(key: bytes, plaintext: Buffer, buffer: bytearray | memoryview, aad: Buffer = b"") -> int:
    """As `encrypt`, into a buffer of exactly `len(plaintext) + TAG_BYTES`; the number of bytes written."""
    _check_buffer(buffer, len(plaintext) + TAG_BYTES)
    return _cipher(key).encrypt_into(_NONCE, plaintext, aad, buffer)


def decrypt_into(key: bytes, ciphertext: Buffer, buffer: bytearray | memoryview, aad: Buffer = b"") -> int:
    """As `decrypt`, into a buffer of exactly `len(ciphertext) - TAG_BYTES`, worthless if this raises."""
    if len(ciphertext) < TAG_BYTES:
        raise CannotOpen
    _check_buffer(buffer, len(ciphertext) - TAG_BYTES)
    try:
        return _cipher(key).decrypt_into(_NONCE, ciphertext, aad, buffer)
    except InvalidTag:
        raise CannotOpen from None


def fingerprint(key: bytes, data: Buffer) -> bytes:
    """16 bytes that two different data share with a chance of their length / 2**128, for whoever lacks the key: GMAC.

    Unlike a hash it protects from nobody who has the key, and unlike a tag it must never be shown, since its nonce
    repeats: it may only enter a derivation. Its worth is that it is ten times as fast as a hash.
    """
    return _cipher(key).encrypt(_NONCE, b"", data)


def wrap(key: bytes, plaintext: bytes, aad: bytes, entropy: bytes) -> bytes:
    """Salt and ciphertext under a one-time key; `key` may wrap as often as it likes."""
    if len(entropy) < SALT_BYTES:
        raise Misuse(f"wrapping needs {SALT_BYTES} bytes of entropy, found {len(entropy)}")
    salt = derive(key, "tallystick wrap salt 1", entropy, aad, hashlib.sha256(plaintext).digest())
    return salt + encrypt(derive(key, "tallystick one-time key 1", salt), plaintext, aad)


def unwrap(key: bytes, wrapped: bytes, aad: bytes) -> bytes:
    """What was wrapped under the same key and associated data; raises `CannotOpen`."""
    if len(wrapped) < WRAP_BYTES:
        raise CannotOpen
    return decrypt(derive(key, "tallystick one-time key 1", wrapped[:SALT_BYTES]), wrapped[SALT_BYTES:], aad)


def _cipher(key: bytes) -> AESGCM:
    if len(key) != KEY_BYTES:  # AESGCM itself would take AES-128 and AES-192 keys
        raise Misuse(f"AEAD key: expected {KEY_BYTES} bytes, found {len(key)}")
    return AESGCM(key)


def _check_buffer(buffer: bytearray | memoryview, expected: int) -> None:
    if len(buffer) != expected:
        raise Misuse(f"AEAD buffer: expected {expected} bytes, found {len(buffer)}")
