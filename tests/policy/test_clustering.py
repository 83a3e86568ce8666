"""Into which parts a topic's content is cut: they cover all of it, and nobody misses anything under any way."""

from __future__ import annotations

from random import Random

import pytest

from tallystick.errors import Misuse
from tallystick.policy.attribute import integer
from tallystick.policy.clustering import Clustering, Cutting, cut, read_cuttings, read_part, show_part
from tallystick.policy.evaluate import node_holds
from tallystick.policy.formula import Formula
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSpace
from tallystick.policy.subspaces import Dimension
from tallystick.policy.topic_code import TopicCode

SPEED, GEAR = integer("speed", 8, least=0), integer("gear", 8, least=0)
SPACE = AttributeSpace.of("", SPEED, GEAR)


def topic_code(*, each: bool, bits: int = 3) -> TopicCode:
    return TopicCode(tuple(Dimension.of(one, bits, 0, 63) for one in (SPEED, GEAR)), each)


def box(random: Random) -> Formula:
    low, least = random.randrange(60), random.randrange(60)
    sides = [f"speed >= {low} and speed <= {low + random.randrange(24)}"]
    sides += [f"gear >= {least} and gear <= {least + random.randrange(24)}"] * (random.random() < 0.7)
    return parse(" and ".join(sides), SPACE, "interest")


def string_of(code: TopicCode, number: int, event: tuple[int, int]) -> str:
    return code.codes[number].string(SPACE.values({"speed": event[0], "gear": event[1]}))


def delivered(code: TopicCode, interests: list[Formula], choice: Cutting, events: list[tuple[int, int]]) -> list[int]:
    """Parts, parts times those who get them, all deliveries and false ones; asserts that nobody misses anything."""
    parts = cut(code, interests, choice)
    assert 1 <= len(parts) <= choice.parts_max
    assert len({number for number, _ in parts}) == 1
    groups = {
        part: {n for n, one in enumerate(interests) if code.codes[part[0]].possible(one, part[1]) is not False}
        for part in parts
    }
    total = false = 0
    for event in events:
        found = [part for part in parts if string_of(code, part[0], event).startswith(part[1])]
        assert len(found) == 1  # they cover all content, and none overlaps another
        held = dict(SPACE.values({"speed": event[0], "gear": event[1]}).values)
        wanted = {n for n, one in enumerate(interests) if node_holds(one.root, held)}
        assert wanted <= groups[found[0]]
        total += len(groups[found[0]])
        false += len(groups[found[0]] - wanted)
    return [len(parts), sum(map(len, groups.values())), total, false]


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("number", range(4))
def test_greedy_needs_fewer_rules_and_delivers_more_than_exact_and_nobody_misses_anything(
    each: bool, number: int, seed: int
) -> None:
    random = Random(f"{seed}/{number}")
    code, interests = topic_code(each=each), [box(random) for _ in range(6)]
    events = [(random.randrange(64), random.randrange(64)) for _ in range(60)]
    exact = delivered(code, interests, Cutting(Clustering.EXACT, 64), events)
    greedy = delivered(code, interests, Cutting(Clustering.GREEDY, 6), events)
    even = delivered(code, interests, Cutting(Clustering.EVEN, 6), events)
    assert greedy[0] <= exact[0]
    assert greedy[1] <= exact[1]  # what rules are for
    assert greedy[3] >= exact[3]
    assert even[3] >= exact[3]
    if not each:
        assert greedy[0] < exact[0]


def test_exact_follows_interests_to_the_end_of_the_code() -> None:
    code = topic_code(each=False, bits=6)
    interests = [parse("speed >= 32", SPACE, "interest"), parse("speed < 8 and gear < 8", SPACE, "interest")]
    parts = cut(code, interests, Cutting(Clustering.EXACT, 95))
    events = [(speed, gear) for speed in range(0, 64, 3) for gear in range(0, 64, 3)]
    assert delivered(code, interests, Cutting(Clustering.EXACT, 95), events)[3] == 0
    assert len(parts) <= 8  # and no further where nobody wants to know
    assert cut(code, [], Cutting(Clustering.EXACT, 95)) == [(0, "")]


def test_of_a_code_for_each_attribute_the_one_that_serves_best_is_cut() -> None:
    interests = [parse(f"gear >= {low} and gear <= {low + 7}", SPACE, "interest") for low in range(0, 64, 8)]
    for how in Clustering:
        assert {number for number, _ in cut(topic_code(each=True), interests, Cutting(how, 8))} == {1}


def test_choices_are_read_and_mistakes_named() -> None:
    token = "00112233445566778899aabbccddeeff"
    assert read_cuttings(f"even:4 {token}=exact:95") == {
        b"": Cutting(Clustering.EVEN, 4),
        bytes.fromhex(token): Cutting(Clustering.EXACT, 95),
    }
    assert read_cuttings("") == {}
    for wrong in ("greedy", "finest:4", "even:0", "even:96", "even:x", "brakes=even:4"):
        with pytest.raises(Misuse, match="expected"):
            read_cuttings(wrong)
    for part in ((0, "0101"), (0, ""), (3, "01"), (2, "")):
        assert read_part(show_part(part)) == part
