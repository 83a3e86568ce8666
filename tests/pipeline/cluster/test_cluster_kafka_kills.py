"""A stream from Kafka on a cluster whose driver and workers are killed at random points: nothing twice, nothing missing
in the tables.

A worker is killed with its executor, as if its machine had gone, and comes back; a driver is killed with its JVM, and
started again on the same checkpoint. A seed decides whom and when. One seed by default; TALLY_KILL_SEEDS=20 tries that
many.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker import await_access, broker, node_settings
from drivers import ClusterDriver, kill_each
from lake import Lake, Topic, rows
from pyspark.sql import SparkSession
from stack import Stack
from streams import arrived_seqs, run

from tallystick.carriers.kafka.client import KafkaClient
from tallystick.engines.spark import SparkCluster
from tallystick.identity.kafka import go_direct

pytestmark = [pytest.mark.long, pytest.mark.kafka]

SEEDS = range(int(os.environ.get("TALLY_KILL_SEEDS", "1")))
KILLS = 2  # one of each; seeds tell in which order
PARCELS, ROWS = 40, 5  # a parcel is a micro-batch


@pytest.fixture(scope="module")
def kafka_lake(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Lake]:
    with Stack(tmp_path_factory.mktemp("kafka-cluster"), node=node_settings(broker())) as stack:
        lake = Lake(stack, spark)
        go_direct(lake.reader.identity, lake.reader.node)
        yield lake


def published(lake: Lake, name: str) -> Topic:
    """A topic on Kafka that its reader may fetch from the brokers."""
    topic, kafka = lake.topic(name, partitions=2), KafkaClient(broker().operator())
    await_access(kafka, lake.reader, topic.token)
    kafka.close()
    topic.publish(rows(range(PARCELS * ROWS)), batch_rows_max=ROWS)
    return topic


@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_is_killed_each_row_is_there_once(
    kafka_lake: Lake, cluster: SparkCluster, tmp_path: Path, seed: int
) -> None:
    topic, out, checkpoint = published(kafka_lake, f"cluster-{seed}"), tmp_path / "out", tmp_path / "checkpoint"
    driver = ClusterDriver(
        cluster,
        tmp_path / "driver",
        "stream",
        topic.options(maxParcelsPerTrigger=1),
        checkpoint=str(checkpoint),
        out=str(out),
    )
    chance = random.Random(seed)
    killed = ["driver", "worker", *(chance.choice(("driver", "worker", "worker")) for _ in range(KILLS - 2))]
    chance.shuffle(killed)
    kill_each(killed, driver, cluster, chance, lambda: _batches(out))
    done = _batches(out)
    assert done < PARCELS, "the stream was done before it was killed"
    print(f"seed {seed}: {killed}, {done} of {PARCELS} batches when it was left")
    run(topic.stream(maxParcelsPerTrigger="10"), out, checkpoint)
    assert arrived_seqs(out) == list(range(PARCELS * ROWS))


def _batches(out: Path) -> int:
    """How many batches are written, or begun."""
    return len(list(out.glob("batch=*")))
