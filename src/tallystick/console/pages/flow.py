"""*Flow*: publishers, lanes, partitions, anchors and groups as one picture, and how all parts are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from tallystick.console.health import Health
from tallystick.console.layout import (
    LINES,
    bad,
    choice,
    facts,
    field,
    filters,
    heading,
    nothing,
    part,
    soft,
    told,
    when,
)
from tallystick.console.page import Page
from tallystick.console.pages.groups import TopicTraffic
from tallystick.console.pages.topics import find_topic, visible_topics
from tallystick.console.recent import GroupLag, recent
from tallystick.console.viewer import Visit
from tallystick.ledger.contracts.anchors import ANCHORS, AnchorRow
from tallystick.ledger.contracts.topics import TopicRow
from tallystick.page.html import Html, join, tag
from tallystick.page.svg import amount, many

_BOXES = 10  # of a column
_WIDE, _HIGH, _GAP, _STEP, _TOP = 184, 44, 44, 56, 30  # of boxes, in pixels
_CHARACTERS = 22
_K = TypeVar("_K")


def show_flow(visit: Visit) -> Html:
    at_hand = recent(visit.mirror)
    every = visible_topics(visit)
    asked = visit.query.get("topic")
    topics = {token: every[token] for token in [find_topic(visit, asked)]} if asked else every
    parts = part("Nodes and authority", tag("div", [_part(one) for one in visit.viewer.health.ask()], class_="grid"))
    lead = f"Of the last {amount(at_hand.minutes * 60, 'seconds')} of block time, by operations, anchors and offsets."
    top = heading("Flow", lead), _filter(visit, every)
    if not topics:
        none = nothing("There is no topic yet that this identity owns or may describe; its owner grants the right.")
        return join(*top, none, parts)
    flow = _Flow(visit, topics)
    return join(*top, flow.tiles(), flow.picture(), flow.tables(), parts)


def _filter(visit: Visit, topics: dict[bytes, TopicRow]) -> Html | None:
    if len(topics) > LINES:
        return filters(visit, field(visit, "topic", "one topic only", placeholder="name or token"))
    options = [("", "all topics"), *((token.hex(), visit.viewer.topic_name(token)) for token in topics)]
    return filters(visit, choice(visit, "topic", "topic", options)) if len(topics) > 1 else None


class _Unit(NamedTuple):
    """What has a row of its own in the picture: a topic of many, or a partition of one."""

    token: bytes
    partition: int = -1


class _Flow(TopicTraffic):
    @property
    def _is_one(self) -> bool:
        return len(self.topics) == 1

    def _pace(self, count: int) -> str:
        return f"{self.rate(count)} a minute"

    def _unit(self, token: bytes, partition: int) -> _Unit:
        return _Unit(token, partition) if self._is_one else _Unit(token)

    def tiles(self) -> Html:
        """The whole in a few numbers."""
        trust, cosigners = self.visit.viewer.session.memory.trust, self.visit.head.cosigners
        worst = max((lag.parcels for lag in self.lags), default=0)
        waits = [lag.oldest_ms for lag in self.lags if lag.parcels and lag.oldest_ms is not None]
        waited = amount((self.recent.now_ms - min(waits, default=self.recent.now_ms)) / 1000, "seconds")
        numbers = [
            (self.rate(self.published.total()), "parcels a minute"),
            (amount(self.refused.total()), "publishing refused in these minutes"),
            (amount(len(self.silent)), f"of {many(len(self.live), 'publisher')} with leave silent"),
            (
                f"{amount(worst)}, {waited}",
                "parcels that a group is behind at most in a partition, and how long the oldest waits",
            ),
        ]
        if trust.witnesses:
            names = f" ({', '.join(cosigners)})" if cosigners else ""
            numbers.append((f"{len(cosigners)} of {len(trust.witnesses)}", f"witnesses cosigned the head{names}"))
        tiles = [tag("div", tag("b", number), tag("span", what), class_="tile") for number, what in numbers]
        return tag("div", tiles, class_="tiles")

    # The picture.

    def picture(self) -> Html:
        lanes, people, units = Counter[tuple[bytes, _Unit]](), Counter[bytes](), Counter[_Unit]()
        for (token, publisher, partition), count in self.published.items():
            unit = self._unit(token, partition)
            lanes[publisher, unit] += count
            people[publisher] += count
            units[unit] += count
        for lag in self.lags:
            units[self._unit(lag.token, lag.partition)] += 0
        for token, number in islice(self.places(), _BOXES):
            units[self._unit(token, number)] += 0
        for _, publisher in islice(self.silent, _BOXES):
            people[publisher] += 0
        shown = [unit for unit, _ in units.most_common(_BOXES)]
        behind: dict[tuple[_Unit, bytes], list[GroupLag]] = {}
        for lag in self.lags:
            behind.setdefault((self._unit(lag.token, lag.partition), lag.group), []).append(lag)
        readers = list(dict.fromkeys(lag.group for lag in self.lags))
        called = {one: self.groups.get(one) or f"{one.hex()[:12]}…" for one in readers}
        columns = [
            _column("publishers", [_Box(one, self._name(one), self._said_of(one, n)) for one, n in _top(people)]),
            _column("lanes", [_Box(key, f"to {self._called(key[1])}", self._pace(n)) for key, n in _top(lanes)]),
            _column("partitions", [_Box(("p", one), *self._partition(one, units[one])) for one in shown]),
            _column("anchors", [_Box(("a", one), *self._anchor(one)) for one in shown]),
            _column("groups", [_Box(("g", one), called[one], self._behind(one)) for one in readers]),
        ]
        everybody = {publisher for _, publisher in self.by_publisher.keys() | self.silent}
        rows = sum(row.partitions for row in self.topics.values()) if self._is_one else len(self.topics)
        most = [len(everybody), len(lanes), rows, rows, len(self.recent.groups(self.topics))]
        ways = [_Way(0, key[0], key, n) for key, n in lanes.items()]
        ways += [_Way(1, key, ("p", key[1]), n) for key, n in lanes.items()]
        ways += [_Way(2, ("p", one), ("a", one), units[one]) for one in shown]
        ways += [
            _Way(3, ("a", unit), ("g", group), units[unit], any(lag.trend == "growing" for lag in lags))
            for (unit, group), lags in behind.items()
        ]
        return _draw(columns, most, ways)

    def _name(self, publisher: bytes) -> str:
        viewer = self.visit.viewer
        return viewer.principal_name(publisher) if viewer.knows(publisher) else f"{publisher.hex()[:12]}…"

    def _called(self, unit: _Unit) -> str:
        return f"partition {unit.partition}" if self._is_one else self.visit.viewer.topic_name(unit.token)

    def _said_of(self, publisher: bytes, count: int) -> str:
        refused = sum(n for (_, operator), n in self.refused.items() if operator == publisher)
        is_silent = not count and any((token, publisher) in self.silent for token in self.topics)
        said = "silent" if is_silent else self._pace(count)
        return f"{said}, {amount(refused)} refused" if refused else said

    def _partition(self, unit: _Unit, count: int) -> tuple[str, str]:
        number = self.topics[unit.token].partitions
        return self._called(unit), self._pace(count) if (len(self.topics) == 1) else f"{many(number, 'partition')}"

    def _anchor(self, unit: _Unit) -> tuple[str, str]:
        rows = [row for _, row in self._anchors(unit.token) if unit.partition in (-1, _)]
        if not rows:
            return "nothing anchored", ""
        age_ms = self.recent.now_ms - max(row.time_ms for row in rows)
        return many(sum(row.size for row in rows), "parcel"), f"{amount(age_ms / 1000, 'seconds')} before the head"

    def _anchors(self, token: bytes) -> list[tuple[int, AnchorRow]]:
        found = [(number, self.recent.row(ANCHORS, token, number)) for number in range(self.topics[token].partitions)]
        return [(number, row) for number, row in found if row is not None]

    def _behind(self, group: bytes) -> str:
        mine = [lag for lag in self.lags if lag.group == group]
        return (
            f"{amount(sum(lag.parcels for lag in mine))} behind" if any(lag.parcels for lag in mine) else "up to date"
        )


def _part(one: Health) -> Html:
    who = f"the {one.name}"
    if one.trouble:
        state: Html = join(bad("away or not ready"), " since ", when(one.since_ms), ": ", told(one.trouble, by=who))
    else:
        state = told("ready", by=who)
    counted = [(name.replace("_", " "), value) for name, value in one.counts.items()]
    said = tag("details", tag("summary", "what it counts"), told(facts(counted), by=who)) if counted else None
    return tag("div", tag("h3", one.name, " ", soft(one.url)), tag("p", state), said, class_="card")


# How it is drawn.


class _Box(NamedTuple):
    key: object
    name: str
    below: str


class _Way(NamedTuple):
    """From a box of a column to one of the next."""

    column: int
    begin: object
    end: object
    weight: int
    is_alarm: bool = False


def _top(counted: Counter[_K]) -> list[tuple[_K, int]]:
    return counted.most_common(_BOXES)


def _column(title: str, boxes: list[_Box]) -> tuple[str, list[_Box]]:
    return title, boxes[:_BOXES]


def _draw(columns: Sequence[tuple[str, list[_Box]]], most: list[int], ways: list[_Way]) -> Html:
    """The columns from left to right; `most` is how many boxes each would have."""
    rows = max(len(boxes) for _, boxes in columns)
    wide, high = len(columns) * (_WIDE + _GAP) - _GAP, _TOP + max(rows, 1) * _STEP
    at: list[dict[object, tuple[float, float]]] = []
    shapes: list[Html] = []
    for number, (title, boxes) in enumerate(columns):
        x, top = number * (_WIDE + _GAP), _TOP + (rows - len(boxes)) * _STEP / 2
        more = f" ({len(boxes)} of {most[number]})" if most[number] > len(boxes) else ""
        shapes.append(tag("text", title + more, x=x, y=14, class_="soft"))
        at.append({box.key: (x, top + row * _STEP) for row, box in enumerate(boxes)})
        shapes += [_box(box, *at[-1][box.key]) for box in boxes]
    peak = max((way.weight for way in ways), default=0) or 1
    drawn = [
        _way(at[way.column][way.begin], at[way.column + 1][way.end], way.weight / peak, is_alarm=way.is_alarm)
        for way in ways
        if way.begin in at[way.column] and way.end in at[way.column + 1]
    ]
    said = [f"{count} {title}" for (title, _), count in zip(columns, most, strict=True)]
    label = f"{', '.join(said)}; the tables below say the same"
    svg = tag("svg", drawn, shapes, viewBox=f"0 0 {wide} {high}", width=wide, role="img", aria_label=label)
    return tag("div", svg, class_="graph whole card", tabindex="0", role="group", aria_label="the flow as a picture")


def _box(box: _Box, x: float, y: float) -> Html:
    shape = tag("rect", x=x, y=y, width=_WIDE, height=_HIGH, rx=7, fill="var(--ground)", stroke="var(--rule)")
    name = box.name if len(box.name) <= _CHARACTERS else f"{box.name[: _CHARACTERS - 1]}…"
    words = tag("text", name, x=x + 10, y=y + 18), tag("text", box.below, x=x + 10, y=y + 35, class_="soft")
    return tag("g", tag("title", f"{box.name}: {box.below}"), shape, words)


def _way(begin: tuple[float, float], end: tuple[float, float], share: float, *, is_alarm: bool) -> Html:
    x1, y1, x2, y2 = begin[0] + _WIDE, begin[1] + _HIGH / 2, end[0], end[1] + _HIGH / 2
    middle = (x1 + x2) / 2
    colour = "var(--alarm)" if is_alarm else "var(--one)" if share else "var(--rule)"
    path = f"M{x1:.0f},{y1:.0f} C{middle:.0f},{y1:.0f} {middle:.0f},{y2:.0f} {x2:.0f},{y2:.0f}"
    return tag("path", d=path, fill="none", stroke=colour, stroke_width=f"{1.5 + 4 * share:.1f}", stroke_opacity="0.7")


PAGES = (Page("", "Flow", show_flow, in_menu=True),)
