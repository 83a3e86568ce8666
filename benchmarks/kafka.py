"""`make bench-kafka`: parcels through Kafka against plain Kafka, with the same client library and the same records.

The peer writes each record as orjson to a Kafka topic and reads it back with `consume` and `orjson.loads`. Ours is
everything: sealing, spool, Kafka, and beside it the notary that judges, writes operations and anchors; on the way back
headers and proofs from the notary, bodies from Kafka, full verification, opening into Arrow. Both producers wait for
all replicas. The notary works in a process of its own on the same two cores; what it costs is told in `notary_N`, CPU
for each record.

    produce_dicts_N, produce_columns_N    N records a parcel
    fetch_N                               into Arrow, against consume and parse
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import data
import harness
import orjson
from node import Ours

from tallystick.carriers.kafka.client import KafkaClient
from tallystick.client.kafka import go_direct
from tallystick.client.publish import Publisher
from tallystick.client.subscribe import Subscriber
from tallystick.node.devkafka import Cluster

SIZES = {64: 65_536, 512: 262_144, 4096: 524_288}  # records a parcel → records a run
ROUNDS_MAX = 5
TARGETS = {
    ("produce_dicts", 4096): 3.0,
    ("produce_columns", 4096): 5.0,
    ("fetch", 4096): 10.0,
    ("produce_dicts", 512): 1.5,
    ("produce_columns", 512): 3.0,
    ("fetch", 512): 4.0,
}


class Direct(Ours):
    """An instance on Kafka whose clients go to Kafka themselves."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        super().__init__(
            folder,
            carrier=cluster.url,
            kafka_settings=str(cluster.operator_file),
            kafka_client_settings=str(cluster.client_file),
        )
        self._kafka = KafkaClient(cluster.operator())

    def __enter__(self) -> Direct:
        super().__enter__()
        for session in (self.car, self.reader):
            go_direct(session)
        self.car, self.reader = self.open(self.car.identity), self.open(self.reader.identity)
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._kafka.close()

    def create(self, name: str, partitions: int = 1) -> None:
        """A topic, once Kafka lets car and reader at it."""
        before = set(self._kafka.topics())
        super().create(name, partitions)
        users = {f"User:{one.identity.principal.hex()}" for one in (self.car, self.reader)}
        while not any(
            users <= {entry.user for entry in self._kafka.access_entries() if entry.topic == token.hex()}
            for token in set(self._kafka.topics()) - before
        ):
            time.sleep(0.1)

    def send(self, size: int, rows: Any) -> None:
        if size not in self._publishers:
            self.create(f"bench{size}")
            self._publishers[size] = self.car.publisher(f"bench{size}", batch_rows_max=size, heartbeat_s=3600.0)
        publisher: Publisher = self._publishers[size]
        publisher.send(rows)
        if left := publisher.flush(120):
            raise RuntimeError(f"{left} parcels were not stored")

    def fetch(self, size: int, records: int) -> None:
        if size not in self._subscribers:
            self._subscribers[size] = self.reader.subscriber(f"bench{size}", fetch_bytes_max=4 << 20)
            while not self._subscribers[size].poll(200):
                pass  # the first anchor
        subscriber: Subscriber = self._subscribers[size]
        subscriber.seek(0, 0)
        found = 0
        while found < records:
            found += sum(one.batch.rows for one in subscriber.poll(100))

    @property
    def notary_cpu_s(self) -> float:
        with open(f"/proc/{self.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Plain:
    """The peer: one Kafka record for each record."""

    def __init__(self, cluster: Cluster, name: str, **settings: str) -> None:
        import confluent_kafka
        from confluent_kafka.admin import AdminClient, NewTopic

        self._name, self._settings = name, {**cluster.operator(), "log_level": "1"}
        admin = AdminClient(self._settings)
        for future in admin.create_topics([NewTopic(name, 1)]).values():
            future.result(30)
        self._producer = confluent_kafka.Producer(
            {
                **self._settings,
                "enable.idempotence": "true",
                "linger.ms": "5",
                "queue.buffering.max.messages": "2000000",
                "queue.buffering.max.kbytes": "2000000",
                **settings,
            }
        )

    def produce(self, rows: list[dict[str, Any]]) -> None:
        produce, name = self._producer.produce, self._name
        for number, row in enumerate(rows):
            produce(name, orjson.dumps(row))
            if number % 10_000 == 0:
                self._producer.poll(0)
        if left := self._producer.flush(120):
            raise RuntimeError(f"{left} records were not stored")

    def fetch(self, records: int) -> None:
        import confluent_kafka

        consumer = confluent_kafka.Consumer({**self._settings, "group.id": "bench", "enable.auto.commit": "false"})
        consumer.assign([confluent_kafka.TopicPartition(self._name, 0, 0)])
        left = records
        while left:
            for message in consumer.consume(min(left, 10_000), 1.0):
                if message.error() is None:
                    orjson.loads(message.value())
                    left -= 1
        consumer.close()


def cases(cluster: Cluster, folder: Path) -> Iterator[harness.Case | harness.Figure]:
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(Direct(folder / "ours", cluster))
        for size, records in SIZES.items():
            columns = data.columns(records)
            rows = data.dicts(columns)
            plain = Plain(cluster, f"plain-{size}")
            before, calls = ours.notary_cpu_s, [0]

            def send(rows: Any, size: int = size, calls: list[int] = calls) -> None:
                calls[0] += 1
                ours.send(size, rows)

            for name, given in (("produce_dicts", rows), ("produce_columns", columns)):
                yield harness.Case(
                    f"{name}_{size}",
                    lambda given=given, send=send: send(given),
                    lambda rows=rows, plain=plain: plain.produce(rows),
                    records,
                    target=TARGETS.get((name, size)),
                    waits=True,
                    rounds_max=ROUNDS_MAX,
                )
            yield harness.Case(
                f"fetch_{size}",
                lambda size=size, records=records: ours.fetch(size, records),
                lambda records=records, plain=plain: plain.fetch(records),
                records,
                target=TARGETS.get(("fetch", size)),
                waits=True,
                rounds_max=ROUNDS_MAX,
            )
            spent = ours.notary_cpu_s - before
            yield harness.Figure(f"notary_{size}", 1e9 * spent / (calls[0] * records), None, "ns CPU/record")


def _cluster(folder: str) -> Cluster:
    return Cluster.create(Path(folder) / "kafka")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS_MAX)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tally-bench-kafka-") as folder, _cluster(folder) as cluster:
        harness.keep("kafka", harness.run(cases(cluster, Path(folder)), arguments.rounds))
    print(harness.table("kafka"))


if __name__ == "__main__":
    main()
