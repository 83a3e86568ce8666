"""The head of every lane on this log, and where it lies.

Kept in memory, rebuilt from the log itself: a snapshot says how far it covers each partition, the rest is read from
headers. A head moves when its parcel is staged and moves back if the sync fails, so the next request is judged by what
is really there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import sha256

from tallystick import wire
from tallystick.carriers.log.segments import Place
from tallystick.carriers.log.store import LogStore, Staged
from tallystick.carriers.voids import is_void
from tallystick.guards.lanes import Head, Lanes
from tallystick.parcel.header import Header
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.disk import Disk, write_atomic

log = logging.getLogger(__name__)

_PATH = "heads"
_READ_BYTES = 4 << 20


class Heads:
    def __init__(self, disk: Disk, store: LogStore, lanes_max: int, principal_of: Callable[[Header], bytes]) -> None:
        self._disk, self._store = disk, store
        self.lanes = Lanes(lanes_max)
        self._where: dict[tuple[bytes, bytes], Staged] = {}
        self._undo: list[tuple[bytes, bytes, Head | None, Staged | None]] = []
        self._rebuild(principal_of)

    def advance(self, principal: bytes, header: Header, staged: Staged) -> None:
        """The lane's head is now this parcel, unless the sync fails."""
        lane = header.lane
        self._undo.append((principal, lane, self.lanes.head(principal, lane), self._where.get((principal, lane))))
        self.lanes.advance(principal, header)
        self._where[principal, lane] = staged

    def settle(self) -> None:
        """The sync went well."""
        self._undo.clear()

    def revert(self) -> None:
        """The sync failed: heads are where they were after the last good one."""
        for principal, lane, head, where in reversed(self._undo):
            self.lanes.restore(principal, lane, head)
            if where is None:
                self._where.pop((principal, lane), None)
            else:
                self._where[principal, lane] = where
        self._undo.clear()

    def is_settled(self, principal: bytes, lane: bytes) -> bool:
        """Whether the lane's head is durable; not while its parcels wait for a sync."""
        return not any((who, which) == (principal, lane) for who, which, _, _ in self._undo)

    def where(self, principal: bytes, lane: bytes) -> Staged:
        """Where the lane's head lies."""
        return self._where[principal, lane]

    def save(self) -> None:
        """Write a snapshot, so that the next start reads only what came after it; without one it reads all."""
        covered = [[place.token, place.partition, self._store.end_offset(place)] for place in self._store.places()]
        lanes = [
            [principal, lane, head.sequence, head.parcel, head.closed, *_places(self._where[principal, lane])]
            for principal, lane, head in self.lanes.items()
        ]
        data = wire.encode([1, covered, lanes])
        try:
            write_atomic(self._disk, _PATH, data + sha256(data).digest())
        except OSError as error:
            log.warning("heads of lanes: not saved (%s); the next start reads them from the log", error.strerror)

    def _rebuild(self, principal_of: Callable[[Header], bytes]) -> None:
        covered = self._load()
        for place in self._store.places():
            offset, end = covered.get(place, 0), self._store.end_offset(place)
            while offset < end:
                for entry in self._store.read(place, offset, _READ_BYTES, True):
                    offset = entry.offset + 1
                    if is_void(entry.header):
                        continue
                    self._take_up(Parcel.decode_front(entry.header).header, place, entry.offset, principal_of)

    def _take_up(self, header: Header, place: Place, offset: int, principal_of: Callable[[Header], bytes]) -> None:
        principal = principal_of(header)
        head = self.lanes.head(principal, header.lane)
        if head is not None and head.sequence > header.sequence:
            return
        staged = settled((place,), (offset,))
        if head is not None and head.sequence == header.sequence:  # the same parcel in another of its topics
            staged = joined(self._where[principal, header.lane], place, offset)
        self.lanes.advance(principal, header)
        self._where[principal, header.lane] = staged

    def _load(self) -> dict[Place, int]:
        """What the snapshot covers; a missing or unreadable one costs a full read and nothing else."""
        if not self._disk.exists(_PATH):
            return {}
        file = self._disk.open(_PATH)
        data = file.pread(0, file.size())
        file.close()
        if sha256(data[:-32]).digest() != data[-32:]:
            return {}
        version, covered, lanes = wire.decode(data[:-32], "heads")
        marks = {Place(token, partition): end for token, partition, end in covered}
        if version != 1 or any(end > self._store.end_offset(place) for place, end in marks.items()):
            return {}  # of another log, or of one that was longer
        for principal, lane, sequence, parcel, closed, places, offsets in lanes:
            self.lanes.restore(principal, lane, Head(sequence, parcel, closed))
            self._where[principal, lane] = settled(tuple(Place(*place) for place in places), tuple(offsets))
        return marks


def settled(places: tuple[Place, ...], offsets: tuple[int, ...]) -> Staged:
    """Where a durable parcel lies."""
    staged = Staged(places, offsets)
    staged.settle(None)
    return staged


def joined(staged: Staged, place: Place, offset: int) -> Staged:
    """A parcel with one more of its places, in header order, which is that of the tokens."""
    known = dict(zip(staged.places, staged.planned, strict=True)) | {place: offset}
    return settled(tuple(sorted(known)), tuple(known[one] for one in sorted(known)))


def _places(staged: Staged) -> tuple[list[list[object]], list[int]]:
    return [list(place) for place in staged.places], list(staged.planned)
