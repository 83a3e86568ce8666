"""*Flow*: publishers, lanes, partitions, anchors and groups as one picture, and how all parts are."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import NamedTuple

from tallystick.console.health import Health
from tallystick.console.layout import drawing, facts, heading, nothing, part
from tallystick.console.marks import bad, soft, told, when
from tallystick.console.page import Page
from tallystick.console.pages.groups import TopicTraffic, anchors
from tallystick.console.pages.topics import find_topic, visible_topics
from tallystick.console.visit import LINES, Visit
from tallystick.page.graph import Box, Column, Ribbon, boxes
from tallystick.page.html import Html, join, tag
from tallystick.page.svg import amount, many

_BOXES = 10  # of a column


def show_flow(visit: Visit) -> Html:
    at_hand = visit.recent
    every = visible_topics(visit)
    asked = visit.query.get("topic")
    topics = {token: every[token] for token in [find_topic(visit, asked)]} if asked else every
    parts = part("Nodes and authority", tag("div", [_part(one) for one in visit.viewer.health.ask()], class_="grid"))
    lead = f"Of the last {amount(at_hand.minutes * 60, 'seconds')} of block time, by operations, anchors and offsets."
    top = heading("Flow", lead), _filter(visit, list(every))
    if not topics:
        none = nothing("There is no topic yet that this identity owns or may describe; its owner grants the right.")
        return join(*top, none, parts)
    flow = _Flow(visit, topics)
    return join(*top, flow.tiles(), flow.picture(), flow.tables(), parts)


def _filter(visit: Visit, topics: list[bytes]) -> Html | None:
    if len(topics) > LINES:
        return visit.filters(visit.field("topic", "one topic only", placeholder="name or token"))
    options = {"": "all topics"} | {token.hex(): visit.viewer.topic_name(token) for token in topics}
    return visit.filters(visit.choice("topic", "topic", options)) if len(topics) > 1 else None


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
            (f"{amount(worst)}, {waited}", "most parcels that a group is behind in a partition, and the longest wait"),
        ]
        if trust.witnesses:
            names = f" ({', '.join(cosigners)})" if cosigners else ""
            numbers.append((f"{len(cosigners)} of {len(trust.witnesses)}", f"witnesses cosigned the head{names}"))
        tiles = [tag("div", tag("b", number), tag("span", what), class_="tile") for number, what in numbers]
        return tag("div", tiles, class_="tiles")

    # The picture.

    def picture(self) -> Html:
        lanes, people, units = self._counted()
        shown = [unit for unit, _ in units.most_common(_BOXES)]
        reads = dict.fromkeys((self._unit(lag.token, lag.partition), lag.group) for lag in self.lags)
        growing = {(self._unit(lag.token, lag.partition), lag.group) for lag in self.lags if lag.trend == "growing"}
        publishers = [Box(one, self._name(one), self._said_of(one, n)) for one, n in people.most_common(_BOXES)]
        ways = [Box(lane, f"to {self._called(lane[1])}", self._pace(n)) for lane, n in lanes.most_common(_BOXES)]
        partitions = [Box(one, self._called(one), self._partition(one, units[one])) for one in shown]
        sizes = [Box(one, *self._anchor(one)) for one in shown]
        readers = list(dict.fromkeys(Box(one, self._reader(one), self._behind(one)) for _, one in reads))
        rows = sum(row.partitions for row in self.topics.values()) if self._is_one else len(self.topics)
        columns = [
            Column("publishers", publishers, len({one for _, one in self.by_publisher.keys() | self.silent})),
            Column("lanes", ways, len(lanes)),
            Column("partitions", partitions, rows),
            Column("anchors", sizes, rows),
            Column("groups", readers[:_BOXES], len(self.recent.groups(self.topics))),
        ]
        ribbons = [Ribbon(0, lane[0], lane, n) for lane, n in lanes.items()]
        ribbons += [Ribbon(1, lane, lane[1], n) for lane, n in lanes.items()]
        ribbons += [Ribbon(2, one, one, units[one]) for one in shown]
        ribbons += [Ribbon(3, *read, units[read[0]], read in growing) for read in reads]
        label = ", ".join(f"{column.most} {column.title}" for column in columns)
        svg = boxes(columns, ribbons, f"{label}; the tables below say the same")
        return drawing(svg, "the flow as a picture")

    def _counted(self) -> tuple[Counter[tuple[bytes, _Unit]], Counter[bytes], Counter[_Unit]]:
        """How much passed through lanes (one's lanes to one place are drawn as one), from publishers, to units; with
        those that are drawn though nothing did."""
        lanes, people, units = Counter[tuple[bytes, _Unit]](), Counter[bytes](), Counter[_Unit]()
        for (token, publisher, partition), count in self.published.items():
            unit = self._unit(token, partition)
            lanes[publisher, unit] += count
            people[publisher] += count
            units[unit] += count
        for token, number in [*((lag.token, lag.partition) for lag in self.lags), *islice(self.places(), _BOXES)]:
            units[self._unit(token, number)] += 0
        for _, publisher in islice(self.silent, _BOXES):
            people[publisher] += 0
        return lanes, people, units

    def _reader(self, group: bytes) -> str:
        return self.groups.get(group) or f"{group.hex()[:12]}…"

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

    def _partition(self, unit: _Unit, count: int) -> str:
        return self._pace(count) if self._is_one else many(self.topics[unit.token].partitions, "partition")

    def _anchor(self, unit: _Unit) -> tuple[str, str]:
        partitions = [unit.partition] if self._is_one else range(self.topics[unit.token].partitions)
        rows = anchors(self.recent, unit.token, partitions)
        if not rows:
            return "nothing anchored", ""
        age_ms = self.recent.now_ms - max(row.time_ms for row in rows)
        return many(sum(row.size for row in rows), "parcel"), f"{amount(age_ms / 1000, 'seconds')} before the head"

    def _behind(self, group: bytes) -> str:
        parcels = sum(lag.parcels for lag in self.lags if lag.group == group)
        return f"{amount(parcels)} behind" if parcels else "up to date"


def _part(one: Health) -> Html:
    who = f"the {one.name}"
    state = told("ready", by=who)
    if one.trouble:
        state = join(bad("away or not ready"), " since ", when(one.since_ms), ": ", told(one.trouble, by=who))
    counted = [(name.replace("_", " "), value) for name, value in one.counts.items()]
    said = tag("details", tag("summary", "what it counts"), told(facts(counted), by=who)) if counted else None
    return tag("div", tag("h3", one.name, " ", soft(one.url)), tag("p", state), said, class_="card")


PAGES = (Page("", "Flow", show_flow, in_menu=True),)
