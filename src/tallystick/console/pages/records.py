"""*Records*: rows of a topic as they were opened here, each with where it lies and how it is known.

Reading is the one thing a viewer does here that others see: node and authority write it down. So a page says that
first, and reads only when it is asked to (`read=1`, which the button sends), never when it is opened.

What is shown passed every check of a subscriber (client/subscribe.py); what did not is a finding, in red, and kept with
the identity's evidence. A page is a stretch of one partition, newest first, between two places: nothing falls out
between two pages, however large the burst. Which offset belongs to a time or a height says the replayed ledger.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from html import escape
from itertools import islice
from shlex import quote
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tallystick.client.fetching import Fetcher
from tallystick.client.grants import Held, without_right
from tallystick.client.reader import OPEN_REASONS, Finding
from tallystick.client.session import Session
from tallystick.client.settings import SubscriberSettings
from tallystick.client.spans import read_time
from tallystick.client.subscribe import Received, Subscriber
from tallystick.client.times import size_below, to_ms
from tallystick.console.layout import command, heading, lines, nothing, part
from tallystick.console.marks import bad, checked, soft, told, warning, when
from tallystick.console.mirror import Mirror
from tallystick.console.page import Page
from tallystick.console.pages.topics import find_topic
from tallystick.console.visit import LINES, Visit, read_number
from tallystick.errors import Misuse, Refused, Unavailable
from tallystick.ledger.contracts.access import INDEXES, indexed
from tallystick.ledger.contracts.anchors import ANCHORS, RETIRED, AnchorRow
from tallystick.ledger.contracts.topics import TOPICS, TopicRow
from tallystick.ledger.engine import Query
from tallystick.page.html import Html, join, tag
from tallystick.page.svg import many
from tallystick.record.leaves import decode_row, encode_row
from tallystick.record.schema_text import show_type
from tallystick.record.show import readable
from tallystick.trust.permit import Operation
from tallystick.trust.right import Right
from tallystick.wire import is_number, show_time

READ_S = 8.0  # for all that node and authority are asked for one page
SETTINGS = SubscriberSettings(
    on_bad="report",
    threads=0,  # one page is one range, mostly
    fetch_bytes_max=1 << 20,
    opened_bytes_max=64 << 20,
    silence_s=1e9,  # who is silent is no matter of the rows at hand
)
ROUNDS_MAX = 24  # of fetching for one page; what is left to read is a link
_NOWHERE = dict[str, object].fromkeys(("by", "at", "start", "before"))  # in the address
COLUMNS = 6  # of a row beside others; its own page has all
VALUE_CHARACTERS, NAME_CHARACTERS = 80, 24


# Which topic, and whether it may be read.


class Topic(NamedTuple):
    token: bytes
    row: TopicRow


def require_topic(visit: Visit) -> Topic:
    """The topic that the address names, if the viewer may read it. Raises `Refused`."""
    token, who = find_topic(visit, visit.parameters["token"]), visit.viewer.identity.principal
    row = visit.mirror.row(TOPICS(token))
    if row is None or token not in indexed(visit.mirror.row(INDEXES(who)), Right.READ):
        name = visit.viewer.topic_name(token)
        hint = f"its owner grants it: tally right grant {quote(name)} {who.hex()} read"
        raise Refused(f"no right to read topic {name}", reason="no-right", hint=hint)
    return Topic(token, row)


@contextmanager
def reading(visit: Visit, topic: Topic) -> Iterator[Session]:
    """The session over which the topic is read, for as long as a page may take."""
    with visit.viewer.asking:
        session = visit.viewer.session.over(topic.token.hex())
        if not session.anchors:
            hint = f"tally subscribe {quote(visit.viewer.topic_name(topic.token))} shows what it brought"
            raise Misuse("this topic's carrier anchors nothing, and only what is anchored is shown here", hint=hint)
        with session.within(READ_S):
            yield session


def fetcher_of(session: Session, topic: Topic) -> tuple[Held, Fetcher]:
    """The leave to read the topic, which the node is shown, and what fetches by it."""
    held = session.grants.obtain(Operation.SUBSCRIBE, topic.token, 1)
    session.carrier.subscribe(held.grant.permit)
    return held, Fetcher(session, SETTINGS, held)


def asking(visit: Visit, what: str, does: str = "parcels and opens") -> Html:
    """What a page says before it reads."""
    asks = f"{what} asks the node for {does} them here. It leaves an operation on the ledger in the name of "
    until = ", where all can see it. Nothing is read before you press the button."
    return join(asks, tag("b", visit.viewer.identity.name), until)


def button(visit: Visit, path: str, text: str, **query: object) -> Html:
    """What reads when it is pressed."""
    given = {**visit.query, **query, "read": 1}
    fields = [tag("input", type="hidden", name=name, value=value) for name, value in given.items()]
    return replace(visit, path=path).filters(*fields, button=text)


# Places.


class RowPlace(NamedTuple):
    """Between two rows: behind all that are below. Rows of a write stand where its commit parcel lies."""

    offset: int
    row: int = 0

    def __str__(self) -> str:
        return f"{self.offset}.{self.row}"

    @classmethod
    def read(cls, text: str) -> RowPlace:
        offset, _, row = text.partition(".")
        return cls(read_number(offset, "offset"), read_number(row or "0", "row"))


class KeptOffsets(NamedTuple):
    """What a partition holds: offsets from the first that was kept, to behind the last that was anchored."""

    partition: int
    first: int
    anchor: AnchorRow

    @property
    def end(self) -> int:
        return self.anchor.size

    def __str__(self) -> str:
        return f"{self.first} to {self.end - 1}" if self.end > self.first else "none"


def kept_offsets(visit: Visit, topic: Topic, partition: int) -> KeptOffsets | None:
    """None where nothing was anchored."""
    anchor, mark = visit.mirror.row(ANCHORS(topic.token, partition)), visit.mirror.row(RETIRED(topic.token, partition))
    return None if anchor is None else KeptOffsets(partition, 0 if mark is None else mark.below, anchor)


class Replayed(NamedTuple):
    """The replayed ledger, for those who ask a node for entries."""

    mirror: Mirror

    def audit(self, *, kind: int, first: int, end: int, most: int) -> Sequence[Sequence[Any]]:
        found = self.mirror.audit(Query(kind=kind, first_height=first, end_height=end, most=most))
        return [(one.height, one.index, one.time_ms, one.author, one.kind, one.entry) for one in found]


def anchored_before(visit: Visit, topic: Topic, kept: KeptOffsets, height: int) -> int:
    """How many parcels of the partition were anchored below a height."""
    source: Any = Replayed(visit.mirror)
    return size_below(source, topic.token, kept.partition, height, kept.anchor)


def _wanted(visit: Visit, topic: Topic, kept: KeptOffsets) -> tuple[RowPlace, bool]:
    """Where the page begins, and whether it goes on to newer rows from there, or back."""
    query, text = visit.query, visit.query.get("at", "").strip()
    by = query.get("by") or ("offset" if is_number(text) else "time" if text else "newest")
    for way in ("before", "start"):
        if way in query:
            return min(RowPlace.read(query[way]), RowPlace(kept.end)), way == "start"
    if by == "newest":
        return RowPlace(kept.end), False
    if by == "offset":
        offset = read_number(text, "offset", f"partition {kept.partition} has {kept}")
        if offset >= kept.end:
            told = f"partition {kept.partition} has no offset {offset}: {kept.end} parcels are anchored"
            raise Misuse(told, hint=f"it has {kept}; what is published now is there in a moment")
        return RowPlace(offset), True
    height = visit.height(text) if by == "height" else _height_at(visit, text)
    offset = anchored_before(visit, topic, kept, height)
    if offset >= kept.end:
        last = f"height {kept.anchor.height} ({show_time(kept.anchor.time_ms)})"
        raise Misuse(f"nothing of partition {kept.partition} was anchored then or later; its newest is of {last}")
    return RowPlace(offset), True


def _height_at(visit: Visit, text: str) -> int:
    """The height of the first block that is not older than a time."""
    time = read_time(text, visit.viewer.now_ms)
    if time is None:
        hint = "write 2026-11-15T08:00 (UTC), or -1h"
        if is_number(text) and len(text) >= 10:  # seconds, milliseconds, micro- or nanoseconds
            hint = f"write {show_time(int(text[:13].ljust(13, '0')))}"
        raise Misuse(f"time: {text[:40]!r} is no time that is read here", hint=hint)
    if to_ms(time) > visit.head.time_ms:
        raise Misuse(f"no block is as new as {text}: the newest is of {show_time(visit.head.time_ms)}")
    return visit.recent.height_at(to_ms(time))


# Reading.


class ReadRow(NamedTuple):
    place: RowPlace
    received: Received
    at: int  # in its batch
    row: int  # in its parcel


class PageReading:
    """One page's worth of rows, in order, and what was met on the way."""

    def __init__(self, subscriber: Subscriber, partition: int) -> None:
        self._subscriber, self._partition = subscriber, partition
        self.rounds, self.lines = ROUNDS_MAX, list[ReadRow]()
        self.trouble: Refused | Unavailable | None = None  # it ended there

    def forward(self, start: RowPlace, end: int) -> RowPlace:
        """Rows from a place on. Returns where to go on."""
        self.lines = list(islice(self._lines(start, RowPlace(end)), LINES + 1))
        if len(self.lines) > LINES:
            return self.lines.pop().place
        return RowPlace(min(max(self._position(), start.offset), end))

    def back(self, end: RowPlace, first: int) -> RowPlace:
        """The last rows below a place, by stretches that grow until they have enough. Returns where to go on."""
        self._poll()  # behind the end: it learns which partition it reads
        size = 1
        while len(self.lines) < LINES and end > RowPlace(first) and self.rounds and self.trouble is None:
            behind = end.offset + (end.row > 0)
            start = RowPlace(max(first, behind - size))
            self._subscriber.seek(self._partition, start.offset)
            found = list(self._lines(start, end))
            if self._position() < behind:  # it could not be read to its end, which comes first
                break
            before = self.lines
            self.lines = [*found, *before][-LINES:]
            end = start if len(found) + len(before) <= LINES else self.lines[0].place
            size *= 2
        return end

    def _lines(self, start: RowPlace, end: RowPlace) -> Iterator[ReadRow]:
        counted = Counter[int]()  # rows of writes, by their commit parcels
        while self._position() < end.offset + (end.row > 0) and self.rounds and self.trouble is None:
            before, received = self._position(), self._poll()
            for one in received:
                rows = range(one.batch.rows) if one.places is None else map(int, one.places)
                for at, row in enumerate(rows):
                    place = RowPlace(one.offset, row)
                    if one.commit is not None:
                        place = RowPlace(one.commit, counted[one.commit])
                        counted[one.commit] += 1
                    if start <= place < end:
                        yield ReadRow(place, one, at, row)
            if not received and self._position() == before:
                return

    def _poll(self) -> list[Received]:
        self.rounds -= 1
        try:
            return self._subscriber.poll(0)
        except (Refused, Unavailable) as error:
            if without_right(error):
                raise
            self.trouble = error
            return []

    def _position(self) -> int:
        return self._subscriber.positions().get(self._partition, -1)


