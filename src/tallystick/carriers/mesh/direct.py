"""A client's way into a mesh: its own node, which answers for what it took and for nothing beyond.

Threat: an ordinary node that promises nothing, and so lets publishers forget what it never anchors. So it is not the
node that says that nothing will be anchored: the identity does, by a file in its folder that its holder writes (`tally
mesh join`): a choice for some topics (`identity/choices.py`), or for all `mesh.json`, {"mesh": name}. Without either an
answer without promises is a forgery, as ever. With it, what the node took is final: it lies in the node's log, and goes
out to whoever is there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tallystick.carriers.carrier import KIT_PATH, MESH_STATUS_PATH, Outcome, Sharing, Stored
from tallystick.carriers.registry import Wayfarer
from tallystick.carriers.remote import RemoteNode

FILE = "mesh.json"


class MeshWay(RemoteNode):
    """A `Carrier` for the principal of a mesh node."""

    anchors = False

    def __init__(self, node: RemoteNode) -> None:
        super().__init__(node._http)
        self.sharing: Sharing | None = None

    def publish(self, token: bytes, parcels: Sequence[bytes]) -> list[Outcome]:
        outcomes = super().publish(token, parcels)
        return [replace(one, final=True) if isinstance(one, Stored) else one for one in outcomes]

    def close(self) -> None:
        """Its requests are the session's."""


def reach(settings: Mapping[str, str], who: Wayfarer) -> MeshWay:
    return MeshWay(who.node)


def give_kit(node: RemoteNode, kit: bytes) -> str:
    """Hand an encoded `MeshKit` to the principal's own node. Returns the node's entry, for others to know it by."""
    return node.post(KIT_PATH, kit).decode()


def ask_status(node: RemoteNode) -> dict[str, object]:
    """What the node tells of itself; nothing of it is verified."""
    return ask_told(node, MESH_STATUS_PATH)


def ask_told(node: RemoteNode, path: str) -> dict[str, object]:
    told: dict[str, object] = json.loads(node.post(path, b""))
    return told


def join_mesh(home: Path, name: str) -> None:
    """Sessions of the identity in `home` that are opened from now on go over the mesh."""
    write_way(home / FILE, {"mesh": name})


def write_way(path: Path, told: Mapping[str, str]) -> None:
    """Set down, whole or not at all, by which way an identity goes."""
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(told, indent=1))
    temporary.replace(path)


def leave_mesh(home: Path) -> None:
    (home / FILE).unlink(missing_ok=True)
