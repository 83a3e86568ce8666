"""*Alerts*: what the job `detect` found on the buses of vehicles, in words, drawn, with the records they came from."""

from __future__ import annotations

from functools import partial
from shlex import quote
from typing import Any

import numpy as np
import pyarrow.compute as pc

from tallystick.console import tables
from tallystick.console.layout import command, facts, heading, lines, nothing, part
from tallystick.console.marks import code, cut, soft, warning
from tallystick.console.page import Page
from tallystick.console.visit import LINES, Visit, alike
from tallystick.errors import Misuse
from tallystick.page.html import Html, card, join, tag
from tallystick.page.svg import amount, curves, many
from tallystick.pipeline.jobs.rows import TableRows

_CHECKS_MAX = 20  # in the list to choose from
_LONG_US = 60_000_000  # drawn of an alert
_POINTS_MAX = 1000
_ALERT = tables.columns(
    time="ts_first ts_last",
    string="vin check signal profile _publisher",
    double="seen low high strength",
    int64="can_id frames first_frame last_frame _partition _offset _leaf _last_partition _last_offset _last_leaf",
)
_FRAME = tables.columns(time="ts", int64="can_id bus _partition _offset _leaf")


def show_alerts(visit: Visit) -> Html:
    """The newest alerts first, or those that the filters ask for."""
    if not tables.has(visit, "alerts"):
        return join(heading("Alerts"), tables.missing(visit, "detect"))
    rows = tables.rows_of(visit)
    every = rows.read("alerts", _ALERT)
    checks = [one for one in every["check"].unique().slice(0, _CHECKS_MAX).to_pylist() if one == cut(one)]
    fields = {
        "vin": visit.field("vin", "vehicle"),
        "check": visit.choice("check", "check", alike(sorted(checks), "all checks")),
        "signal": visit.field("signal", "signal"),
    }
    form, found = tables.within(visit, every, "ts_first", fields)
    shown = [_line(visit, row) for row in found.slice(visit.skip, LINES).to_pylist()]
    columns = ["begin", "vehicle", "identifier", "signal", "check", "seen", "expected", "frames", "strength"]
    listed = lines(columns, shown, "No alerts fit.", numbers=(5, 7, 8))
    told = tables.lead(many(len(found), "alert"), *_watched(rows), ",")
    return join(heading("Alerts"), told, form, listed, visit.ways_on(len(found)))


def _watched(rows: TableRows) -> list[object]:
    """In how many frames, and how many nobody scored."""
    with rows.table("alerts") as table:
        every = [table.facts(one) for one in table.batches()]
        frames, unscored, late = (sum(int(one[name]) for one in every) for name in ("frames", "unscored", "late"))
    said: list[object] = [f" in {many(frames, 'frame')}"]
    if unscored or late:
        left = f" {amount(unscored)} of vehicles without a profile, {amount(late)} too late"
        said += [", ", warning("not scored"), left]
    return said


def _line(visit: Visit, row: dict[str, Any]) -> list[object]:
    from tallystick.fleet.detect.explain import IDENTIFIER, band

    identifier = "–" if row["can_id"] is None else f"{row['can_id'] & IDENTIFIER:X}"
    seen, frames, strength = (tables.number(row[name]) for name in ("seen", "frames", "strength"))
    named = [cut(row["vin"]), code(identifier), cut(row["signal"]), cut(row["check"])]
    place = tables.place_link(visit, row, "ts_first", "going on")
    return [place, *named, seen, band(row["low"], row["high"]), frames, strength]


def show_alert(visit: Visit) -> Html:
    from tallystick.fleet.detect.explain import MEANINGS, in_words

    rows = tables.rows_of(visit)
    row = rows.one("alerts", _ALERT, **visit.parameters)
    missing = [one for one in ("ts_first", "ts_last", "vin", "can_id", "check") if row[one] is None]
    if missing or row["check"] not in MEANINGS:
        why = f"a row without {missing[0]}" if missing else f"check {cut(row['check'])!r} is unknown here"
        raise Misuse(f"alerts: {why}", hint="a newer release may have written it, or a stranger")
    times = {name: tables.moment(row[name]) for name in ("ts_first", "ts_last")}
    words = in_words({**row, **times, "vin": cut(row["vin"]), "signal": cut(row["signal"])})
    first, last = ([row[f"{end}_{name}"] for name in ("partition", "offset", "leaf")] for end in ("", "_last"))
    whence = {
        "first frame": tables.record_link(visit, rows.token, *first),
        "last frame": tables.record_link(visit, rows.token, *last),
        "published by": tables.publisher(visit, row["_publisher"]),
        "profile": code(cut(row["profile"])),
    }
    file = quote(rows.files("alerts", row["batch"])[0])
    explain = f"tally detect explain {row['row'] + 1} --alerts {file} --capture CAPTURE --profile PROFILE --svg FILE"
    return join(
        heading(f"{row['check']} on {cut(row['vin'])}"),
        tables.lead("What the job detect found in the records below,"),
        [tag("p", one) for one in words],
        part("Around it", tables.or_why(_picture, rows, row)),
        part("Where it comes from", facts(whence)),
        part("With its profile", soft("What values it saw, and its partners:"), command(explain)),
    )


def _picture(rows: TableRows, row: dict[str, Any]) -> Html:
    """Drawn from the frames in bronze around the alert. The profile stays with whoever runs detect."""
    from tallystick.fleet.detect.explain import AROUND_US, panels
    from tallystick.fleet.detect.frames import Frames

    first, last = row["ts_first"], min(row["ts_last"], row["ts_first"] + _LONG_US)
    where = (pc.field("vin") == row["vin"]) & (pc.field("_publisher") == row["_publisher"])
    found = rows.read("bronze", _FRAME, where & tables.during(first - AROUND_US, last + AROUND_US))
    its_own = found
    for name in ("_partition", "_offset", "_leaf"):
        its_own = its_own.filter(pc.equal(its_own[name], row[name]))
    for bus in its_own["bus"].to_pylist():
        found = found.filter(pc.equal(found["bus"], bus))
    at_us, ids = (found.sort_by("ts")[name].to_numpy() for name in ("ts", "can_id"))
    frames = Frames(at_us, ids.astype(np.uint32), np.zeros(len(ids), np.uint8), np.zeros(len(ids), np.uint64))
    when = {"ts_first": tables.moment(first), "ts_last": tables.moment(last)}
    [panel] = panels({**row, **when}, frames, None, None)
    every = len(panel.times) // _POINTS_MAX + 1
    times, values = panel.times[::every], panel.values[::every]
    if len(times) < 2:
        return nothing("Too few frames came to draw them.")
    series = {panel.name: values.tolist()}
    is_inside = (times >= first) & (times <= last)
    for name, bound in (("at least", panel.low), ("at most", panel.high)):
        if bound is not None:
            series[f"expected {name}, while it lasted"] = np.where(is_inside, bound, np.nan).tolist()
    return card(panel.name, curves((times / 1e6).tolist(), series, panel.name), wide=True)


PAGES = (
    Page("alerts", "Alerts", show_alerts, in_menu=True, live=False, is_there=partial(tables.has, name="alerts")),
    Page("alerts/{batch}/{row}", "Alert", show_alert, live=False),
)
