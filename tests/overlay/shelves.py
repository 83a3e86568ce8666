"""What a relay has stored, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from overlays import AUTHORITY

from tallystick.carriers.storage import Place
from tallystick.crypto.merkle import Tree, leaf_hash
from tallystick.parcel.parcel import Parcel, front_bytes
from tallystick.trust.permit import Permit


@dataclass
class MemoryShelf:
    others: Sequence[bytes] = ()
    parcels: dict[Place, list[bytes]] = field(default_factory=dict)
    blobs: dict[bytes, bytes] = field(default_factory=dict)
    given_up: int = 0  # bodies below are not here any more
    let_go: int = 0  # bodies below need not be

    def read(self, place: Place, first: int, below: int, bytes_max: int) -> list[bytes]:
        found: list[bytes] = []
        for offset, data in enumerate(self.parcels[place][first:below], first):
            part = data[: front_bytes(data)] if offset < self.given_up else data
            bytes_max -= len(part)
            if found and bytes_max < 0:
                break
            found.append(part)
        return found

    def end(self, place: Place) -> int:
        return len(self.parcels.get(place, ()))

    def tree(self, place: Place) -> Tree:
        return Tree([leaf_hash(Parcel.decode_front(data).hash) for data in self.parcels[place]])

    def range_proof(self, place: Place, first: int, end: int, size: int) -> list[bytes] | None:
        return self.tree(place).range_proof(first, end, size)

    def root_at(self, place: Place, size: int) -> bytes | None:
        return self.tree(place).root(size) if size <= self.end(place) else None

    def blob(self, name: bytes) -> bytes | None:
        return self.blobs.get(name)

    def sources(self, token: bytes) -> Sequence[bytes]:
        return self.others

    def retired(self, place: Place) -> int:
        return self.let_go

    def check_permit(self, permit: Permit) -> None:
        permit.verify(AUTHORITY)
