"""Which subscriptions get which flows: interests, advertisements, policies, and the topic's code."""

from __future__ import annotations

from random import Random

import pytest
from fabric_parcels import parcel
from fabric_world import line
from host_world import HostWorld, principal
from makers import SCHEMA, token

from tallystick.carriers.fabric.matcher import (
    REST,
    Content,
    FabricInterest,
    FabricOffer,
    TopicMatcher,
    read_content,
    read_directory,
)
from tallystick.errors import Malformed, Refused
from tallystick.policy.attribute import integer, string
from tallystick.policy.clustering import Cutting
from tallystick.policy.formula import Formula
from tallystick.policy.matching import OverlapIndex, PolicyBook, _overlap
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSpace
from tallystick.policy.topic_code import TopicCode
from tallystick.wire import encode

SPACE = AttributeSpace.of("", integer("speed", 16, least=0), integer("gear", 8, least=0), string("street"))
TRAITS = AttributeSpace.of("acme", string("role", many=True), integer("level", 8, least=0))
CODE = TopicCode.read(["speed:4:0..160"], SCHEMA.arrow)


def formula(text: str) -> Formula:
    return parse(text, SPACE, "interest")


def policy(text: str) -> Formula:
    return parse(text, TRAITS, "policy")


def offer(content: object = None, **options: object) -> FabricOffer:
    values: dict[str, object] = {"policy": None, "code": None, "flows": {REST: b"all"}, **options}
    return FabricOffer(content, **values)  # type: ignore[arg-type]


def matched(matcher: TopicMatcher) -> dict[bytes, set[bytes]]:
    """Subscriptions by advertisement; both sides say the same."""
    found = {name: {key for keys in matcher.subscriptions_of(name).values() for key in keys} for name in matcher.offers}
    flows = {flow: name for name, one in matcher.offers.items() for flow in one.flows.values()}
    back = {name: set[bytes]() for name in matcher.offers}
    for key in matcher.interests:
        for flow in matcher.flows_of(key):
            back[flows[flow]].add(key)
    assert found == back
    return found


@pytest.mark.parametrize("subscriptions_first", [False, True])
def test_the_pairings_of_table_1(subscriptions_first: bool) -> None:
    """A set of values against a formula, a value against a comparison, comparisons against one another, either way."""
    matcher = TopicMatcher(PolicyBook())
    offers = {
        b"values": SPACE.values({"speed": 70, "street": "a"}),
        b"range": formula("speed > 60 and speed < 80"),
        b"all": None,
    }
    interests = {
        b"meets": formula("speed >= 70 and street = a"),
        b"misses": formula("speed > 100"),
        b"touches": formula("speed < 65"),
        b"anything": None,
    }

    def advertise() -> None:
        for name, content in offers.items():
            matcher.advertise(name, offer(content, flows={REST: name}))

    def subscribe() -> None:
        for name, interest in interests.items():
            matcher.subscribe(name, FabricInterest(b"p", interest))

    for step in (subscribe, advertise) if subscriptions_first else (advertise, subscribe):
        step()
    assert matched(matcher) == {
        b"values": {b"meets", b"anything"},
        b"range": {b"meets", b"touches", b"anything"},
        b"all": {b"meets", b"misses", b"touches", b"anything"},
    }


def test_two_interests_of_one_subscriber_are_not_mixed() -> None:
    """Fig. 19: `a && b` and `c && d` do not match {a, d}."""
    matcher = TopicMatcher(PolicyBook())
    for number, text in enumerate(("speed = 1 and gear = 1", "speed = 2 and gear = 2")):
        matcher.subscribe(b"%d" % number, FabricInterest(b"one", formula(text)))
    matcher.advertise(b"x", offer(SPACE.values({"speed": 1, "gear": 2})))
    assert matched(matcher) == {b"x": set()}


def test_many_formulas_overlap_as_each_would_alone(seed: int) -> None:
    random, overlaps, kept = Random(seed), OverlapIndex(), dict[int, Formula]()
    for number in range(60):
        low = random.randrange(200)
        kept[number] = formula(
            f"speed > {low} and speed < {low + random.randrange(2, 40)} or gear = {random.randrange(9)}"
        )
        overlaps.add(number, kept[number])
        if random.random() < 0.4:
            gone = random.choice(list(kept))
            overlaps.remove(gone)
            del kept[gone]
        asked = formula(f"speed > {random.randrange(200)} and gear < {random.randrange(1, 9)}")
        assert set(overlaps.overlapping(asked)) == {name for name, one in kept.items() if _overlap(asked, one)}


# --- subspaces ---


def subspaces(code: TopicCode | None, content: Content) -> list[str]:
    return TopicMatcher(PolicyBook()).subspaces(code, content, Cutting())


def test_flows_are_the_subspaces_that_are_published_and_one_for_all() -> None:
    assert subspaces(None, None) == subspaces(CODE, SPACE.values({"speed": 3})) == [REST]
    assert subspaces(CODE, None) == [*(format(number, "03b") for number in range(8)), REST]
    assert TopicMatcher(PolicyBook()).subspaces(CODE, None, Cutting.read("greedy:8")) == [REST]  # nobody wants anything
    speed = parse("speed < 35.0", CODE_SPACE, "content")
    assert subspaces(CODE, speed) == ["000", "001", REST]


CODE_SPACE = AttributeSpace.of("", *(one.attribute for one in CODE.dimensions))


