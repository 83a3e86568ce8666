"""*Life of a record*: one row by the steps of docs/life-of-a-record.md, each check with what went in, what came of it
and how long it took here; and its proof, to take away.

The checks are those of a subscriber, one by one: the same functions, in the order in which it calls them. What fails is
in red and ends the row's life here, since what comes after stands on it. Only what this process checked is green. What
publisher and node merely state is shown as a statement, and what is not proved is listed in the proof's own words
(parcel/prove.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from shlex import quote
from typing import NamedTuple

import pyarrow as pa

from tallystick.client.opening import Opener, unopened
from tallystick.client.reader import Finding, FoundError, parse
from tallystick.client.session import Session
from tallystick.console.layout import command, facts, heading, part
from tallystick.console.marks import bad, checked, short, soft, told, warning, when
from tallystick.console.page import Download, Page
from tallystick.console.pages import records
from tallystick.console.visit import Visit, read_number
from tallystick.errors import Misuse, Refused, Unavailable, Withheld
from tallystick.ledger.contracts.identity import IDENTITIES
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.permits import PERMITS, Status
from tallystick.ledger.contracts.topics import TOPICS
from tallystick.ledger.engine import Query
from tallystick.page.html import Html, join, tag
from tallystick.page.svg import amount, many
from tallystick.parcel.locks import MissingKey
from tallystick.parcel.parcel import Parcel, VerifiedParcel
from tallystick.parcel.prove import Prover, verify_proof
from tallystick.parcel.verify import check_signature
from tallystick.trust.permit import Operation
from tallystick.trust.receipt import Receipt
from tallystick.trust.right import Right
from tallystick.wire import show_time

STEPS = (
    "Gather",
    "Seal",
    "Send, past the guards",
    "Store, promise, anchor",
    "Fetch, verify, open",
    "Pipeline",
    "Prove",
)
COLUMNS = 300  # of the row on one page
ROW_CHARACTERS = 30_000  # of values, where they are few
_ON_EXECUTORS = (
    "On Spark's executors the checks of step 5 run, and each row of a table keeps the place that stands above."
)
OPERATION_HEIGHTS = 64  # before the anchor and behind, within which a node has told of what it took


class Row(NamedTuple):
    """Which row it is, as the address says."""

    topic: records.Topic
    kept: records.KeptOffsets
    offset: int
    number: int

    def __str__(self) -> str:
        return f"partition {self.kept.partition}, offset {self.offset}, row {self.number}"


def _row(visit: Visit) -> Row:
    topic = records.require_topic(visit)
    partition, offset, row = (read_number(visit.parameters[name], name) for name in ("partition", "offset", "row"))
    kept = records.kept_offsets(visit, topic, partition) if partition < topic.row.partitions else None
    if kept is None or offset >= kept.end:
        size = "nothing is" if kept is None else f"{many(kept.end, 'parcel')} are"
        told = f"partition {partition} has no offset {offset}: {size} anchored"
        raise Misuse(told, hint="the records' page has them")
    if offset < kept.first:
        gone = f"offset {offset} was retired with all below {kept.first}, as the topic's owner lets go"
        raise Misuse(gone, hint="its body is gone for good; that it was anchored, the ledger still shows")
    return Row(topic, kept, offset, row)


# Checks.


class Doubt(NamedTuple):
    """What came of a check that leaves something open."""

    came: object


class Walk:
    """Through a row's life. A check raises `Refused` where something does not hold; those behind it stand on it."""

    def __init__(self, visit: Visit, row: Row, session: Session) -> None:
        self._visit, self._mirror, self._row, self._session = visit, visit.mirror, row, session
        self._token, self._place = row.topic.token, (row.kept.partition, row.offset)
        self._held, self._fetcher = records.fetcher_of(session, row.topic)
        self._opener = Opener(session, self._held, records.SETTINGS)
        self.values: Html | None = None  # of the row, once it was opened
        self.steps: dict[int, list[Html]] = {}
        self.passed, self.ms = 0, 0.0

    def go(self) -> Refused | None:
        """Do all checks, up to the first that fails. Returns what that one said."""
        for place, (step, title, do) in enumerate(CHECKS, 1):
            said: list[object] = []
            began, error = self._visit.viewer.clock.monotonic(), None
            try:
                for one in do(self):
                    said.append(one)  # as it comes: what went in is shown where nothing came
            except Refused as refusal:
                error = refusal
                said.append([bad(error.reason), f" {error}"])
            ms = (self._visit.viewer.clock.monotonic() - began) * 1000
            is_open = isinstance(said[-1], Doubt)
            state = "failed" if error else None if is_open else "passed"
            mark = bad("does not hold") if error else soft("open") if is_open else checked("holds")
            name = [tag("b", title), " ", mark, soft(f" as check {place}, in {ms:.1f} ms")]
            item = tag("li", name, facts({"inputs": said[0], "result": said[-1]}), class_=state)
            self.steps.setdefault(step, []).append(item)
            self.passed, self.ms = self.passed + (state == "passed"), self.ms + ms
            if error:
                return error
        return None

    def _anchor(self) -> Iterator[object]:
        partition, offset = self._place
        yield f"the state's row of partition {partition}, with its proof"
        anchor = self._fetcher.anchor(partition)
        if anchor is None or anchor.size <= offset:  # were it another history, the view would have told
            raise Unavailable(f"{self._row}: the node has not caught up with what was replayed here")
        self.anchor = anchor
        yield f"{many(anchor.size, 'parcel')} at height {anchor.height}, root {anchor.root.hex()[:16]}…"

    def _parcel(self) -> Iterator[object]:
        partition, offset = self._place
        self.fetched = fetched = self._fetcher.parcels(partition, offset, offset + 1, self.anchor.size)
        yield f"what the node showed, and {many(len(fetched.proof), 'hash', 'hashes')} up to the anchor's root"
        found = parse(self._fetcher.reading, fetched, partition, offset, self.anchor)
        if not found:
            raise Withheld(f"{self._row}: anchored, and the node does not show it", reason="missing")
        if not isinstance(found[0], Parcel):
            raise Refused(f"{self._row}: the notary refused it: {found[0].reason}", reason="refused")
        self.parcel, self.header = found[0], found[0].header
        yield [amount(self.header.size_bytes, "bytes"), ", named ", short(self.parcel.hash)]

    def _permit(self) -> Iterator[object]:
        ref = self.header.topic(self._token)
        yield ["permit ", short(ref.permit), f", epoch {ref.epoch}, certificate of the authority"]
        if ref.permit in (refused := self._fetcher.supplier.learn([self.header])):
            raise refused[ref.permit]
        self.permit = permit = self._fetcher.topic.book.get(ref.permit)
        permit.check_covers(Operation.ADVERTISE, self._token, ref.epoch)
        who = self._visit.principal(permit.principal)
        yield [who, f" may publish from {show_time(permit.not_before_ms)} to {show_time(permit.not_after_ms)}"]

    def _signature(self) -> Iterator[object]:
        yield ["the header, its signature, and the permit's key ", short(self.permit.signing_key)]
        check_signature(self.parcel, self.permit.verify_key)
        yield "the signature verifies"

    def _gathered(self) -> Iterator[object]:
        yield "the signed header, and the permit"
        count = "how many rows is sealed inside" if self.header.padded else many(self.header.count, "row")
        yield [self._visit.principal(self.permit.principal), ": ", count]

    def _sealed(self) -> Iterator[object]:
        header = self.header
        yield "the signed header"
        yield facts(
            {
                "lane, sequence": [short(header.lane), f", {header.sequence}"],
                "previous hash": short(header.previous) if header.sequence else "the lane begins here",
                "schema": [f"version {header.schema_version}, ", short(header.schema_hash)],
                "locks": [[f"group {place}: ", _each(one.locks)] for place, one in enumerate(header.groups)],
                "labels": _each(header.labels) or None,
                "time": soft("sealed inside") if header.padded else told(when(header.time_ms), by="its publisher"),
                "counts": "when the commit parcel of its write lists it" if header.pending else None,
            }
        )

    def _first_anchor(self) -> Iterator[object]:
        yield "the anchors of the replayed ledger"

        def anchored_by(height: int) -> int:
            return records.anchored_before(self._visit, self._row.topic, self._row.kept, height + 1)

        self.height = bisect_left(range(self._row.kept.anchor.height), self._row.offset + 1, key=anchored_by)
        block = self._mirror.block(self.height)
        yield ["in block ", self._visit.block(self.height), " of ", when(block.time_ms)]

    def _taken(self) -> Iterator[object]:
        low, high = max(0, self.height - OPERATION_HEIGHTS), self.height + OPERATION_HEIGHTS
        yield f"the operations in blocks {low} to {high} of the replayed ledger"
        query = Query(kind=int(EntryKind.OPERATION), first_height=low, end_height=high + 1, most=1 << 20)
        partition, offset = self._place
        for one in self._mirror.audit(query):
            _, operator, _, token, kind, reason, host, _, place, first, end = one.fields[:11]
            if (token, kind, reason, place) == (self._token, Right.WRITE, "", partition) and first <= offset < end:
                said = told(f"offsets {first} to {end - 1} taken from {host}", by="the node, which signed the entry")
                entry, who = self._visit.entry(one.height, one.index), self._visit.principal(operator)
                yield ["entry ", entry, ": ", said, " for ", who]
                return
        yield Doubt("none names this offset")

    def _in_force(self) -> Iterator[object]:
        yield f"the permit's row on the replayed ledger, and height {self.height}"
        row, permit = self._mirror.row(PERMITS(self.permit.identifier)), self.permit
        if row is None:
            raise Refused("the permit was never issued", reason="unknown-permit")
        if row.status != Status.ISSUED and row.height <= self.height:
            yield Doubt(warning(f"{Status(row.status).name.lower()} at height {row.height}"))
        elif not permit.not_before_ms <= self._mirror.block(self.height).time_ms < permit.not_after_ms:
            yield Doubt(warning("anchored outside of its time"))
        else:
            yield "it was issued, and had not ended"

    def _not_revoked(self) -> Iterator[object]:
        yield f"the publisher's row on the replayed ledger, and height {self.height}"
        row = self._mirror.row(IDENTITIES(self.permit.principal))
        if row is None or (row.revoked and row.revoked <= self.height):
            yield Doubt(bad("suspect: anchored after the key was revoked"))
        else:
            yield f"it was later, at height {row.revoked}" if row.revoked else "it never was"

    def _follows(self) -> Iterator[object]:
        before = self.header.sequence - 1
        yield "its lane's first" if before < 0 else f"parcel {before} of the lane, proved under the anchor"
        reader, given = self._fetcher.reader(*self._place), (self.fetched, self.anchor, self._held.permit.identifier)
        (found,) = self._fetcher.supplier.take(reader, *given, self._visit.viewer.now_ms)
        if isinstance(found, Finding):
            raise FoundError(found)
        if not isinstance(found.verified, VerifiedParcel):
            raise Withheld(f"{self._row}: the node shows it without its body", reason="missing")
        self.verified = found.verified
        yield ["previous hash ", short(self.header.previous), ", root of the body ", short(self.header.body_root)]

    def _schema(self) -> Iterator[object]:
        version = self.header.schema_version
        yield f"version {version}, as the authority gave it, and the header's hash"
        self.schema = self._opener.schema(version, self.header.schema_hash)
        yield f"{many(len(self.schema.arrow), 'column')} in {many(len(self.schema.groups), 'group')}"

    def _open(self) -> Iterator[object]:
        locks = many(sum(len(one.locks) for one in self.header.groups), "lock")
        yield f"{locks}, our keys, and the header's commitments and roots"
        try:
            self.opened = opened = self._opener.rows(self.verified)
        except MissingKey as error:
            raise unopened(error, self.header, erased=self._opener.was_erased(error)) from error
        if opened.batch is None:
            raise Refused("no column of it opens with this identity's attributes", reason="not-entitled")
        if self._row.number >= opened.batch.rows:
            count = many(opened.batch.rows, "record")
            raise Misuse(f"offset {self._row.offset} has {count}, counted from 0, none with number {self._row.number}")
        self.values = _values(self._visit, opened.batch.data, self._row.number)
        closed = f"; closed to you: {', '.join(opened.closed)}" if opened.closed else ""
        yield many(opened.batch.rows, "row") + closed

    def _receipt(self) -> Iterator[object]:
        data = self._session.node.receipt(self._token, *self._place)
        yield f"{amount(len(data), 'bytes')} of the node's: anchor, transaction, checkpoint; and the trust file"
        self.receipt = Receipt.decode(data)
        yield self.receipt.verify(self.parcel.hash, self._token, self._session.memory.trust).describe()

    def _prove(self) -> Iterator[object]:
        groups = enumerate(self.schema.groups)
        group = next(place for place, names in groups if not {*names} <= {*self.opened.closed})
        chosen = self._visit.number("group")
        group = group if chosen is None else chosen
        yield f"the row in column group {group}, its salt, its path among the leaves, and what stands above"
        permit, topic = self._session.node.permit(self.permit.identifier), self._session.node.state(TOPICS(self._token))
        authority, ring = self._session.identity.authority.encode(), self._opener.ring
        prover = Prover(self.verified, ring, self.schema, group, permit, authority, self.receipt, topic.encode())
        self.proof = prover.prove(self._row.number).encode()
        yield amount(len(self.proof), "bytes")

    def _proved(self) -> Iterator[object]:
        yield "its bytes and the trust file, nothing else"
        proven = verify_proof(self.proof, self._session.memory.trust, topic=self._token)
        proved, open_ = ([tag("li", one) for one in said] for said in (proven.statements, proven.not_proven))
        ways = _ways(self._visit, self._row, proven.group, proven.publisher)
        yield [tag("ul", proved), tag("h3", "Not proved"), tag("ul", open_), ways]


