"""Attribute spaces, random formulas and random holdings, shared by the tests of policies and of what is built on them.

Formulas are drawn by a seeded generator and not by Hypothesis's own recursion, which takes a hundred times as long.
"""

from __future__ import annotations

from datetime import date, timedelta
from itertools import product
from random import Random
from typing import Any

from hypothesis import strategies as st

from tallystick.policy.attribute import Attribute, AttributeKind, category, day, flag, integer, real, string
from tallystick.policy.formula import NEVER, Formula, FormulaGate, Leaf, Node, OneOf, Within, canonical
from tallystick.policy.space import AttributeSpace

ACME = AttributeSpace.of(
    "acme",
    category("role", ["city", "garage", "insurer", "police"]),
    category("region", ["EU", "KR", "US"], many=True),
    integer("clearance", 8),
    integer("height", 12, least=-500),
    day("since"),
    string("vin"),
    flag("trained"),
)
CONTENT = AttributeSpace.of(
    "", category("road", ["lane", "motorway", "street"]), real("speed"), integer("gear", 4), string("vin"), flag("rain")
)
# So small that everything can be tried.
SMALL = AttributeSpace.of(
    "t", category("c", ["x", "y"]), category("m", ["p", "q"], many=True), integer("n", 2), flag("f")
)


def every_holding() -> list[dict[str, Any]]:
    """Every principal that has all attributes of SMALL."""
    choices: list[tuple[str, list[Any]]] = [
        ("t.c", [("x",), ("y",)]),
        ("t.m", [("p",), ("q",), ("p", "q")]),
        ("t.n", list(range(4))),
        ("t.f", [("false",), ("true",)]),
    ]
    names = [name for name, _ in choices]
    return [dict(zip(names, values, strict=True)) for values in product(*(found for _, found in choices))]


EVERY = every_holding()

VINS = ["A1", "B 2", 'C"3', "or", "7"]
SPEEDS = [-2.0, -1.5, -0.0, 0.0, 29.9, 30.0, 50.5, 119.0, 120.0, 120.1, 1e300]

RANDOMS = st.integers(0, (1 << 32) - 1).map(Random)


def some_ordinal(random: Random, attribute: Attribute) -> int:
    if attribute.kind is AttributeKind.REAL:
        return attribute.ordinal(random.choice(SPEEDS))
    return random.randint(0, random.choice([attribute.top, min(40, attribute.top)]))


def some_leaf(random: Random, space: AttributeSpace) -> Leaf:
    attribute = random.choice(space.attributes)
    if attribute.is_text:
        return OneOf(attribute.name, tuple(random.choices(attribute.values or VINS, k=random.randint(1, 3))))
    intervals = []
    for _ in range(random.choice([1, 1, 2])):
        ends = sorted((some_ordinal(random, attribute), some_ordinal(random, attribute)))
        intervals.append(random.choice([(ends[0], ends[1]), (ends[0], attribute.top), (0, ends[1])]))
    return Within(attribute.name, tuple(intervals))


def some_node(random: Random, space: AttributeSpace, leaves_max: int = 8) -> Node:
    count = random.randint(1, leaves_max)
    if count == 1:
        return some_leaf(random, space)
    parts: list[Node] = []
    while count > 0:
        share = random.randint(1, count)
        parts.append(some_node(random, space, share) if len(parts) or share < count else some_leaf(random, space))
        count -= share
    return FormulaGate(random.choice([1, len(parts), random.randint(1, len(parts))]), tuple(parts))


def some_formula(random: Random, space: AttributeSpace = ACME, leaves_max: int = 8) -> Formula:
    while canonical(node := some_node(random, space, leaves_max), space) == NEVER:
        pass
    return Formula.of(node, space)


def some_holding(random: Random, space: AttributeSpace = ACME, share: float = 0.7) -> dict[str, Any]:
    """What a principal may hold, or an event: some of the attributes."""
    return {attribute.name: some_value(random, attribute) for attribute in space.attributes if random.random() < share}


def some_value(random: Random, attribute: Attribute) -> Any:
    if attribute.is_text:
        values = attribute.values or VINS
        return random.sample(values, random.randint(1, 2)) if attribute.many else random.choice(values)
    if attribute.kind is AttributeKind.REAL:
        return random.choice(SPEEDS)
    ordinal = some_ordinal(random, attribute)
    if attribute.kind is AttributeKind.DATE:
        return date(1970, 1, 1) + timedelta(days=ordinal)
    return ordinal + attribute.least
