"""*Findings*: what readers, the memory of checkpoints and the audit found, how it is known, and the evidence."""

from __future__ import annotations

from shlex import quote

from tallystick.client.inspect import look
from tallystick.client.reader import Finding
from tallystick.console.findings import Noted, content, found, proved
from tallystick.console.layout import command, facts, fields, heading, left_out, lines, part
from tallystick.console.marks import checked, cut, soft, told, warning, when
from tallystick.console.page import Download, Page
from tallystick.console.visit import LINES, Visit, alike
from tallystick.errors import Malformed, Misuse
from tallystick.page.html import Html, join, tag
from tallystick.page.svg import many
from tallystick.pipeline.jobs.audit_findings import SEVERITIES

PLACES_MAX = 8
EVIDENCE_MAX = 8  # pieces that a page puts into words
_SOURCES = {
    "home": "a reader of this identity, when it read",
    "memory": "this identity's memory of checkpoints",
    "audit": "the warehouse's tables",
}


def show_findings(visit: Visit) -> Html:
    every, troubles = found(visit.viewer)
    chosen = [one for one in every if _is_wanted(visit, one)]
    reasons = sorted({one.reason for one in every if len(one.reason) <= 60})[:LINES]
    form = visit.filters(
        visit.choice("severity", "severity", alike(SEVERITIES, "all")),
        visit.choice("reason", "reason", alike(reasons, "all")),
        visit.field("topic", "topic", placeholder="name or token"),
    )
    counts = ", ".join(many(sum(one.severity == name for one in every), name) for name in SEVERITIES)
    audit = ", and the audit's tables" if visit.viewer.warehouse else "; tally console --warehouse adds an audit's"
    lead = f"{counts}: what this home's readers kept and its checkpoints contradict{audit}."
    none = "Nothing was found: no reader of this home met anything that did not hold."
    if every or troubles:
        none = "No finding fits." if every else "There is nothing else."
    rows = [_line(visit, one) for one in visit.part_of(chosen)]
    listed = lines(["severity", "finding", "where", "when", "known by"], rows, none)
    missing = [_trouble(one) for one in troubles]
    return join(heading("Findings", lead), missing, form if every else None, listed, visit.ways_on(len(chosen)))


def _trouble(error: Misuse) -> Html:
    hint = soft(f"; {error.hint}") if error.hint else None
    return tag("p", warning("not all is here"), f" {error}", hint, role="status")


def _is_wanted(visit: Visit, one: Noted) -> bool:
    names = one.token.hex(), visit.viewer.topic_name(one.token)
    fits = {"severity": (one.severity,), "reason": (one.reason,), "topic": names}
    return all(visit.query.get(name, "") in ("", *values) for name, values in fits.items())


def _line(visit: Visit, one: Noted) -> list[object]:
    name = visit.link(tag("b", one.reason.replace("-", " ")), f"findings/{one.name}")
    what = tag("div", name, tag("br"), soft(cut(one.message, 300)))
    time = when(one.time_ms) if one.time_ms else "–"
    return [_severity(one), what, _where(visit, one), time, _known(visit, one)]


def _severity(one: Noted) -> Html:
    return tag("span", one.severity, class_=f"mark {one.severity}")


def _where(visit: Visit, one: Noted) -> object:
    where = [visit.topic(one.token)] if one.token else []
    if one.partition is not None:
        place = f"partition {one.partition}"
        if one.offset is not None:
            records = f"topics/{one.token.hex()}/records"
            place = visit.link(f"{place}, offset {one.offset}", records, partition=one.partition, start=one.offset)
        where.append(tag("div", place))
    if one.places:
        first = [
            (visit.block(height) if index is None else visit.entry(height, index), " ")
            for height, index in one.places[:PLACES_MAX]
        ]
        where.append(tag("div", first, left_out(len(one.places) - PLACES_MAX, "more")))
    return tag("div", where) if where else "–"


def _known(visit: Visit, one: Noted) -> Html:
    proof = proved(visit.viewer, one)
    return checked(proof) if proof else told(_SOURCES[one.source], by=_SOURCES[one.source])


def show_finding(visit: Visit) -> Html:
    one = _one(visit)
    who = tag("span", told(one.called, by=_SOURCES[one.source]), " ") if one.called else None
    known = {
        "severity": _severity(one),
        "where": _where(visit, one),
        "who": join(who, visit.principal(one.principal)) if one.principal else None,
        "when": when(one.time_ms) if one.time_ms else None,
        "how it is known": _known(visit, one),
        "what to do next": one.next_step or None,
    }
    data = content(one)
    evidence = None if data is None else part("Evidence", _evidence(visit, one, data))
    return join(heading(one.reason.replace("-", " "), cut(one.message, 1000)), facts(known), evidence)


def _evidence(visit: Visit, one: Noted, data: bytes) -> Html:
    pieces = (data,) if one.file is None else Finding.decode(data).evidence
    file = None if one.file is None else command(f"tally inspect {quote(str(one.file))}")
    way = tag("p", visit.link(f"download the file, {many(len(data), 'byte')}", f"findings/{one.name}/file"))
    told = [in_words(piece) for piece in pieces[:EVIDENCE_MAX]]
    return join(way, told, left_out(len(pieces) - EVIDENCE_MAX, "more in the file"), file)


def in_words(data: bytes) -> Html:
    """What a stranger sees of a piece of evidence; nothing of it is verified by this."""
    try:
        kind, told_of_it = look(data)
    except Malformed:
        kind = {32: "a hash or a key", 64: "a signature"}.get(len(data), "unknown")
        told_of_it = {"in hexadecimal": data[:64]}
    title = tag("summary", f"{kind}, {many(len(data), 'byte')}")
    return tag("details", title, fields(told_of_it), open="" if len(told_of_it) > 1 else None)


def download(visit: Visit) -> Download:
    one = _one(visit)
    data = content(one)
    if data is None:
        raise Misuse("this finding has no file", hint="its evidence lies on the ledger, at the places that it names")
    return Download(f"{one.name}.evidence", data)


def _one(visit: Visit) -> Noted:
    name = visit.parameters["name"]
    for one in found(visit.viewer)[0]:
        if one.name == name:
            return one
    hint = "the list shows those that are there; an audit that ran since has others"
    raise Misuse(f"no finding {name[:60]!r} is here", hint=hint)


PAGES = (
    Page("findings", "Findings", show_findings, in_menu=True),
    Page("findings/{name}", "Finding", show_finding),
    Page("findings/{name}/file", "Evidence", download, live=False),
)
