"""The index of interests against the loop over all of them."""

from __future__ import annotations

from random import Random

import pytest
from formulas import ACME, CONTENT, RANDOMS, some_formula, some_holding
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.errors import Misuse
from tallystick.policy.evaluate import holds
from tallystick.policy.formula import Formula
from tallystick.policy.matching import InterestIndex
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSpace


def naive(interests: dict[int, Formula], event: object) -> list[int]:
    return [name for name, interest in interests.items() if holds(interest, event)]  # type: ignore[arg-type]


@settings(max_examples=60)
@given(RANDOMS, st.sampled_from([ACME, CONTENT]))
def test_the_index_agrees_with_the_loop(random: Random, space: AttributeSpace) -> None:
    interests = {number: some_formula(random, space, 6) for number in range(60)}
    index = InterestIndex()
    for name, interest in interests.items():
        index.add(name, interest)
    index.file()
    for _ in range(8):
        event = space.values(some_holding(random, space, share=0.8))
        assert index.match(event) == naive(interests, event)


@settings(max_examples=20)
@given(RANDOMS)
def test_additions_and_removals_count_at_once(random: Random) -> None:
    index, interests = InterestIndex(fresh_min=10), {}
    for number in range(60):
        interests[number] = some_formula(random, CONTENT, 4)
        index.add(number, interests[number])
        if random.random() < 0.3:
            gone = random.choice(list(interests))
            del interests[gone]
            index.remove(gone)
        event = CONTENT.values(some_holding(random, CONTENT))
        assert sorted(index.match(event)) == sorted(naive(interests, event))  # type: ignore[type-var]
    assert index.statistics().interests == len(interests)


def test_two_interests_of_one_subscriber_are_not_mixed() -> None:
    """Thesis, Fig. 19: `a && b` and `c && d` do not match {a, d}."""
    space = AttributeSpace.read("".join(f"[{letter}]\nkind = 'flag'\n" for letter in "abcd"))
    index = InterestIndex()
    index.add(("car", 1), parse("a && b", space))
    index.add(("car", 2), parse("c && d", space))
    index.file()
    assert index.match(space.values({"a": True, "d": True})) == []
    assert index.match(space.values({"a": True, "b": True})) == [("car", 1)]


def test_an_interest_of_many_alternatives_is_asked_itself() -> None:
    text = " && ".join(f"(gear == {number} || vin::v{number})" for number in range(6))
    index = InterestIndex()
    index.add("tangle", parse(text + " && speed > 3", CONTENT))
    index.add("holes", parse("gear != 3", CONTENT))
    index.file()
    assert index.match(CONTENT.values({"gear": 3, "vin": "v0", "speed": 4.0})) == []
    assert index.match(CONTENT.values({"gear": 4})) == ["holes"]


def test_spaces_that_disagree_are_named_and_events_of_another_type_match_nothing() -> None:
    other = AttributeSpace.read("[gear]\nkind = 'string'\n")
    index = InterestIndex()
    index.add(1, parse("gear == 3", CONTENT))
    index.file()
    assert index.match(other.values({"gear": "3"})) == []
    index.add(2, parse("gear::three", other))
    with pytest.raises(Misuse, match="text in one formula and a number in another"):
        index.file()


def test_names_are_unique() -> None:
    index = InterestIndex()
    index.add(1, parse("rain", CONTENT))
    with pytest.raises(Misuse, match="already"):
        index.add(1, parse("rain", CONTENT))
    with pytest.raises(Misuse, match="is not in the index"):
        index.remove(2)
    index.file()
    index.remove(1)
    index.add(1, parse("gear == 3", CONTENT))  # the same name again, while the old interest is still filed
    assert index.match(CONTENT.values({"rain": True})) == []
    assert index.match(CONTENT.values({"rain": True, "gear": 3})) == [1]
    assert InterestIndex().match(CONTENT.values({"gear": 3})) == []
