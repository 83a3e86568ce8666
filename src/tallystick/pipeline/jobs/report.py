"""`report`: one page about a warehouse: traffic, trips, intrusions, updates, attacks and findings, ledger growth, lag,
the ledger's state.

It reads tables and nothing else, so it is made anywhere, offline, without Spark. What is missing is said, with the
command that makes it.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tallystick.errors import Misuse, Unavailable
from tallystick.page.html import Html, card, page, section, table, tag
from tallystick.page.svg import amount, bars, columns, curves, many, stamp, tracks
from tallystick.pipeline.jobs.audit_findings import SEVERITIES
from tallystick.pipeline.jobs.report_data import Bins, Lag, LedgerFacts, Tables, Traffic, Trips
from tallystick.pipeline.jobs.report_detect import intrusion_section
from tallystick.pipeline.jobs.report_updates import update_section
from tallystick.pipeline.jobs.run import JobRun
from tallystick.pipeline.jobs.warehouse import reading

FINDINGS_MAX = 200  # in the page; the table has all
_EVIDENCE_MAX = 4


def run(run: JobRun) -> dict[str, Any]:
    facts = run.warehouse.facts()
    if not facts:
        hint = "tally pipeline run audit or ingest makes one"
        raise Misuse(f"{run.warehouse.folder}: no warehouse is here", hint=hint)
    out: Path = run.options.get("out") or run.warehouse.folder / "report.html"
    with reading(run.warehouse.folder):
        text = render(Tables(run.warehouse), facts, run.clock.now())
    hidden = out.with_name(f".{out.name}")
    try:
        hidden.write_text(text, encoding="utf-8")
        hidden.replace(out)
    except OSError as error:
        raise Unavailable(f"{out}: cannot be written: {error.strerror}") from error
    return {"file": str(out), "bytes": len(text.encode())}


def render(tables: Tables, facts: dict[str, Any], now_s: float) -> str:
    """The page; `facts` are the warehouse's."""
    traffic, trips, ledger = tables.traffic(), tables.trips(), tables.ledger()
    found, audited = tables.findings(), tables.audited()
    topic = facts.get("topic")
    title = f"Tallystick report: {topic}" if topic else "Tallystick report"
    sections = [
        ("traffic", "Traffic", _traffic(traffic, ledger)),
        ("trips", "Trips", _trips(trips, is_cut=tables.has("trips"))),
        *([("intrusions", "Intrusions", intrusion_section(alerts))] if (alerts := tables.intrusions()) else []),
        *([("updates", "Updates", update_section(updates, tables))] if (updates := tables.updates()) else []),
        ("findings", "Attacks and findings", _findings(found, ledger, tables)),
        ("growth", "Ledger growth", _growth(ledger)),
        ("lag", "Lag", _lag(tables.lag())),
        ("state", "Ledger state", _state(audited, facts, tables)),
    ]
    made = f"Made {datetime.fromtimestamp(now_s, UTC):%Y-%m-%d %H:%M} UTC, of instance {str(facts['instance'])[:16]}…"
    return page(
        title,
        tag(
            "main",
            tag("header", tag("h1", title), tag("p", made)),
            tag("nav", [tag("a", name, href=f"#{place}") for place, name, _ in sections]),
            _tiles(traffic, trips, found, audited),
            [tag("section", tag("h2", name, id=place), content) for place, name, content in sections],
            tag("footer", "Times are UTC. Block times are the ledger's; sealing times are the publishers' claims."),
        ),
    )


def _tiles(
    traffic: Traffic | None, trips: Trips | None, found: list[dict[str, Any]] | None, audited: dict[str, Any]
) -> Html:
    facts: list[tuple[str, str]] = []
    if traffic is not None and traffic.rows is not None:
        facts.append((amount(traffic.rows), "rows sealed"))
    if traffic is not None:
        facts.append((amount(traffic.bytes, "bytes"), f"in {many(traffic.parcels, 'parcel')}"))
    if trips is not None:
        facts.append((f"{amount(round(trips.totals['distance_km'], 1))} km", f"in {many(trips.count, 'trip')}"))
    if found is not None:
        alarms = sum(one["severity"] == "alarm" for one in found)
        facts.append((amount(len(found)), f"finding{'s' * (len(found) != 1)}, {many(alarms, 'alarm')}"))
    if "height" in audited:
        facts.append((amount(audited["height"]), "ledger height, audited"))
    tiles = [tag("div", tag("b", value), tag("span", name), class_="tile") for value, name in facts]
    return tag("div", tiles, class_="tiles")


