"""Key agreement: X25519 (RFC 7748), for links whose two ends know each other's public keys.

Threat: a public key of small order, under which the agreed secret is a constant that anybody knows; agreeing with one
is `Malformed`. The agreed secret is not uniform: it may only enter an extraction. Left out: quantum computers, since a
second public key of a kilobyte does not fit where this one is used (links of the mesh); what travels there is sealed
again, for years, by HPKE.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from tallystick.errors import Malformed

EXCHANGE_BYTES = 32  # of a seed, a public key and an agreed secret


class ExchangeKey:
    """A private key, made from its 32-byte seed."""

    __slots__ = ("_key", "public")

    def __init__(self, seed: bytes) -> None:
        if len(seed) != EXCHANGE_BYTES:
            raise Malformed(f"exchange key: expected {EXCHANGE_BYTES} bytes, found {len(seed)}")
        self._key = X25519PrivateKey.from_private_bytes(seed)
        self.public = self._key.public_key().public_bytes_raw()

    def agree(self, public: bytes) -> bytes:
        """The secret that both ends compute. Raises `Malformed` if `public` is no key, or one of small order."""
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise Malformed("exchange key: not a public key of full order") from error
