"""Three brokers that replicate one another: one is killed under load, and nothing that was acknowledged is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from actors import SCHEMA, await_topic, read_rows, rows
from broker import broker, node_settings, straight
from stack import READ, WRITE, Stack, wait_until

from tallystick.carriers.kafka.client import KafkaClient
from tallystick.client.findings import Finding
from tallystick.client.publish import Delivery, Publisher
from tallystick.errors import TallystickError
from tallystick.node.devkafka import Broker, Cluster

pytestmark = pytest.mark.long

PATIENCE_S = 90.0  # until the others notice that a broker is gone (Kafka gives it nine seconds), on a busy machine


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three brokers that no other test needs: gone afterwards."""
    three = broker(3)
    yield three
    for one in three.brokers:
        one.kill()


class Load:
    """Rows on their way, and which of them were acknowledged."""

    def __init__(self, publisher: Publisher, first: int) -> None:
        self._publisher, self._next = publisher, first
        self.sent: list[int] = []
        self.acknowledged: list[int] = []
        self.failed: list[TallystickError] = []

    def send(self, count: int) -> None:
        for _ in range(count):
            self._publisher.send(rows(self._next), on_delivery=self._heard(self._next))
            self.sent.append(self._next)
            self._next += 1

    def _heard(self, number: int) -> Callable[[TallystickError | None, Delivery | None], None]:
        def hear(error: TallystickError | None, _: Delivery | None) -> None:
            if error is None:
                self.acknowledged.append(number)
            else:
                self.failed.append(error)

        return hear

    def await_acknowledged(self, count: int) -> None:
        def poll() -> bool:
            self._publisher.poll(0)
            return len(self.acknowledged) >= count

        wait_until(poll, PATIENCE_S)

    def finish(self) -> None:
        assert self._publisher.flush(PATIENCE_S) == 0
        assert (self.failed, sorted(self.acknowledged)) == ([], self.sent)


def leader(kafka: KafkaClient, cluster: Cluster, token: bytes) -> Broker:
    partition = kafka.admin.list_topics(token.hex(), timeout=10).topics[token.hex()].partitions[0]
    return cluster.brokers[partition.leader - 1]


def in_sync(kafka: KafkaClient, token: bytes) -> int:
    return len(kafka.admin.list_topics(token.hex(), timeout=10).topics[token.hex()].partitions[0].isrs)


def test_the_leader_is_killed_under_load_and_every_acknowledged_parcel_is_there_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    kafka = KafkaClient(cluster.operator())
    with Stack(tmp_path, node=node_settings(cluster)) as stack:
        owner = stack.tenant("acme")
        token = stack.topic(owner, "brakes", SCHEMA)
        await_topic(stack, token)
        people = [stack.principal("acme", name) for name in ("behind", "itself", "reader", "straight-reader")]
        for person, operations in zip(people, (WRITE, WRITE, READ, READ), strict=True):
            stack.grant(owner, token, person, operations)
        behind, reader = people[0], people[2]
        itself, own_reader = straight(stack, people[1], kafka), straight(stack, people[3], kafka)
        wait_until(lambda: in_sync(kafka, token) == 3)
        with behind.publisher("brakes") as one, itself.publisher("brakes") as other:
            loads = [Load(one, 0), Load(other, 1_000)]
            for load in loads:
                load.send(40)
                load.await_acknowledged(20)
            killed = leader(kafka, cluster, token)
            for load in loads:
                load.send(40)
            killed.kill()
            for load in loads:
                load.send(40)
            for load in loads:
                load.finish()
        assert leader(kafka, cluster, token) is not killed
        expected = sorted(number for load in loads for number in load.sent)
        for who in (reader, own_reader):
            findings: list[Finding] = []
            with who.subscriber("brakes", on_finding=findings.append) as subscriber:
                assert sorted(read_rows(subscriber, len(expected))) == expected
            assert findings == []
        killed.start()
        wait_until(lambda: in_sync(kafka, token) == 3, PATIENCE_S)
    kafka.close()
