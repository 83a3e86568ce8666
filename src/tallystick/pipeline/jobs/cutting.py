"""Trips of one vehicle from its rows: where they begin and end, and what happened in between.

A trip is a run of rows with the engine running (rows that do not say count as running), no two of them further apart
than the gap. The first row with the engine off ends it and belongs to it. A trip that lasts too long is cut.

Rows may come late. The watermark of a vehicle is its newest time minus the lateness: whatever is older has arrived, by
assumption. It is the vehicle's own, so that one that was out of reach for a day, or whose clock is wrong, makes no
other late. A trip is *closed* when no row that is still to come could change it: its end, or the gap after it, lies
below the watermark. Closed trips are given once; of the rows, those are kept that can still matter. All this depends
only on which rows there are, not on when they came: whether rows come at once or in pieces, the closed trips are the
same, and so are the open ones, as long as no row comes behind what was settled. Those are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tallystick.pipeline.jobs import lines
from tallystick.pipeline.jobs.registry import TripSettings

_S = 1_000_000  # microseconds
_HARSH_STEP_S_MAX = 5.0  # a change of speed over a longer time says nothing about the foot on the pedal

Columns = dict[str, npt.NDArray[Any]]
# A vehicle's rows: time in microseconds; what is unknown is not a number; the place breaks ties of time.
FIELDS = {
    "us": "bigint",
    **dict.fromkeys(("running", "speed_kmh", "odometer_km", "fuel_rate_lh", "latitude", "longitude"), "double"),
    **dict.fromkeys(("suspect", "partition", "offset", "leaf"), "double"),
    "settled_us": "double",  # on the last row of what was given: what is not newer than this comes too late
}


class Span(NamedTuple):
    """A trip's rows: from `first` to `last` the engine runs, and `end` ends it."""

    first: int
    last: int
    end: int
    cut: str  # ignition, gap or length
    closed_us: int  # no row newer than this can change it


def cut(rows: Columns, settings: TripSettings) -> tuple[list[dict[str, Any]], Columns, int]:
    """Cut a vehicle's rows, given in any order. Returns its trips, the rows to keep, and how many came too late."""
    rows, late = _in_order(rows)
    times, watermark_us = rows["us"], int(rows["us"][-1]) - int(settings.late_s * _S)
    running = _filled(rows["running"])
    is_settled = ~np.isnan(rows["settled_us"])
    settled, until_us = (0, int(rows["settled_us"][0])) if is_settled[0] else (-1, 0)
    trips, is_settling = [], True
    for span in _spans(times, (running != 0.0) & ~is_settled, settings):  # what does not say counts as running
        if is_settling:
            settled, until_us = _settle_parked(times, settled, until_us, span.first, watermark_us)
        is_open = span.closed_us >= watermark_us
        is_settling = is_settling and not is_open
        if is_settling:
            settled, until_us = span.end, span.closed_us
        if times[span.end] > times[span.first]:
            trips.append({**_describe(rows, span, settings), "is_open": is_open})
    if is_settling:
        settled, until_us = _settle_parked(times, settled, until_us, len(times), watermark_us)
    return trips, _kept(rows, running, settled, until_us), late


def _in_order(rows: Columns) -> tuple[Columns, int]:
    """Rows by time, without those that come too late, and the number of those."""
    order = np.lexsort((rows["leaf"], rows["offset"], rows["partition"], rows["us"]))
    is_settled = ~np.isnan(rows["settled_us"])
    if is_settled.any():
        is_late = (rows["us"] <= rows["settled_us"][is_settled][0]) & ~is_settled
        order = order[~is_late[order]]
    return {name: values[order] for name, values in rows.items()}, len(is_settled) - len(order)


def _spans(times: npt.NDArray[np.int64], is_running: npt.NDArray[np.bool_], settings: TripSettings) -> Iterator[Span]:
    """The trips in order of time."""
    gap_us, longest_us = int(settings.gap_s * _S), int(settings.trip_h_max * 3600 * _S)
    is_new = np.append(True, (np.diff(times) > gap_us) | ~is_running[:-1])
    starts = np.flatnonzero(is_running & is_new)
    ends = np.flatnonzero(is_running & np.append(is_new[1:] | ~is_running[1:], True))
    for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
        while times[last] - times[first] >= longest_us:
            after = int(np.searchsorted(times, times[first] + longest_us))
            yield Span(first, after - 1, after - 1, "length", int(times[first]) + longest_us - 1)
            first = after
        off = last + 1
        if off < len(times) and not is_running[off] and times[off] - times[last] <= gap_us:
            yield Span(first, last, off, "ignition", int(times[off]))
        else:
            yield Span(first, last, last, "gap", int(times[last]) + gap_us)


