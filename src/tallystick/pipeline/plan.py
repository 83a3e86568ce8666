"""Planning on the driver: which parcels a query reads, each proved before a task is told of it.

Threat: a node that alters, drops, reorders, withholds a tail, or starts a lane wherever it likes. For each partition
the driver proves the anchor under a checkpoint that continues the last one it accepted (the memory lies in `home`),
fetches the headers of the range without bodies, proves them against the anchor, and joins each lane to its head
(client/reader.py does both, as for a subscriber). A `Slice` then names every parcel by its hash. An executor that holds
what it fetched to these names holds it to the anchored range; it needs no state of any lane, and it trusts the driver,
which it must anyway. Slices are plain values: no key, no connection.

A parcel in which something was found is named by zeros: the finding was told here, and no task reads it. So is a parcel
that the query's interest excludes by its labels, and one that is pending: its rows belong to the range in which its
commit parcel lies (`committed`). A run of such parcels is not fetched at all.

With `read=stored` a query goes on behind the anchor, on the carrier's word: lanes and signatures are checked all the
same, and what a stream read there is held to the anchor when it comes, while the stream runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tallystick.carriers.carrier import Fetched
from tallystick.client.fetching import Revocations, Supplier, confirm
from tallystick.client.reader import (
    FRONTS,
    Finding,
    PartitionReader,
    Placed,
    ReadTopic,
)
from tallystick.client.times import ToldAnchor
from tallystick.errors import Misuse, Refused, Unavailable, Withheld
from tallystick.ledger.block import Head
from tallystick.ledger.contracts.anchors import ANCHORS, RETIRED, AnchorRow
from tallystick.ledger.contracts.retention import lets_go
from tallystick.ledger.contracts.state import Key, R
from tallystick.ledger.contracts.topics import TOPICS
from tallystick.parcel.header import ParcelKind
from tallystick.parcel.parcel import VerifiedHeader
from tallystick.parcel.verify import PermitBook
from tallystick.pipeline.access import Access
from tallystick.pipeline.committed import CommitReader
from tallystick.pipeline.edges import anchors_of, offsets_at
from tallystick.pipeline.heads import HeadCache
from tallystick.pipeline.options import Options
from tallystick.pipeline.quarantine import report
from tallystick.runtime.http1 import RefusedByPeer

NAME_BYTES, PUBLISHER_BYTES = 32, 16
NO_NAME = bytes(NAME_BYTES)
SLICE_BYTES_MAX = 64 << 20  # a task's share: what is lost with a failed one is fetched again
SLICE_BYTES_MIN = 1 << 20  # below it starting a task costs more than its work; above it every core gets one
_BRIDGE_BYTES = 256 << 10  # what is passed over costs less to fetch than one more request
_POLL_S = 0.05

DAMAGED = "the checkpoint folder is damaged or of another query: restore it, or choose a new checkpointLocation"

HeaderReader = PartitionReader[VerifiedHeader]


class Slice(NamedTuple):
    """A run of parcels of one partition, for one task; without `root` no anchor covers it."""

    token: bytes
    partition: int
    first: int
    end: int
    size: int  # of the anchor under which the driver proved it
    root: bytes
    permit: bytes
    version: int  # of the topic's keys, schemas and erasures that the driver knows
    names: bytes  # of the parcels: 32 bytes each
    publishers: bytes  # 16 bytes each
    anchors: tuple[ToldAnchor, ...]
    suspects: tuple[tuple[bytes, int], ...]  # revoked publishers, and the offset below which theirs stands


@dataclass(frozen=True)
class _Proved:
    """What the driver knows of a partition's range."""

    partition: int
    first: int
    anchor: AnchorRow | None  # None: stored, not yet anchored
    names: list[bytes]
    publishers: list[bytes]
    sizes: list[int]
    passed: list[int]  # bytes of what is not of interest, and of what is pending; 0 otherwise
    commits: list[Placed[VerifiedHeader]] = field(default_factory=list)
    commit: Placed[VerifiedHeader] | None = None  # by which it counts, if it is of a write

    @property
    def place(self) -> tuple[int, int]:
        """What tells which anchors it came under."""
        return self.partition, 0 if self.anchor is None else self.anchor.size


