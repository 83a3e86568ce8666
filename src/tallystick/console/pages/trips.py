"""*Map and trips*: the warehouse's table `trips`, drawn without tiles, each trip with the records that it came from."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tallystick.console import tables
from tallystick.console.layout import facts, heading, lines, nothing, part
from tallystick.console.marks import cut, warning
from tallystick.console.page import Page
from tallystick.console.visit import LINES, Visit
from tallystick.page.html import Html, join, tag
from tallystick.page.svg import amount, many, tracks
from tallystick.pipeline.jobs.rows import TableRows

TRACKS_MAX, POINTS_MAX, EVENTS_MAX = 150, 2500, 100  # of one map: more is a blot, and more than 150 kB
_SHOWN_MAX = 50  # events, and records, of one trip
_LIST = tables.columns(
    time="start_ts end_ts",
    string="vehicle_id",
    double="duration_s distance_km",
    int32="harsh_braking harsh_acceleration",
)
_EVENT = [*tables.columns(int64="start_ts", double="acceleration_ms2 latitude longitude")]
_DRAWN = pa.schema([*tables.columns(string="vehicle_id line"), ("events", pa.list_(pa.struct(_EVENT)))])
_MORE = tables.columns(string="distance_by cut", double="idle_s fuel_l speed_max_kmh", int32="rows", bool="suspect")
_TRIP = pa.schema([*_LIST, *_MORE, *_DRAWN.remove(0)])
_ORIGIN = tables.columns(int32="_partition _leaf", int64="_offset", string="_publisher")


def show_trips(visit: Visit) -> Html:
    """The newest trips first, or those that the filters ask for, and where they went."""
    title = heading("Map and trips")
    if not tables.has(visit, "trips"):
        return join(title, tables.missing(visit, "trips"))
    rows = tables.rows_of(visit)
    fields = {"vehicle_id": visit.field("vehicle_id", "vehicle")}
    form, found = tables.within(visit, rows.read("trips", _LIST), "start_ts", fields)
    few = found.slice(visit.skip, TRACKS_MAX)
    columns = ["begin", "vehicle", "lasted", "km", "braking", "acceleration"]
    shown = [_line(visit, row) for row in few.slice(0, LINES).to_pylist()]
    listed = lines(columns, shown, "No trips fit.", numbers=(3, 4, 5))
    topic = None if rows.token is None else (" of topic ", visit.topic(rows.token))
    told = tables.lead(many(len(found), "trip"), topic, ",")
    drawn = _map(_drawn(rows, few), len(found)) if len(few) else None
    return join(title, told, form, drawn, part("Trips", listed, visit.ways_on(len(found))))


def _line(visit: Visit, row: dict[str, Any]) -> list[object]:
    lasted = "–" if row["duration_s"] is None else amount(row["duration_s"], "seconds")
    figures = [tables.number(row[name]) for name in ("distance_km", "harsh_braking", "harsh_acceleration")]
    return [tables.place_link(visit, row, "start_ts", "not yet ended"), _vehicle(visit, row), lasted, *figures]


def _vehicle(visit: Visit, row: dict[str, Any]) -> object:
    name = str(row["vehicle_id"])
    return visit.link(name, "trips", vehicle_id=name) if name == cut(name) else cut(name)


def _drawn(rows: TableRows, found: pa.Table) -> list[dict[str, Any]]:
    """What is drawn of these trips, whose order does not matter."""
    chosen = set(zip(found["batch"].to_pylist(), found["row"].to_pylist(), strict=True))
    table = rows.read("trips", _DRAWN, batches={batch for batch, _ in chosen})
    keys = zip(table["batch"].to_pylist(), table["row"].to_pylist(), strict=True)
    return list(table.filter(pa.array([key in chosen for key in keys], pa.bool_())).to_pylist())


def _map(trips: list[dict[str, Any]], count: int) -> Html:
    """A map of bounded size of some of `count` trips, which says what it leaves out."""
    texts = [trip["line"] for trip in trips if trip["line"]]
    step = -(-sum(text.count(",") + 1 for text in texts) // POINTS_MAX) or 1
    found = [points for text in texts if (points := _points(text, step))]
    events = [
        (event["longitude"], event["latitude"], *_kind(event), cut(trip["vehicle_id"]))
        for trip in trips
        for event in trip["events"] or []
        if _is_place(event["longitude"], event["latitude"])
    ]
    if not found and not events:
        return nothing("None of these trips says where it went.")
    said = [f"{_some(len(found), count, 'track')}, north is up"]
    if step > 1:
        said.append(f"one point in {step}")
    if events:
        said.append(f"{_some(min(len(events), EVENTS_MAX), len(events), 'harsh event')} as dots")
    dots = [(lon, lat, colour, f"{kind}: {who}") for lon, lat, colour, kind, who in events[:EVENTS_MAX]]
    return tag("figure", tracks(found, dots, "map of the tracks"), tag("figcaption", ", ".join(said), class_="soft"))


def _some(shown: int, count: int, noun: str) -> str:
    return many(count, noun) if shown == count else f"{amount(shown)} of {many(count, noun)}"


def _points(line: str, step: int) -> list[list[float]]:
    """One in `step` of the places of a line, and its last; none where it is no line on the earth."""
    pairs = line.removeprefix("LINESTRING (").removesuffix(")").split(",")
    try:
        found = [[float(one) for one in pair.split()] for pair in [*pairs[:-1:step], pairs[-1]]]
    except ValueError:
        return []
    return found if all(len(one) == 2 and _is_place(*one) for one in found) else []


def _is_place(longitude: float | None, latitude: float | None) -> bool:
    return longitude is not None and latitude is not None and abs(longitude) <= 180 and abs(latitude) <= 90


def _kind(event: dict[str, Any]) -> tuple[str, str]:
    """The colour and the name."""
    is_braking = (event["acceleration_ms2"] or 0.0) < 0
    return ("var(--alarm)", "harsh braking") if is_braking else ("var(--three)", "harsh acceleration")


def show_trip(visit: Visit) -> Html:
    trip = tables.rows_of(visit).one("trips", _TRIP, **visit.parameters)
    doubt = warning("suspect"), " some are of a publisher that was revoked since"
    braking, acceleration = (tables.number(trip[f"harsh_{what}"]) for what in ("braking", "acceleration"))
    told = {
        "vehicle": _vehicle(visit, trip),
        "from": tables.at(trip["start_ts"]),
        "to": tables.at(trip["end_ts"]),
        "distance": tables.number(trip["distance_km"], "km") + f", by {cut(trip['distance_by'])}",
        "greatest speed": tables.number(trip["speed_max_kmh"], "km/h"),
        "idling": tables.number(trip["idle_s"], "s"),
        "fuel": tables.number(trip["fuel_l"], "l"),
        "harsh": f"{braking} braking, {acceleration} acceleration",
        "ended by": "not ended yet" if trip["batch"] < 0 else cut(trip["cut"]),
        "rows": tables.number(trip["rows"]),
        "rows to doubt": doubt if trip["suspect"] else None,
    }
    events = [_event(one) for one in (trip["events"] or [])[:_SHOWN_MAX]]
    return join(
        heading(f"Trip of {cut(trip['vehicle_id'])}"),
        tables.lead("What the job trips made of the rows below,"),
        _map([trip], 1),
        facts(told),
        part("Events", lines(["time", "what", "how much", "where"], events, "Nothing harsh.")),
        part("Where it comes from", tables.or_why(_origin, visit, trip)),
    )


def _event(event: dict[str, Any]) -> list[object]:
    place = f"{tables.number(event['latitude'])} N, {tables.number(event['longitude'])} E"
    return [tables.at(event["start_ts"]), _kind(event)[1], tables.number(event["acceleration_ms2"], "m/s²"), place]


def _origin(visit: Visit, trip: dict[str, Any]) -> Html:
    """The records whose rows are this trip's: of its vehicle, and of its time."""
    first, last, rows = trip["start_ts"], trip["end_ts"], tables.rows_of(visit)
    if first is None or last is None or not tables.has(visit, "signals"):
        return tables.missing(visit, "refine")
    of_it = (pc.field("vehicle_id") == trip["vehicle_id"]) & tables.during(first, last)
    place = ["_partition", "_offset", "_publisher"]
    found = rows.read("signals", _ORIGIN, of_it).group_by(place).aggregate([("row", "count"), ("_leaf", "min")])
    listed = []
    for one in found.sort_by([(name, "ascending") for name in place]).slice(0, _SHOWN_MAX).to_pylist():
        record = tables.record_link(visit, rows.token, one["_partition"], one["_offset"], one["_leaf_min"])
        listed.append([record, tables.publisher(visit, one["_publisher"]), one["row_count"]])
    columns = ["record", "published by", "rows"]
    return lines(columns, listed, "No rows are left.", numbers=(2,), more=len(found) - _SHOWN_MAX)


def _is_there(visit: Visit) -> bool:
    return visit.viewer.warehouse is not None


PAGES = (
    Page("trips", "Map and trips", show_trips, in_menu=True, live=False, is_there=_is_there),
    Page("trips/{batch}/{row}", "Trip", show_trip, live=False),
)
