"""Rows and columns into one batch: the same by every way, strict about what is lost, and never a crash."""

from __future__ import annotations

import enum
import gc
import math
import subprocess
import sys
import textwrap
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from examples import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tallystick.errors import Misuse
from tallystick.record import gather
from tallystick.record.gather import gather_dicts, to_batches

SCHEMA = pa.schema(
    [
        pa.field("vin", pa.string(), nullable=False),
        ("ts", pa.timestamp("us", "UTC")),
        ("seq", pa.int64()),
        ("lat", pa.float64()),
        ("speed", pa.float32()),
        ("heading", pa.int16()),
        ("brake", pa.bool_()),
        ("level", pa.uint8()),
        ("total", pa.uint64()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("price", pa.decimal128(9, 2)),
        ("local", pa.timestamp("ms")),
        ("tags", pa.list_(pa.string())),
        ("axle", pa.struct([pa.field("left", pa.int8(), nullable=False), ("right", pa.int8())])),
    ]
)


def by_python(rows: Iterable[Any], schema: pa.Schema) -> pa.RecordBatch:
    """The way without numba."""
    return gather._from_python(list(rows), gather._plan(schema))


Way = Callable[[list[Any], pa.Schema], pa.RecordBatch]
BOTH = pytest.mark.parametrize("way", [gather_dicts, by_python])

# Every type with values that Arrow's own conversion takes without changing them.
ANY_FLOAT = st.floats(allow_nan=False)
COLUMNS = {
    pa.int8(): st.integers(-128, 127),
    pa.uint16(): st.integers(0, 2**16 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float64(): ANY_FLOAT | st.integers(-(2**53), 2**53),
    pa.float32(): st.floats(width=32, allow_nan=False) | st.integers(-(2**24), 2**24),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(st.characters(codec="utf-8"), max_size=40),
    pa.binary(): st.binary(max_size=9),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(timezone(timedelta(hours=2)))),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("s", "Europe/Berlin"): st.datetimes(timezones=st.just(UTC)).map(lambda t: t.replace(microsecond=0)),
    pa.timestamp("ns"): st.datetimes(datetime(1678, 1, 1), datetime(2262, 1, 1)),
    pa.decimal128(9, 2): st.decimals(-999, 999, places=2),
    pa.list_(pa.int8()): st.lists(st.none() | st.integers(-128, 127), max_size=3),
    pa.struct([("a", pa.string()), ("b", pa.float64())]): st.fixed_dictionaries(
        {}, optional={"a": st.text(st.characters(codec="utf-8")), "b": ANY_FLOAT}
    ),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Schema, list[dict[str, Any]]]:
    kinds = draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=6))
    names = [f"c{i}" for i in range(len(kinds))]
    row = st.fixed_dictionaries(
        {}, optional={name: st.none() | COLUMNS[kind] for name, kind in zip(names, kinds, strict=True)}
    )
    rows = draw(st.lists(row, max_size=20))
    for i in draw(st.lists(st.integers(0, max(len(rows) - 1, 0)), max_size=3)):
        if rows:
            rows[i] = dict(reversed(rows[i].items()))
    return pa.schema(list(zip(names, kinds, strict=True))), rows


@examples(150, suppress_health_check=list(HealthCheck))
@given(tables())
def test_every_way_gives_what_arrow_gives(table: tuple[pa.Schema, list[dict[str, Any]]]) -> None:
    schema, rows = table
    expected = pa.RecordBatch.from_pylist(rows, schema=schema)
    for batch in (gather_dicts(rows, schema), by_python(rows, schema)):
        batch.validate(full=True)
        assert batch.schema.equals(schema)
        assert batch.equals(expected)
        assert batch.serialize().equals(expected.serialize())  # what is sealed, to the last bit
    assert to_batches(expected, schema).equals(expected)


