"""The lanes at this node: the head of each and where it lies, and an index of where every parcel of it lies.

Heads are kept in memory and rebuilt from the storage itself: a snapshot says how far it covers each partition, the rest
is read from headers. A head moves on as soon as the guards take its parcel, so that the next one is judged behind it;
it counts for good once the parcel is stored, and goes back where it was if that fails.

The index answers which parcel has a sequence in a lane, and which is the lane's last below an offset. Threat: somebody
who asks for what lies far back, or nowhere, and lets the node read headers for it. Every `RUN` offsets of a partition
are one *run*: a file with a directory of lanes, and behind it sequences and offsets, lane by lane. The newest run of a
partition is in memory. A question looks at one directory after the other, newest first, and reads the rows of one lane;
`ReadsLeft` bounds how often it goes to the disk.

The files are derived, and written without a sync. Each names the root of the partition's tree at its end, so that a
file of another log, or of this one before it was restored, does not count; checksums find one that is torn. A run that
is missing or does not count is made from headers, step by step, beside the node's other work (`build`); until then
whoever needs it is told to come back. Nobody is blamed by the index: the front reads the header that it points to.
"""

from __future__ import annotations

import logging
import struct
import threading
import zlib
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import NamedTuple

from tallystick import wire
from tallystick.carriers.storage import Location, Place, Storage, Taken, headers_of
from tallystick.errors import TallystickError, Unavailable
from tallystick.guards.publish import Head, Lanes
from tallystick.parcel.header import Header
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.disk import read_all, write_atomic

log = logging.getLogger(__name__)

RUN = 16_384  # offsets; their headers are read in about a second
READS_MAX = 256  # from the disk, for one question: some 10 ms
BUILD_STEP = 1_024  # headers that are read in one step where a run is missing
DIRECTORIES_BYTES = 64 << 20  # held in memory, of 50 bytes for each lane of a run

_PATH = "heads"
_RUNS = "lanes"
_MAGIC, _VERSION = b"TALLYLAN", 1
_FILE = struct.Struct("<8sI16sIQQ32sI")  # magic, version, token, partition, base, covered, root at covered, lanes
_NAME_BYTES = 32  # principal and lane
_LANE = struct.Struct(f"<{_NAME_BYTES}sIHQI")  # name, rows of lanes before it, rows, first sequence, crc of its rows
_CRC_BYTES = 4
_ROW_BYTES = 10  # sequence 8, offset in the run 2


@dataclass
class ReadsLeft:
    """How often one question may still go to the disk."""

    reads: int = READS_MAX

    def spend(self) -> None:
        if self.reads == 0:
            raise Unavailable(f"the answer lies more than {READS_MAX} reads away", retry_after_s=1.0)
        self.reads -= 1


@dataclass
class _Rows:
    """The parcels of one lane in a run, oldest first; offsets are those in the run."""

    sequences: array[int] = field(default_factory=lambda: array("Q"))
    offsets: array[int] = field(default_factory=lambda: array("H"))

    def offset_of(self, sequence: int) -> int | None:
        at = bisect_left(self.sequences, sequence)
        return self.offsets[at] if at < len(self.sequences) and self.sequences[at] == sequence else None

    def last_below(self, offset: int) -> int | None:
        at = bisect_left(self.offsets, offset)
        return self.offsets[at - 1] if at else None

    def encode(self) -> bytes:
        count = len(self.sequences)
        return struct.pack(f"<{count}Q{count}H", *self.sequences, *self.offsets)

    @classmethod
    def decode(cls, data: bytes) -> _Rows:
        count = len(data) // _ROW_BYTES
        values = struct.unpack(f"<{count}Q{count}H", data)
        return cls(array("Q", values[:count]), array("H", values[count:]))


class _Listed(NamedTuple):
    """A lane in the directory of a run."""

    name: bytes
    start: int
    rows: int
    first: int  # sequence
    crc: int


class _Directory(NamedTuple):
    """The lanes of a run in the order of their names, and where in the file their rows begin."""

    lanes: bytes
    rows_at: int
    covered: int  # the offset up to which the run is there

    def find(self, name: bytes) -> _Listed | None:
        places = range(0, len(self.lanes), _LANE.size)
        at = bisect_left(places, name, key=lambda at: self.lanes[at : at + _NAME_BYTES]) * _LANE.size
        found = self.lanes[at : at + _NAME_BYTES] == name
        return _Listed(*_LANE.unpack_from(self.lanes, at)) if found else None


