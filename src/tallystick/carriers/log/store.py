"""The storage engine of the log: every partition, the journal and the blobs of one node, committed in groups.

Callers *stage* parcels, blobs and journal records; `sync` commits all that is staged as one group:

1. the frames of each touched partition go to its newest segment in one write, and each such file is synced;
2. then one journal frame, with the new end of each of those partitions and the records, is written and
synced;
3. only then do readers see the group and its callers get their offsets, from which promises are made.

*Promised marks cost no sync of their own.* The journal must be synced for the records anyway. Since its
frame is written after the segments are durable, a durable frame means that every entry it counts is durable
too: the frame is the commit. If it is missing, `sync` never returned, so nothing of the group was promised,
and recovery cuts it from all partitions alike: a parcel of several topics is in all of them or in none, and
no entry is without its pending operation. If it is there, the marks say what must be found, and a log that
is shorter was damaged, not torn. A journal that loses its own end would turn promised entries into cuttable
ones; so every frame of a segment names the group it was written `after`, and one that names a group which
the journal lacks accuses the journal.

*A full disk* is met while writing: the group is undone, its callers get `Unavailable`, the next group may
succeed. *A failing sync* leaves unknown what the disk holds (Linux forgets the pages), so the store takes
nothing more until it is opened anew, which finds out by reading.

*Seen early.* A node that promises nothing, and for which time counts, may let readers see a group while it is being
synced (`LogLimits.early_max`). What a reader saw may then be lost with the power, as anything may that nobody promised.
But its offset must not go to another entry, or a reader that goes on behind it would pass over that one. So after an
end that was not in order, which the missing file `closed` tells, every partition goes on `early_max` voids further than
what was found; no more than so many are ever seen early, and none of a partition of which the journal has nothing yet.
What was seen is not taken back: where it then cannot be stored, the store takes nothing more until it is opened anew.

Several threads may stage and read while one commits. `staging` is the lock under which things staged
together are committed together. One process owns the folder; that is the node's to ensure.

`Blobs` are locks and other objects named by their hash: stored once, never changed, many thousands of a few KiB. They
lie in a partition of their own, each as the header of an entry without a body, so that they are synced, recovered and
checked as parcels are. The table from name to offset is made from the partition's hashes when the store opens. Names
are the caller's: who fetches a lock checks its hash.
"""

from __future__ import annotations

import errno
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import NoReturn

from tallystick.carriers.carrier import Void
from tallystick.carriers.log.journal import PATH as JOURNAL_PATH
from tallystick.carriers.log.journal import Journal, Mark, unsure
from tallystick.carriers.log.limits import LogLimits
from tallystick.carriers.log.partition import Partition, Write
from tallystick.carriers.log.recovery import Opening
from tallystick.carriers.log.report import Recovery, UnsureLog
from tallystick.carriers.log.segments import HASH_BYTES, HEAD_BYTES, TOKEN_BYTES, NewEntry, Reference
from tallystick.carriers.storage import Damaged, Entry, Place, Taken
from tallystick.crypto import merkle
from tallystick.errors import Misuse, TallystickError, Unavailable, blame
from tallystick.runtime.disk import Disk, write_atomic
from tallystick.wire import is_number

log = logging.getLogger(__name__)


