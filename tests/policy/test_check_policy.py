"""Policies that admit nobody or everybody are found, exactly and within bounds."""

from __future__ import annotations

from random import Random

import pytest
from formulas import ACME, CONTENT, EVERY, RANDOMS, SMALL, some_node
from hypothesis import given

from tallystick.errors import Misuse
from tallystick.policy.attribute import integer
from tallystick.policy.check import check_interest, check_policy
from tallystick.policy.evaluate import node_holds
from tallystick.policy.formula import NEVER, Formula, canonical
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSpace


@given(RANDOMS)
def test_the_search_agrees_with_trying_everything(random: Random) -> None:
    node = some_node(random, SMALL)
    if canonical(node, SMALL) == NEVER:
        assert not any(node_holds(node, held) for held in EVERY)
        return
    formula = Formula.of(node, SMALL)
    outcomes = {node_holds(node, held) for held in EVERY}
    if len(outcomes) == 2:
        check_policy(formula)
        return
    with pytest.raises(Misuse, match="holds for everybody" if outcomes == {True} else "cannot be satisfied"):
        check_policy(formula)


@pytest.mark.parametrize(
    "text",
    [
        "role::city && role::police",
        "clearance < 3 && clearance > 5",
        "clearance < 0",
        "2 of (role::city, role::police, role::garage)",
        "(role::city || clearance < 3) && (role::police || clearance > 5) && (role::garage || clearance == 3)",
    ],
)
def test_a_policy_that_nobody_satisfies_is_refused(text: str) -> None:
    with pytest.raises(Misuse, match="cannot be satisfied"):
        check_policy(parse(text, ACME))


@pytest.mark.parametrize("text", ["clearance >= 0", "role != city || role::city", "clearance < 9 || clearance > 3"])
def test_a_policy_that_everybody_satisfies_is_refused(text: str) -> None:
    with pytest.raises(Misuse, match="holds for everybody"):
        check_policy(parse(text, ACME))
    check_interest(parse(text, ACME))


def test_no_key_can_be_made_for_reals() -> None:
    with pytest.raises(Misuse, match="keys are made for whole ones"):
        check_policy(parse("speed > 120", CONTENT))


def test_a_tangle_is_given_up_in_bounded_work() -> None:
    many = AttributeSpace.of("t", *(integer(f"n{i}", 8) for i in range(24)))
    # Each attribute must be both small and large in different parts: pigeons in too few holes.
    pairs = [f"(n{i} < 5 || n{(i + 1) % 24} > 200)" for i in range(24)]
    text = " && ".join([*pairs, "24 of (" + ", ".join(f"n{i} in 10..100" for i in range(24)) + ", n0 == 7)"])
    with pytest.raises(Misuse, match=r"could not be told in 1000000 steps|cannot be satisfied"):
        check_policy(parse(text, many))
