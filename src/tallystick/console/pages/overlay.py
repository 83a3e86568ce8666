"""*Overlay*: who forwards which topics by which plan, who orders them, who is suspected: from the ledger."""

from __future__ import annotations

from tallystick import wire
from tallystick.console.layout import command, drawing, facts, heading, lines, part
from tallystick.console.marks import bad, checked, code, short, soft, warning, when
from tallystick.console.page import Page
from tallystick.console.visit import LINES, Visit
from tallystick.errors import Misuse
from tallystick.ledger.contracts.blame import FAULTS, MISDEALS, SUSPICIONS, is_suspected
from tallystick.ledger.contracts.leases import LEASES, LeaseRow
from tallystick.ledger.contracts.plans import ENTRUSTED, OVERLAYS, PLANS, EntrustedRow, plan_at
from tallystick.ledger.contracts.reputation import STANDINGS
from tallystick.page.graph import TreeLine, tree
from tallystick.page.html import Html, join, tag
from tallystick.page.svg import many
from tallystick.trust.plan import Plan, Relay, VirtualNode

DRAWN_MAX = 60  # virtual nodes in the picture


def show_overlays(visit: Visit) -> Html:
    columns, rows = ["overlay", "newest plan", "administrators"], []
    for (overlay,), row in visit.mirror.scan(OVERLAYS, most=LINES):
        place = visit.link(short(overlay), f"overlay/{overlay.hex()}")
        rows.append([place, row.version or warning("none"), f"{row.threshold} of {len(row.administrators)} sign"])
    return join(heading("Overlay"), lines(columns, rows, "The operator founded no overlay yet: tally overlay found."))


def show_overlay(visit: Visit) -> Html:
    text = visit.parameters["overlay"]
    row = visit.mirror.row(OVERLAYS(bytes.fromhex(text))) if wire.is_identifier(text) else None
    if row is None:
        raise Misuse(f"no overlay {text[:40]!r} on this ledger", hint="the page of overlays lists them")
    overlay = bytes.fromhex(text)
    plan = plan_at(visit.mirror.row, overlay, visit.head.height)
    people = [(visit.principal(one), " ") for one in row.administrators]
    told = {
        "identifier": code(overlay),
        "plan in force": warning("none") if plan is None else checked(f"version {plan.version}"),
        "administrators": (people, soft(f"{row.threshold} of {len(row.administrators)} sign; list {row.number}")),
    }
    words = [(token, word) for (token,), word in visit.mirror.scan(ENTRUSTED) if word.overlay == overlay]
    return join(
        heading("Overlay"),
        facts(told),
        None if plan is None else part("Virtual nodes", _picture(visit, plan, {word.node for _, word in words})),
        part("Topics", _topics(visit, words)),
        None if plan is None else part("Relays", _relays(visit, plan)),
        part("Faults", _blame(visit, overlay, plan)),
        part("Plans that are kept", _plans(visit, overlay, plan)),
        part("Which relays answer", command(f"tally overlay status {text}")),
    )


def _picture(visit: Visit, plan: Plan, entries: set[bytes]) -> Html:
    """The tree, one line a virtual node."""
    drawn = []
    for depth, node in _walk(plan)[:DRAWN_MAX]:
        silent = sum(is_suspected(visit.mirror.row, one.identifier, plan.version) for one in node.relays)
        is_entry = node.identifier in entries
        said = f"{node.identifier.hex()[:8]}  {node.need} of {len(node.relays)} needed"
        said += ", publishers enter" * is_entry + (f", {silent} suspected" if silent else "")
        colour = "var(--alarm)" if silent else "var(--two)" if is_entry else "var(--one)"
        drawn.append(TreeLine(depth, said, node.identifier.hex(), colour))
    left = len(plan.nodes) - DRAWN_MAX
    more = tag("p", soft(f"{left} more are not drawn")) if left > 0 else None
    return drawing(tree(drawn, "the tree"), "the tree of virtual nodes", more)


