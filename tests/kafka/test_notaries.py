"""Two notaries and no gateway: direct clients on Kafka, one notary killed, and nothing anchored twice or lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from actors import SCHEMA, await_topic, read_rows, rows
from broker import broker, node_settings, straight
from chain_stack import chain_of
from stack import PASSPHRASE, READ, WRITE, Stack, wait_until

from tallystick.carriers.kafka.anchorer import rank
from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.storage import Place
from tallystick.client.reader import Finding
from tallystick.client.session import Session
from tallystick.errors import Refused
from tallystick.ledger.block import parse
from tallystick.node.instance import create_node
from tallystick.node.settings import NodeSettings
from tallystick.trust.promise import Anchor, is_notarised

pytestmark = [pytest.mark.kafka, pytest.mark.chain]

PATIENCE_S = 60.0
PARTITIONS = 8  # enough that each of two notaries has some of them first, nearly always


class Second:
    """`tally notary` as a process of its own."""

    def __init__(self, stack: Stack, folder: Path, settings: NodeSettings) -> None:
        now_ms = int(stack.clock.now() * 1000)
        self.certificate = create_node(stack.folders.root, folder, PASSPHRASE, settings, now_ms, stack.entropy)
        self._folder = folder
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tallystick.cli", "notary", str(self._folder), "--supervised", "--json"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.url = json.loads(self.process.stdout.readline())["url"]

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, how)
        self.process.communicate()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Stack, Second]]:
    kafka = {**node_settings(broker()), "gateway": False}
    with chain_of(tmp_path / "fleet", 1, **kafka) as (prepared, _), prepared as stack:
        settings = NodeSettings(**{**stack._node_settings, "port": 0})
        second = Second(stack, tmp_path / "second", settings)
        wait_until(lambda: len(stack.authority.authority.subjects.nodes()) == 2, PATIENCE_S)
        try:
            yield stack, second
        finally:
            second.kill(signal.SIGTERM)


def shared_topic(stack: Stack, owner: Session, *notaries: bytes) -> tuple[str, bytes]:
    """A topic in which each notary comes first in some partition; by chance one may come first in all."""
    name = "brakes"
    while True:
        token = stack.topic(owner, name, SCHEMA, partitions=PARTITIONS)
        places = [Place(token, partition) for partition in range(PARTITIONS)]
        if all(any(rank(place, notaries, one) == 0 for place in places) for one in notaries):
            return name, token
        name += "-again"


def anchors(stack: Stack, token: bytes) -> dict[int, list[tuple[bytes, Anchor]]]:
    """Who anchored what, partition by partition, as the chain has it."""
    found: dict[int, list[tuple[bytes, Anchor]]] = {}
    for height in range(stack.node.ledger.height + 1):
        for data in stack.node.ledger.blocks(height, 1)[0][1]:
            transaction = parse(data)
            for entry in transaction.entries:
                if is_notarised(entry) and (anchor := Anchor.decode_entry(entry)).token == token:
                    found.setdefault(anchor.partition, []).append((transaction.author, anchor))
    return found


def sizes(stack: Stack, token: bytes) -> list[int]:
    return [stack.node.carrier.ends(token, partition)[0] for partition in range(PARTITIONS)]


def ends(kafka: KafkaClient, token: bytes) -> list[int]:
    """How much Kafka holds."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    asked = {TopicPartition(token.hex(), partition): OffsetSpec.latest() for partition in range(PARTITIONS)}
    return [future.result(10).offset for future in kafka.admin.list_offsets(asked).values()]


@pytest.mark.long
def test_two_share_the_work_and_one_survives_the_other(two: tuple[Stack, Second]) -> None:
    stack, second = two
    kafka, owner = KafkaClient(broker().operator()), stack.tenant("acme")
    me, other = stack.node.identifier, second.certificate.subject
    name, token = shared_topic(stack, owner, me, other)
    await_topic(stack, token)
    car, reader = stack.principal("acme", "car"), stack.principal("acme", "reader")
    stack.grant(owner, token, car, WRITE)
    stack.grant(owner, token, reader, READ)
    with pytest.raises(Refused, match="notary"):  # it carries no parcels
        car.node.publish(token, [b"x"])
    car, reader = straight(stack, car, kafka), straight(stack, reader, kafka)
    settings: dict[str, Any] = {
        "acks": "anchored",
        "anchor_check_s": 0.1,
        "batch_rows_max": 1,
        "lanes": 2 * PARTITIONS,
        "key": "seq",
    }
    numbers = count()
    with car.publisher(name, **settings) as publisher:

        def send(how_many: int) -> None:
            for number in islice(numbers, how_many):
                publisher.send(rows(number))

        def are_both_at_work() -> bool:
            """One that was slow to begin has its share as soon as it is quicker."""
            send(32)
            assert publisher.flush(PATIENCE_S) == 0
            return {author for found in anchors(stack, token).values() for author, _ in found} == {me, other}

        wait_until(are_both_at_work, PATIENCE_S)
        send(8)
        second.kill()
        send(8)
        assert publisher.flush(PATIENCE_S) == 0
    findings: list[Finding] = []
    sent = next(numbers)
    with reader.subscriber(name, on_finding=findings.append) as subscriber:
        assert sorted(read_rows(subscriber, sent)) == list(range(sent))
    assert findings == []
    wait_until(lambda: sizes(stack, token) == ends(kafka, token), PATIENCE_S)
    for found in anchors(stack, token).values():  # each continues the one before: no offset twice, none left out
        steps = [(anchor.before, anchor.size) for _, anchor in found]
        assert [before for before, _ in steps] == [0, *(size for _, size in steps[:-1])]
    kafka.close()
