"""Spark reads a topic on Kafka: headers and proofs from the notary, bodies from the brokers, on the executors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker import await_access, broker, node_settings
from lake import Lake, rows, seqs
from pyspark.sql import SparkSession
from stack import Stack
from streams import arrived_seqs, run

from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.kafka.direct import FILE
from tallystick.carriers.storage import Place
from tallystick.identity.kafka import go_direct

pytestmark = pytest.mark.long  # two engines at once


@pytest.fixture(scope="module")
def kafka_lake(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Lake]:
    with Stack(tmp_path_factory.mktemp("kafka-lake"), node=node_settings(broker())) as stack:
        lake = Lake(stack, spark)
        go_direct(lake.reader.identity, lake.reader.node)
        assert (Path(lake.home) / FILE).exists()
        yield lake


def test_batches_and_streams_come_from_the_brokers(kafka_lake: Lake, kafka: KafkaClient, tmp_path: Path) -> None:
    topic = kafka_lake.topic("direct", partitions=3)
    await_access(kafka, kafka_lake.reader, topic.token)
    topic.publish(rows(range(500)), lanes=4, key="vin", batch_rows_max=50)
    assert seqs(topic.read()) == list(range(500))
    assert seqs(topic.read(verify="fast", provenance="true").where("_offset >= 0")) == list(range(500))
    run(topic.stream(), tmp_path / "out", tmp_path / "checkpoint")
    assert arrived_seqs(tmp_path / "out") == list(range(500))


def test_what_was_refused_is_told_and_the_rest_is_read(kafka_lake: Lake, kafka: KafkaClient, tmp_path: Path) -> None:
    topic = kafka_lake.topic("mixed")
    await_access(kafka, kafka_lake.reader, topic.token)
    topic.publish(rows(range(5)))
    sent = kafka.produce(Place(topic.token, 0), b"k", b"plain junk", [])
    kafka.flush([sent])
    topic.publish(rows(range(5, 9)))
    told = tmp_path / "quarantine"
    assert seqs(topic.read(onBad="quarantine", quarantinePath=str(told))) == list(range(9))
    assert [row["reason"] for row in kafka_lake.spark.read.parquet(str(told)).collect()] == ["refused"]
    assert seqs(topic.read()) == list(range(9))
