"""A partition whose broker is down, and a broker whose disk is full: told with the remedy, other partitions go on, and
nothing that was acknowledged is lost when they are back."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
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
from tallystick.client.publish import Publisher
from tallystick.client.session import Session
from tallystick.errors import Unavailable
from tallystick.node.devkafka import Broker, Cluster

pytestmark = pytest.mark.long

PATIENCE_S = 300.0  # until brokers notice, and are up again, on a busy machine
DISK_MB = 160


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


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own, small enough to fill."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tallystick", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system of its own for a broker: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


@contextmanager
def small_disk_of(broker: Broker) -> Iterator[Path]:
    """The same below the data of a broker that was made already."""
    made = broker.folder.with_suffix(".made")
    broker.folder.rename(made)
    with small_disk(broker.folder):
        shutil.copytree(made, broker.folder, dirs_exist_ok=True)
        yield broker.folder


def fill(path: Path) -> None:
    """Until nothing more fits."""
    piece = bytes(1 << 16)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT), "wb", buffering=0) as file:
        while piece:
            try:
                file.write(piece)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                piece = piece[: len(piece) // 2]


def test_a_full_disk_ends_the_broker_and_nothing_is_lost_when_there_is_room_again(tmp_path: Path) -> None:
    """Kafka may come back with a record several times under one offset: its index found no room when its log had."""
    with (
        small_disk(tmp_path / "kafka") as disk,
        Cluster.create(disk) as cluster,
        Stack(tmp_path / "stack", node=node_settings(cluster)) as stack,
    ):
        town = Town(stack)
        town.topic("brakes")
        with town.car.publisher("brakes", retry_s=0.1, batch_rows_max=1) as publisher:
            sent = publish_until_it_ends(publisher, cluster.brokers[0], disk)
            publisher.send(rows(sent))
            assert publisher.flush(1) > 0
            wait_until(lambda: stack.node.carrier._sealed.away is not None, PATIENCE_S)
            told = refusal(town.car, "brakes")
            assert "disk is full" in (told.hint or "")
            (disk / "filler").unlink()
            cluster.start()
            assert publisher.flush(PATIENCE_S) == 0
        town.check_read("brakes", list(range(sent + 1)))


def test_a_full_disk_of_one_broker_of_three_stops_nobody(tmp_path: Path) -> None:
    cluster = Cluster.create(tmp_path / "kafka", 3)
    with (
        small_disk_of(cluster.brokers[2]) as disk,
        cluster,
        Stack(tmp_path / "s", node=node_settings(cluster)) as stack,
    ):
        town = Town(stack)
        town.topic("brakes")
        with town.car.publisher("brakes", retry_s=0.1, batch_rows_max=1) as publisher:
            sent = publish_until_it_ends(publisher, cluster.brokers[2], disk)
            publisher.send(rows(sent))
            assert publisher.flush(PATIENCE_S) == 0  # by the two that are left
            town.check_read("brakes", list(range(sent + 1)))
            (disk / "filler").unlink()
            cluster.start()
            publisher.send(rows(sent + 1))
            assert publisher.flush(PATIENCE_S) == 0
        town.check_read("brakes", list(range(sent + 2)))


def publish_until_it_ends(publisher: Publisher, broker: Broker, disk: Path) -> int:
    """Publish, fill the disk, and go on until the broker has ended; how many rows were sent."""
    for number in range(20):
        publisher.send(rows(number))
    assert publisher.flush(PATIENCE_S) == 0
    fill(disk / "filler")
    sent = 20
    while broker.pid is not None:  # a page of its files may have had room yet
        publisher.send(rows(sent))
        sent += 1
        publisher.flush(0.5)
    return sent
