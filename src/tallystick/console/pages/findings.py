"""*Findings*: what readers, the memory of checkpoints and the audit found, how it is known, and the evidence."""

from __future__ import annotations

from shlex import quote
from typing import Any

from tallystick.client.inspect import look
from tallystick.client.reader import Finding
from tallystick.console.findings import Noted, content, found, proved
from tallystick.console.layout import (
    LINES,
    checked,
    choice,
    code,
    command,
    facts,
    field,
    filters,
    heading,
    lines,
    link,
    part,
    principal_link,
    short,
    skipped,
    soft,
    told,
    topic_link,
    warning,
    ways_on,
    when,
)
from tallystick.console.page import Download, Page
from tallystick.console.viewer import Visit
from tallystick.errors import Malformed, Misuse
from tallystick.page.html import Html, join, tag
from tallystick.page.svg import many
from tallystick.pipeline.jobs.audit_findings import SEVERITIES

PLACES_MAX = 8
EVIDENCE_MAX = 8  # pieces that a page puts into words
_ITEMS_MAX = 10  # of a list among the facts of one
_TEXT_MAX = 1000
_SOURCES = {
    "home": "a reader of this identity, when it read",
    "memory": "this identity's memory of checkpoints",
    "warehouse": "the warehouse's tables",
}


def show_findings(visit: Visit) -> Html:
    every, troubles = found(visit.viewer)
    chosen = [one for one in every if _is_wanted(visit, one)]
    shown = chosen[skipped(visit) :][:LINES]
    reasons = sorted({one.reason for one in every if len(one.reason) <= 60})[:LINES]
    form = filters(
        visit,
        choice(visit, "severity", "severity", [("", "all"), *((one, one) for one in SEVERITIES)]),
        choice(visit, "reason", "reason", [("", "all"), *((one, one) for one in reasons)]),
        field(visit, "topic", "topic", placeholder="name or token"),
    )
    columns = ["severity", "finding", "where", "when", "known by"]
    return join(
        heading("Findings", _lead(visit, every)),
        [_trouble(one) for one in troubles],
        form if every else None,
        lines(columns, [_line(visit, one) for one in shown], _none(every, troubles)),
        ways_on(visit, len(chosen)),
    )


def _lead(visit: Visit, every: list[Noted]) -> str:
    counts = ", ".join(many(sum(one.severity == name for one in every), name) for name in SEVERITIES)
    whence = "what this home's readers kept and its checkpoints contradict"
    more = (
        ", and the audit's tables" if visit.viewer.warehouse else "; tally console --warehouse adds an audit's tables"
    )
    return f"{counts}: {whence}{more}."


def _none(every: list[Noted], troubles: list[Misuse]) -> str:
    if every or troubles:
        return "No finding fits." if every else "There is nothing else."
    return "Nothing was found: no reader of this home met anything that did not hold."


def _trouble(error: Misuse) -> Html:
    hint = soft(f"; {error.hint}") if error.hint else None
    return tag("p", warning("not all is here"), f" {error}", hint, role="status")


def _is_wanted(visit: Visit, one: Noted) -> bool:
    severity, reason = (visit.query.get(name) for name in ("severity", "reason"))
    topic = visit.query.get("topic")
    return (
        (not severity or one.severity == severity)
        and (not reason or one.reason == reason)
        and (not topic or topic in (one.token.hex(), visit.viewer.topic_name(one.token)))
    )


def _line(visit: Visit, one: Noted) -> list[object]:
    message = one.message if len(one.message) <= 300 else f"{one.message[:300]}…"
    name = link(visit, tag("b", one.reason.replace("-", " ")), f"findings/{one.name}")
    return [
        _severity(one),
        tag("div", name, tag("br"), soft(message)),
        _where(visit, one),
        when(one.time_ms) if one.time_ms else "–",
        _known(visit, one),
    ]


def _severity(one: Noted) -> Html:
    return tag("span", one.severity, class_=f"mark {one.severity}")


def _where(visit: Visit, one: Noted) -> object:
    where = [] if not one.token else [topic_link(visit, one.token)]
    if one.partition is not None:
        place = f"partition {one.partition}"
        if one.offset is not None:
            records = f"topics/{one.token.hex()}/records"
            place = link(visit, f"{place}, offset {one.offset}", records, partition=one.partition, start=one.offset)
        where.append(tag("div", place))
    places = [_place(visit, place) for place in one.places[:PLACES_MAX]]
    more = f"and {len(one.places) - PLACES_MAX} more" if len(one.places) > PLACES_MAX else None
    shown = tag("div", [(place, " ") for place in places], more) if places else None
    return tag("div", where, shown) if where or shown else "–"


