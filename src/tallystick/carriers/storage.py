"""What lies behind a node's front: a storage, which keeps what the guards took, and an anchorer, which brings it to the
ledger. A carrier that stores parcels brings one of each; the front (front.py) is the same for all of them.
`AnchorBook` knows how far each partition is anchored on the ledger, and what a node can prove from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from tallystick.carriers.carrier import Void, is_void
from tallystick.errors import Refused, TallystickError, Unavailable
from tallystick.parcel.labels import Wanted
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.disk import Disk
from tallystick.trust.promise import Anchor, JointPromise
from tallystick.trust.receipt import AnchoredBefore, EntryProof, Receipt

HEADERS_BYTES = 4 << 20  # of headers at once, where a partition is read through


class Damaged(Unavailable):
    """Stored bytes are not what was written; trying again will not help before the disk is restored."""


class Place(NamedTuple):
    """A partition of a topic. The token of the blobs' own partition is empty."""

    token: bytes
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} of {self.token.hex()}" if self.token else "blobs"


class Entry(NamedTuple):
    """An entry as it is read; `body` is None if only the header was asked for."""

    offset: int
    parcel_hash: bytes
    header: bytes
    body: bytes | memoryview | None
    body_bytes: int
    stored_ms: int
    content: bytes | memoryview | None = None  # header and body, where they lie together

    @property
    def parcel(self) -> bytes | memoryview:
        """Header and body, as far as they were asked for; a copy only where they lie apart."""
        return self.header + (self.body or b"") if self.content is None else self.content


class Location(NamedTuple):
    """Where a stored parcel lies: its offset in each of its places."""

    places: tuple[Place, ...]
    offsets: tuple[int, ...]


@dataclass(eq=False)
class Taken:
    """A parcel that the guards took, on its way into the storage. It has its offsets once it lies there, or will with
    the next sync; or the error that kept it out."""

    parcel: Parcel
    principal: bytes
    places: tuple[Place, ...]
    now_ms: int
    offsets: tuple[int, ...] = ()
    error: TallystickError | None = None


class BlobReader(Protocol):
    """Small objects under a name, those that are durable."""

    def __contains__(self, name: bytes) -> bool: ...

    def get(self, name: bytes) -> bytes | None: ...


class PartitionTree(Protocol):
    """The Merkle tree over the parcels of a partition."""

    @property
    def below(self) -> int:
        """Up to which offset bodies were given up."""

    def root(self, size: int) -> bytes: ...

    def inclusion(self, offset: int, size: int) -> list[bytes]: ...

    def consistency(self, old: int, new: int) -> list[bytes]: ...

    def range_proof(self, first: int, end: int, size: int) -> list[bytes]: ...


class Storage(Protocol):
    """Keeps parcels and blobs, and shares its sync with the journal in which the front writes down what it did. Raises
    `Unavailable` where it cannot for now. `carry`, `share` and `sync` may take their time, so the front's lock is not
    held, and acts may be journalled meanwhile; whatever else changes something is called under that lock, and between
    it and its sync nobody else syncs."""

    disk: Disk  # for what the front keeps beside
    notes_publishers: bool  # whether the front notes for the ledger who published; else whoever anchors does

    @property
    def blobs(self) -> BlobReader: ...

    def carry(self, parcels: Sequence[Taken]) -> None:
        """Bring parcels to where they will lie, if that is elsewhere; each has its offsets or its error then."""

    def store(self, taken: Taken) -> None:
        """Let one be stored with the next sync; it has its offsets."""

    def share(self, blobs: Mapping[bytes, bytes]) -> None:
        """Show blobs, by name, to the other nodes of the instance, where they share any."""

    def deposit(self, name: bytes, data: bytes) -> object:
        """Let a blob be stored with the next sync."""

    def sync(self) -> None:
        """Make all that was stored, deposited and journalled durable, or none of it."""

    def places(self) -> list[Place]: ...

    def end(self, place: Place) -> int: ...

    def read(
        self, place: Place, offset: int, bytes_max: int, headers_only: bool = False, *, below: int | None = None
    ) -> list[Entry]:
        """Entries from `offset` on, and with lower offsets than `below`: as many as fit `bytes_max`, and at least one
        unless it is the end. A short answer is not the end."""

    def underway(self, place: Place, parcel: bytes) -> int | None:
        """The offset of the parcel with this hash, if it lies where `carry` brought it and is in no tree yet."""

    def promised(self, place: Place, offset: int) -> JointPromise | None:
        """What several nodes promised together for a place; where they did not, the front promises alone."""

    def tree(self, place: Place) -> PartitionTree: ...

    def bytes_stored(self, place: Place) -> int: ...

    def retirable(self, place: Place, limit: int) -> int:
        """Below which offset bodies can be given up where all below `limit` may go, at most that."""

    def retire(self, place: Place, below: int) -> None: ...

    def statistics(self) -> Any: ...

    def close(self) -> None: ...