@dataclass
class _Tail:
    """The newest run of a partition: what lies from `first` on and below `end`."""

    base: int
    first: int
    end: int
    lanes: dict[bytes, _Rows] = field(default_factory=dict)
    saved: int = 0  # the end that its file has

    @property
    def is_whole(self) -> bool:
        return self.first == self.base


Key = tuple[Place, int]  # a run, by its partition and its first offset


class LaneIndex:
    """Thread-safe: one thread adds, one builds, any number ask."""

    def __init__(self, storage: Storage, principal_of: Callable[[Header], bytes], run: int) -> None:
        """A run has `run` offsets, at most 65,536; files of other lengths do not count."""
        self._storage, self._principal_of, self._run = storage, principal_of, run
        self._lock = threading.Lock()
        self._tails: dict[Place, _Tail] = {}
        self._directories: OrderedDict[Key, _Directory] = OrderedDict()  # the least recent first
        self._directories_bytes = 0
        self._missing: dict[Key, None] = {}  # the most wanted last
        self._making: Iterator[None] | None = None
        self._files: set[str] = set()
        try:
            storage.disk.mkdir(_RUNS)
            self._files.update(storage.disk.listdir(_RUNS))
        except OSError as error:  # a full disk, say: whoever asks waits until there is room
            log.warning("the index of lanes cannot be opened: %s", error.strerror)

    # Growing.

    def open(self, place: Place, covered: int) -> None:
        """Take up a partition; what lies from `covered` on is added one by one, what lies below is in files."""
        base = covered - covered % self._run
        tail = _Tail(base, covered, covered)
        if covered > base:
            tail = self._read_tail((place, base), covered) or tail
        self._tails[place] = tail
        needed = [(place, one) for one in range(0, base, self._run)] + [(place, base)] * (not tail.is_whole)
        self._missing |= {key: None for key in needed if key == (place, base) or _file_name(key) not in self._files}

    def add(self, place: Place, principal: bytes, header: Header, offset: int) -> None:
        """A parcel is stored; one that was added before is passed over."""
        with self._lock:
            tail = self._tails.get(place) or self._tails.setdefault(place, _Tail(0, 0, 0))
            if offset < tail.end:
                return
            while offset - tail.base >= self._run:
                tail = self._begin_run(place, tail)
            name = principal + header.lane
            rows = tail.lanes.get(name)
            if rows is None:
                rows = tail.lanes[name] = _Rows()
            rows.sequences.append(header.sequence)
            rows.offsets.append(offset - tail.base)
            tail.end = offset + 1

    def cover(self, place: Place, end: int) -> None:
        """Whatever else lies below `end` has no row: voids, and parcels that lie there again."""
        with self._lock:
            tail = self._tails.get(place) or self._tails.setdefault(place, _Tail(0, 0, 0))
            while end - tail.base > self._run:
                tail = self._begin_run(place, tail)
            tail.end = max(tail.end, end)

    def save(self) -> None:
        """Write what is in memory, so that the next start need not read it from headers."""
        with self._lock:
            for place, tail in self._tails.items():
                covered = min(self._storage.end(place), tail.base + self._run)
                if tail.is_whole and covered > max(tail.base, tail.saved):
                    self._write((place, tail.base), covered, tail.lanes)

    def _begin_run(self, place: Place, full: _Tail) -> _Tail:
        base = full.base + self._run
        if not full.is_whole or not self._write((place, full.base), base, full.lanes):
            self._want((place, full.base))
        self._tails[place] = _Tail(base, base, base)
        return self._tails[place]

    # Asking.

    def find(self, place: Place, principal: bytes, header: Header, work: ReadsLeft) -> int | None:
        """The offset of the parcel that has this header's sequence in its lane."""
        name, sequence = principal + header.lane, header.sequence
        with self._lock:
            tail = self._tails.get(place)
            rows = tail.lanes.get(name) if tail is not None else None
            if tail is None or (rows is not None and rows.sequences[0] <= sequence):
                return None if tail is None or rows is None else _at(tail.base, rows.offset_of(sequence))
            self._check_whole(place, tail)
        for base, listed in self._listed(place, tail.base, name, work):
            if listed.first <= sequence:
                return _at(base, self._rows((place, base), listed, work).offset_of(sequence))
        return None

    def last_below(self, place: Place, principal: bytes, lane: bytes, below: int, work: ReadsLeft) -> int | None:
        """The offset of the lane's last parcel below an offset."""
        name = principal + lane
        with self._lock:
            tail = self._tails.get(place)
            if tail is None:
                return None
            if below > tail.base:
                rows = tail.lanes.get(name)
                found = None if rows is None else rows.last_below(below - tail.base)
                if found is not None:
                    return tail.base + found
                self._check_whole(place, tail)
        for base, listed in self._listed(place, min(below, tail.base), name, work):
            found = self._rows((place, base), listed, work).last_below(below - base)
            if found is not None:
                return base + found
        return None

    def distrust(self, place: Place, offset: int) -> Unavailable:
        """What lies at `offset` is not what the index says: make its run anew. Returns what to tell whoever asked."""
        with self._lock:
            return self._spoilt((place, offset - offset % self._run))

    def _check_whole(self, place: Place, tail: _Tail) -> None:
        if not tail.is_whole:
            raise self._want((place, tail.base))

    def _listed(self, place: Place, below: int, name: bytes, work: ReadsLeft) -> Iterator[tuple[int, _Listed]]:
        """A lane in the runs that begin below an offset, newest first."""
        for base in reversed(range(0, below, self._run)):
            listed = self._directory((place, base), work).find(name)
            if listed is not None:
                yield base, listed

    def _directory(self, key: Key, work: ReadsLeft) -> _Directory:
        with self._lock:
            held = self._directories.get(key)
            if held is not None:
                self._directories.move_to_end(key)
                return held
        work.spend()
        directory = self._read_directory(key)
        with self._lock:
            if directory is None or directory.covered != key[1] + self._run:
                raise self._spoilt(key)
            self._directories[key] = directory
            self._directories_bytes += len(directory.lanes)
            while self._directories_bytes > DIRECTORIES_BYTES:
                self._directories_bytes -= len(self._directories.popitem(last=False)[1].lanes)
        return directory

    def _rows(self, key: Key, listed: _Listed, work: ReadsLeft) -> _Rows:
        work.spend()
        rows = self._read_rows(key, self._directory(key, work), listed)
        if rows is None:
            with self._lock:
                raise self._spoilt(key)
        return rows

    def _spoilt(self, key: Key) -> Unavailable:
        place, base = key
        self._files.discard(_file_name(key))
        held = self._directories.pop(key, None)
        self._directories_bytes -= 0 if held is None else len(held.lanes)
        tail = self._tails[place]
        if tail.base == base:
            self._tails[place] = _Tail(base, tail.end, tail.end)
        return self._want(key)

    def _want(self, key: Key) -> Unavailable:
        self._missing.pop(key, None)
        self._missing[key] = None
        return Unavailable(f"{key[0]}: the index of lanes is being made", retry_after_s=1.0)

    # Building.

    def build(self) -> bool:
        """Take a step in making the runs that are missing. Returns False if there are none."""
        if self._making is None:
            with self._lock:
                if not self._missing:
                    return False
                self._making = self._make(next(reversed(self._missing)))
        if next(self._making, self) is self:
            self._making = None
        return True

    def _make(self, key: Key) -> Iterator[None]:
        try:
            yield from self._make_run(key)
        except TallystickError as error:
            log.warning("%s: the index of lanes cannot be made: %s", key[0], error)
            with self._lock:
                self._missing.pop(key, None)  # whoever asks wants it again

    def _make_run(self, key: Key) -> Iterator[None]:
        place, base = key
        tail = self._tails[place]
        end = tail.first if tail.base == base else base + self._run
        lanes: dict[bytes, _Rows] = {}
        principals: dict[bytes, bytes] = {}  # by permit, each of which is a read
        for count, entry in enumerate(headers_of(self._storage, place, base, end), 1):
            header = Parcel.decode_front(entry.header).header
            permit = header.topics[0].permit
            if permit not in principals:
                principals[permit] = self._principal_of(header)
            rows = lanes.setdefault(principals[permit] + header.lane, _Rows())
            rows.sequences.append(header.sequence)
            rows.offsets.append(entry.offset - base)
            if count % BUILD_STEP == 0:
                yield
        with self._lock:
            tail = self._tails[place]
            if tail.base == base and tail.first == end:
                for name, newer in tail.lanes.items():
                    rows = lanes.setdefault(name, _Rows())
                    rows.sequences += newer.sequences
                    rows.offsets += newer.offsets
                self._tails[place] = _Tail(base, base, tail.end, lanes)
            elif end < base + self._run:
                return  # it has grown full, or was distrusted, meanwhile: another time, and all of it
            else:
                self._write(key, end, lanes)
            self._missing.pop(key, None)  # what the disk did not take is made when somebody asks for it

    # Files.

    def _write(self, key: Key, covered: int, lanes: dict[bytes, _Rows]) -> bool:
        """Returns whether the disk took it; no sync, since what a crash tears does not count."""
        place, base = key
        root = self._storage.tree(place).root(covered)
        head, rows, start = [_FILE.pack(_MAGIC, _VERSION, *place, base, covered, root, len(lanes))], [], 0
        for name, own in sorted(lanes.items()):
            rows.append(own.encode())
            count = len(own.sequences)
            head.append(_LANE.pack(name, start, count, own.sequences[0], zlib.crc32(rows[-1])))
            start += count
        first = b"".join(head)
        try:
            with closing(self._storage.disk.open(_path(key), create=True)) as file:
                file.truncate(0)
                file.pwrite(0, b"".join([first, zlib.crc32(first).to_bytes(_CRC_BYTES, "little"), *rows]))
        except OSError as error:
            log.warning("%s: the index of lanes is not written: %s", place, error.strerror)
            self._files.discard(_file_name(key))
            return False
        self._files.add(_file_name(key))
        return True

    def _read_directory(self, key: Key) -> _Directory | None:
        """The directory of a run, if its file is whole and of this log."""
        place, base = key
        if _file_name(key) not in self._files:
            return None
        try:
            with closing(self._storage.disk.open(_path(key))) as file:
                head = file.pread(0, _FILE.size)
                if len(head) < _FILE.size:
                    return None
                *expected, covered, root, count = _FILE.unpack(head)
                if expected != [_MAGIC, _VERSION, *place, base] or count > self._run:
                    return None
                rest = file.pread(_FILE.size, count * _LANE.size + _CRC_BYTES)
        except OSError:
            return None
        lanes, crc = rest[:-_CRC_BYTES], rest[-_CRC_BYTES:]
        if zlib.crc32(head + lanes).to_bytes(_CRC_BYTES, "little") != crc or covered > self._storage.end(place):
            return None
        if self._storage.tree(place).root(covered) != root:
            return None
        return _Directory(lanes, len(head) + len(rest), covered)

    def _read_rows(self, key: Key, directory: _Directory, listed: _Listed) -> _Rows | None:
        try:
            with closing(self._storage.disk.open(_path(key))) as file:
                data = file.pread(directory.rows_at + listed.start * _ROW_BYTES, listed.rows * _ROW_BYTES)
        except OSError:
            return None
        return _Rows.decode(data) if zlib.crc32(data) == listed.crc else None

    def _read_tail(self, key: Key, covered: int) -> _Tail | None:
        """The newest run as it was saved, if that covers so much."""
        directory = self._read_directory(key)
        if directory is None or directory.covered < covered:
            return None
        tail = _Tail(key[1], key[1], directory.covered, saved=directory.covered)
        for fields in _LANE.iter_unpack(directory.lanes):
            listed = _Listed(*fields)
            rows = self._read_rows(key, directory, listed)
            if rows is None:
                return None
            tail.lanes[listed.name] = rows
        return tail


