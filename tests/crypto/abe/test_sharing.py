"""Sharing over trait trees, and the scheme's security as linear algebra.

In the generic group model an adversary computes linear combinations of what pairings give. `opens` writes down every
element that it sees as a polynomial in the unknowns, and asks by Gaussian elimination whether the target is among the
combinations: the exact question that the paper's proof answers, decided for each formula and set of keys drawn here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product
from random import Random

import pytest
from formulas import RANDOMS
from hypothesis import given, settings

from tallystick.crypto.abe import sharing
from tallystick.crypto.abe.sharing import ORDER, Program, coefficients, program_of, shares
from tallystick.errors import Misuse
from tallystick.policy.traits import TraitGate, TraitTree

UNIVERSE = [bytes([letter]) for letter in b"ABCDE"]

Polynomial = dict[tuple[str, ...], int]


def some_tree(random: Random, leaves_max: int = 6) -> TraitTree:
    if leaves_max == 1 or random.random() < 0.2:
        return random.choice(UNIVERSE)
    parts = []
    while leaves_max > 0:
        share = random.randint(1, max(1, leaves_max // 2))
        parts.append(some_tree(random, share))
        leaves_max -= share
    return TraitGate(random.choice([1, len(parts), random.randint(1, len(parts))]), tuple(parts))


def met(tree: TraitTree, held: frozenset[bytes]) -> bool:
    if isinstance(tree, bytes):
        return tree in held
    return sum(met(part, held) for part in tree.parts) >= tree.need


def some_held(random: Random) -> frozenset[bytes]:
    return frozenset(trait for trait in UNIVERSE if random.random() < 0.5)


@given(RANDOMS)
def test_the_shares_of_a_satisfying_set_give_the_secret_and_no_other_set_has_coefficients(random: Random) -> None:
    tree = some_tree(random, 10)
    program = program_of(tree)
    split = shares(program, 4711, iter(lambda: random.randrange(ORDER), None))
    for held in (some_held(random) for _ in range(6)):
        weights = coefficients(program, held)
        assert (weights is not None) == met(tree, held)
        if weights is not None:
            assert all(program.rows[row].traits <= held for row in weights)
            total = sum(
                split[row] * weight.numerator * pow(weight.denominator, -1, ORDER) for row, weight in weights.items()
            )
            assert total % ORDER == 4711


def test_coefficients_are_ones_but_for_thresholds_where_they_are_small() -> None:
    a, b, c, d, e = UNIVERSE
    tree = TraitGate(2, (TraitGate(1, (a, b)), TraitGate(2, (c, TraitGate(1, (d, e))))))
    assert set(coefficients(program_of(tree), frozenset(UNIVERSE)).values()) == {Fraction(1)}  # type: ignore[union-attr]
    tree = TraitGate(3, (a, b, c, d, e))
    found = coefficients(program_of(tree), frozenset((a, c, e)))
    assert found == {0: Fraction(15, 8), 2: Fraction(-5, 4), 4: Fraction(3, 8)}


def test_the_traits_below_an_and_share_a_row_and_no_trait_repeats_within_an_occurrence() -> None:
    a, b, c, d, e = UNIVERSE
    program = program_of(TraitGate(3, (a, TraitGate(2, (b, TraitGate(1, (c, TraitGate(2, (a, d)))))), e)))
    assert [(sorted(row.traits), row.occurrence) for row in program.rows] == [([a, b, e], 0), ([c], 0), ([a, d], 1)]


@given(RANDOMS)
def test_rows_with_a_trait_in_common_have_different_occurrences(random: Random) -> None:
    rows = program_of(some_tree(random, 20)).rows
    for one, other in product(rows, rows):
        assert one is other or one.occurrence != other.occurrence or not one.traits & other.traits


def test_a_tree_of_too_many_rows_is_refused() -> None:
    traits = tuple(number.to_bytes(2, "big") for number in range(sharing.ROWS_MAX + 1))
    assert len(program_of(TraitGate(len(traits), traits)).rows) == 1
    with pytest.raises(Misuse, match="more than 768 rows"):
        program_of(TraitGate(1, traits))


def test_a_trait_repeated_without_end_is_refused() -> None:
    pairs = tuple(TraitGate(2, (b"A", number.to_bytes(2, "big"))) for number in range(65))
    assert program_of(TraitGate(1, pairs[:64])).occurrences == 64
    with pytest.raises(Misuse, match="more than 64 times"):
        program_of(TraitGate(1, pairs))


# The generic group model.


def symbolic_shares(program: Program) -> list[Polynomial]:
    """Each row's share as a combination of the secret s and the randoms v0, v1, …"""
    used = 0

    def count() -> Iterator[int]:
        nonlocal used
        while True:
            used += 1
            yield 0

    columns = {"s": shares(program, 1, count())}
    for number in range(used):
        unit = iter([0] * number + [1] + [0] * used)
        columns[f"v{number}"] = shares(program, 0, unit)
    return [
        {(name,): column[row] for name, column in columns.items() if column[row]} for row in range(len(program.rows))
    ]


