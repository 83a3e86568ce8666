"""The subscriber: ranges in, verified and opened batches out, and a finding for everything that was done to them.

The numbers are those of docs/life-of-a-record.md. A subscriber trusts neither the node nor the log: what it delivers
was anchored on a ledger whose checkpoints it checked itself, belongs to a lane without a gap, was signed by a
publisher with a permit, and opened with its own keys. What does not hold is a `Finding`; by default the first one
stops the iteration (`on_bad="fail"`), with `on_bad="report"` the subscriber goes on and tells `on_finding`.
What was done openly, such as retiring what the owner lets go, stops it only with `on_bad="strict"`.

`fetching.py` brings the ranges of partitions, `reader.py` verifies them, `pending.py` resolves commit parcels,
`opening.py` has the keys, `group.py` says which partitions are ours; here they meet, in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any

from tallystick import wire
from tallystick.client.fetching import Fetcher, Revocations
from tallystick.client.grants import Held, without_right
from tallystick.client.group import Member
from tallystick.client.opening import Interest, Opener, Places, unopened
from tallystick.client.pending import BadCommit, Commits, Written
from tallystick.client.reader import (
    OPEN_REASONS,
    Finding,
    FoundError,
    ParcelReader,
    Placed,
    PlacedParcel,
    is_late,
    withheld,
)
from tallystick.client.settings import SubscriberSettings
from tallystick.client.ties import ReaderTies
from tallystick.errors import CannotOpen, Malformed, Misuse, Refused, TallystickError, Unavailable, Withheld
from tallystick.parcel.header import Header, ParcelKind
from tallystick.parcel.keys import KeyRing
from tallystick.parcel.locks import MissingKey, NotEntitled
from tallystick.parcel.parcel import NoRoom, VerifiedParcel, describe, is_front
from tallystick.parcel.seal import Gap
from tallystick.parcel.verify import verify_named
from tallystick.record.batch import Batch
from tallystick.record.schema import Schema
from tallystick.trust.permit import Operation

__all__ = ["FoundError", "Received", "Subscriber", "SubscriberSettings"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Received:
    """A batch and where it comes from."""

    batch: Batch
    token: bytes
    partition: int
    offset: int
    parcel: bytes
    publisher: bytes
    lane: bytes
    sequence: int
    height: int  # anchored at or before; 0: stored, not yet anchored
    time_ms: int  # the publisher's claim
    late: bool
    suspect: bool  # anchored after the publisher's key was revoked
    closed: tuple[str, ...] = ()  # columns that our attributes do not open
    places: Places | None = None  # of the rows in their parcel, where an interest left some out
    commit: int | None = None  # offset of the commit parcel by which they count, if they are of a write

    def _repr_html_(self) -> str:
        """In notebooks: where it comes from, and its first rows."""
        from tallystick.page.notebook import ROWS_MAX, rows, shown
        from tallystick.record.leaves import decode_row, encode_row
        from tallystick.record.show import readable

        data = self.batch.data
        first = [
            readable(data.schema, decode_row(data.schema, encode_row(data.schema, index, data)))
            for index in range(min(ROWS_MAX, data.num_rows))
        ]
        told = {
            "topic": self.token,
            "place": f"partition {self.partition}, offset {self.offset}",
            "publisher": self.publisher,
            "known by": f"verified, anchored at or before height {self.height}" if self.height else "not yet anchored",
            "sealed, as the publisher says": wire.show_time(self.time_ms) if self.time_ms else None,
            "late": "sealed long before it was anchored" if self.late else None,
            "suspect": "anchored after the publisher's key was revoked" if self.suspect else None,
            "closed to us": ", ".join(self.closed) or None,
        }
        return shown(f"{data.num_rows:,} rows received", told, rows(first, data.num_rows))

    def to_pylist(self) -> list[dict[str, Any]]:
        return list(self.batch.data.to_pylist())


@dataclass(frozen=True)
class SubscriberStatistics:
    """What was delivered by this process, and how far it is."""

    partitions: int  # that are ours
    rows: int
    parcels: int
    closed: int  # parcels of which our attributes opened nothing
    findings: int
    behind: int  # parcels between the anchors at hand and what was delivered
    waiting: int  # verified, not yet delivered
    unwanted: int = 0  # parcels that came and hold nothing of interest: false deliveries
    unasked: int = 0  # parcels that did not come and were not asked for; a carrier that matches may have lost some


@dataclass(frozen=True)
class _Committed:
    """Parcels that a commit parcel made count, not yet fetched."""

    commit: PlacedParcel
    written: Written


_Item = PlacedParcel | _Committed | Finding


class Subscriber:
    """Reads one topic, alone or as a member of a group.

    >>> for received in Subscriber(session, "brakes"):  # doctest: +SKIP
    ...     received.batch.data.to_pandas()
    """

    def __init__(
        self,
        ties: ReaderTies,
        topic: str | bytes,
        settings: SubscriberSettings = SubscriberSettings(),
        *,
        group: str | None = None,
        on_finding: Callable[[Finding], None] | None = None,
    ) -> None:
        """A subscriber alone, or a member of the group of this name."""
        self.warnings: tuple[str, ...] = ()  # what its carrier has to say of the topic
        self._carrier, self._authority, self._view = ties.carrier, ties.authority, ties.view
        self._node, self._sharing = ties.node, ties.sharing
        self._clock, self._settings, self._on_finding = ties.clock, settings, on_finding
        # What lies in the log is older than this permit: ask for the keys of all epochs, unless only new rows are read.
        only_new = settings.start == "latest" and group is None
        self._interest = Interest(settings.interest)
        self._asked = (Operation.SUBSCRIBE, topic, 0 if only_new else 1, settings.interest)
        self._grants = ties.grants
        held = self._obtain()
        self.token, self.partitions = held.grant.token, held.grant.settings.partitions
        self._check_partitions(group)
        self._interest.show(self._carrier, held)
        self._pool = ThreadPoolExecutor(settings.threads + 1, "subscriber") if settings.threads else None
        self._opener = Opener(ties, held, settings, self._pool)
        if self._interest:
            self._interest.formula(self._opener.wanted_schema)  # wrong for the schema that was asked for: said at once
        self._fetcher = Fetcher(ties, settings, held, self._pool)
        self._labelled = self._fetcher.wanted.newest  # for which epoch and version of the code labels were asked for
        self._readers: dict[int, ParcelReader] = {}  # of the partitions that are ours
        place = (self.token, self.partitions)
        self._member = None if group is None else Member(ties, group, *place, settings.renew_s)
        # Verified, not yet delivered, each with the offset at which its reader goes on after a restart: what a commit
        # parcel made count has the commit parcel's, until all of it is delivered.
        self._taken: deque[tuple[ParcelReader, int, _Item]] = deque()
        self._last_read = -1  # partition
        self._fetched_bytes = 0  # of parcels that a commit parcel named, in this round
        self._commits = Commits(
            self._fetcher.supplier, self._fetcher.headers, lambda header: self._fetcher.wanted.asks_for(header)
        )
        self._stop_with: FoundError | None = None  # what the next round raises: what came before it was delivered first
        self._told: set[tuple[bytes, int]] = set()
        self._revocations = Revocations(ties.node, ties.view, self.token, ties.clock)
        self._stopping = False
        self._blamed = 0  # rounds in a row that ended with what somebody withheld
        self._refused: Refused | None = None  # the right is gone: whoever keeps asking ends on the blacklist
        self.findings: list[Finding] = []
        self.closed_parcels = 0  # of which our attributes opened nothing
        self._rows = self._parcels = 0  # that were delivered
        self._unwanted = 0  # parcels

    def _obtain(self, *, again: bool = False) -> Held:
        try:
            if self._grants is not None:
                return self._grants.obtain(*self._asked, again=again)
            return Held.of(self._authority.permit(*self._asked))
        except Refused as error:
            if error.reason != "misuse":
                raise
            raise Misuse(str(error), hint=error.hint) from error  # the interest: its mistake is ours

    # ── 5. Fetch, verify, open ───────────────────────────────────────────────────────────────────────────────────

    def poll(self, wait_ms: int | None = None) -> list[Received]:
        """One round over the partitions: what was new and held, in order. Waits up to `wait_ms` if nothing was.

        What is returned counts as delivered, nothing else does: where the world fails or a finding stops the round,
        everything before is returned, and the error comes with the next one. Where the rows would open to more than
        `opened_bytes_max`, those that fit are returned, and the next round goes on behind them.
        """
        if self._refused is not None:
            raise self._refused
        if self._stop_with is not None:
            error, self._stop_with = self._stop_with, None
            raise error
        self._assign()
        if self._sharing is not None:
            self._sharing.collect()
        self._fetched_bytes = 0
        self._opener.begin_round()
        received: list[Received] = []
        try:
            self._open_taken(received)
            if not self._taken:
                self._read_all(self._settings.wait_ms if wait_ms is None else wait_ms, received)
            self._look_for_silence()
            self._blamed = 0
        except TallystickError as error:
            if isinstance(error, Refused) and error.reason == "permit-ended" and not received:
                self._renew()
                return []  # the next round reads on under the new one
            self._refused = without_right(error)
            if not received:
                if self._refused is not None:
                    raise self._refused from error
                self._turn_from(error)
                raise
            if isinstance(error, FoundError):
                self._stop_with = error  # it is told once; whatever else is wrong will be wrong again
        return received

    def _turn_from(self, error: TallystickError) -> None:
        """Where one of several nodes withholds, or only lags, another may not: raise `Unavailable` until all were
        asked."""
        if isinstance(error, Withheld) and not isinstance(error, FoundError):
            self._blamed += 1
            if self._blamed < self._carrier.ask_another():
                raise Unavailable(f"another node is asked: {error}", retry_after_s=0.1) from error

    def _read_all(self, wait_ms: int, received: list[Received]) -> None:
        """A round without patience, and if there was nothing at all one with it; who reads one partition begins with
        patience. It begins behind the partition that was read last: one that fills every round must not keep the others
        waiting."""
        readers = sorted(self._readers.values(), key=lambda one: (one.partition <= self._last_read, one.partition))
        for patience in (0, wait_ms // len(readers)) if len(readers) > 1 else (wait_ms,):
            for reader in readers:
                self._last_read = reader.partition
                items = self._fetcher.read(reader, 0 if received else patience)
                self._taken.extend((reader, item.offset or 0, item) for item in items if not _is_pending(item))
                self._open_taken(received)
                if self._taken:
                    return
            if received or not wait_ms:
                break

    def _open_taken(self, received: list[Received]) -> None:
        """Open what was taken, in order; what fails for now stays. A large write is delivered over several rounds."""
        taken = (item for _, _, item in self._taken if isinstance(item, Placed))
        self._revocations.learn((item.verified.publisher, item.anchor) for item in taken)
        while self._taken:
            reader, offset, item = self._taken[0]
            if isinstance(item, _Committed) and self._fetched_bytes >= self._settings.fetch_bytes_max:
                return
            self._begin_next()
            rest: list[_Item] = []
            try:
                if self._readers.get(reader.partition) is reader:  # else it is no longer ours to deliver
                    rest = self._open_item(item, received)
            except NoRoom:  # for the next round
                return
            except FoundError:
                self._taken.popleft()
                raise
            self._taken.popleft()
            self._taken.extendleft((reader, offset, one) for one in reversed(rest))

    def _begin_next(self) -> None:
        """Let other threads open what comes after the first that is taken."""
        for _, _, item in islice(self._taken, 1, 2 + self._settings.threads):
            if isinstance(item, Placed):
                self._opener.begin(item.verified)

    def _open_item(self, item: _Item, received: list[Received]) -> list[_Item]:
        """Add the item's rows to `received`. Returns what is to be opened in its place."""
        match item:
            case Finding():
                self._report(item)
            case _Committed():
                return self._fetch_committed(item)
            case _ if item.verified.header.kind is ParcelKind.COMMIT:
                return self._resolve(item)
            case _:
                received += self._open(item, is_first=not received)
        return []

    def _resolve(self, commit: PlacedParcel) -> list[_Item]:
        """What a commit parcel makes count; one that lies is told, and nothing of it delivered."""
        try:
            content = self._opener.content(commit.verified)
            return [_Committed(commit, one) for one in self._commits.resolve(commit, content)]
        except NotEntitled:  # and so would be the rows that it makes count
            self.closed_parcels += 1
        except (MissingKey, CannotOpen, BadCommit) as error:
            self._report_unopened(commit, error)
        return []

    def _fetch_committed(self, item: _Committed) -> list[_Item]:
        """The next parcels of a range that a commit parcel named, each held to its name, and what is left of it."""
        written, partition = item.written, item.written.partition
        end = written.first + len(written.names)
        fetched = self._fetcher.parcels(partition, written.first, end, written.anchor.size)
        found: list[_Item] = []
        taken = len(fetched.parcels)
        if fetched.retired > written.first:
            self._fetcher.check_retired(partition, fetched.retired)
            taken = min(end, fetched.retired) - written.first
            message = f"partition {partition}: {taken} parcels of a write were retired from offset {written.first} on"
            found.append(self._finding(replace(item.commit, partition=partition), "retired", message))
        elif fetched.first != written.first or not 0 < taken <= len(written.names):
            raise withheld(partition, f"offset {written.first} is anchored, and the node does not show it")
        else:
            for at, data in enumerate(fetched.parcels):
                verified = self._named(item, data, written.names[at])
                if verified is not None:
                    found.append(Placed(verified, partition, written.first + at, written.anchor, item.commit))
        self._fetched_bytes += sum(written.sizes[:taken])
        rest = replace(written, first=written.first + taken, names=written.names[taken:], sizes=written.sizes[taken:])
        return [*found, replace(item, written=rest)] if rest.names else found

    def _named(self, item: _Committed, data: bytes | memoryview, name: bytes) -> VerifiedParcel | None:
        """The parcel of this name, or None where its front came, and the permit's labels do not ask for more."""
        try:
            parcel = self._fetcher.reading.decode(data)
            if is_front(parcel) and parcel.hash == name:
                return None
            return verify_named(parcel, name, item.commit.verified.permits)
        except Refused as error:
            raise Withheld(f"partition {item.written.partition}: {error}", reason="altered") from error

    def _open(self, placed: PlacedParcel, *, is_first: bool) -> list[Received]:
        """The rows of a verified parcel; heartbeats and closings have none, gaps are told."""
        header, verified = placed.verified.header, placed.verified
        try:
            if header.kind is ParcelKind.GAP:
                gap = Gap.decode(self._opener.content(verified))
                self._report(self._finding(placed, "gap", f"{gap.rows} rows were dropped: {gap.reason}"))
            if header.kind is not ParcelKind.DATA:
                return []
            self._renew_labels(header)
            opened = self._opener.rows(verified, is_first=is_first)
            if opened.batch is None:
                self.closed_parcels += 1
                return []
            batch, places = self._interest.only(opened.batch, self._opener.wanted_schema)
        except NotEntitled:  # of a gap, or of rows where that is an error
            if header.kind is ParcelKind.DATA:
                raise
            self.closed_parcels += 1
            return []
        except (MissingKey, CannotOpen, Malformed) as error:
            self._report_unopened(placed, error)
            return []
        if not batch.rows:
            self._unwanted += 1
            return []
        anchor, suspect = placed.anchor, self._is_suspect(placed)
        self._rows, self._parcels = self._rows + batch.rows, self._parcels + 1
        seen_ms = int(self._clock.now() * 1000) if anchor is None else anchor.time_ms
        late = is_late(header.time_ms, seen_ms, self._settings.late_s)
        place = (self.token, placed.partition, placed.offset)
        origin = (verified.publisher, header.lane, header.sequence)
        height, time_ms, closed = 0 if anchor is None else anchor.height, header.time_ms, opened.closed
        commit = None if placed.commit is None else placed.commit.offset
        return [Received(batch, *place, header.hash, *origin, height, time_ms, late, suspect, closed, places, commit)]

    def _renew(self) -> None:
        """Go on under another permit where ours has ended and the right stands. Raises `Refused` where it does not."""
        before = self._opener.held.permit.identifier
        try:
            held = self._obtain()
            if held.permit.identifier == before:
                raise Unavailable("the node takes our permit for ended, the authority does not", retry_after_s=1.0)
            self._use(held)
        except Refused as error:
            self._refused = without_right(error)
            if self._refused is None:
                raise
            raise self._refused from error

    def _use(self, held: Held) -> None:
        self._interest.show(self._carrier, held)
        self._opener.take(held)
        self._fetcher.use(held.permit)

    def _renew_labels(self, header: Header) -> None:
        """Ask for another permit where ours has no labels for an epoch, or a version of the code, that has come since;
        once for each. Until there is one, everything of that epoch is sent."""
        place = header.label_place
        if not self._interest or place is None or place <= self._labelled:
            return
        self._labelled = place
        try:
            self._use(self._obtain(again=True))
        except (Refused, Unavailable) as error:
            log.info("going on with the labels at hand: %s", error)
            return
        self._labelled = max(place, self._fetcher.wanted.newest)

    def _is_suspect(self, placed: PlacedParcel) -> bool:
        """Whether it came after its publisher's key was revoked, which is told. What is of a write counts by its commit
        parcel, whose list names it."""
        by = placed.commit or placed
        suspect = by.offset >= self._revocations.stands_below(by.verified.publisher, by.partition, by.offset, by.anchor)
        if suspect:
            self._report(self._finding(placed, "suspect", "anchored after its publisher's key was revoked"))
        return suspect

    def find(self, partition: int, offset: int) -> tuple[VerifiedParcel, Schema]:
        """The anchored parcel at `offset`, verified as by reading, and its schema; its keys are in `ring`."""
        anchor = self._fetcher.anchor(partition) if 0 <= partition < self.partitions else None
        if anchor is None or not 0 <= offset < anchor.size:
            size = 0 if anchor is None else anchor.size
            raise Misuse(f"partition {partition} has no parcel {offset}: {size} are anchored")
        reader = self._fetcher.reader(partition, offset)
        found = self._fetcher.read_anchored(reader, anchor)
        first = next(iter(found), None)
        if isinstance(first, Finding):
            raise FoundError(first)
        if first is None or (self._fetcher.wanted and first.offset != offset):
            raise Misuse(f"partition {partition}: offset {offset} holds nothing that is of interest here")
        if first.offset != offset:
            raise Misuse(f"partition {partition}: offset {offset} was retired, offset {first.offset} is the first left")
        header = first.verified.header
        if header.kind is not ParcelKind.DATA:
            raise Misuse(f"{describe(header)}: holds no records")
        self._revocations.learn([(first.verified.publisher, first.anchor)])
        self._is_suspect(first)
        self._opener.rows(first.verified)  # alone, whatever was opened before
        return first.verified, self._opener.schema(header.schema_version, header.schema_hash)

    @property
    def schema(self) -> Schema:
        """What is delivered, less the columns that are closed to us: the newest version, or the one asked for."""
        return self._opener.wanted_schema

    @property
    def ring(self) -> KeyRing:
        return self._opener.ring

    def update_keys(self, wait_ms: int = 0) -> bool:
        """Ask the authority for keys of new epochs, new schemas and erasures. Returns whether there was news."""
        return self._opener.update_keys(wait_ms)

    # ── Partitions, groups, offsets ──────────────────────────────────────────────────────────────────────────────

    def _assign(self) -> None:
        """Know which partitions are ours: all of them, or those that the group's ledger deals us."""
        if self._member is not None:
            self._member.assign(self._readers, self._fetcher.reader)
        elif not self._readers:
            self._readers = {place: self._fetcher.reader(place, offset) for place, offset in self._starts().items()}

    def _check_partitions(self, group: str | None) -> None:
        if self._settings.partitions and group is not None:
            raise Misuse("a group deals partitions to its members", hint="read alone, or leave the partitions out")
        if beyond := [one for one in self._settings.partitions if not 0 <= one < self.partitions]:
            raise Misuse(f"partition {beyond[0]} does not exist: the topic has {self.partitions}, counted from 0")

    def _starts(self) -> dict[int, int]:
        """Where each partition that is read begins."""
        start, wanted = self._settings.start, self._settings.partitions or range(self.partitions)
        if isinstance(start, int):
            return dict.fromkeys(wanted, start)
        if start == "earliest":
            return dict.fromkeys(wanted, 0)
        if isinstance(start, datetime):
            from tallystick.client.times import offsets_at_time, to_ms  # few ask by time

            anchors = {partition: self._fetcher.anchor(partition) for partition in wanted}
            return offsets_at_time(self._node, self.token, to_ms(start), anchors)
        if start != "latest":
            raise Misuse(f'start "{start}" is unknown, expected earliest, latest, an offset or a time')
        return {partition: self._fetcher.latest(partition) for partition in wanted}

    def commit(self) -> None:
        """Move the group's offsets to what `poll` returned; a signed compare-and-set for each partition. `Refused`
        if a partition is no longer ours: the next round begins where the group stands."""
        if self._member is None:
            raise Misuse("only a member of a group commits offsets", hint="give the subscriber a group")
        if self._member.is_stale:
            self._assign()
        self._member.commit(self.positions(), self._readers)

    def statistics(self) -> SubscriberStatistics:
        """What was delivered so far, and what is known to be left."""
        anchors = [(reader.anchor, self.positions()[partition]) for partition, reader in self._readers.items()]
        behind = sum(max(0, anchor.size - at) for anchor, at in anchors if anchor is not None)
        return SubscriberStatistics(
            partitions=len(anchors),
            rows=self._rows,
            parcels=self._parcels,
            closed=self.closed_parcels,
            findings=len(self.findings),
            behind=behind,
            waiting=len(self._taken),
            unwanted=self._unwanted,
            unasked=sum(reader.unasked for reader in self._readers.values()),
        )

    def seek(self, partition: int, offset: int) -> None:
        """Go on reading a partition from another offset; lanes are joined to their heads anew."""
        if partition not in self._readers:
            raise Misuse(f"partition {partition} is not read here")
        self._readers[partition] = self._fetcher.reader(partition, offset)

    def positions(self) -> dict[int, int]:
        """The next offset of each partition that is ours."""
        positions = {partition: reader.offset for partition, reader in self._readers.items()}
        for reader, offset, _ in reversed(self._taken):
            if reader.partition in positions:
                positions[reader.partition] = offset
        return positions

    # ── Findings ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _report(self, finding: Finding) -> None:
        self.findings.append(finding)
        log.warning("finding %s: %s", finding.reason, finding.message)
        if self._on_finding is not None:
            self._on_finding(finding)
        is_open = finding.reason in OPEN_REASONS
        if self._settings.on_bad == "strict" or (self._settings.on_bad == "fail" and not is_open):
            raise FoundError(finding)

    def _report_unopened(self, placed: PlacedParcel, error: Refused) -> None:
        """Tell of a verified parcel that did not open, or that lists what it must not."""
        if isinstance(error, MissingKey):
            error = unopened(error, placed.verified.header, erased=self._opener.was_erased(error))
        reason = "cannot-open" if isinstance(error, Malformed) else error.reason
        self._report(self._finding(placed, reason, str(error)))

    def _finding(self, placed: PlacedParcel, reason: str, message: str) -> Finding:
        place, verified = (self.token, placed.partition, placed.offset), placed.verified
        return Finding.about(reason, message, place, verified.publisher, verified.parcel)

    def _look_for_silence(self) -> None:
        """A publisher that neither spoke nor closed its lane: once for each lane and silence."""
        now_ms = int(self._clock.now() * 1000)
        for reader in self._readers.values():
            for finding in reader.silent(now_ms, int(self._settings.silence_s * 1000)):
                key = (finding.lane, finding.sequence or 0)
                if key not in self._told:
                    self._told.add(key)
                    self._report(finding)

    # ── The caller's side ────────────────────────────────────────────────────────────────────────────────────────

    def __iter__(self) -> Iterator[Received]:
        """Batches for ever, until `stop`; the world's failures are waited out."""
        while not self._stopping:
            try:
                yield from self.poll()
            except Unavailable as error:
                log.info("waiting: %s", error)
                self._clock.pause(1.0 if error.retry_after_s is None else error.retry_after_s)

    async def __aiter__(self) -> AsyncIterator[Received]:
        while not self._stopping:
            try:
                received = await asyncio.to_thread(self.poll)
            except Unavailable as error:
                await self._clock.sleep(1.0 if error.retry_after_s is None else error.retry_after_s)
                continue
            for one in received:
                yield one

    def stop(self) -> None:
        """Let the iteration end after the round under way."""
        self._stopping = True

    def unsubscribe(self) -> None:
        """Give the permit back: the authority's undo order, shown to the node."""
        grant = self._opener.held.grant
        order = self._authority.undo(grant.permit, grant.undo_token)
        self._carrier.undo(order.encode())

    def close(self) -> None:
        """Stop, and leave the group."""
        self.stop()
        if self._pool is not None:
            self._pool.shutdown()
        if self._member is not None:
            try:
                self._member.leave()
            except (Refused, Unavailable) as error:
                log.info("left without a word: %s", error)

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_pending(item: PlacedParcel | Finding) -> bool:
    """Whether it counts where its commit parcel lies, and not here."""
    return isinstance(item, Placed) and item.verified.header.pending
