"""Interests over the columns of a topic, typed by its schema."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tallystick.errors import Misuse
from tallystick.policy.attribute import AttributeKind
from tallystick.policy.content import content_space
from tallystick.policy.evaluate import mask
from tallystick.policy.parse import parse

SCHEMA = pa.schema(
    [
        ("vin", pa.string()),
        ("road", pa.dictionary(pa.int8(), pa.string())),
        ("speed", pa.float32()),
        ("gear", pa.int8()),
        ("odometer", pa.uint64()),
        ("rain", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("ms")),
        ("tags", pa.list_(pa.string())),
        ("two words", pa.int8()),
        ("or", pa.int8()),
        ("a.b", pa.int8()),
    ]
)


def test_columns_become_attributes() -> None:
    space = content_space(SCHEMA, {"road": ["street", "motorway"]})
    assert {one.name: one.kind for one in space.attributes} == {
        "vin": AttributeKind.STRING,
        "road": AttributeKind.CATEGORY,
        "speed": AttributeKind.REAL,
        "gear": AttributeKind.INTEGER,
        "odometer": AttributeKind.INTEGER,
        "rain": AttributeKind.FLAG,
        "day": AttributeKind.DATE,
    }
    table = {
        "road": pa.array(["motorway", "street", None]).dictionary_encode(),
        "speed": pa.array([130.5, 130.5, 130.5], pa.float32()),
        "gear": pa.array([-1, 5, 5], pa.int8()),
        "odometer": pa.array([(1 << 64) - 1, 1, None], pa.uint64()),
    }
    assert mask(parse("speed > 120 && road::motorway", space), table).tolist() == [True, False, False]
    assert mask(parse("gear < 0 || odometer <= 1", space), table).tolist() == [True, True, False]
    assert mask(parse("odometer >= 18446744073709551615", space), table).tolist() == [True, False, False]
    with pytest.raises(Misuse, match="-129 is out of range"):
        parse("gear > -129", space)


def test_wrong_lists_of_values_are_named() -> None:
    with pytest.raises(Misuse, match='"colour" is not in the schema'):
        content_space(SCHEMA, {"colour": ["red"]})
    with pytest.raises(Misuse, match="only text has a list of values, found int8"):
        content_space(SCHEMA, {"gear": ["1"]})
    with pytest.raises(Misuse, match="1 to 1024 values"):
        content_space(SCHEMA, {"road": []})
