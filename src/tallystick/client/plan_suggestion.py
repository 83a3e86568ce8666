"""The next plan as the placement would have it: relays that failed are replaced, and replicas go where failures are.

Two files say what no ledger knows. Relays that are there to be seated, beside those that the plan has:

    [[relays]]
    principal = "6f0c0d3b8a1e4f5d9c7b2a1908f7e6d5"
    address = "relay-9.example:7443"
    link_key = "…"
    operator = "acme"         # never twice in a virtual node, as with hosts; left out: nobody else's
    host = "rack-7"
    latency_ms = 12           # from taking a parcel in to having sent it on; left out: 0

and, if not every leaf of the tree talks to every other, the paths that matter and what the seats may cost:

    [[paths]]
    nodes = ["edge", "hub", "rim"]
    publisher = "car"         # left out: whoever is at the first of the nodes
    weight = 2                # ω; left out: 1
    rate = 50                 # parcels a second; left out: 1
    [limits]
    latency_ms = 200          # and messages, load, fan_out, size: client/placement.py

Threat: liars that have honest relays replaced, or draw replicas to where they want them. So failures come from the
ledger alone, which counts them from f+1 relays of one virtual node on, or with proof (ledger/contracts/blame.py): f
liars change nothing here. And nothing comes into force by itself: the suggestion is a plan file, and administrators
sign it. All of them who make it from the same files and the same rows of the ledger come to the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tallystick.client.placement import OverlayPath, Placement, PlacementLimits, RelayOffer, place
from tallystick.client.plan_file import PrincipalKey, find_node, read_document, read_relay, table, tables
from tallystick.errors import Malformed, Misuse
from tallystick.ledger.contracts import blame
from tallystick.ledger.contracts.state import RowReader
from tallystick.trust.plan import Plan, Relay, VirtualNode

_OFFER = {"principal", "address", "link_key", "operator", "host", "latency_ms"}
_PATH = {"publisher", "nodes", "weight", "rate"}
_LIMITS = {one.name for one in fields(PlacementLimits)}
_LEAVES_MAX = 64  # of which each talks to each: 2,016 paths
_NUMBER_MAX = 10**9


class OfferedRelay(NamedTuple):
    relay: Relay
    latency_ms: int


class Roads(NamedTuple):
    """Who talks to whom, and what that may cost."""

    paths: list[OverlayPath]
    limits: PlacementLimits


class Suggestion(NamedTuple):
    plan: Plan  # the same version, where nothing is to change
    lines: list[str]  # what changes, and why


def read_offers(path: Path, find: Callable[[str], bytes], key: PrincipalKey) -> list[OfferedRelay]:
    """Raises `Misuse`, naming file and place."""
    top = table(read_document(path), path, "the offers", {"relays"})
    told = tables(top["relays"], path, "relays", _OFFER, {"operator", "host", "latency_ms"})
    return [
        OfferedRelay(
            read_relay(path, one, find(str(one["principal"])), key),
            _whole(one.get("latency_ms", 0), f"{path}: relay {one['principal']}: latency_ms"),
        )
        for one in told
    ]


def read_roads(path: Path, plan: Plan) -> Roads:
    """Raises `Misuse`, naming file and place."""
    top = table(read_document(path), path, "the paths", {"paths", "limits"}, {"limits"})
    limits = table(top.get("limits", {}), path, "limits", _LIMITS, _LIMITS)
    paths = [_read_path(path, one, plan) for one in tables(top["paths"], path, "paths", _PATH, _PATH - {"nodes"})]
    return Roads(paths, PlacementLimits(**{name: _whole(one, f"{path}: {name}") for name, one in limits.items()}))


def all_roads(plan: Plan) -> Roads:
    """Every leaf of the tree talks to every other, at the usual cost. Raises `Misuse` where these are too many."""
    names = [node.identifier for node in plan.nodes if len(plan.neighbours(node.identifier)) < 2]
    if len(names) > _LEAVES_MAX:
        raise Misuse(f"placement: {len(names)} virtual nodes are leaves", hint="say which paths matter: --paths")
    ways = [plan.path(one, other) for one, other in combinations(names, 2)] or [plan.nodes]
    listed = [tuple(node.identifier.hex() for node in way) for way in ways]
    return Roads([OverlayPath(way[0], way) for way in listed], PlacementLimits())


def suggest(
    plan: Plan,
    version: int,
    read: RowReader,
    offers: Sequence[OfferedRelay],
    roads: Roads,
    show: Callable[[bytes], str],
) -> Suggestion:
    """What should follow `plan`, while `version` is in force. `show` names a relay. Raises `Misuse` where there are too
    few relays."""
    missing = {node.identifier.hex() for node in plan.nodes} - {node for path in roads.paths for node in path.nodes}
    if missing:
        raise Misuse(f"placement: virtual node {min(missing)} is on no path", hint="name one that passes through it")
    seats = {relay.identifier: node.identifier.hex() for node in plan.nodes for relay in node.relays}
    known = {relay.identifier: OfferedRelay(relay, 0) for node in plan.nodes for relay in node.relays}
    known |= {one.relay.identifier: one for one in offers}
    unfit = {name for name in known if blame.is_unfit(read, name, version, is_seated=name in seats)}
    fit = [
        RelayOffer(name.hex(), relay.operator or name.hex(), relay.host or name.hex(), latency_ms, seats.get(name, ""))
        for name, (relay, latency_ms) in known.items()
        if name not in unfit
    ]
    placed = place(roads.paths, fit, blame.failures(read, plan), roads.limits, once=False)
    nodes = tuple(_seated(node, placed, known) for node in plan.nodes)
    lines = [line for old, new in zip(plan.nodes, nodes, strict=True) for line in _changes(old, new, unfit, show)]
    lines += [f"virtual node {node} should be larger, and is not: {why}" for node, why in placed.held_back.items()]
    lines += [f"{show(name)} is not seated: suspected or convicted before" for name in sorted(unfit - seats.keys())]
    if nodes == plan.nodes:
        return Suggestion(plan, lines)
    try:
        return Suggestion(Plan.decode(replace(plan, version=plan.version + 1, nodes=nodes).encode()), lines)
    except Malformed as error:
        raise Misuse(f"placement: {error}", hint="what does the file of offers say of it?") from error


def _seated(node: VirtualNode, placed: Placement, known: dict[bytes, OfferedRelay]) -> VirtualNode:
    """Those who stay keep their order, those who come follow."""
    names = [bytes.fromhex(one) for one in placed.seats[node.identifier.hex()]]
    before = [relay.identifier for relay in node.relays]
    names.sort(key=lambda name: before.index(name) if name in before else len(before))
    return replace(node, relays=tuple(known[name].relay for name in names))


def _changes(old: VirtualNode, new: VirtualNode, unfit: set[bytes], show: Callable[[bytes], str]) -> Iterator[str]:
    here = f"virtual node {old.identifier.hex()}"
    before, after = ({relay.identifier: relay for relay in node.relays} for node in (old, new))
    left = [name for name in before if name not in after]
    for name in left:
        yield f"{here}: {show(name)} leaves, {'suspected or convicted' if name in unfit else 'no longer wanted there'}"
    yield from (f"{here}: {show(name)} comes" for name in after if name not in before)
    yield from (
        f"{here}: {show(name)} stays, told anew" for name in after if before.get(name, after[name]) != after[name]
    )
    if len(old.relays) != len(new.relays):
        yield f"{here}: {new.need} of {len(new.relays)} are needed, before {old.need} of {len(old.relays)}"
    if len(left) > old.faults:
        yield f"{here}: more leave than may fail, so what only they hold is lost if they are gone before the height"


def _read_path(path: Path, told: dict[str, Any], plan: Plan) -> OverlayPath:
    where = f"{path}: paths"
    if not isinstance(told["nodes"], list) or not told["nodes"]:
        raise Misuse(f"{where}: nodes: a list of virtual nodes expected")
    nodes = [find_node(plan.overlay, str(one)) for one in told["nodes"]]
    for text, node in zip(told["nodes"], nodes, strict=True):
        if not plan.has_node(node):
            raise Misuse(f'{where}: plan {plan.version} has no virtual node "{text}"')
    for one, other in pairwise(nodes):
        if other not in {near.identifier for near in plan.neighbours(one)}:
            raise Misuse(f"{where}: {one.hex()} and {other.hex()} are no neighbours", hint="tally overlay plan show")
    weight, rate = (_fraction(told.get(name, 1), f"{where}: {name}") for name in ("weight", "rate"))
    names = tuple(node.hex() for node in nodes)
    return OverlayPath(str(told.get("publisher", names[0])), names, weight, rate)


def _whole(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value <= _NUMBER_MAX:
        raise Misuse(f'{where}: a whole number expected, found "{value}"')
    return value


def _fraction(value: Any, where: str) -> Fraction:
    if type(value) not in (int, float) or not 0 < value <= _NUMBER_MAX:  # which nan is not, either
        raise Misuse(f'{where}: a number above zero expected, found "{value}"')
    return Fraction(str(value))