def headers_of(storage: Storage, place: Place, first: int, end: int) -> Iterator[Entry]:
    """The fronts of the parcels in a range, over as many segments as it lies in; voids are passed over."""
    while first < end:
        entries = storage.read(place, first, HEADERS_BYTES, headers_only=True, below=end)
        yield from (entry for entry in entries if not is_void(entry.header))
        first = entries[-1].offset + 1 if entries else end


def select(storage: Storage, place: Place, wanted: Wanted, offset: int, end: int, bytes_max: int) -> list[Entry]:
    """What a permit with labels is sent: parcels that share a label whole, the others without their bodies. Returns
    consecutive entries from `offset` on and below `end`: about `bytes_max` of them, and at least one if there is any.

    Every parcel of the range is there, so that chain, anchor and range proof hold as without labels; what is saved is
    bodies, which are read from the disk only where they are wanted. The node learns which labels are equal, and nothing
    else; the subscriber holds it to the same rule (parcel/labels.py), so a body cannot be kept back under its cover.
    """
    found: list[Entry] = []
    left = bytes_max
    fronts = storage.read(place, offset, bytes_max, headers_only=True, below=end)
    for is_whole, group in groupby(fronts, lambda entry: _is_wanted(entry, wanted)):
        run = list(group)
        entries = storage.read(place, run[0].offset, max(left, 1), below=run[-1].offset + 1) if is_whole else run
        found += entries
        left -= sum(len(entry.header) + len(entry.body or b"") for entry in entries)
        if left <= 0 or len(entries) < len(run):
            break
    return found


def _is_wanted(entry: Entry, wanted: Wanted) -> bool:
    return is_void(entry.header) or wanted.asks_for(Parcel.decode_front(entry.header).header)


class Anchorer(Protocol):
    """Brings what a storage holds under anchors on the ledger."""

    def grown(self) -> list[Anchor]:
        """Anchors that the front is to write beside the operations."""

    def work(self, now_ms: int) -> bool:
        """Write what the front does not. Returns False if there was nothing."""

    def statistics(self) -> Mapping[str, Any]:
        """Numbers of its own, beside those of front and storage."""

    def close(self) -> None: ...


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

    def anchored_before(
        self, place: Place, size: int, revocation: tuple[int, int], anchor: tuple[int, int]
    ) -> AnchoredBefore:
        """The proof that an anchor is older than a revocation, each a transaction and an entry, for whoever reads the
        tree of `size` parcels."""
        proofs = self._entry_proof(*revocation), self._entry_proof(*anchor)
        old, new = Anchor.decode_entry(proofs[1].entry).size, self.tree_size(place, size)
        if old > new:
            raise Refused(f"the tree of {new} parcels is older than the revocation", reason="misuse")
        return AnchoredBefore(*proofs, tuple(self._storage.tree(place).consistency(old, new)))

    def verdict(self, place: Place, offset: int) -> str:
        """Why what lies at an anchored offset was refused, empty if it was not."""
        entries = self._storage.read(place, offset, 1, headers_only=True)
        if not entries or entries[0].offset != offset:
            raise Unavailable(f"offset {offset} is not anchored yet", retry_after_s=SOON_S)
        return Void.decode(entries[0].header).reason if is_void(entries[0].header) else ""

    def retirable(self, place: Place, allowed: int) -> tuple[int, bytes] | None:
        """The mark to retire below, and the tree's root at that size, or None where nothing more can be given up of
        what is allowed."""
        partition, limit = self._storage.tree(place), min(allowed, self.size(place))
        below = self._storage.retirable(place, limit) if limit > partition.below else 0
        return (below, partition.root(below)) if below > partition.below else None


class Growth:
    """The anchorer of a storage that is the only one to grow its partitions: its anchors go beside the operations."""

    def __init__(self, anchored: AnchorBook) -> None:
        self._anchored = anchored

    def grown(self) -> list[Anchor]:
        return self._anchored.grown()

    def work(self, now_ms: int) -> bool:
        return False  # the front writes them

    def statistics(self) -> Mapping[str, Any]:
        return {}  # the front's numbers say it all

    def close(self) -> None:
        """Nothing is open."""
