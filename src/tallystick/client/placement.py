"""Which relays form which virtual node: the three phases of the replica placement framework (000, appendix, "Replica
placement framework").

    phase one    replicas for each end-to-end path, by ρ = hops × γ × ω
    phase two    within a path, by each node's share of the path's failures
    phase three  seats: odd sizes from three on, as far as latency, traffic, load and fan-out allow

The paper leaves open what phase three does, what γ is before the first failure, and what becomes of fractions;
docs/decisions/0057-a-third-phase-for-the-placement.md says what we chose. Everything is computed in whole numbers and
fractions, with ties broken by order and name, so that all administrators come to the same plan.

Threat: relays that invent failures of others, to draw replicas to where they want them. A failure counts when f+1
relays of one virtual node reported it, since one of them is honest. What a relay says of itself does not count. The
ledger does the counting (`ledger/contracts/blame.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import ceil

from tallystick.errors import Misuse

FLOOR = 3  # of two replicas neither is a majority, so nothing can be shared among them (000, on phase two)
PRIOR = 1  # failures that every node is taken to have had: a node that never failed still gets its replicas


@dataclass(frozen=True)
class OverlayPath:
    """An end-to-end path: the virtual nodes from a publisher to a subscriber, and the parcels a second on it."""

    publisher: str
    nodes: tuple[str, ...]
    weight: Fraction = Fraction(1)  # ω, the administrator's
    rate: Fraction = Fraction(1)  # the publisher's, the same on all its paths


@dataclass(frozen=True)
class RelayOffer:
    """A relay that is there to be seated."""

    name: str
    operator: str
    host: str
    latency_ms: int  # from taking a parcel in to having sent it on
    seat: str = ""  # the virtual node at which it is now


Paths = Sequence[OverlayPath]
Relays = Sequence[RelayOffer]
Failures = Mapping[str, int]  # by virtual node
Seats = dict[str, list[RelayOffer]]


@dataclass(frozen=True)
class PlacementLimits:
    """What the seats may cost."""

    latency_ms: int = 1_000  # of a path, when f relays of each virtual node are silent
    messages: int = 1_000_000  # of shares, a second, in the whole overlay
    load: int = 10_000  # messages a second, in and out, of one relay
    fan_out: int = 64  # output queues of a relay: one for each relay that it sends to (Fig. 9)
    size: int = 7  # of a virtual node: contributor sets are C(7, 4) = 35 there, and 126 at nine


@dataclass(frozen=True)
class Placement:
    seats: dict[str, tuple[str, ...]]
    spare: tuple[str, ...]
    held_back: dict[str, str]  # nodes that phase two wanted larger, and why they are not


def apportion(count: int, weights: Sequence[Fraction | int]) -> list[int]:
    """`count` things in proportion to weights, by largest remainder; of equal remainders the first is served first."""
    whole = sum(weights)
    if whole <= 0 or min(weights) < 0:
        raise Misuse("placement: weights are not negative, and one of them is above zero")
    exact = [Fraction(weight) * count / Fraction(whole) for weight in weights]
    given = [int(share) for share in exact]
    for at in sorted(range(len(exact)), key=lambda at: given[at] - exact[at])[: count - sum(given)]:
        given[at] += 1
    return given


def priorities(paths: Paths, failures: Failures) -> list[Fraction]:
    """ρ of each path: its hops, times γ, its share of the failures of all paths, times ω."""
    failed = [sum(_failed(path, failures)) for path in paths]
    whole, each = sum(failed), zip(paths, failed, strict=True)
    return [len(path.nodes) * Fraction(count, whole) * path.weight for path, count in each]


def phase_two(paths: Paths, packs: Sequence[int], failures: Failures, *, once: bool = False) -> dict[str, int]:
    """Each path's pack of replicas, by its nodes' shares of its failures. A node on several paths gets a pack of each;
    with `once`, the paper's variation, it keeps the largest, and the rest goes one by one to those that have fewest."""
    got: dict[str, list[int]] = {node: [] for path in paths for node in path.nodes}
    for path, pack in zip(paths, packs, strict=True):
        for node, count in zip(path.nodes, apportion(pack, _failed(path, failures)), strict=True):
            got[node].append(count)
    if not once:
        return {node: sum(counts) for node, counts in got.items()}
    kept = {node: max(counts) for node, counts in got.items()}
    for _ in range(sum(packs) - sum(kept.values())):
        kept[min(kept, key=kept.__getitem__)] += 1
    return kept


