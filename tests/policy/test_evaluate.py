"""Evaluation over columns equals evaluation row by row, nulls included."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from formulas import ACME, CONTENT, RANDOMS, some_formula, some_holding
from hypothesis import given

from tallystick.errors import Misuse
from tallystick.policy.evaluate import holds, mask
from tallystick.policy.parse import parse

TYPES = {
    "road": pa.string(),
    "speed": pa.float64(),
    "gear": pa.int16(),
    "vin": pa.large_string(),
    "rain": pa.bool_(),
}


def columns(rows: list[dict[str, Any]]) -> dict[str, pa.Array]:
    def value(name: str, row: dict[str, Any]) -> Any:
        found = row.get(name)
        return found == "true" if name == "rain" and found is not None else found

    return {name: pa.array([value(name, row) for row in rows], kind) for name, kind in TYPES.items()}


@given(RANDOMS)
def test_columns_agree_with_single_rows(random: Random) -> None:
    formula = some_formula(random, CONTENT)
    rows = [some_holding(random, CONTENT) for _ in range(random.randint(0, 12))]
    found = mask(formula, columns(rows))
    assert found.dtype == np.bool_
    assert found.tolist() == [holds(formula, CONTENT.values(row)) for row in rows]


def test_nulls_and_nans_satisfy_nothing() -> None:
    table = {"speed": pa.array([None, math.nan, 130.0, math.inf, -math.inf]), "gear": pa.array([3, 3, None, 3, 3])}
    assert mask(parse("speed > 120", CONTENT), table).tolist() == [False, False, True, True, False]
    assert mask(parse("speed < 0 || speed >= 0", CONTENT), table).tolist() == [False, False, True, True, True]
    assert mask(parse("gear != 4", CONTENT), table).tolist() == [True, True, False, True, True]
    assert mask(parse("2 of (gear == 3, speed > 0, speed > 120)", CONTENT), table).tolist() == [
        *(False, False, True, True, False)
    ]


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.int32(), pa.uint64()])
def test_bounds_beyond_the_type_of_a_column(kind: Any) -> None:
    space = type(ACME).of("", *(one for one in _wide()))
    table = {"n": pa.array([0, 1, 127, None], kind)}
    assert mask(parse("n >= 1000000", space), table).tolist() == [False] * 4
    assert mask(parse("n <= 1000000", space), table).tolist() == [True, True, True, False]
    assert mask(parse("n in 1..126", space), table).tolist() == [False, True, False, False]


def _wide() -> list[Any]:
    from tallystick.policy.attribute import integer

    return [integer("n", 40, least=-(1 << 39))]


def test_whole_numbers_count_as_reals_where_a_double_holds_them() -> None:
    assert mask(parse("speed > 120", CONTENT), {"speed": pa.array([120, 121, None], pa.int32())}).tolist() == [
        *(False, True, False)
    ]
    with pytest.raises(Misuse, match="that a double holds exactly, found int64"):
        mask(parse("speed > 120", CONTENT), {"speed": pa.array([(1 << 53) + 1])})


def test_numpy_dictionaries_dates_and_chunks() -> None:
    space = ACME
    table = {
        "acme.role": pa.array(["city", None, "police"]).dictionary_encode(),
        "acme.since": pa.chunked_array([pa.array([20484, 20483], pa.date32()), pa.array([None], pa.date32())]),
        "acme.clearance": np.array([3, 200, 7], np.uint8),
    }
    assert mask(parse("role in (city, police)", space), table).tolist() == [True, False, True]
    assert mask(parse("since >= 2026-01-31", space), table).tolist() == [True, False, False]
    assert mask(parse("clearance < 100", space), table).tolist() == [True, False, True]


def test_a_column_that_is_missing_or_of_another_type_is_named() -> None:
    with pytest.raises(Misuse, match='"gear", and there is no such column'):
        mask(parse("gear > 3", CONTENT), {})
    with pytest.raises(Misuse, match="expected whole numbers, found double"):
        mask(parse("gear > 3", CONTENT), {"gear": pa.array([1.5])})
    with pytest.raises(Misuse, match="expected text, found int64"):
        mask(parse("road::lane", CONTENT), {"road": pa.array([1])})
