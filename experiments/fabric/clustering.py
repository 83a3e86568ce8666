"""Into which flows a topic's content is cut: rules against false deliveries (thesis 5.1.4, 8.1, 8.2).

Claim (8.1): "Subscribers can receive events that do not match their interests if the clusters are not sufficiently
fine-grained. A good clustering algorithm is hard to make"; (8.2) flow optimisation and false positives are future work.

A flow has one label, and an event travels under one flow. A clustering says which: *exact*, a flow for every set of
subscribers that some event satisfies, which nobody could know beforehand and is the mark to measure by; and the ways of
`policy/clustering.py` that a dispatcher has: *joint*, all strings of one length over all attributes (PLEROMA); *per
attribute*, the cells of the one attribute that serves best; *greedy*, halving again and again where most deliveries are
in doubt. A subscription gets every flow that its interest touches. Boxes as interests, events uniform or gathered
around a few places. A line of twelve switches, subscribers spread over them.

Reported by the number of flows: false deliveries as a share of all, and rules in all tables, which is what flows cost.
`best` chooses for a topic: the fewest false deliveries that a number of rules allows.

Expected band: exact delivers nothing falsely, at the greatest number of flows; nobody withholds anything; of the others
false deliveries fall as flows rise (by some per cent of noise); gathered events are told apart no worse by greedy
halving than by joint strings, at an equal number of flows. It is little better: whoever cuts sees interests, no events.

Seed 4. `python -m experiments.fabric.clustering [--seed N] [--small]` writes build/experiments/fabric/clustering.csv
and .png.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from experiments import results
from experiments.fabric.trees import draw_fabric
from experiments.results import Plot
from tallystick.carriers.fabric.flows import FlowBook
from tallystick.carriers.fabric.labels import RouteLabels
from tallystick.carriers.fabric.requests import FlowKind, FlowRequest
from tallystick.carriers.fabric.trees import TreeKind
from tallystick.policy.attribute import integer
from tallystick.policy.clustering import Clustering, Cutting, cut
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSpace
from tallystick.policy.subspaces import Dimension
from tallystick.policy.topic_code import TopicCode

SIDE = 256  # values of an attribute
Box = tuple[tuple[int, int], ...]  # by attribute: least and greatest value
Event = tuple[int, ...]


@dataclass(frozen=True)
class Parameters:
    attributes: int = 3
    subscribers: int = 40
    events: int = 1_600
    flows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    switches: int = 12


SMALL = Parameters(attributes=2, subscribers=10, events=240, flows=(1, 4, 16), switches=5)


@dataclass(frozen=True)
class Row:
    events: str  # uniform, gathered
    clustering: str
    flows: int  # that were asked for
    used: int  # that an event travels under
    rules: int
    deliveries: int
    false: int
    withheld: int
    rate: float


def run(seed: int, small: bool = False) -> Iterator[Row]:
    parameters = SMALL if small else Parameters()
    for kind in ("uniform", "gathered"):
        random = Random(f"{seed}/{kind}")  # noqa: S311 (events, not keys)
        events = _events(random, kind, parameters)
        interests = [_interest(random, events, parameters.attributes) for _ in range(parameters.subscribers)]
        yield _row(kind, "exact", len(events), _exact(events, interests), interests, parameters)
        for flows in parameters.flows:
            for name, each, how in WAYS:
                parts = _parts(events, interests, each, Cutting(how, flows))
                yield _row(kind, name, flows, parts, interests, parameters)


# --- scenes ---


def _events(random: Random, kind: str, parameters: Parameters) -> list[Event]:
    places = [[random.randrange(SIDE) for _ in range(parameters.attributes)] for _ in range(5)]

    def value(place: Sequence[int], at: int) -> int:
        if kind == "uniform":
            return random.randrange(SIDE)
        return min(SIDE - 1, max(0, round(random.gauss(place[at], 12))))

    chosen = [random.choice(places) for _ in range(parameters.events)]
    return [tuple(value(place, at) for at in range(parameters.attributes)) for place in chosen]


def _interest(random: Random, events: Sequence[Event], attributes: int) -> Box:
    """A box around something that happens; an attribute in three is not asked about."""
    middle = random.choice(events)
    sides = []
    for at in range(attributes):
        half = random.randrange(8, 48) if random.random() > 1 / 3 else SIDE
        sides.append((max(0, middle[at] - half), min(SIDE - 1, middle[at] + half)))
    return tuple(sides)


def _wanting(interests: Sequence[Box], event: Event) -> frozenset[int]:
    return frozenset(
        number
        for number, box in enumerate(interests)
        if all(low <= value <= high for (low, high), value in zip(box, event, strict=True))
    )


# --- clusterings ---

WAYS = (
    ("joint", False, Clustering.EVEN),
    ("per attribute", True, Clustering.EVEN),
    ("greedy", False, Clustering.GREEDY),
)
Travelled = list[tuple[Hashable, frozenset[int], frozenset[int]]]  # of each event: flow, who gets it, who wants it


def _exact(events: Sequence[Event], interests: Sequence[Box]) -> Travelled:
    wanted = [_wanting(interests, event) for event in events]
    return [(one, one, one) for one in wanted]


def _parts(events: Sequence[Event], interests: Sequence[Box], each: bool, choice: Cutting) -> Travelled:
    names = [f"a{at}" for at in range(len(events[0]))]
    space = AttributeSpace.of("", *(integer(name, 8, least=0) for name in names))
    code = TopicCode(tuple(Dimension.of(one, 8) for one in space.attributes), each)
    formulas = [parse(_formula(names, box), space, "interest") for box in interests]
    parts = cut(code, formulas, choice)
    grid = code.codes[parts[0][0]]
    groups = {
        part: frozenset(number for number, one in enumerate(formulas) if grid.possible(one, part) is not False)
        for _, part in parts
    }
    strings = [grid.string(space.values(dict(zip(names, event, strict=True)))) for event in events]
    used = [next(string[:length] for length in range(25) if string[:length] in groups) for string in strings]
    return [(part, groups[part], _wanting(interests, event)) for part, event in zip(used, events, strict=True)]


def _formula(names: Sequence[str], box: Box) -> str:
    sides = zip(names, box, strict=True)
    return " and ".join(f"{name} >= {low} and {name} <= {high}" for name, (low, high) in sides)


# --- what comes of it ---


def _row(
    kind: str, name: str, flows: int, travelled: Travelled, interests: Sequence[Box], parameters: Parameters
) -> Row:
    deliveries = sum(len(given) for _, given, _ in travelled)
    false = sum(len(given - wanted) for _, given, wanted in travelled)
    withheld = sum(len(wanted - given) for _, given, wanted in travelled)
    groups = list({flow: given for flow, given, _ in travelled}.values())
    rules = _rules(groups, len(interests), parameters.switches)
    return Row(kind, name, flows, len(groups), rules, deliveries, false, withheld, false / max(deliveries, 1))


def _rules(groups: Sequence[frozenset[int]], subscribers: int, switches: int) -> int:
    """In all tables, for one publisher with these flows."""
    wiring = draw_fabric(Random(4), switches, 0)  # noqa: S311
    book = FlowBook(RouteLabels(bytes(32)), wiring.trees(TreeKind.SPANNING), 1)
    flows = [(10_000 + number).to_bytes(16) for number in range(len(groups))]
    for one in flows:
        book.apply("everybody", FlowRequest(FlowKind.ADVERTISE, one, "s0", 100, 1, 1))
    for number in range(subscribers):
        matches = frozenset(one for one, members in zip(flows, groups, strict=True) if number in members)
        place = f"s{number % switches}", 101 + number // switches
        book.apply("everybody", FlowRequest(FlowKind.SUBSCRIBE, number.to_bytes(16), *place, 1, 0, matches))
    return sum(map(len, book.tables.values()))


def best(rows: Sequence[Row], rules_max: int) -> Row:
    """For one topic: the fewest false deliveries that so many rules allow."""
    return min((row for row in rows if row.rules <= rules_max), key=lambda row: (row.false, row.rules))


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    missed = [f"{row.clustering}: {row.withheld} events withheld" for row in rows if row.withheld]
    missed += [f"exact: {row.false} false deliveries" for row in rows if row.clustering == "exact" and row.false]
    for kind in ("uniform", "gathered"):
        here = [row for row in rows if row.events == kind]
        exact = next(row for row in here if row.clustering == "exact")
        if exact.rules < max(row.rules for row in here):
            missed.append(f"{kind}: exact has {exact.rules} rules, and others more")
        for name in ("joint", "per attribute", "greedy"):
            line = sorted((row for row in here if row.clustering == name), key=lambda row: row.flows)
            if line[-1].rate >= line[0].rate:
                missed.append(f"{kind}, {name}: more flows do not help: {line[0].rate:.3f}, {line[-1].rate:.3f}")
    gathered = {(row.clustering, row.flows): row.rate for row in rows if row.events == "gathered"}
    most = max(flows for name, flows in gathered if name == "joint")
    if gathered["greedy", most] > gathered["joint", most]:
        missed.append(f"gathered: greedy {gathered['greedy', most]:.3f}, joint {gathered['joint', most]:.3f}")
    return missed


def plot(rows: Sequence[Row]) -> Plot:
    drawn = [
        Plot(
            f"False deliveries against rules, {kind} events",
            "rules in all tables",
            "share of deliveries",
            results.lines([row for row in rows if row.events == kind], "{clustering}", "rules", "rate"),
        )
        for kind in ("gathered", "uniform")
    ]
    return Plot(drawn[0].title, drawn[0].x, drawn[0].y, drawn[0].lines, beside=drawn[1])


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("fabric", "clustering", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
