"""Where a principal is linked to an overlay: the virtual node that is its edge, kept in the identity's folder.

What the identity is told of the edge it holds to the plan on the ledger: more of the edge's relays must be among its
nodes than may be bad, or one that lies could not be told from the others.
"""

from __future__ import annotations

import json

from tallystick.carriers.overlay.direct import FILE
from tallystick.errors import Malformed, Misuse
from tallystick.identity.folder import Identity
from tallystick.identity.nodes import addresses
from tallystick.trust.plan import Plan, Relay, VirtualNode


def known_relays(identity: Identity, edge: VirtualNode) -> list[Relay]:
    """Those of an edge's relays that the identity has an address of."""
    known = {address.node for address in addresses(identity)}
    return [relay for relay in edge.relays if relay.identifier in known]


def join_overlay(identity: Identity, plan: Plan, edge: bytes, repositories: bytes = b"") -> list[Relay]:
    """Link the identity to an edge, and to the virtual node that keeps shares out of band, if there is one: sessions
    opened from now on go over the overlay. Returns the relays it knows of the edge. Raises `Misuse` where of one of
    them they are too few, or the plan has none such."""
    known = _require(identity, plan, edge)
    way = {"overlay": plan.overlay.hex(), "edge": edge.hex()}
    if repositories:
        _require(identity, plan, repositories)
        way["repositories"] = repositories.hex()
    path = identity.home / FILE
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(way, indent=1))
    temporary.replace(path)
    return known


def _require(identity: Identity, plan: Plan, edge: bytes) -> list[Relay]:
    try:
        node = plan.node(edge)
    except Malformed as error:
        raise Misuse(str(error), hint="tally overlay plan show names them") from error
    known = known_relays(identity, node)
    if len(known) <= node.faults:
        lacking = ", ".join(relay.identifier.hex() for relay in node.relays if relay not in known)
        raise Misuse(
            f"{len(known)} of the {len(node.relays)} relays of this virtual node are known, {node.faults + 1} are "
            f"needed; not known: {lacking}",
            hint="tally principal address --node-url … --node-url … names where all of them are, by their nodes' URLs",
        )
    return known


def leave_overlay(identity: Identity) -> None:
    """Sessions opened from now on ask one node at a time."""
    (identity.home / FILE).unlink(missing_ok=True)
