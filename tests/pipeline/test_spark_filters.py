"""Filters that Spark hands down: the same rows as without, and what is passed over is neither fetched nor opened."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from lake import Lake, Topic, seqs
from pyspark.sql import SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from tallystick.pipeline.filters import Filters
from tallystick.pipeline.options import Options
from tallystick.pipeline.plan import Slice, _runs
from tallystick.pipeline.source import BatchReader

NAN, NOON = float("nan"), dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
VALUES: dict[str, tuple[Any, list[Any]]] = {
    "i": (pa.int32(), [1, -1, 2**31 - 1, 0, None]),
    "f": (pa.float64(), [1.5, NAN, -0.0, float("inf"), None]),
    "g": (pa.float32(), [0.5, NAN, 0.0, float("-inf"), None]),
    "t": (pa.string(), ["", "abc", "Äbc", "ab%", None]),
    "b": (pa.bool_(), [True, False, True, False, None]),
    "d": (pa.date32(), [dt.date(1969, 7, 20), dt.date(2026, 5, 1), dt.date(9999, 1, 1), dt.date(1, 1, 1), None]),
    "w": (pa.timestamp("us", "UTC"), [NOON, NOON.replace(year=1950), NOON.replace(microsecond=1), NOON, None]),
    "m": (pa.decimal128(12, 2), [Decimal("1.50"), Decimal("-0.01"), Decimal(0), Decimal("9.99"), None]),
    "y": (pa.binary(), [b"", b"\x80", b"\x00", b"\xff", None]),
}
ORDERS = {
    "<": ds.LessThan,
    "<=": ds.LessThanOrEqual,
    ">": ds.GreaterThan,
    ">=": ds.GreaterThanOrEqual,
    "=": ds.EqualTo,
    "<=>": ds.EqualNullSafe,
}
LITERALS = {
    "i": [("0", 0), ("2147483647", 2**31 - 1)],
    "f": [("0.0D", 0.0), ("double('NaN')", NAN), ("double('inf')", float("inf"))],
    "g": [("-0.0F", -0.0), ("float('NaN')", NAN), ("0.5F", 0.5)],
    "t": [("'abc'", "abc"), ("''", "")],
    "d": [("date'2026-05-01'", dt.date(2026, 5, 1))],
    "w": [("timestamp'2026-05-01 12:00:00Z'", NOON)],
    "m": [("cast(1.5 as decimal(12,2))", Decimal("1.5"))],
    "y": [("X'80'", b"\x80")],
}
MEANINGS: list[tuple[str, ds.Filter]] = [
    *(
        (f"{name} {sign} {text}", order((name,), value))
        for name, literals in LITERALS.items()
        for text, value in literals
        for sign, order in ORDERS.items()
    ),
    *((f"{name} is null", ds.IsNull((name,))) for name in VALUES),
    *((f"{name} is not null", ds.IsNotNull((name,))) for name in VALUES),
    ("b = true", ds.EqualTo(("b",), True)),
    ("i in (1, 0)", ds.In(("i",), (1, 0))),
    ("f in (double('NaN'), 0.0D)", ds.In(("f",), (NAN, 0.0))),
    ("t in ('', 'Äbc')", ds.In(("t",), ("", "Äbc"))),
    ("startswith(t, 'ab')", ds.StringStartsWith(("t",), "ab")),
    ("endswith(t, 'c')", ds.StringEndsWith(("t",), "c")),
    ("contains(t, '%')", ds.StringContains(("t",), "%")),
]


def test_a_filter_that_is_taken_means_what_spark_means(spark: SparkSession) -> None:
    arrays = {name: pa.array(values, type_) for name, (type_, values) in VALUES.items()}
    batch = pa.RecordBatch.from_pydict({"row": pa.array(range(5), pa.int64()), **arrays})
    both = [*MEANINGS, *((f"not ({text})", ds.Not(one)) for text, one in MEANINGS)]
    table = spark.createDataFrame(pa.Table.from_batches([batch]))
    truths = table.select("row", *(F.expr(text).alias(str(number)) for number, (text, _) in enumerate(both))).collect()
    schema = from_arrow_schema(batch.schema)
    assert to_arrow_schema(schema, timezone="UTC") == batch.schema
    for number, (text, one) in enumerate(both):
        filters = Filters(schema)
        assert filters.take(one), text
        expected = sorted(row["row"] for row in truths if row[str(number)])
        assert filters.apply(batch).column("row").to_pylist() == expected, text


@pytest.mark.parametrize(
    "one",
    [
        ds.EqualTo(("i",), 2**40),  # no value of the column's type
        ds.EqualTo(("i",), True),
        ds.GreaterThan(("g",), 0.1),  # a double between two floats
        ds.GreaterThan(("b",), False),
        ds.LessThan(("w",), NOON.replace(tzinfo=None)),
        ds.EqualTo(("m",), Decimal("0.001")),
        ds.In(("i",), (1, None)),
        ds.EqualTo(("i", "deep"), 1),
        ds.IsNull(("many",)),
        ds.StringContains(("y",), "a"),
    ],
)
def test_what_is_not_exact_is_given_back(one: ds.Filter) -> None:
    fields = [(name, type_) for name, (type_, _) in VALUES.items()]
    filters = Filters(from_arrow_schema(pa.schema([*fields, ("many", pa.list_(pa.int32()))])))
    assert not filters.take(one)
    assert not filters.take(ds.Not(one))


def test_runs_leave_out_what_is_passed_over_in_numbers() -> None:
    much = 1 << 20
    assert list(_runs([0, 0, 0], 0, 3)) == [(0, 3)]
    assert list(_runs([much, 0, 10, 0, much, much, 0, 10], 0, 8)) == [(1, 4), (6, 7)]
    assert list(_runs([much, much], 0, 2)) == []
    assert list(_runs([0, much, 0], 1, 3)) == [(2, 3)]


# --- through Spark ---


@pytest.fixture(scope="module")
def topic(lake: Lake) -> Topic:
    """Twelve rows, a parcel each, in two partitions."""
    topic = lake.topic("sieved", partitions=2)
    for first in range(0, 12, 4):
        topic.publish_parcels(range(first, first + 4))
    return topic


def slices(topic: Topic, *filters: ds.Filter) -> list[Slice]:
    schema = topic.read(provenance="true").schema
    reader = BatchReader(Options.parse(topic.options(provenance="true")), schema)
    assert list(reader.pushFilters(list(filters))) == []
    return [slice_ for part in reader.partitions() for slice_ in part.value]


def test_pushed_and_unpushed_rows_are_the_same(topic: Topic, lake: Lake) -> None:
    frame = topic.read(provenance="true")
    table = frame.localCheckpoint()  # Spark filters here by itself
    publisher = lake.car.identity.principal.hex()
    middle = table.agg(F.percentile_approx("_height", 0.5)).first()[0]
    for condition in (
        f"_partition = 1 and _offset >= 2 and _publisher = '{publisher}'",
        f"_height > {middle} and speed <= 4.5F",
        "_publisher = 'somebody else'",
        "vin in ('V1', 'V3') and seq % 2 = 1",
    ):
        found = frame.where(condition)
        assert seqs(found) == seqs(table.where(condition)), condition
        plan = found._jdf.queryExecution().executedPlan().toString()
        assert ("% 2" in plan) == ("Filter (" in plan), plan  # what we cannot do, and nothing else, is left to Spark


def test_parcels_that_are_excluded_are_not_fetched(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.pipeline.plan._BRIDGE_BYTES", 0)
    filled = slices(topic)[0].partition
    assert slices(topic, ds.EqualTo(("_publisher",), "nobody")) == []
    (one,) = slices(topic, ds.EqualTo(("_partition",), filled), ds.EqualTo(("_offset",), 1))
    assert (one.partition, one.first, one.end) == (filled, 1, 2)
