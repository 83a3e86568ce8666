"""A node that carries on Kafka: the client that its settings name, and what Kafka has to know of the ledger.

Apart from `core`, so that a node whose parcels lie in its own log loads nothing of Kafka.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tallystick.carriers.kafka.administration import Spot
from tallystick.carriers.kafka.carrier import Carried, KafkaCarrier
from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.kafka.notary import HOST
from tallystick.carriers.kafka.reconcile import Reconciler, Wanted, operations_of
from tallystick.carriers.log.segments import Place
from tallystick.errors import Misuse
from tallystick.ledger.contracts import access
from tallystick.ledger.engine import NodeLedger
from tallystick.node.settings import NodeSettings

_EVERYTHING = 1 << 20


def open_client(settings: NodeSettings) -> KafkaClient:
    given: dict[str, str] = {}
    if settings.kafka_settings:
        try:
            given = json.loads(Path(settings.kafka_settings).read_text())
        except (OSError, ValueError) as error:
            raise Misuse(f"{settings.kafka_settings}: not a JSON file of Kafka settings: {error}") from error
    return KafkaClient({"bootstrap.servers": settings.carrier.removeprefix("kafka://"), **given})


def open_carrier(kafka: KafkaClient, ledger: LedgerForKafka, *parts: Any, **options: Any) -> KafkaCarrier:
    """A carrier of these parts over Kafka, whose own rules follow the ledger."""
    reconciler = Reconciler(kafka, ledger.wanted)
    return KafkaCarrier(kafka, *parts, topics=ledger.topics, reconciler=reconciler, **options)


class LedgerForKafka:
    """What the ledger says of the topics that `node` carries, in Kafka's words."""

    def __init__(self, ledger: NodeLedger, node: bytes) -> None:
        self._ledger, self._node = ledger, node

    def topics(self) -> dict[bytes, Carried]:
        """The topics that the node carries."""
        return {
            key[6:]: Carried(value[2], value[3], value[5])
            for key, value in self._ledger.scan(b"topic/", _EVERYTHING)
            if self._node in value[5] and not value[9]
        }

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
