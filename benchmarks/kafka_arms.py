"""The three arms of `make bench-kafka`, on one Kafka, with one client library, over TLS, with the same records.

`Plain` writes each record as orjson and reads it back with `consume` and `orjson.loads`. `Sealed` is everything:
gathering, sealing, spool, Kafka, and beside it the notary in a process of its own that judges, writes operations and
anchors; on the way back headers and proofs from the notary, bodies from Kafka, full verification, opening into Arrow.
`Unsealed` is the carrier with sealing off: the same gathering, the same columnar message, compressed as in a parcel,
through the same client of Kafka, and back into checked Arrow; no key, hash, signature, spool, guard or ledger. It shows
what of the difference is columns, and what sealing takes of it. The product has no such mode.

The notary runs at the lowest priority: its time is told apart, and where this is not a trial it has another machine.

All three wait for all replicas. Who measures calls `send`, then `settle` (until the notary has anchored all of it, so
that no arm runs in another's wake), and `fetch`, which reads from the first record on.
"""

from __future__ import annotations

import os
import time
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import confluent_kafka
import data
import orjson
import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic
from node import Ours

from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.storage import Place
from tallystick.client.publish import Delivery, Publisher
from tallystick.client.subscribe import Subscriber
from tallystick.engines.kafka import KafkaCluster
from tallystick.errors import TallystickError
from tallystick.identity.kafka import go_direct
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.parcel.parcel import decode_section, encode_section
from tallystick.parcel.seal import pack
from tallystick.record.batch import Batch, open_batch
from tallystick.record.gather import to_batches

FETCH_BYTES = 4 << 20  # at once, as subscribers do
HANDED_OVER = 4_096  # dicts that an application hands over at once
STORED_S = 120.0
NOTARY_NICE = 19  # it has a machine of its own elsewhere; here it takes what the arm under measure leaves


class Arm(Protocol):
    """One way to bring records of one topic to Kafka and back."""

    topic: str  # as Kafka calls it

    def send(self, rows: Any) -> None:
        """Dicts or columns; returns when all replicas have them."""

    def settle(self) -> None:
        """Wait until nobody works on them any more."""

    def fetch(self, records: int) -> None:
        """So many of them, from the first on."""

    def close(self) -> None: ...


class Plain:
    """One Kafka record for each record."""

    def __init__(self, cluster: KafkaCluster, topic: str, partitions: int = 1, **settings: str) -> None:
        self.topic, self._settings = topic, {**cluster.operator(), "log_level": "1"}
        make_topic(cluster, topic, partitions)
        producing = {
            "enable.idempotence": "true",
            "linger.ms": "5",
            "queue.buffering.max.messages": "2000000",
            "queue.buffering.max.kbytes": "2000000",
        }
        self.producer = confluent_kafka.Producer({**self._settings, **producing, **settings})
        self._consumer: Any = None

    def send(self, rows: list[dict[str, Any]]) -> None:
        produce, topic = self.producer.produce, self.topic
        for number, row in enumerate(rows):
            produce(topic, orjson.dumps(row))
            if number % 10_000 == 0:
                self.producer.poll(0)
        if left := self.producer.flush(STORED_S):
            raise RuntimeError(f"{left} records were not stored")

    def settle(self) -> None:
        pass

    def fetch(self, records: int) -> None:
        consumer = self._consumer = self._consumer or self.consumer()
        consumer.assign([confluent_kafka.TopicPartition(self.topic, 0, 0)])
        while records:
            for message in consumer.consume(min(records, 10_000), 1.0):
                if message.error() is None:
                    orjson.loads(message.value())
                    records -= 1
        consumer.unassign()

    def consumer(self, **settings: str) -> Any:
        """A consumer of the first partition, from its beginning."""
        # A full queue is looked at again after 10 ms, as by our own consumers: the library would wait for a second.
        asked = {"group.id": "bench", "enable.auto.commit": "false", "fetch.queue.backoff.ms": "10"}
        asked |= {**self._settings, **settings}
        consumer = confluent_kafka.Consumer(asked)
        consumer.assign([confluent_kafka.TopicPartition(self.topic, 0, 0)])
        return consumer

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()


