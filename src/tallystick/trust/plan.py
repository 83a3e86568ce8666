"""The plan of an overlay: which relays there are, in which virtual nodes, and how these hang together.

Threat: relays, and whoever sits between them, say where a share belongs, how many are needed, or who is a relay. So
none of that is taken from a message: a message names a version of the plan and places in it, and what contradicts the
plan is dropped. The plan stands on the ledger, signed by the overlay's administrators (`ledger/contracts/plans.py`).

Virtual nodes form a tree, so there is one path between any two. The relays of a virtual node replicate one another;
their places in its list, counted from 1, are the indices at which polynomials are evaluated. A majority is needed:
⌊n/2⌋+1 of n, for n from 3 to 7 (000, "Secret forwarding"). With every version indices may be others: shares of
different versions are never combined.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from tallystick import wire
from tallystick.crypto.signatures import VerifyKey
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Malformed
from tallystick.wire import Fields, Number, Octets16, Octets32

NODES_MAX = 512
RELAYS_MIN, RELAYS_MAX = 3, 7
NAME_MAX = 64
ADDRESS_MAX = 256
PLAN_BYTES_MAX = 256 * 1024


def _text(at_most: int) -> wire.Read:
    return lambda fields: fields.text(at_most)


@dataclass(frozen=True)
class Relay:
    """One broker: who it is, where it listens, and what it shares a fate with."""

    identifier: Octets16  # its principal
    key: Octets32  # verifies what it signs
    link_key: Octets32  # that of its TLS certificate, and of no other purpose
    address: Annotated[str, _text(ADDRESS_MAX)]  # host:port
    operator: Annotated[str, _text(NAME_MAX)]
    host: Annotated[str, _text(NAME_MAX)]


def _read_relays(fields: Fields) -> tuple[Relay, ...]:
    items = fields.items(RELAYS_MAX, RELAYS_MIN)
    return tuple(wire.read_fields(Relay, Fields(item, fields.what, 6)) for item in items)


@dataclass(frozen=True)
class VirtualNode:
    """Relays that replicate one another. `parent` is its neighbour towards the root; empty for the root."""

    identifier: Octets16
    parent: Annotated[bytes, wire.octets(at_most=16)]
    relays: Annotated[tuple[Relay, ...], _read_relays]

    @cached_property
    def names(self) -> tuple[bytes, ...]:
        """Of its relays, in the order of their indices."""
        return tuple(relay.identifier for relay in self.relays)

    def key(self, index: int) -> VerifyKey:
        """By which what the relay of this index signs is verified."""
        return VerifyKey(self.relays[index - 1].key)

    @property
    def need(self) -> int:
        """How many shares it takes: more than half, so that the fewer bad relays cannot, and the others can."""
        return len(self.relays) // 2 + 1

    @property
    def faults(self) -> int:
        """f, how many relays may be bad; of f+1 that say the same, one is honest."""
        return (len(self.relays) - 1) // 2


def _read_nodes(fields: Fields) -> tuple[VirtualNode, ...]:
    return tuple(wire.read_fields(VirtualNode, Fields(item, fields.what, 3)) for item in fields.items(NODES_MAX, 1))


@dataclass(frozen=True)
class Plan:
    overlay: Octets16
    version: Number
    nodes: Annotated[tuple[VirtualNode, ...], _read_nodes]

    def __post_init__(self) -> None:
        relays = [relay for node in self.nodes for relay in node.relays]
        for what, values in (
            ("virtual node", [node.identifier for node in self.nodes]),
            ("relay", [relay.identifier for relay in relays]),
            ("relay's key", [key for relay in relays for key in (relay.key, relay.link_key)]),
            ("address", [relay.address for relay in relays]),
        ):
            if len(set(values)) < len(values):
                raise Malformed(f"plan: a {what} is listed twice")
        before: set[bytes] = set()
        for node in self.nodes:  # parents first, so there are no circles
            if node.parent not in (before or {b""}):
                raise Malformed("plan: a tree expected, every virtual node behind its parent, and one root")
            before.add(node.identifier)

    def encode(self) -> bytes:
        nodes = [[node.identifier, node.parent, [wire.listed(relay) for relay in node.relays]] for node in self.nodes]
        return wire.encode([1, self.overlay, self.version, nodes])

    @classmethod
    def decode(cls, data: bytes) -> Plan:
        """Raises `Malformed`."""
        if len(data) > PLAN_BYTES_MAX:
            raise Malformed(f"plan: at most {PLAN_BYTES_MAX} bytes expected")
        return wire.read_as(cls, data, "plan")

    @cached_property
    def hash(self) -> bytes:
        return named_hash("tallystick plan 1", self.encode())

    @cached_property
    def _nodes(self) -> dict[bytes, VirtualNode]:
        return {node.identifier: node for node in self.nodes}

    @cached_property
    def _places(self) -> dict[bytes, tuple[VirtualNode, int]]:
        return {
            relay.identifier: (node, index) for node in self.nodes for index, relay in enumerate(node.relays, start=1)
        }

    @cached_property
    def _neighbours(self) -> dict[bytes, tuple[VirtualNode, ...]]:
        found: dict[bytes, list[VirtualNode]] = {node.identifier: [] for node in self.nodes}
        for node in self.nodes:
            if node.parent:
                found[node.parent].append(node)
                found[node.identifier].append(self._nodes[node.parent])
        return {identifier: tuple(nodes) for identifier, nodes in found.items()}

    def node(self, identifier: bytes) -> VirtualNode:
        """Raises `Malformed` where the plan has none such."""
        try:
            return self._nodes[identifier]
        except KeyError:
            raise Malformed(f"plan {self.version}: no virtual node {identifier.hex()}") from None

    def has_node(self, identifier: bytes) -> bool:
        return identifier in self._nodes

    def place(self, relay: bytes) -> tuple[VirtualNode, int] | None:
        """A relay's virtual node and its index there, from 1."""
        return self._places.get(relay)

    def neighbours(self, node: bytes) -> tuple[VirtualNode, ...]:
        return self._neighbours[self.node(node).identifier]

    def path(self, here: bytes, there: bytes) -> tuple[VirtualNode, ...]:
        """The virtual nodes from one to the other, both included."""
        up, down = self._to_root(here), self._to_root(there)
        while len(up) > 1 and len(down) > 1 and up[-2:] == down[-2:]:
            up.pop(), down.pop()
        if up[-1] == down[-1]:
            up.pop()
        return (*up, *reversed(down))

    def _to_root(self, identifier: bytes) -> list[VirtualNode]:
        found = [self.node(identifier)]
        while found[-1].parent:
            found.append(self._nodes[found[-1].parent])
        return found


def overlay_id(instance: bytes, name: str) -> bytes:
    """The identifier of an overlay that people call so."""
    return named_hash("tallystick overlay 1", wire.encode([instance, name]))[:16]


def node_id(overlay: bytes, name: str) -> bytes:
    """The identifier of a virtual node that people call so."""
    return named_hash("tallystick virtual node 1", wire.encode([overlay, name]))[:16]


def shared_fates(plan: Plan) -> Iterable[tuple[VirtualNode, str]]:
    """Virtual nodes of which one operator or host has more relays than may be bad, and its name."""
    for node in plan.nodes:
        for names in ([relay.operator for relay in node.relays], [relay.host for relay in node.relays]):
            yield from ((node, name) for name in sorted(set(names)) if name and names.count(name) > node.faults)