@BOTH
def test_numbers_keep_their_bits(way: Way) -> None:
    schema = pa.schema([("x", pa.float64()), ("y", pa.float32())])
    batch = way([{"x": -0.0, "y": -0.0}, {"x": math.nan, "y": math.nan}, {"x": math.inf, "y": -math.inf}], schema)
    x, y = (column.to_pylist() for column in batch.columns)
    assert batch.column(0).null_count == batch.column(1).null_count == 0
    assert math.copysign(1, x[0]) == math.copysign(1, y[0]) == -1
    assert math.isnan(x[1])
    assert math.isnan(y[1])
    assert (x[2], y[2]) == (math.inf, -math.inf)


class Colour(enum.StrEnum):
    RED = "red"
    S = "s"


class Gear(enum.IntEnum):
    FIRST = 1


@BOTH
def test_subclasses_and_numpy_scalars_count_as_what_they_hold(way: Way) -> None:
    schema = pa.schema([("s", pa.string()), ("i", pa.int8()), ("x", pa.float64()), ("b", pa.bool_())])
    rows = [
        {Colour.S: Colour.RED},
        OrderedDict(s=Colour.RED, i=Gear.FIRST, x=np.float64(1.5), b=np.True_),
        {"s": np.str_("blue"), "i": np.int64(-3), "x": np.float32(0.5), "b": False},
    ]
    assert way(rows, schema).to_pylist() == [
        {"s": "red", "i": None, "x": None, "b": None},
        {"s": "red", "i": 1, "x": 1.5, "b": True},
        {"s": "blue", "i": -3, "x": 0.5, "b": False},
    ]


@BOTH
def test_keys_that_are_equal_but_not_the_same_object(way: Way) -> None:
    names = ["vin", "seq"]
    rows = [{"".join(list(name)): value for name, value in zip(names, ("a", i), strict=True)} for i in range(5)]
    rows[3] = {"seq": 3, "vin": "a"}
    rows[4] = {"vin": "ä" * 5000}
    batch = way(rows, SCHEMA)
    assert batch.column("seq").to_pylist() == [0, 1, 2, 3, None]
    assert batch.column("vin")[4].as_py() == "ä" * 5000


def test_what_is_learnt_from_one_batch_does_not_mislead_the_next() -> None:
    """Keys in another order, other key objects, fewer keys, longer texts: the layout and the guess are only guesses."""
    schema = pa.schema([("one", pa.string()), ("two", pa.int64()), ("three", pa.float64())])
    names = ("one", "two", "three")
    for turn in range(12):
        keys = ["".join(name) for name in (names, names[::-1], names[1:], names[:1])[turn % 4]]
        values = {"one": "x" * (7**turn % 1000), "two": turn, "three": turn / 4}
        rows = [{key: values[key] for key in keys} for _ in range(1 + turn % 3 * 20)]
        expected = {name: values[name] if name in keys else None for name in names}
        assert gather_dicts(rows, schema).to_pylist() == [expected] * len(rows)


@BOTH
def test_an_empty_list_is_an_empty_batch(way: Way) -> None:
    batch = way([], SCHEMA)
    assert batch.num_rows == 0
    assert batch.schema.equals(SCHEMA)


def test_null_places_hold_zeros_not_old_memory() -> None:
    schema = pa.schema([("x", pa.int64())])
    batch = gather_dicts([{"x": 1}, {"x": None}] * 500, schema)
    assert not np.frombuffer(batch.column(0).buffers()[1], np.int64)[1::2].any()