def _settle_parked(
    times: npt.NDArray[np.int64], settled: int, until_us: int, end: int, watermark_us: int
) -> tuple[int, int]:
    """Rows before `end` with the engine off are over as soon as the watermark has passed them."""
    passed = min(end, int(np.searchsorted(times, watermark_us))) - 1
    return (passed, max(until_us, int(times[passed]))) if passed > settled else (settled, until_us)


def _kept(rows: Columns, running: npt.NDArray[np.float64], settled: int, until_us: int) -> Columns:
    """The rows that can still matter, behind the last of those that are over: it says so, and whether it ran."""
    kept = {name: values[max(settled, 0) :].copy() for name, values in rows.items()}
    if settled >= 0:
        kept["running"][0], kept["settled_us"][0] = running[settled], until_us
    return kept


def _filled(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """What is not known is as it was last known."""
    known = np.where(np.isnan(values), -1, np.arange(len(values)))
    last = np.maximum.accumulate(known)
    return np.where(last >= 0, values[last], np.nan)


# --- what happened on a trip ---


def _describe(rows: Columns, span: Span, settings: TripSettings) -> dict[str, Any]:
    trip = {name: values[span.first : span.end + 1] for name, values in rows.items()}
    times = trip["us"]
    duration_s = float(times[-1] - times[0]) / _S
    steps_s = np.diff(times) / _S
    speed, fuel = _filled(trip["speed_kmh"])[:-1], _filled(trip["fuel_rate_lh"])[:-1]
    points = np.column_stack([trip["longitude"], trip["latitude"]])
    points = points[~np.isnan(points).any(axis=1)]
    distance_km, distance_by = _distance(trip, points, steps_s)
    events = _events(trip, settings)
    return {
        "start_us": int(times[0]),
        "end_us": int(times[-1]),
        "duration_s": duration_s,
        "distance_km": distance_km,
        "distance_by": distance_by,
        "idle_s": _sum(steps_s[speed <= settings.idle_kmh]) if not np.isnan(speed).all() else None,
        "fuel_l": _sum((fuel * steps_s)[~np.isnan(fuel)] / 3600.0) if not np.isnan(fuel).all() else None,
        "speed_max_kmh": float(np.nanmax(trip["speed_kmh"])) if not np.isnan(trip["speed_kmh"]).all() else None,
        "harsh_braking": sum(event["acceleration_ms2"] < 0 for event in events),
        "harsh_acceleration": sum(event["acceleration_ms2"] > 0 for event in events),
        "events": events,
        "rows": len(times),
        "cut": span.cut,
        "line": lines.wkt(lines.simplified(points, settings.line_m)),
        "suspect": bool((trip["suspect"] == 1.0).any()),
    }


def _distance(trip: Columns, points: lines.Points, steps_s: npt.NDArray[np.float64]) -> tuple[float | None, str | None]:
    """By the odometer, else between positions, else from speeds (trapezium rule)."""
    odometer = trip["odometer_km"][~np.isnan(trip["odometer_km"])]
    if len(odometer) > 1:
        return float(odometer[-1] - odometer[0]), "odometer"
    if len(points) > 1:
        return _sum(lines.steps_m(points)) / 1000.0, "positions"
    speed = _filled(trip["speed_kmh"])
    if np.isnan(speed).all():
        return None, None
    mean = (speed[1:] + speed[:-1]) / 2
    return _sum((mean * steps_s)[~np.isnan(mean)]) / 3600.0, "speed"


def _events(trip: Columns, settings: TripSettings) -> list[dict[str, Any]]:
    """Harsh braking and acceleration: runs of changes of speed that reach the threshold, one way."""
    told = np.flatnonzero(~np.isnan(trip["speed_kmh"]))
    times = trip["us"][told]
    told = told[np.append(np.diff(times) > 0, True)] if len(told) else told  # of equal times the last
    times, speed = trip["us"][told], trip["speed_kmh"][told]
    steps_s = np.diff(times) / _S
    rates = np.diff(speed) / 3.6 / np.maximum(steps_s, 1e-6)
    kind = np.where((np.abs(rates) >= settings.harsh_ms2) & (steps_s <= _HARSH_STEP_S_MAX), np.sign(rates), 0.0)
    starts = np.flatnonzero((kind != 0) & (np.append(0.0, kind[:-1]) != kind))
    latitude, longitude = _filled(trip["latitude"])[told], _filled(trip["longitude"])[told]
    found = []
    for first in starts.tolist():
        other = np.flatnonzero(kind[first:] != kind[first])
        end = first + int(other[0]) if len(other) else len(kind)
        strongest = rates[first:end][np.abs(rates[first:end]).argmax()]
        found.append(
            {
                "start_us": int(times[first]),
                "end_us": int(times[end]),
                "acceleration_ms2": float(strongest),
                "latitude": _known(latitude[first]),
                "longitude": _known(longitude[first]),
            }
        )
    return found


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _sum(values: npt.NDArray[Any]) -> float:
    return float(values.sum())
