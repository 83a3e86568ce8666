"""From locks to keys. Every label stands in docs/formats/keys.md.

    secrets of the locks ─ HKDF ─► lane key (one per column group)
    lane key, identifier ─ HKDF ─► body key, salt key, commitment

AES-GCM alone opens one ciphertext under two keys, so the header carries a commitment to the lane key that is
compared before decryption. A body key serves once: the identifier under which it is derived mixes fresh entropy with
the publisher's own secret and the hash of the plaintext, so a repeated random state (a restored snapshot, a cloned
vehicle) repeats no key unless it repeats the very same parcel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tallystick.crypto.kdf import derive, extract

SECRET_BYTES = 32
SALT_BYTES = 16
_ZERO_NONCE = bytes(16)
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
        return Cipher(algorithms.AES(self.salt_key), modes.CTR(_ZERO_NONCE)).encryptor().update(zeros)


def parcel_identifier(
    identifier_secret: bytes, entropy: bytes, lane: bytes, sequence: int, frames: Sequence[bytes]
) -> bytes:
    """16 bytes that no two different parcels share, whatever the state of the random source."""
    plaintext = blake3()
    for frame in frames:
        plaintext.update(len(frame).to_bytes(8, "little"))
        plaintext.update(frame)
    label = "tallystick identifier 1"
    return derive(identifier_secret, label, entropy, lane, sequence, plaintext.digest())[:16]
