"""A carrier as its clients see it. Engines share this protocol and the suite in tests/contract, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import NamedTuple, Protocol

from tallystick.trust.promise import Promise


@dataclass(frozen=True)
class Stored:
    """A parcel was taken, now or (`again`) before: the carrier's promise in each of its topics. Where nobody of ours
    took it, there are `offsets` (token, partition, offset) without a promise."""

    promises: tuple[Promise, ...]
    again: bool = False
    offsets: tuple[tuple[bytes, int, int], ...] = ()


@dataclass(frozen=True)
class NotStored:
    """A parcel was refused; for reason `ahead`, `expected` is the sequence that is due."""

    reason: str
    message: str
    expected: int | None = None


Outcome = Stored | NotStored


@dataclass(frozen=True)
class Fetched:
    """Consecutive parcels of a partition from `first` on, and what proves them; nothing of it is verified.

    `parcels` are whole parcels, or fronts where only headers were asked for. `proof` is the range proof of their hashes
    in the tree of `anchored` parcels. `end` is the end of the log, as the carrier tells it; below `retired` there are
    no bodies any more.
    """

    first: int
    parcels: tuple[bytes | memoryview, ...]
    anchored: int
    proof: tuple[bytes, ...]
    end: int
    retired: int = 0


@dataclass(frozen=True)
class LaneFront:
    """The front of a lane's last parcel below an offset, and its inclusion proof in the tree of `anchored` parcels."""

    offset: int
    front: bytes
    anchored: int
    proof: tuple[bytes, ...]


class Can(Flag):
    """What a carrier can do beyond what all of them do; each says so as `CAN`, and the contract suite asks for it."""

    GUARD = auto()  # refuses at once what the rules refuse; without it a notary judges behind
    PROMISE = auto()  # answers with a signed promise, and anchors what it promised
    KNOW = auto()  # knows a parcel that it has, and where; without it the parcel lies there twice
    SELECT = auto()  # sends no body that a permit's labels leave out
    RETIRE = auto()  # gives up old bodies under a mark on the ledger
    LOCKS = auto()  # keeps locks to be fetched; else they are pushed

    SENDING = GUARD | PROMISE | KNOW  # what stands between a publisher and the storage
    READING = SELECT | RETIRE | LOCKS


class Sending(Protocol):
    """What publishers ask of a carrier. Everything raises `Refused` or `Unavailable`, here and below."""

    def advertise(self, permit: bytes) -> None: ...

    def undo(self, order: bytes) -> None: ...

    def put_locks(self, token: bytes, permit: bytes, locks: Sequence[bytes]) -> None: ...

    def publish(self, token: bytes, parcels: Sequence[bytes]) -> list[Outcome]: ...


class Reading(Protocol):
    """What subscribers ask of a carrier that stores: ranges, and what proves them."""

    def subscribe(self, permit: bytes) -> None: ...

    def undo(self, order: bytes) -> None: ...

    def lock(self, name: bytes) -> bytes: ...

    def permit(self, identifier: bytes) -> bytes: ...

    def fetch(
        self,
        token: bytes,
        partition: int,
        permit: bytes,
        offset: int,
        *,
        bytes_max: int,
        wait_ms: int = 0,
        stored: bool = False,
        headers: bool = False,
        size: int | None = None,
        end: int | None = None,
    ) -> Fetched:
        """Parcels from `offset` on and below `end`, proved in the tree of `size` parcels (the newest anchor by
        default); with `stored` also those that no anchor covers yet."""

    def lane_front(
        self, token: bytes, partition: int, permit: bytes, publisher: bytes, lane: bytes, below: int, size: int
    ) -> LaneFront | None: ...

    def verdict(self, token: bytes, partition: int, offset: int) -> str:
        """Why what lies at an anchored offset was refused; empty if it was not."""

    def inclusion(self, token: bytes, partition: int, size: int, offsets: Sequence[int]) -> list[list[bytes]]:
        """The path of each offset in the tree of `size` parcels."""


class Pushed(NamedTuple):
    """A parcel as it was pushed, and the permits and locks that came with it."""

    parcel: bytes
    permits: tuple[bytes, ...] = ()
    locks: tuple[bytes, ...] = ()


class Receiving(Protocol):
    """What a node asks of a carrier that stores nothing: parcels as they come, of which its own log keeps those that
    count (received.py); subscribers and Spark read that log."""

    def pushed(self) -> Sequence[Pushed]:
        """What came since the last call, from anybody; does not wait."""

    def close(self) -> None: ...


class Carrier(Sending, Reading, Protocol):
    """A carrier that stores, from both sides."""
