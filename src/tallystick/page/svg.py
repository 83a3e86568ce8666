"""Plots as inline SVG: shapes in the SVG, words in HTML around it, so that text keeps its size on a narrow screen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from tallystick.page.html import Html, tag

COLOURS = ("var(--one)", "var(--two)", "var(--three)")
_WIDE, _HIGH = 1000, 200  # of the drawing; it is stretched to its place
_DASH = 12  # half of the line that stands for a single value: a point would be stretched with the drawing
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 604800, 2592000)


def step_s(first_s: float, last_s: float, most: int = 48) -> int:
    """The width of a bin, a round one, so that there are at most that many."""
    return next((step for step in _STEPS_S if (last_s - first_s) / step < most), _STEPS_S[-1])


def columns(times: Sequence[float], values: Sequence[float], unit: str, *, show: str = "count") -> Html:
    """Columns over time; `times` are the bins' beginnings, in seconds since 1970."""
    top = _nice(max(values, default=0), show)
    width = _WIDE / max(1, len(times))
    bar = min(width * 0.84, _WIDE / 20)  # a lone one is no wall
    shapes = [_grid()]
    for place, (at, value) in enumerate(zip(times, values, strict=True)):
        if value:
            high = max(value / top * _HIGH, 1.0)
            told = tag("title", f"{stamp(at, seconds=True)}: {amount(value, show)} {unit}")
            corner = {"x": f"{place * width + bar * 0.1:.1f}", "y": f"{_HIGH - high:.1f}"}
            shapes.append(tag("rect", told, **corner, width=f"{bar:.1f}", height=f"{high:.1f}", fill=COLOURS[0]))
    return _plot(shapes, top, times, unit, show)


def curves(
    times: Sequence[float], series: Mapping[str, Sequence[float]], unit: str = "", *, show: str = "count"
) -> Html:
    """Lines over time, by name; a lone one has its area filled. A value that is not there (NaN) is passed over."""
    top = _nice(max((one for values in series.values() for one in values if not math.isnan(one)), default=0), show)
    span = max(times[-1] - times[0], 1e-9) if times else 1.0
    shapes = [_grid()]
    for number, values in enumerate(series.values()):
        known = [(at, value) for at, value in zip(times, values, strict=True) if not math.isnan(value)]
        places = [((at - times[0]) / span * _WIDE, _HIGH - value / top * _HIGH) for at, value in known]
        if len(places) == 1:
            x = min(max(places[0][0], _DASH), _WIDE - _DASH)
            places = [(x - _DASH, places[0][1]), (x + _DASH, places[0][1])]
        points = [f"{x:.1f},{y:.1f}" for x, y in places]
        line = {"stroke": COLOURS[number], "stroke_width": 2, "vector_effect": "non-scaling-stroke"}
        if len(series) == 1 and points:
            first, last = points[0].split(",")[0], points[-1].split(",")[0]
            area = f"M{first},{_HIGH} L{' L'.join(points)} L{last},{_HIGH} Z"
            shapes.append(tag("path", d=area, fill=COLOURS[number], fill_opacity=0.14))
        shapes.append(tag("polyline", points=" ".join(points), fill="none", stroke_linejoin="round", **line))
    return _plot(shapes, top, times, unit, show, list(series))


def bars(rows: Sequence[tuple[str, float]], *, show: str = "count") -> Html:
    """Names, bars and values under one another; the largest takes the width."""
    top = max((value for _, value in rows), default=0) or 1
    cells = [
        (
            tag("span", name, class_="name"),
            tag(
                "svg",
                tag("rect", width=f"{value / top * 100:.1f}%", height="100%", rx=3),
                class_="bar",
                aria_hidden="true",
            ),
            tag("span", amount(value, show), class_="value"),
        )
        for name, value in rows
    ]
    return tag("div", cells, class_="bars")


