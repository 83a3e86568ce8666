"""Sealing that replays, and signatures that are checked once.

The library draws the ephemeral keys of HPKE where no seed reaches, and a run that cannot be repeated to the last byte
cannot be debugged: sealed bytes enter headers, headers enter hashes, and hashes decide which page SQLite writes next.
So a simulation seals with X25519 alone, its ephemeral keys drawn from the seed, in a form of the same length. Who can
open what stays as it is; what ML-KEM adds is not what a simulation is about.

Whoever signs and whoever verifies live in one process here, and a sixth of a world's time went into verifying what the
same process had signed a moment before. A signature that was made here, under this key and over these bytes, is known
to be good; every other one is verified as ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey, VerifyKey, framed
from tallystick.crypto.symmetric import decrypt, derive, encrypt
from tallystick.errors import CannotOpen
from tallystick.runtime.sources import Entropy

_FILLING = bytes(hpke.SEAL_BYTES - 32 - 16)


@contextmanager
def seeded_sealing(entropy: Entropy) -> Iterator[None]:
    """Let everything in this process seal with `entropy` until the end of the block."""

    def seal(public: hpke.PublicKey, plaintext: bytes, info: bytes) -> bytes:
        private = X25519PrivateKey.from_private_bytes(entropy.bytes(32))
        peer = X25519PublicKey.from_public_bytes(public.raw[hpke.MLKEM_PUBLIC_BYTES :])
        ephemeral = private.public_key().public_bytes_raw()
        return ephemeral + _FILLING + encrypt(_key(private, peer, ephemeral, info), plaintext)

    with _replaced(hpke, seal=seal, open_=_open):
        yield


@contextmanager
def remembered_signatures() -> Iterator[None]:
    """Until the end of the block, do not verify what this process signed within it."""
    signed: dict[tuple[bytes, bytes], bytes] = {}
    sign, sign_raw, check = SigningKey.sign, SigningKey.sign_raw, VerifyKey._check

    def sign_framed(key: SigningKey, context: str, message: bytes) -> bytes:
        signature = sign(key, context, message)
        signed[key.public.raw, signature] = framed(context, message)
        return signature

    def sign_plain(key: SigningKey, message: bytes) -> bytes:
        signature = sign_raw(key, message)
        signed[key.public.raw, signature] = message
        return signature

    def check_others(key: VerifyKey, signature: bytes, message: bytes, what: str) -> None:
        if signed.get((key.raw, signature)) != message:
            check(key, signature, message, what)

    with _replaced(SigningKey, sign=sign_framed, sign_raw=sign_plain), _replaced(VerifyKey, _check=check_others):
        yield


@contextmanager
def _replaced(owner: object, **functions: object) -> Iterator[None]:
    real = {name: getattr(owner, name) for name in functions}
    try:
        for name, function in functions.items():
            setattr(owner, name, function)
        yield
    finally:
        for name, function in real.items():
            setattr(owner, name, function)


def _open(private: hpke.PrivateKey, sealed: bytes, info: bytes) -> bytes:
    if len(sealed) < hpke.SEAL_BYTES:
        raise CannotOpen
    own = X25519PrivateKey.from_private_bytes(derive(private.seed, "tallystick hpke seed 1", 2))
    peer = X25519PublicKey.from_public_bytes(sealed[:32])
    return decrypt(_key(own, peer, sealed[:32], info), sealed[32 + len(_FILLING) :])


def _key(private: X25519PrivateKey, peer: X25519PublicKey, ephemeral: bytes, info: bytes) -> bytes:
    return sha256(private.exchange(peer) + ephemeral + info).digest()
