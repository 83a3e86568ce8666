"""Verifying a partition: fetched bytes become verified parcels, or findings that say what was done to them.

Subscribers and the Spark driver use the same class: they read parcels, or fronts of those that their permit's labels do
not ask for (`received`); it reads headers (`FRONTS`) and leaves (d) to its executors. It holds the head of every lane
in one partition and takes ranges in order. For each range it is given an anchor that the caller proved (size and root,
at a height and block time):

  a. the range is the anchored range: a range proof over the parcel hashes;
  b. each lane lies in the partition where it belongs;
  c. each lane's parcels follow its head without gap, repetition or fork, and one signature vouches for the run;
  d. each body hashes to the root in its header;
  e. the checkpoint that a publisher accepted lies in our own history of the ledger.

A lane that is met in the middle is joined to its head below the range by a header that the node shows with its
inclusion proof: without it, a broker could start a lane wherever it likes.

After a finding in a lane the reader goes on with what it saw as the new head, so that one bad parcel is one finding.

It asks nobody: before a range is taken, whoever drives the reader learns the permits that the range names and brings
the lanes' fronts and proofs that it takes to judge it (`lacks`), each in few requests (fetching.py). Where the world
fails meanwhile the range was not taken: the reader stands where it stood, and nothing of it is a finding.

A `Finding` is what a reader noticed being done to a stream, by name and with evidence. The reasons, one word each:

    altered          the range is not the anchored one: bytes were changed, swapped, cut out or slipped in
    missing          a parcel of a lane is not where the next one says it is
    repeated         a parcel of a lane comes a second time, or out of order
    broken-chain     a parcel does not follow the one before it
    equivocation     a publisher signed two parcels of one sequence
    bad-signature    a parcel that its publisher did not sign, and other reasons of a forgery
    wrong-partition  a lane lies where it does not belong
    split-view       a publisher was shown another ledger than we are
    rollback         the ledger went back
    stale-head       no checkpoint is young enough: a tail may be withheld
    silent           a publisher neither spoke nor closed its lane
    gap              a publisher says that it had to drop rows
    cannot-open      a verified parcel does not open
    oversized        a verified parcel would open to absurdly much, or to more than its reader allows: not opened
    erased           its key was destroyed on purpose
    refused          the notary behind Kafka did not take it: not opened, and its reason told
    suspect          anchored after its publisher's key was revoked
    bad-commit       a commit parcel that lies: not the ledger's list, another's parcels, or its rows a second time
    retired          parcels were given up before they were read, as the ledger says and the topic's owner allows
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from tallystick import wire
from tallystick.carriers.carrier import Fetched, LaneFront, Void, is_void
from tallystick.crypto.merkle import leaf_hash, verify_inclusion, verify_range
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Forged, Malformed, Refused, Unavailable, Withheld
from tallystick.ledger.block import Head
from tallystick.ledger.contracts.anchors import AnchorRow
from tallystick.ledger.proofs import Consistency
from tallystick.parcel.header import Header, ParcelKind, parcel_hash
from tallystick.parcel.parcel import Parcel, VerifiedHeader, VerifiedParcel, describe, front_bytes, is_front
from tallystick.parcel.verify import PermitBook, check_follows, check_partition, verify_headers, verify_received

LATE_S = 60.0  # between sealing and anchor

# What a publisher, an authority or a carrier did openly is told and does not stop a reader.
OPEN_REASONS = ("gap", "erased", "silent", "suspect", "refused", "retired")


@dataclass(frozen=True)
class Finding:
    reason: str
    message: str
    token: bytes
    partition: int
    offset: int | None = None
    publisher: bytes = b""
    lane: bytes = b""
    sequence: int | None = None
    evidence: tuple[bytes, ...] = field(default=(), repr=False)  # headers with signatures, notes, parcels
    end: int | None = None  # of a range that begins at `offset`: the first offset behind it

    @classmethod
    def retired(cls, token: bytes, partition: int, first: int, below: int) -> Finding:
        """What a reader that stood at `first`, below the mark, did not get."""
        message = f"partition {partition}: parcels from offset {first} to {below} were retired before they were read"
        return cls("retired", message, token, partition, first, end=below)

    @classmethod
    def about(
        cls,
        reason: str,
        message: str,
        place: tuple[bytes, int, int],
        publisher: bytes,
        parcel: Parcel | None,
        *evidence: bytes,
    ) -> Finding:
        """Of a parcel at a place (token, partition, offset); its signed header is evidence, beside what is given."""
        if parcel is None:
            return cls(reason, message, *place, publisher, evidence=evidence)
        header = parcel.header
        shown = (*evidence, header.encoded, parcel.signature)
        return cls(reason, message, *place, publisher, header.lane, header.sequence, shown)

    def encode(self) -> bytes:
        """As kept in the identity folder's `evidence`."""
        end = () if self.end is None else (self.end,)
        return wire.encode([1, *astuple(self)[:-2], list(self.evidence), *end])

    @classmethod
    def decode(cls, data: bytes) -> Finding:
        """What `encode` wrote. Raises `Malformed`."""
        match wire.decode(data, "finding"):
            case [1, str(), str(), bytes(), int(), int() | None, bytes(), bytes(), int() | None, list(), *end] as found:
                if len(end) < 2 and all(isinstance(one, bytes) for one in found[9]):
                    names = [one.name for one in fields(cls)]
                    return cls(**dict(zip(names, found[1:], strict=False)) | {"evidence": tuple(found[9])})
        raise Malformed("not a finding")

    def _repr_html_(self) -> str:
        """In notebooks: what was found, where, and how much evidence there is."""
        from tallystick.page.notebook import shown

        told = {
            "found": self.message,
            "topic": self.token,
            "place": f"partition {self.partition}" + ("" if self.offset is None else f", offset {self.offset}"),
            "publisher": self.publisher or None,
            "parcel of its lane": self.sequence,
            "evidence": ", ".join(f"{len(one):,} bytes" for one in self.evidence[:8]) or None,
        }
        return shown(f"finding: {self.reason}", told)

    def keep(self, home: Path) -> Path:
        """Write it to the evidence in an identity's folder; the same finding is one file."""
        data = self.encode()
        folder = home / "evidence"
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"{self.reason}-{named_hash('tallystick finding 1', data).hex()[:16]}"
        path.write_bytes(data)
        return path


