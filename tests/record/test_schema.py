"""Schemas: what they may hold, their one encoding, their text, and what a next version may change."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pytest
from examples import examples
from hypothesis import given
from strategies import batches, schemas

from tallystick import wire
from tallystick.errors import Malformed, Misuse
from tallystick.record.batch import Batch
from tallystick.record.leaves import encode_rows
from tallystick.record.schema import Schema, check_successor, parse, upgrade

TEXT = (
    "vin string, ts timestamp[ms, UTC] not null, speed float32, tags list<string>,"
    " pos struct<lat float64, lon float64>, price decimal128(18, 4)"
)


def test_text_form() -> None:
    schema = parse(TEXT)
    assert str(schema) == TEXT
    assert schema.arrow.field("ts") == pa.field("ts", pa.timestamp("ms", "UTC"), nullable=False)
    assert schema.groups == (("vin", "ts", "speed", "tags", "pos", "price"),)


@given(schemas())
def test_text_and_encoding_read_back(schema: Schema) -> None:
    assert parse(str(schema), schema.version, schema.groups) == schema
    assert Schema.decode(schema.encode()) == schema


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("vin strin", 'position 5: unknown type "strin"', "string"),
        ("a double", 'position 3: unknown type "double"', "float64"),
        ("a zzzz", "unknown type", "types: int8"),
        ("", "position 1: expected a column's name, found the end", None),
        ("a int8,", "position 8: expected a column's name, found the end", None),
        ("a int8 b int8", 'position 8: expected a comma or the end, found "b"', None),
        ("a int8 not", 'expected "null"', None),
        ("a list<int8", 'position 12: expected ">"', None),
        ("a struct<>", "expected a column's name", None),
        ("a timestamp", 'expected "\\["', None),
        ("a timestamp[m]", "expected a unit", None),
        ("a decimal128(39, 1)", "precision of 1 to 38", None),
        ("a decimal128(3, 4)", "scale not above", None),
        ("a " + "list<" * 9 + "int8" + ">" * 9, "8 levels", None),
        ("a int8, a int8", "occurs twice", None),
        ("a struct<b int8, b int8>", "occurs twice", None),
        ('"unclosed int8', "expected a column's name", None),
    ],
)
def test_mistakes_in_the_text(text: str, message: str, hint: str | None) -> None:
    with pytest.raises(Misuse, match=message) as caught:
        parse(text)
    assert hint is None or hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    "type_",
    [
        pa.dictionary(pa.int8(), pa.string()),
        pa.large_string(),
        pa.large_binary(),
        pa.large_list(pa.int8()),
        pa.list_(pa.int8(), 3),
        pa.binary(4),
        pa.string_view(),
        pa.binary_view(),
        pa.list_view(pa.int8()),
        pa.map_(pa.string(), pa.int8()),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.float16(),
        pa.date64(),
        pa.decimal256(40),
        pa.time32("s"),
        pa.duration("s"),
        pa.null(),
        pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.uuid(),
    ],
    ids=str,
)
def test_other_types_are_refused_with_the_remedy(type_: pa.DataType) -> None:
    for nested in (type_, pa.list_(type_), pa.struct([("x", type_)])):
        with pytest.raises(Misuse, match=r'column "a.*cannot hold') as caught:
            Schema(pa.schema([("a", nested)]))
        assert caught.value.hint


def test_bounds() -> None:
    wide = [(f"c{i}", pa.int8()) for i in range(1025)]
    Schema(pa.schema(wide[:1024]))
    with pytest.raises(Misuse, match="1025 fields"):
        Schema(pa.schema(wide))
    with pytest.raises(Misuse, match="nested ones included"):
        Schema(pa.schema([("s", pa.struct(wide[:1024]))]))
    with pytest.raises(Misuse, match="no columns"):
        Schema(pa.schema([]))
    with pytest.raises(Misuse, match="at least one field"):
        Schema(pa.schema([("s", pa.struct([]))]))
    with pytest.raises(Misuse, match="metadata"):
        Schema(pa.schema([pa.field("a", pa.int8(), metadata={"k": "v"})]))
    with pytest.raises(Misuse, match="metadata"):
        Schema(pa.schema([("a", pa.int8())], metadata={"k": "v"}))
    for name in ("", "a\nb", "x" * 256):
        with pytest.raises(Misuse, match="the name"):
            Schema(pa.schema([(name, pa.int8())]))
    for version in (0, -1, 2**31, True):
        with pytest.raises(Misuse, match="version"):
            Schema(pa.schema([("a", pa.int8())]), version)


def test_list_elements_have_one_name() -> None:
    theirs = Schema(pa.schema([("a", pa.list_(pa.field("element", pa.int8())))]))
    assert theirs.arrow.field("a").type.value_field.name == "item"
    assert theirs == parse("a list<int8>")


def test_groups_partition_the_columns() -> None:
    schema = parse("a int8, b int8, c int8", groups=[("c", "a"), ("b",)])
    assert schema.groups == (("a", "c"), ("b",))
    assert schema.group_arrow(0).names == ["a", "c"]
    assert schema.only(1) == parse("b int8")
    assert schema.only(0, 1) is schema
    wrong: list[tuple[list[tuple[str, ...]], str]] = [
        ([("a", "b")], "in no column group"),
        ([("a", "b"), ("b", "c")], "in two"),
        ([("a", "b", "c", "d")], "not a column"),
        ([("a", "b", "c"), ()], "at least one"),
    ]
    for groups, message in wrong:
        with pytest.raises(Misuse, match=message):
            parse("a int8, b int8, c int8", groups=groups)


def test_hash_covers_everything() -> None:
    schema = parse("a int8, b int8")
    label = b"tallystick schema 1"
    assert schema.hash == hashlib.sha256(bytes([len(label)]) + label + schema.encode()).digest()
    others = [
        parse("a int8, b int8 not null"),
        parse("a int8, b int16"),
        parse("b int8, a int8"),
        parse("a int8, b int8", version=2),
        parse("a int8, b int8", groups=[("a",), ("b",)]),
        parse("a int8, b int8", groups=[("b",), ("a",)]),
    ]
    assert len({schema.hash, *(other.hash for other in others)}) == 7


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [2, 1, [["a", "int8", True]], [[0]]],
        [1, 0, [["a", "int8", True]], [[0]]],
        [1, True, [["a", "int8", True]], [[0]]],
        [1, 1, [["a", "int9", True]], [[0]]],
        [1, 1, [["a", "int8", 1]], [[0]]],
        [1, 1, [["a", "int8", True, 1]], [[0]]],
        [1, 1, [["a", "list", True]], [[0]]],
        [1, 1, [["a", "list", True], ["x", "int8", True]], [[0]]],
        [1, 1, [["a", "struct", True, 2], ["x", "int8", True]], [[0]]],
        [1, 1, [["a", "struct", True, 0]], [[0]]],
        [1, 1, [["a", "timestamp", True, "m", None]], [[0]]],
        [1, 1, [["a", "timestamp", True, "ms", "\0"]], [[0]]],
        [1, 1, [["a", "decimal128", True, 39, 0]], [[0]]],
        [1, 1, [["a", "decimal128", True, 3, -1]], [[0]]],
        [1, 1, [["a", "int8", True]], [[1]]],
        [1, 1, [["a", "int8", True]], [[-1]]],
        [1, 1, [["a", "int8", True]], []],
        [1, 1, [["a", "int8", True]], [0]],
        [1, 1, [["a", "int8", True]], None],
        [1, 1, [["a", "list", True]] * 12 + [["a", "int8", True]], [[0]]],
        [1, 1, [["a", "int8", True], ["b", "int8", True]], [[1, 0]]],
        [1, 1, [["a", "int8", True]] * 2000, [[0]]],
    ],
)
def test_malformed_encodings(fields: list[object]) -> None:
    with pytest.raises(Malformed):
        Schema.decode(wire.encode(fields))


OLD = parse("a int8, b float32 not null, c list<int16>, d struct<x uint8>", groups=[("a", "b"), ("c", "d")])


def test_what_a_successor_may_do() -> None:
    new = parse(
        "a int64, b float64 not null, c list<int32>, d struct<x uint64>, e string, f bool",
        version=2,
        groups=[("a", "b", "e"), ("c", "d"), ("f",)],
    )
    check_successor(OLD, new)


@pytest.mark.parametrize(
    ("text", "groups", "message"),
    [
        ("z int8, b float32 not null, c list<int16>, d struct<x uint8>", 0, '"a".*never renamed'),
        ("b float32 not null, a int8, c list<int16>, d struct<x uint8>", 0, '"a".*reordered'),
        ("a int8, b float32 not null, c list<int16>", 0, '"d".*removed'),
        ("a string, b float32 not null, c list<int16>, d struct<x uint8>", 0, '"a": int8 cannot become string'),
        ("a uint8, b float32 not null, c list<int16>, d struct<x uint8>", 0, '"a": int8 cannot become uint8'),
        ("a int8, b float32 not null, c list<int8>, d struct<x uint8>", 0, '"c.item": int16 cannot become int8'),
        ("a int8, b float32 not null, c list<int16>, d struct<y uint8>", 0, '"d": field "x"'),
        ("a int8, b float32 not null, c list<int16>, d struct<x uint8, y int8>", 0, '"d": struct'),
        ("a int8, b float32, c list<int16>, d struct<x uint8>", 0, '"b": was not null'),
        ("a int8 not null, b float32 not null, c list<int16>, d struct<x uint8>", 0, '"a": was nullable'),
        ("a int8, b float32 not null, c list<int16>, d struct<x uint8>, e int8 not null", 0, '"e": is added'),
        ("a int8, b float32 not null, c list<int16>, d struct<x uint8>", 1, "column groups"),
        ("a int8, b float32 not null, c list<int16>, d struct<x uint8>", 2, '"b": changes its column group'),
    ],
)
def test_what_a_successor_may_not_do(text: str, groups: int, message: str) -> None:
    names = [part for part in ("a", "b", "c", "d", "e", "z") if parse(text).arrow.get_field_index(part) >= 0]
    partitions = {
        0: [[n for n in names if n in "abez"], [n for n in names if n in "cd"]],
        1: [],
        2: [["a"], ["b", "c", "d"]],
    }
    with pytest.raises(Misuse, match=message):
        check_successor(OLD, parse(text, 2, partitions[groups]))


def test_versions_follow_one_another() -> None:
    with pytest.raises(Misuse, match="does not follow"):
        check_successor(OLD, Schema(OLD.arrow, 3, OLD.groups))


def test_upgrade_fills_and_widens() -> None:
    old = parse("a int8, b float32")
    new = parse("a int32, b float64, c list<string>", version=2)
    check_successor(old, new)
    data = pa.RecordBatch.from_pylist([{"a": -1, "b": 1.5}, {"a": None, "b": None}], schema=old.arrow)
    upgraded = upgrade(data, old, new)
    assert upgraded.to_pylist() == [{"a": -1, "b": 1.5, "c": None}, {"a": None, "b": None, "c": None}]
    assert Batch.of(old, data).upgraded(new) == Batch.of(new, upgraded)


@examples(40)
@given(batches(rows_max=10))
def test_upgrade_of_anything(batch: Batch) -> None:
    added = [*batch.schema.arrow, pa.field("a long new name", pa.struct([("x", pa.int8())]))]
    groups = (*batch.schema.groups, ("a long new name",))
    new = Schema(pa.schema(added), batch.schema.version + 1, groups)
    check_successor(batch.schema, new)
    upgraded = batch.upgraded(new)
    assert Batch.of(new, upgraded.data).rows == batch.rows
    kept = upgraded.data.select(batch.schema.arrow.names)
    assert encode_rows(kept) == encode_rows(batch.data)
