"""What a relay keeps: a log of what the ledger anchored, and behind it the tail, what was promised and is not anchored.

Threat: an orderer that promised one place to two parcels. Which of them counts the first anchor says, so nothing comes
into the log that is not anchored, and nothing in it is ever taken back; the tail is only a claim. Threat: an orderer
that lets parcels wait. Guards and promises are one group after the other, so a partition that stands still would hold
up all others of this relay: it is waited for once, and not again before it moves. Whoever was not answered comes again,
and hears then what became of its parcel.

Of what nobody here wanted only the front came, and lies in the log. Who wants its body later waits until it is caught
up with (`bodies.py`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from tallystick.carriers.log.store import LogStore
from tallystick.carriers.overlay.bodies import LateBodies, lacks_body
from tallystick.carriers.overlay.places import Counted
from tallystick.carriers.storage import Entry, Place, Taken
from tallystick.errors import Unavailable
from tallystick.parcel.parcel import Parcel
from tallystick.trust.promise import JointPromise

PATIENCE_S = 5.0  # for a partition that has moved since it was waited for
AGAIN_S = 0.5  # when to ask again for what has no place yet
REMEMBERED_MAX = 65_536  # parcels whose places are remembered when they lie in the log: their publishers may ask yet
TAIL_BYTES_MAX = 64 << 20  # of what came from other virtual nodes; the rest is caught up when it is anchored
KEPT_BYTES = 1_000  # about what a parcel and its promise take beside their bytes: empty ones are not free


class OverlayStorage:
    """A `Storage`; the tail is for any thread, the rest is as thread-safe as the log."""

    notes_publishers = False  # whoever anchors tells who published: else each relay of an edge would

    def __init__(self, log: LogStore) -> None:
        self.log, self.disk, self.blobs = log, log.disk, log.blobs
        self.deposit, self.sync, self.statistics = log.deposit, log.sync, log.statistics
        self.places, self.end, self.tree, self.bytes_stored = log.places, log.end, log.tree, log.bytes_stored
        self.retirable, self.close = log.retirable, log.close
        self._bodies = LateBodies(log.disk, log.limits.reserve_bytes)
        self.on_missing: Callable[[Place, int, int], None] = lambda place, first, below: None  # from any thread
        self.propose: Callable[[Place, Parcel], None] = wait_for_relay  # until the relay runs
        self.on_share: Callable[[Mapping[bytes, bytes]], None] = lambda blobs: None
        self._tails: dict[Place, dict[int, Counted]] = {}
        self._offsets: OrderedDict[tuple[Place, bytes], int] = OrderedDict()
        self._tail_bytes, self.patience_s = 0, PATIENCE_S
        self._stalled: set[Place] = set()
        self._moved = threading.Condition()

    # What the front asks for.

    def carry(self, parcels: Sequence[Taken]) -> None:
        """Let the relays of this edge promise them a place."""
        for one in parcels:
            for place in one.places:
                if self.underway(place, one.parcel.hash) is None:
                    self.propose(place, one.parcel)
        with self._moved:
            patient = [one for one in parcels if self._stalled.isdisjoint(one.places)]
            self._moved.wait_for(lambda: all(None not in self._found(one) for one in patient), self.patience_s)
            for one in parcels:
                found = self._found(one)
                one.offsets = tuple(offset for offset in found if offset is not None)
                if None in found:
                    self._stalled.update(place for place, at in zip(one.places, found, strict=True) if at is None)
                    one.error = Unavailable("too few relays promised the parcel a place yet", retry_after_s=AGAIN_S)

    def _found(self, one: Taken) -> list[int | None]:
        return [self.underway(place, one.parcel.hash) for place in one.places]

    def store(self, taken: Taken) -> None:
        """The tail has it, and the log gets it with its anchor."""

    def share(self, blobs: Mapping[bytes, bytes]) -> None:
        """Clients show permits to each relay of their edge themselves."""
        self.on_share(blobs)

    def underway(self, place: Place, parcel: bytes) -> int | None:
        return self._offsets.get((place, parcel))

    def promised(self, place: Place, offset: int) -> JointPromise | None:
        held = self._tails.get(place, {}).get(offset)
        return None if held is None else held.promise

    def read(
        self, place: Place, offset: int, bytes_max: int, headers_only: bool = False, *, below: int | None = None
    ) -> list[Entry]:
        """Ends before a body that is not here; raises `Unavailable` if that is the first, and has it fetched."""
        found = self.log.read(place, offset, bytes_max, headers_only, below=below)
        if headers_only:
            return found
        there = self.with_bodies(place, found, bytes_max)
        if found and not there:
            self.on_missing(place, offset, found[-1].offset + 1)
            raise Unavailable("a body that nobody wanted here is on its way", retry_after_s=AGAIN_S)
        return there

    def with_bodies(self, place: Place, entries: Sequence[Entry], bytes_max: int) -> list[Entry]:
        """Those before the first whose body is not here, as many as fit, and one at least if there is any."""
        found, left = list[Entry](), bytes_max
        for entry in entries:
            if lacks_body(entry):
                body = self._bodies.get(place, entry.offset)
                if body is None:
                    break
                entry = entry._replace(body=body, body_bytes=len(body), content=None)
            left -= len(entry.header) + entry.body_bytes
            if found and left < 0:
                break
            found.append(entry)
        return found

    def fill(self, place: Place, offset: int, parcels: Sequence[Parcel]) -> None:
        """Parcels of the log, from an offset on: keep the bodies that are not here. Raises `Unavailable`."""
        for at, parcel in enumerate(parcels, offset):
            [entry] = self.log.read(place, at, 1, headers_only=True, below=at + 1)
            if parcel.body and lacks_body(entry) and not self._bodies.has(place, at):
                self._bodies.put(place, at, bytes(parcel.body))

    def retire(self, place: Place, below: int) -> None:
        self.log.retire(place, below)
        self._bodies.retire(place, below)

    # What the relay brings.

    def keep(self, promise: JointPromise, parcel: Parcel, *, is_own: bool) -> None:
        """A parcel has its place; `is_own` if it entered here, where the relay knows what is promised. What comes again
        is dropped, and from elsewhere what was promised under an older fence than what is there."""
        place = Place(promise.token, promise.partition)
        with self._moved:
            tail = self._tails.setdefault(place, {})
            held = tail.get(promise.offset)
            if promise.offset < self.end(place) or (not is_own and self._tail_bytes >= TAIL_BYTES_MAX):
                return
            is_same = held is not None and held.parcel.hash == parcel.hash
            if held is not None and (is_same or not is_own) and held.promise.fence >= promise.fence:  # told again
                return
            if held is not None:
                self._drop(place, promise.offset)
            tail[promise.offset] = Counted(promise, parcel)
            self._tail_bytes += weight(parcel)
            self._offsets[place, parcel.hash] = promise.offset
            self._stalled.discard(place)
            self._moved.notify_all()

    def recall(self, place: Place, offset: int) -> None:
        """What was promised from this place on is not any more."""
        with self._moved:
            for one in [one for one in self._tails.get(place, ()) if one >= offset]:
                self._drop(place, one)

    def _drop(self, place: Place, offset: int) -> Parcel:
        parcel = self._tails[place].pop(offset).parcel
        self._tail_bytes -= weight(parcel)
        if self.underway(place, parcel.hash) == offset:
            del self._offsets[place, parcel.hash]
        return parcel

    # How the log grows.

    def has_some(self, place: Place) -> bool:
        """Whether anything of a partition is here: what came for a subscriber must come into the log, or it stays."""
        return bool(self.end(place) or self._tails.get(place))

    def tail(self, place: Place) -> list[Parcel]:
        """What follows the log without a gap."""
        found, offset = list[Parcel](), self.end(place)
        with self._moved:
            held = self._tails.get(place, {})
            while offset in held:
                found.append(held[offset].parcel)
                offset += 1
        return found

    def root_with(self, place: Place, parcels: Sequence[Parcel]) -> bytes:
        """The root of the tree with these behind it."""
        return self.log.root_with(place, [parcel.hash for parcel in parcels])

    def root_at(self, place: Place, size: int) -> bytes | None:
        """The root of so many parcels, of the log and the tail behind it; None where there are fewer."""
        end = self.end(place)
        if size <= end:
            return self.tree(place).root(size)
        tail = self.tail(place)[: size - end]
        return self.root_with(place, tail) if len(tail) == size - end else None

    def grow(self, place: Place, parcels: Sequence[Parcel], now_ms: int) -> None:
        """Append what is anchored there. Raises `Unavailable` where the disk does not take it."""
        for parcel in parcels:
            self.log.stage([place], parcel.hash, parcel.encode_front(), bytes(parcel.body), now_ms)
        self.sync()

    def let_go(self, place: Place) -> list[Parcel]:
        """Forget the tail below the log's end. Returns the parcels that had a promise there, and not the anchor."""
        lost: list[Parcel] = []
        with self._moved:
            held, end = self._tails.get(place, {}), self.end(place)
            for offset in [one for one in held if one < end]:
                parcel = self._drop(place, offset)
                if self.log.tree(place).parcel_hash(offset) == parcel.hash:
                    self._offsets[place, parcel.hash] = offset
                else:
                    lost.append(parcel)
            while len(self._offsets) > REMEMBERED_MAX:
                self._offsets.popitem(last=False)
        return lost


def weight(parcel: Parcel) -> int:
    """In bytes, about."""
    return KEPT_BYTES + len(parcel.header.encoded) + len(parcel.body)


def wait_for_relay(place: Place, parcel: Parcel) -> None:
    """It finds no place before this relay runs, and its publisher comes again."""
