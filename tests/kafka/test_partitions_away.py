"""A partition whose broker is down: told with the remedy, others go on, and nothing is lost when it is back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from actors import SCHEMA, Hand, await_topic, publish, read_rows, rows
from broker import node_settings
from stack import READ, WRITE, Stack, wait_until

from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.log.segments import Place
from tallystick.client.findings import Finding
from tallystick.client.session import Session
from tallystick.errors import Unavailable
from tallystick.node.devkafka import Cluster

pytestmark = pytest.mark.soak

PATIENCE_S = 300.0  # until brokers notice, and are up again, on a busy machine


class Town:
    """Topics on a Kafka, and who writes and reads them."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._owner = stack.tenant("acme")
        self.car, self.reader = stack.principal("acme", "car"), stack.principal("acme", "reader")

    def topic(self, name: str) -> bytes:
        token = self.stack.topic(self._owner, name, SCHEMA)
        self.stack.grant(self._owner, token, self.car, WRITE)
        self.stack.grant(self._owner, token, self.reader, READ)
        await_topic(self.stack, token)
        return token

    def check_read(self, name: str, expected: list[int]) -> None:
        findings: list[Finding] = []
        with self.reader.subscriber(name, on_finding=findings.append) as subscriber:
            received: list[int] = []
            wait_until(lambda: received.extend(read_rows(subscriber, 1)) or len(received) >= len(expected), PATIENCE_S)
        assert (received, findings) == (expected, [])


@contextmanager
def without_replicas(folder: Path) -> Iterator[Cluster]:
    """Three brokers, of which each partition is on one alone."""
    cluster = Cluster.create(folder, 3)
    for one in cluster.brokers:
        path = one.folder / "server.properties"
        settings = path.read_text().replace("default.replication.factor=3", "default.replication.factor=1")
        path.write_text(settings.replace("\nmin.insync.replicas=2", "\nmin.insync.replicas=1"))
    try:
        with cluster:
            yield cluster
    finally:
        for one in cluster.brokers:
            one.kill()


def leader(kafka: KafkaClient, name: str) -> int:
    """Of the topic's one partition, when it is known to all."""
    wait_until(lambda: 0 in kafka.admin.list_topics(name, timeout=30).topics[name].partitions, PATIENCE_S)
    return int(kafka.admin.list_topics(name, timeout=30).topics[name].partitions[0].leader)


def refusal(session: Session, topic: str) -> Unavailable:
    """What somebody who publishes is told."""

    def publish_one() -> None:
        hand = Hand(session, topic)
        hand.send(hand.seal(99))

    with pytest.raises(Unavailable) as error:
        publish_one()
    return error.value


def test_a_partition_goes_offline_the_others_go_on_and_nothing_is_lost(tmp_path: Path) -> None:
    with (
        without_replicas(tmp_path / "kafka") as cluster,
        Stack(tmp_path / "stack", node=node_settings(cluster)) as stack,
    ):
        town, kafka = Town(stack), KafkaClient(cluster.operator())
        shared = leader(kafka, stack.node.carrier._shared._name)  # what gateways share must stay
        tokens, names = {}, {}
        for number in range(9):  # Kafka deals them out
            name = f"topic-{number}"
            tokens[name] = town.topic(name)
            names[leader(kafka, tokens[name].hex())] = name
            if shared in names and len(names) > 1:
                break
        kept, lost = names.pop(shared), names.popitem()
        publish(town.car, kept, [1])
        publish(town.car, lost[1], [1])
        place, sealed = Place(tokens[lost[1]], 0), stack.node.carrier._sealed
        with town.car.publisher(lost[1], retry_s=0.1) as publisher:
            cluster.brokers[lost[0] - 1].kill()
            publisher.send(rows(2))
            assert publisher.flush(1) > 0
            wait_until(lambda: sealed.trouble(place) is not None, PATIENCE_S)
            publish(town.car, kept, [2])
            told = refusal(town.car, lost[1])
            assert "no broker serves it" in str(told)
            assert "bring the missing brokers back" in (told.hint or "")
            publish(town.car, kept, [3])
            town.check_read(kept, [1, 2, 3])
            cluster.start()
            assert publisher.flush(PATIENCE_S) == 0
        town.check_read(lost[1], [1, 2])
        kafka.close()
