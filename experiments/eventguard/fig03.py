"""EventGuard, Fig. 3: a flood does not travel beyond one honest node.

Claim (section 4.7): "no flooding attack could propagate beyond one non-malicious node … no invalid message (incorrect
signatures) and no duplicate message from node B1 would propagate beyond the non-malicious nodes G1, G2, G3 and G4 …
none of the nodes marked X would be hit".

The picture is not in our copy of the paper: B1, its neighbours G1–G4 and X nodes behind each are from the prose, how
the X are linked is ours (in a ring, so that a flood has more than one way). A second, larger topology is drawn by the
seed: connected, several malicious nodes, G every honest neighbour of one, X every other honest node.

Each run: one good message travels from an X to all nodes, so that the malicious have heard it; then each of them sends
`copies` messages to each of its neighbours. Counted is what G and X receive from that moment on.

    floods   forged     new identifiers, in an honest principal's name, signed by a key that nobody enrolled
             replayed   the good message again and again
             stale      the same, once every window has forgotten it (step 3 of 4.7, which the paper's text lacks)
             fresh      each one new, fresh and truly signed, on behalf of one enrolled principal
    guards   off        every copy is forwarded, up to `hops_max` hops
             route      the paper's guard: signature, freshness, duplicates
             share      and a bounded share of the window for each principal (a rate)
             blacklist  and the flooding principal on the blacklist

Expected band, for each of the five kinds of message, on both topologies:

    off                          at least nine in ten X are hit, whatever the flood
    route, share, blacklist      no X receives anything of a forged, replayed or stale flood
    fresh, route                 every X receives the whole flood: the routing guard does not stop what is signed, fresh
                                 and new, and the paper does not claim it
    fresh, share                 X are hit, but none accepts more than `share_max` messages in a window
    fresh, blacklist             no X receives anything

For kinds that the authority signs a fresh flood means that it issued every one of them: in EventGuard each costs a fee,
here a right on the ledger, before any rate.

Seed 3. `python -m experiments.eventguard.fig03 [--seed N] [--small]` writes build/experiments/eventguard/fig03.csv and
fig03.png; a run takes about a minute on one core, a small one seconds.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from random import Random

from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Misuse, Unavailable
from tallystick.guards.route import MessageKind, RoutingGuard, sign_message
from tallystick.guards.rules import GuardLimits
from tallystick.runtime.effects import Arrived, Effect, Event, Role, Send, WakeAt
from tallystick.runtime.network import Network
from tallystick.sim.forwarding import ForwardingNode, ForwardingStatistics, Passed, enrolled

OUT = Path(__file__).resolve().parents[2] / "build" / "experiments" / "eventguard"
UNBOUNDED = 1 << 62


class Flood(StrEnum):
    FORGED = "forged"
    REPLAYED = "replayed"
    STALE = "stale"
    FRESH = "fresh"


class Guards(StrEnum):
    OFF = "off"
    ROUTE = "route"
    SHARE = "share"
    BLACKLIST = "blacklist"


@dataclass(frozen=True)
class Parameters:
    seed: int = 3
    copies: int = 40  # messages from each malicious node to each of its neighbours
    nodes: int = 40  # of the drawn topology
    extra_links: int = 20  # beyond those that connect it: about three neighbours a node
    malicious: int = 3  # of the drawn topology
    share_max: int = 16
    hops_max: int = 5  # off: how far a message goes from the first honest node
    delay_max_s: float = 60.0
    skew_max_s: float = 5.0

    @property
    def forgotten_s(self) -> float:
        """After how long no window remembers a message."""
        return self.delay_max_s + 2 * self.skew_max_s + 1


SMALL = Parameters(copies=6, nodes=12, extra_links=4, malicious=2, share_max=3, hops_max=4)


@dataclass(frozen=True)
class Topology:
    name: str
    neighbours: Mapping[str, Sequence[str]]
    malicious: Sequence[str]

    @cached_property
    def near(self) -> list[str]:
        """The nodes called G."""
        return sorted({name for bad in self.malicious for name in self.neighbours[bad]} - set(self.malicious))

    @cached_property
    def behind(self) -> list[str]:
        """The nodes called X."""
        return sorted(set(self.neighbours) - set(self.near) - set(self.malicious))

    @property
    def source(self) -> str:
        """Where the good message starts: an X next to a G, so that a malicious node hears it within two hops."""
        return next(name for name in self.behind if set(self.neighbours[name]) & set(self.near))


@dataclass(frozen=True)
class Row:
    """One run: totals over the G and over the X nodes, of what came with the flood."""

    topology: str
    kind: str
    flood: str
    guards: str
    seed: int
    copies: int
    flooders: int
    g_nodes: int
    g_received: int
    g_refused: str  # why and how many
    x_nodes: int
    x_hit: int  # nodes that received anything
    x_received: int
    x_received_least: int  # by one node
    x_accepted_most: int  # by one node


# Topologies.


def paper_topology() -> Topology:
    """B1, G1–G4, two X behind each G, the eight X in a ring."""
    ring = [f"X{g}{side}" for g in range(1, 5) for side in "ab"]
    links = [("B1", f"G{g}") for g in range(1, 5)]
    links += [(f"G{g}", f"X{g}{side}") for g in range(1, 5) for side in "ab"]
    links += list(zip(ring, ring[1:] + ring[:1], strict=True))
    return Topology("figure", _neighbours(links), ["B1"])


def drawn_topology(parameters: Parameters) -> Topology:
    """A random connected graph whose honest part is connected too, so that honest messages need no malicious node."""
    random = Random(f"{parameters.seed}/topology")  # noqa: S311 (a graph, not a key)
    names = [f"N{index:02}" for index in range(parameters.nodes)]
    for _ in range(1000):
        links = {(names[random.randrange(index)], names[index]) for index in range(1, len(names))}
        while len(links) < len(names) - 1 + parameters.extra_links:
            first, second = sorted(random.sample(names, 2))
            links.add((first, second))
        topology = Topology("drawn", _neighbours(sorted(links)), sorted(random.sample(names, parameters.malicious)))
        if topology.behind and _is_connected(topology, without=topology.malicious):
            return topology
    raise Misuse(f"seed {parameters.seed}: no topology of {parameters.nodes} nodes whose honest part is connected")


def _neighbours(links: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for first, second in links:
        found.setdefault(first, []).append(second)
        found.setdefault(second, []).append(first)
    return {name: sorted(found[name]) for name in sorted(found)}


def _is_connected(topology: Topology, without: Sequence[str]) -> bool:
    rest = set(topology.neighbours) - set(without)
    reached: set[str] = set()
    waiting = [min(rest)]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += [other for other in topology.neighbours[name] if other in rest]
    return reached == rest


# Principals and messages.


def _identifier(name: str) -> bytes:
    return sha256(name.encode()).digest()[:16]


@cache
def _key(name: str) -> SigningKey:
    return SigningKey.from_seed(sha256(f"key of {name}".encode()).digest())


def make_message(kind: MessageKind, principal: str, label: str, now: float, key: str | None = None) -> bytes:
    """A message of `principal`, signed by whom its kind demands, or by the owner of `key`."""
    signer = principal if kind is MessageKind.PUBLISH else "authority"
    return sign_message(
        kind,
        _identifier(signer),
        _identifier(principal),
        _identifier(label),
        int(now * 1000),
        b"a token, and what goes with it",
        _key(key or signer),
    )


def make_guard(guards: Guards, parameters: Parameters) -> RoutingGuard | None:
    if guards is Guards.OFF:
        return None
    limits = GuardLimits(
        delay_max_s=parameters.delay_max_s,
        skew_max_s=parameters.skew_max_s,
        window_share_max=UNBOUNDED if guards is Guards.ROUTE else parameters.share_max,
    )
    publishers = {_identifier(name): _key(name).public for name in ("honest", "flooder")}
    blacklist = {_identifier("flooder")} if guards is Guards.BLACKLIST else set()
    keys = enrolled({_identifier("authority"): _key("authority").public}, publishers)
    return RoutingGuard(keys, blacklist, limits)


@dataclass
class Conspiracy:
    """What the malicious nodes have agreed on, and share."""

    kind: MessageKind
    flood: Flood
    start: float
    copies: int
    heard: bytes = b""

    def message(self, label: str, now: float) -> bytes:
        if self.flood is Flood.FORGED:
            return make_message(self.kind, "honest", label, now, key="nobody")
        if self.flood is Flood.FRESH:
            return make_message(self.kind, "flooder", label, now)
        if not self.heard:
            raise Misuse("the malicious nodes have heard nothing that they could replay")
        return self.heard


class Flooder:
    """A malicious node: listens, forwards nothing, and at its time sends its flood to all neighbours."""

    def __init__(self, name: str, neighbours: Sequence[str], common: Conspiracy) -> None:
        self._name, self._neighbours, self._common = name, neighbours, common

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if isinstance(event, Arrived):
            self._common.heard = self._common.heard or event.message.data
            return []
        if now < self._common.start:
            return [WakeAt(self._common.start)]
        messages = [self._common.message(f"{self._name}/{number}", now) for number in range(self._common.copies)]
        return [Send(to, Passed(data)) for data in messages for to in self._neighbours]


# Runs.


def run_one(topology: Topology, kind: MessageKind, flood: Flood, guards: Guards, parameters: Parameters) -> Row:
    start = parameters.forgotten_s if flood is Flood.STALE else 10.0
    common = Conspiracy(kind, flood, start, parameters.copies)
    network = Network(parameters.seed)
    roles: dict[str, ForwardingNode] = {}
    for name, neighbours in topology.neighbours.items():
        if name in topology.malicious:
            network.add(name, _made(Flooder(name, neighbours, common)))
        else:
            roles[name] = ForwardingNode(neighbours, make_guard(guards, parameters), parameters.hops_max)
            network.add(name, _made(roles[name]))
    network.send(topology.source, topology.source, Passed(make_message(kind, "honest", "the good message", 0.0)))
    network.run(until=start - 1)
    before = {name: role.statistics() for name, role in roles.items()}
    network.run(until=start + 10)
    after = {name: role.statistics() for name, role in roles.items()}
    received = {name: after[name].received - before[name].received for name in roles}
    x_received = [received[name] for name in topology.behind]
    return Row(
        topology.name,
        kind.name.lower(),
        flood,
        guards,
        parameters.seed,
        parameters.copies,
        flooders=len(topology.malicious),
        g_nodes=len(topology.near),
        g_received=sum(received[name] for name in topology.near),
        g_refused=_refused([before[name] for name in topology.near], [after[name] for name in topology.near]),
        x_nodes=len(topology.behind),
        x_hit=sum(count > 0 for count in x_received),
        x_received=sum(x_received),
        x_received_least=min(x_received),
        x_accepted_most=max(after[name].accepted - before[name].accepted for name in topology.behind),
    )


def _made(role: Role) -> Callable[[Mapping[str, bytes]], Role]:
    return lambda stored: role  # nobody crashes here


def _refused(before: Sequence[ForwardingStatistics], after: Sequence[ForwardingStatistics]) -> str:
    counts: Counter[str] = Counter()
    for earlier, later in zip(before, after, strict=True):
        counts.update(later.refused)
        counts.subtract(earlier.refused)
    return " ".join(f"{reason}:{count}" for reason, count in sorted(counts.items()) if count)


def run(parameters: Parameters) -> Iterator[Row]:
    for topology in (paper_topology(), drawn_topology(parameters)):
        for flood in Flood:
            for kind in MessageKind:
                for guards in Guards:
                    yield run_one(topology, kind, flood, guards, parameters)


def in_band(row: Row, parameters: Parameters) -> bool:
    """Whether a run landed where the top of this file says."""
    if row.guards == Guards.OFF:
        return row.x_hit >= 0.9 * row.x_nodes
    if row.flood != Flood.FRESH or row.guards == Guards.BLACKLIST:
        return row.x_received == 0
    if row.guards == Guards.ROUTE:
        return row.x_received_least >= row.flooders * row.copies
    return row.x_hit > 0 and row.x_accepted_most <= parameters.share_max


# Results.


def write_csv(rows: Sequence[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [column.name for column in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def plot(rows: Sequence[Row], path: Path) -> None:
    """What one X node receives on average, for each flood; raises `Unavailable` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Unavailable("no plot: matplotlib is not installed", hint="pip install matplotlib") from error
    kinds = [kind.name.lower() for kind in MessageKind]
    figure = Figure(figsize=(15, 7), layout="constrained")
    panels = figure.subplots(2, len(Flood), sharex=True, sharey=True)
    colours = {Guards.OFF: "#b2182b", Guards.ROUTE: "#2166ac", Guards.SHARE: "#67a9cf", Guards.BLACKLIST: "#7fbf7b"}
    labels = {
        Guards.OFF: "guard off",
        Guards.ROUTE: "routing guard (the paper's)",
        Guards.SHARE: "and a share for each principal",
        Guards.BLACKLIST: "and the flooder blacklisted",
    }
    highest = 2 * max(row.x_received / row.x_nodes for row in rows)
    for across, name in enumerate(dict.fromkeys(row.topology for row in rows)):
        for down, flood in enumerate(Flood):
            axes = panels[across][down]
            shown = {(r.kind, r.guards): r for r in rows if (r.topology, r.flood) == (name, flood)}
            for index, guards in enumerate(Guards):
                at = [place + (index - 1.5) * 0.2 for place in range(len(kinds))]
                heights = [shown[kind, guards].x_received / shown[kind, guards].x_nodes for kind in kinds]
                axes.bar(at, heights, width=0.18, color=colours[guards], label=labels[guards])
                for place, height in zip(at, heights, strict=True):
                    if height == 0:
                        axes.text(place, 0.05, "0", ha="center", va="bottom", fontsize=7)
            sent = shown[kinds[0], Guards.ROUTE]
            axes.axhline(
                sent.g_received / sent.g_nodes,
                color="grey",
                linestyle=":",
                label="what a G node receives, routing guard on",
            )
            axes.set_yscale("symlog", linthresh=1)
            axes.set_ylim(0, highest)
            axes.set_title(f"{flood} flood, {name} topology", fontsize=10)
            axes.set_xticks(range(len(kinds)), kinds, rotation=30, ha="right", fontsize=8)
    for row_of_panels in panels:
        row_of_panels[0].set_ylabel("flood messages to an X node")
    handles, texts = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=len(texts))
    figure.suptitle(
        "EventGuard, Fig. 3: who is hit by a flood (X nodes lie behind the honest neighbours of the flooders)"
    )
    figure.savefig(path, dpi=110)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.eventguard.fig03", description="EventGuard, Fig. 3")
    parser.add_argument("--seed", type=int, default=Parameters.seed)
    parser.add_argument("--small", action="store_true", help="the shrunken run of the test suite")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    options = parser.parse_args(arguments)
    chosen = asdict(SMALL if options.small else Parameters()) | {"seed": options.seed}
    parameters = Parameters(**chosen)
    rows = list(run(parameters))
    write_csv(rows, options.out / "fig03.csv")
    print(options.out / "fig03.csv")
    try:
        plot(rows, options.out / "fig03.png")
        print(options.out / "fig03.png")
    except Unavailable as error:
        print(f"{error}\nhint: {error.hint}", file=sys.stderr)
    missed = [row for row in rows if not in_band(row, parameters)]
    for row in missed:
        print(f"outside the expected band: {row}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
