"""A task on an executor: fetch the slices of its share, hold every parcel to its name, open, project.

The driver verified headers and lanes and named each parcel by its hash. Here the bytes must have that name and the body
the root in the header (parcel/verify.py, `verify_named`), the commitment, the columns and, unless `verify=fast`, every
leaf must hold (parcel/open.py). While one range is opened the next one is fetched, be it of another slice. What waits
to be joined takes no more than the query's `openedBytesMax`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import zip_longest
from typing import Any

import pyarrow as pa

from tallystick.carriers.carrier import Fetched
from tallystick.client.opening import NULL_BYTES, ask_once, unopened, within_room
from tallystick.client.reader import Finding, is_late
from tallystick.errors import CannotOpen, Malformed, Refused, Withheld
from tallystick.parcel.header import ParcelKind
from tallystick.parcel.locks import MissingKey, NotEntitled
from tallystick.parcel.open import open_batch, open_columns, open_content
from tallystick.parcel.parcel import NoRoom, Parcel, Room, VerifiedParcel, describe
from tallystick.parcel.seal import Gap
from tallystick.parcel.verify import verify_named
from tallystick.pipeline.access import FETCH_BYTES, TopicKeys, borrow, join
from tallystick.pipeline.columns import DoesNotFit, Projection
from tallystick.pipeline.loan import Loan
from tallystick.pipeline.options import Options
from tallystick.pipeline.plan import NAME_BYTES, NO_NAME, PUBLISHER_BYTES, Slice
from tallystick.pipeline.quarantine import report
from tallystick.policy.content import read_interest, wanted_rows
from tallystick.policy.formula import Formula, leaves
from tallystick.record.batch import Batch
from tallystick.record.schema import Schema

_FIRST_BYTES = 1 << 20  # of a task's first request: until it is answered there is nothing to open
_JOINED_BYTES = 16 << 20  # of opened rows that are handed to the JVM at the latest


def read(
    slices: tuple[Slice, ...], options: Options, projection: Projection, loan: Loan | None = None, rows_min: int = 8192
) -> Iterator[Any]:
    """The rows of the slices as `pa.RecordBatch`es of the projection, with what was lent or else as the identity in
    `home`. Parcels with fewer rows than `rows_min` are joined before they go to the JVM."""
    waiting: list[Any] = []
    rows = 0
    room = Room(options.opened_bytes_max)
    readers = [_SliceReader(slice_, options, projection, room, loan) for slice_ in slices]
    for reader, offset, fetched in _ranges(readers):
        for at, data in enumerate(fetched.parcels, offset):
            try:
                batch = reader.read(data, at, is_first=not waiting)
            except NoRoom:
                yield _joined(waiting)
                waiting, rows = [], 0
                batch = reader.read(data, at, is_first=True)
            if batch is None or not batch.num_rows:
                continue
            waiting.append(batch)
            rows += batch.num_rows
            if rows >= rows_min or room.taken_bytes >= _JOINED_BYTES:
                yield _joined(waiting)
                waiting, rows = [], 0
                room.begin()
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[Any]) -> Any:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _ranges(readers: Sequence[_SliceReader]) -> Iterator[tuple[_SliceReader, int, Fetched]]:
    """What the node shows of each slice, range by range: from which offset on, and what; the next one is on its way."""
    if not readers:
        return
    with ThreadPoolExecutor(1, "fetch") as ahead:
        coming = ahead.submit(readers[0].fetch, readers[0].first, _FIRST_BYTES)
        for reader, following in zip_longest(readers, readers[1:]):
            offset = reader.first
            while offset < reader.end:
                fetched = reader.take(coming, offset)
                end = offset + max(1, len(fetched.parcels))
                if end < reader.end:
                    coming = ahead.submit(reader.fetch, end)
                elif following is not None:
                    coming = ahead.submit(following.fetch, following.first)
                yield reader, offset, fetched
                offset = end


class _SliceReader:
    def __init__(self, slice_: Slice, options: Options, projection: Projection, room: Room, loan: Loan | None) -> None:
        self._slice, self._options, self._projection, self._room = slice_, options, projection, room
        self.first, self.end = slice_.first, slice_.end
        asked = options.home, options.topic, slice_.permit, slice_.version
        self._access: TopicKeys = borrow(loan) if loan else join(*asked)
        self._interest = self._read_interest()
        self._stand_below = dict(slice_.suspects)

    def _read_interest(self) -> Formula | None:
        if not self._options.interest:
            return None
        schemas, version = self._access.schemas, self._options.schema_version
        wanted = next((one for one in schemas if one.version == version), schemas[-1])
        return read_interest(self._options.interest, wanted.arrow)

    def fetch(self, offset: int, bytes_max: int = FETCH_BYTES) -> Fetched:
        size = self._slice.size if self._slice.root else None
        return self._access.fetch(
            self._slice.partition, offset, self.end, size, stored=size is None, bytes_max=bytes_max
        )

    def take(self, coming: Future[Fetched], offset: int) -> Fetched:
        """Return what was asked for from `offset` on. Where the node sent something else or lost it, tell that and
        return nothing."""
        known = "is anchored" if self._slice.root else "was shown to the driver"
        place = f"partition {self._slice.partition}, offset {offset}"
        problem: Refused = Withheld(f"{place}: it {known}, and the node does not show it", reason="missing")
        try:
            fetched = coming.result()
            if fetched.first == offset and 0 < len(fetched.parcels) <= self.end - offset:
                return fetched
        except Refused as error:
            if error.reason != "damaged":
                raise
            problem = error
        self._report(problem, offset)
        return Fetched(offset, (), 0, (), 0)

    # ── One parcel ───────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, data: bytes | memoryview, offset: int, *, is_first: bool) -> Any | None:
        """Return the rows of the parcel at `offset`, if it has any, and report what does not hold. Raises `NoRoom`
        where others must be handed over first."""
        at = offset - self._slice.first
        name = self._slice.names[at * NAME_BYTES : (at + 1) * NAME_BYTES]
        if name == NO_NAME:  # the driver found something in it, and told; or the query does not want it
            return None
        parcel = None
        try:
            parcel = Parcel.decode(data)
            verified = verify_named(parcel, name)
        except Refused as error:
            altered = Withheld(f"partition {self._slice.partition}, offset {offset}: {error}", reason="altered")
            self._report(altered, offset, parcel)
            return None
        try:
            if parcel.header.kind is ParcelKind.GAP:
                publisher, ring = self._publisher(offset), self._access.ring
                content = self._access.opened(publisher, parcel.header, lambda: open_content(verified, ring))
                gap = Gap.decode(content)
                raise _Told(f"{describe(parcel.header)}: {gap.rows} rows were dropped: {gap.reason}", reason="gap")
            if parcel.header.kind is not ParcelKind.DATA:
                return None
            return within_room(lambda: self._open(verified, offset), is_first, self._room.begin)
        except MissingKey as error:
            erased = error.epoch is None and (error.publisher, error.period) in self._access.erased
            hint = f"the kept permit may begin later: remove {self._options.home}/grants, and a new one is asked for"
            self._report(unopened(error, parcel.header, erased=erased, hint=hint), offset, parcel)
        except NotEntitled as error:
            if not self._options.nulls_for_closed:
                self._report(error, offset, parcel)
        except (CannotOpen, DoesNotFit, _Told) as error:
            self._report(error, offset, parcel)
        except Malformed as error:  # a gap that its publisher signed, and that says nothing
            self._report(CannotOpen(f"{describe(parcel.header)}: cannot open: {error}"), offset, parcel)
        return None

    def _open(self, verified: VerifiedParcel, offset: int) -> Any:
        header = verified.header
        schema = self._access.schema(header.schema_version, header.schema_hash)
        publisher = self._publisher(offset)
        batch = self._access.opened(publisher, header, lambda: self._try_open(verified, schema))
        self._room.take(batch.rows * NULL_BYTES * self._projection.columns)
        suspect = offset >= self._stand_below.get(publisher, self._slice.end)
        anchor = next((one for one in self._slice.anchors if one.size > offset), None)
        if suspect:
            message = f"{describe(header)}: anchored after its publisher's key was revoked"
            self._report(_Told(message, reason="suspect"), offset, verified.parcel)
        facts = {
            "_parcel": header.hash.hex(),
            "_partition": self._slice.partition,
            "_offset": offset,
            "_height": None if anchor is None else anchor.height,
            "_publisher": publisher.hex(),
            "_time": header.time_ms * 1000 if header.time_ms else None,
            "_late": None if anchor is None else is_late(header.time_ms, anchor.time_ms),
            "_suspect": suspect,
        }
        mask = None if self._interest is None else pa.array(wanted_rows(self._interest, batch.data))
        return self._projection.apply(batch.data, facts, mask)

    def _publisher(self, offset: int) -> bytes:
        at = (offset - self._slice.first) * PUBLISHER_BYTES
        return self._slice.publishers[at : at + PUBLISHER_BYTES]

    def _try_open(self, verified: VerifiedParcel, schema: Schema) -> Batch:
        """Open a parcel. A key that we lack may have been issued since, so ask for it once. Raises `NotEntitled` where
        no column opens, or where one does not and that is an error."""
        needed = () if self._interest is None else {leaf.attribute for leaf in leaves(self._interest.root)}
        groups = self._projection.groups(schema, needed)
        return ask_once(lambda: self._open_groups(verified, schema, groups), self._access.update)

    def _open_groups(self, verified: VerifiedParcel, schema: Schema, groups: tuple[int, ...]) -> Batch:
        ring, fast = self._access.ring, self._options.fast
        if not self._options.nulls_for_closed:
            return open_batch(verified, ring, schema, groups=groups, fast=fast, room=self._room)
        # Where nothing that is wanted opens, another group must tell whether there are rows, and how many.
        others = [(group,) for group in range(len(schema.groups)) if group not in groups]
        for some in (groups, *others):
            batch, _ = open_columns(verified, ring, schema, groups=some, fast=fast, room=self._room)
            if batch is not None:
                return batch
        return open_batch(verified, ring, schema, groups=groups, fast=fast)  # says why not

    def _report(self, error: Refused, offset: int, parcel: Parcel | None = None) -> None:
        message = f"{error}; {error.hint}" if error.hint else str(error)
        place = (self._slice.token, self._slice.partition, offset)
        report(Finding.about(error.reason, message, place, self._publisher(offset), parcel), self._options)


class _Told(Refused):
    """Something that its author did openly: it is told, and stops nothing."""
