"""Brokers that are killed, that are missing, whose disks are full: told with the remedy, partitions elsewhere go on,
and nothing that was acknowledged is lost.

Three brokers serve all tests but the last, which ends the only one there is.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from actors import SCHEMA, Hand, await_topic, publish, read_rows, rows
from broker import anchorer_of, broker, node_settings, straight
from stack import READ, WRITE, Stack, wait_until

from tallystick.authority.client import topic_entries
from tallystick.carriers.kafka.administration import TOPIC_SETTINGS
from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.storage import Place
from tallystick.client.publish import Delivery, Publisher
from tallystick.client.reader import Finding
from tallystick.client.session import Session
from tallystick.engines.kafka import Broker, KafkaCluster
from tallystick.errors import TallystickError, Unavailable
from tallystick.record.schema import Schema

pytestmark = pytest.mark.long

PATIENCE_S = 300.0  # until brokers notice (Kafka gives one nine seconds), and are up again, on a busy machine
DISK_MB = 160


class Town:
    """Topics on a Kafka, and who writes and reads them."""

    def __init__(self, stack: Stack, cluster: KafkaCluster, disk: Path | None) -> None:
        self.stack, self.cluster = stack, cluster
        self._disk = disk
        self.kafka = KafkaClient(cluster.operator())
        self.owner = stack.tenant("acme")
        self.car, self.reader = stack.principal("acme", "car"), stack.principal("acme", "reader")

    @property
    def disk(self) -> Path:
        """That of the last broker alone, small enough to fill."""
        if self._disk is None:
            pytest.skip("no file system of its own for a broker: not mounted here")
        return self._disk

    def topic(self, name: str, brokers: Sequence[int] = ()) -> bytes:
        """A topic that its car and its reader know; on these brokers alone, if they are named."""
        draft = self.owner.authority.bind_topic(name, Schema.parse(SCHEMA).encode())
        if brokers:
            self._make(draft.token, brokers)  # first, or the notary makes it
        self.owner.author.write(*topic_entries(draft, self.owner.holder))
        self.stack.grant(self.owner, draft.token, self.car, WRITE)
        self.stack.grant(self.owner, draft.token, self.reader, READ)
        await_topic(self.stack, draft.token)
        return draft.token

    def _make(self, token: bytes, brokers: Sequence[int]) -> None:
        from confluent_kafka.admin import NewTopic

        settings = {**TOPIC_SETTINGS, "min.insync.replicas": "1"}
        topic = NewTopic(token.hex(), 1, replica_assignment=[list(brokers)], config=settings)
        for future in self.kafka.admin.create_topics([topic]).values():
            future.result(PATIENCE_S)

    def leader(self, token: bytes) -> Broker:
        return self.cluster.brokers[int(self._partition(token).leader) - 1]

    def in_sync(self, token: bytes) -> int:
        return len(self._partition(token).isrs)

    def _partition(self, token: bytes) -> Any:
        return self.kafka.admin.list_topics(token.hex(), timeout=30).topics[token.hex()].partitions[0]

    def read(self, name: str, count: int, reader: Session | None = None) -> list[int]:
        """That many rows, or more where some come twice; nothing is found wrong with them."""
        findings: list[Finding] = []
        received: list[int] = []
        with (reader or self.reader).subscriber(name, on_finding=findings.append) as subscriber:
            wait_until(lambda: received.extend(read_rows(subscriber, 1)) or len(received) >= count, PATIENCE_S)
        assert findings == []
        return received


@contextmanager
def town_on(cluster: KafkaCluster, folder: Path, disk: Path | None) -> Iterator[Town]:
    try:
        with Stack(folder, node=node_settings(cluster.start())) as stack:
            town = Town(stack, cluster, disk)
            yield town
            town.kafka.close()
    finally:
        for one in cluster.brokers:
            one.kill()  # nobody needs what they hold


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """On three brokers, of which the last has a disk of its own."""
    broker()  # skips where Kafka cannot be had
    cluster = KafkaCluster.create(tmp_path_factory.mktemp("brokers"), 3)
    with ExitStack() as stack:
        disk = mount_below(cluster.brokers[-1], stack)
        yield stack.enter_context(town_on(cluster, tmp_path_factory.mktemp("town"), disk))


# --- a broker is killed ---


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


def test_the_leader_is_killed_under_load_and_every_acknowledged_parcel_is_there_once(town: Town) -> None:
    stack, token = town.stack, town.topic("led")
    people = [stack.principal("acme", name) for name in ("itself", "straight-reader")]
    for person, operations in zip(people, (WRITE, READ), strict=True):
        stack.grant(town.owner, token, person, operations)
    itself, own_reader = (straight(stack, person, town.kafka) for person in people)
    wait_until(lambda: town.in_sync(token) == 3, PATIENCE_S)
    with town.car.publisher("led") as one, itself.publisher("led") as other:
        loads = [Load(one, 0), Load(other, 1_000)]
        for load in loads:
            load.send(40)
            load.await_acknowledged(20)
        killed = town.leader(token)
        for load in loads:
            load.send(40)
        killed.kill()
        for load in loads:
            load.send(40)
        for load in loads:
            load.finish()
    assert town.leader(token) is not killed
    expected = sorted(number for load in loads for number in load.sent)
    for who in (town.reader, own_reader):
        assert sorted(town.read("led", len(expected), who)) == expected
    town.cluster.start()
    wait_until(lambda: town.in_sync(token) == 3, PATIENCE_S)


# --- the only broker of a partition is down ---


def refusal(session: Session, topic: str) -> Unavailable:
    """What somebody who publishes is told."""

    def publish_one() -> None:
        hand = Hand(session, topic)
        hand.send(hand.seal(99))

    with pytest.raises(Unavailable) as error:
        publish_one()
    return error.value


def test_a_partition_goes_offline_the_others_go_on_and_nothing_is_lost(town: Town) -> None:
    town.topic("kept", [1])
    place, sealed = Place(town.topic("lost", [2]), 0), anchorer_of(town.stack)._sealed
    for name in ("kept", "lost"):
        publish(town.car, name, [1])
    with town.car.publisher("lost", retry_s=0.1) as publisher:
        town.cluster.brokers[1].kill()
        publisher.send(rows(2))
        assert publisher.flush(1) > 0
        wait_until(lambda: sealed.trouble(place) is not None, PATIENCE_S)
        publish(town.car, "kept", [2])
        told = refusal(town.car, "lost")
        assert "no broker serves it" in str(told)
        assert "bring the missing brokers back" in (told.hint or "")
        publish(town.car, "kept", [3])
        assert town.read("kept", 3) == [1, 2, 3]
        town.cluster.start()
        assert publisher.flush(PATIENCE_S) == 0
    assert town.read("lost", 2) == [1, 2]


# --- full disks ---


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system of its own below a folder, small enough to fill; none where one may not be mounted."""
    folder.mkdir(exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tallystick", str(folder)], capture_output=True, check=False
    )
    try:
        yield None if mounted.returncode else folder
    finally:
        if not mounted.returncode:
            subprocess.run(["umount", "-l", str(folder)], check=False)


