"""*Map and trips*: the warehouse's table `trips`, drawn without tiles, each trip with the records that it came from."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tallystick.console import tables
from tallystick.console.layout import facts, heading, lines, nothing, part
from tallystick.console.marks import cut, warning
from tallystick.console.page import Page
from tallystick.console.tables import at, number
from tallystick.console.visit import LINES, Visit
from tallystick.errors import Misuse
from tallystick.page.html import Html, join, tag
from tallystick.page.svg import amount, many, tracks
from tallystick.pipeline.jobs.rows import TIME, TableRows

TRACKS_MAX, POINTS_MAX, EVENTS_MAX = 150, 2500, 100  # of one map: more is a blot, and more than 150 kB
_SHOWN_MAX = 50  # events, and records, of one trip
_TEXT, _REAL = pa.string(), pa.float64()
_LIST = pa.schema(
    [
        *(("vehicle_id", _TEXT), ("start_ts", TIME), ("end_ts", TIME), ("duration_s", _REAL), ("distance_km", _REAL)),
        *(("harsh_braking", pa.int32()), ("harsh_acceleration", pa.int32())),
    ]
)
_EVENT = [("start_ts", pa.int64()), ("acceleration_ms2", _REAL), ("latitude", _REAL), ("longitude", _REAL)]
_DRAWN = pa.schema([("vehicle_id", _TEXT), ("line", _TEXT), ("events", pa.list_(pa.struct(_EVENT)))])
_TRIP = pa.schema(
    [
        *(*_LIST, *_DRAWN, ("distance_by", _TEXT), ("idle_s", _REAL), ("fuel_l", _REAL), ("speed_max_kmh", _REAL)),
        *(("rows", pa.int32()), ("cut", _TEXT), ("suspect", pa.bool_())),
    ][1:]
)
_ORIGIN = pa.schema([("_partition", pa.int32()), ("_offset", pa.int64()), ("_publisher", _TEXT), ("_leaf", pa.int32())])
_KINDS = {True: ("var(--alarm)", "harsh braking"), False: ("var(--three)", "harsh acceleration")}


def show_trips(visit: Visit) -> Html:
    """The newest trips first, or those that the filters ask for, and where they went."""
    title = heading("Map and trips")
    if not tables.has(visit, "trips"):
        return join(title, tables.missing(visit, "trips"))
    rows = tables.rows_of(visit)
    form = visit.filters(visit.field("vehicle_id", "vehicle"), *tables.time_fields(visit))
    found = tables.within(visit, rows.read("trips", _LIST), "start_ts", "vehicle_id")
    shown = [_line(visit, row) for row in found.slice(visit.skip, LINES).to_pylist()]
    columns = ["begin", "vehicle", "lasted", "km", "braking", "acceleration"]
    listed = lines(columns, shown, "No trips fit.", numbers=(3, 4, 5))
    topic = None if rows.token is None else (" of topic ", visit.topic(rows.token))
    told = tables.lead(many(len(found), "trip"), topic, ",")
    drawn = _map(_drawn(rows, found.slice(visit.skip, TRACKS_MAX)), len(found))
    return join(title, told, form, drawn, part("Trips", listed, visit.ways_on(len(found))))


def _line(visit: Visit, row: dict[str, Any]) -> list[object]:
    lasted = "–" if row["duration_s"] is None else amount(row["duration_s"], "seconds")
    figures = [number(row[name]) for name in ("distance_km", "harsh_braking", "harsh_acceleration")]
    return [tables.place_link(visit, row, "start_ts", "not yet ended"), _vehicle(visit, row), lasted, *figures]


def _vehicle(visit: Visit, row: dict[str, Any]) -> object:
    name = str(row["vehicle_id"])
    return visit.link(name, "trips", vehicle_id=name) if name == cut(name) else cut(name)


def _drawn(rows: TableRows, found: pa.Table) -> list[dict[str, Any]]:
    """What is drawn of these trips, whose order does not matter."""
    if not found.num_rows:
        return []
    chosen = set(zip(found["batch"].to_pylist(), found["row"].to_pylist(), strict=True))
    table = rows.read("trips", _DRAWN, batches={batch for batch, _ in chosen})
    keys = zip(table["batch"].to_pylist(), table["row"].to_pylist(), strict=True)
    return list(table.take(pa.array([n for n, key in enumerate(keys) if key in chosen], pa.int64())).to_pylist())


def _map(trips: list[dict[str, Any]], count: int) -> Html | None:
    """A map of bounded size of some of `count` trips, which says what it leaves out."""
    if not trips:
        return None
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
    return _KINDS[(event["acceleration_ms2"] or 0.0) < 0]


def show_trip(visit: Visit) -> Html:
    trip = tables.rows_of(visit).one("trips", _TRIP, **visit.parameters)
    told = {
        "vehicle": _vehicle(visit, trip),
        "from": at(trip["start_ts"]),
        "to": at(trip["end_ts"]),
        "distance": number(trip["distance_km"], "km") + f", by {cut(trip['distance_by'])}",
        "greatest speed": number(trip["speed_max_kmh"], "km/h"),
        "idling": number(trip["idle_s"], "s"),
        "fuel": number(trip["fuel_l"], "l"),
        "harsh": f"{number(trip['harsh_braking'])} braking, {number(trip['harsh_acceleration'])} acceleration",
        "ended by": "not ended yet" if trip["batch"] < 0 else cut(trip["cut"]),
        "rows": number(trip["rows"]),
        "rows to doubt": (warning("suspect"), " some are of a publisher that was revoked since")
        if trip["suspect"]
        else None,
    }
    events = [
        [at(one["start_ts"]), _kind(one)[1], number(one["acceleration_ms2"], "m/s²"), _where(one)]
        for one in islice(trip["events"] or [], _SHOWN_MAX)
    ]
    return join(
        heading(f"Trip of {cut(trip['vehicle_id'])}"),
        tables.lead("What the job trips made of the rows below,"),
        _map([trip], 1),
        facts(told),
        part("Events", lines(["time", "what", "how much", "where"], events, "Nothing harsh.")),
        part("Where it comes from", _origin(visit, trip)),
    )


def _where(event: dict[str, Any]) -> str:
    return f"{number(event['latitude'])} N, {number(event['longitude'])} E"


def _origin(visit: Visit, trip: dict[str, Any]) -> Html:
    """The records whose rows are this trip's: of its vehicle, and of its time."""
    if trip["start_ts"] is None or trip["end_ts"] is None or not tables.has(visit, "signals"):
        return tables.missing(visit, "refine")
    first, last = (pa.scalar(trip[name], TIME) for name in ("start_ts", "end_ts"))
    time, rows = pc.field("ts").cast(TIME), tables.rows_of(visit)
    try:
        of_it = (pc.field("vehicle_id") == trip["vehicle_id"]) & (time >= first) & (time <= last)
        read = rows.read("signals", _ORIGIN, of_it)
    except Misuse as error:  # what the trip itself says is shown all the same
        return nothing(f"{error}.", tag("p", error.hint))
    found = read.group_by(_ORIGIN.names[:3]).aggregate([("row", "count"), ("_leaf", "min")])
    places = [(name, "ascending") for name in _ORIGIN.names[:3]]
    listed = [
        [
            tables.record_link(visit, rows.token, one["_partition"], one["_offset"], one["_leaf_min"]),
            tables.publisher(visit, one["_publisher"]),
            one["row_count"],
        ]
        for one in found.sort_by(places).slice(0, _SHOWN_MAX).to_pylist()
    ]
    columns = ["record", "published by", "rows"]
    return lines(columns, listed, "No rows are left.", numbers=(2,), more=len(found) - _SHOWN_MAX)


PAGES = (
    Page(
        *("trips", "Map and trips", show_trips),
        in_menu=True,
        live=False,
        is_there=lambda visit: visit.viewer.warehouse is not None,
    ),
    Page("trips/{batch}/{row}", "Trip", show_trip, live=False),
)
