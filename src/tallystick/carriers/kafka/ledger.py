"""What the ledger says of the topics that a node carries, in Kafka's words, and what its notary writes there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from tallystick.carriers.kafka.administration import Spot
from tallystick.carriers.kafka.notary import HOST
from tallystick.carriers.kafka.reconcile import WantedAccess
from tallystick.carriers.registry import CarrierHost
from tallystick.carriers.storage import Place
from tallystick.ledger.block import Block, parse
from tallystick.ledger.contracts import access
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.ledger.contracts.groups import GROUPS, OFFSETS
from tallystick.ledger.contracts.identity import IDENTITIES
from tallystick.ledger.contracts.reputation import STANDINGS
from tallystick.ledger.contracts.topics import HOSTS, TOPICS
from tallystick.trust.promise import NOTARISE_PREFIX, Anchor, is_notarised
from tallystick.trust.right import Right

_EVERYTHING = 1 << 20
_BLOCKS_AT_ONCE = 256
_OPERATIONS = {"READ": Right.READ, "WRITE": Right.WRITE}  # Kafka's names of what a right allows there

Written = tuple[Anchor, int, int]  # with the number of its transaction, and its place in it


class Carried(NamedTuple):
    """A sealed topic as the ledger has it; `nodes` may write about it."""

    partitions: int
    replicas: int
    nodes: Sequence[bytes]
    assigned: Mapping[int, Sequence[bytes]] = MappingProxyType({})  # where the nodes of a partition are others

    def nodes_of(self, partition: int) -> Sequence[bytes]:
        return self.assigned.get(partition, self.nodes)


class NotaryLedger:
    def __init__(self, host: CarrierHost) -> None:
        self._ledger, self._node, self.write = host.ledger, host.signer.principal, host.write
        self._consents = host.rules.consents

    def topics(self) -> dict[bytes, Carried]:
        """The topics of which the node carries partitions. What was anchored once is carried on, whomever the operator
        serves now."""
        assigned: dict[bytes, dict[int, list[bytes]]] = {}
        for (token, partition), nodes in self._ledger.scan(HOSTS, most=_EVERYTHING):
            assigned.setdefault(token, {})[partition] = nodes
        return {
            token: Carried(topic.partitions, topic.replicas, topic.nodes, assigned.get(token, {}))
            for (token,), topic in self._ledger.scan(TOPICS, most=_EVERYTHING)
            if any(self._node in nodes for nodes in (topic.nodes, *assigned.get(token, {}).values()))
            and not topic.closed
            and (self._consents(topic.tenant) or self.is_anchored(token))
        }

    def is_anchored(self, token: bytes) -> bool:
        """Whether the ledger knows of records in a topic."""
        return bool(self._ledger.scan(ANCHORS, token, most=1))

    def follow(self, above: int) -> tuple[int, list[Written]]:
        """The ledger's height, and the notaries' anchors in blocks above `above`, each with transaction and entry."""
        found: list[Written] = []
        top = self._ledger.height
        for first in range(above + 1, top + 1, _BLOCKS_AT_ONCE):
            for encoded, transactions in self._ledger.blocks(first, min(_BLOCKS_AT_ONCE, top + 1 - first)):
                for number, data in enumerate(transactions, Block.decode(encoded).first):
                    if NOTARISE_PREFIX in data:
                        entries_in = enumerate(parse(data).entries)
                        found += [(Anchor.decode_entry(e), number, i) for i, e in entries_in if is_notarised(e)]
        return top, found

    def wanted(self) -> WantedAccess:
        """Kafka's rules as the ledger has them."""
        partitions = {token: topic.partitions for token, topic in self.topics().items()}
        time_ms = self._ledger.block(self._ledger.height).time_ms
        live = {one: row.is_live(time_ms) for (one,), row in self._ledger.scan(IDENTITIES, most=_EVERYTHING)}
        rights = {
            (principal, token): frozenset(n for n, one in _OPERATIONS.items() if access.decide(row.rules, one, HOST))
            for (token, principal), row in self._ledger.scan(access.RIGHTS, most=_EVERYTHING)
            if token in partitions and live.get(principal)
        }
        standings = self._ledger.scan(STANDINGS, most=_EVERYTHING)
        blacklisted = [principal for (principal,), standing in standings if standing.blacklisted]
        return WantedAccess(rights, partitions, live, blacklisted, self._group_offsets(partitions))

    def _group_offsets(self, partitions: Mapping[bytes, int]) -> dict[Spot, int]:
        """Where groups go on reading in these topics."""
        found = {
            Spot(group, Place(token, partition)): 0
            for (group,), row in self._ledger.scan(GROUPS, most=_EVERYTHING)
            for token in row.tokens
            for partition in range(partitions.get(token, 0))
        }
        for (group, token, partition), moved in self._ledger.scan(OFFSETS, most=_EVERYTHING):
            spot = Spot(group, Place(token, partition))
            if spot in found:
                found[spot] = moved.offset
        return found
