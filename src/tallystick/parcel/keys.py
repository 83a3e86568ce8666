"""From locks to keys. Every label stands in docs/formats/keys.md.

    secrets of the locks ─ HKDF ─► lane key (one per column group)
    lane key, identifier ─ HKDF ─► body key, salt key, commitment
    publisher's secret, entropy, lane, sequence, fingerprint of the plaintext ─ HKDF ─► identifier

AES-GCM alone opens one ciphertext under two keys, so the header carries a commitment to the lane key that is
compared before decryption. A body key serves once: the identifier under which it is derived mixes fresh entropy with
the publisher's own secret and a fingerprint of the plaintext, so a repeated random state (a restored snapshot, a cloned
vehicle) repeats no key unless it repeats the very same parcel. The fingerprint is keyed and never leaves the
derivation: it need only tell apart what others make a publisher seal, and they do not know its key; a publisher that
wanted to repeat a key could do so without finding collisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tallystick.crypto import aead
from tallystick.crypto.kdf import derive, extract

SECRET_BYTES = 32
SALT_BYTES = 16
_COUNTER = modes.CTR(bytes(16))
_ZEROS = memoryview(bytes(SALT_BYTES * 8192))  # enough for most parcels, so that none need be made


@dataclass(frozen=True, repr=False)
class LaneKey:
    """The key of one column group of a lane, and the locks (in order) through which readers reach it."""

    key: bytes
    locks: tuple[bytes, ...]

    @classmethod
    def of(
        cls,
        secrets: Sequence[bytes],
        locks: Sequence[bytes],
        *,
        instance: bytes,
        lane: bytes,
        group: int,
        permits: Sequence[bytes],
    ) -> LaneKey:
        """Locks compose by AND: the key hangs on the secret of each, and on their hashes and order.

        And on the permits in the order of the header's topics: guards let nobody use another's, so a publisher that
        copies a body it cannot read into a parcel of its own, with the locks and the lane's name, has copied noise.
        """
        root, who = extract(b"", b"".join(secrets)), b"".join(permits)
        return cls(derive(root, "tallystick lane key 1", instance, lane, group, who, *locks), tuple(locks))


@dataclass(frozen=True, repr=False)
class ParcelKeys:
    """The keys of one column group of one parcel."""

    body_key: bytes
    salt_key: bytes
    commitment: bytes

    @classmethod
    def of(cls, lane_key: LaneKey, sequence: int, identifier: bytes) -> ParcelKeys:
        return cls(
            derive(lane_key.key, "tallystick body key 1", sequence, identifier),
            derive(lane_key.key, "tallystick salt key 1", sequence, identifier),
            derive(lane_key.key, "tallystick commitment 1", sequence, identifier),
        )

    def salts(self, count: int) -> bytes:
        """`count` salts of 16 bytes: the AES-256-CTR key stream of the salt key."""
        size = SALT_BYTES * count
        zeros = _ZEROS[:size] if size <= len(_ZEROS) else bytes(size)
        return Cipher(algorithms.AES(self.salt_key), _COUNTER).encryptor().update(zeros)


@dataclass(frozen=True, repr=False)
class IdentifierKeys:
    """What a publisher names its parcels by."""

    secret: bytes
    fingerprint_key: bytes

    @classmethod
    def of(cls, identifier_secret: bytes) -> IdentifierKeys:
        return cls(identifier_secret, derive(identifier_secret, "tallystick fingerprint key 1"))

    def identifier(self, entropy: bytes, lane: bytes, sequence: int, frames: Sequence[bytes]) -> bytes:
        """16 bytes that no two different parcels share, whatever the state of the random source."""
        plaintext = [aead.fingerprint(self.fingerprint_key, frame) for frame in frames]
        return derive(self.secret, "tallystick identifier 1", entropy, lane, sequence, *plaintext)[:16]