BAD_ROWS = [
    ({"vin": "a", "sped": 1}, 'row 2: the topic has no column for the key "sped"'),
    ({"vin": "a", 7: 1}, "row 2: the topic has no column for the key of type int"),
    (["vin"], "row 2: expected a dict, found list"),
    ({}, 'row 2, column "vin": expected a value (the column is not nullable), found no value'),
    ({"vin": 3}, 'row 2, column "vin": expected string, found int'),
    ({"vin": b"a"}, 'row 2, column "vin": expected string, found bytes'),
    ({"vin": "\ud800"}, 'row 2, column "vin": expected string, found str with a lone surrogate, which is no text'),
    ({"seq": True}, 'row 2, column "seq": expected int64, found bool'),
    ({"seq": 1.0}, 'row 2, column "seq": expected int64, found float'),
    ({"seq": "1"}, 'row 2, column "seq": expected int64, found str'),
    ({"seq": 2**63}, 'row 2, column "seq": expected int64, found int out of range'),
    ({"heading": -40000}, 'row 2, column "heading": expected int16, found int out of range'),
    ({"level": -1}, 'row 2, column "level": expected uint8, found int out of range'),
    ({"total": 2**64}, 'row 2, column "total": expected uint64, found int out of range'),
    ({"lat": 2**53 + 1}, 'row 2, column "lat": expected float64, found int that is no exact float'),
    ({"lat": 10**400}, 'row 2, column "lat": expected float64, found int out of range'),
    ({"lat": "1.5"}, 'row 2, column "lat": expected float64, found str'),
    ({"lat": False}, 'row 2, column "lat": expected float64, found bool'),
    ({"speed": 2**24 + 1}, 'row 2, column "speed": expected float32, found int that is no exact float'),
    ({"speed": 1e300}, 'row 2, column "speed": expected float32, found float out of range'),
    ({"brake": 1}, 'row 2, column "brake": expected bool, found int'),
    ({"raw": "a"}, 'row 2, column "raw": expected binary, found str'),
    ({"day": datetime(2026, 1, 1)}, 'row 2, column "day": expected date32, found datetime.datetime'),
    (
        {"ts": datetime(2026, 1, 1)},
        'row 2, column "ts": expected timestamp[us, UTC], found a datetime without a zone',
    ),
    ({"ts": 17}, 'row 2, column "ts": expected a datetime for timestamp[us, UTC], found int'),
    (
        {"local": datetime(2026, 1, 1, tzinfo=UTC)},
        'row 2, column "local": expected timestamp[ms], found a datetime with a zone',
    ),
    (
        {"local": datetime(2026, 1, 1, microsecond=5)},
        'row 2, column "local": expected timestamp[ms], found a datetime of finer resolution',
    ),
    (
        {"price": Decimal("1.234")},
        'row 2, column "price": expected decimal128(9, 2), found decimal.Decimal that it cannot hold exactly',
    ),
    ({"price": 1.5}, 'row 2, column "price": expected decimal128(9, 2), found float'),
    ({"tags": "abc"}, 'row 2, column "tags": expected list<string>, found str'),
    ({"tags": ["a", 1]}, 'row 2, column "tags[1]": expected string, found int'),
    ({"axle": {"left": 1, "rigth": 2}}, 'found the unknown key "rigth"'),
    ({"axle": {"right": 1}}, 'row 2, column "axle.left": expected int8 not null, found no value'),
    ({"axle": {"left": 1, "right": 300}}, 'row 2, column "axle.right": expected int8, found int out of range'),
]


@BOTH
@pytest.mark.parametrize(("bad", "message"), BAD_ROWS)
def test_bad_rows(way: Way, bad: Any, message: str) -> None:
    rows = [{"vin": "a"}, {"vin": "b", "seq": 1}, {"vin": "c", **bad} if isinstance(bad, dict) and bad else bad]
    with pytest.raises(Misuse) as caught:
        way(rows, SCHEMA)
    assert message in str(caught.value)