# The page.


def show_records(visit: Visit) -> Html:
    topic = require_topic(visit)
    chosen = visit.number("partition")
    partition = _liveliest(visit, topic) if chosen is None else chosen
    if partition >= topic.row.partitions:
        raise Misuse(f"partition {partition} does not exist: the topic has {topic.row.partitions}, counted from 0")
    lead = join(visit.topic(topic.token), ". ", asking(visit, "Reading"))
    top = join(heading("Records", lead), _form(visit, topic, partition))
    found = _found(visit, topic, partition) if visit.query.get("read") else None
    return join(top, found, part("Partitions", _partitions(visit, topic, partition)))


def _liveliest(visit: Visit, topic: Topic) -> int:
    """The partition that was anchored last."""
    anchored = [(row.height, partition) for (_, partition), row in visit.mirror.scan(ANCHORS, topic.token)]
    return max(anchored, default=(0, 0))[1]


def _form(visit: Visit, topic: Topic, partition: int) -> Html:
    kept = kept_offsets(visit, topic, partition)
    ways = {"": "the newest"} | {one: f"from {one}" for one in ("offset", "time", "height")}
    offsets = "" if kept is None else f"{kept}, or -1h"
    return visit.filters(
        visit.field("partition", "partition", placeholder=partition, inputmode="numeric"),
        visit.choice("by", "which", ways),
        visit.field("at", "offset, time or height", placeholder=offsets),
        visit.field("interest", "only rows where", placeholder="speed > 120"),
        tag("input", type="hidden", name="read", value="1"),
        button="read",
    )