class Blobs:
    """The committed blobs; the store stages and commits them."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self._offsets: dict[bytes, int] = {}
        self._known = 0
        self.refresh()

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, name: bytes) -> bool:
        return name in self._offsets

    def get(self, name: bytes) -> bytes | None:
        """The blob of this name, or None. Raises `Damaged` if its bytes are."""
        offset = self._offsets.get(name)
        if offset is None:
            return None
        entry = self.partition.read(offset, 0, headers_only=True)[0]
        if entry.parcel_hash != name:
            raise Damaged(f"blob {name.hex()}: offset {offset} holds another")
        return entry.header

    def refresh(self) -> None:
        """Know the blobs committed since the last call."""
        for offset in range(self._known, self.partition.end_offset):
            self._known = offset + 1
            self._offsets[self.partition.parcel_hash(offset)] = offset


BLOBS = Place(b"", 0)
_TOPICS = "topics"
_BLOBS_FOLDER = "blobs"
_CLOSED = "closed"
_TOKEN = re.compile(r"[0-9a-f]{32}")


class Staged:
    """A parcel (or a blob, in no place) on its way to the disk."""

    def __init__(self, places: tuple[Place, ...], planned: tuple[int, ...]) -> None:
        self.places = places
        self.planned = planned  # the offsets it will have if its group commits
        self._is_durable = False
        self._error: TallystickError | None = None

    @property
    def offsets(self) -> tuple[int, ...]:
        """The offset in each of the parcel's places; only a durable parcel has them.

        Raises the error with which its group failed, or `Misuse` before a `sync`.
        """
        if self._error is not None:
            raise self._error
        if not self._is_durable:
            raise Misuse("the parcel is staged, not stored", hint="call sync first")
        return self.planned

    def settle(self, error: TallystickError | None) -> None:
        self._is_durable, self._error = error is None, error


@dataclass
class _Group:
    """What is staged for the next commit."""

    entries: dict[Place, list[NewEntry]] = field(default_factory=dict)
    parcels: list[Staged] = field(default_factory=list)
    blobs: dict[bytes, Staged] = field(default_factory=dict)
    n_bytes: int = 0

    def settle(self, error: TallystickError | None) -> None:
        for staged in (*self.parcels, *self.blobs.values()):
            staged.settle(error)

    def add(self, place: Place, entry: NewEntry) -> None:
        self.entries.setdefault(place, []).append(entry)
        self.n_bytes += HEAD_BYTES + len(entry.header)
        if not isinstance(entry.body, Reference):
            self.n_bytes += len(entry.body)


@dataclass(frozen=True)
class LogStatistics:
    """A snapshot of the store; counts of groups and parcels are since it was opened."""

    partitions: int
    segments: int
    entries: int
    stored_bytes: int
    blobs: int
    staged_parcels: int
    staged_bytes: int
    groups: int
    parcels: int
    failures: int
    journal_bytes: int
    journal_pending: int
    cuts: int
    damages: int


class LogStore:
    """All partitions on one disk, as the front's `Storage`; opening it recovers what a crash left, and `recovery` says
    what that was.

    `anchored` is what the ledger knows: the size of the newest anchor of each partition. A partition with fewer
    entries is damaged, whatever the journal says.
    """

    notes_publishers = True

    def __init__(
        self, disk: Disk, limits: LogLimits | None = None, anchored: Mapping[Place, int] | None = None
    ) -> None:
        self.limits = limits or LogLimits()
        self.recovery = Recovery()
        self.staging = threading.RLock()
        self.disk = disk
        self._committing = threading.Lock()
        self._next = _Group()
        self._planned: dict[Place, int] = {}  # the end of a partition once all that is staged is committed
        self._groups = self._parcels = self._failures = 0
        self._stopped: Unavailable | None = None
        self._partitions: dict[Place, Partition] = {}
        self.on_early: Callable[[], None] = lambda: None  # called when readers see what is not durable yet
        try:
            self.journal = self._open_journal()
            self._open_partitions(anchored or {})
            self.blobs = Blobs(self._partition(BLOBS))
            if self._stopped is None:
                self._collect()
                if self.limits.early_max:
                    self._pass_over_seen()
        except OSError as error:
            raise blame(error, "log: cannot be opened: ") from error
        for line in self.recovery.lines():
            log.warning("log: %s", line)

    # Writing.

    def carry(self, parcels: Sequence[Taken]) -> None:
        """They are here."""

    def store(self, taken: Taken) -> None:
        """Let a parcel be stored with the next sync; it has its offsets."""
        parcel = taken.parcel
        front, body = parcel.encode_front(), bytes(parcel.body)
        taken.offsets = self.stage(taken.places, parcel.hash, front, body, taken.now_ms).planned

    def share(self, blobs: Mapping[bytes, bytes]) -> None:
        """With nobody."""

    def stage(self, places: Sequence[Place], parcel_hash: bytes, header: bytes, body: bytes, now_ms: int) -> Staged:
        """Stage one parcel for one partition of each of its topics; the body is stored in the first.

        Raises `Misuse` for what no store could take, `Unavailable` for what this one cannot take now.
        """
        places = tuple(places)
        self._check_parcel(places, parcel_hash, header, body)
        with self.staging:
            self._check_room(len(header) * len(places) + len(body))
            for place in places:
                self._check_writable(place)
            planned = tuple(self._plan(place) for place in places)
            stored: bytes | Reference = body
            for place in places:
                self._next.add(place, NewEntry(parcel_hash, header, stored, len(body), now_ms))
                stored = Reference(places[0], planned[0])
            staged = Staged(places, planned)
            self._next.parcels.append(staged)
            return staged

    def deposit(self, name: bytes, data: bytes) -> Staged:
        """Stage an object under its hash; one that is stored or staged already is left as it is."""
        if len(name) != HASH_BYTES:
            raise Misuse(f"blob name: expected {HASH_BYTES} bytes, found {len(name)}")
        _check_size("blob", data, self.limits.blob_bytes_max)
        with self.staging:
            staged = self._next.blobs.get(name) or Staged((), ())
            if name in self.blobs:
                staged.settle(None)
            elif name not in self._next.blobs:
                self._check_room(len(data))
                self._check_writable(BLOBS)
                self._plan(BLOBS)
                self._next.blobs[name] = staged
                self._next.add(BLOBS, NewEntry(name, data, b"", 0, 0))
            return staged

    def sync(self) -> None:
        """Commit what is staged; on return it is durable, and `Staged.offsets` tells where.

        Raises `Unavailable` if the group failed: nothing of it is stored, nor anything staged meanwhile. Where
        several threads sync, one may find its parcels taken into another's group: then `Staged.offsets` says
        whether that succeeded, for the journal records staged with them as well.
        """
        with self._committing:
            with self.staging:
                group, self._next = self._next, _Group()
                has_records = self.journal.take()
            if not group.entries and not has_records:
                return
            if self._stopped is not None:
                self._fail(group, self._stopped)
            try:
                if group.entries:  # the node's records alone may use the reserve: it is theirs and the ledger's
                    self._check_disk(group.n_bytes)
                self._commit(group)
            except OSError as error:
                what = "full" if error.errno == errno.ENOSPC else "failing"
                self._fail(group, Unavailable(f"disk {what}: {error.strerror}", retry_after_s=5.0))
            except UnsureLog as error:
                self._stopped = error
                self._fail(group, error)
            except Unavailable as error:
                self._fail(group, error)
            except BaseException:  # an interrupt, say: only the disk knows how far the group came
                self._stopped = UnsureLog("log: a commit was interrupted")
                raise

    def _commit(self, group: _Group) -> None:
        writes: list[Write] = []
        is_seen = False
        try:
            for place, entries in group.entries.items():
                writes.append(self._partition(place).prepare(entries, self.journal.number))
            for some in _chunks(writes, self.limits.files_open_max):
                for write in some:
                    write.store(self.disk)
                if is_seen := self._may_be_seen(writes):
                    self._show(writes)
                    self.on_early()
                with unsure("log: a segment could not be synced"):
                    for write in some:
                        write.sync(self.disk)
            marks = {write.partition.place: Mark(write.end, write.partition.below) for write in writes}
            self.journal.commit(marks)
        except OSError as error:
            if is_seen:
                raise UnsureLog(f"log: what was seen could not be stored: {error.strerror}") from error
            with unsure("log: a failed write could not be undone"):
                for write in writes:
                    write.undo(self.disk)
            raise
        finally:
            for write in writes:
                write.close()
        if not is_seen:
            self._show(writes)
        group.settle(None)
        self._groups += 1
        self._parcels += len(group.parcels)

    def _may_be_seen(self, writes: Sequence[Write]) -> bool:
        """Whether readers may see them before they are durable."""
        known, early_max = self.journal.marks, self.limits.early_max
        is_few = all(one.added.count <= early_max and one.partition.place in known for one in writes)
        return bool(early_max) and is_few and len(writes) <= self.limits.files_open_max

    def _show(self, writes: Sequence[Write]) -> None:
        # An entry may refer to a body in any other partition of the group, so all rows are known first.
        for write in writes:
            write.partition.admit(write)
        for write in writes:
            write.partition.publish(write)
        with self.staging:
            self.blobs.refresh()

    def _fail(self, group: _Group, error: Unavailable) -> NoReturn:
        """Tell everybody in the group, and all who staged behind it: their offsets built on it."""
        with self.staging:
            group.settle(error)
            self._next.settle(error)
            self._next = _Group()
            self._planned.clear()
            self.journal.drop()
            self._failures += 1
        raise error

    # Reading.

    def read(
        self, place: Place, offset: int, bytes_max: int, headers_only: bool = False, *, below: int | None = None
    ) -> list[Entry]:
        """As `Partition.read`; a partition that does not exist is empty."""
        partition = self._partitions.get(place)
        return partition.read(offset, bytes_max, headers_only, below=below) if partition else []

    def end(self, place: Place) -> int:
        partition = self._partitions.get(place)
        return partition.end_offset if partition else 0

    def underway(self, place: Place, parcel: bytes) -> None:
        """What is durable is in the tree."""

    def promised(self, place: Place, offset: int) -> None:
        """By this node alone."""

    def tree(self, place: Place) -> Partition:
        """The partition itself, for its tree. Raises `Misuse` if nothing was ever stored in it."""
        partition = self._partitions.get(place)
        if partition is None:
            raise Misuse(f"{place}: does not exist")
        return partition

    def root_with(self, place: Place, hashes: Sequence[bytes]) -> bytes:
        """The root of the tree with these parcels behind it."""
        if self.end(place):
            return self.tree(place).root_with(hashes)
        return merkle.root([merkle.leaf_hash(one) for one in hashes])

    def places(self) -> list[Place]:
        """The partitions that hold anything, or should, sorted."""
        partitions = list(self._partitions.items())
        return sorted(place for place, p in partitions if place.token and (p.end_offset or p.damage))

    def bytes_stored(self, place: Place) -> int:
        return self.tree(place).bytes_stored()

    def statistics(self) -> LogStatistics:
        """Counters, without a lock, as the front's."""
        partitions = [p for place, p in list(self._partitions.items()) if place.token]
        staged = self._next
        return LogStatistics(
            partitions=len(partitions),
            segments=sum(partition.segment_count() for partition in partitions),
            entries=sum(partition.end_offset for partition in partitions),
            stored_bytes=sum(partition.bytes_stored() for partition in partitions),
            blobs=len(self.blobs),
            staged_parcels=len(staged.parcels),
            staged_bytes=staged.n_bytes,
            groups=self._groups,
            parcels=self._parcels,
            failures=self._failures,
            journal_bytes=self.journal.file_bytes,
            journal_pending=self.journal.pending,
            cuts=len(self.recovery.cuts),
            damages=len(self.recovery.damages),
        )

    # Retention.

    def retirable(self, place: Place, limit: int) -> int:
        """The mark to retire below where everything below `limit` may go: whole segments. The newest one gets no more
        entries once some of its own may go, else what is published to it would hold it for ever."""
        partition = self.tree(place)
        with self._committing:
            self._check_writable(place)
            try:
                partition.cut(limit)
            except OSError as error:
                raise Unavailable(f"{place}: retiring stopped: {error.strerror}") from error
        return partition.retirable(limit)

    def retire(self, place: Place, below: int) -> None:
        """Give up the bodies below an offset; the caller has written the mark on the ledger.

        Segments wholly below are deleted and their headers kept. A segment with bodies that entries of other
        topics still need stays until those are retired too.
        """
        partition = self.tree(place)
        with self._committing:
            self._check_writable(place)
            if below > partition.end_offset:
                raise Misuse(f"{place}: cannot retire below {below}, the end is {partition.end_offset}")
            try:
                if below > partition.below:
                    self.journal.commit({place: Mark(partition.end_offset, below)})
                    partition.below = below
                self._collect()
            except OSError as error:
                raise Unavailable(f"{place}: retiring stopped: {error.strerror}") from error
            except UnsureLog as error:
                self._stopped = error
                raise

    def _collect(self) -> None:
        """Delete what marks and pins allow; what goes in one partition may release another."""
        while True:
            needed: dict[Place, int] = {}
            for partition in self._partitions.values():
                for place, lowest in partition.pins():
                    needed[place] = min(lowest, needed.get(place, lowest))
            collected = sum(
                partition.collect(min(partition.below, needed.get(place, partition.below)))
                for place, partition in self._partitions.items()
                if partition.below and partition.damage is None
            )
            if not collected:
                return

    def close(self) -> None:
        """Close the journal; what is staged and not synced is forgotten."""
        with self._committing:
            if self.limits.early_max and self._stopped is None:
                with suppress(OSError):  # then it did not end in order
                    write_atomic(self.disk, _CLOSED, b"")
            self._stopped = Unavailable("the log is closed")
            self.journal.close()

    # Opening.

    def _open_journal(self) -> Journal:
        is_new = not any(self.disk.exists(path) for path in (JOURNAL_PATH, _TOPICS, _BLOBS_FOLDER))
        if is_new:
            Journal.create(self.disk)
        journal = Journal(self.disk, self.limits, self.recovery, self.staging)
        if journal.is_damaged:
            self._stopped = Damaged(str(self.recovery.damages[0]))
        return journal

    def _open_partitions(self, anchored: Mapping[Place, int]) -> None:
        journal = self.journal
        for place in sorted({*self._found(), *journal.marks, *(place for place, size in anchored.items() if size)}):
            known = journal.marks.get(place, Mark()), anchored.get(place, 0), journal.number, journal.is_damaged
            Opening(self.disk, self._partition(place), *known, self.recovery).load()

    def _pass_over_seen(self) -> None:
        """Leave room for what readers may have seen and a crash took, unless the log was closed."""
        if self.disk.exists(_CLOSED):
            self.disk.remove(_CLOSED)
            self.disk.sync_dir("")
            return
        void = Void()
        for place in [one for one in self.places() if self.tree(one).damage is None]:
            newest = self.read(place, self.end(place) - 1, 1, headers_only=True)[0].stored_ms
            for _ in range(self.limits.early_max):
                self.stage([place], void.hash, void.encode(), b"", newest)
        try:
            self.sync()
        except Unavailable as error:  # the disk is full, say: then it can be read, and that is all
            self._stopped = error

    def _found(self) -> Iterator[Place]:
        """The partitions that have a folder; what else lies there is not ours."""
        if self.disk.exists(_BLOBS_FOLDER):
            yield BLOBS
        for token in self.disk.listdir(_TOPICS) if self.disk.exists(_TOPICS) else ():
            if _TOKEN.fullmatch(token):
                for number in self.disk.listdir(f"{_TOPICS}/{token}"):
                    if is_number(number):
                        yield Place(bytes.fromhex(token), int(number))

    def _partition(self, place: Place) -> Partition:
        partition = self._partitions.get(place)
        if partition is None:
            folder = f"{_TOPICS}/{place.token.hex()}/{place.partition}" if place.token else _BLOBS_FOLDER
            partition = Partition(self.disk, folder, place, self.limits, self._body)
            self._partitions[place] = partition
        return partition

    def _body(self, reference: Reference, parcel_hash: bytes) -> bytes:
        partition = self._partitions.get(reference.place)
        if partition is None:
            raise Damaged(f"{reference.place}: missing, and a body was stored there")
        return partition.read_body(reference.offset, parcel_hash)

    # Checks.

    def _plan(self, place: Place) -> int:
        """The offset of one more entry; the caller holds `staging`."""
        offset = self._planned.get(place)
        if offset is None:
            offset = self.end(place)
        self._planned[place] = offset + 1
        return offset

    def _check_parcel(self, places: tuple[Place, ...], parcel_hash: bytes, header: bytes, body: bytes) -> None:
        if not 1 <= len(places) <= self.limits.places_max or len(set(places)) != len(places):
            raise Misuse(f"a parcel lies in 1 to {self.limits.places_max} different partitions")
        for place in places:
            if len(place.token) != TOKEN_BYTES or not 0 <= place.partition < 1 << 32:
                raise Misuse(f"{place}: expected a token of {TOKEN_BYTES} bytes and a partition number")
        if len(parcel_hash) != HASH_BYTES:
            raise Misuse(f"parcel hash: expected {HASH_BYTES} bytes, found {len(parcel_hash)}")
        _check_size("header", header, self.limits.header_bytes_max)
        _check_size("body", body, self.limits.body_bytes_max)

    def _check_room(self, n_bytes: int) -> None:
        if self._stopped is not None:
            raise self._stopped
        if (
            self._next.n_bytes + n_bytes > self.limits.staged_bytes_max
            or len(self._next.parcels) >= self.limits.staged_parcels_max
        ):
            raise Unavailable(f"log: {self._next.n_bytes} bytes wait to be stored", retry_after_s=0.1)

    def _check_writable(self, place: Place) -> None:
        if self._stopped is not None:
            raise self._stopped
        partition = self._partitions.get(place)
        if partition is None:
            new = sum(staged not in self._partitions for staged in self._next.entries)
            if len(self._partitions) + new >= self.limits.partitions_max:
                raise Unavailable(f"log: holds {self.limits.partitions_max} partitions, the most it may")
        elif partition.damage is not None:
            raise Damaged(f"{partition.damage}; read only")

    def _check_disk(self, n_bytes: int) -> None:
        free = self.disk.free_bytes()
        if free < n_bytes + self.limits.reserve_bytes:
            raise Unavailable(
                f"disk full: {n_bytes} bytes to store, {free} free, {self.limits.reserve_bytes} kept in reserve",
                retry_after_s=5.0,
            )


def _check_size(what: str, data: bytes, most: int) -> None:
    if len(data) > most:
        raise Misuse(f"{what}: expected at most {most} bytes, found {len(data)}")


def _chunks(writes: Sequence[Write], size: int) -> Iterator[list[Write]]:
    rest = iter(writes)
    while chunk := list(islice(rest, size)):
        yield chunk
