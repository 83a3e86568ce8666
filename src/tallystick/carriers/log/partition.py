"""One partition: entries in offset order over segments, and the Merkle tree of their hashes.

A partition is written in *groups* by its store, in steps that the store interleaves with those of the other
partitions: `prepare` turns entries into the bytes of one write, `Write.store` and `Write.sync` bring them
to the disk, and `admit` and `publish` make them visible, once the journal's frame is durable. Until then no
reader sees them, and `Write.undo` takes them back. A group lies in one segment; a segment that would grow
beyond its bound is sealed with an index first.

Files are opened for each act and closed again: a thousand partitions need no thousand descriptors, and
beside a sync the cost is nothing. A lock protects the tables, never a read from the disk.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

from tallystick.carriers.log.limits import LogLimits
from tallystick.carriers.log.report import Damage, Retired
from tallystick.carriers.log.segments import (
    BODY,
    FILE_HEADER_BYTES,
    HEADERS_MAGIC,
    REFERENCE,
    SEGMENT_MAGIC,
    Frame,
    NewEntry,
    Reference,
    SegmentIndex,
    SegmentRow,
    file_header,
    frames,
    pack_frame,
    pack_retired,
    parse_frame,
    unpack_reference,
)
from tallystick.carriers.storage import Damaged, Entry, Place
from tallystick.crypto.merkle import Tree, leaf_hash
from tallystick.errors import Misuse, Unavailable
from tallystick.runtime.disk import Disk, File, read_all, write_atomic

ResolveBody = Callable[[Reference, bytes], bytes]


@dataclass
class Segment:
    """A segment file, or the headers file that has replaced it."""

    index: SegmentIndex
    is_sealed: bool = False
    is_retired: bool = False

    def path(self, folder: str) -> str:
        return segment_path(folder, self.index.base, "headers" if self.is_retired else "segment")


def segment_path(folder: str, base: int, kind: str) -> str:
    return f"{folder}/{base:020d}.{kind}"


class _Plan(NamedTuple):
    """What a read is to fetch: rows of consecutive offsets in one file."""

    path: str
    first: int
    rows: list[SegmentRow]


@dataclass
class Write:
    """The bytes of one group for one partition, between preparation and publication."""

    partition: Partition
    path: str
    position: int
    data: bytes
    is_new: bool
    added: SegmentIndex
    file: File | None = field(default=None)

    @property
    def end(self) -> int:
        return self.added.end

    def store(self, disk: Disk) -> None:
        self.file = disk.open(self.path, create=self.is_new)
        self.file.pwrite(self.position, self.data)

    def sync(self, disk: Disk) -> None:
        assert self.file is not None
        self.file.sync()
        self.close()
        if self.is_new:
            disk.sync_dir(self.partition.folder)

    def undo(self, disk: Disk) -> None:
        """Take the bytes back; needs no sync, since recovery would cut them as well."""
        self.close()
        if self.is_new:
            if disk.exists(self.path):
                disk.remove(self.path)
        else:
            with closing(disk.open(self.path)) as file:
                file.truncate(self.position)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


class Partition:
    """The entries of one partition; `load` in `recovery.py` makes it from what the disk holds."""

    def __init__(self, disk: Disk, folder: str, place: Place, limits: LogLimits, resolve: ResolveBody) -> None:
        self.folder = folder
        self.place = place
        self.damage: Damage | None = None
        self.below = 0  # the retirement mark: bodies from here on
        self._disk = disk
        self._limits = limits
        self._resolve = resolve
        self._lock = threading.Lock()
        self._segments: list[Segment] = []
        self._tree = Tree()
        self._end = 0
        self._bytes = 0

    # Reading.

    @property
    def end_offset(self) -> int:
        """The offset that the next entry will get; everything below is committed."""
        return self._end

    def read(self, offset: int, bytes_max: int, headers_only: bool = False, *, below: int | None = None) -> list[Entry]:
        """Entries from `offset` on, and with lower offsets than `below`: as many as fit `bytes_max`, and at least one
        unless it is the end.

        A read stays within one segment, so a short answer is not the end. Raises `Retired` for bodies below the
        mark, and `Damaged` if the very first entry is; otherwise the answer ends before a damaged one.
        """
        if offset < 0:
            raise Misuse(f"{self.place}: offset {offset} is negative")
        bytes_max = min(bytes_max, self._limits.read_bytes_max)
        while True:
            plan = self._plan(offset, bytes_max, headers_only, below)
            if plan is None:
                return []
            try:
                return self._entries(plan, bytes_max, headers_only)
            except FileNotFoundError:
                # Retention replaced the file between plan and read; the next plan knows its successor.
                if self._plan(offset, bytes_max, headers_only, below) == plan:
                    raise Damaged(f"{plan.path}: the file is missing") from None
            except OSError as error:
                raise Unavailable(f"{plan.path}: cannot be read: {error.strerror}") from error

    def read_body(self, offset: int, parcel_hash: bytes) -> bytes:
        """The body stored with the entry, for entries of other partitions that refer to it; heeds no mark."""
        with self._lock:
            segment = self._segment(offset)
            if segment is None or segment.is_retired:
                raise Damaged(f"{self.place}: the body at offset {offset} is missing")
            row, path = segment.index.row(offset), segment.path(self.folder)
        frame = self._frames(_Plan(path, offset, [row]), head_only=False)[0]
        if row.kind != BODY or row.parcel_hash != parcel_hash:
            raise Damaged(f"{self.place}: the entry at offset {offset} is not the one referred to")
        return bytes(frame.rest)

    def parcel_hash(self, offset: int) -> bytes:
        with self._lock:
            segment = self._segment(offset) if 0 <= offset < self._end else None
            if segment is None:
                raise Misuse(f"{self.place}: no offset {offset}, the end is {self._end}")
            return segment.index.row(offset).parcel_hash

    def root(self, size: int | None = None) -> bytes:
        """The root of the tree over the first `size` parcel hashes, for an anchor."""
        with self._lock:
            return self._tree.root(size)

    def root_with(self, hashes: Sequence[bytes]) -> bytes:
        """The root that the tree would have if these parcel hashes followed."""
        with self._lock:
            size = self._tree.size
            self._tree.extend(b"".join(map(leaf_hash, hashes)))
            try:
                return self._tree.root()
            finally:
                self._tree.truncate(size)

    def inclusion(self, offset: int, size: int) -> list[bytes]:
        with self._lock:
            return self._tree.inclusion(offset, size)

    def consistency(self, old: int, new: int) -> list[bytes]:
        with self._lock:
            return self._tree.consistency(old, new)

    def range_proof(self, first: int, end: int, size: int) -> list[bytes]:
        with self._lock:
            return self._tree.range_proof(first, end, size)

    def bytes_stored(self) -> int:
        """What the files of this partition take, indexes aside."""
        return self._bytes

    def newest_segment(self) -> Segment:
        return self._segments[-1]

    def segment_count(self) -> int:
        with self._lock:
            return len(self._segments)

    def _plan(self, offset: int, bytes_max: int, headers_only: bool, below: int | None) -> _Plan | None:
        with self._lock:
            if not headers_only and offset < self.below:
                raise Retired(f"{self.place}: bodies below offset {self.below} were retired", self.below)
            segment = self._segment(offset) if offset < self._end else None
            if segment is None:
                if self.damage is not None and offset >= self._end:
                    raise Damaged(str(self.damage))
                return None
            rows: list[SegmentRow] = []
            taken = 0
            end = min(segment.index.end, self._end)
            for at in range(offset, end if below is None else min(end, below)):
                row = segment.index.row(at)
                taken += row.head_bytes + (0 if headers_only else row.body_bytes)
                if rows and taken > bytes_max:
                    break
                rows.append(row)
            return _Plan(segment.path(self.folder), offset, rows) if rows else None

    def _segment(self, offset: int) -> Segment | None:
        at = bisect_right(self._segments, offset, key=lambda segment: segment.index.base) - 1
        if at < 0 or offset >= self._segments[at].index.end:
            return None
        return self._segments[at]

    def _entries(self, plan: _Plan, bytes_max: int, headers_only: bool) -> list[Entry]:
        entries: list[Entry] = []
        for frame in self._frames(plan, headers_only, bytes_max):
            row = frame.row
            body = None
            if not headers_only:
                try:
                    body = self._body(frame)
                except Damaged:
                    if not entries:
                        raise
                    break
            content = frame.content if row.kind == BODY and not headers_only else None
            entries.append(
                Entry(frame.offset, row.parcel_hash, frame.header, body, row.body_bytes, row.stored_ms, content)
            )
        return entries

    def _body(self, frame: Frame) -> bytes | memoryview:
        if frame.row.kind == REFERENCE:
            return self._resolve(unpack_reference(frame.rest), frame.row.parcel_hash)
        return frame.rest

    def _frames(self, plan: _Plan, head_only: bool, bytes_max: int = 0) -> list[Frame]:
        """The planned frames up to the first damaged one. Raises `Damaged` if that is the first."""
        last = plan.rows[-1]
        start = plan.rows[0].position
        span = last.position + (last.head_bytes if head_only else last.frame_bytes) - start
        with closing(self._disk.open(plan.path)) as file:
            whole = file.pread(start, span) if not head_only or span <= bytes_max else None
            found: list[Frame] = []
            for offset, row in enumerate(plan.rows, plan.first):
                if whole is None:
                    data, at = file.pread(row.position, row.head_bytes), 0
                else:
                    data, at = whole, row.position - start
                try:
                    frame = parse_frame(data, at, row.position, offset, head_only=head_only)
                    if frame.row != row:
                        raise Damaged("the frame is not the one that the index knows")
                except Damaged as error:
                    if found:
                        break
                    raise Damaged(f"{plan.path}: offset {offset}: {error}") from error
                found.append(frame)
            return found

    # Writing, by the store and under its commit lock.

    def prepare(self, entries: Sequence[NewEntry], after: int) -> Write:
        """The write of these entries behind the present end; seals the newest segment if it is full."""
        n_bytes = sum(len(entry.header) + entry.body_bytes for entry in entries)
        newest = self._segments[-1] if self._segments else None
        if newest is not None and not newest.is_sealed:
            present = newest.index.file_bytes()
            if present > FILE_HEADER_BYTES and present + n_bytes > self._limits.segment_bytes_max:
                self._seal(newest)
        is_new = newest is None or newest.is_sealed
        if is_new:
            self._disk.mkdir(self.folder)
            base, position = self._end, FILE_HEADER_BYTES
            parts = [file_header(SEGMENT_MAGIC, self.place, base)]
        else:
            assert newest is not None
            base, position = newest.index.base, newest.index.file_bytes()
            parts = []
        added = SegmentIndex(self._end)
        start = 0 if is_new else position
        for offset, entry in enumerate(entries, self._end):
            head, rest = pack_frame(entry, offset, after)
            parts += (head, rest)
            reference = entry.body if isinstance(entry.body, Reference) else None
            kind = REFERENCE if reference else BODY
            row = SegmentRow(position, len(entry.header), entry.body_bytes, entry.stored_ms, kind, entry.parcel_hash)
            added.add(row, reference)
            position += row.frame_bytes
        return Write(self, segment_path(self.folder, base, "segment"), start, b"".join(parts), is_new, added)

    def admit(self, write: Write) -> None:
        """Know the rows of a committed write; readers still see the old end."""
        with self._lock:
            if write.is_new:
                self._segments.append(Segment(write.added))
            else:
                index = self._segments[-1].index
                index.rows += write.added.rows
                for place, lowest in write.added.pins.items():
                    index.pin(Reference(place, lowest))

    def publish(self, write: Write) -> None:
        """Let readers see a committed write."""
        leaves = b"".join(map(leaf_hash, write.added.hashes()))
        with self._lock:
            self._tree.extend(leaves)
            self._end = write.end
            self._bytes += len(write.data)

    def adopt(self, segment: Segment) -> None:
        """Take a segment found on opening, behind those before it."""
        self._segments.append(segment)
        self._tree.extend(b"".join(map(leaf_hash, segment.index.hashes())))
        self._end = segment.index.end
        self._bytes += segment.index.file_bytes()

    # Retention, by the store and under its commit lock.

    def pins(self) -> Iterable[tuple[Place, int]]:
        """Of each other partition, the lowest offset whose body a live segment of this one needs."""
        for segment in self._segments:
            yield from segment.index.pins.items()

    def retirable(self, limit: int) -> int:
        """The end of the last segment that lies wholly below `limit`."""
        with self._lock:
            ends = [segment.index.end for segment in self._segments if segment.index.end <= min(limit, self._end)]
            return max([self.below, *ends])

    def cut(self, limit: int) -> None:
        """Let what comes next go to another segment if some of the newest lies below `limit`."""
        newest = self._segments[-1] if self._segments else None
        if newest is not None and not newest.is_sealed and newest.index.base < min(limit, self._end):
            self._seal(newest)

    def collect(self, limit: int) -> int:
        """Replace the segments wholly below `limit` by their headers. Returns the number of them."""
        collected = 0
        for segment in self._segments:
            if segment.index.end > limit:
                break
            if segment.is_retired or not segment.index.rows:
                continue
            self._retire(segment)
            collected += 1
        return collected

    def _retire(self, segment: Segment) -> None:
        if not segment.is_sealed:
            self._seal(segment)
        base = segment.index.base
        path = segment.path(self.folder)
        data = read_all(self._disk, path)[: segment.index.file_bytes()]
        try:
            heads = [pack_retired(frame) for frame in frames(data, base)]
        except Damaged as error:
            raise Damaged(f"{path}: kept, since its headers cannot all be read: {error}") from error
        header = file_header(HEADERS_MAGIC, self.place, base)
        write_atomic(self._disk, segment_path(self.folder, base, "headers"), b"".join([header, *heads]))
        retired = segment.index.retired()
        with self._lock:
            self._bytes += retired.file_bytes() - segment.index.file_bytes()
            segment.index, segment.is_retired = retired, True
        self._disk.remove(path)
        self._disk.sync_dir(self.folder)

    def _seal(self, segment: Segment) -> None:
        index = segment.index
        write_atomic(self._disk, segment_path(self.folder, index.base, "index"), index.encode(self.place))
        segment.is_sealed = True
