"""False positives by the length of routing labels, between flooding and exact matching (thesis 5.1.2 to 5.1.4, 8.1).

Claim (5.1.2): "the filtering will be more fine-grained on each dimension when the binary string gets longer"; (5.1.4)
with flooding "subscribers receive events that they are not interested in … increase the false positive (FP) rate
enormously"; with more attributes the joint space grows, and per attribute (Tariq) is the alternative.

Each run draws interests (a box over some of the attributes) and events (uniform, or gathered around a few places). A
subscriber has one interest or several, which share its strings, and an event is delivered to it if labels say so.
Reported is the share of deliveries that the subscriber does not want: for flooding, for joint strings and for strings
per attribute, by length, attributes, and interests of a subscriber. Exact matching has none.

Expected band: no wanted event is ever withheld; labels are never worse than flooding; for joint strings and one
interest the rate at the greatest length is lower than at the smallest, for every number of attributes. Per attribute a
box of intervals is exact up to the cells' width, so one interest needs shorter strings than joint ones; several are
told apart better by joint strings, as far as their number reaches.

Seed 4. `python -m experiments.thesis.false_positives [--seed N] [--small]` writes build/experiments/thesis/
false_positives.csv and .png.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from experiments import results
from experiments.results import Plot
from tallystick.policy.attribute import integer
from tallystick.policy.evaluate import holds
from tallystick.policy.formula import Formula, Within, all_of, any_of
from tallystick.policy.space import AttributeSet, AttributeSpace
from tallystick.policy.subspaces import Dimension, GridSettings, SubspaceCode, begins_in, codes_for_each

BITS = 8


@dataclass(frozen=True)
class Parameters:
    attributes: tuple[int, ...] = (1, 2, 3, 5)
    lengths: tuple[int, ...] = (1, 2, 4, 6, 8, 12, 16, 20)
    interests: int = 100
    together: tuple[int, ...] = (1, 4, 16)  # interests of one subscriber
    events: int = 400
    cells_max: int = 48


SMALL = Parameters(attributes=(1, 2), lengths=(1, 6), interests=12, together=(1, 4), events=60)


class Scene(NamedTuple):
    events: str  # uniform, gathered
    attributes: int
    together: int


@dataclass(frozen=True)
class Row:
    labels: str  # flooding, joint, each
    events: str  # uniform, gathered
    attributes: int
    together: int
    length: int
    deliveries: int
    unwanted: int
    withheld: int  # wanted and not delivered
    rate: float
    strings: float  # of a subscriber, on average


def run(seed: int, small: bool = False) -> Iterator[Row]:
    parameters = SMALL if small else Parameters()
    for count in parameters.attributes:
        random = Random(f"{seed}/{count}")  # noqa: S311 (events, not keys)
        space = AttributeSpace.of("", *(integer(f"a{number}", BITS) for number in range(count)))
        interests = [_interest(random, space) for _ in range(parameters.interests)]
        for kind in ("uniform", "gathered"):
            events = _events(random, space, kind, parameters.events)
            for together in parameters.together:
                subscribers = list(_subscribers(interests, together, space))
                yield from _rates(space, subscribers, events, Scene(kind, count, together), parameters)


def _subscribers(interests: Sequence[Formula], together: int, space: AttributeSpace) -> Iterator[Formula]:
    """As many interests for each, any of which it wants."""
    for first in range(0, len(interests) - together + 1, together):
        yield Formula.of(any_of([one.root for one in interests[first : first + together]]), space)


def _rates(
    space: AttributeSpace,
    subscribers: list[Formula],
    events: list[AttributeSet],
    scene: Scene,
    parameters: Parameters,
) -> Iterator[Row]:
    wanted = [[holds(interest, event) for event in events] for interest in subscribers]
    everything = [[True] * len(events)] * len(subscribers)
    yield _row("flooding", scene, 0, everything, wanted, 0.0)
    for length in parameters.lengths:
        limits = GridSettings(length, parameters.cells_max, 0.0)
        for deliver in (_joint, _each):
            delivered, strings = deliver(space, subscribers, events, limits)
            yield _row(deliver.__name__[1:], scene, length, delivered, wanted, strings)


def _interest(random: Random, space: AttributeSpace) -> Formula:
    leaves = []
    for attribute in random.sample(space.attributes, random.randint(1, len(space.attributes))):
        low = random.randrange(200)
        leaves.append(Within(attribute.name, ((low, low + random.randrange(8, 56)),)))
    return Formula.of(all_of(leaves), space)


def _events(random: Random, space: AttributeSpace, kind: str, count: int) -> list[AttributeSet]:
    places = [[random.randrange(256) for _ in space.attributes] for _ in range(5)]

    def value(place: Sequence[int], number: int) -> int:
        if kind == "uniform":
            return random.randrange(256)
        return min(255, max(0, round(random.gauss(place[number], 12))))

    found = []
    for _ in range(count):
        place = random.choice(places)
        found.append(space.values({one.name: value(place, number) for number, one in enumerate(space.attributes)}))
    return found


Table = list[list[bool]]


def _joint(
    space: AttributeSpace, interests: list[Formula], events: list[AttributeSet], limits: GridSettings
) -> tuple[Table, float]:
    """(what is delivered to whom, strings of a subscriber)"""
    code = SubspaceCode([Dimension.of(one, BITS) for one in space.attributes], limits)
    covers = [code.cover(interest) for interest in interests]
    strings = [code.string(event) for event in events]
    delivered = [[begins_in(string, cover) for string in strings] for cover in covers]
    return delivered, sum(len(cover.strings) for cover in covers) / len(covers)


def _each(
    space: AttributeSpace, interests: list[Formula], events: list[AttributeSet], limits: GridSettings
) -> tuple[Table, float]:
    codes = codes_for_each([Dimension.of(one, BITS) for one in space.attributes], limits)
    delivered = [[True] * len(events) for _ in interests]
    total = 0
    for code in codes.values():
        strings = [code.string(event) for event in events]
        for row, interest in zip(delivered, interests, strict=True):
            cover = code.cover(interest)
            total += len(cover.strings)
            row[:] = [before and begins_in(string, cover) for before, string in zip(row, strings, strict=True)]
    return delivered, total / len(interests)


def _row(labels: str, scene: Scene, length: int, delivered: Table, wanted: Table, strings: float) -> Row:
    pairs = [pair for rows in zip(delivered, wanted, strict=True) for pair in zip(*rows, strict=True)]
    deliveries = sum(given for given, _ in pairs)
    unwanted = sum(given and not want for given, want in pairs)
    withheld = sum(want and not given for given, want in pairs)
    rate = unwanted / max(deliveries, 1)
    return Row(labels, *scene, length, deliveries, unwanted, withheld, rate, round(strings, 2))


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    missed = [f"{row.labels}: {row.withheld} wanted events withheld" for row in rows if row.withheld]
    for scene in sorted({(row.attributes, row.events, row.together) for row in rows}):
        here = [row for row in rows if (row.attributes, row.events, row.together) == scene]
        flooding = next(row.rate for row in here if row.labels == "flooding")
        missed += [f"{row} is worse than flooding" for row in here if row.rate > flooding + 1e-9]
        joint = sorted((row for row in here if row.labels == "joint"), key=lambda row: row.length)
        if joint[0].together == 1 and joint[-1].rate >= joint[0].rate:
            missed.append(f"{scene}: longer strings do not help: {joint[0].rate}, {joint[-1].rate}")
    return missed


def plot(rows: Sequence[Row]) -> Plot:
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.events == "uniform" and row.together == 1:
            label = f"{row.labels}, {row.attributes} attributes"
            lengths = [row.length] if row.length else sorted({one.length for one in rows if one.length})
            lines.setdefault(label, []).extend((length, row.rate) for length in lengths)
    return Plot("False positives by label length, uniform events", "bits", "unwanted share of deliveries", lines)


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("thesis", "false_positives", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
