"""The last head of every lane: what stops replays of old parcels, whatever their envelope.

Keyed by publisher and lane, so that nobody can take another's lane identifier. A carrier that keeps the log can
always rebuild it from headers; it is never forgotten, only bounded by what a principal may open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tallystick.errors import Refused
from tallystick.parcel.header import Header, ParcelKind


@dataclass(frozen=True, slots=True)
class Head:
    """The last parcel of a lane: its sequence and hash; after `closed` nothing follows."""

    sequence: int
    parcel: bytes
    closed: bool


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The same parcel again: it blames nobody and is answered with its first offset."""

    sequence: int
    parcel: bytes


class Lanes:
    """Over a `base`, only what goes beyond it is kept here, and whichever is further on counts."""

    def __init__(self, lanes_max: int, base: Lanes | None = None) -> None:
        self._lanes_max, self._base = lanes_max, base
        self._heads: dict[tuple[bytes, bytes], Head] = {}
        self._opened: defaultdict[bytes, set[bytes]] = defaultdict(set)  # by principal, less those of the base

    def head(self, principal: bytes, lane: bytes) -> Head | None:
        head = self._heads.get((principal, lane))
        if self._base is None:
            return head
        below = self._base.head(principal, lane)
        return below if head is None or (below is not None and below.sequence >= head.sequence) else head

    def advance(self, principal: bytes, header: Header) -> None:
        """Remember an accepted parcel as the lane's head."""
        self.restore(principal, header.lane, Head(header.sequence, header.hash, header.kind is ParcelKind.CLOSE))

    def restore(self, principal: bytes, lane: bytes, head: Head | None) -> None:
        """Put a lane's head back to what it was; None forgets the lane."""
        self._opened[principal].discard(lane)
        if head is None:
            self._heads.pop((principal, lane), None)
            return
        self._heads[principal, lane] = head
        if self._base is None or self._base.head(principal, lane) is None:
            self._opened[principal].add(lane)

    def opened(self, principal: bytes) -> int:
        """How many lanes a principal has opened."""
        return len(self._opened.get(principal, ())) + (0 if self._base is None else self._base.opened(principal))

    def items(self) -> Iterator[tuple[bytes, bytes, Head]]:
        """Every lane: (principal, lane, head)."""
        return ((principal, lane, head) for (principal, lane), head in self._heads.items())

    def check_next(self, principal: bytes, header: Header) -> Duplicate | None:
        """Whether the parcel is exactly the next one, or the head once more. An earlier one is `Refused` as `behind`:
        whether it repeats or contradicts what lies there, the carrier finds out from the log. One ahead is answered
        with the sequence expected, without blame."""
        head = self.head(principal, header.lane)
        if head is None:
            if self.opened(principal) >= self._lanes_max:
                raise Refused(f"at most {self._lanes_max} lanes for one principal", reason="too-many-lanes")
            expected = 0
        else:
            expected = head.sequence + 1
            if (header.sequence, header.hash) == (head.sequence, head.parcel):
                return Duplicate(header.sequence, header.hash)
        if header.sequence > expected:
            raise Ahead(expected)
        if header.sequence < expected:
            raise Behind(header.sequence)
        if head is not None and header.previous != head.parcel:
            raise Refused("the parcel does not follow the lane's head", reason="broken-chain")
        if head is not None and head.closed:
            raise Refused("the lane is closed", reason="lane-closed", hint="open a new lane")
        return None


class Ahead(Refused):
    """Parcels before this one have not arrived; the answer names the sequence expected."""

    reason = "ahead"

    def __init__(self, expected: int) -> None:
        super().__init__(f"sequence {expected} expected")
        self.expected = expected


class Behind(Refused):
    """A parcel at or below the lane's head: a replay, a late duplicate, or an equivocation."""

    reason = "behind"

    def __init__(self, sequence: int) -> None:
        super().__init__(f"sequence {sequence} was taken already")
        self.sequence = sequence
