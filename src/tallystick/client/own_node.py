"""What an identity's own node of a mesh, or host of a fabric, tells of itself. Nothing of it is verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tallystick.errors import Misuse, Refused
from tallystick.runtime.http1 import UNAUTHENTICATED

if TYPE_CHECKING:
    from tallystick.carriers.remote import RemoteNode
    from tallystick.client.session import Session


def ask_mesh(session: Session) -> dict[str, Any]:
    """Raises `Misuse` where the session's node is no node of a mesh."""
    from tallystick.carriers.mesh.direct import ask_status

    return _ask(session, ask_status, "node of a mesh", "mesh")


def ask_fabric(session: Session) -> dict[str, Any]:
    """Raises `Misuse` where the session's node is no host of a fabric."""
    from tallystick.carriers.fabric.direct import ask_status

    return _ask(session, ask_status, "host of a fabric", "fabric")


def mesh_rows(session: Session, told: Mapping[str, Any]) -> list[list[str]]:
    """What a node that joined told, and which of the identity's topics have a thin crowd."""
    return [
        ["mesh", str(told["mesh"])],
        ["address", str(told["address"])],
        ["neighbours", str(told["node"]["neighbours"])],
        ["topics forwarded", str(told["node"]["topics"])],
        ["publishers known", str(told["node"]["publishers"])],
        ["bytes sent", f"{told['links']['bytes_sent']}, of which {told['links']['bytes_spoken']} were said"],
        *(["topic", one] for one in thin_topics(session)),
        ["entry", str(told["entry"])],
    ]


def thin_topics(session: Session) -> list[str]:
    """Topics in which fewer principals held keys than their owners want, when this identity last asked for its own."""
    from tallystick.client.mesh_keyring import MeshKeyring

    called = {} if session.choice is None else {token: name for name, token in session.choice.topics.items()}
    keyring = MeshKeyring(session.identity, session.authority, session.clock, session.entropy)
    return [f"{called.get(one.token.hex(), one.token.hex())}: {one.warning}" for one in keyring.topics if one.thin]


def fabric_rows(told: Mapping[str, Any]) -> list[list[str]]:
    """What a host that has its keys told."""
    dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(told["dropped"].items()))
    names = ("fabric", "interface", "sent", "heard", "parcels", "waiting")
    return [*([name, str(told[name])] for name in names), ["dropped", dropped or "nothing"]]


def _ask(session: Session, ask: Callable[[RemoteNode], dict[str, Any]], what: str, carrier: str) -> dict[str, Any]:
    try:
        return ask(session.node)
    except Refused as error:
        if error.reason not in ("not-found", UNAUTHENTICATED):  # a node says nothing about doors that it has not
            raise
        hint = f"tally node add --carrier {carrier}://… --serves … makes one, tally {carrier} join --node-url names it"
        raise Misuse(f"the node of this identity is no {what}", hint=hint) from error
