"""The carrier at a node. Its storage forgets all when the node ends, so an instance lives as long as its node."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence

from tallystick.carriers.carrier import Can
from tallystick.carriers.registry import CarrierHost, CarrierSettings, Served
from tallystick.carriers.storage import Entry, Growth, Place, Taken
from tallystick.crypto.merkle import Tree, leaf_hash
from tallystick.errors import Misuse
from tallystick.runtime.disk import Disk

CAN = (Can.SENDING | Can.READING) & ~Can.RETIRE  # bodies stay


class MemoryPartition(Tree):
    """The entries of a partition, and the tree over them."""

    below = 0  # no body is ever given up

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Entry] = []


class MemoryJournal:
    """What the front did, until the ledger has it."""

    def __init__(self) -> None:
        self._records: list[tuple[int, bytes]] = []
        self._staged: list[bytes] = []
        self.replay_end = 0
        self._lock = threading.Lock()  # acts are journalled while others are synced

    def append(self, record: bytes) -> int:
        with self._lock:
            self._staged.append(record)
            return self.replay_end + len(self._staged) - 1

    def replay(self) -> list[tuple[int, bytes]]:
        return list(self._records)

    def trim(self, upto: int) -> None:
        self._records = [one for one in self._records if one[0] >= upto]

    def commit(self) -> None:
        with self._lock:
            self._records += enumerate(self._staged, self.replay_end)
            self.replay_end += len(self._staged)
            self._staged = []


class MemoryStorage:
    notes_publishers = True

    def __init__(self, disk: Disk) -> None:
        self.disk, self.journal = disk, MemoryJournal()
        self.blobs: dict[bytes, bytes] = {}
        self._partitions: defaultdict[Place, MemoryPartition] = defaultdict(MemoryPartition)
        self._staged: list[Taken] = []
        self._blobs: dict[bytes, bytes] = {}  # staged

    def carry(self, parcels: Sequence[Taken]) -> None:
        """They are here."""

    def share(self, blobs: Mapping[bytes, bytes]) -> None:
        """With nobody."""

    def store(self, taken: Taken) -> None:
        ahead = [place for one in self._staged for place in one.places]
        taken.offsets = tuple(self.end(place) + ahead.count(place) for place in taken.places)
        self._staged.append(taken)

    def deposit(self, name: bytes, data: bytes) -> None:
        self._blobs[name] = data

    def sync(self) -> None:
        for one in self._staged:
            parcel = one.parcel
            for place, offset in zip(one.places, one.offsets, strict=True):
                partition = self._partitions[place]
                partition.append(leaf_hash(parcel.hash))
                body = bytes(parcel.body)
                partition.entries.append(Entry(offset, parcel.hash, parcel.encode_front(), body, len(body), one.now_ms))
        self.blobs |= self._blobs
        self._staged, self._blobs = [], {}
        self.journal.commit()

    def places(self) -> list[Place]:
        return [place for place, partition in self._partitions.items() if partition.entries]

    def end(self, place: Place) -> int:
        return len(self._partitions[place].entries)

    def read(
        self, place: Place, offset: int, bytes_max: int, headers_only: bool = False, *, below: int | None = None
    ) -> list[Entry]:
        found: list[Entry] = []
        for entry in self._partitions[place].entries[offset:below]:
            bytes_max -= len(entry.header) + (0 if headers_only else entry.body_bytes)
            if found and bytes_max < 0:
                break
            found.append(entry._replace(body=None) if headers_only else entry)
        return found

    def underway(self, place: Place, parcel: bytes) -> None:
        """Everything is in a tree at once."""

    def promised(self, place: Place, offset: int) -> None:
        """By this node alone."""

    def tree(self, place: Place) -> MemoryPartition:
        return self._partitions[place]

    def bytes_stored(self, place: Place) -> int:
        return sum(entry.body_bytes for entry in self._partitions[place].entries)

    def retirable(self, place: Place, limit: int) -> int:
        return 0

    def retire(self, place: Place, below: int) -> None:
        raise Misuse("what is in memory is not retired")

    def statistics(self) -> int:
        return sum(len(partition.entries) for partition in self._partitions.values())

    def close(self) -> None:
        """Nothing stays."""


def serve(settings: CarrierSettings, host: CarrierHost, disk: Disk) -> Served:
    storage = MemoryStorage(disk)
    front = host.front(storage, storage.journal, host.anchors())
    return Served(front, Growth(front.anchored))
