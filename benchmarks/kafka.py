"""`make bench-kafka`: parcels through Kafka against plain Kafka, with the same client library and the same records.

Three arms (`kafka_arms.py`): plain Kafka, the carrier with sealing off, and everything on. They take turns, and the
ratio is that of everything on to plain, the median of the rounds' ratios, by the clock on the wall.

    produce_dicts_N, produce_columns_N    N records a parcel; plain is given dicts in both
    fetch_N                               into Arrow, against consume and parse
    disk_N                                bytes of a record in Kafka's log; disk_lz4: plain with lz4, against 4,096
    latency_stored_…, latency_read_…      p50 and p99 at a fixed rate (kafka_latency.py)
    spark_batch, spark_stream             against format("kafka") with from_json (kafka_spark.py)

Beside each, with a suffix: `_unsealed` the arm with sealing off against plain; `_cpu` the client's processor time for
each record, `_broker` Kafka's; `_notary` what the notary spends, or keeps on its disk, for each record.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import harness
import kafka_latency
import kafka_report
import kafka_spark
import kafka_transfers
from kafka_arms import Direct

from tallystick.engines.kafka import KafkaCluster

ROUNDS = 5


def measure(only: str, rounds: int, spark_rows: int) -> Iterator[harness.Result]:
    """Everything that is wanted, on a Kafka and an instance of its own."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tally-bench-kafka-")))
        cluster = stack.enter_context(KafkaCluster.create(folder / "kafka"))
        instance = stack.enter_context(Direct(folder / "ours", cluster))
        yield from kafka_transfers.cases(cluster, instance, only, rounds)
        yield from kafka_latency.cases(cluster, instance, only)
        yield from kafka_spark.cases(cluster, instance, only, rounds, spark_rows)


def kept(results: Iterator[harness.Result]) -> Iterator[harness.Result]:
    """Each is written as soon as it is there: what comes later may fail."""
    for result in results:
        harness.keep("kafka", [result])
        yield result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default="", help="cases whose name holds this; the other results stay")
    parser.add_argument("--spark-rows", type=int, default=kafka_spark.ROWS)
    parser.add_argument("--table", action="store_true", help="run nothing, print the last results as Markdown")
    arguments = parser.parse_args()
    if not arguments.table:
        logging.getLogger("tallystick").setLevel(logging.CRITICAL)  # a broker that is not up yet is no news here
        print(", ".join(f"{name} {value}" for name, value in harness.machine().items()))
        harness.run(kept(measure(arguments.only, arguments.rounds, arguments.spark_rows)))
        kafka_report.draw()
    print(kafka_report.tables())


if __name__ == "__main__":
    main()
