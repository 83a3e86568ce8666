"""Traits: a key's traits satisfy a formula's tree exactly where its attributes satisfy the formula."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from formulas import ACME, CONTENT, RANDOMS, some_formula, some_holding
from hypothesis import given
from hypothesis import strategies as st
from watching import calls_of

from tallystick import wire
from tallystick.errors import Misuse
from tallystick.policy.attribute import Encoding, integer
from tallystick.policy.evaluate import holds
from tallystick.policy.formula import Formula, Within
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSpace
from tallystick.policy.traits import (
    TREE_TRAITS_MAX,
    TraitGate,
    TraitTree,
    cover,
    number_traits,
    trait_tree,
    traits_of,
    with_encoding,
)

ENCODINGS = st.sampled_from(Encoding)


def met(tree: TraitTree, traits: frozenset[bytes]) -> bool:
    if isinstance(tree, bytes):
        return tree in traits
    return sum(met(part, traits) for part in tree.parts) >= tree.need


def rows(tree: TraitTree) -> int:
    return sum(map(rows, tree.parts)) if isinstance(tree, TraitGate) else 1


@given(RANDOMS, ENCODINGS)
def test_traits_say_what_the_attributes_say(random: Random, encoding: Encoding) -> None:
    formula = with_encoding(some_formula(random, ACME), encoding)
    space = formula.space.joined(ACME)  # the formula's encodings, and whatever else ACME declares
    for _ in range(4):
        held = ACME.values(some_holding(random, ACME))
        traits = traits_of(held, space)
        assert met(trait_tree(formula), traits) == holds(formula, held)


@given(ENCODINGS, st.integers(1, 64), st.data())
def test_every_interval_of_every_width(encoding: Encoding, bits: int, data: st.DataObject) -> None:
    top = (1 << bits) - 1
    ends = sorted(data.draw(st.tuples(st.integers(0, top), st.integers(0, top))))
    attribute = integer("n", bits, encoding=encoding)
    space = AttributeSpace.of("", attribute)
    tree = trait_tree(parse(f"n in {ends[0]}..{ends[1]}", space))
    tried = {0, top, *ends, max(ends[0] - 1, 0), min(ends[1] + 1, top), data.draw(st.integers(0, top))}
    for value in tried:
        traits = frozenset(number_traits(attribute, value))
        assert met(tree, traits) == (ends[0] <= value <= ends[1])


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize(
    ("encoding", "traits", "rows_max"),
    [
        (Encoding.BITS, lambda bits: bits, lambda bits: bits),
        (Encoding.PREFIX, lambda bits: bits + 1, lambda bits: bits),
        (Encoding.RADIX16, lambda bits: 15 * bits // 4 + 2, lambda bits: bits // 4),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_what_a_comparison_costs(
    encoding: Encoding, bits: int, traits: Callable[[int], int], rows_max: Callable[[int], int]
) -> None:
    """The table of docs/guides/policies.md."""
    space, top = AttributeSpace.of("", integer("n", bits, encoding=encoding)), (1 << bits) - 1
    assert {len(frozenset(number_traits(space["n"], value))) for value in (0, 89, top)} == {traits(bits)}
    bounds = {1, top // 16, 0x123456789ABCDEF1 >> 64 - bits | 1, top // 2 + 2, top}
    assert max(rows(trait_tree(parse(f"n >= {bound}", space))) for bound in bounds) == rows_max(bits)


@given(st.integers(1, 20), st.data())
def test_a_cover_is_exact_and_small(bits: int, data: st.DataObject) -> None:
    top = (1 << bits) - 1
    low, high = sorted(data.draw(st.tuples(st.integers(0, top), st.integers(0, top))))
    found = list(cover(low, high, bits))
    assert sum(1 << bits - length for length, _ in found) == high - low + 1
    assert found[0][1] << bits - found[0][0] == low
    assert len(found) <= max(1, 2 * bits - 2)


@pytest.mark.parametrize("encoding", Encoding)
def test_a_formula_of_very_many_traits_is_given_up_in_bounded_work(
    encoding: Encoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some thousand intervals of a 64-bit number fit into a formula, and stand for a hundred thousand traits."""
    space = AttributeSpace.of("acme", integer("n", 64, encoding=encoding))
    step = (1 << 64) // 2_048
    intervals = tuple((number * step + 1, (number + 1) * step - 2) for number in range(2_048))
    formula = Formula.of(Within("acme.n", intervals), space)
    with calls_of(wire.encode) as made, pytest.raises(Misuse, match="more than 16384 traits"):
        trait_tree(formula)
    assert TREE_TRAITS_MAX < len(made) <= TREE_TRAITS_MAX + 256  # an interval further: two comparisons of 64 bits


def test_reals_have_no_traits() -> None:
    with pytest.raises(Misuse, match="keys are made for whole ones"):
        trait_tree(parse("speed > 120", CONTENT))


def test_no_two_attributes_share_a_trait() -> None:
    space = AttributeSpace.of("", integer("a", 8), integer("b", 8), integer("c", 8, encoding=Encoding.RADIX16))
    held = [traits_of(space.values({name: 7}), space) for name in "abc"]
    assert len(held[0] | held[1] | held[2]) == sum(map(len, held))
