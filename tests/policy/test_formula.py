"""Formulas: canonical form, printing, encoding, bounds."""

from __future__ import annotations

from random import Random

import pytest
from formulas import ACME, CONTENT, RANDOMS, some_formula, some_holding, some_node
from hypothesis import given
from hypothesis import strategies as st

from tallystick import wire
from tallystick.errors import Malformed, Misuse
from tallystick.policy import formula as formula_module
from tallystick.policy.attribute import integer
from tallystick.policy.evaluate import holds, node_holds
from tallystick.policy.formula import NEVER, Formula, FormulaGate, OneOf, canonical
from tallystick.policy.parse import parse
from tallystick.policy.show import in_words, show
from tallystick.policy.space import AttributeSpace

SPACES = st.sampled_from([ACME, CONTENT])


@given(RANDOMS, SPACES)
def test_parsing_what_was_printed_gives_the_same_formula(random: Random, space: AttributeSpace) -> None:
    formula = some_formula(random, space)
    assert parse(show(formula), space) == formula


@given(RANDOMS, SPACES)
def test_the_canonical_form_means_the_same_and_is_its_own(random: Random, space: AttributeSpace) -> None:
    node = some_node(random, space)
    form = canonical(node, space)
    assert canonical(form, space) == form
    for _ in range(5):
        held = dict(space.values(some_holding(random, space)).values)
        assert node_holds(form, held) == node_holds(node, held)


@given(RANDOMS, SPACES)
def test_bytes_decode_to_the_same_formula(random: Random, space: AttributeSpace) -> None:
    formula = some_formula(random, space)
    again = Formula.decode(formula.encode())
    assert again == formula
    assert hash(again) == hash(formula)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("role::insurer && clearance >= 3", "clearance > 2 and (role == insurer)"),
        ("region::EU || region::KR", "region in (KR, EU, KR)"),
        ("role != police", "role in (city, garage, insurer)"),
        ("clearance != 5", "clearance < 5 || clearance > 5"),
        ("3 <= clearance < 8", "clearance in 3..7"),
        ("clearance in (3, 4, 5)", "clearance in 3..5"),
        ("1 of (trained, role::city)", "role::city || trained"),
        ("2 of (trained, role::city)", "role::city && trained"),
        ("trained && (role::city && clearance > 1)", "(trained && role::city) && 1 < clearance"),
        ("trained || trained && role::city", "trained"),
        ("trained && (trained || role::city)", "trained"),
        ("acme.role::city", "role::city"),
        ("since >= 2026-01-01", "2025-12-31 < since"),
        ("role::city && clearance < 0 || trained", "trained"),
    ],
)
def test_equal_formulas_have_equal_bytes(one: str, other: str) -> None:
    assert parse(one, ACME).encode() == parse(other, ACME).encode()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("region::EU && region::KR", "region::EU"),  # many values at once
        ("2 of (trained, trained, role::city)", "trained && role::city"),  # counted twice, as written
        ("clearance >= 3", "clearance >= 4"),
        ("speed > 120", "speed >= 120"),
    ],
)
def test_different_formulas_have_different_bytes(one: str, other: str) -> None:
    space = ACME.joined(CONTENT)
    assert parse(one, space) != parse(other, space)


def test_single_valued_attributes_exclude_and_many_valued_do_not() -> None:
    assert holds(parse("region::EU && region::KR", ACME), ACME.values({"region": ["EU", "KR"]}))
    with pytest.raises(Misuse, match="cannot be satisfied"):
        parse("role::city && role::garage", ACME)


def test_words() -> None:
    assert in_words(parse("2 of (trained, clearance in 3..5, role::city) && region::EU", ACME)) == [
        "all of these:",
        "  acme.region includes EU",
        "  at least 2 of these 3:",
        "    acme.role is city",
        "    acme.trained is true",
        "    acme.clearance lies from 3 to 5",
    ]


def test_bytes_that_are_no_canonical_formula_are_refused() -> None:
    good = wire.decode(parse("role::city || clearance >= 3", ACME).encode())
    _version, attributes, steps = good

    def refused(*value: object) -> str:
        with pytest.raises(Malformed) as caught:
            Formula.decode(wire.encode(list(value)))
        return caught.value.reason

    assert refused(2, attributes, steps) == "version"
    assert refused(1, attributes, [*steps[:2][::-1], steps[2]]) == "malformed"  # parts out of order
    assert refused(1, attributes, steps[:2]) == "malformed"  # two formulas
    assert refused(1, attributes, [*steps[:2], [3, 3, 2]]) == "malformed"  # three of two
    assert refused(1, attributes, [steps[0], [3, 1, 2]]) == "malformed"  # a part that is not there
    assert refused(1, attributes, [[1, 0, ["city"]]]) == "malformed"  # text for a number
    assert refused(1, attributes, [[2, 0, [[3, 256]]]]) == "malformed"  # out of range
    assert refused(1, attributes, [[2, 0, [[3, 5], [6, 7]]]]) == "malformed"  # neighbours not joined
    assert refused(1, attributes, [[1, 1, ["nobody"]]]) == "malformed"
    assert refused(1, attributes[:1], steps) == "malformed"
    assert refused(1, attributes, [[2, 0, [[3, 5]]]]) == "malformed"  # declares what it does not use
    assert refused(1, [[*attributes[0][:4], 65, 0, 2]], [[2, 0, [[3, 5]]]]) == "malformed"


@given(RANDOMS)
def test_altered_bytes_are_refused_or_mean_another_formula(random: Random) -> None:
    formula = some_formula(random)
    data = bytearray(formula.encode())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    try:
        other = Formula.decode(bytes(data))
    except Malformed:
        return
    assert other != formula
    assert other.encode() == bytes(data)


def test_whatever_is_made_can_be_read() -> None:
    """One comparison may have as many values as a whole formula."""
    text = f"n in ({', '.join(str(2 * number) for number in range(2_500))})"
    made = parse(text, AttributeSpace.of("", integer("n", 16)))
    assert Formula.decode(made.encode()) == made


def test_a_formula_has_bounds() -> None:
    leaf = OneOf("acme.trained", ("true",))
    deep: FormulaGate | OneOf = leaf
    for _ in range(formula_module.DEPTH_MAX):
        deep = FormulaGate(1, (deep, leaf))
    with pytest.raises(Misuse, match="deeper"):
        Formula.of(deep, ACME)
    with pytest.raises(Misuse, match="more than"):
        Formula.of(FormulaGate(1, (leaf,) * (formula_module.LEAVES_MAX + 1)), ACME)
    assert canonical(FormulaGate(2, (leaf,)), ACME) == NEVER