def is_late(sealed_ms: int, anchored_ms: int, late_s: float = LATE_S) -> bool:
    """Whether a parcel was sealed, by its publisher's clock, long before it was anchored. 0 claims nothing."""
    return bool(sealed_ms) and anchored_ms - sealed_ms > late_s * 1000


def is_suspect(revoked: int, height: int | None) -> bool:
    """Whether what is read under an anchor of this height, or under none, may have come after its publisher's key was
    revoked: what an older anchor covers did not (`Revocations`). A key that never was has 0."""
    return bool(revoked) and (height is None or height >= revoked)


def withheld(partition: int, message: str, reason: str = "missing", hint: str | None = None) -> Withheld:
    """What to raise where a node does not show what a partition holds."""
    return Withheld(f"partition {partition}: {message}", reason=reason, hint=hint)


class FoundError(Withheld):
    """A finding that stops the iteration."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message, reason=finding.reason)
        self.finding = finding


SEEN_MAX = 4096  # distinct checkpoints of publishers that are remembered as checked


V = TypeVar("V", bound=VerifiedHeader)


@dataclass(frozen=True)
class ReadingForm(Generic[V]):
    """What is fetched, and how far it can be verified."""

    decode: Callable[[bytes | memoryview], Parcel]
    verify: Callable[[Sequence[Parcel], bytes, bytes, PermitBook, tuple[int, bytes] | None], list[V]]


FRONTS = ReadingForm(Parcel.decode_front, verify_headers)


def received(wanted: Callable[[Header], bool]) -> ReadingForm[VerifiedHeader]:
    """Parcels whole, or fronts of what is not `wanted`; a wanted one without its body is kept back: `Withheld`."""

    def decode(data: bytes | memoryview) -> Parcel:
        if len(data) > front_bytes(data):
            return Parcel.decode(data)
        parcel = Parcel.decode_front(data)
        if is_front(parcel) and wanted(parcel.header):
            raise Withheld(f"{describe(parcel.header)}: the node shows it without its body", reason="missing")
        return parcel

    return ReadingForm(decode, verify_received)


Lane = tuple[bytes, bytes]  # publisher and lane


@dataclass(frozen=True)
class ReadTopic:
    """A topic as its readers know it: which one it is, and the permits of its publishers that were checked."""

    instance: bytes
    token: bytes
    partitions: int
    book: PermitBook
    is_part: bool = False  # only a part was asked for, of a carrier that does not send even the headers of the rest


class Lacking(NamedTuple):
    """What a reader must be told, beside permits, before it can judge a range."""

    fronts: list[Lane]  # lanes that are met in the middle: their last parcel below `below`,
    below: int
    size: int  # proved in the tree of so many parcels
    checkpoints: list[int]  # sizes of the ledger that publishers had accepted


class Brought(NamedTuple):
    """What a reader was told for one range, or why it could not be."""

    refused: Mapping[bytes, Refused]  # permits that are none
    fronts: Mapping[Lane, LaneFront | None]  # none where every node says that there is none
    head: Head | None  # the newest checkpoint when it was asked; another thread may have accepted one since
    proofs: Mapping[int, Sequence[bytes] | Refused]  # from a size of the ledger to the head's

    def consistency(self, old: int, new: int) -> Sequence[bytes]:
        proof = self.proofs.get(old)
        if proof is None or isinstance(proof, Refused):
            raise Unavailable(f"ledger: no proof from size {old} to {new} is at hand", retry_after_s=0.1)
        return proof


@dataclass(frozen=True)
class Placed(Generic[V]):
    """A verified parcel (or its header) and its place."""

    verified: V
    partition: int
    offset: int
    anchor: AnchorRow | None  # None: stored, not yet anchored (read=stored)
    commit: Placed[V] | None = None  # the commit parcel by which it counts, if it is of a write


@dataclass
class LaneHead:
    """The last parcel of a lane that was read."""

    sequence: int
    parcel: bytes
    header: bytes
    signature: bytes
    time_ms: int  # block time when it was anchored
    closed: bool


class PartitionReader(Generic[V]):
    def __init__(
        self,
        reading: ReadingForm[V],
        topic: ReadTopic,
        partition: int,
        check_seen: Callable[[int, bytes, Consistency, Head | None], bool],
        offset: int = 0,
    ) -> None:
        """`check_seen` holds a publisher's checkpoint against our own history of the ledger."""
        self.reading, self._topic, self.partition, self._check_seen = reading, topic, partition, check_seen
        self._token, self._book = topic.token, topic.book
        self.offset = offset  # of the next parcel
        self.anchor: AnchorRow | None = None  # the last that its user had proved
        self._first = offset
        self.heads: dict[Lane, LaneHead] = {}
        self.unasked = 0  # parcels of lanes that did not come and may not have been asked for
        self._seen: set[tuple[int, bytes]] = set()
        # Of the range that is being taken: what was brought for it, its anchor, and the time that counts for it.
        self._brought, self._time_ms = Brought({}, {}, None, {}), 0
        self._under: AnchorRow | None = None
        self._unproved: list[bytes] = []  # leaf hashes of what was read before its anchor
        self._proved_end = offset

    def lacks(self, headers: Sequence[Header], anchor: AnchorRow | None, refused: Mapping[bytes, Refused]) -> Lacking:
        """What is missing to judge these. Their permits are in the book, as far as they were not refused: they tell
        whose a lane is."""
        proved = self._anchor_below(anchor)
        met: dict[Lane, int] = {}  # lanes and the first sequence here
        for header in headers if self._first and proved is not None else ():
            with suppress(Refused):
                met.setdefault((self._publisher(header, refused), header.lane), header.sequence)
        fronts = [lane for lane, sequence in met.items() if sequence and lane not in self.heads]
        seen = {header.checkpoint for header in headers} - self._seen
        sizes = sorted({checkpoint[0] for checkpoint in seen if checkpoint is not None})
        return Lacking(fronts, self._first, 0 if proved is None else proved.size, sizes)

    def take(
        self, parcels: Sequence[Parcel | Void], anchor: AnchorRow | None, brought: Brought, now_ms: int
    ) -> list[Placed[V] | Finding]:
        """Verify a range that `parse` gave. Without an anchor that is everything but (a), which `confirm` makes good
        later."""
        self._brought, self._under = brought, anchor
        self._time_ms = now_ms if anchor is None else anchor.time_ms
        heads, unasked = dict(self.heads), self.unasked
        try:
            found = self._take_lanes(parcels)
        except Unavailable:
            self.heads, self.unasked = heads, unasked
            raise
        if anchor is None:
            self._proved_end = self._proved_end if self._unproved else self.offset
            self._unproved += [leaf_hash(parcel.hash) for parcel in parcels]
        self.offset += len(parcels)
        found.sort(key=lambda one: one.offset if one.offset is not None else -1)
        return found

    def _take_lanes(self, parcels: Sequence[Parcel | Void]) -> list[Placed[V] | Finding]:
        found: list[Placed[V] | Finding] = []
        by_lane: dict[Lane, list[tuple[int, Parcel]]] = {}
        for offset, parcel in enumerate(parcels, self.offset):
            if isinstance(parcel, Void):
                # What the notary refused is told and not opened. A parcel once more, or an offset without a record, is
                # nothing to tell of: a parcel that is missing for it is missed in its lane.
                if parcel.reason:
                    message = f"offset {offset}: the notary refused it: {parcel.reason}"
                    found.append(Finding("refused", message, self._token, self.partition, offset, b"", b"", 0))
                continue
            try:
                key = self._publisher(parcel.header, self._brought.refused), parcel.header.lane
                by_lane.setdefault(key, []).append((offset, parcel))
            except Refused as error:
                found.append(self._finding(error, offset, parcel))
        for (publisher, lane), items in by_lane.items():
            found += self._take_lane(publisher, lane, items)
        return found

    def skip_to(self, offset: int) -> None:
        """Go on from a later offset, below which nothing is left; lanes are joined to their heads anew."""
        self.offset = self._first = self._proved_end = offset
        self.heads.clear()
        self._unproved.clear()

    @property
    def unproved(self) -> tuple[int, int]:
        """The range that was read before its anchor: from where, and how many."""
        return self._proved_end, len(self._unproved)

    def confirm(self, count: int, proof: Sequence[bytes], anchor: AnchorRow) -> None:
        """The first `count` unproved parcels are what was anchored. Raises `Withheld` if the node showed us others."""
        try:
            verify_range(self._unproved[:count], self._proved_end, anchor.size, list(proof), anchor.root)
        except Forged as error:
            message = f"what was read from offset {self._proved_end} on is not what was anchored"
            raise withheld(self.partition, message, "altered") from error
        del self._unproved[:count]
        self._proved_end += count

    def silent(self, time_ms: int, silence_ms: int) -> list[Finding]:
        """Lanes that were neither closed nor heard of for `silence_ms` of block time."""
        found = []
        for (publisher, lane), head in self.heads.items():
            since_ms = time_ms - head.time_ms
            if not head.closed and since_ms > silence_ms and not _is_of_a_write(head):
                message = f"lane {lane.hex()[:8]} was last heard of {since_ms // 1000} s ago and is not closed"
                place = (self._token, self.partition, None)
                found.append(Finding("silent", message, *place, publisher, lane, head.sequence))
        return found

    def _take_lane(self, publisher: bytes, lane: bytes, items: list[tuple[int, Parcel]]) -> list[Placed[V] | Finding]:
        found: list[Placed[V] | Finding] = []
        try:
            head = self._head(publisher, items[0][1].header)
        except Refused as error:
            found.append(self._finding(error, *items[0]))
            head = None
        while items:
            run, bad = self._contiguous(items, head)
            if run:
                found += self._verify(run, None if head is None else (head.sequence, head.parcel))
                head = self._remember(publisher, run[-1][1])
                items = items[len(run) :]
            if bad is not None:
                offset, parcel = items[0]
                if self._is_unasked(bad):
                    self.unasked += parcel.header.sequence - (-1 if head is None else head.sequence) - 1
                else:
                    found.append(self._explain(bad, offset, parcel, publisher))
                # Go on behind it; a repeated parcel moves nothing.
                if head is None or parcel.header.sequence > head.sequence:
                    found += self._verify_alone(offset, parcel)
                    head = self._remember(publisher, parcel)
                items = items[1:]
        return found

    def _is_unasked(self, bad: Refused) -> bool:
        """Whether what is missing may be what nobody here asked for. It may be lost as well: that our own node knows
        (`tally fabric status`), and nothing here proves."""
        return self._topic.is_part and bad.reason == "missing"

    def _contiguous(
        self, items: Sequence[tuple[int, Parcel]], head: LaneHead | None
    ) -> tuple[list[tuple[int, Parcel]], Refused | None]:
        """(b, c): the longest run that follows the head, and what is wrong with the parcel behind it."""
        sequence, previous = (-1, bytes(32)) if head is None else (head.sequence, head.parcel)
        for number, (_, parcel) in enumerate(items):
            try:
                check_partition(parcel.header, self.partition, self._topic.partitions)
                check_follows(parcel.header, sequence, previous)
            except Refused as error:
                return list(items[:number]), error
            sequence, previous = parcel.header.sequence, parcel.hash
        return list(items), None

    def _verify(self, run: list[tuple[int, Parcel]], start: tuple[int, bytes] | None) -> list[Placed[V] | Finding]:
        """(c, d, e) for a contiguous run behind `start`; if it fails as a whole, parcel by parcel to name the bad
        one."""
        parcels = [parcel for _, parcel in run]
        try:
            verified = self.reading.verify(parcels, self._topic.instance, self._token, self._book, start)
            for parcel in parcels:
                self._check_checkpoint(parcel.header)
        except Refused as error:
            if len(run) == 1:
                return [self._finding(error, *run[0])]
            return [found for item in run for found in self._verify_alone(*item)]
        places = [(self.partition, offset, self._under) for offset, _ in run]
        return [Placed(one, *place) for one, place in zip(verified, places, strict=True)]

    def _verify_alone(self, offset: int, parcel: Parcel) -> list[Placed[V] | Finding]:
        """The same for one parcel, whatever it says that it follows."""
        header = parcel.header
        return self._verify([(offset, parcel)], (header.sequence - 1, header.previous) if header.sequence else None)

    def _check_checkpoint(self, header: Header) -> None:
        """(e): views of the ledger are compared through the data itself."""
        if header.checkpoint is None or header.checkpoint in self._seen:
            return
        if not self._check_seen(*header.checkpoint, self._brought.consistency, self._brought.head):
            return  # newer than ours: whoever names it when ours has come so far is held to it
        if len(self._seen) >= SEEN_MAX:
            self._seen.clear()
        self._seen.add(header.checkpoint)

    def _head(self, publisher: bytes, header: Header) -> LaneHead | None:
        """The lane's head before this header: known, the beginning, or shown by the node with its proof."""
        known = self.heads.get((publisher, header.lane))
        if known is not None or header.sequence == 0 or self._first == 0:
            return known
        proved = self._anchor_below(self._under)
        if proved is None:  # on the carrier's word, as the parcel itself
            return LaneHead(header.sequence - 1, header.previous, b"", b"", self._time_ms, False)
        shown = self._brought.fronts.get((publisher, header.lane))
        if shown is None:
            raise Withheld(f"{describe(header)}: the node does not show the parcel before it", reason="missing")
        front = Parcel.decode_front(shown.front)
        if shown.anchored != proved.size or shown.offset >= self._first or front.header.lane != header.lane:
            raise Withheld(f"{describe(header)}: the node shows another parcel before it", reason="altered")
        leaf = leaf_hash(parcel_hash(front.header.encoded))
        verify_inclusion(leaf, shown.offset, proved.size, list(shown.proof), proved.root)
        return self._remember(publisher, front)

    def _anchor_below(self, anchor: AnchorRow | None) -> AnchorRow | None:
        """The anchor that proves what lies below the first offset, while a range is taken under `anchor`."""
        proved = anchor or self.anchor
        return None if proved is None or proved.size < self._first else proved

    def _remember(self, publisher: bytes, parcel: Parcel) -> LaneHead:
        header, closed = parcel.header, parcel.header.kind is ParcelKind.CLOSE
        head = LaneHead(header.sequence, parcel.hash, header.encoded, parcel.signature, self._time_ms, closed)
        self.heads[publisher, header.lane] = head
        return head

    def _explain(self, error: Refused, offset: int, parcel: Parcel, publisher: bytes) -> Finding:
        """A parcel that does not follow: an equivocation if it contradicts the head, else what the check said."""
        head = self.heads.get((publisher, parcel.header.lane))
        if head is not None and head.sequence == parcel.header.sequence and head.parcel != parcel.hash:
            message = f"{describe(parcel.header)}: its publisher signed another parcel of this sequence"
            place = (self._token, self.partition, offset)
            return Finding.about("equivocation", message, place, publisher, parcel, head.header, head.signature)
        return self._finding(error, offset, parcel)

    def _finding(self, error: Refused, offset: int, parcel: Parcel) -> Finding:
        return Finding.about(error.reason, str(error), (self._token, self.partition, offset), b"", parcel)

    def _publisher(self, header: Header, refused: Mapping[bytes, Refused]) -> bytes:
        permit = header.topic(self._token).permit
        if permit in refused:
            raise refused[permit]
        return self._book.get(permit).principal