def times(one: Polynomial, other: Polynomial) -> Polynomial:
    found: Polynomial = {}
    for (left, first), (right, second) in product(one.items(), other.items()):
        monomial = tuple(sorted((*left, *right)))
        found[monomial] = (found.get(monomial, 0) + first * second) % ORDER
    return found


def plus(one: Polynomial, other: Polynomial) -> Polynomial:
    return {name: (one.get(name, 0) + other.get(name, 0)) % ORDER for name in {*one, *other}}


def opens(program: Program, keys: list[frozenset[bytes]]) -> bool:
    """Whether the holders of `keys`, together, can compute the capsule's target by linear combination."""
    h: dict[bytes, Polynomial] = {trait: {(f"h{trait.hex()}",): 1} for trait in UNIVERSE}
    base: Polynomial = {("h0",): 1}
    g1: list[Polynomial] = [{(): 1}, base, *h.values()]
    g2: list[Polynomial] = [{(): 1}, {("alpha",): 1}, {("s",): 1}]
    g2 += [{(f"t{occurrence}",): 1} for occurrence in range(program.occurrences)]
    for number, held in enumerate(keys):
        r: Polynomial = {(f"r{number}",): 1}
        g1 += [plus({("alpha",): 1}, times(r, base)), *(times(r, h[trait]) for trait in held)]
        g2.append(r)
    for row, share in zip(program.rows, symbolic_shares(program), strict=True):
        mask: Polynomial = {}
        for trait in row.traits:
            mask = plus(mask, times({(f"t{row.occurrence}",): 1}, h[trait]))
        g1.append(plus(times(share, base), mask))
    return in_span({("alpha", "s"): 1}, [times(one, other) for one, other in product(g1, g2)])


def in_span(target: Polynomial, vectors: list[Polynomial]) -> bool:
    pivots: dict[tuple[str, ...], Polynomial] = {}

    def reduced(vector: Polynomial) -> Polynomial:
        left = {name: value for name, value in vector.items() if value}
        while common := left.keys() & pivots.keys():
            name = min(common)
            factor, pivot = left[name], pivots[name]
            for other, value in pivot.items():
                rest = (left.get(other, 0) - factor * value) % ORDER
                if rest:
                    left[other] = rest
                else:
                    left.pop(other, None)
        return left

    for vector in vectors:
        left = reduced(vector)
        if left:
            name = min(left)
            inverse = pow(left[name], -1, ORDER)
            pivots[name] = {other: value * inverse % ORDER for other, value in left.items()}
    return not reduced(target)


@settings(max_examples=150)
@given(RANDOMS)
def test_no_combination_opens_unless_one_key_satisfies_the_formula(random: Random) -> None:
    tree = some_tree(random)
    keys = [some_held(random) for _ in range(random.randint(1, 3))]
    assert opens(program_of(tree), keys) == any(met(tree, held) for held in keys)


A, B, C, D, _ = UNIVERSE
REUSED = TraitGate(2, (TraitGate(1, (A, C)), TraitGate(1, (A, D))))  # (A || P) && (A || Q)
CROSSED = TraitGate(  # 2 of (A && B, C && D, A && C, B && D): the first two rows and the last two have one product
    2, tuple(TraitGate(2, pair) for pair in ((A, B), (C, D), (A, C), (B, D)))
)


@pytest.mark.parametrize(("tree", "held"), [(REUSED, {C}), (CROSSED, {A, B})])
def test_without_an_occurrence_of_its_own_a_repeated_trait_opens_the_door(tree: TraitTree, held: set[bytes]) -> None:
    program = program_of(tree)
    careless = Program(tuple(replace(row, occurrence=0) for row in program.rows), program.root)
    assert not met(tree, frozenset(held))
    assert opens(careless, [frozenset(held)])
    assert not opens(program, [frozenset(held)])