def _partitions(visit: Visit, topic: Topic, chosen: int) -> Html:
    begin = chosen - chosen % LINES
    rows = [_partition(visit, topic, one) for one in range(begin, min(begin + LINES, topic.row.partitions))]
    return lines(["partition", "offsets", "last anchored", "read"], rows, "The topic has no partition.")


def _partition(visit: Visit, topic: Topic, one: int) -> list[object]:
    kept = kept_offsets(visit, topic, one)
    if kept is None:
        return [one, soft("none yet"), "", ""]
    ways = [_way(visit, "oldest", partition=one, start=RowPlace(kept.first)), " ", _way(visit, "newest", partition=one)]
    known = [when(kept.anchor.time_ms), " at height ", visit.block(kept.anchor.height)]
    return [one, checked(str(kept)), known, ways]


def _way(visit: Visit, text: str, **query: object) -> Html:
    """A link that reads."""
    return tag("a", text, href=visit.here(**{**_NOWHERE, "read": 1, **query}))


def _found(visit: Visit, topic: Topic, partition: int) -> Html:
    kept = kept_offsets(visit, topic, partition)
    if kept is None:
        return nothing(f"Nothing of partition {partition} was anchored yet.")
    start, is_forward = _wanted(visit, topic, kept)
    note = None
    if start.offset < kept.first and is_forward:
        gone = f"offsets {start.offset} to {kept.first - 1} were retired"
        note = tag("p", warning(gone), " The topic's owner let them go; these are the first that were kept.")
        start = RowPlace(kept.first)
    begin, interest = start.offset if is_forward else kept.end, visit.query.get("interest", "")
    settings = replace(SETTINGS, partitions=(partition,), start=begin, interest=interest)
    with reading(visit, topic) as session, Subscriber(session, topic.token, settings) as subscriber:
        now = PageReading(subscriber, partition)
        reached = now.forward(start, kept.end) if is_forward else now.back(start, kept.first)
    if isinstance(now.trouble, Unavailable) and not now.lines:
        raise now.trouble
    low, high = sorted((start, reached))
    newer = {**_NOWHERE, "start": high} if high < RowPlace(kept.end) else None
    older = {**_NOWHERE, "before": low} if low > RowPlace(kept.first) else None
    findings = show_findings(visit, list(dict.fromkeys(subscriber.findings)), now.trouble)
    shown = _table(visit, topic, subscriber.schema.arrow, now.lines[::-1])
    ways = _how_far(visit, topic, now, low, high), visit.pager(newer, older)
    return part(f"Partition {partition}", note, findings, shown, *ways)


