"""`spark_batch`, `spark_stream`: a topic on Kafka read in Spark, against `format("kafka")` with `from_json`.

Both topics hold the same rows in one partition, ours in parcels of 4,096, and both readers may use both cores. The
query is that of `make bench-spark`: an aggregation over three columns, in batch over everything, in streaming over
sixteen micro-batches. Ours verifies in full. Each reader has a Spark session, so a JVM, of its own. The connector is
fetched for this benchmark only (`engines/spark_kafka.py`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import data
import harness
import pyarrow as pa
from arm import Arm
from kafka_arms import STORED_S, Direct, Plain

sys.path.append(str(Path(__file__).resolve().parent.parent))

from engines import spark_kafka
from engines.cache import Missing
from tallystick.engines.kafka import KafkaCluster

ROWS, CHUNK, PARCEL_ROWS = 2_097_152, 262_144, 4_096
BATCHES = 16
WARMUPS = 2  # until then the JVM compiles more than it reads
TARGETS = {"spark_batch": 5.0, "spark_stream": 2.5}


def cases(cluster: KafkaCluster, instance: Direct, only: str, rounds: int, rows: int) -> Iterator[harness.Result]:
    wanted = [name for name in TARGETS if only in name]
    if not wanted:
        return
    try:
        jars = sorted((spark_kafka.fetch() / "libs").glob("*.jar"))
    except Missing as missing:
        print(f"{', '.join(wanted)}: left out: {missing}", file=sys.stderr)
        return
    chunks = [data.columns(min(CHUNK, rows - first), first) for first in range(0, rows, CHUNK)]
    theirs, mine = _fill_plain(cluster, chunks), _fill_ours(instance, chunks)
    with ExitStack() as stack:
        ours, peer = Arm(stack, name="tally"), Arm(stack, jars, "kafka")
        for name in wanted:
            if name == "spark_batch":
                query, our_limit, their_limit = "three", {}, {}
            else:
                query = "stream"
                parcels = -(-rows // PARCEL_ROWS) + 1  # with the one that closes the lane
                our_limit = {"maxParcelsPerTrigger": str(-(-parcels // BATCHES))}
                their_limit = {"maxOffsetsPerTrigger": str(-(-rows // BATCHES))}
            yield _in_turns(
                name,
                lambda query=query, limit=our_limit: ours.run("tally", query, {**mine, **limit}),
                lambda query=query, limit=their_limit: peer.run("kafka", query, {**theirs, **limit}),
                rounds,
                rows,
            )


def _in_turns(
    name: str, ours: Callable[[], list[float]], peer: Callable[[], list[float]], rounds: int, rows: int
) -> harness.Result:
    """Some runs each that do not count, then in turns."""
    for _ in range(WARMUPS):
        _check_same(ours(), peer())
    times: dict[Callable[[], list[float]], list[float]] = {ours: [], peer: []}
    for turn in range(rounds):
        for work in (ours, peer) if turn % 2 else (peer, ours):
            start = time.perf_counter()
            work()
            times[work].append(1e9 * (time.perf_counter() - start) / rows)
    return harness.compare(name, times[ours], times[peer], "ns/record", TARGETS[name])


def _fill_ours(instance: Direct, chunks: list[pa.RecordBatch]) -> dict[str, str]:
    instance.create("spark")
    with instance.car.publisher("spark", batch_rows_max=PARCEL_ROWS, acks="anchored") as publisher:
        for chunk in chunks:
            publisher.send(chunk)
        if left := publisher.flush(STORED_S):
            raise RuntimeError(f"{left} parcels were not anchored")
    return {"home": str(instance.reader.identity.home), "topic": "spark"}


def _fill_plain(cluster: KafkaCluster, chunks: list[pa.RecordBatch]) -> dict[str, str]:
    plain = Plain(cluster, "plain-spark")
    for chunk in chunks:
        plain.send(data.dicts(chunk))
    settings = cluster.operator()
    return {
        "kafka.bootstrap.servers": settings["bootstrap.servers"],
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": settings["ssl.ca.location"],
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": settings["ssl.certificate.location"],
        "subscribe": plain.topic,
        "startingOffsets": "earliest",
        "minPartitions": "2",
    }


def _check_same(ours: list[float], theirs: list[float]) -> None:
    """By what a query over everything found, or by the rows of a stream, which then tells its micro-batches."""
    compared = slice(1) if len(ours) == 2 else slice(None)
    if any(abs(a - b) > 1e-6 * abs(b) for a, b in zip(ours[compared], theirs[compared], strict=True)):
        raise RuntimeError(f"the arms disagree: {ours} and {theirs}")
