"""The code of a topic: what rows and interests are described by, and how rows are put together."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from formulas import RANDOMS
from hypothesis import given, settings

from tallystick.errors import Malformed, Misuse
from tallystick.policy.content import read_interest, wanted_rows
from tallystick.policy.formula import Formula
from tallystick.policy.topic_code import GROUPS_MAX, TopicCode

SCHEMA = pa.schema(
    [
        ("vin", pa.string()),
        ("road", pa.string()),
        ("speed", pa.float32()),
        ("gear", pa.int8()),
        ("odometer", pa.uint64()),
        ("rain", pa.bool_()),
        ("day", pa.date32()),
    ]
)
TEXTS = ["road:2", "speed:4:0..200", "gear:3:-1..6", "rain:1", "odometer:4:0..1000000", "day:3:2026-01-01..2026-12-31"]


def some_rows(random: Random, count: int) -> Any:
    def column(make: Any) -> list[Any]:
        return [None if random.random() < 0.1 else make() for _ in range(count)]

    days = pa.array(column(lambda: random.randint(-500, 80_000)), pa.int32()).cast(pa.date32())
    return pa.record_batch(
        [
            pa.array(column(lambda: f"V{random.randint(0, 20)}")),
            pa.array(column(lambda: random.choice(["street", "motorway", "rural", ""]))),
            pa.array(column(lambda: random.choice([random.uniform(-50, 300), float("nan"), -0.0])), pa.float32()),
            pa.array(column(lambda: random.randint(-128, 127)), pa.int8()),
            pa.array(column(lambda: random.choice([0, 7, 500_000, (1 << 64) - 1])), pa.uint64()),
            pa.array(column(lambda: random.random() < 0.5)),
            days,
        ],
        schema=SCHEMA,
    )


def some_interest(random: Random) -> Formula:
    leaves = [
        f"speed > {random.randint(-10, 210)}",
        f"speed <= {random.randint(-10, 210)}.5",
        f"gear == {random.randint(-128, 127)}",
        f"gear in {random.randint(-128, 0)}..{random.randint(0, 127)}",
        f"odometer >= {random.choice([1, 500_000, (1 << 64) - 1])}",
        f"road::{random.choice(['street', 'motorway', 'rural'])}",
        f"rain::{random.choice(['true', 'false'])}",
        f"day < 2026-0{random.randint(1, 9)}-15",
        f"vin::V{random.randint(0, 20)}",
    ]
    shapes = ["{0}", "{0} && {1}", "{0} || {1}", "{0} && ({1} || {2})", "2 of ({0}, {1}, {2})"]
    while True:
        with suppress(Misuse):  # comparisons that exclude one another
            return read_interest(random.choice(shapes).format(*random.sample(leaves, 3)), SCHEMA)


def columns_of(batch: Any) -> dict[str, Any]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def some_code(random: Random) -> TopicCode:
    chosen = random.sample(TEXTS, random.randint(1, 5))
    return TopicCode.read(chosen, SCHEMA, each=random.random() < 0.5, number=random.choice([24, 40, 64]))


@settings(max_examples=60)
@given(RANDOMS)
def test_a_row_that_is_wanted_is_described(random: Random) -> None:
    code, interest, batch = some_code(random), some_interest(random), some_rows(random, 60)
    covers = code.covers(interest, random.choice([2, 4, 32]), 0.1)
    groups = code.group(columns_of(batch))
    assert sorted(np.concatenate(groups).tolist()) == list(range(batch.num_rows))
    assert len(groups) <= GROUPS_MAX
    for rows in groups:
        part = batch.take(pa.array(rows))
        described = code.describe(columns_of(part))
        assert len(described) <= code.number
        if wanted_rows(interest, part).any() and described:
            assert all(any((number, string) in described for string in strings) for number, strings in covers.items())


@given(RANDOMS)
def test_cells_of_a_column_are_those_of_its_values(random: Random) -> None:
    """Vectorised and one by one, also for values beyond the range and at its edges."""
    code, batch = TopicCode.read(TEXTS[:5], SCHEMA), some_rows(random, 40)
    for dimension in code.dimensions:
        name, attribute = dimension.attribute.name, dimension.attribute
        cells = dimension.cells(batch.column(name)).tolist()
        for value, cell in zip(batch.column(name).to_pylist(), cells, strict=True):
            if value is None or value != value:
                assert cell == 0
            elif attribute.is_text:
                assert cell == dimension.cell(("true" if value else "false") if name == "rain" else value)
            else:
                assert cell == dimension.cell(attribute.ordinal(value))


def test_rows_of_one_subspace_stay_together() -> None:
    code = TopicCode.read(["speed:2:0..200"], SCHEMA, number=2)
    batch = pa.record_batch({"speed": pa.array([10.0, 190.0, 20.0, 180.0, 60.0] * 300, pa.float32())})
    groups = [rows.tolist() for rows in code.group(columns_of(batch))]
    speeds = [{batch.column(0)[row].as_py() for row in rows} for rows in groups]
    assert speeds == [{10.0, 20.0}, {60.0}, {180.0, 190.0}]
    assert all(rows == sorted(rows) for rows in groups)  # in the order in which they came


def test_few_rows_are_joined_with_their_neighbours_as_far_as_labels_reach() -> None:
    batch = pa.record_batch({"speed": pa.array([10.0, 60.0, 110.0, 190.0], pa.float32())})
    wide = TopicCode.read(["speed:2:0..200"], SCHEMA, number=24)
    assert [rows.tolist() for rows in wide.group(columns_of(batch))] == [[0, 1, 2, 3]]
    narrow = TopicCode.read(["speed:2:0..200"], SCHEMA, number=3)
    assert [rows.tolist() for rows in narrow.group(columns_of(batch))] == [[0, 1], [2, 3]]


def test_too_many_subspaces_leave_a_parcel_without_description() -> None:
    code = TopicCode.read(["speed:8:0..255"], SCHEMA, number=8)
    batch = pa.record_batch({"speed": pa.array([float(speed) for speed in range(256)], pa.float32())})
    groups = code.group(columns_of(batch))
    assert len(groups) == GROUPS_MAX
    described = [code.describe(columns_of(batch.take(pa.array(rows)))) for rows in groups]
    assert sum(not one for one in described) == 1
    assert all(len(one) == 8 for one in described if one)


def test_an_interest_in_other_columns_is_covered_by_nothing() -> None:
    code = TopicCode.read(["gear:3:-1..6", "rain:1"], SCHEMA, each=True)
    assert code.covers(read_interest("speed > 120", SCHEMA), 32, 0.1) == {}
    assert list(code.covers(read_interest("speed > 120 && rain::true", SCHEMA), 32, 0.1)) == [1]
    assert list(code.covers(read_interest("gear == 2 && rain::true", SCHEMA), 32, 0.1)) == [0, 1]


def test_a_widened_column_fits_no_more() -> None:
    code = TopicCode.read(["gear:3:-1..6"], SCHEMA)
    assert code.fits(SCHEMA)
    at = SCHEMA.get_field_index("gear")
    assert not code.fits(SCHEMA.set(at, SCHEMA.field("gear").with_type(pa.int16())))
    assert not code.fits(SCHEMA.remove(at))


def test_texts_and_bytes_go_round() -> None:
    code = TopicCode.read(TEXTS, SCHEMA, each=True, number=30)
    assert code.show() == TEXTS
    assert TopicCode.decode(code.encode()) == code
    assert TopicCode.decode(TopicCode((), version=4).encode()).dimensions == ()
    for data in (b"\x80", TopicCode(()).encode()[:-1], code.encode().replace(b"speed", b"sp ed")):
        with pytest.raises(Malformed):
            TopicCode.decode(data)


@given(RANDOMS)
def test_bytes_that_were_altered_are_another_code_or_malformed(random: Random) -> None:
    data = bytearray(TopicCode.read(TEXTS, SCHEMA, number=30).encode())
    for _ in range(random.randint(1, 3)):
        data[random.randrange(len(data))] = random.randrange(256)
    with suppress(Malformed):
        assert TopicCode.decode(bytes(data)).encode() == bytes(data)


@pytest.mark.parametrize(
    ("texts", "number", "message"),
    [
        (["speed"], 24, "is not column:bits"),
        (["speed:4"], 24, "need a range"),
        (["speed:4:a..b"], 24, '"a" is no value'),
        (["sped:4:0..9"], 24, "unknown attribute"),
        (["gear:3", "gear:2"], 24, "stands in it twice"),
        (["gear:16", "rain:9"], 24, "at most 24 bits together expected, found 25"),
        (["gear:6"], 5, "6 to 64 labels a parcel expected, found 5"),
        (["gear:6"], 65, "6 to 64 labels a parcel expected, found 65"),
    ],
)
def test_bad_codes_are_named(texts: list[str], number: int, message: str) -> None:
    with pytest.raises(Misuse, match=message):
        TopicCode.read(texts, SCHEMA, number=number)


def test_interests_speak_of_columns_that_are_not_there() -> None:
    """A column that the reader may not open is absent: what is said of it holds for no row."""
    batch = pa.record_batch({"speed": pa.array([10.0, 130.0], pa.float32())})
    every = " || ".join(["gear > 0", "rain::true", "day > 2026-01-01", "road::street", "odometer > 5", "speed > 120"])
    assert wanted_rows(read_interest(every, SCHEMA), batch).tolist() == [False, True]
    assert not wanted_rows(read_interest("speed > 0 && gear > 0", SCHEMA), batch).any()
    with pytest.raises(Misuse, match="cannot be satisfied"):
        read_interest("speed > 120 && speed < 100", SCHEMA)