def _how_far(visit: Visit, topic: Topic, now: PageReading, low: RowPlace, high: RowPlace) -> Html:
    if low == high and not now.rounds and now.trouble is None:
        larger = warning("larger than a page reads"), ": the write that lies here. This reads it whole:"
        return join(tag("p", larger), command(f"tally subscribe {quote(visit.viewer.topic_name(topic.token))}"))
    last = high.offset if high.row else high.offset - 1
    seen = f"Offsets {low.offset} to {last} were looked at" if last >= low.offset else "Nothing was looked at"
    more = "" if len(now.lines) == LINES or now.rounds else ", as many as one page reads; the links go on"
    return tag("p", soft(f"{seen}{more}: {many(len(now.lines), 'row')}."))


def show_findings(visit: Visit, found: Sequence[Finding], trouble: Refused | Unavailable | None = None) -> Html | None:
    """What did not hold, with where it was kept as evidence; and why it was read no further."""
    shown = []
    for one in found[:LINES]:
        mark = warning if one.reason in OPEN_REASONS else bad
        kept = tag("code", f"evidence/{one.keep(visit.viewer.identity.home).name}")
        shown.append(tag("p", mark(one.reason), f" {one.message}. ", soft("Kept as "), kept))
    if trouble is not None:
        what = bad(trouble.reason) if isinstance(trouble, Refused) else warning("away")
        shown.append(tag("p", what, f" {trouble}. ", soft(trouble.hint or "It was read no further.")))
    return tag("div", shown, class_="trouble", role="alert") if shown else None


