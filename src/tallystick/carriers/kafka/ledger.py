"""What the ledger says of the topics that a node carries, in Kafka's words, and what its notary writes there."""

from __future__ import annotations

from collections.abc import Mapping

from tallystick.carriers.kafka.administration import Spot
from tallystick.carriers.kafka.anchorer import Carried
from tallystick.carriers.kafka.behind import Written
from tallystick.carriers.kafka.notary import HOST
from tallystick.carriers.kafka.reconcile import Wanted, operations_of
from tallystick.carriers.registry import Host
from tallystick.carriers.storage import Place
from tallystick.ledger.block import Block
from tallystick.ledger.contracts import access
from tallystick.ledger.transaction import parse
from tallystick.trust.promise import NOTARISE_PREFIX, Anchor, is_notarised

_EVERYTHING = 1 << 20
_BLOCKS_AT_ONCE = 256


class NotaryLedger:
    def __init__(self, host: Host) -> None:
        self._ledger, self._node, self.write = host.ledger, host.signer.principal, host.write

    def topics(self) -> dict[bytes, Carried]:
        """The topics that the node carries."""
        return {
            key[6:]: Carried(value[2], value[3], value[5])
            for key, value in self._ledger.scan(b"topic/", _EVERYTHING)
            if self._node in value[5] and not value[9]
        }

    def is_anchored(self, token: bytes) -> bool:
        """Whether the ledger knows of records in a topic."""
        return bool(self._ledger.scan(b"anchor/" + token, 1))

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

    def wanted(self) -> Wanted:
        """Kafka's rules as the ledger has them."""
        partitions = {token: topic.partitions for token, topic in self.topics().items()}
        rights = {
            (key[22:38], key[6:22]): operations_of(value[1], access.decide, HOST)
            for key, value in self._ledger.scan(b"right/", _EVERYTHING)
            if key[6:22] in partitions
        }
        principals = [key[9:] for key, _ in self._ledger.scan(b"identity/", _EVERYTHING)]
        blacklisted = [key[11:] for key, value in self._ledger.scan(b"reputation/", _EVERYTHING) if value[3]]
        return Wanted(rights, partitions, principals, blacklisted, self._group_offsets(partitions))

    def _group_offsets(self, partitions: Mapping[bytes, int]) -> dict[Spot, int]:
        """Where groups go on reading in these topics."""
        found = {
            Spot(key[6:], Place(token, partition)): 0
            for key, value in self._ledger.scan(b"group/", _EVERYTHING)
            for token in value[4]
            for partition in range(partitions.get(token, 0))
        }
        for key, value in self._ledger.scan(b"offset/", _EVERYTHING):
            spot = Spot(key[7:23], Place(key[23:39], int.from_bytes(key[39:43], "big")))
            if spot in found:
                found[spot] = value[0]
        return found