def _traffic(traffic: Traffic | None, ledger: LedgerFacts | None) -> Html:
    if traffic is None:
        return _missing("No log was audited yet, so there is nothing to count.", _AUDIT)
    cards = []
    if traffic.rows is not None:
        cards.append(_columns("Rows by time of sealing", traffic.bins, "rows"))
    if traffic.bins.times:
        cards += [
            _columns("Sealed bytes", traffic.bins, "bytes", "bytes"),
            _columns("Parcels", traffic.bins, "parcels"),
        ]
    if ledger is not None and ledger.topics:
        cards.append(card("Parcels by topic, from the ledger", bars(ledger.topics)))
    lead = f"{many(traffic.publishers, 'publisher')}; counted from headers that were proved against the ledger."
    if not traffic.bins.times:
        lead += " The topic is padded: times and numbers of rows are sealed, and nothing can be drawn over time."
    return section(lead, cards)


def _trips(trips: Trips | None, *, is_cut: bool) -> Html:
    if trips is None and is_cut:
        return tag("div", "The rows of this topic hold no trip yet.", class_="card none wide")
    if trips is None:
        return _missing("There are no trips in this warehouse.", "tally pipeline run trips --warehouse …")
    still = f", {trips.open} of them not yet ended" if trips.open else ""
    total = trips.totals
    lead = (
        f"{many(trips.count, 'trip')} of {many(trips.vehicles, 'vehicle')}{still}: {total['distance_km']:,.1f} km,"
        f" {total['fuel_l']:,.1f} l of fuel, {amount(total['idle_s'], 'seconds')} idling;"
        f" harsh braking {total['harsh_braking']}, harsh acceleration {total['harsh_acceleration']}."
    )
    cards = []
    if trips.lines or trips.events:
        kinds = {True: ("var(--alarm)", "braking"), False: ("var(--three)", "acceleration")}
        events = [(lon, lat, *kinds[brakes], who) for lon, lat, brakes, who in trips.events]
        points = [(lon, lat, colour, f"{kind}: {who}") for lon, lat, colour, kind, who in events]
        key = [_key("c1", "track"), _key("c-alarm dot", "harsh braking"), _key("c3 dot", "harsh acceleration")]
        left = f"; {trips.left_out} more tracks are not drawn" if trips.left_out else ""
        drawn = tag("figure", tracks(trips.lines, points, "map of the tracks"), tag("div", key, class_="key"))
        cards.append(card(f"Tracks, north is up{left}", drawn, wide=True))
    cards.append(_columns("Trips by their beginning", trips.bins, "trips"))
    cards.append(card("Distance by vehicle, km", bars([(name, round(km, 1)) for name, km in trips.farthest])))
    return section(lead, cards)


def _findings(found: list[dict[str, Any]] | None, ledger: LedgerFacts | None, tables: Tables) -> Html:
    if found is None:
        return _missing("No audit was made yet.", _AUDIT)
    cards = []
    if ledger is not None and ledger.reasons:
        refused = _columns("Refused requests", ledger.refused, "refused")
        cards = [refused, card("Refused, by reason", bars(ledger.reasons))]
    counts = ", ".join(many(sum(one["severity"] == name for one in found), name) for name in SEVERITIES)
    lead = f"{counts}. Evidence is named by height and index on the ledger." if found else "The audit found nothing."
    content: list[object] = [tag("p", lead, class_="lead")]
    if found:
        order = sorted(found, key=lambda one: (SEVERITIES.index(one["severity"]), one["rule"], -one["count"]))
        rows = [_finding(one, tables) for one in order[:FINDINGS_MAX]]
        names = ["Severity", "Finding", "Who", "Where", "When", "Count", "Evidence", "What to do"]
        cards.insert(0, tag("div", table(names, rows, numbers=(5,)), class_="card wide"))
        if len(order) > FINDINGS_MAX:
            content.append(tag("p", f"The first {FINDINGS_MAX}; the table findings has all.", class_="lead"))
    return tag("div", content, tag("div", cards, class_="grid"))


def _finding(one: dict[str, Any], tables: Tables) -> list[Any]:
    who = tag("span", one["name"]) if one["name"] else _pseudonym(one["principal"], tables)
    where: Any = one["topic"] or (_pseudonym(one["token"], tables) if one["token"] else "–")
    if one["partition"] is not None:
        where = tag("span", where, f", partition {one['partition']}")
    places = [_place(place) for place in one["evidence"]]
    more = f" and {len(places) - _EVIDENCE_MAX} more" if len(places) > _EVIDENCE_MAX else ""
    return [
        tag("span", one["severity"], class_=f"mark {one['severity']}"),
        tag("div", tag("b", one["rule"]), tag("br"), tag("span", one["message"], class_="soft")),
        who,
        where,
        _when(one),
        amount(one["count"]),
        tag("div", tag("code", ", ".join(places[:_EVIDENCE_MAX]) or "–"), more),
        _sentence(one["next"]),
    ]