def mount_below(broker: Broker, stack: ExitStack) -> Path | None:
    """The same below the data of a broker that was made already."""
    made = broker.folder.with_suffix(".made")
    broker.folder.rename(made)
    disk = stack.enter_context(small_disk(broker.folder))
    shutil.copytree(made, broker.folder, dirs_exist_ok=True)
    return disk


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


def test_a_full_disk_of_one_broker_of_three_stops_nobody(town: Town) -> None:
    last, disk = town.cluster.brokers[-1], town.disk
    town.topic("narrow")
    with town.car.publisher("narrow", retry_s=0.1, batch_rows_max=1) as publisher:
        sent = publish_until_it_ends(publisher, last, disk)
        publisher.send(rows(sent))
        assert publisher.flush(PATIENCE_S) == 0  # by the two that are left
        assert town.read("narrow", sent + 1) == list(range(sent + 1))
        (disk / "filler").unlink()
        town.cluster.start()
        publisher.send(rows(sent + 1))
        assert publisher.flush(PATIENCE_S) == 0
    assert town.read("narrow", sent + 2) == list(range(sent + 2))


def test_a_full_disk_ends_the_broker_and_nothing_is_lost_when_there_is_room_again(tmp_path: Path) -> None:
    """Kafka may come back with a record several times under one offset: its index found no room when its log had."""
    broker()  # skips where Kafka cannot be had
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(tmp_path / "kafka"))
        cluster = KafkaCluster.create(tmp_path / "kafka")
        town = stack.enter_context(town_on(cluster, tmp_path / "stack", disk))
        town.topic("brakes")
        with town.car.publisher("brakes", retry_s=0.1, batch_rows_max=1) as publisher:
            sent = publish_until_it_ends(publisher, cluster.brokers[0], town.disk)
            publisher.send(rows(sent))
            assert publisher.flush(1) > 0
            wait_until(lambda: anchorer_of(town.stack)._sealed.away is not None, PATIENCE_S)
            told = refusal(town.car, "brakes")
            assert "disk is full" in (told.hint or "")
            (town.disk / "filler").unlink()
            cluster.start()
            assert publisher.flush(PATIENCE_S) == 0
        assert town.read("brakes", sent + 1) == list(range(sent + 1))
