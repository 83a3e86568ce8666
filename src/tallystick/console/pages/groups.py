"""Who publishes and who reads, of some topics: rates, silence, anchors, and how far groups are behind. Flow draws it; a
topic's page has the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from tallystick.client.group import group_id, known_names
from tallystick.console.layout import lines, part
from tallystick.console.marks import bad, short, soft, warning, when
from tallystick.console.recent import GroupLag, Recent
from tallystick.console.visit import Visit
from tallystick.ledger.contracts.anchors import ANCHORS, AnchorRow
from tallystick.ledger.contracts.topics import TopicRow
from tallystick.page.html import Html, join, tag
from tallystick.page.svg import amount
from tallystick.trust.permit import Operation

SILENT_MS = 120_000
_ROWS = 20  # of a table


def group_names(visit: Visit) -> dict[bytes, str]:
    """The groups whose names the viewer used: the ledger has hashes of them."""
    identity = visit.viewer.identity
    return {group_id(identity.tenant, name): name for name in known_names(identity.home)}


def anchors(at_hand: Recent, token: bytes, partitions: Iterable[int]) -> list[AnchorRow]:
    """Of those of a topic's partitions that have one."""
    found = [at_hand.row(ANCHORS, token, number) for number in partitions]
    return [anchor for anchor in found if anchor is not None]


class TopicTraffic:
    """What the last minutes say of these topics."""

    def __init__(self, visit: Visit, topics: dict[bytes, TopicRow]) -> None:
        self.visit, self.topics = visit, topics
        self.recent = at_hand = visit.recent
        self.published, self.refused = at_hand.published(topics), at_hand.refused(topics)
        self.lags, self._lags_count = at_hand.lags(topics, _ROWS)
        self.groups = group_names(visit)
        self.by_place, self.by_publisher = Counter[tuple[bytes, int]](), Counter[tuple[bytes, bytes]]()
        for (token, publisher, partition), count in self.published.items():
            self.by_place[token, partition] += count
            self.by_publisher[token, publisher] += count
        self.by_publisher.update(dict.fromkeys(self.refused, 0))  # those who were only refused, too
        live = at_hand.live_permits(topics)
        self.live = dict.fromkeys((row.token, row.principal) for _, row in live if row.operation == Operation.ADVERTISE)
        last_ms, late_ms = at_hand.last_ms, at_hand.now_ms - SILENT_MS
        self.silent = dict.fromkeys(place for place in self.live if last_ms.get(place, at_hand.since_ms) < late_ms)

    def rate(self, count: int) -> str:
        """So many a minute."""
        return amount(round(count / self.recent.minutes, 1))

    def places(self) -> Iterator[tuple[bytes, int]]:
        """All partitions, the busiest first."""
        busy = [place for place, _ in self.by_place.most_common()]
        rest = ((token, number) for token, row in self.topics.items() for number in range(row.partitions))
        return chain(busy, (place for place in rest if place not in self.by_place))

    def tables(self) -> Html:
        publishing = [place for place, _ in self.by_publisher.most_common(_ROWS) if place not in self.silent]
        ranked = [*islice(self.silent, _ROWS - min(len(publishing), _ROWS // 2)), *publishing][:_ROWS]
        everybody = len(self.by_publisher.keys() | self.silent)
        columns = ["publisher", "topic", "parcels a minute", "refused a minute", "last published"]
        none = "Nobody has leave to publish, and nobody did in these minutes."
        publishers = lines(columns, [self._publisher(*one) for one in ranked], none, numbers=(2, 3))
        columns = ["topic", "partition", "parcels a minute", "parcels anchored", "newest anchor"]
        rows = [self._place(*one) for one in islice(self.places(), _ROWS)]
        partitions = lines(columns, rows, "No partitions.", numbers=(1, 2, 3))
        columns = ["group", "topic", "partition", "offset", "parcels behind", "its oldest unread waits", "trend"]
        none = "No group reads here: the first subscriber that names one makes it."
        groups = lines(columns, [self._lag(lag) for lag in self.lags], none, numbers=(2, 3, 4))
        return join(
            part("Publishers", _and_more(everybody), publishers),
            part("Partitions and anchors", _and_more(sum(row.partitions for row in self.topics.values())), partitions),
            part("Groups", _and_more(self._lags_count), groups),
        )

    def _publisher(self, token: bytes, publisher: bytes) -> list[object]:
        place = token, publisher
        last_ms = self.recent.last_ms.get(place)
        last = soft("not since ", when(self.recent.since_ms)) if last_ms is None else when(last_ms)
        if place in self.silent:
            last = tag("span", warning("silent"), " ", last)
        published, refused = self.rate(self.by_publisher[place]), self.rate(self.refused[place])
        marked = bad(refused) if self.refused[place] else refused
        return [self.visit.principal(publisher), self.visit.topic(token), published, marked, last]

    def _place(self, token: bytes, partition: int) -> list[object]:
        anchor, count = self.recent.row(ANCHORS, token, partition), self.by_place[token, partition]
        age = soft("none yet") if anchor is None else when(anchor.time_ms)
        size = amount(0 if anchor is None else anchor.size)
        return [self.visit.topic(token), partition, self.rate(count), size, age]

    def _lag(self, lag: GroupLag) -> list[object]:
        waits: object = soft("nothing waits")
        if lag.parcels and lag.oldest_ms is not None:
            waits = amount((self.recent.now_ms - lag.oldest_ms) / 1000, "seconds")
        trend = warning(lag.trend) if lag.trend == "growing" else lag.trend or soft("–")
        name, topic = self.groups.get(lag.group) or short(lag.group), self.visit.topic(lag.token)
        return [name, topic, lag.partition, lag.offset, amount(lag.parcels), waits, trend]


def _and_more(count: int) -> Html | None:
    return soft(f"The first {_ROWS} of {amount(count)}; choose one topic to see its own.") if count > _ROWS else None
