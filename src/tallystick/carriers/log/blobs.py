"""Locks and other objects named by their hash: stored once, never changed, many thousands of a few KiB.

They lie in a partition of their own, each as the header of an entry without a body, so that they are
synced, recovered and checked as parcels are. The table from name to offset is made from the partition's
hashes when the store opens. Names are the caller's: who fetches a lock checks its hash.
"""

from __future__ import annotations

from tallystick.carriers.log.partition import Partition
from tallystick.carriers.log.report import Damaged


class Blobs:
    """The committed blobs; the store stages and commits them."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self._offsets: dict[bytes, int] = {}
        self._known = 0
        self.refresh()

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, name: bytes) -> bool:
        return name in self._offsets

    def get(self, name: bytes) -> bytes | None:
        """The blob of this name, or None; raises `Damaged` if its bytes are."""
        offset = self._offsets.get(name)
        if offset is None:
            return None
        entry = self.partition.read(offset, 0, headers_only=True)[0]
        if entry.parcel_hash != name:
            raise Damaged(f"blob {name.hex()}: offset {offset} holds another")
        return entry.header

    def refresh(self) -> None:
        """Know the blobs committed since the last call."""
        for offset in range(self._known, self.partition.end_offset):
            self._known = offset + 1
            self._offsets[self.partition.parcel_hash(offset)] = offset
