"""What principals leave at a node beside parcels: permits, undo orders and locks, each a blob under a name that follows
from it. A permit stays when it is given back, since it says whose the stored parcels are; the undo order beside it says
that it counts no more."""

from __future__ import annotations

from tallystick.carriers.storage import BlobReader
from tallystick.crypto.hashes import named_hash
from tallystick.errors import Refused
from tallystick.parcel.header import Header
from tallystick.trust.permit import Permit


def permit_name(identifier: bytes) -> bytes:
    return named_hash("tallystick permit blob 1", identifier)


def undo_name(identifier: bytes) -> bytes:
    return named_hash("tallystick undo blob 1", identifier)


class Deposits:
    """Those that are committed."""

    def __init__(self, blobs: BlobReader) -> None:
        self._blobs = blobs

    def lock(self, name: bytes) -> bytes:
        return self._get(name, "lock")

    def has_lock(self, name: bytes) -> bool:
        return name in self._blobs

    def permit(self, identifier: bytes) -> bytes:
        return self._get(permit_name(identifier), "permit")

    def is_undone(self, identifier: bytes) -> bool:
        """Whether the permit was given back, though the ledger may not say so yet."""
        return undo_name(identifier) in self._blobs

    def live_permit(self, identifier: bytes) -> Permit | None:
        """An admitted permit, unless it was given back."""
        data = self._blobs.get(permit_name(identifier))
        return None if data is None or self.is_undone(identifier) else Permit.decode(data)

    def principal_of(self, header: Header) -> bytes:
        """Who published a stored parcel; its permit was checked when it was admitted, and stays after an undo."""
        return Permit.decode(self.permit(header.topics[0].permit)).principal

    def _get(self, name: bytes, what: str) -> bytes:
        data = self._blobs.get(name)
        if data is None:
            raise Refused(f"no such {what}", reason="not-found")
        return data
