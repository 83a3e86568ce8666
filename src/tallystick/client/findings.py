"""Findings: what a reader noticed being done to a stream, by name and with evidence.

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


class FoundError(Withheld):
    """A finding that stops the iteration."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message, reason=finding.reason)
        self.finding = finding
