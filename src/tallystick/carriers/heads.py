"""The head of every lane at this node, and where it lies.

Kept in memory, rebuilt from the storage itself: a snapshot says how far it covers each partition, the rest is read from
headers. A head moves on as soon as the guards take its parcel, so that the next one is judged behind it; it counts for
good once the parcel is stored, and goes back where it was if that fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import sha256

from tallystick import wire
from tallystick.carriers.storage import Location, Place, Storage, Taken, headers_of
from tallystick.guards.publish import Head, Lanes
from tallystick.parcel.header import Header
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.disk import read_all, write_atomic

log = logging.getLogger(__name__)

_PATH = "heads"


class Heads:
    """`lanes` are the heads as the guards see them."""

    def __init__(self, storage: Storage, lanes_max: int, principal_of: Callable[[Header], bytes]) -> None:
        self._storage = storage
        self._stored = Lanes(lanes_max)
        self._where: dict[tuple[bytes, bytes], Location] = {}
        self.lanes = Lanes(lanes_max, self._stored)
        self._ahead: dict[tuple[bytes, bytes], Taken] = {}  # the newest of each lane that is not stored yet
        self._rebuild(principal_of)

    def __len__(self) -> int:
        return len(self._where)

    def advance(self, taken: Taken) -> None:
        """The lane's head is now this parcel."""
        header = taken.parcel.header
        self.lanes.advance(taken.principal, header)
        self._ahead[taken.principal, header.lane] = taken

    def take_back(self, principal: bytes, lane: bytes) -> None:
        """What is not stored never came: the lane's head is the one that is."""
        self.lanes.restore(principal, lane, None)
        self._ahead.pop((principal, lane), None)

    def is_stored(self, principal: bytes, lane: bytes) -> bool:
        return (principal, lane) not in self._ahead

    def where(self, principal: bytes, lane: bytes) -> Location | Taken:
        """Where the lane's head lies."""
        return self._ahead.get((principal, lane)) or self._where[principal, lane]

    def stored(self, principal: bytes, header: Header, found: Location) -> None:
        """A parcel is stored in these places, or in these too."""
        key = principal, header.lane
        head, ahead = self._stored.head(*key), self._ahead.get(key)
        if ahead is not None and ahead.parcel.hash == header.hash:
            found = Location(ahead.places, ahead.offsets)
        if head is None or header.sequence > head.sequence:
            self._where[key] = found
            self._stored.advance(principal, header)
        elif head.parcel == header.hash:  # in another of its topics
            known = dict(zip(*self._where[key], strict=True)) | dict(zip(*found, strict=True))
            self._where[key] = Location(tuple(sorted(known)), tuple(known[place] for place in sorted(known)))
        if ahead is None:
            return
        if ahead.parcel.header.sequence <= header.sequence:
            self.take_back(*key)
        else:
            self.lanes.advance(principal, ahead.parcel.header)  # the lane itself is among the stored ones now

    # The snapshot.

    def save(self) -> None:
        """Write a snapshot, so that the next start reads only what came after it; without one it reads all."""
        storage = self._storage
        covered = [[place.token, place.partition, storage.end(place)] for place in storage.places()]
        lanes = [
            [principal, lane, head.sequence, head.parcel, head.closed, *map(list, self._where[principal, lane])]
            for principal, lane, head in self._stored.items()
        ]
        data = wire.encode([1, covered, lanes])
        try:
            write_atomic(storage.disk, _PATH, data + sha256(data).digest())
        except OSError as error:
            log.warning("heads of lanes: not saved (%s); the next start reads them from the log", error.strerror)

    def _rebuild(self, principal_of: Callable[[Header], bytes]) -> None:
        covered = self._load()
        for place in self._storage.places():
            for entry in headers_of(self._storage, place, covered.get(place, 0), self._storage.end(place)):
                header = Parcel.decode_front(entry.header).header
                self.stored(principal_of(header), header, Location((place,), (entry.offset,)))

    def _load(self) -> dict[Place, int]:
        """What the snapshot covers; a missing or unreadable one costs a full read and nothing else."""
        disk = self._storage.disk
        if not disk.exists(_PATH):
            return {}
        data = read_all(disk, _PATH)
        if sha256(data[:-32]).digest() != data[-32:]:
            return {}
        version, covered, lanes = wire.decode(data[:-32], "heads")
        marks = {Place(token, partition): end for token, partition, end in covered}
        if version != 1 or any(end > self._storage.end(place) for place, end in marks.items()):
            return {}  # of another log, or of one that was longer
        for principal, lane, sequence, parcel, closed, places, offsets in lanes:
            self._stored.restore(principal, lane, Head(sequence, parcel, closed))
            self._where[principal, lane] = Location(tuple(Place(*place) for place in places), tuple(offsets))
        return marks
