"""The notary's index: what lies at each anchored offset of Kafka, as headers and voids without bodies, with trees and
the heads of lanes in each partition.

It is a log store that holds no bodies, and grows only behind the ledger, so nothing in it is ever taken back; after a
crash the rest is read from Kafka again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from tallystick.carriers.carrier import is_void
from tallystick.carriers.log.storage import LogStorage
from tallystick.carriers.log.store import LogStore
from tallystick.carriers.storage import Place
from tallystick.crypto import merkle
from tallystick.guards.publish import Lanes
from tallystick.parcel.header import Header
from tallystick.parcel.parcel import Parcel

READ_BYTES = 64 << 20  # of headers at once


class KafkaIndex:
    """Single-threaded by the front's lock, but for reads."""

    def __init__(self, store: LogStore, principal_of: Callable[[Header], bytes], lanes_max: int) -> None:
        """`principal_of` is a stored parcel's publisher."""
        self._store, self._lanes_max = store, lanes_max
        self.log = LogStorage(store)
        self._lanes: dict[Place, Lanes] = {}
        self._bytes: Counter[Place] = Counter()
        for place in store.places():
            self._rebuild(place, principal_of)

    def end(self, place: Place) -> int:
        return self._store.end_offset(place)

    def has(self, place: Place, parcel: bytes) -> bool:
        return self.log.find(place, parcel) is not None

    def lanes(self, place: Place) -> Lanes:
        return self._lanes.setdefault(place, Lanes(self._lanes_max))

    def bytes_stored(self, place: Place) -> int:
        """Of the bodies, in Kafka."""
        return self._bytes[place]

    def root_with(self, place: Place, hashes: Sequence[bytes]) -> bytes:
        """The root of the tree with these parcels behind it."""
        if self.end(place):
            return self._store.partition(place).root_with(hashes)
        return merkle.root([merkle.leaf_hash(one) for one in hashes])

    def grow(self, place: Place, shown: Sequence[tuple[bytes, bytes]], now_ms: int) -> None:
        """Take in consecutive offsets, each as its hash and what is kept of it."""
        for parcel_hash, header in shown:
            self._store.stage([place], parcel_hash, header, b"", now_ms)
        self._store.sync()

    def learn(self, place: Place, principal: bytes, header: Header) -> None:
        """A parcel that readers shall open lies there."""
        lanes = self.lanes(place)
        head = lanes.head(principal, header.lane)
        if head is None or header.sequence > head.sequence:
            lanes.advance(principal, header)
        self._bytes[place] += header.body_bytes

    def _rebuild(self, place: Place, principal_of: Callable[[Header], bytes]) -> None:
        offset, end = 0, self.end(place)
        while offset < end:
            for entry in self._store.read(place, offset, READ_BYTES, True):
                offset = entry.offset + 1
                if not is_void(entry.header):
                    header = Parcel.decode_front(entry.header).header
                    self.learn(place, principal_of(header), header)
