"""What lies behind a node's front: a storage, which keeps what the guards took, and an anchorer, which brings it to the
ledger. A carrier that stores parcels brings one of each; the front (front.py) is the same for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from tallystick.errors import TallystickError
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.disk import Disk
from tallystick.trust.promise import Anchor


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

    def range_proof(self, first: int, end: int, size: int) -> list[bytes]: ...


class Storage(Protocol):
    """Keeps parcels and blobs, and shares its sync with the journal in which the front writes down what it did. Raises
    `Unavailable` where it cannot for now. `carry` and `share` may take a round trip, so the front's lock is not held;
    whatever else changes something is called under that lock."""

    disk: Disk  # for what the front keeps beside

    @property
    def blobs(self) -> BlobReader: ...

    def carry(self, parcels: Sequence[Taken]) -> None:
        """Bring parcels to where they will lie, if that is elsewhere; each has its offsets or its error then."""

    def store(self, taken: Taken) -> None:
        """Let one be stored with the next sync; it has its offsets."""

    def share(self, blobs: Mapping[bytes, bytes]) -> None:
        """Show blobs, by name, to the other nodes of the instance, where they share any."""

    def deposit(self, name: bytes, data: bytes) -> None:
        """Let a blob be stored with the next sync."""

    def sync(self) -> None:
        """Make all that was stored, deposited and journalled durable, or none of it."""

    def places(self) -> list[Place]: ...

    def end(self, place: Place) -> int: ...

    def read(self, place: Place, offset: int, end: int, bytes_max: int, headers: bool) -> list[Entry]: ...

    def find(self, place: Place, parcel: bytes) -> int | None:
        """The offset of the parcel with this hash."""

    def tree(self, place: Place) -> PartitionTree: ...

    def bytes_stored(self, place: Place) -> int: ...

    def retirable(self, place: Place, now_ms: int, bytes_max: int | None, age_max_ms: int | None) -> int:
        """Below which offset bodies can be given up, to keep at most so many bytes and none older."""

    def retire(self, place: Place, below: int) -> None: ...

    def statistics(self) -> Any: ...

    def close(self) -> None: ...


class Anchorer(Protocol):
    """Brings what a storage holds under anchors on the ledger."""

    def grown(self) -> list[Anchor]:
        """Anchors that the front is to write beside the operations."""

    def work(self, now_ms: int) -> bool:
        """Write what the front does not. Returns False if there was nothing."""

    def statistics(self) -> Mapping[str, int]:
        """Numbers of its own, beside those of front and storage."""

    def close(self) -> None: ...