def _pseudonym(identifier: str | None, tables: Tables) -> Html:
    name = tables.name(identifier)
    return tag("code", name, class_="short", title=identifier) if identifier else tag("span", name)


def _place(place: dict[str, Any]) -> str:
    return str(place["height"]) if place["index"] is None else f"{place['height']}/{place['index']}"


def _when(one: dict[str, Any]) -> str:
    first, last = one["first_time"], one["last_time"]
    if first is None:
        return "–"
    begin = stamp(first.timestamp(), seconds=True)
    if last is None or (last - first).total_seconds() < 1:
        return begin
    return f"{begin} to {stamp(last.timestamp(), seconds=True, day=first.date() != last.date())}"


def _growth(ledger: LedgerFacts | None) -> Html:
    if ledger is None:
        return _missing("The ledger was not audited yet.", _AUDIT)
    times, values = ledger.growth.times, ledger.growth.values
    each = f"{ledger.bytes / max(1, ledger.entries):.0f} bytes an entry"
    lead = f"{many(ledger.entries, 'entry', 'entries')}, {amount(ledger.bytes, 'bytes')}: {each}."
    cards = [
        card("Entries", curves(times, {"entries": values["entries"]}, "entries")),
        card("Bytes of entries", curves(times, {"bytes": values["bytes"]}, "bytes", show="bytes")),
        card("Entries by kind", bars(ledger.kinds), wide=True),
    ]
    return section(lead, cards)


def _lag(lag: Lag | None) -> Html:
    if lag is None:
        return _missing("Lag is counted from the ledger and from the times in headers, which are not here.", _AUDIT)
    rows = [
        [name, amount(count), *("–" if math.isnan(value) else amount(value, "seconds") for value in values)]
        for name, count, *values in lag.steps
    ]
    names = ["From … to …", "Parcels", "Median", "95 in 100 within", "Most"]
    cards = [
        tag("div", table(names, rows, numbers=(1, 2, 3, 4)), class_="card wide"),
        card("Medians by time of sealing", curves(lag.bins.times, lag.bins.values, show="seconds"), wide=True),
    ]
    lead = "From sealing, by the publishers' clocks, to the block that anchors, and on to the first read by anybody."
    return section(lead, cards)


def _state(audited: dict[str, Any], facts: dict[str, Any], tables: Tables) -> Html:
    known: list[tuple[str, Any]] = [("Instance", tag("code", facts.get("instance", "–")))]
    if "height" in audited:
        known += [
            ("Height", amount(audited["height"])),
            ("Block time", f"{stamp(audited['time_ms'] / 1000, seconds=True)} UTC"),
            ("Transactions", amount(audited["transactions"])),
            ("Checkpoint root", tag("code", audited["root"])),
            ("Witnesses", ", ".join(audited["cosigners"]) or "none"),
            ("Who vouches", audited["vouched_by"]),
        ]
    terms = [(tag("dt", name), tag("dd", value)) for name, value in known]
    cards = [tag("div", tag("dl", terms), class_="card wide")]
    if not audited:
        cards.append(_missing("No checkpoint was accepted here yet.", _AUDIT))
    elif "height" not in audited:
        told = "The newest audit did not believe the ledger; what it found stands above."
        cards.append(tag("div", told, class_="card none wide"))
    sizes = [[tag("code", name), amount(batches), amount(rows)] for name, batches, rows in tables.sizes()]
    if sizes:
        shown = table(["Table", "Batches", "Rows"], sizes, numbers=(1, 2))
        cards.append(card("Tables of this report", shown, wide=True))
    return tag("div", cards, class_="grid")


_AUDIT = "tally pipeline run audit --home … --topic … --warehouse …"


def _missing(what: str, command: str) -> Html:
    return tag("div", what, " Run:", tag("code", command), class_="card none wide")


def _columns(name: str, bins: Bins, value: str, show: str = "count") -> Html:
    return card(name, columns(bins.times, bins.values[value], value, show=show))


def _key(look: str, name: str) -> Html:
    return tag("span", tag("i", class_=look), name)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