def _each(identifiers: Sequence[bytes]) -> list[object]:
    return [[short(one), " "] for one in identifiers]


Doing = Callable[[Walk], Iterator[object]]  # tells what goes in, and when it is done what came of it
CHECKS: tuple[tuple[int, str, Doing], ...] = (  # with the step of each, in the order in which they are done
    (5, "The anchor stands on the ledger", Walk._anchor),
    (5, "The parcel is the anchored one", Walk._parcel),
    (5, "The permit is the authority's, for this topic and epoch", Walk._permit),
    (5, "Its publisher signed it", Walk._signature),
    (1, "Who gathered it", Walk._gathered),
    (2, "What was sealed", Walk._sealed),
    (4, "When it was anchored first", Walk._first_anchor),
    (3, "The node wrote down that it took it", Walk._taken),
    (5, "The permit was in force then", Walk._in_force),
    (5, "The publisher's key was not revoked then", Walk._not_revoked),
    (5, "It follows the parcel before it, its body is whole, and its publisher saw our ledger", Walk._follows),
    (5, "The schema is the one that was sealed", Walk._schema),
    (5, "The body opens, and its rows are the leaves that were signed", Walk._open),
    (4, "The receipt holds", Walk._receipt),
    (7, "The proof is made", Walk._prove),
    (7, "The proof holds", Walk._proved),
)