class Planner:
    def __init__(self, options: Options, access: Access, slice_bytes_max: int = SLICE_BYTES_MAX) -> None:
        self._options, self._access, self._slice_bytes_max = options.on(access.session.anchors), access, slice_bytes_max
        self._view, identity = access.session.view, access.session.identity
        book = PermitBook(identity.instance, [identity.authority])
        self._topic = ReadTopic(identity.instance, access.token, access.partitions, book, access.is_part)
        self._supplier = Supplier(access.session.node, self._view, self._topic)
        self._heads = HeadCache(options.heads) if options.heads else None
        self._commit_reader = CommitReader(access, self._supplier, self._fetch, options.nulls_for_closed)
        self._revocations = Revocations(access.session.node, self._view, access.token, access.session.clock)
        self._readers: dict[int, HeaderReader] = {}
        self._seen_height = -1

    # ── The ledger ───────────────────────────────────────────────────────────────────────────────────────────────

    def anchors(self) -> dict[int, AnchorRow]:
        """The newest anchor of each partition that has one, proved. What was read before it is held to it. None of a
        carrier that anchors nothing: what the ledger has is of another carrier's log."""
        if not self._access.session.anchors:
            return {}
        rows = self._partition_rows(ANCHORS)
        self._seen_height = rows[-1][1].height
        found = {partition: row for partition, (row, _) in enumerate(rows) if row is not None}
        for partition, reader in self._readers.items():
            if partition in found:
                confirm(reader, found[partition], self._fetch)
        return found

    def _rows(self, keys: Iterable[Key[R]]) -> list[tuple[R | None, Head]]:
        """Rows of the state, each proved. However many keys there are, few requests are made."""
        return self._view.rows_at(list(keys), self._access.session.node.states)

    def _partition_rows(self, key: Callable[[bytes, int], Key[R]]) -> list[tuple[R | None, Head]]:
        return self._rows(key(self._access.token, partition) for partition in range(self._access.partitions))

    def ends(self, anchors: Mapping[int, AnchorRow]) -> dict[int, int]:
        """How far each partition can be read: to its anchor or, where the query asks for what is stored, to the end of
        the log as the carrier tells it."""
        found = {partition: anchor.size for partition, anchor in anchors.items()}
        if self._options.stored:
            for partition in range(self._access.partitions):
                size = found.get(partition, 0)
                found[partition] = max(size, self._fetch(partition, size, size + 1, None).end)
        return found

    def wait(self, first: Mapping[int, int], patience_s: float) -> dict[int, int]:
        """How far partitions can be read, as soon as one can beyond `first`, or when patience ends."""
        clock = self._access.session.clock
        deadline = clock.monotonic() + patience_s
        ends = self.ends(self.anchors())
        while not any(end > first[partition] for partition, end in ends.items()):
            if clock.monotonic() > deadline:
                break
            clock.pause(_POLL_S)
            if self._options.stored or self._view.refresh().height > self._seen_height:
                ends = self.ends(self.anchors())
        return ends

    # ── Edges ────────────────────────────────────────────────────────────────────────────────────────────────────

    def edges(self, anchors: Mapping[int, AnchorRow]) -> tuple[dict[int, int], dict[int, int]]:
        """The first offset to read in each partition, and the first not to be read."""
        node, token, ends = self._access.session.node, self._access.token, self.ends(anchors)
        bounds = {partition: (below, ends.get(partition, 0)) for partition, below in self._retired().items()}
        start = offsets_at(self._options.start, "starting", node, token, anchors, bounds)
        end = offsets_at(self._options.end, "ending", node, token, anchors, bounds)
        end = {partition: max(offset, bounds[partition][0]) for partition, offset in end.items()}
        return self.left(start, end), end

    def _retired(self) -> dict[int, int]:
        """Below which offset each partition has no bodies any more, as the ledger says; where nothing is anchored, as
        the reader's own node does."""
        session, partitions = self._access.session, range(self._access.partitions)
        if not session.anchors and lets_go(self._view.row(TOPICS(self._access.token))):
            return {partition: self._fetch(partition, 0, 1, None).retired for partition in partitions}
        marks = self._partition_rows(RETIRED)
        return {partition: 0 if mark is None else mark.below for partition, (mark, _) in enumerate(marks)}

    def check_some(self, ends: Mapping[int, int]) -> None:
        """Raise `Unavailable` where no partition can be read: an empty frame would say that there is no row."""
        if not any(ends.values()):
            known = "stored" if self._options.stored else "anchored on the ledger"
            hint = "publish to it, or wait for the node's next anchor; a stream waits by itself"
            raise Unavailable(f'topic "{self._options.topic}": nothing is {known} yet', hint=hint)

    def check_reached(self, reached: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Raise `Withheld` where a stream stands beyond what can be read."""
        known = "stored" if self._options.stored else "anchored"
        for partition, offset in reached.items():
            size = ends.get(partition, 0)
            if offset > size:
                told = f"the query's checkpoint stands at offset {offset} of partition {partition}, {known} are {size}"
                hint = "the ledger is behind, or the checkpoint folder is of another topic: choose a new one"
                raise Withheld(told, reason="rollback", hint=hint)

    def left(self, first: Mapping[int, int], end: Mapping[int, int]) -> dict[int, int]:
        """Where to begin between these offsets, given what was retired; what is not there any more is told."""
        found = dict(first)
        for partition, mark in self._retired().items():
            below = min(mark, end.get(partition, mark))
            if found[partition] < below:
                report(Finding.retired(self._access.token, partition, found[partition], below), self._options)
                found[partition] = below
        return found

    def cut(self, first: Mapping[int, int], end: Mapping[int, int]) -> dict[int, int]:
        """The end of a micro-batch within its limits, which the partitions share evenly; each goes on a little."""
        waiting = [partition for partition in end if end[partition] > first[partition]]
        found = dict(end)
        for partition in waiting:
            parcels, size = self._options.parcels_max, self._options.bytes_max
            if parcels is not None:
                found[partition] = min(end[partition], first[partition] + max(1, parcels // len(waiting)))
            if size is not None:
                found[partition] = self._reach(partition, first[partition], found[partition], size // len(waiting))
        return found

    def _reach(self, partition: int, first: int, end: int, bytes_max: int) -> int:
        """The offset that so many bytes reach to. It lies at least one parcel ahead."""
        offset, used = first, 0
        while offset < end:
            for data in self._fetch(partition, offset, end, None).parcels:
                used += FRONTS.decode(data).header.body_bytes + len(data)
                if used > bytes_max and offset > first:
                    return offset
                offset += 1
        return offset

    # ── Ranges ───────────────────────────────────────────────────────────────────────────────────────────────────

    def plan(
        self, first: Mapping[int, int], end: Mapping[int, int], anchors: Mapping[int, AnchorRow]
    ) -> list[tuple[Slice, ...]]:
        """The work of each task: together exactly the parcels from `first` to `end` that are of interest."""
        for p in end:
            if first[p] > end[p]:
                raise Misuse(f"the range of partition {p} begins behind its end: {first[p]} to {end[p]}")
        proved = [part for p in sorted(end) for part in self._prove(p, first[p], end[p], anchors.get(p))]
        proved += [written for range_ in proved for written in self._written(range_)]
        read = ((one, range_.anchor) for range_ in proved for one in set(range_.publishers) if any(one))
        self._revocations.learn(read)
        suspects, told = [self._suspects(range_) for range_ in proved], self._told(proved)
        total = max(1, sum(sum(range_.sizes) for range_ in proved))
        spread = min(os.cpu_count() or 1, -(-total // SLICE_BYTES_MIN))
        tasks = min(self._options.partitions_max, max(spread, -(-total // self._slice_bytes_max)))
        work: list[list[Slice]] = [[] for _ in range(tasks)]
        done = 0
        for range_, revoked in zip(proved, suspects, strict=True):
            for number, share in _shares(range_.sizes, done, total, tasks):
                for run in _runs(range_.passed, *share):
                    work[number].append(self._slice(range_, *run, told[range_.place], revoked))
            done += sum(range_.sizes)
        return [tuple(slices) for slices in work if slices]

    def _slice(
        self, proved: _Proved, at: int, until: int, told: tuple[ToldAnchor, ...], suspects: Mapping[bytes, int]
    ) -> Slice:
        first, anchor = proved.first + at, proved.anchor
        return Slice(
            token=self._access.token,
            partition=proved.partition,
            first=first,
            end=proved.first + until,
            size=0 if anchor is None else anchor.size,
            root=b"" if anchor is None else anchor.root,
            permit=self._access.permit,
            version=self._access.version,
            names=b"".join(proved.names[at:until]),
            publishers=b"".join(proved.publishers[at:until]),
            anchors=tuple(one for one in told if one.size > first),
            suspects=tuple(suspects.items()),
        )

    def _prove(self, partition: int, first: int, end: int, anchor: AnchorRow | None) -> Iterator[_Proved]:
        """The names of the range's parcels, of those that the anchor covers and of those behind it."""
        if first == end:
            return
        self._reader(partition, first).anchor = anchor
        size = 0 if anchor is None else anchor.size
        if first < size:
            yield self._prove_part(partition, first, min(end, size), anchor)
        if end > size:
            yield self._prove_part(partition, max(first, size), end, None)

    def _prove_part(self, partition: int, first: int, end: int, anchor: AnchorRow | None) -> _Proved:
        """Parcels that one anchor covers, or none does. What is found is reported."""
        count = end - first
        names, publishers = [NO_NAME] * count, [bytes(PUBLISHER_BYTES)] * count
        proved = _Proved(partition, first, anchor, names, publishers, [1] * count, [0] * count)
        for item in self.headers(partition, first, end, anchor):
            if isinstance(item, Finding):
                report(item, self._options)
                continue
            header, at, size = item.verified.header, item.offset - first, item.verified.header.size_bytes
            proved.publishers[at] = item.verified.publisher
            self._access.note_locks(item.verified.publisher, header)
            if header.kind is ParcelKind.COMMIT:
                proved.commits.append(item)
            # What is of a write counts where its commit parcel lies, and that is read here.
            if header.write is not None or not self._access.wanted.asks_for(header):
                proved.passed[at], proved.sizes[at] = size, 0
            else:
                proved.names[at], proved.sizes[at] = header.hash, size
        return proved

    def _written(self, proved: _Proved) -> Iterator[_Proved]:
        """What the commit parcels of a range make count, wherever it lies."""
        for commit in proved.commits:
            for item in self._commit_reader.ranges(proved.partition, commit):
                if isinstance(item, Finding):
                    report(item, self._options)
                    continue
                count, publisher = len(item.names), commit.verified.publisher
                names, sizes = list(item.names), list(item.sizes)
                place = (item.partition, item.first, item.anchor)
                yield _Proved(*place, names, [publisher] * count, sizes, [0] * count, commit=commit)

    def headers(
        self, partition: int, first: int, end: int, anchor: AnchorRow | None
    ) -> Iterator[Placed[VerifiedHeader] | Finding]:
        """The headers of a range, proved under the anchor if there is one, and joined to their lanes; and what was
        found in it."""
        reader = self._reader(partition, first)
        while reader.offset < end:
            yield from self._take(reader, end, anchor)
        if self._heads is not None:
            self._heads.save(self._access.token, partition, end, reader.heads)

    def _reader(self, partition: int, first: int) -> HeaderReader:
        """The reader that stands at `first`: a stream's own from the last micro-batch, or a new one."""
        known = self._readers.get(partition)
        if known is not None and known.offset == first:
            return known
        heads = None if self._heads is None else self._heads.load(self._access.token, partition, first)
        reader = HeaderReader(FRONTS, self._topic, partition, self._view.check_seen, first)
        if heads is not None:
            reader.heads = heads
        self._readers[partition] = reader
        return reader

    def _take(self, reader: HeaderReader, end: int, anchor: AnchorRow | None) -> list[Placed[VerifiedHeader] | Finding]:
        """The next headers. Where a range is not the anchored one, half of it is asked for, down to one parcel, so that
        a quarantine names the bad one and the others are read."""
        parcels = 0
        try:
            fetched = self._fetch(reader.partition, reader.offset, end, None if anchor is None else anchor.size)
            parcels = len(fetched.parcels)
            if not 0 < parcels <= end - reader.offset:
                asked = f"partition {reader.partition}: offsets {reader.offset} to {end} were asked for"
                raise Withheld(f"{asked}, {parcels} parcels came", reason="missing")
            now_ms = int(self._access.session.clock.now() * 1000)
            return self._supplier.take(reader, fetched, anchor, self._access.permit, now_ms)
        except Refused as error:
            is_of_request = isinstance(error, RefusedByPeer) and error.reason != "damaged"
            if self._options.quarantine is None or is_of_request:
                raise
            span = min(end - reader.offset, parcels or end)
            if span > 1:
                return self._take(reader, reader.offset + span // 2, anchor)
            finding = Finding(error.reason, str(error), self._access.token, reader.partition, reader.offset)
            reader.offset += 1
            return [finding]

    def _fetch(self, partition: int, offset: int, end: int, size: int | None) -> Fetched:
        return self._access.fetch(partition, offset, end, size, stored=bool(self._options.stored), headers=True)

    def _suspects(self, proved: _Proved) -> dict[bytes, int]:
        """The publishers of a range that were revoked, and below which offset theirs stands. What is of a write stands
        or falls with its commit parcel, whose list names it."""
        by, end = proved.commit, proved.first + len(proved.names)
        if by is not None:
            below = self._revocations.stands_below(by.verified.publisher, by.partition, by.offset, by.anchor)
            return {by.verified.publisher: 0} if by.offset >= below else {}
        publishers = sorted({publisher for publisher in proved.publishers if any(publisher)})
        place = (proved.partition, proved.first, proved.anchor)
        found = {publisher: self._revocations.stands_below(publisher, *place) for publisher in publishers}
        return {publisher: below for publisher, below in found.items() if below < end}

    def _told(self, proved: Sequence[_Proved]) -> dict[tuple[int, int], tuple[ToldAnchor, ...]]:
        """The anchors that parcels came under where a column asks for them, and the proved ones otherwise."""
        found: dict[tuple[int, int], tuple[ToldAnchor, ...]] = {}
        for range_ in sorted(proved, key=lambda one: one.first):
            if range_.place in found:  # with a range that begins earlier
                continue
            node, anchor = self._access.session.node, range_.anchor
            if anchor is None:
                found[range_.place] = ()
            elif self._options.provenance:
                found[range_.place] = anchors_of(node, self._access.token, range_.partition, range_.first, anchor)
            else:
                found[range_.place] = (ToldAnchor(anchor.size, anchor.height, anchor.time_ms),)
        return found


def _shares(sizes: Sequence[int], done: int, total: int, tasks: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Cut the parcels of a partition where the tasks' shares of all bytes end: (task, (from, to))."""
    at, task = 0, done * tasks // total
    for number, size in enumerate(sizes):
        mine = done * tasks // total
        if mine != task:
            yield task, (at, number)
            at, task = number, mine
        done += size
    yield task, (at, len(sizes))


def _runs(passed: Sequence[int], at: int, until: int) -> Iterator[tuple[int, int]]:
    """What is left of a share where parcels are passed over. A few between two others are fetched with them."""
    start, end, gap = -1, at, 0
    for number in range(at, until):
        gap += passed[number]
        if passed[number]:
            continue
        if start >= 0 and gap > _BRIDGE_BYTES:
            yield start, end
            start = -1
        start, end, gap = (number if start < 0 else start), number + 1, 0
    if start >= 0:
        yield start, end


def check_offsets(offsets: object, token: bytes, partitions: int) -> dict[int, int]:
    """A stream's offsets as numbers. Raises `Misuse` if they are not of this topic, or no offsets at all."""
    if not isinstance(offsets, Mapping) or offsets.get("topic") != token.hex():
        raise Misuse("the query's checkpoint is not one of this topic", hint=DAMAGED)
    found = {}
    for partition in range(partitions):
        offset = offsets.get(str(partition))
        if type(offset) is not int or offset < 0:
            raise Misuse(f"the query's checkpoint has no offset for partition {partition}", hint=DAMAGED)
        found[partition] = offset
    return found
