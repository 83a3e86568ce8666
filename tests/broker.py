"""One Kafka of each size for all tests of a run: started when the first asks for it, stopped at the end."""

from __future__ import annotations

import atexit
import tempfile
from pathlib import Path
from typing import Any

import pytest
from stack import Stack, wait_until

from tallystick.carriers.kafka.anchorer import KafkaAnchorer
from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.kafka.direct import DirectKafka
from tallystick.client.session import Session
from tallystick.engines.kafka import KafkaCluster
from tallystick.errors import Unavailable
from tallystick.identity.kafka import go_direct
from tallystick.ledger.engine import Query

_started: dict[int, KafkaCluster] = {}


def node_settings(cluster: KafkaCluster) -> dict[str, Any]:
    """What makes a node a gateway and notary of this cluster."""
    files = {"kafka_settings": cluster.operator_file, "kafka_client_settings": cluster.client_file}
    return {"carrier": cluster.carrier, "carrier_settings": {key: str(path) for key, path in files.items()}}


def broker(brokers: int = 1) -> KafkaCluster:
    """The run's cluster of so many brokers; the test is skipped where Kafka cannot be had."""
    if brokers not in _started:
        pytest.importorskip("confluent_kafka")
        folder = tempfile.TemporaryDirectory(prefix="tally-kafka-")
        atexit.register(folder.cleanup)
        try:
            cluster = KafkaCluster.create(Path(folder.name), brokers)
            atexit.register(cluster.stop)
            _started[brokers] = cluster.start()
        except Unavailable as error:
            pytest.skip(f"no Kafka here: {error}")
    return _started[brokers]


def await_access(kafka: KafkaClient, session: Session, token: bytes | None = None) -> None:
    """Until Kafka itself lets a principal at a topic, or at any."""
    user, name = f"User:{session.identity.principal.hex()}", token.hex() if token else None
    wait_until(lambda: any(one.user == user and name in (None, one.name) for one in kafka.access_entries()))


def straight(stack: Stack, session: Session, kafka: KafkaClient, *, has_right: bool = True) -> Session:
    """The same principal on its own way to Kafka, once Kafka knows of its right."""
    if has_right:
        await_access(kafka, session)
    go_direct(session.identity, session.node)
    direct = stack.again(session)
    assert isinstance(direct.carrier, DirectKafka)
    return direct


def anchorer_of(stack: Stack) -> KafkaAnchorer:
    """That of a node which is a gateway and notary."""
    anchorer = stack.node.core.anchorer
    assert isinstance(anchorer, KafkaAnchorer)
    return anchorer


def kafka_of(session: Session) -> KafkaClient:
    """The session's own way to Kafka, past the node."""
    assert isinstance(session.carrier, DirectKafka)
    return session.carrier._kafka


def await_round(anchorer: KafkaAnchorer) -> None:
    """Until the gateway has begun to hold Kafka to the ledger once more; the round before is over then."""
    before = anchorer._checked_ms
    wait_until(lambda: anchorer._checked_ms > before)


def drifts(stack: Stack, token: bytes) -> list[str]:
    """What the ledger tells of changes to the topic that no node made."""
    found = stack.node.ledger.audit(Query(token=token))
    return [item.fields[5] for item in found if item.fields[6] == "kafka" and item.fields[2] == 0]
