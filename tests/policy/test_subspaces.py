"""Subspaces: the thesis's tables, never a false negative, false positives within what is said."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest
from formulas import CONTENT, RANDOMS, some_formula, some_holding
from hypothesis import given, settings

from tallystick.errors import Misuse
from tallystick.policy.attribute import category, integer, real
from tallystick.policy.evaluate import holds
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSpace
from tallystick.policy.subspaces import Dimension, GridSettings, SubspaceCode, begins_in, codes_for_each, prefixes

# Figure 8: A and B from 0 to 100, halved in turns A, B, A.
PLANE = AttributeSpace.of("", integer("A", 7), integer("B", 7))
EXACT = GridSettings(length_max=3, cells_max=64, false_positives_max=0.0)
FIGURE_8 = SubspaceCode([Dimension.of(PLANE["A"], 2, 0, 99), Dimension.of(PLANE["B"], 1, 0, 99)], EXACT)

DIMENSIONS = [
    Dimension.of(CONTENT["road"], 2),
    Dimension.of(CONTENT["speed"], 6, 0, 200),
    Dimension.of(CONTENT["gear"], 3),
    Dimension.of(CONTENT["vin"], 4),
    Dimension.of(CONTENT["rain"], 1),
]


def whole(strings: set[str], length: int) -> set[str]:
    """Every string of full length that begins with one of these."""
    every = ("".join(bits) for bits in product("01", repeat=length))
    return {string for string in every if any(string.startswith(prefix) for prefix in strings)}


@pytest.mark.parametrize(
    ("interest", "strings"),
    [
        ("A in 50..74 && B in 50..74", {"110"}),
        ("A in 50..74 || B in 50..74", {"100", "010", "011", "110", "111"}),
        ("A in 0..99 && B == 70", {"01", "11"}),  # printed as {110}, which misses (35, 70)
        ("A in 0..99 || B == 70", {"0", "1"}),
    ],
)
def test_table_2_with_its_third_row_corrected(interest: str, strings: set[str]) -> None:
    cover = FIGURE_8.cover(parse(interest, PLANE))
    assert whole(set(cover.strings), 3) == whole(strings, 3)


@pytest.mark.parametrize(("a", "b", "string"), [(40, 40, "001"), (35, 80, "011"), (90, 80, "111")])
def test_the_events_of_table_2(a: int, b: int, string: str) -> None:
    assert FIGURE_8.string(PLANE.values({"A": a, "B": b})) == string


def test_as_printed_the_third_row_misses_an_event() -> None:
    event, interest = PLANE.values({"A": 35, "B": 70}), parse("A in 0..99 && B == 70", PLANE)
    assert holds(interest, event)
    assert begins_in(FIGURE_8.string(event), FIGURE_8.cover(interest))
    assert not FIGURE_8.string(event).startswith("110")


@given(RANDOMS)
def test_there_is_never_a_false_negative(random: Random) -> None:
    limits = GridSettings(random.randint(1, 16), random.choice([1, 2, 5, 48]), random.choice([0.0, 0.1, 0.9]))
    dimensions = random.sample(DIMENSIONS, random.randint(1, 5))
    joint, each = SubspaceCode(dimensions, limits), codes_for_each(dimensions, limits)
    interest = some_formula(random, CONTENT)
    cover = joint.cover(interest)
    covers = {name: code.cover(interest) for name, code in each.items()}
    assert len(cover.strings) <= max(limits.cells_max, 1)
    for _ in range(12):
        event = CONTENT.values(some_holding(random, CONTENT))
        if holds(interest, event):
            assert begins_in(joint.string(event), cover)
            assert all(begins_in(code.string(event), covers[name]) for name, code in each.items())


@settings(max_examples=40)
@given(RANDOMS)
def test_false_positives_are_bounded_by_what_the_cover_says(random: Random) -> None:
    """Over a space in which every cell has the same number of events, all of which are tried."""
    space = AttributeSpace.of("", integer("x", 4), integer("y", 4))
    code = SubspaceCode([Dimension.of(space["x"], 3), Dimension.of(space["y"], 3)], GridSettings(6, 64, 0.05))
    interest = some_formula(random, space, 4)
    cover = code.cover(interest)
    events = [space.values({"x": x, "y": y}) for x, y in product(range(16), range(16))]
    covered = [event for event in events if begins_in(code.string(event), cover)]
    wanted = [event for event in covered if holds(interest, event)]
    assert len(wanted) == sum(holds(interest, event) for event in events)
    if covered:
        assert 1 - len(wanted) / len(covered) <= cover.false_positives + 1e-9


def test_the_bound_is_a_setting() -> None:
    space = AttributeSpace.of("", integer("x", 16), integer("y", 16))
    dimensions = [Dimension.of(space["x"], 12), Dimension.of(space["y"], 12)]
    interest = parse("x in 1000..40000 && y in 3000..50000", space)
    shares = []
    for bound in (0.5, 0.2, 0.05):
        cover = SubspaceCode(dimensions, GridSettings(24, 10_000, bound)).cover(interest)
        assert cover.false_positives <= bound
        shares.append((len(cover.strings), cover.false_positives))
    assert shares == sorted(shares, key=lambda share: share[0])
    few = SubspaceCode(dimensions, GridSettings(24, 4, 0.05)).cover(interest)
    assert len(few.strings) <= 4
    assert few.false_positives > 0.05  # and says so


def test_codes_of_columns_are_the_strings_of_events() -> None:
    random = Random(3)
    code = SubspaceCode(DIMENSIONS)
    rows = [some_holding(random, CONTENT) for _ in range(60)]
    columns: dict[str, list[Any]] = {name: [] for name in ("road", "speed", "gear", "vin", "rain")}
    for row in rows:
        for name, column in columns.items():
            column.append(row.get(name))
    found = code.codes(columns).tolist()
    assert [format(one, f"0{code.length}b") for one in found] == [code.string(CONTENT.values(row)) for row in rows]


def test_an_interest_over_other_attributes_is_everything_and_says_so() -> None:
    code = SubspaceCode([Dimension.of(CONTENT["gear"], 3)])
    cover = code.cover(parse("speed > 120", CONTENT))
    assert cover.strings == {""}
    assert cover.false_positives == 1.0
    assert list(prefixes("01")) == ["", "0", "01"]


def test_bad_dimensions_are_named() -> None:
    with pytest.raises(Misuse, match="need a range"):
        Dimension.of(real("speed"), 4)
    with pytest.raises(Misuse, match="is empty"):
        Dimension.of(integer("n", 8), 4, 9, 9)
    with pytest.raises(Misuse, match="1 to 16 bits"):
        Dimension.of(integer("n", 8), 17)
    with pytest.raises(Misuse, match="many values"):
        Dimension.of(category("c", ["a"], many=True), 4)