class Unsealed:
    """One Kafka record for each batch: what a parcel's body is before it is encrypted, and nothing around it."""

    def __init__(self, cluster: KafkaCluster, name: str, size: int) -> None:
        self.place, self._size, self._end = Place(sha256(name.encode()).digest()[:16], 0), size, 0
        self.topic = self.place.token.hex()
        make_topic(cluster, self.topic, 1)
        self._kafka = KafkaClient(cluster.operator())

    def send(self, rows: Any) -> None:
        whole = to_batches(rows, data.SCHEMA.arrow)
        sent = []
        for first in range(0, whole.num_rows, self._size):
            batch = Batch.of(data.SCHEMA, whole.slice(first, self._size))
            sent.append(self._kafka.produce(self.place, b"", encode(batch), ()))
        self._kafka.flush(sent, STORED_S)
        self._end = max(one.offset for one in sent if one.offset is not None) + 1

    def settle(self) -> None:
        pass

    def fetch(self, records: int) -> None:
        at = 0
        while records > 0:
            for record in self._kafka.read(self.place, at, self._end, FETCH_BYTES):
                records -= decode(record.value).rows
                at = record.offset + 1

    def close(self) -> None:
        self._kafka.close()


def encode(batch: Batch) -> bytes:
    """The section of `parcel/seal.py`, before it is encrypted."""
    ((_, codec, size, content),) = pack(batch, "planes").groups
    return encode_section(codec, batch.rows, 0, size, content, False)


def decode(value: bytes) -> Batch:
    aligned = memoryview(pa.allocate_buffer(len(value))).cast("B")
    aligned[:] = value
    section = decode_section(aligned)
    return open_batch(section.content, data.SCHEMA, section.count)


class Sealed:
    """Everything on: parcels of `size` records through an instance's topic of the same name."""

    def __init__(self, instance: Direct, name: str, size: int) -> None:
        self._instance, self.topic = instance, instance.create(name)
        self._publisher: Publisher = instance.car.publisher(name, batch_rows_max=size, heartbeat_s=3600.0)
        self._subscribers: dict[str, Subscriber] = {
            verify: instance.reader.subscriber(name, verify=verify) for verify in ("full", "fast")
        }
        for subscriber in self._subscribers.values():
            subscriber.poll(0)  # partitions are dealt with the first
        self._end = 0

    def send(self, rows: Any) -> None:
        step = HANDED_OVER if isinstance(rows, list) else len(rows)
        for first in range(0, len(rows), step):
            self._publisher.send(rows[first : first + step], self._stored)
        if left := self._publisher.flush(STORED_S):
            raise RuntimeError(f"{left} parcels were not stored")

    def _stored(self, error: TallystickError | None, delivery: Delivery | None) -> None:
        if delivery is None:
            raise RuntimeError("a parcel was not stored") from error
        ((_, _, offset),) = delivery.offsets
        self._end = offset + 1

    def settle(self) -> None:
        while self._instance.anchored(self.topic) < self._end:
            time.sleep(0.05)

    def fetch(self, records: int, verify: str = "full") -> None:
        subscriber = self._subscribers[verify]
        subscriber.seek(0, 0)
        while records > 0:
            records -= sum(one.batch.rows for one in subscriber.poll(1_000))

    def close(self) -> None:
        self._publisher.stop()
        for subscriber in self._subscribers.values():
            subscriber.close()


class Direct(Ours):
    """An instance on Kafka whose clients go to Kafka themselves; its node is gateway and notary."""

    def __init__(self, folder: Path, cluster: KafkaCluster, notary_nice: int = NOTARY_NICE) -> None:
        super().__init__(
            folder,
            carrier=cluster.carrier,
            carrier_settings={
                "kafka_settings": str(cluster.operator_file),
                "kafka_client_settings": str(cluster.client_file),
            },
        )
        self._kafka = KafkaClient(cluster.operator())
        self._notary_nice = notary_nice

    def __enter__(self) -> Direct:
        super().__enter__()
        for session in (self.car, self.reader):
            go_direct(session.identity, session.node)
        self.car, self.reader = self.open(self.car.identity), self.open(self.reader.identity)
        for thread in os.listdir(f"/proc/{self.pid}/task"):  # those that they start inherit it
            os.setpriority(os.PRIO_PROCESS, int(thread), self._notary_nice)
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._kafka.close()

    def create(self, name: str, partitions: int = 1) -> str:
        """A topic, once Kafka lets car and reader at it; what Kafka calls it."""
        before = set(self._kafka.topics())
        super().create(name, partitions)
        users = {f"User:{one.identity.principal.hex()}" for one in (self.car, self.reader)}
        while True:
            for token in set(self._kafka.topics()) - before:
                if users <= {entry.user for entry in self._kafka.access_entries() if entry.name == token.hex()}:
                    return token.hex()
            time.sleep(0.1)

    def anchored(self, topic: str, partition: int = 0) -> int:
        """How many parcels of a partition the ledger vouches for."""
        row = self.reader.view.row(ANCHORS(bytes.fromhex(topic), partition))
        return 0 if row is None else row.size


def make_topic(cluster: KafkaCluster, topic: str, partitions: int) -> None:
    admin = AdminClient(cluster.operator())  # kept: what it was asked ends with it
    for future in admin.create_topics([NewTopic(topic, partitions)]).values():
        future.result(30)
