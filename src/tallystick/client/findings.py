"""Findings: what a reader noticed being done to a stream, by name and with evidence; and the rules by which rows are
marked late or suspect, the same for subscribers and Spark.

The reasons, one word each:

    altered          the range is not the anchored one: bytes were changed, swapped, cut out or slipped in
    missing          a parcel of a lane is not where the next one says it is
    repeated         a parcel of a lane comes a second time, or out of order
    broken-chain     a parcel does not follow the one before it
    equivocation     a publisher signed two parcels of one sequence
    bad-signature    a parcel that its publisher did not sign, and other reasons of a forgery
    wrong-partition  a lane lies where it does not belong
    split-view       a publisher was shown another ledger than we are
    rollback         the ledger went back
    stale-head       no checkpoint is young enough: a tail may be withheld
    silent           a publisher neither spoke nor closed its lane
    gap              a publisher says that it had to drop rows
    cannot-open      a verified parcel does not open
    erased           its key was destroyed on purpose
    refused          the notary behind Kafka did not take it: not opened, and its reason told
    suspect          anchored after its publisher's key was revoked
    bad-commit       a commit parcel that lies: not the ledger's list, another's parcels, or its rows a second time
    retired          rows of a write were retired, as the ledger says, before its commit parcel was read
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tallystick import wire
from tallystick.crypto.hashes import named_hash
from tallystick.errors import Withheld
from tallystick.parcel.parcel import Parcel

LATE_S = 60.0  # between sealing and anchor

# What a publisher, an authority or a carrier did openly is told and does not stop a reader.
OPEN_REASONS = ("gap", "erased", "silent", "suspect", "refused", "retired")


@dataclass(frozen=True)
class Finding:
    reason: str
    message: str
    token: bytes
    partition: int
    offset: int | None = None
    publisher: bytes = b""
    lane: bytes = b""
    sequence: int | None = None
    evidence: tuple[bytes, ...] = field(default=(), repr=False)  # headers with signatures, notes, parcels

    @classmethod
    def about(
        cls,
        reason: str,
        message: str,
        place: tuple[bytes, int, int],
        publisher: bytes,
        parcel: Parcel | None,
        *evidence: bytes,
    ) -> Finding:
        """Of a parcel at a place (token, partition, offset); its signed header is evidence, beside what is given."""
        if parcel is None:
            return cls(reason, message, *place, publisher, evidence=evidence)
        header = parcel.header
        shown = (*evidence, header.encoded, parcel.signature)
        return cls(reason, message, *place, publisher, header.lane, header.sequence, shown)

    def encode(self) -> bytes:
        """As kept in the identity folder's `evidence`."""
        return wire.encode(
            [
                *(1, self.reason, self.message, self.token, self.partition, self.offset),
                *(self.publisher, self.lane, self.sequence, list(self.evidence)),
            ]
        )

    def keep(self, home: Path) -> Path:
        """Write it to the evidence in an identity's folder; the same finding is one file."""
        data = self.encode()
        folder = home / "evidence"
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"{self.reason}-{named_hash('tallystick finding 1', data).hex()[:16]}"
        path.write_bytes(data)
        return path


def is_late(sealed_ms: int, anchored_ms: int, late_s: float = LATE_S) -> bool:
    """Whether a parcel was sealed, by its publisher's clock, long before it was anchored; 0 is no claim."""
    return bool(sealed_ms) and anchored_ms - sealed_ms > late_s * 1000


def is_suspect(revoked: int, height: int | None) -> bool:
    """Whether what is anchored at this height, or not yet at all, came after its publisher's key was revoked; 0 is
    never."""
    return bool(revoked) and (height is None or height >= revoked)


class FoundError(Withheld):
    """A finding that stops the iteration."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message, reason=finding.reason)
        self.finding = finding