def place(paths: Paths, relays: Relays, failures: Failures, limits: PlacementLimits, *, once: bool) -> Placement:
    """All phases; in the third each node gets three seats, then pairs go where most is wanting, while the limits hold.
    Raises `Misuse` where three relays for each virtual node cannot be seated, or not within the limits."""
    wanted = phase_two(paths, apportion(len(relays), priorities(paths, failures)), failures, once=once)
    seats, pool = _floor(wanted, relays)
    if over := _over(paths, seats, limits):
        raise Misuse(f"placement: three relays for each virtual node are too many already: {over}")
    held_back: dict[str, str] = {}
    while short := [node for node in seats if node not in held_back and len(seats[node]) < wanted[node]]:
        node = max(short, key=lambda one: wanted[one] - len(seats[one]))
        pair = _choose(node, seats[node], pool, 2, plentiful=False)
        grown = {**seats, node: [*seats[node], *pair]}
        if len(pair) < 2:
            held_back[node] = "no two relays of other operators and hosts are left"
        elif over := _over(paths, grown, limits):
            held_back[node] = over
        else:
            seats, pool = grown, [one for one in pool if one not in pair]
    named = {node: tuple(one.name for one in seated) for node, seated in seats.items()}
    return Placement(named, tuple(one.name for one in pool), held_back)


def _failed(path: OverlayPath, failures: Failures) -> list[int]:
    return [failures.get(node, 0) + PRIOR for node in path.nodes]


def _floor(wanted: Mapping[str, int], relays: Relays) -> tuple[Seats, list[RelayOffer]]:
    """Three for each node, quickest first for those that want most. Where this leaves a node without three operators,
    once more with the operators first that have most relays left: it finds seats where operators alone decide."""
    for plentiful in (False, True):
        pool, seats = list(relays), {node: list[RelayOffer]() for node in wanted}
        for node in sorted(wanted, key=lambda one: -wanted[one]):
            seats[node] = _choose(node, [], pool, FLOOR, plentiful=plentiful)
            pool = [one for one in pool if one not in seats[node]]
        if all(len(seated) == FLOOR for seated in seats.values()):
            return seats, pool
    raise Misuse(
        f"placement: {len(relays)} relays do not seat {len(wanted)} virtual nodes with three operators and hosts each",
        hint="offer more relays, of more operators, or route over fewer virtual nodes",
    )


def _choose(node: str, seated: Relays, pool: Relays, count: int, *, plentiful: bool) -> list[RelayOffer]:
    """Up to `count` more, no operator and no host twice: one breach or one power cut takes one relay of a node. Those
    that are here already come first. Nobody moves from one node to another at once: it leaves before it comes."""
    pool = [one for one in pool if one.seat in ("", node)]
    left = {operator: sum(one.operator == operator for one in pool) for operator in {one.operator for one in pool}}
    chosen: list[RelayOffer] = []
    for one in sorted(pool, key=lambda one: (-left[one.operator] * plentiful, not one.seat, one.latency_ms, one.name)):
        beside = [*seated, *chosen]
        if len(chosen) < count and all(one.operator != other.operator and one.host != other.host for other in beside):
            chosen.append(one)
    return chosen


def _over(paths: Paths, seats: Seats, limits: PlacementLimits) -> str:
    """The first limit that these seats break, in words, or nothing."""
    size = {node: len(seated) for node, seated in seats.items()}
    # A publisher's parcel crosses a link once, for all its paths.
    crossing = {(path.publisher, *link): path.rate for path in paths for link in pairwise(path.nodes)}
    messages, fan_out, load = Fraction(0), dict.fromkeys(seats, 0), dict.fromkeys(seats, Fraction(0))
    for (_, one, other), rate in crossing.items():
        messages += rate * size[one] * size[other]
        load[one], load[other] = load[one] + rate * size[other], load[other] + rate * size[one]
    for one, other in {(one, other) for _, one, other in crossing}:
        fan_out[one] += size[other]
    found: list[tuple[Fraction | int, int, str]] = [(messages, limits.messages, "messages a second")]
    for node in seats:
        found.append((size[node], limits.size, f"relays in {node}"))
        found.append((load[node], limits.load, f"messages a second for a relay in {node}"))
        found.append((fan_out[node], limits.fan_out, f"output queues of a relay in {node}"))
    # With f of 2f+1 silent all the others are needed, and the slowest may be among them.
    slowest = {node: max(one.latency_ms for one in seated) for node, seated in seats.items()}
    for path in paths:
        found.append((sum(slowest[node] for node in path.nodes), limits.latency_ms, f"ms to {path.nodes[-1]}"))
    return next((f"{ceil(value)} {what}, at most {most} expected" for value, most, what in found if value > most), "")
