"""Signatures: Ed25519 under a context string, and for roots of trust Ed25519 and ML-DSA-65 together.

Threat: a signature given for one purpose and shown for another. Every signature of ours covers `len(context)
‖ context ‖ message`, and every context begins with "tallystick ". Foreign formats whose message is fixed by
their own standard (C2SP notes, RFC 9421) use `sign_raw`, which refuses a message that could be read as one
of ours: so one key may serve both without either speaking for the other.

Threat: a public key of small order, under which one signature fits every message and OpenSSL is content;
such keys are `Malformed`. Threat: a quantum computer forging roots, which live for decades; a `RootKey`
signature needs both halves, and both cover the hash of the whole public key, so that a half taken alone, or
joined to another's half, verifies nowhere. The ML-DSA half is randomised inside the library: root signatures
do not replay from a seed.

A signed object is wire [body, signature], where body is the wire encoding of a fixed array. Each kind has a context of
its own, so a signature under one kind is worth nothing under another. The body's bytes are kept as they came: hashes
and signatures are over them, never over a second encoding.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey, MLDSA65PublicKey

from tallystick import wire
from tallystick.crypto.symmetric import derive
from tallystick.errors import Forged, Malformed, Misuse

SEED_BYTES = 32
PUBLIC_BYTES = 32
SIGNATURE_BYTES = 64
ROOT_PUBLIC_BYTES = PUBLIC_BYTES + 1952
ROOT_SIGNATURE_BYTES = SIGNATURE_BYTES + 3309
SIGNED_BYTES_MAX = 16 * 1024  # what one key signed; a principal's certificate has a 1,216-byte sealing key

CONTEXT_PREFIX = "tallystick "
_CONTEXT_BYTES_MAX = 255  # its length is one byte

# The y-coordinates of the eight points of small order, in every encoding that decodes to them (p and p + 1
# included), the sign bit cleared.
_SMALL_ORDER = frozenset(
    bytes.fromhex(text)
    for text in (
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    )
)


class Signer(Protocol):
    def sign(self, context: str, message: bytes) -> bytes: ...


class Verifier(Protocol):
    def verify(self, context: str, signature: bytes, message: bytes) -> None: ...


class VerifyKey:
    """An Ed25519 public key; raises `Malformed` if `raw` is none."""

    __slots__ = ("_key", "raw")

    def __init__(self, raw: bytes) -> None:
        if len(raw) != PUBLIC_BYTES:
            raise Malformed(f"signature key: expected {PUBLIC_BYTES} bytes, found {len(raw)}")
        self.raw = bytes(raw)
        if self.raw[:31] + bytes([self.raw[31] & 0x7F]) in _SMALL_ORDER:
            raise Malformed("signature key: a point of small order")
        self._key = Ed25519PublicKey.from_public_bytes(self.raw)

    def verify(self, context: str, signature: bytes, message: bytes) -> None:
        """Returns if `signature` was given for `message` in `context`. Raises `Forged`."""
        self._check(signature, framed(context, message), context)

    def verify_raw(self, signature: bytes, message: bytes) -> None:
        """As `verify`, for a message whose form another standard fixes."""
        self._check(signature, message, "raw")

    def _check(self, signature: bytes, message: bytes, what: str) -> None:
        try:
            self._key.verify(signature, message)
        except InvalidSignature:
            raise Forged(f'signature "{what}" does not verify under key {self.raw[:4].hex()}') from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VerifyKey) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"VerifyKey({self.raw.hex()})"


class SigningKey:
    """An Ed25519 private key, made from its 32-byte seed."""

    __slots__ = ("_key", "public")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = VerifyKey(key.public_key().public_bytes_raw())

    @classmethod
    def from_seed(cls, seed: bytes) -> SigningKey:
        """Raises `Malformed` for a seed of the wrong length."""
        _check_seed(seed)
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    def sign(self, context: str, message: bytes) -> bytes:
        return self._key.sign(framed(context, message))

    def derive(self, label: str) -> bytes:
        """The seed of another key of the same holder, for the one use that `label` names."""
        return derive(self._key.private_bytes_raw(), label)

    def sign_raw(self, message: bytes) -> bytes:
        """For a message whose form another standard fixes. Raises `Misuse` if it could pass for one of ours."""
        if message[1 : 1 + len(CONTEXT_PREFIX)] == CONTEXT_PREFIX.encode():
            raise Misuse("raw signature: the message reads like a context of ours")
        return self._key.sign(message)


class RootVerifyKey:
    """A root of trust: an Ed25519 and an ML-DSA-65 public key, both of which must agree."""

    __slots__ = ("_ed25519", "_mldsa", "raw")

    def __init__(self, raw: bytes) -> None:
        if len(raw) != ROOT_PUBLIC_BYTES:
            raise Malformed(f"root key: expected {ROOT_PUBLIC_BYTES} bytes, found {len(raw)}")
        self.raw = bytes(raw)
        self._ed25519 = VerifyKey(self.raw[:PUBLIC_BYTES])
        try:
            self._mldsa = MLDSA65PublicKey.from_public_bytes(self.raw[PUBLIC_BYTES:])
        except ValueError as error:
            raise Malformed("root key: not an ML-DSA-65 key") from error

    def verify(self, context: str, signature: bytes, message: bytes) -> None:
        """Returns if both halves hold. Raises `Forged`."""
        if len(signature) != ROOT_SIGNATURE_BYTES:
            raise Forged(f"root signature: expected {ROOT_SIGNATURE_BYTES} bytes, found {len(signature)}")
        bound = _bound(self.raw, message)
        self._ed25519.verify(context, signature[:SIGNATURE_BYTES], bound)
        try:
            self._mldsa.verify(signature[SIGNATURE_BYTES:], framed(context, bound))
        except InvalidSignature:
            raise Forged(f'root signature "{context}": the ML-DSA-65 half does not verify') from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RootVerifyKey) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"RootVerifyKey({self.raw[:PUBLIC_BYTES].hex()}…)"


class RootKey:
    """The private half of a root of trust, made from one 32-byte seed."""

    __slots__ = ("_ed25519", "_mldsa", "public")

    def __init__(self, ed25519: SigningKey, mldsa: MLDSA65PrivateKey) -> None:
        self._ed25519 = ed25519
        self._mldsa = mldsa
        self.public = RootVerifyKey(ed25519.public.raw + mldsa.public_key().public_bytes_raw())

    @classmethod
    def from_seed(cls, seed: bytes) -> RootKey:
        """Raises `Malformed` for a seed of the wrong length."""
        _check_seed(seed)
        ed25519 = SigningKey.from_seed(derive(seed, "tallystick root key 1", b"ed25519"))
        return cls(ed25519, MLDSA65PrivateKey.from_seed_bytes(derive(seed, "tallystick root key 1", b"ml-dsa-65")))

    def sign(self, context: str, message: bytes) -> bytes:
        bound = _bound(self.public.raw, message)
        return self._ed25519.sign(context, bound) + self._mldsa.sign(framed(context, bound))


def framed(context: str, message: bytes) -> bytes:
    """What a signature in this context covers."""
    encoded = context.encode()
    if not context.startswith(CONTEXT_PREFIX) or len(encoded) > _CONTEXT_BYTES_MAX:
        raise Misuse(f'signature context "{context}": expected "{CONTEXT_PREFIX}…" of at most 255 bytes')
    return bytes([len(encoded)]) + encoded + message


def _bound(root_public: bytes, message: bytes) -> bytes:
    return hashlib.sha256(root_public).digest() + message


def _check_seed(seed: bytes) -> None:
    if len(seed) != SEED_BYTES:
        raise Malformed(f"signing seed: expected {SEED_BYTES} bytes, found {len(seed)}")


def sign_fields(context: str, fields: list[Any], signer: Signer) -> bytes:
    """The signed object of these fields."""
    body = wire.encode(fields)
    return wire.encode([body, signer.sign(context, body)])


def split_signed(data: bytes, what: str, at_most: int = SIGNED_BYTES_MAX) -> tuple[bytes, bytes]:
    """Body and signature of a signed object, not yet verified."""
    if len(data) > at_most:
        raise Malformed(f"{what}: {len(data)} bytes, at most {at_most} expected")
    parts = wire.decode(data, what)
    if not (isinstance(parts, list) and len(parts) == 2 and all(isinstance(p, bytes) for p in parts)):
        raise Malformed(f"{what}: expected [body, signature]")
    return parts[0], parts[1]


@dataclass(frozen=True)
class SignedObject:
    """A dataclass whose annotations say how its fields travel (see `wire`), under one signature."""

    what: ClassVar[str]
    context: ClassVar[str]
    bytes_max: ClassVar[int] = SIGNED_BYTES_MAX
    body: bytes = field(default=b"", kw_only=True)
    signature: bytes = field(default=b"", kw_only=True)

    def sign(self, signer: Signer) -> Self:
        body = wire.encode([1, *wire.listed(self)])
        return replace(self, body=body, signature=signer.sign(self.context, body))

    def verify_by(self, key: VerifyKey) -> None:
        """Raises `Forged`."""
        key.verify(self.context, self.signature, self.body)

    def encode(self) -> bytes:
        return wire.encode([self.body, self.signature])

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The object, not yet verified. Raises `Malformed`."""
        body, signature = split_signed(data, cls.what, cls.bytes_max)
        return wire.read_as(cls, body, cls.what, body=body, signature=signature)
