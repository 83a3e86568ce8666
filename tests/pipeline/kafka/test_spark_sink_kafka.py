"""Spark writes to a topic on Kafka beside a notary that carries no parcels: the tasks go to the brokers themselves, by
the way that the driver lends them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker import await_access, broker, node_settings
from lake import Lake, fails, seqs
from pyspark.sql import SparkSession
from stack import Stack
from test_spark_sink import delivered_seqs, frame, stream, write

from tallystick.carriers.kafka.client import KafkaClient
from tallystick.identity.kafka import go_direct

pytestmark = pytest.mark.long  # two engines at once


@pytest.fixture(scope="module")
def notary_lake(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Lake]:
    with Stack(tmp_path_factory.mktemp("notary-lake"), node={**node_settings(broker()), "gateway": False}) as stack:
        lake = Lake(stack, spark)
        go_direct(lake.reader.identity, lake.reader.node)
        lake.reader = stack.again(lake.reader)
        yield lake


def test_a_frame_and_a_stream_are_written_past_a_notary(notary_lake: Lake, kafka: KafkaClient, tmp_path: Path) -> None:
    topic = notary_lake.topic("onto-kafka", partitions=2)
    said = fails(lambda: write(topic, frame(notary_lake, 0, 10)))
    assert "this node is a notary" in said
    assert "tally principal kafka" in said
    go_direct(notary_lake.car.identity, notary_lake.car.node)
    for session in (notary_lake.car, notary_lake.reader):
        await_access(kafka, session, topic.token)
    write(topic, frame(notary_lake, 0, 10))
    write(topic, frame(notary_lake, 10, 20), keys="driver", lanes=str(tmp_path / "lanes"))
    assert delivered_seqs(topic) == list(range(20)) == seqs(topic.read())
    source = notary_lake.topic("copied-kafka")
    for session in (notary_lake.car, notary_lake.reader):
        await_access(kafka, session, source.token)
    stream(source, topic.stream(), tmp_path / "checkpoint")
    assert delivered_seqs(source) == list(range(20))
