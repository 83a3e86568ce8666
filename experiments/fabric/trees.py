"""One spanning tree for all, or shortest paths for each publisher: stretch, link load, rules (thesis 6.3.4).

Claim (6.3.4): "The spanning trees allow low latency paths between the publishers and subscribers"; one tree of least
total latency, by Kruskal. The thesis measures neither latency nor load.

Each run draws a fabric (a random tree and some more links, latencies of 10 to 100 µs), publishers with one flow each,
and subscribers that match some of them, and lays the flows along both kinds of trees. Reported: the *stretch* of paths
(latency ÷ the least possible) on average and at worst, the flows on the busiest link ÷ flows, the share of links
that carry anything, and the rules in all tables.

Expected band: shortest paths have a stretch of 1 and the spanning tree more, the more so the more links there are; the
spanning tree uses fewer links, and its busiest link carries at least as many flows. In a fabric without a spare link
both are the same. Rules differ little: paths of least latency are not always those of fewest hops.

Seed 4. `python -m experiments.fabric.trees [--seed N] [--small]` writes build/experiments/fabric/trees.csv and .png.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from statistics import mean

from experiments import results
from experiments.results import Plot
from tallystick.carriers.fabric.flows import FlowBook
from tallystick.carriers.fabric.labels import RouteLabels
from tallystick.carriers.fabric.requests import FlowKind, FlowRequest
from tallystick.carriers.fabric.trees import FabricLink, PortPlace, RouteTree, TreeKind, Wiring


@dataclass(frozen=True)
class Parameters:
    switches: int = 24
    spare: tuple[int, ...] = (0, 4, 8, 16, 32)  # links beyond a tree's
    flows: int = 60
    subscribers: int = 120
    matches: int = 6  # flows of a subscriber
    runs: int = 5


SMALL = Parameters(switches=10, spare=(0, 6), flows=12, subscribers=20, matches=3, runs=2)


@dataclass(frozen=True)
class Row:
    tree: str
    spare: int
    run: int
    stretch: float
    stretch_worst: float
    busiest: float  # flows on the busiest link ÷ flows
    links_used: float  # share of all links
    rules: int


def run(seed: int, small: bool = False) -> Iterator[Row]:
    parameters = SMALL if small else Parameters()
    for spare in parameters.spare:
        for number in range(parameters.runs):
            random = Random(f"{seed}/{spare}/{number}")  # noqa: S311 (fabrics, not keys)
            wiring = draw_fabric(random, parameters.switches, spare)
            requests = _requests(random, sorted(wiring.switches), parameters)
            for kind in TreeKind:
                yield _measured(wiring, kind, requests, spare, number)


def draw_fabric(random: Random, switches: int, spare: int) -> Wiring:
    names = [f"s{number}" for number in range(switches)]
    pairs = [(names[n], names[random.randrange(n)]) for n in range(1, switches)]
    pairs += [(random.choice(names), random.choice(names)) for _ in range(spare)]
    free, links = Counter[str](), []
    for one, other in pairs:
        if one != other:
            free[one] += 1
            free[other] += 1
            ends = PortPlace(one, free[one]), PortPlace(other, free[other])
            links.append(FabricLink.of(*ends, random.randrange(10, 100)))
    return Wiring.of(names, links)


def _requests(random: Random, switches: Sequence[str], parameters: Parameters) -> list[FlowRequest]:
    flows = [number.to_bytes(16) for number in range(parameters.flows)]
    found = [FlowRequest(FlowKind.ADVERTISE, one, random.choice(switches), 100, 1, 1) for one in flows]
    for number in range(parameters.subscribers):
        name, switch, port = (1000 + number).to_bytes(16), random.choice(switches), 101 + number % 300
        matches = frozenset(random.sample(flows, parameters.matches))
        found.append(FlowRequest(FlowKind.SUBSCRIBE, name, switch, port, 1, 0, matches))
    return found


def _measured(wiring: Wiring, kind: TreeKind, requests: Sequence[FlowRequest], spare: int, number: int) -> Row:
    trees = wiring.trees(kind)
    book = FlowBook(RouteLabels(bytes(32)), trees, 1)
    for request in requests:
        book.apply("everybody", request)
    latency = {end: link.latency_us for link in wiring.links for end in (link.a, link.b)}
    least = wiring.trees(TreeKind.SHORTEST)
    load: Counter[PortPlace] = Counter()
    stretches = []
    for flow in book.flows.values():
        load.update(PortPlace(one, flow.tree.steps[one].up) for one in flow.branches if one != flow.tree.root)
        for switch, branch in flow.branches.items():
            if branch.hosts and switch != flow.tree.root:
                direct = _latency(least(flow.tree.root), switch, latency)
                stretches.append(_latency(flow.tree, switch, latency) / direct)
    by_link = Counter[frozenset[PortPlace]]()
    for place, flows in load.items():
        by_link[frozenset((place, wiring.far_ends[place]))] += flows
    busiest = max(by_link.values(), default=0) / len(book.flows)
    rules = sum(map(len, book.tables.values()))
    used = len(by_link) / len(wiring.links)
    return Row(kind.value, spare, number, round(mean(stretches), 4), round(max(stretches), 3), busiest, used, rules)


def _latency(tree: RouteTree, switch: str, latency: dict[PortPlace, int]) -> int:
    return sum(latency[PortPlace(one, tree.steps[one].up)] for one in tree.path(switch)[1:])


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    missed = []
    pairs: dict[tuple[int, int], dict[str, Row]] = {(row.spare, row.run): {} for row in rows}
    for row in rows:
        pairs[row.spare, row.run][row.tree] = row
    for (spare, number), found in pairs.items():
        spanning, shortest = found[TreeKind.SPANNING], found[TreeKind.SHORTEST]
        if shortest.stretch != 1 or spanning.stretch < 1:
            missed.append(f"{spare} spare links, run {number}: stretch {shortest.stretch} and {spanning.stretch}")
        if spare == 0 and (spanning.rules, spanning.stretch) != (shortest.rules, 1):
            missed.append(f"run {number}: the trees differ where there is only one")
        if spanning.links_used > shortest.links_used + 1e-9:
            missed.append(f"{spare} spare links, run {number}: the spanning tree uses more links")
    most = max(row.spare for row in rows)
    wide = [row for row in rows if row.spare == most]
    if mean(r.busiest for r in wide if r.tree == "spanning") < mean(r.busiest for r in wide if r.tree == "shortest"):
        missed.append("the spanning tree's busiest link carries less")
    return missed


def plot(rows: Sequence[Row]) -> Plot:
    load = Plot("Flows on the busiest link", "links beyond a tree's", "share of flows", _lines(rows, "busiest"))
    rules = Plot("Rules in all tables", "links beyond a tree's", "rules", _lines(rows, "rules"), beside=load)
    return Plot("Stretch of paths", "links beyond a tree's", "latency ÷ least", _lines(rows, "stretch"), beside=rules)


def _lines(rows: Sequence[Row], measure: str) -> dict[str, list[tuple[float, float]]]:
    return results.lines(rows, "{tree}", "spare", measure)


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("fabric", "trees", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
