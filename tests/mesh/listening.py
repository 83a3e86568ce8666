"""One node of the mesh that listens, without a network: bert, on the topic "brakes" with its neighbour anna. She can
say to it whatever she likes."""

from __future__ import annotations

from collections import Counter
from random import Random

from mesh_world import AUTHORITY, advertised, mesh_key
from node_world import NOW, STILL, entry

from tallystick.carriers.mesh.frames import MeshKind, framed
from tallystick.carriers.mesh.matching import Stance
from tallystick.carriers.mesh.membership import Neighbour
from tallystick.carriers.mesh.mesh_node import MeshNode
from tallystick.runtime.effects import Arrived
from tallystick.runtime.sources import SeededEntropy

ENTRIES = {name: entry(name) for name in ("anna", "bert", "carl")}
ANNA = ENTRIES["anna"].identity
ADVERTISEMENT, CHAIN = advertised()


def listener() -> MeshNode:
    node = MeshNode(ENTRIES["bert"], [], AUTHORITY.public, Random("bert"), SeededEntropy("bert"), STILL)
    for name in ("anna", "carl"):
        near = Neighbour(ENTRIES[name], held_until=float("inf"), holds_us=True, since=NOW, heard=NOW)
        node.membership.known[ENTRIES[name].identity] = near
    hear(node, framed(MeshKind.ADVERTISE, ADVERTISEMENT.encode(), CHAIN.first))
    hear(node, framed(MeshKind.SUBSCRIBE, mesh_key().pseudonym, int(Stance.FORWARD)))
    return node


def hear(node: MeshNode, frame: bytes) -> dict[str, int]:
    """What it refuses of a frame of anna's, by reason."""
    before = Counter(node.statistics().refused)
    node.receive(Arrived(ANNA.hex(), frame), NOW)
    return dict(Counter(node.statistics().refused) - before)


def sizes(node: MeshNode) -> tuple[int, ...]:
    """Of its tables."""
    tables = [len(node.membership.known), len(node.localisation.known), len(node.matching.topics), len(node.game.locks)]
    return (*tables, len(node.matching.links(mesh_key().pseudonym)))