def _place(visit: Visit, place: tuple[int, int | None]) -> Html:
    height, index = place
    if index is None:
        return link(visit, height, f"ledger/blocks/{height}")
    return link(visit, f"{height}/{index}", f"ledger/entries/{height}/{index}")


def _known(visit: Visit, one: Noted) -> Html:
    proof = proved(visit.viewer, one)
    return checked(proof) if proof else told(_SOURCES[one.source], by=_SOURCES[one.source])


def show_finding(visit: Visit) -> Html:
    one = _one(visit)
    who = tag("span", told(one.called, by=_SOURCES[one.source]), " ") if one.called else None
    known = {
        "severity": _severity(one),
        "where": _where(visit, one),
        "who": join(who, principal_link(visit, one.principal)) if one.principal else None,
        "when": when(one.time_ms) if one.time_ms else None,
        "how it is known": _known(visit, one),
        "what to do next": one.next_step or None,
    }
    data = content(one)
    parts = [] if data is None else [part("Evidence", _evidence(visit, one, data))]
    return join(heading(one.reason.replace("-", " "), one.message[:_TEXT_MAX]), facts(known), parts)


def _evidence(visit: Visit, one: Noted, data: bytes) -> Html:
    pieces = Finding.decode(data).evidence if one.source == "home" else (data,)
    way = tag("p", link(visit, f"download the file, {many(len(data), 'byte')}", f"findings/{one.name}/file"))
    more = soft(f"{len(pieces) - EVIDENCE_MAX} more in the file") if len(pieces) > EVIDENCE_MAX else None
    file = command(f"tally inspect {quote(str(one.file))}") if one.file is not None else None
    return join(way, [in_words(piece) for piece in pieces[:EVIDENCE_MAX]], more, file)


def in_words(data: bytes) -> Html:
    """What a stranger sees of a piece of evidence; nothing of it is verified by this."""
    try:
        kind, told_of_it = look(data)
    except Malformed:
        kind = {32: "a hash or a key", 64: "a signature"}.get(len(data), "bytes")
        told_of_it = {"in hexadecimal": data[:64]}
    title = tag("summary", f"{kind}, {many(len(data), 'byte')}")
    return tag("details", title, _facts(told_of_it), open="" if len(told_of_it) > 1 else None)


def _facts(told_of_it: dict[str, Any]) -> Html:
    return facts([(name.removesuffix("_ms").replace("_", " "), _value(name, v)) for name, v in told_of_it.items()])


def _value(name: str, value: Any) -> object:
    if isinstance(value, dict):
        return _facts(value)
    if isinstance(value, list | tuple):
        more = soft(f"and {len(value) - _ITEMS_MAX} more") if len(value) > _ITEMS_MAX else None
        return [[tag("div", _value(name, item)) for item in value[:_ITEMS_MAX]], more] if value else "–"
    if isinstance(value, bytes) and value:
        return code(value) if len(value) <= 64 else short(value[:64])
    if name.endswith("_ms") and isinstance(value, int) and value:
        return when(value)
    return "–" if value in (None, b"", "") else str(value)[:_TEXT_MAX]


def download(visit: Visit) -> Download:
    one = _one(visit)
    data = content(one)
    if data is None:
        raise Misuse("this finding has no file", hint="its evidence lies on the ledger, at the places that it names")
    return Download(f"{one.name}.evidence", data)


def _one(visit: Visit) -> Noted:
    name = visit.parameters["name"]
    every, troubles = found(visit.viewer)
    chosen = next((one for one in every if one.name == name), None)
    if chosen is None:
        hint = (
            str(troubles[0]) if troubles else "the list shows those that are there; an audit that ran since has others"
        )
        raise Misuse(f"no finding {name[:60]!r} is here", hint=hint)
    return chosen


PAGES = (
    Page("findings", "Findings", show_findings, in_menu=True),
    Page("findings/{name}", "Finding", show_finding),
    Page("findings/{name}/file", "Evidence", download, live=False),
)
