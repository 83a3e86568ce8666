"""How far each partition is anchored on the ledger, and what a node can prove from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tallystick.carriers.storage import Place, Storage
from tallystick.carriers.voids import Void, is_void
from tallystick.errors import Unavailable
from tallystick.trust.promise import Anchor
from tallystick.trust.receipt import EntryProof, Receipt

SOON_S = 0.5  # when to ask again for what is not anchored yet


class Newest(NamedTuple):
    """The newest anchor of a partition: its size, and the transaction and entry that it is."""

    size: int
    transaction: int
    entry: int


class AnchorBook:
    """The newest anchor of each partition. Sizes only grow, so readers need no lock."""

    def __init__(
        self,
        storage: Storage,
        newest: Mapping[Place, Newest],
        entry_proof: Callable[[int, int], EntryProof],
    ) -> None:
        """`entry_proof` proves an entry of a transaction."""
        self._storage, self._newest, self._entry_proof = storage, dict(newest), entry_proof

    def __len__(self) -> int:
        return len(self._newest)

    def remember(self, anchor: Anchor, number: int, index: int) -> None:
        """The ledger took an anchor, as this entry of this transaction."""
        place = Place(anchor.token, anchor.partition)
        if anchor.size > self.size(place):
            self._newest[place] = Newest(anchor.size, number, index)

    def size(self, place: Place) -> int:
        return self._newest[place].size if place in self._newest else 0

    def tree_size(self, place: Place, asked: int | None) -> int:
        """The size of the tree to prove in: the one asked for, which must be anchored, or the newest."""
        newest = self.size(place)
        if asked is not None and asked > newest:
            raise Unavailable(f"anchored are {newest} parcels, {asked} were asked for", retry_after_s=SOON_S)
        return newest if asked is None else asked

    def grown(self) -> list[Anchor]:
        """Anchors for the partitions that hold more than the ledger knows."""
        anchors = []
        for place in self._storage.places():
            size = self._storage.end(place)
            if size > self.size(place):
                anchors.append(Anchor(place.token, place.partition, size, self._storage.tree(place).root(size)))
        return anchors

    def receipt(self, place: Place, offset: int) -> Receipt:
        """The proof that the parcel at `offset` is anchored, under the newest published checkpoint."""
        if offset >= self.size(place):
            raise Unavailable(f"offset {offset} is not anchored yet", retry_after_s=SOON_S)
        _, number, index = self._newest[place]
        proof = self._entry_proof(number, index)
        size = Anchor.decode_entry(proof.entry).size
        return Receipt(offset, tuple(self._storage.tree(place).inclusion(offset, size)), proof)

    def inclusion(self, place: Place, size: int, offsets: Sequence[int]) -> list[list[bytes]]:
        """Paths of several offsets in the tree of `size` parcels, which must be anchored."""
        size = self.tree_size(place, size)
        return [self._storage.tree(place).inclusion(offset, size) for offset in offsets]

    def verdict(self, place: Place, offset: int) -> str:
        """Why what lies at an anchored offset was refused; empty if it was not."""
        entries = self._storage.read(place, offset, offset + 1, 1, headers=True)
        if not entries or entries[0].offset != offset:
            raise Unavailable(f"offset {offset} is not anchored yet", retry_after_s=SOON_S)
        return Void.decode(entries[0].header).reason if is_void(entries[0].header) else ""

    def retirable(self, now_ms: int, bytes_max: int | None, age_max_ms: int | None) -> list[tuple[Place, int, bytes]]:
        """What retention proposes: (place, below, the tree's root at that size), of anchored parcels only."""
        if bytes_max is None and age_max_ms is None:
            return []
        found = []
        for place in self._storage.places():
            partition = self._storage.tree(place)
            below = min(self._storage.retirable(place, now_ms, bytes_max, age_max_ms), self.size(place))
            if below > partition.below:
                found.append((place, below, partition.root(below)))
        return found


class Growth:
    """The anchorer of a storage that is the only one to grow its partitions: its anchors go beside the operations."""

    def __init__(self, anchored: AnchorBook) -> None:
        self._anchored = anchored

    def grown(self) -> list[Anchor]:
        return self._anchored.grown()

    def work(self, now_ms: int) -> bool:
        return False  # the front writes them

    def statistics(self) -> Mapping[str, int]:
        return {}  # the front's numbers say it all

    def close(self) -> None:
        """Nothing is open."""