def decode(reading: ReadingForm[V], data: bytes | memoryview) -> Parcel | Void:
    return Void.decode(data) if is_void(data) else reading.decode(data)


def parse(
    reading: ReadingForm[V], fetched: Fetched, partition: int, offset: int, anchor: AnchorRow | None
) -> list[Parcel | Void]:
    """(a): the parcels from `offset` on that were fetched. Raises `Withheld` unless their hashes are the anchored ones;
    without an anchor they are only read."""
    if fetched.first != offset or (anchor is not None and fetched.first + len(fetched.parcels) > anchor.size):
        raise withheld(partition, f"offset {offset} was asked for, {fetched.first} came", "altered")
    if anchor is None:
        return [decode(reading, data) for data in fetched.parcels]
    parcels: list[Parcel | Void] = []
    for at, data in enumerate(fetched.parcels, offset):
        try:
            parcels.append(decode(reading, data))
        except Malformed as error:
            raise Withheld(f"partition {partition}, offset {at}: not a parcel: {error}", reason="altered") from error
    leaves = [leaf_hash(parcel.hash) for parcel in parcels]
    try:
        verify_range(leaves, offset, anchor.size, list(fetched.proof), anchor.root)
    except Forged as error:
        message = f"offsets {offset} to {offset + len(parcels)} are not what was anchored at height {anchor.height}"
        raise withheld(partition, message, "altered") from error
    return parcels


def _is_of_a_write(head: LaneHead) -> bool:
    """Whether a lane ends in a pending or commit parcel: what counts is listed, so its silence hides nothing."""
    return Header.decode(head.header).write is not None


ParcelReader = PartitionReader[VerifiedHeader]
PlacedParcel = Placed[VerifiedParcel]