def _file_name(key: Key) -> str:
    place, base = key
    return f"{place.token.hex()}-{place.partition}-{base:020d}"


def _path(key: Key) -> str:
    return f"{_RUNS}/{_file_name(key)}"


def _at(base: int, offset: int | None) -> int | None:
    return None if offset is None else base + offset


class Heads:
    """`lanes` are the heads as the guards see them, `index` knows all parcels of each lane."""

    def __init__(
        self, storage: Storage, lanes_max: int, principal_of: Callable[[Header], bytes], run: int = RUN
    ) -> None:
        self._storage = storage
        self._stored = Lanes(lanes_max)
        self._where: dict[tuple[bytes, bytes], Location] = {}
        self.lanes = Lanes(lanes_max, self._stored)
        self._ahead: dict[tuple[bytes, bytes], Taken] = {}  # the newest of each lane that is not stored yet
        self.index = LaneIndex(storage, principal_of, run)
        self._rebuild(principal_of)

    def __len__(self) -> int:
        return len(self._where)

    def advance(self, taken: Taken) -> None:
        """The lane's head is now this parcel."""
        header = taken.parcel.header
        self.lanes.advance(taken.principal, header)
        self._ahead[taken.principal, header.lane] = taken

    def take_back(self, principal: bytes, lane: bytes) -> None:
        """What is not stored never came: the lane's head is the one that is."""
        self.lanes.restore(principal, lane, None)
        self._ahead.pop((principal, lane), None)

    def is_stored(self, principal: bytes, lane: bytes) -> bool:
        return (principal, lane) not in self._ahead

    def where(self, principal: bytes, lane: bytes) -> Location | Taken:
        """Where the lane's head lies."""
        return self._ahead.get((principal, lane)) or self._where[principal, lane]

    def is_next(self, place: Place, principal: bytes, header: Header) -> bool:
        """Whether a parcel follows what is stored of its lane in a partition; False where that cannot be told now."""
        head = self._stored.head(principal, header.lane)
        if head is None:
            return header.sequence == 0
        if place in self._where[principal, header.lane].places:
            return head.parcel == header.previous
        try:  # in another of its topics the lane has gone on further
            if self.index.find(place, principal, header, ReadsLeft()) is not None:
                return False
            before = replace(header, sequence=max(0, header.sequence - 1))
            return header.sequence == 0 or self.index.find(place, principal, before, ReadsLeft()) is not None
        except Unavailable:
            return False

    def stored(self, principal: bytes, header: Header, found: Location) -> None:
        """A parcel is stored in these places, or in these too."""
        key = principal, header.lane
        head, ahead = self._stored.head(*key), self._ahead.get(key)
        for place, offset in zip(*found, strict=True):
            self.index.add(place, principal, header, offset)
        if ahead is not None and found.places != ahead.places and ahead.parcel.hash == header.hash:
            own = dict(zip(*found, strict=True))  # elsewhere it lies where this node brought it
            offsets = zip(ahead.places, ahead.offsets, strict=True)
            found = Location(ahead.places, tuple(own.get(place, offset) for place, offset in offsets))
        if head is None or header.sequence > head.sequence:
            self._where[key] = found
            self._stored.advance(principal, header)
        elif head.parcel == header.hash:
            # In another of its topics, or in the same once more: where it lay first is where it lies.
            known = dict(zip(*found, strict=True)) | dict(zip(*self._where[key], strict=True))
            self._where[key] = Location(tuple(sorted(known)), tuple(known[place] for place in sorted(known)))
        if ahead is None:
            return
        if ahead.parcel.header.sequence <= header.sequence:
            self.take_back(*key)
        else:
            self.lanes.advance(principal, ahead.parcel.header)  # the lane itself is among the stored ones now

    # The snapshot.

    def save(self) -> None:
        """Write a snapshot, so that the next start reads only what came after it; without one it reads all."""
        self.index.save()
        storage = self._storage
        covered = [[place.token, place.partition, storage.end(place)] for place in storage.places()]
        lanes = [
            [principal, lane, head.sequence, head.parcel, head.closed, *map(list, self._where[principal, lane])]
            for principal, lane, head in self._stored.items()
        ]
        data = wire.encode([1, covered, lanes])
        try:
            write_atomic(storage.disk, _PATH, data + sha256(data).digest())
        except OSError as error:
            log.warning("heads of lanes: not saved (%s); the next start reads them from the log", error.strerror)

    def _rebuild(self, principal_of: Callable[[Header], bytes]) -> None:
        covered = self._load()
        for place in self._storage.places():
            self.index.open(place, covered.get(place, 0))
            for entry in headers_of(self._storage, place, covered.get(place, 0), self._storage.end(place)):
                header = Parcel.decode_front(entry.header).header
                self.stored(principal_of(header), header, Location((place,), (entry.offset,)))

    def _load(self) -> dict[Place, int]:
        """What the snapshot covers; a missing or unreadable one costs a full read and nothing else."""
        disk = self._storage.disk
        if not disk.exists(_PATH):
            return {}
        data = read_all(disk, _PATH)
        if sha256(data[:-32]).digest() != data[-32:]:
            return {}
        version, covered, lanes = wire.decode(data[:-32], "heads")
        marks = {Place(token, partition): end for token, partition, end in covered}
        if version != 1 or any(end > self._storage.end(place) for place, end in marks.items()):
            return {}  # of another log, or of one that was longer
        for principal, lane, sequence, parcel, closed, places, offsets in lanes:
            self._stored.restore(principal, lane, Head(sequence, parcel, closed))
            self._where[principal, lane] = Location(tuple(Place(*place) for place in places), tuple(offsets))
        return marks