def test_messages_never_quote_a_value() -> None:
    with pytest.raises(Misuse) as caught:
        gather_dicts([{"vin": "a", "price": Decimal("31337.123")}], SCHEMA)
    assert "31337" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_instants_survive_zones_and_dates_survive() -> None:
    moment = datetime(2026, 7, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    batch = gather_dicts([{"vin": "a", "ts": moment, "day": date(2026, 7, 1)}], SCHEMA)
    assert batch.column("ts")[0].as_py() == moment
    assert batch.column("day")[0].as_py() == date(2026, 7, 1)


# Columns

SMALL = pa.schema(
    [
        ("s", pa.string()),
        ("i", pa.int32()),
        ("x", pa.float64()),
        ("t", pa.timestamp("us", "UTC")),
        ("l", pa.list_(pa.int64())),
    ]
)
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
WANTED = [{"s": "a", "i": 1, "x": 1.5, "t": NOON, "l": [1]}, {"s": None, "i": 2, "x": 2.0, "t": None, "l": None}]


def table_of_odd_layouts() -> pa.Table:
    berlin = pa.array([NOON, None], pa.timestamp("ns", "Europe/Berlin"))
    halves = pa.chunked_array([["a"], [None]], pa.large_string()).dictionary_encode()
    return pa.table(
        {
            "l": pa.array([[1], None], pa.large_list(pa.int8())),
            "t": berlin,
            "s": halves,
            "i": pa.array([1.0, 2.0]),
            "x": pa.array([1.5, 2.0], pa.float32()),
        }
    )


SOURCES: dict[str, Callable[[], Any]] = {
    "arrow table": table_of_odd_layouts,
    "arrow batch": lambda: table_of_odd_layouts().combine_chunks().to_batches()[0],
    "pandas": lambda: pd.DataFrame(
        {
            "s": ["a", math.nan],
            "i": pd.array([1, 2], "Int64"),
            "x": [1.5, 2.0],
            "t": pd.to_datetime([NOON, pd.NaT]).tz_convert("Europe/Berlin"),
            "l": [[1], None],
        },
        index=[7, 9],
    ),
    "polars": lambda: pl.DataFrame(
        {"s": ["a", None], "i": [1, 2], "x": [1.5, 2.0], "t": [NOON, None], "l": [[1], None]}
    ),
    "dict": lambda: {
        "s": ["a", None],
        "i": np.arange(1, 5, dtype=">i2")[:2],
        "x": np.array([9.0, 1.5, 9.0, 2.0])[1::2],
        "t": pd.Series([NOON, pd.NaT]),
        "l": pl.Series([[1], None]),
    },
    "rows": lambda: tuple(WANTED),
}


@pytest.mark.parametrize("source", SOURCES)
def test_columns_of_every_kind(source: str) -> None:
    batch = to_batches(SOURCES[source](), SMALL)
    batch.validate(full=True)
    assert batch.schema.equals(SMALL)
    assert batch.to_pylist() == WANTED


def test_a_slice_becomes_contiguous() -> None:
    batch = pa.record_batch({"s": ["x", "a", "b"], "i": pa.array([0, 1, 2], pa.int32())}).slice(1)
    gathered = to_batches(batch, SMALL)
    assert gathered.select(["s", "i"]).to_pylist() == [{"s": "a", "i": 1}, {"s": "b", "i": 2}]
    assert {column.offset for column in gathered.columns} == {0}
    assert gathered.column("x").null_count == 2


def test_nan_is_a_number_in_floats_and_missing_elsewhere() -> None:
    frame = pd.DataFrame({"x": [math.nan, 1.0], "s": pd.Series(["a", math.nan], dtype=object)})
    batch = to_batches(frame, SMALL)
    assert batch.column("x").null_count == 0
    assert batch.column("s").to_pylist() == ["a", None]
    assert to_batches({"x": pd.array([1.0, None], "Float64")}, SMALL).column("x").to_pylist() == [1.0, None]
    assert to_batches({"x": np.ma.masked_array([1.0, 2.0], [False, True])}, SMALL).column("x").null_count == 1


def forged() -> pa.Array:
    offsets = pa.py_buffer(np.array([0, 10**6, 2], np.int32))
    return pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab")])


BAD_COLUMNS = [
    ({"q": [1]}, 'column "q": the topic has no such column'),
    ({"i": pa.array([1, 2**31])}, 'row 1, column "i": expected int32, found int64 that does not fit exactly'),
    ({"i": [1, 2**31]}, 'row 1, column "i": expected int32, found int out of range'),
    ({"i": np.array([1, 2, 2.5])}, 'row 2, column "i": expected int32, found double that does not fit exactly'),
    ({"i": np.array([1, math.nan])}, 'row 1, column "i": expected int32, found double that does not fit exactly'),
    ({"i": np.array(["1"])}, 'column "i": expected int32, found string'),
    ({"i": np.array([True])}, 'column "i": expected int32, found bool'),
    ({"s": np.array([1])}, 'column "s": expected string, found int64'),
    ({"s": np.array([b"a"])}, 'column "s": expected string, found binary'),
    ({"s": forged()}, 'column "s": expected string, found an invalid Arrow array'),
    ({"x": pa.array([2**53 + 1])}, 'row 0, column "x": expected float64, found int64 that does not fit exactly'),
    (
        {"t": np.array(["2026-01-01"], "M8[us]")},
        'column "t": expected timestamp[us, UTC], found timestamp[us], which has no zone',
    ),
    (
        {"t": pa.array([0, 1], pa.timestamp("ns", "UTC"))},
        'row 1, column "t": expected timestamp[us, UTC], found timestamp[ns, tz=UTC] that does not fit exactly',
    ),
    ({"i": [1, 2], "x": [1.0]}, 'column "x": expected 2 rows as in column "i", found 1'),
    ({"i": np.zeros((2, 2))}, 'column "i": expected one dimension, found a NumPy array of 2 dimensions'),
    ({"i": 1}, 'column "i": expected a list, or an array of Arrow, NumPy, pandas or polars, found int'),
    (pd.DataFrame([[1, 2]], columns=["i", "i"]), 'column "i": given twice'),
    (pl.LazyFrame({"i": [1]}), "expected a list of dicts, or columns, found LazyFrame"),
    ({"i": np.array([1j])}, 'column "i": expected int32, found ndarray of complex128 that Arrow cannot read'),
    ({"i": pd.Series(pd.period_range("2026", periods=2, freq="D"))}, 'column "i": expected int32, found the extension'),
    ({"s": pl.Series([object()], dtype=pl.Object)}, 'row 0, column "s": expected string, found object'),
    (17, "expected a list of dicts, or columns, found int"),
    (pd.DataFrame({"s": ["a", 3]}), 'row 1, column "s": expected string, found int'),
]


@pytest.mark.parametrize(("bad", "message"), BAD_COLUMNS)
def test_bad_columns(bad: Any, message: str) -> None:
    with pytest.raises(Misuse) as caught:
        to_batches(bad, SMALL)
    assert message in str(caught.value)


def test_python_objects_in_polars_are_never_sent_as_addresses() -> None:
    schema = pa.schema([("raw", pa.binary())])
    with pytest.raises(Misuse, match='row 0, column "raw": expected binary, found object'):
        to_batches({"raw": pl.Series([object()], dtype=pl.Object)}, schema)
    assert to_batches({"raw": pl.Series([b"a"], dtype=pl.Object)}, schema).to_pylist() == [{"raw": b"a"}]


def test_decimals_from_integers_and_other_scales() -> None:
    schema = pa.schema([("d", pa.decimal128(5, 1))])
    for column in (np.array([3]), [3], pa.array([Decimal("3.00")])):
        assert to_batches({"d": column}, schema).to_pylist() == [{"d": Decimal("3.0")}]
    with pytest.raises(Misuse, match='row 0, column "d"'):
        to_batches({"d": pa.array([Decimal("1.25")])}, schema)


def test_floats_that_float32_cannot_hold() -> None:
    schema = pa.schema([("y", pa.float32())])
    with pytest.raises(Misuse, match='row 1, column "y": expected float32, found double out of range'):
        to_batches({"y": np.array([math.inf, 1e39])}, schema)


def test_nulls_that_the_schema_forbids() -> None:
    element = pa.field("item", pa.int64(), nullable=False)
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), ("l", pa.list_(element))])
    with pytest.raises(Misuse, match='row 0, column "a": expected a value'):
        to_batches({"l": [[1]]}, schema)
    nulls = pa.array([[1], [None]], pa.list_(element))
    with pytest.raises(Misuse, match=r'column "l\[\]": expected int64 not null, found no value'):
        to_batches({"a": [1, 2], "l": nulls}, schema)