# The page.


def show_life(visit: Visit) -> Html:
    row = _row(visit)
    topic, records_path = visit.topic(row.topic.token), f"topics/{row.topic.token.hex()}/records"
    beside = visit.link("beside it", records_path, partition=row.kept.partition, by="offset", at=row.offset)
    top = heading("Life of a record", join(topic, f", {row}; what is ", beside, "."))
    if not visit.query.get("read"):
        return join(top, tag("p", records.asking(visit, "Reading it")), records.button(visit, visit.path, "read it"))
    with records.reading(visit, row.topic) as session:
        walk = Walk(visit, row, session)
        error = walk.go()
    failed = tag("div", tag("p", bad(error.reason), f" {error}."), class_="trouble", role="alert") if error else None
    known = tag("p", f"{walk.passed} of {many(len(CHECKS), 'check')} held, in {walk.ms:.0f} ms.")
    return join(top, failed, known, walk.values, [_step(walk, *one) for one in enumerate(STEPS, 1)])


def _step(walk: Walk, step: int, name: str) -> Html:
    none = _ON_EXECUTORS if name == "Pipeline" else "It was not reached."
    shown = tag("ol", walk.steps[step], class_="steps") if step in walk.steps else tag("p", soft(none))
    return part(f"{step}. {name}", shown)


