"""The node's own disk as a storage: the log store, as the front asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tallystick.carriers.log.partition import Partition
from tallystick.carriers.log.store import Blobs, LogStatistics, LogStore
from tallystick.carriers.storage import Entry, Place, Taken


class LogStorage:
    def __init__(self, store: LogStore) -> None:
        self._store, self.disk = store, store.disk

    @property
    def blobs(self) -> Blobs:
        return self._store.blobs

    def carry(self, parcels: Sequence[Taken]) -> None:
        """They are here."""

    def store(self, taken: Taken) -> None:
        parcel = taken.parcel
        front, body = parcel.encode_front(), bytes(parcel.body)
        taken.offsets = self._store.stage(taken.places, parcel.hash, front, body, taken.now_ms).planned

    def share(self, blobs: Mapping[bytes, bytes]) -> None:
        """With nobody."""

    def deposit(self, name: bytes, data: bytes) -> None:
        self._store.stage_blob(name, data)

    def sync(self) -> None:
        self._store.sync()

    def places(self) -> list[Place]:
        return self._store.places()

    def end(self, place: Place) -> int:
        return self._store.end_offset(place)

    def read(self, place: Place, offset: int, end: int, bytes_max: int, headers: bool) -> list[Entry]:
        return self._store.read(place, offset, bytes_max, headers, below=end)

    def find(self, place: Place, parcel: bytes) -> int | None:
        return self._store.partition(place).find(parcel) if self._store.end_offset(place) else None

    def tree(self, place: Place) -> Partition:
        return self._store.partition(place)

    def bytes_stored(self, place: Place) -> int:
        return self._store.partition(place).bytes_stored()

    def retirable(self, place: Place, now_ms: int, bytes_max: int | None, age_max_ms: int | None) -> int:
        return self._store.retirable(place, now_ms, bytes_max, age_max_ms)

    def retire(self, place: Place, below: int) -> None:
        self._store.retire(place, below)

    def statistics(self) -> LogStatistics:
        return self._store.statistics()

    def close(self) -> None:
        self._store.close()