def _table(visit: Visit, topic: Topic, schema: Any, rows: Sequence[ReadRow]) -> Html:
    names = schema.names[:COLUMNS]
    more = len(schema.names) - len(names)
    heads = [column(schema.field(name)) for name in names] + ([f"{more:,} more"] if more else [])
    shown = [_line(visit, topic, names, more, one) for one in rows]
    columns = ["place", *heads, "publisher", "sealed", "anchored"]
    return lines(columns, shown, "No row here fits: other partitions, or other offsets, may have some.")


def _line(visit: Visit, topic: Topic, names: Sequence[str], more: int, line: ReadRow) -> list[object]:
    one = line.received
    closed = set(one.closed).difference(names)
    where = f"topics/{topic.token.hex()}/records/{one.partition}/{one.offset}/{line.row}"
    values = shown_row(one.batch.data, line.at, names)
    cells = [soft("closed to you") if name in one.closed else show_value(values[name]) for name in names]
    marks = [
        checked("height ", one.height),
        warning("late") if one.late else None,
        bad("suspect") if one.suspect else None,
        soft(f"{len(closed)} closed to you") if closed else None,
    ]
    whole = [visit.link("all", where)] if more else []
    place, who = visit.link(f"{one.offset}, {line.row}", where), visit.principal(one.publisher)
    return [place, *cells, *whole, who, sealed(one.time_ms), marks]


def sealed(time_ms: int) -> Html:
    """When a parcel was, as its header says."""
    return told(when(time_ms), by="its publisher") if time_ms else soft("sealed inside")


# Values.


def column(field: Any) -> str:
    """Name and type."""
    texts = field.name, show_type(field.type)
    return " ".join(kept if (kept := _kept(text, NAME_CHARACTERS)) == text else f"{kept}…" for text in texts)


def shown_row(batch: Any, index: int, names: Sequence[str]) -> dict[str, Any]:
    """Columns of one row, as far as the batch has them, in values that JSON holds; exact where Python's are not."""
    part = batch.select([name for name in names if name in batch.schema.names])
    row: dict[str, Any] = readable(part.schema, decode_row(part.schema, encode_row(part.schema, index, part)))
    for one in part.schema:
        if row[one.name] is not None and pa.types.is_float32(one.type):
            row[one.name] = str(np.float32(row[one.name]))
        elif isinstance(row[one.name], str) and pa.types.is_timestamp(one.type):
            row[one.name] = row[one.name].replace("T", " ")
    return row


def show_value(value: Any, most: int = VALUE_CHARACTERS) -> Html:
    """A value, cut where it is long."""
    if value is None:
        return soft("null")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return tag("span", cut(text, most))


def cut(text: str, most: int) -> str:
    kept = _kept(text, most)
    return kept if kept == text else f"{kept}… ({len(text):,} characters)"


def _kept(text: str, most: int) -> str:
    """So much of a text as takes some bytes of markup."""
    kept = text[:most]
    return kept if len(escape(kept)) <= 2 * most else kept[: most // 4]


PAGES = (Page("topics/{token}/records", "Records", show_records, live=False),)
