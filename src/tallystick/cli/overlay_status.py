"""`tally overlay status`: how an overlay stands, by the ledger's word, and which relays answer.

What stands on the ledger is proved to the identity that asks. A relay's own word, that it is ready, is its own: it
says nothing of what it forwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output, overlay_plan
from tallystick.cli.common import FOLDER, with_session
from tallystick.client.names import Names
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session
    from tallystick.trust.plan import Plan, Relay, VirtualNode


@click.command("status")
@click.argument("overlay")
@click.option("--folder", type=FOLDER, help="Where tally overlay up runs it: for names, and where its relays answer.")
@with_session
@output.json_option
def status(session: Session, overlay: str, folder: Path | None, tell: output.Tell) -> None:
    """Show OVERLAY: its plan, who holds which lease, sizes of anchors, who is suspected, and which relays are ready.

    Of topics those that the identity knows. Relays are asked where the identity, or --folder, says that they answer.

    \b
    Examples:
      tally overlay status city --home owner
      tally overlay status city --folder trial --home owner
    """
    from tallystick.ledger.contracts.plans import OVERLAYS, PLANS, plan_at

    names, identifier = Names(session), overlay_plan.overlay_of(session, overlay)
    row, head = session.view.row_at(OVERLAYS(identifier))
    if row is None:
        raise Misuse(f'overlay "{overlay}" does not exist', hint="the operator founds one: tally overlay found")
    plan = plan_at(session.view.row, identifier, head.height)
    newest = session.view.row(PLANS(identifier, row.version)) if row.version else None
    coming = None
    if newest is not None and newest.first > head.height:
        coming = {"version": row.version, "first_height": newest.first}
    known = _known_nodes(identifier, folder)
    answers = {} if plan is None else _answers(session, plan, folder)
    told = {
        "overlay": identifier,
        "height": head.height,
        "version": None if plan is None else plan.version,
        "coming": coming,
        "nodes": [] if plan is None else [_node(session, plan, node, known, answers) for node in plan.nodes],
        "topics": list(_topics(session, names, identifier, known)),
    }
    tell(told, *_lines(told, overlay, _relay_names(plan)))


def _known_nodes(overlay: bytes, folder: Path | None) -> dict[bytes, str]:
    """Names of virtual nodes: the ledger has their hashes only."""
    from tallystick.trust.plan import node_id

    if folder is None:
        return {}
    from tallystick.engines.overlay import TrialOverlay

    return {node_id(overlay, node.name): node.name for node in TrialOverlay.open(folder).nodes}


def _answers(session: Session, plan: Plan, folder: Path | None) -> dict[bytes, str]:
    """Relays whose address for clients is known, and what keeps each from being ready; empty if it is."""
    from concurrent.futures import ThreadPoolExecutor

    from tallystick.engines.overlay import TrialOverlay, trouble_of
    from tallystick.identity.nodes import addresses

    urls = {one.node: one.url for one in addresses(session.identity)}
    if folder is not None:
        trial = TrialOverlay.open(folder)
        urls |= {trial.certificate(one).subject: one.url for one in trial.relays}
    urls = {relay: url for relay, url in urls.items() if plan.place(relay) is not None}
    with ThreadPoolExecutor(16) as pool:  # one that does not answer takes seconds
        return dict(zip(urls, pool.map(trouble_of, urls.values()), strict=True))


def _node(
    session: Session, plan: Plan, node: VirtualNode, known: dict[bytes, str], answers: dict[bytes, str]
) -> dict[str, Any]:
    return {
        "identifier": node.identifier,
        "name": known.get(node.identifier),
        "parent": known.get(node.parent, node.parent) if node.parent else None,
        "needed": node.need,
        "relays": [_relay(session, plan, relay, answers) for relay in node.relays],
    }


def _relay(session: Session, plan: Plan, relay: Relay, answers: dict[bytes, str]) -> dict[str, Any]:
    from tallystick.ledger.contracts.blame import FAULTS, SUSPICIONS, is_suspected
    from tallystick.ledger.contracts.reputation import STANDINGS

    place, read = plan.place(relay.identifier), session.view.row
    assert place is not None
    accusers = []
    for near in (place[0], *plan.neighbours(place[0].identifier)):
        said = read(SUSPICIONS(plan.overlay, relay.identifier, near.identifier))
        accusers += said.accusers if said is not None and said.version == plan.version else []
    fault, standing = read(FAULTS(relay.identifier)), read(STANDINGS(relay.identifier))
    trouble = answers.get(relay.identifier)
    return {
        "principal": relay.identifier,
        "name": relay.host,
        "address": relay.address,
        "ready": None if trouble is None else not trouble,
        "trouble": trouble or None,
        "accusers": accusers,  # under the plan in force
        "suspected": is_suspected(read, relay.identifier, plan.version),
        "failures": 0 if fault is None else fault.failures,
        "score": None if standing is None else standing.score,
        "blacklisted": standing is not None and standing.blacklisted != 0,
    }


def _topics(session: Session, names: Names, overlay: bytes, known: dict[bytes, str]) -> Iterator[dict[str, Any]]:
    """Topics that the identity knows and that travel over the overlay, with the lease of each partition."""
    from tallystick.ledger.contracts.anchors import ANCHORS
    from tallystick.ledger.contracts.leases import LEASES
    from tallystick.ledger.contracts.plans import ENTRUSTED
    from tallystick.ledger.contracts.topics import TOPICS

    read = session.view.row
    for token, name in names.topics:
        word, topic = read(ENTRUSTED(token)), read(TOPICS(token))
        if word is None or topic is None or word.overlay != overlay:
            continue
        partitions = []
        for number in range(topic.partitions):
            (lease, head), anchor = session.view.row_at(LEASES(token, number)), read(ANCHORS(token, number))
            is_held = lease is not None and lease.is_held(word, head.time_ms)
            partitions.append(
                {
                    "partition": number,
                    "holder": lease.holder if lease is not None and is_held else None,
                    "fence": 0 if lease is None else lease.fence,
                    "remaining_ms": lease.end_ms - head.time_ms if lease is not None and is_held else 0,
                    "anchored": 0 if anchor is None else anchor.size,
                }
            )
        yield {"topic": name, "token": token, "entry": known.get(word.node, word.node), "partitions": partitions}


def _relay_names(plan: Plan | None) -> dict[bytes, str]:
    relays = [] if plan is None else [relay for node in plan.nodes for relay in node.relays]
    hosts = [relay.host for relay in relays]
    return {one.identifier: one.host if hosts.count(one.host) == 1 and one.host else one.address for one in relays}


def _lines(told: dict[str, Any], overlay: str, named: dict[bytes, str]) -> Iterator[str]:
    version, coming = told["version"], told["coming"]
    now = f"plan {version} is in force" if version else "no plan is in force"
    later = f"; plan {coming['version']} counts from height {coming['first_height']} on" if coming else ""
    yield f"overlay {overlay} ({told['overlay'].hex()}), height {told['height']}: {now}{later}"
    for node in told["nodes"]:
        behind = f"behind {output.show_value(node['parent'])}" if node["parent"] else "the root"
        yield f"virtual node {_named(node)}, {behind}: {node['needed']} of {len(node['relays'])} are needed"
        yield from output.table([["", *_relay_cells(one)] for one in node["relays"]])
    for topic in told["topics"]:
        yield f"topic {topic['topic']}, publishers enter at {output.show_value(topic['entry'])}"
        yield from output.table([["", *_partition_cells(one, named)] for one in topic["partitions"]])


def _named(node: dict[str, Any]) -> str:
    return str(node["name"] or node["identifier"].hex())


def _relay_cells(one: dict[str, Any]) -> list[str]:
    state = {None: "not asked", True: "ready", False: f"away: {one['trouble']}"}[one["ready"]]
    words = []
    if one["suspected"]:
        words.append("suspected")
    elif one["accusers"]:
        words.append(f"called silent by {len(one['accusers'])}, which is not enough")
    if one["failures"]:
        words.append(output.plural(one["failures"], "failure"))
    if one["score"] is not None:
        words.append(f"reputation {one['score']}")
    if one["blacklisted"]:
        words.append("blacklisted")
    return [one["name"] or one["principal"].hex(), one["address"], state, ", ".join(words)]


def _partition_cells(one: dict[str, Any], named: dict[bytes, str]) -> list[str]:
    holder = "nobody orders it" if one["holder"] is None else f"ordered by {named.get(one['holder'], '?')}"
    left = f", {one['remaining_ms'] / 1000:.1f} s left" if one["holder"] else ""
    return [f"partition {one['partition']}", holder, f"fence {one['fence']}{left}", f"{one['anchored']} anchored"]