def test_remedies() -> None:
    with pytest.raises(Misuse) as caught:
        to_batches(pd.DataFrame({"i": [1, None]}), SMALL)
    assert "Int64" in str(caught.value.hint)
    with pytest.raises(Misuse) as caught:
        to_batches(pd.DataFrame({"t": pd.to_datetime(["2026-01-01"])}), SMALL)
    assert "tz_localize" in str(caught.value.hint)


# The process of the user


def allocated_here() -> int:
    """Bytes allocated below a line of this file and still held: other tests' threads allocate beside this one."""
    gc.collect()  # caught errors and their frames form cycles: what waits for the collector is not lost
    ours = tracemalloc.Filter(True, __file__, all_frames=True)
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([ours]).traces)


def test_references_and_memory_stay_as_they_were() -> None:
    schema = pa.schema([("s", pa.string()), ("i", pa.int64()), ("x", pa.float32()), ("b", pa.bool_())])
    watched = ["text é", 12345678901, 2.5, object(), {}, "s" * 3]
    good = [{"s": watched[0], "i": watched[1], "x": watched[2], "b": True} for _ in range(50)]
    bad = [*good, {"s": watched[3], "i": watched[2]}]
    surrogate = [*good, {"s": "\ud800"}]

    def work() -> None:
        gather_dicts(good, schema)
        for rows in (bad, surrogate, [*good, watched[4], watched[3]]):
            with pytest.raises(Misuse):
                gather_dicts(rows, schema)

    watched += [float, int, str, dict, type(None)]
    for _ in range(5):
        work()
    gc.collect()  # what earlier tests left to the collector must not go while this one counts
    before = [sys.getrefcount(value) for value in watched]
    arrow = pa.total_allocated_bytes()
    tracemalloc.start(16)
    try:
        work()
        start = allocated_here()
        for _ in range(40):
            work()
        assert allocated_here() - start < 20_000
    finally:
        tracemalloc.stop()
    after = [sys.getrefcount(value) for value in watched]
    assert all(abs(a - b) < 20 for a, b in zip(after, before, strict=True))  # a lost one would count 2,000
    assert pa.total_allocated_bytes() <= arrow


