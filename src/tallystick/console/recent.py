"""What pages ask of the ledger all the time, kept at hand: a few tables of its state whole, and what its last minutes
say of who published how much and how far anchors and groups came.

All of it was replayed. The first look reads the tables and a bounded part of the past (`since_ms` says how far back);
every other one only the blocks since then. Times are block times.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Collection
from functools import lru_cache
from typing import Any, NamedTuple

from tallystick.console.mirror import Mirror
from tallystick.ledger.block import Head
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.ledger.contracts.groups import GROUPS, OFFSETS, GroupRow
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.permits import PERMITS, PermitRow, Status
from tallystick.ledger.contracts.retention import SAMPLES
from tallystick.ledger.contracts.state import R, Table
from tallystick.ledger.contracts.topics import TOPICS
from tallystick.ledger.engine import AuditItem, Query
from tallystick.trust.right import Right

WINDOW_MS = 10 * 60_000
TREND_MS = 5 * 60_000  # ago, with which now is compared
_FIRST_LOOK = 5_000  # transactions, or entries where one has many
_HEIGHTS_MAX = 10_000
_BIN_MS = 10_000  # operations are counted together for so long: a ledger may take thousands a second

# Rows that entries of a kind change: the table, and where in the entry its key stands.
_ANCHORS = (EntryKind.ANCHOR, EntryKind.NOTARISE, EntryKind.JOINT_ANCHOR)
_MOVES = (EntryKind.COMMIT_OFFSET, EntryKind.RESET_OFFSET)
_CHANGES: list[tuple[tuple[EntryKind, ...], Table[Any], tuple[int, ...]]] = [
    ((EntryKind.TOPIC, EntryKind.SCHEMA, EntryKind.CLOSE_TOPIC, EntryKind.RETAIN), TOPICS, (1,)),
    (_ANCHORS, ANCHORS, (1, 2)),
    ((EntryKind.GROUP, EntryKind.JOIN, EntryKind.LEAVE, *_MOVES), GROUPS, (1,)),
    (_MOVES, OFFSETS, (1, 3, 4)),
    ((EntryKind.ISSUE_PERMIT, EntryKind.UNDO_PERMIT, EntryKind.REVOKE_PERMIT), PERMITS, (1,)),
]

Points = deque[tuple[Any, ...]]  # what came, the oldest first; each begins with its time
Series = defaultdict[tuple[Any, ...], Points]  # by place
Counts = Counter[tuple[Any, ...]]


class GroupLag(NamedTuple):
    """How far a group is behind in one partition."""

    group: bytes
    token: bytes
    partition: int
    offset: int
    parcels: int
    oldest_ms: int | None = None  # when the first parcel that it did not read was anchored, or a little later
    before: int | None = None  # parcels, some minutes ago; None where that is not known

    @property
    def trend(self) -> str:
        if self.before is None or (self.parcels == self.before == 0):
            return ""
        return "growing" if self.parcels > self.before else "shrinking" if self.parcels < self.before else "steady"


class Recent:
    def __init__(self, mirror: Mirror) -> None:
        self._mirror, self._lock = mirror, threading.Lock()
        self._height, self.now_ms, self.since_ms = -1, 0, 0  # of the last block that was read; from when on
        self.height_at = lru_cache(_HEIGHTS_MAX)(self._height_at)  # of the first block that is not older than a time

    def look(self) -> Recent:
        """Read what is new."""
        head = self._mirror.at.head
        with self._lock:
            if head is None or head.height <= self._height:
                return self
            if self._height < 0 or head.time_ms - self.now_ms > WINDOW_MS:
                self._look_first(head)
            else:
                new = Query(first_height=self._height + 1, end_height=head.height + 1, most=1 << 20)
                for item in self._mirror.audit(new):
                    self._count(item)
                    self._keep_rows(item)
            self._height, self.now_ms = head.height, head.time_ms
            first_ms = head.time_ms - WINDOW_MS
            self.since_ms = max(self.since_ms, first_ms)
            for points in (self._parcels, self._refused, *self._sizes.values(), *self._moves.values()):
                while points and points[0][0] < first_ms:
                    points.popleft()
        return self

    def _look_first(self, head: Head) -> None:
        self._parcels, self._refused = Points(), Points()  # until when, and how many by place
        self._sizes, self._moves = Series(Points), Series(Points)  # time and size, time and the offset before
        self.last_ms: dict[tuple[bytes, bytes], int] = {}  # by topic and publisher: when it last published
        self._tables = {table: dict(self._mirror.scan(table)) for _, table, _ in _CHANGES}
        items, goes_on = self._mirror.newest(_FIRST_LOOK, head.size)
        self.since_ms = items[-1].time_ms if goes_on else self._mirror.block(0).time_ms
        for item in reversed(items):
            if item.time_ms >= head.time_ms - WINDOW_MS:
                self._count(item)

    def _count(self, item: AuditItem) -> None:
        kind, fields, at_ms = item.kind, item.fields, item.time_ms
        if kind == EntryKind.OPERATION:
            _, operator, _, token, operation, reason, _, count, partition, _, end, *_ = fields
            if operation == Right.WRITE and reason:
                _counts_at(self._refused, at_ms)[token, operator] += count
            elif operation == Right.WRITE and end:
                _counts_at(self._parcels, at_ms)[token, operator, partition] += count
                self.last_ms[token, operator] = at_ms
        elif kind in _ANCHORS:
            self._sizes[fields[1], fields[2]].append((at_ms, fields[3]))
        elif kind in _MOVES:
            self._moves[fields[1], fields[3], fields[4]].append((at_ms, fields[6]))

    def _keep_rows(self, item: AuditItem) -> None:
        for kinds, table, places in _CHANGES:
            if item.kind in kinds:
                parts = tuple(item.fields[place] for place in places)
                if (row := self._mirror.row(table(*parts))) is not None:
                    self._tables[table][parts] = row

    def _height_at(self, time_ms: int) -> int:
        return bisect_left(range(self._height + 1), time_ms, key=lambda height: self._mirror.block(height).time_ms)

    # What is asked.

    def rows(self, table: Table[R]) -> list[tuple[tuple[Any, ...], R]]:
        """All rows of a table that is kept whole: topics, anchors, groups, offsets, permits."""
        with self._lock:
            return list(self._tables[table].items())

    def row(self, table: Table[R], *parts: bytes | int) -> R | None:
        return self._tables[table].get(parts)

    @property
    def minutes(self) -> float:
        """How much of the past the counts are of."""
        return max((self.now_ms - self.since_ms) / 60_000, 1 / 60)

    def published(self, tokens: Collection[bytes]) -> Counts:
        """Parcels of these minutes by topic, publisher and partition."""
        return self._of_topics(self._parcels, tokens)

    def refused(self, tokens: Collection[bytes]) -> Counts:
        """Refused publishing of these minutes by topic and operator."""
        return self._of_topics(self._refused, tokens)

    def _of_topics(self, points: Points, tokens: Collection[bytes]) -> Counts:
        found = Counts()
        with self._lock:
            for _, counts in points:
                for place, count in counts.items():
                    if place[0] in tokens:
                        found[place] += count
        return found

    def live_permits(self, tokens: Collection[bytes]) -> list[tuple[bytes, PermitRow]]:
        """Those on these topics that were not taken back, and did not end."""
        return [
            (identifier, row)
            for (identifier,), row in self.rows(PERMITS)
            if row.token in tokens and row.status == Status.ISSUED and row.not_after_ms > self.now_ms
        ]

    def groups(self, tokens: Collection[bytes]) -> list[tuple[bytes, GroupRow]]:
        """Those that read any of these topics, as they stand now."""
        found = [(group, row) for (group,), row in self.rows(GROUPS) if any(one in tokens for one in row.tokens)]
        return [(group, row.live_at(self.now_ms)) for group, row in found]

    def lags(self, tokens: Collection[bytes], most: int) -> tuple[list[GroupLag], int]:
        """The places of groups that are furthest behind in these topics, and how many places there are."""
        found = []
        for group, row in self.groups(tokens):
            for token in row.tokens:
                topic = self.row(TOPICS, token) if token in tokens else None
                for partition in range(0 if topic is None else topic.partitions):
                    moved, anchor = self.row(OFFSETS, group, token, partition), self.row(ANCHORS, token, partition)
                    size, offset = 0 if anchor is None else anchor.size, 0 if moved is None else moved.offset
                    found.append(GroupLag(group, token, partition, offset, max(0, size - offset)))
        found.sort(key=lambda lag: -lag.parcels)
        return [self._with_times(lag) for lag in found[:most]], len(found)

    def _with_times(self, lag: GroupLag) -> GroupLag:
        place, ago_ms = (lag.token, lag.partition), self.now_ms - TREND_MS
        sample = [(at_ms, size) for at_ms, size in self._mirror.row(SAMPLES(*place)) or []]
        anchor = self.row(ANCHORS, *place)
        newest = [] if anchor is None else [(anchor.time_ms, anchor.size)]
        points = sorted({*sample, *self._sizes.get(place, ()), *newest})
        oldest = next((at_ms for at_ms, anchored in points if anchored > lag.offset), None)
        moves = self._moves.get((lag.group, *place), ())
        offset = next((old for at_ms, old in moves if at_ms > ago_ms), lag.offset)  # that stood there then
        earlier = bisect_right(points, ago_ms, key=lambda point: point[0])
        is_known = self.since_ms <= ago_ms and bool(earlier or sample)
        before = max(0, (points[earlier - 1][1] if earlier else 0) - offset) if is_known else None
        return lag._replace(oldest_ms=oldest, before=before)


def _counts_at(points: Points, at_ms: int) -> Counts:
    """The counts to which those of a time are added; times never fall."""
    until_ms = at_ms - at_ms % _BIN_MS + _BIN_MS
    if not points or points[-1][0] != until_ms:
        points.append((until_ms, Counts()))
    counts: Counts = points[-1][1]
    return counts
