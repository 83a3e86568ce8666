"""Fragments become parcels again, or nothing.

Threat: switches that lose, repeat, reorder and replay fragments; a holder of the carrier key that begins thousands of
parcels and finishes none, or whose blocks are not those of the header it sent. Only what the carrier key opens comes
here (`fragments.py`); what it may cost is bounded by number, bytes and time, and where room is short whoever waited
longest gives way. A fragment that came is not taken twice, nor is a parcel that was finished or found false, for
`memory_s`; later repetitions are the publish guard's to refuse.

Blocks of 16 KiB are verified when they are complete, against the header's `body_root`. The first false one ends the
parcel and is told as `altered`: it came from somebody who has the key, or the publisher itself sealed nonsense. Whether
the header is its publisher's word is the guard's question (`received.py`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from tallystick.carriers.carrier import Pushed
from tallystick.carriers.fabric.fragments import PREFIX_BYTES, FlowPlace, FragmentHead, read_lengths, xor_pieces
from tallystick.carriers.mesh.envelope import read_beside
from tallystick.crypto.blocks import BLOCK_BYTES, block_count, block_hash, blocks_root
from tallystick.crypto.merkle import HASH_BYTES
from tallystick.errors import Forged, Malformed, Refused
from tallystick.parcel.parcel import Parcel
from tallystick.wire import Fields


@dataclass(frozen=True)
class ReassemblyLimits:
    parcels_max: int = 256  # begun and not finished, under all labels
    bytes_max: int = 32 << 20  # that these will have when they are whole
    wait_s: float = 5.0  # from the first fragment to the last: several rounds of repair
    memory_s: float = 60.0  # a finished or false parcel's handle is remembered
    memory_max: int = 65_536


@dataclass
class _Front:
    """What the first fragments say."""

    parcel: Parcel
    hashes: list[bytes]
    body_at: int
    tail_at: int
    end: int
    place: FlowPlace


@dataclass
class Reassembly:
    """One parcel on its way. Raises `Malformed` or `Forged` where it is none."""

    head: FragmentHead  # of the first that came
    size: int
    began: float
    pieces: dict[int, bytes] = field(default_factory=dict)
    verified: set[int] = field(default_factory=set)  # blocks
    left: int = field(init=False)  # how many fragments are needed still
    _front: _Front | None = None

    def __post_init__(self) -> None:
        self.left = self.head.count

    @property
    def bytes_whole(self) -> int:
        return self.head.count * self.size

    @property
    def missing(self) -> list[int]:
        """Which fragments are needed still; those of parity are not."""
        return [index for index in range(self.head.count) if index not in self.pieces]

    @property
    def place(self) -> FlowPlace | None:
        """Where the parcel stands, once that is known."""
        return None if self._front is None else self._front.place

    def add(self, head: FragmentHead, piece: bytes) -> Pushed | None:
        """The parcel, if this was the last that was needed."""
        if (head.count, head.groups, len(piece)) != (self.head.count, self.head.groups, self.size):
            raise Malformed("fragments of one handle that do not fit together")
        if head.index in self.pieces:
            return None
        self._keep(head.index, piece)
        for index in [head.index, *self._mend(head.index)]:
            self._verify_around(index)
        return None if self.left else self._whole()

    def _keep(self, index: int, piece: bytes) -> None:
        self.pieces[index] = piece
        self.left -= index < self.head.count

    def _mend(self, index: int) -> list[int]:
        """The one fragment of a group that follows from the others, if it is the last one missing."""
        count, groups = self.head.count, self.head.groups
        if not groups:
            return []
        group = index - count if index >= count else index % groups
        needed = [*range(group, count, groups), count + group]
        missing = [one for one in needed if one not in self.pieces]
        if len(missing) != 1 or missing[0] >= count:
            return []
        self._keep(missing[0], xor_pieces([self.pieces[one] for one in needed if one in self.pieces]))
        return missing

    def _verify_around(self, index: int) -> None:
        """Check the blocks that a fragment may have completed; all of them, when the front has just been read."""
        known, front = self._front is not None, self._read_front()
        if front is None or index >= self.head.count:
            return
        last = len(front.hashes) - 1
        first, end = ((at - front.body_at) // BLOCK_BYTES for at in (index * self.size, (index + 1) * self.size - 1))
        for number in range(max(first, 0), min(end, last) + 1) if known else range(last + 1):
            self._verify(front, number)

    def _verify(self, front: _Front, number: int) -> None:
        at = front.body_at + number * BLOCK_BYTES
        block = None if number in self.verified else self._read(at, min(at + BLOCK_BYTES, front.tail_at))
        if block is None:
            return
        if block_hash(block) != front.hashes[number]:
            raise Forged(f"block {number} is not the one that the header names", reason="altered")
        self.verified.add(number)

    def _read_front(self) -> _Front | None:
        if self._front is None and (lengths := self._read(0, PREFIX_BYTES)) is not None:
            place, front, body, tail = read_lengths(lengths)
            hashes_at = PREFIX_BYTES + front
            body_at = hashes_at + block_count(body) * HASH_BYTES
            tail_at = body_at + body
            if tail_at + tail + 1 > self.bytes_whole:
                raise Malformed("fragments: a parcel that is longer than all of them")
            data = self._read(PREFIX_BYTES, body_at)
            if data is not None:
                parcel = Parcel.decode_front(data[:front])
                hashes = [data[at : at + HASH_BYTES] for at in range(front, len(data), HASH_BYTES)]
                if parcel.header.body_bytes != body or blocks_root(hashes) != parcel.header.body_root:
                    raise Forged("block hashes that are not the header's", reason="altered")
                self._front = _Front(parcel, hashes, body_at, tail_at, tail_at + tail, place)
        return self._front

    def _read(self, start: int, end: int) -> bytes | None:
        """Bytes of what was cut, or None while some of them are missing."""
        first, last = start // self.size, max(start, end - 1) // self.size
        found = [self.pieces.get(index) for index in range(first, last + 1)]
        held = [one for one in found if one is not None]
        return b"".join(held)[start - first * self.size : end - first * self.size] if len(held) == len(found) else None

    def _whole(self) -> Pushed:
        front = self._read_front()
        data = self._read(0, self.bytes_whole)
        if front is None or data is None or data[front.end :].rstrip(b"\0") != b"\x80":
            raise Malformed("fragments: no padding where it should be")
        parcel = front.parcel.encode_front() + data[front.body_at : front.tail_at]
        return Pushed(parcel, *read_beside(Fields.parse(data[front.tail_at : front.end], "fragments", 2)))


class Reassemblies:
    """All parcels on their way to one host, by handle. A handle is 16 random bytes: no two topics share one."""

    def __init__(self, limits: ReassemblyLimits = ReassemblyLimits()) -> None:
        self._limits = limits
        self.open: OrderedDict[bytes, Reassembly] = OrderedDict()  # oldest first
        self._bytes = 0
        self._over: OrderedDict[bytes, float] = OrderedDict()  # finished or false
        self.counts: Counter[str] = Counter()  # what was dropped, by reason

    def find(self, head: FragmentHead, size: int, now: float) -> Reassembly | None:
        """The parcel that a fragment belongs to, begun with it; None where it is over, or too large."""
        if self._is_over(head.handle):
            self.counts["repeated"] += 1
            return None
        return self.open.get(head.handle) or self._begin(head, size, now)

    def put(self, one: Reassembly, head: FragmentHead, piece: bytes, now: float) -> Pushed | None:
        """Raises `Malformed`, or `Forged` for an altered one, and then the parcel is over."""
        try:
            pushed = one.add(head, piece)
        except Refused:
            self._end(head.handle, now)
            raise
        if pushed is not None:
            self._end(head.handle, now)
        return pushed

    def knows(self, handle: bytes) -> bool:
        return handle in self.open or handle in self._over

    def _is_over(self, handle: bytes) -> bool:
        return handle in self._over

    def give_up(self, now: float) -> None:
        """Forget what waited too long."""
        while self.open and now - next(iter(self.open.values())).began >= self._limits.wait_s:
            self._drop("late", now)
        while self._over and now - next(iter(self._over.values())) >= self._limits.memory_s:
            self._over.popitem(last=False)

    def _begin(self, head: FragmentHead, size: int, now: float) -> Reassembly | None:
        one = Reassembly(head, size, now)
        if one.bytes_whole > self._limits.bytes_max:
            self.counts["too-large"] += 1
            return None
        limits = self._limits
        while self.open and (len(self.open) >= limits.parcels_max or self._bytes + one.bytes_whole > limits.bytes_max):
            self._drop("no-room", now)
        self._bytes += one.bytes_whole
        self.open[head.handle] = one
        return one

    def _drop(self, reason: str, now: float) -> None:
        self.counts[reason] += 1
        self._end(next(iter(self.open)), now)

    def _end(self, handle: bytes, now: float) -> None:
        self._bytes -= self.open.pop(handle).bytes_whole
        self._over[handle] = now
        if len(self._over) > self._limits.memory_max:
            self._over.popitem(last=False)
