"""Frames sealed onto topics: what is written is read, once; and what cannot be written is said before anything is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lake import SCHEMA, Lake, Topic, fails, rows, seqs
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.functions import col
from stack import WRITE, wait_until


def frame(lake: Lake, first: int, end: int, tasks: int = 2) -> DataFrame:
    numbers = lake.spark.range(first, end, 1, tasks).withColumnRenamed("id", "seq")
    return numbers.selectExpr("concat('V', seq % 7) AS vin", "seq", "CAST(seq / 2 AS float) AS speed")


def write(topic: Topic, rows: DataFrame, **options: Any) -> None:
    rows.write.format("tally").options(home=str(topic.lake.car.identity.home), **options).mode("append").save(
        topic.name
    )


def delivered(topic: Topic, **settings: Any) -> list[dict[str, Any]]:
    """All rows, as a subscriber gets them."""
    with topic.lake.reader.subscriber(topic.name, **settings) as subscriber:
        found, quiet = [], 0
        while quiet < 3:
            received = subscriber.poll(50)
            quiet = 0 if received else quiet + 1
            found += [row for one in received for row in one.to_pylist()]
        return found


def delivered_seqs(topic: Topic) -> list[int]:
    return sorted(row["seq"] for row in delivered(topic))


def test_a_frame_becomes_rows_of_a_topic(lake: Lake) -> None:
    topic = lake.topic("written", partitions=2)
    write(topic, frame(lake, 0, 1000, 3))
    assert sorted(delivered(topic), key=lambda row: row["seq"]) == rows(range(1000))
    topic.publish(rows(range(1000, 1003)))
    write(topic, frame(lake, 1003, 1010))
    assert delivered_seqs(topic) == list(range(1010))
    found = topic.read(provenance="true")
    assert seqs(found) == list(range(1010))
    assert {row["_publisher"] for row in found.collect()} == {lake.car.identity.principal.hex()}
