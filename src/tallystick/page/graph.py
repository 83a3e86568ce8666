"""Boxes in columns with ways between them, and trees, as inline SVG of their own size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tallystick.page.html import Html, tag

_WIDE, _HIGH, _GAP, _STEP, _TOP = 184, 44, 44, 56, 30  # of boxes, in pixels
_CHARACTERS = 22
_ROW, _INDENT = 30, 26  # of a tree: from one node to the next, and to those behind it


class Box(NamedTuple):
    key: object
    name: str
    below: str


class Column(NamedTuple):
    title: str
    boxes: Sequence[Box]
    most: int  # how many boxes there would be


class Ribbon(NamedTuple):
    """From a box of a column to one of the next."""

    column: int
    begin: object
    end: object
    weight: int
    is_alarm: bool = False


def boxes(columns: Sequence[Column], ways: Iterable[Ribbon], label: str) -> Html:
    """The columns from left to right; ways whose boxes are not drawn are left out."""
    rows = max(len(column.boxes) for column in columns)
    wide, high = len(columns) * (_WIDE + _GAP) - _GAP, _TOP + max(rows, 1) * _STEP
    at: list[dict[object, tuple[float, float]]] = []
    shapes: list[Html] = []
    for number, (title, found, most) in enumerate(columns):
        x, top = number * (_WIDE + _GAP), _TOP + (rows - len(found)) * _STEP / 2
        more = f" ({len(found)} of {most})" if most > len(found) else ""
        shapes.append(tag("text", title + more, x=x, y=14, class_="soft"))
        at.append({box.key: (x, top + row * _STEP) for row, box in enumerate(found)})
        shapes += [_box(box, *at[-1][box.key]) for box in found]
    drawn = [way for way in ways if way.begin in at[way.column] and way.end in at[way.column + 1]]
    peak = max((way.weight for way in drawn), default=0) or 1
    lines = [_way(at[way.column][way.begin], at[way.column + 1][way.end], way, peak) for way in drawn]
    return tag("svg", lines, shapes, viewBox=f"0 0 {wide} {high}", width=wide, role="img", aria_label=label)


def _box(box: Box, x: float, y: float) -> Html:
    shape = tag("rect", x=x, y=y, width=_WIDE, height=_HIGH, rx=7, fill="var(--ground)", stroke="var(--rule)")
    name = box.name if len(box.name) <= _CHARACTERS else f"{box.name[: _CHARACTERS - 1]}…"
    words = tag("text", name, x=x + 10, y=y + 18), tag("text", box.below, x=x + 10, y=y + 35, class_="soft")
    return tag("g", tag("title", f"{box.name}: {box.below}"), shape, words)


def _way(begin: tuple[float, float], end: tuple[float, float], way: Ribbon, peak: int) -> Html:
    x1, y1, x2, y2 = begin[0] + _WIDE, begin[1] + _HIGH / 2, end[0], end[1] + _HIGH / 2
    middle = (x1 + x2) / 2
    colour = "var(--alarm)" if way.is_alarm else "var(--one)" if way.weight else "var(--rule)"
    path = f"M{x1:.0f},{y1:.0f} C{middle:.0f},{y1:.0f} {middle:.0f},{y2:.0f} {x2:.0f},{y2:.0f}"
    width = f"{1.5 + 4 * way.weight / peak:.1f}"
    return tag("path", d=path, fill="none", stroke=colour, stroke_width=width, stroke_opacity="0.7")


class TreeLine(NamedTuple):
    depth: int
    name: str
    title: str
    colour: str


def tree(nodes: Sequence[TreeLine], label: str) -> Html:
    """One line a node, each behind its parent: the last one before it that is less deep."""
    shapes: list[Html] = []
    places: dict[int, tuple[int, int]] = {}  # of the last node of each depth
    for number, (depth, name, title, colour) in enumerate(nodes):
        places[depth] = x, y = 12 + depth * _INDENT, 16 + number * _ROW
        if depth:
            px, py = places[depth - 1]
            shapes.append(tag("path", d=f"M{px},{py + 6} V{y} H{x - 6}", fill="none", stroke="var(--soft)"))
        shapes.append(tag("circle", tag("title", title), cx=x, cy=y, r=6, fill=colour))
        shapes.append(tag("text", name, x=x + 14, y=y + 5))
    wide, high = 400 + max((x for x, _ in places.values()), default=0), 16 + len(nodes) * _ROW
    return tag("svg", shapes, width=wide, height=high, viewBox=f"0 0 {wide} {high}", role="img", aria_label=label)
