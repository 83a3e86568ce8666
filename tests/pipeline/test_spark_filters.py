"""Filters stay with Spark: a frame is whole after it was filtered, which with a source that takes them it is not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from lake import Lake, Topic, seqs
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition

from tallystick.pipeline.plan import _runs

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def topic(lake: Lake) -> Topic:
    topic = lake.topic("sieved", partitions=2)
    topic.publish_parcels(range(10))
    return topic


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(PUSHDOWN, "true")
    yield spark
    spark.conf.unset(PUSHDOWN)


def test_a_frame_is_whole_after_it_was_filtered(topic: Topic, pushing: SparkSession) -> None:
    frame = topic.read(provenance="true")
    assert seqs(frame.where("seq < 3")) == [0, 1, 2]
    assert seqs(frame) == list(range(10))
    assert seqs(frame.where("seq >= 3 and _offset >= 0")) == list(range(3, 10))
    assert frame.count() == 10


def test_a_source_that_takes_filters_loses_rows_of_later_queries(pushing: SparkSession) -> None:
    """Spark's doing: the day on which it does not, filters can be taken (docs/decisions/0026)."""

    class Reader(DataSourceReader):
        def __init__(self) -> None:
            self._below = 10

        def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
            for one in filters:
                if type(one).__name__ == "LessThan":
                    self._below = one.value  # type: ignore[attr-defined]
                else:
                    yield one

        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            return iter([(number,) for number in range(self._below)])

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "taking"

        def schema(self) -> str:
            return "seq bigint"

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader()

    pushing.dataSource.register(Source)
    frame = pushing.read.format("taking").load()
    assert frame.count() == 10
    assert frame.where("seq < 3").count() == 3
    assert frame.count() == 3


def test_runs_leave_out_what_is_passed_over_in_numbers() -> None:
    much = 1 << 20
    assert list(_runs([0, 0, 0], 0, 3)) == [(0, 3)]
    assert list(_runs([much, 0, 10, 0, much, much, 0, 10], 0, 8)) == [(1, 4), (6, 7)]
    assert list(_runs([much, much], 0, 2)) == []
    assert list(_runs([0, much, 0], 1, 3)) == [(2, 3)]