@pytest.mark.parametrize("text", ["speed < 30.0", "speed > 100.0", "speed > 50.0 and speed < 55.0", "speed >= 0.0"])
def test_a_subscription_gets_the_subspaces_that_it_touches_and_the_one_for_all(text: str) -> None:
    """Never one too few."""
    matcher, names = TopicMatcher(PolicyBook()), subspaces(CODE, None)
    matcher.advertise(b"x", offer(code=CODE, flows={one: one.encode() for one in names}))
    interest = parse(text, CODE_SPACE, "interest")
    matcher.subscribe(b"s", FabricInterest(b"p", interest))
    needed = set()
    for speed in range(160):
        held = dict(CODE_SPACE.values({"speed": float(speed)}).values)
        if interest_holds(interest, held):
            needed.add(format(int(speed * 8 / 160), "03b").encode())
    got = matcher.flows_of(b"s")
    assert needed | {b""} <= got
    assert len(got) <= len(needed) + 3


def interest_holds(interest: Formula, held: dict[str, int | tuple[str, ...]]) -> bool:
    from tallystick.policy.evaluate import node_holds

    return bool(node_holds(interest.root, held))


def test_over_the_fabric_a_parcel_goes_to_the_subspaces_that_its_labels_name() -> None:
    """Without labels it goes to everybody whose interest overlaps what is published."""
    world = HostWorld(line(2))
    car, slow, fast = world.host("car", "s0"), world.host("slow", "s1"), world.host("fast", "s1", 101)
    slow.subscribe("brakes", parse("speed < 15.0", CODE_SPACE, "interest"))
    fast.subscribe("brakes", parse("speed > 150.0", CODE_SPACE, "interest"))
    answer = car.advertise("brakes", code=CODE).answer
    assert answer is not None
    assert len(answer.send) == 9
    car.publish("brakes", parcel(1))
    assert slow.got == fast.got == [parcel(1)]


@pytest.mark.parametrize("way", ["even:8", "greedy:6", "exact:95"])
def test_the_owner_chooses_how_a_topic_is_cut_and_nobody_misses_a_parcel(way: str) -> None:
    cuttings = {token("brakes"): Cutting.read(way)}
    world = HostWorld(line(3), cuttings=cuttings)
    wanted = {"slow": "speed < 15.0", "some": "speed > 62.0 and speed < 88.0", "fast": "speed > 150.0"}
    readers = {name: world.host(name, f"s{number}") for number, name in enumerate(wanted)}
    for name, text in wanted.items():
        readers[name].subscribe("brakes", parse(text, CODE_SPACE, "interest"))
    car = world.host("car", "s0", 101)
    answer = car.advertise("brakes", code=CODE).answer
    assert answer is not None
    assert len(answer.send) <= cuttings[token("brakes")].parts_max + 1
    car.publish("brakes", parcel(1))  # without labels
    assert all(one.got == [parcel(1)] for one in readers.values())


# --- policies ---


def test_who_does_not_satisfy_the_policy_gets_no_flow_and_loses_it_with_its_attribute() -> None:
    world = HostWorld(line(3))
    car, doctor, eve = world.host("car", "s0"), world.host("doctor", "s1"), world.host("eve", "s2")
    people = {"doctor": {"role": ["doctor"], "level": 3}, "eve": {"role": ["visitor"], "level": 9}}
    directory = encode([1, [[principal(name), TRAITS.values(held).encode()] for name, held in people.items()]])  # type: ignore[arg-type]
    world.obey(world.dispatcher.set_principals(read_directory(directory)))
    for one in (doctor, eve):
        one.subscribe("brakes")
    car.advertise("brakes", policy=policy("acme.role = doctor and acme.level >= 2"))
    car.publish("brakes", parcel(1))
    assert (doctor.got, eve.got) == ([parcel(1)], [])
    world.obey(world.dispatcher.set_principals([(principal("doctor"), TRAITS.values({"level": 3}))]))
    world.run()
    car.publish("brakes", parcel(2))
    assert (doctor.got, eve.got) == ([parcel(1)], [])


def test_who_is_not_known_satisfies_no_policy() -> None:
    book = PolicyBook()
    assert book.admits(None, b"x")
    assert not book.admits(policy("acme.level >= 0"), b"x")


# --- what makes no sense ---


def test_a_column_that_is_a_number_to_its_publishers_is_a_text_to_nobody() -> None:
    matcher, other = TopicMatcher(PolicyBook()), AttributeSpace.of("", string("speed"))
    text = parse("speed = fast", other, "interest")
    matcher.subscribe(b"first", FabricInterest(b"p", text))
    with pytest.raises(Refused, match="another type"):
        matcher.subscribe(b"second", FabricInterest(b"p", formula("speed > 3")))
    assert matcher.advertise(b"x", offer(formula("speed > 3"))) == [b"first"]
    assert matcher.interests == {}
    with pytest.raises(Refused, match="another type"):
        matcher.advertise(b"y", offer(text))
    with pytest.raises(Refused, match="another type"):
        matcher.subscribe(b"third", FabricInterest(b"p", text))


def test_junk_is_malformed() -> None:
    for junk in (b"x", encode([1]), encode([1, 2, 3]), encode("text"), encode([1, [[1, 2]]])):
        with pytest.raises(Malformed):
            read_content(junk)
    for junk in (b"", encode([2, []]), encode([1, [[b"short", b""]]]), encode([1, [[bytes(16)]]])):
        with pytest.raises(Malformed):
            read_directory(junk)