HOSTILE = '''
    import gc, random, sys
    import numpy as np, pyarrow as pa
    from tallystick.errors import Misuse
    from tallystick.record.gather import gather_dicts, load

    assert load() is not None
    SCHEMA = pa.schema([("s", pa.string()), ("i", pa.int16()), ("x", pa.float64()), ("y", pa.float32()),
                        ("b", pa.bool_()), ("l", pa.list_(pa.int8()))])
    chance = random.Random(17)
    rows = []

    class Boom:
        """Raises, or changes the rows under the reader's feet, wherever Python lets it."""
        def __init__(self):
            self.cycle = self  # so that the collector finds it, at a moment of its own
        def wreck(self, *_):
            for row in list(rows):
                if type(row) is dict and chance.random() < 0.3:
                    row.clear()
            del rows[: len(rows) // 2]
            gc.collect(0)
            if chance.random() < 0.5:
                raise ZeroDivisionError
            return 1
        __float__ = __int__ = __index__ = __len__ = __bool__ = wreck
        __iter__ = __str__ = __repr__ = __array__ = wreck
        __arrow_c_array__ = wreck
        def __getattr__(self, name):
            return self.wreck()
        def __del__(self):
            try:
                self.wreck()
            except ZeroDivisionError:
                pass

    class Key(str):
        def __hash__(self):
            return hash(str.__str__(self))
        def __eq__(self, other):
            Boom().wreck()
            return False

    class Alias:
        def __init__(self, name):
            self.name = name
        def __hash__(self):
            return hash(self.name)
        def __eq__(self, other):
            Boom().wreck()
            return True

    class OddDict(dict):
        def __getitem__(self, key):
            return Boom().wreck()
        get = keys = items = __iter__ = __getitem__

    class OddInt(int):
        __index__ = __int__ = __float__ = lambda self: Boom().wreck()

    class OddFloat(float):
        __float__ = lambda self: Boom().wreck()

    class OddStr(str):
        __str__ = encode = lambda self, *_: Boom().wreck()

    class Meta(type):
        def __instancecheck__(cls, other):
            raise ZeroDivisionError
        __subclasscheck__ = __instancecheck__

    class Strange(metaclass=Meta):
        __class__ = property(lambda self: Boom().wreck())

    def value():
        return chance.choice([
            lambda: None, lambda: True, lambda: chance.getrandbits(chance.choice([3, 15, 64, 300])),
            lambda: -chance.getrandbits(70), lambda: chance.random(), lambda: 1e308, lambda: float("nan"),
            lambda: "text", lambda: "\\ud800", lambda: "\\x00é\\U0001f600" * chance.randrange(50), lambda: b"a",
            Boom, Strange, lambda: OddInt(3), lambda: OddFloat(3), lambda: OddStr("a"), lambda: OddDict(a=1),
            lambda: np.float64(2), lambda: np.int8(1), lambda: np.array([1]), lambda: np.datetime64("NaT"),
            lambda: [1, Boom()], lambda: [[]], lambda: {}, lambda: type, lambda: Boom, lambda: (x for x in ()),
            lambda: NotImplemented, lambda: ..., lambda: 1j, lambda: memoryview(b"ab")[::-1],
        ])()

    def row():
        which = chance.random()
        if which < 0.03:
            return value()
        names = [name for name in SCHEMA.names if chance.random() < 0.8]
        if which < 0.2:
            chance.shuffle(names)
        made = {}
        for name in names:
            key = chance.choice([Key, Alias, str])(name) if which > 0.97 else name
            made[key] = value() if chance.random() < 0.15 else {
                "s": "abc", "i": 7, "x": 1.5, "y": 2, "b": False, "l": [1]}[name]
        return OddDict(made) if 0.2 < which < 0.22 else made

    gc.freeze()  # what was imported is no business of the many collections below
    taken = refused = objects = 0
    while objects < 10_000:
        rows = [row() for _ in range(chance.choice([1, 2, 3, 30]))]
        objects += len(rows)
        if chance.random() < 0.5:
            gc.set_threshold(1)   # collect, and so run finalisers, wherever an object is made
        try:
            gather_dicts(rows, SCHEMA).validate(full=True)
            taken += 1
        except Misuse:
            refused += 1
        finally:
            gc.set_threshold(700)
    assert taken > 50 and refused > 50, (taken, refused)
    print("alive")
'''


def test_hostile_objects_do_not_crash_the_process() -> None:
    code = textwrap.dedent(HOSTILE)
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr[-3000:]


def test_neither_numba_nor_frames_are_needed() -> None:
    code = """
    import sys
    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("numba", "pandas", "polars"):
                raise ImportError(name)
    sys.meta_path.insert(0, Absent())
    import pyarrow as pa
    from tallystick.record.gather import to_batches
    schema = pa.schema([("a", pa.int64())])
    assert to_batches([{"a": 1}], schema).to_pylist() == [{"a": 1}]
    assert to_batches({"a": [1]}, schema).to_pylist() == [{"a": 1}]
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)


def test_the_fast_path_is_taken() -> None:
    """The other tests would pass without it."""
    puller = gather._plan(SCHEMA).puller_for(3)
    assert puller is not None
    arrays = puller.pull([{"vin": "a", "seq": 1, "lat": 1, "brake": True}] * 3)
    assert arrays is not None
    handed_back = {name for name, array in zip(SCHEMA.names, arrays, strict=True) if array is None}
    assert handed_back == {"ts", "raw", "day", "price", "local", "tags", "axle"}
