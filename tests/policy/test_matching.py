"""Principals that a policy admits, and advertisements that an interest overlaps, against trying them all."""

from __future__ import annotations

from random import Random

from formulas import ACME, CONTENT, EVERY, RANDOMS, SMALL, some_formula, some_holding
from hypothesis import given, settings

from tallystick.policy.evaluate import holds, node_holds
from tallystick.policy.matching import AdvertisementIndex, PrincipalIndex
from tallystick.policy.parse import parse


@settings(max_examples=60)
@given(RANDOMS)
def test_the_principals_that_satisfy_a_policy(random: Random) -> None:
    held = {number: ACME.values(some_holding(random, ACME)) for number in range(40)}
    index = PrincipalIndex(held.items())
    for _ in range(5):
        policy = some_formula(random, ACME)
        expected = [number for number, attributes in held.items() if holds(policy, attributes)]
        assert index.satisfying(policy) == expected
        assert index.count(policy) == len(expected)
        other = some_formula(random, ACME)
        before = set(expected)
        after = {number for number, attributes in held.items() if holds(other, attributes)}
        assert index.change(policy, other) == (sorted(after - before), sorted(before - after))
        assert index.change(None, other) == ([], sorted(set(held) - after))
        assert index.change(policy, None) == (sorted(set(held) - before), [])


@settings(max_examples=60)
@given(RANDOMS)
def test_the_advertisements_that_an_interest_overlaps(random: Random) -> None:
    """Over a space so small that every event can be tried."""
    advertisements = {number: some_formula(random, SMALL, 5) for number in range(15)}
    index = AdvertisementIndex(advertisements.items())
    for _ in range(4):
        interest = some_formula(random, SMALL, 5)
        expected = [
            number
            for number, advertisement in advertisements.items()
            if any(node_holds(interest.root, event) and node_holds(advertisement.root, event) for event in EVERY)
        ]
        assert index.overlapping(interest) == expected


def test_no_overlap_is_missed_in_a_large_space() -> None:
    random = Random(5)
    advertisements = {number: some_formula(random, CONTENT, 6) for number in range(60)}
    index = AdvertisementIndex(advertisements.items())
    for _ in range(60):
        event = CONTENT.values(some_holding(random, CONTENT, share=1.0))
        interest = some_formula(random, CONTENT, 6)
        if holds(interest, event):
            met = {number for number, one in advertisements.items() if holds(one, event)}
            assert met <= set(index.overlapping(interest))


def test_the_four_pairings_of_the_thesis() -> None:
    """Table 1: an attribute set against a formula and a value against a comparison, both ways round."""
    space = type(ACME).read(
        "[attr1]\nkind='flag'\n[attr2]\nkind='flag'\n[n1]\nkind='integer'\nbits=8\n[n2]\nkind='integer'\nbits=8\n"
    )
    both, comparison = parse("attr1 && attr2", space), parse("n1 < 10 || n2 > 13", space)
    published = {"attr1": True, "attr2": True}
    assert holds(both, space.values(published))
    assert not holds(both, space.values({"attr1": True}))
    assert AdvertisementIndex([("p", both)]).overlapping(parse("attr1 && attr2", space)) == ["p"]
    assert holds(comparison, space.values({"n1": 5}))
    assert AdvertisementIndex([("p", comparison)]).overlapping(parse("n1 == 5", space)) == ["p"]
    assert AdvertisementIndex([("p", parse("n1 < 10", space))]).overlapping(parse("n1 == 15", space)) == []
