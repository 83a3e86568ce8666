"""Voids: what lies at an offset that holds no parcel to open.

A carrier with guards in front stores only what they took, once. On Kafka anybody with Kafka's leave appends, so a
partition also holds what the notary refused, parcels a second time, and offsets at which readers see nothing (the ends
of transactions, aborted records). The tree has a leaf for each offset all the same: a parcel's hash where it is
repeated, else under labels of their own, so that no refused bytes pass for a parcel and no parcel for a void. The
reason is the notary's word; it stands in its anchor on the ledger. A parcel that is falsely called repeated is missed
by whoever reads its lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from tallystick import wire
from tallystick.crypto.hashes import named_hash
from tallystick.errors import Malformed
from tallystick.trust.promise import REASON_CHARACTERS_MAX
from tallystick.trust.signed import Fields

MAGIC = b"TLV\x01"
VOID_BYTES_MAX = 256


@dataclass(frozen=True)
class Void:
    """Refused bytes, by their SHA-256, and why; a parcel once more, by its hash and without a reason; or nothing."""

    digest: bytes = b""
    reason: str = ""

    @classmethod
    def refused(cls, data: bytes, reason: str) -> Void:
        return cls(sha256(data).digest(), reason)

    @classmethod
    def repeated(cls, parcel: bytes) -> Void:
        return cls(parcel)

    @property
    def hash(self) -> bytes:
        """What stands in the partition's tree where a parcel's hash would."""
        if not self.digest:
            return named_hash("tallystick empty leaf 1", b"")
        return named_hash("tallystick refused leaf 1", self.digest) if self.reason else self.digest

    def encode(self) -> bytes:
        return MAGIC + wire.encode([self.digest, self.reason])

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Void:
        if not is_void(data) or len(data) > VOID_BYTES_MAX:
            raise Malformed("not a void")
        fields = Fields.parse(bytes(data[len(MAGIC) :]), "void", 2)
        void = cls(fields.octets(at_most=32), fields.text(REASON_CHARACTERS_MAX))
        if len(void.digest) not in (0, 32) or (void.reason and not void.digest):
            raise Malformed("void: a reason without a digest")
        return void


def is_void(data: bytes | memoryview) -> bool:
    return bytes(data[: len(MAGIC)]) == MAGIC