def _walk(plan: Plan) -> list[tuple[int, VirtualNode]]:
    """Every virtual node behind its parent, with its depth."""
    paths: dict[bytes, tuple[int, ...]] = {b"": ()}  # the places in the plan of a node's ancestors and its own
    for place, node in enumerate(plan.nodes):  # parents come first
        paths[node.identifier] = (*paths[node.parent], place)
    return [(len(path) - 1, plan.nodes[path[-1]]) for path in sorted(paths.values()) if path]


def _topics(visit: Visit, words: list[tuple[bytes, EntrustedRow]]) -> Html:
    rows = []
    for token, word in words[:LINES]:
        leases = visit.mirror.scan(LEASES, token, most=LINES)
        held = [_lease(visit, partition, one) for (_, partition), one in leases if one.number == word.number]
        entry = code(word.node.hex()[:8])
        rows.append([visit.topic(token), entry, when(word.since_ms), held or warning("nobody")])
    columns = ["topic", "publishers enter at", "entrusted", "who orders it"]
    return lines(columns, rows, "None is entrusted to it.", more=len(words) - LINES)


def _lease(visit: Visit, partition: int, lease: LeaseRow) -> Html:
    until = ("ends ", when(lease.end_ms)) if lease.end_ms > visit.head.time_ms else warning("run out")
    return tag("div", f"partition {partition}: ", visit.principal(lease.holder), f", fence {lease.fence}, ", until)


def _relays(visit: Visit, plan: Plan) -> Html:
    every = [(node, relay) for _, node in _walk(plan) for relay in node.relays]
    rows = [_relay(visit, plan, node, relay) for node, relay in visit.part_of(every)]
    columns = ["virtual node", "relay", "address", "operator, host", "standing"]
    return join(lines(columns, rows, "None."), visit.ways_on(len(every)))


def _relay(visit: Visit, plan: Plan, node: VirtualNode, relay: Relay) -> list[object]:
    read, name = visit.mirror.row, relay.identifier
    fault, standing = read(FAULTS(name)), read(STANDINGS(name))
    said: list[object] = [bad("suspected")] if is_suspected(read, name, plan.version) else []
    if fault is not None:
        said.append(f" {many(fault.failures, 'failure')}")
    if standing is not None:
        said += [f" reputation {standing.score} ", bad("blacklisted") if standing.blacklisted else None]
    whose = f"{relay.operator}, {relay.host}"
    return [code(node.identifier.hex()[:8]), visit.principal(name), relay.address, whose, said or ["good"]]


def _blame(visit: Visit, overlay: bytes, plan: Plan | None) -> Html:
    """Suspicions, which are words, and misdeals, which were proved."""
    rows: list[list[object]] = []
    for (_, relay, _), one in visit.mirror.scan(SUSPICIONS, overlay, most=LINES):
        by = [(visit.principal(who), " ") for who in one.accusers]
        rows.append([visit.principal(relay), f"called silent under plan {one.version}", by])
    for relay in [] if plan is None else [relay.identifier for node in plan.nodes for relay in node.relays]:
        proved = visit.mirror.scan(MISDEALS, relay, most=LINES)
        rows += [[visit.principal(relay), bad("convicted"), visit.block(one.height)] for _, one in proved]
    return lines(["relay", "what", "by, or at height"], rows[: 2 * LINES], "Nobody was accused.")


def _plans(visit: Visit, overlay: bytes, plan: Plan | None) -> Html:
    rows, now = [], 0 if plan is None else plan.version
    for (_, version), row in visit.mirror.scan(PLANS, overlay)[::-1]:
        nodes = Plan.decode(row.plan).nodes
        state = checked("in force") if version == now else "over" if version < now else "to come"
        size = f"{many(len(nodes), 'virtual node')}, {many(sum(len(one.relays) for one in nodes), 'relay')}"
        first = visit.block(row.first) if row.first <= visit.head.height else row.first
        rows.append([version, first, size, state])
    return lines(["version", "from height", "size", "state"], rows, "None was published yet.")


def _is_there(visit: Visit) -> bool:
    return bool(visit.mirror.scan(OVERLAYS, most=1))


PAGES = (
    Page("overlay", "Overlay", show_overlays, in_menu=True, is_there=_is_there),
    Page("overlay/{overlay}", "Overlay", show_overlay),
)
