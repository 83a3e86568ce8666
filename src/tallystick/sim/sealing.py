"""Sealing that replays.

The library draws the ephemeral keys of HPKE where no seed reaches, and a run that cannot be repeated to the last byte
cannot be debugged: sealed bytes enter headers, headers enter hashes, and hashes decide which page SQLite writes next.
So a simulation seals with X25519 alone, its ephemeral keys drawn from the seed, in a form of the same length. Who can
open what stays as it is; what ML-KEM adds is not what a simulation is about.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from tallystick.crypto import aead, hpke
from tallystick.crypto.kdf import derive
from tallystick.errors import CannotOpen
from tallystick.runtime.entropy import Entropy

_FILLING = bytes(hpke.SEAL_BYTES - 32 - 16)


@contextmanager
def seeded_sealing(entropy: Entropy) -> Iterator[None]:
    """Let everything in this process seal with `entropy` until the end of the block."""

    def seal(public: hpke.PublicKey, plaintext: bytes, info: bytes) -> bytes:
        private = X25519PrivateKey.from_private_bytes(entropy.bytes(32))
        peer = X25519PublicKey.from_public_bytes(public.raw[hpke.MLKEM_PUBLIC_BYTES :])
        ephemeral = private.public_key().public_bytes_raw()
        return ephemeral + _FILLING + aead.encrypt(_key(private, peer, ephemeral, info), plaintext)

    real = hpke.seal, hpke.open_
    hpke.seal, hpke.open_ = seal, _open
    try:
        yield
    finally:
        hpke.seal, hpke.open_ = real


def _open(private: hpke.PrivateKey, sealed: bytes, info: bytes) -> bytes:
    if len(sealed) < hpke.SEAL_BYTES:
        raise CannotOpen
    own = X25519PrivateKey.from_private_bytes(derive(private.seed, "tallystick hpke seed 1", 2))
    peer = X25519PublicKey.from_public_bytes(sealed[:32])
    return aead.decrypt(_key(own, peer, sealed[:32], info), sealed[32 + len(_FILLING) :])


def _key(private: X25519PrivateKey, peer: X25519PublicKey, ephemeral: bytes, info: bytes) -> bytes:
    return sha256(private.exchange(peer) + ephemeral + info).digest()