def tracks(
    lines: Sequence[Sequence[Sequence[float]]], points: Sequence[tuple[float, float, str, str]], label: str
) -> Html:
    """A map of lines of (longitude, latitude), and points with a colour and a title; north is up, one scale."""
    places = [(lon, lat) for line in lines for lon, lat, *_ in line] + [(lon, lat) for lon, lat, *_ in points]
    west, east = min(lon for lon, _ in places), max(lon for lon, _ in places)
    south, north = min(lat for _, lat in places), max(lat for _, lat in places)
    squeeze = max(math.cos(math.radians((south + north) / 2)), 0.01)
    scale = 1000 / max((east - west) * squeeze, north - south, 1e-6)

    def where(lon: float, lat: float) -> tuple[float, float]:
        return (lon - west) * squeeze * scale, (north - lat) * scale

    wide, high = where(east, south)
    margin = 0.04 * max(wide, high, 1)
    shapes = []
    for line in lines:
        drawn = " ".join("{:.1f},{:.1f}".format(*where(lon, lat)) for lon, lat, *_ in line)
        style = {"stroke": "var(--track)", "stroke_width": 1.6, "vector_effect": "non-scaling-stroke"}
        shapes.append(tag("polyline", points=drawn, fill="none", stroke_opacity=0.55, stroke_linejoin="round", **style))
    radius = 0.007 * max(wide, high, 1)
    for lon, lat, colour, title in points:
        x, y = where(lon, lat)
        shapes.append(tag("circle", tag("title", title), cx=f"{x:.1f}", cy=f"{y:.1f}", r=f"{radius:.1f}", fill=colour))
    box = f"{-margin:.1f} {-margin:.1f} {wide + 2 * margin:.1f} {high + 2 * margin:.1f}"
    return tag("div", tag("svg", shapes, viewBox=box, role="img", aria_label=label), class_="map")


def stamp(at_s: float, *, seconds: bool = False, day: bool = True) -> str:
    """A time for people, in UTC."""
    time = datetime.fromtimestamp(at_s, UTC)
    return f"{time.day} {time:%b} " * day + time.strftime("%H:%M:%S" if seconds else "%H:%M")


def amount(value: float, show: str = "count") -> str:
    """A number for people: a count, bytes, or seconds."""
    if show == "seconds":
        if value < 120:
            return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"
        return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
    step = 1024.0 if show == "bytes" else 1000.0
    units = ("B", "KiB", "MiB", "GiB", "TiB") if show == "bytes" else ("", " k", " M", " G", " T")
    if show == "count" and value < 10_000:
        return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
    power = 0
    while value >= step and power < len(units) - 1:
        value, power = value / step, power + 1
    number = f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"
    return f"{number} {units[power].strip()}".strip()


def _plot(
    shapes: list[Html], top: float, times: Sequence[float], unit: str, show: str, names: Sequence[str] = ()
) -> Html:
    middle = "" if show == "count" and top % 2 else amount(top / 2, show)  # nobody counts half a parcel
    ys = [tag("span", text) for text in (amount(top, show), middle, amount(0, show))]
    label = f"{unit} from {stamp(times[0])} to {stamp(times[-1])} UTC" if times else unit
    box = f"0 0 {_WIDE} {_HIGH}"
    drawn = tag("svg", shapes, viewBox=box, preserveAspectRatio="none", role="img", aria_label=label)
    key = [tag("span", tag("i", class_=f"c{number}"), name) for number, name in enumerate(names[: len(COLOURS)], 1)]
    plot = tag("div", tag("div", ys, class_="ys"), drawn, tag("div", _xs(times), class_="xs"), class_="plot")
    return tag("figure", plot, tag("div", key, class_="key") if len(names) > 1 else None)


def _xs(times: Sequence[float]) -> list[Html]:
    if not times:
        return []
    span = times[-1] - times[0]
    shown = [times[0], times[len(times) // 2], times[-1]] if len(times) > 2 else list(times)
    tenths = [f".{int(at * 10) % 10}" if span < 10 else "" for at in shown]
    texts = [stamp(at, seconds=span < 600, day=span >= 86_400 or at == times[0]) for at in shown]
    return [tag("span", text, tenth) for text, tenth in zip(texts, tenths, strict=True)]


def _grid() -> Html:
    line = {"stroke": "var(--rule)", "stroke_width": 1, "vector_effect": "non-scaling-stroke"}
    heights = (0.5, _HIGH / 2, _HIGH - 0.5)
    return tag("g", [tag("line", x1=0, x2=_WIDE, y1=y, y2=y, **line) for y in heights])


def _nice(top: float, show: str) -> float:
    """The next round number that is not below; for bytes one that is round in its unit."""
    if top <= 0:
        return 1.0
    unit = 1024.0 ** math.floor(math.log(top, 1024)) if show == "bytes" and top >= 1 else 1.0
    power = 10.0 ** math.floor(math.log10(top / unit))
    steps = [step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10)]
    return unit * next(step for step in steps if step >= top / unit * 0.999)


def many(number: int, noun: str, plural: str = "") -> str:
    """A number of things, for people."""
    return f"{amount(number)} {noun if number == 1 else plural or f'{noun}s'}"
