"""HPKE (RFC 9180) with X25519 and ML-KEM-768 together, HKDF-SHA256 and AES-256-GCM.

Threat: traffic recorded today and opened by a quantum computer later, or a break of the young lattice
scheme; the hybrid holds while either half does. Base mode: whoever has the public key can seal, so a sealed
message says nothing about its sender; what must be attributed is signed elsewhere. `info` binds a message to
its purpose and place, and opening under another `info` fails like every other failure, with the one
`CannotOpen`.

A private key *is* a 32-byte seed; both halves are derived from it. Encapsulation draws its randomness inside
the library, so sealing is the one act here that a seed does not replay.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, MLKEM768X25519PrivateKey, MLKEM768X25519PublicKey, Suite

from tallystick.crypto.symmetric import derive, extract
from tallystick.errors import CannotOpen, Malformed, Misuse

SEED_BYTES = 32
MLKEM_PUBLIC_BYTES = 1184
PUBLIC_BYTES = MLKEM_PUBLIC_BYTES + 32
SEAL_BYTES = 1088 + 32 + 16  # what sealing adds: both encapsulations and the tag

_SUITE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


@dataclass(frozen=True)
class PublicKey:
    """The half that seals: ML-KEM-768 public key and X25519 public key, one behind the other."""

    raw: bytes
    _key: MLKEM768X25519PublicKey = field(repr=False, compare=False)

    def encode(self) -> bytes:
        return self.raw

    @classmethod
    def decode(cls, data: bytes) -> PublicKey:
        """Raises `Malformed`."""
        if len(data) != PUBLIC_BYTES:
            raise Malformed(f"HPKE public key: expected {PUBLIC_BYTES} bytes, found {len(data)}")
        try:
            mlkem = MLKEM768PublicKey.from_public_bytes(data[:MLKEM_PUBLIC_BYTES])
            x25519 = X25519PublicKey.from_public_bytes(data[MLKEM_PUBLIC_BYTES:])
            # A point of small order would make the X25519 half a constant; exchange with any key finds it.
            _PROBE.exchange(x25519)
        except ValueError as error:
            raise Malformed("HPKE public key: not a valid pair of keys") from error
        return cls(bytes(data), MLKEM768X25519PublicKey(mlkem, x25519))


@dataclass(frozen=True)
class PrivateKey:
    """The half that opens; `seed` is all of it."""

    seed: bytes = field(repr=False)
    public: PublicKey = field(compare=False)
    _key: MLKEM768X25519PrivateKey = field(repr=False, compare=False)

    @classmethod
    def generate(cls, entropy: bytes) -> PrivateKey:
        """The key pair that `entropy` (at least 32 bytes) determines."""
        if len(entropy) < SEED_BYTES:
            raise Misuse(f"HPKE key: expected at least {SEED_BYTES} bytes of entropy, found {len(entropy)}")
        return cls.decode(extract(b"tallystick hpke seed 1", entropy))

    def encode(self) -> bytes:
        """The seed: a secret."""
        return self.seed

    @classmethod
    def decode(cls, data: bytes) -> PrivateKey:
        """Raises `Malformed`."""
        if len(data) != SEED_BYTES:
            raise Malformed(f"HPKE private key: expected {SEED_BYTES} bytes, found {len(data)}")
        parts = [derive(data, "tallystick hpke seed 1", number) for number in range(3)]
        mlkem = MLKEM768PrivateKey.from_seed_bytes(parts[0] + parts[1])
        x25519 = X25519PrivateKey.from_private_bytes(parts[2])
        raw = mlkem.public_key().public_bytes_raw() + x25519.public_key().public_bytes_raw()
        public = PublicKey(raw, MLKEM768X25519PublicKey(mlkem.public_key(), x25519.public_key()))
        return cls(bytes(data), public, MLKEM768X25519PrivateKey(mlkem, x25519))


def seal(public: PublicKey, plaintext: bytes, info: bytes) -> bytes:
    """`plaintext` for the holder of the private key, and for `info` only."""
    return _SUITE.encrypt(plaintext, public._key, info)


def open_(private: PrivateKey, sealed: bytes, info: bytes) -> bytes:
    """What was sealed to this key under this `info`. Raises `CannotOpen`."""
    try:
        return _SUITE.decrypt(sealed, private._key, info)
    except (InvalidTag, ValueError):
        raise CannotOpen from None


_PROBE = X25519PrivateKey.from_private_bytes(bytes(range(32)))