def _values(visit: Visit, data: pa.RecordBatch, row: int) -> Html:
    """The row itself, so many columns at a time."""
    count, begin = data.num_columns, visit.number("column") or 0
    names = data.schema.names[begin : begin + COLUMNS]
    most = max(records.VALUE_CHARACTERS, ROW_CHARACTERS // max(1, len(names)))
    values = records.shown_row(data, row, names)
    shown = [(records.column(data.schema.field(name)), records.show_value(values[name], most)) for name in names]
    before = {"column": max(0, begin - COLUMNS)} if begin else None
    behind = {"column": begin + COLUMNS} if begin + COLUMNS < count else None
    title = "The row" if len(names) == count else f"The row, columns {begin} to {begin + len(names) - 1} of {count:,}"
    return part(title, tag("div", facts(shown), class_="card"), visit.pager(before, behind))


def _ways(visit: Visit, row: Row, group: int, publisher: bytes) -> Html:
    """To the proof as a file, and to checking it elsewhere."""
    home, token = quote(str(visit.viewer.identity.home)), row.topic.token
    place = f"--partition {row.kept.partition} --offset {row.offset} --row {row.number} --group {group}"
    whose = f"--publisher {publisher.hex()} --topic {token.hex()}"
    verifier = visit.link("verify.html", "verify.html")
    return join(
        records.button(visit, f"{visit.path}/proof", "download row.proof", group=group),
        tag("p", "Whoever has the trust file checks it offline, with a browser and ", verifier, ", or by a command."),
        command(f"tally verify row.proof --trust {home}/trust.json {whose}"),
        command(f"tally prove {quote(visit.viewer.topic_name(token))} {place} -o row.proof --home {home}"),
    )


def take_proof(visit: Visit) -> Html | Download:
    """The proof as a file, checked here before it is handed out."""
    row = _row(visit)
    if not visit.query.get("read"):
        top = heading("Proof", records.asking(visit, "Proving a record"))
        return join(top, records.button(visit, visit.path, "download row.proof"))
    group = visit.number("group") or 0
    with records.reading(visit, row.topic) as session:
        data = session.prove(row.topic.token, row.kept.partition, row.offset, row.number, group).encode()
        verify_proof(data, session.memory.trust, topic=row.topic.token)
    return Download("row.proof", data)


def take_verifier(_visit: Visit) -> Download:
    """One file that needs no console, no server and no network."""
    return Download("verify.html", files("tallystick.console").joinpath("verify.html").read_bytes())


_PLACE = "topics/{token}/records/{partition}/{offset}/{row}"
PAGES = (
    Page(_PLACE, "Life of a record", show_life, live=False),
    Page(f"{_PLACE}/proof", "Proof", take_proof, live=False),
    Page("verify.html", "Verifier", take_verifier, live=False),
)
