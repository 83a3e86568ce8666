"""Topics' meshes: who is in them and why, covers, repair, bounds (AnonPubSub 4.4 to 4.6, Figs 5 and 7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from mesh_world import mesh_key
from node_world import STILL, NodeWorld, drawn, is_connected, reached
from without import without

from tallystick.carriers.mesh.community import CommunityLimits
from tallystick.carriers.mesh.forwarding import CoverChoice
from tallystick.carriers.mesh.frames import MeshKind, framed
from tallystick.carriers.mesh.matching import MatchingLimits, Stance
from tallystick.errors import Misuse

QUICK = replace(STILL, community=CommunityLimits(pulse_s=2.0, silent_s=6.0))
BRAKES = mesh_key("brakes").pseudonym


def got(world: NodeWorld, *names: str) -> list[list[bytes]]:
    return [sorted(world.delivered().get(name, Counter()).elements()) for name in names]


# --- the mesh of a topic ---


def test_fig_5_subscriptions_follow_the_advertisement_back(seed: int) -> None:
    world = drawn(seed, "p-f1 f1-f2 f1-f3 f2-s f3-x f2-f3", QUICK)
    publication = world.advertise("p")
    world.subscribe("s")
    world.subscribe("x", topic="engine")  # t_x: nobody advertises it
    world.run(3)
    assert world.links() == {"p": {"f1"}, "f1": {"p", "f2"}, "f2": {"f1", "s"}, "s": {"f2"}}
    assert world.links("engine") == {}
    world.publish("p", publication, b"parcel")
    world.run(1)
    assert world.delivered().keys() == {"s"}


def test_fig_5_publishers_subscribe_to_each_other(seed: int) -> None:
    """Two publishers, each with a subscriber nearer to it, and nodes between them: one mesh, and both hear all."""
    world = drawn(seed, "s1-p1 p1-f1 f1-f2 f2-p2 p2-s2", QUICK)
    one, other = world.advertise("p1"), world.advertise("p2")
    world.run(3)
    assert world.links() == {"p1": {"f1"}, "f1": {"p1", "f2"}, "f2": {"f1", "p2"}, "p2": {"f2"}}
    world.subscribe("s1", "s2")
    world.run(3)
    world.publish("p1", one, b"from p1")
    world.publish("p2", other, b"from p2")
    world.run(1)
    assert got(world, "s1", "s2") == [[b"from p1", b"from p2"]] * 2


def test_whoever_subscribes_early_is_in_when_an_advertisement_comes(seed: int) -> None:
    world = drawn(seed, "p-f f-s", QUICK)
    world.subscribe("s")
    world.run(2)
    assert world.links() == {}
    world.advertise("p")
    world.run(2)
    assert world.links() == {"p": {"f"}, "f": {"p", "s"}, "s": {"f"}}


def test_a_publisher_gets_its_own_where_it_subscribes_as_well(seed: int) -> None:
    world = drawn(seed, "p-f f-s", QUICK)
    publication = world.advertise("p")
    world.subscribe("p", "s")
    world.run(2)
    world.publish("p", publication, b"parcel")
    world.run(1)
    assert got(world, "p", "s") == [[b"parcel"]] * 2


def test_whoever_is_needed_by_nobody_leaves_and_the_others_stay(seed: int) -> None:
    world = drawn(seed, "p-f1 f1-f2 f2-s1 f1-s2", QUICK)
    world.advertise("p")
    world.subscribe("s1", "s2")
    world.run(2)
    world.node("s1").unsubscribe(BRAKES)
    world.run(2)
    assert world.links() == {"p": {"f1"}, "f1": {"p", "s2"}, "s2": {"f1"}}
    assert all(set(world.node(name).community.states) == set() for name in ("s1", "f2"))
    world.subscribe("f1")
    world.node("s2").unsubscribe(BRAKES)
    world.run(2)
    assert world.links() == {"p": {"f1"}, "f1": {"p"}}


def test_a_subscriber_between_others_stays_as_a_forwarder(seed: int) -> None:
    world = drawn(seed, "p-s1 s1-s2", QUICK)
    publication = world.advertise("p")
    world.subscribe("s1", "s2")
    world.run(2)
    world.node("s1").unsubscribe(BRAKES)
    world.run(1)
    world.publish("p", publication, b"parcel")
    world.run(1)
    assert got(world, "s1", "s2") == [[], [b"parcel"]]


def test_the_mesh_ends_when_its_advertisement_is_taken_back(seed: int) -> None:
    world = drawn(seed, "p-f f-s", QUICK)
    publication = world.advertise("p")
    world.subscribe("s")
    world.run(2)
    assert world.links()
    world.node("p").unadvertise(publication)
    world.run(2)
    assert world.links() == {}
    assert not any(world.node(name).community.states for name in world.living())
    assert not any(world.node(name).localisation.known for name in world.living())


def test_whoever_leaves_the_mesh_says_so(seed: int) -> None:
    world = drawn(seed, "p-f1 f1-s p-f2 f2-f3 f3-s", QUICK)
    publication = world.advertise("p")
    world.subscribe("s")
    world.run(2)
    assert set(world.links()) == {"p", "f1", "s"}
    world.node("f1").leave()
    world.run(2)
    assert set(world.links()) == {"p", "f2", "f3", "s"}
    assert world.node("f1").entries() == []
    world.publish("p", publication, b"parcel")
    world.run(1)
    assert got(world, "s") == [[b"parcel"]]


# --- repair ---

RING = "p-a1 a1-a2 a2-s p-b1 b1-b2 b2-b3 b3-s"


def test_after_a_crash_the_next_by_chain_serves_and_nothing_is_lost(seed: int) -> None:
    world = drawn(seed, RING, QUICK)
    publication = world.advertise("p")
    world.subscribe("s")
    world.run(3)
    assert set(world.links()) == {"p", "a1", "a2", "s"}
    world.crash("a2")
    for number in range(10):
        world.publish("p", publication, b"%d" % number)
        world.run(1)
    world.run(15)
    assert set(world.links()) == {"p", "b1", "b2", "b3", "s"}
    assert got(world, "s") == [sorted(b"%d" % number for number in range(10))]


def cut_off(world: NodeWorld) -> None:
    """A part that lies to itself: s and c hold each other for the way to the publisher, as after a game and a crash."""
    world.advertise("p")
    world.subscribe("s")
    world.run(1)
    now = world.now
    for name, other in (("s", "c"), ("c", "s")):
        node = world.node(name)
        for one in list(node.matching.links(BRAKES)):
            node.matching.drop(BRAKES, one)
        state = node.community._state(BRAKES, now)
        state.asked = dict.fromkeys(node.localisation.known, now)
        link = node.matching.link(BRAKES, world.identities[other], now)
        link.is_up = link.is_down = link.is_heard = True
    a2 = world.node("a2")
    for one in list(a2.matching.links(BRAKES)):
        a2.matching.drop(BRAKES, one)
    a2.community.states.clear()


def test_a_part_that_is_cut_off_and_does_not_know_it_hears_silence(seed: int) -> None:
    world = drawn(seed, f"{RING} s-c", QUICK)
    cut_off(world)
    world.run(1)
    assert not is_connected({name: links for name, links in world.links().items() if name in ("p", "s", "c")})
    world.run(8)
    assert is_connected(world.links())
    assert {"p", "s"} <= set(world.links())


def test_without_that_proof_it_stays_cut_off(seed: int) -> None:
    world = drawn(seed, f"{RING} s-c", QUICK)
    with without("the proof that a publisher is still heard"):
        cut_off(world)
        world.run(60)
        assert reached(world.links(), "s") == {"s", "c"}


def test_a_neighbour_that_says_it_moved_on_is_lost_like_any_other(seed: int) -> None:
    """Where no swap is under way nobody has a successor: s asks anew at once."""
    world = drawn(seed, RING, replace(QUICK, community=CommunityLimits(pulse_s=2.0, silent_s=1000.0)))
    world.advertise("p")
    world.subscribe("s")
    world.run(3)
    world.crash("a2")  # what it says from now on is a liar's
    frame = framed(MeshKind.UNSUBSCRIBE, BRAKES, 1)
    world.network.send(world.identities["a2"].hex(), world.identities["s"].hex(), frame)
    world.run(12)
    assert set(world.links()) == {"p", "b1", "b2", "b3", "s"}


# --- bounds ---


def subscribe_as(world: NodeWorld, name: str, to: str, pseudonyms: Iterable[bytes], stance: Stance) -> None:
    for pseudonym in pseudonyms:
        frame = framed(MeshKind.SUBSCRIBE, pseudonym, int(stance))
        world.network.send(world.identities[name].hex(), world.identities[to].hex(), frame)
    world.run(1)


@pytest.mark.parametrize("stance", Stance)
def test_subscriptions_to_what_nobody_advertises_leave_nothing_behind(stance: Stance, seed: int) -> None:
    world = drawn(seed, "p-f f-liar", QUICK)
    subscribe_as(world, "liar", "f", [number.to_bytes(16, "big") for number in range(100)], stance)
    node = world.node("f")
    assert node.matching.topics == {}
    assert node.community.states == {}
    assert node.statistics().refused["unknown-topic"] == 100


def test_a_link_has_so_many_topics_and_a_topic_so_many_links(seed: int) -> None:
    small = replace(QUICK, matching=MatchingLimits(topics_max=2, links_max=3))
    world = drawn(seed, "p-f f-s1 f-s2 f-s3 f-s4", QUICK, f=small)
    topics = ["brakes", "engine", "doors"]
    for topic in topics:
        world.advertise("p", topic)
    world.run(2)
    for name in ("s1", "s2", "s3", "s4"):
        world.crash(name)  # what they say from now on is not theirs
    for topic in topics:
        subscribe_as(world, "s1", "f", [mesh_key(topic).pseudonym], Stance.FORWARD)
    assert len(world.node("f").matching.topics) == 2
    for name in ("s2", "s3", "s4"):
        subscribe_as(world, name, "f", [BRAKES], Stance.FORWARD)
    assert len(world.node("f").matching.links(BRAKES)) == 3
    assert world.node("f").statistics().refused["tables-full"] >= 2


def test_strangers_subscribe_to_nothing(seed: int) -> None:
    world = drawn(seed, "p-f", QUICK)
    world.add("stranger", settings=STILL)
    world.advertise("p")
    world.run(2)
    subscribe_as(world, "stranger", "f", [BRAKES], Stance.FORWARD)
    assert world.node("f").matching.topics == {}
    assert world.node("f").statistics().refused["stranger"] == 1


# --- covers ---


def accuracy(world: NodeWorld) -> float:
    """Of an observer who takes the leaves for the subscribers, and knows the publisher (Eq. 5)."""
    links = {name: near for name, near in world.links().items() if name != "p"}
    right = [(len(near) == 1) == name.startswith("s") for name, near in links.items()]
    return sum(right) / len(right)


@pytest.mark.parametrize(
    ("coverers", "nu", "expected"), [("", 0.0, 0.8), ("s1 s3", 0.0, 3 / 7), ("s1 s3", 1.0, 0.5)], ids=["l", "m", "r"]
)
def test_fig_7_covers_mislead_who_looks_for_leaves(coverers: str, nu: float, expected: float, seed: int) -> None:
    """Left: s1, s2 and s4 are leaves. Middle: s1 and s3 draw f2 and f3. Right: f3 draws f4."""
    draws = {name: replace(QUICK, covers=CoverChoice(1.0, 0.0)) for name in coverers.split()}
    draws["f3"] = replace(QUICK, covers=CoverChoice(0.0, nu))
    world = drawn(seed, "p-f1 f1-s1 f1-s2 f1-s3 s3-s4 s1-f2 s3-f3 f3-f4", QUICK, **draws)
    world.advertise("p")
    world.run(1)
    world.subscribe("s4")  # so that s3 knows it to be in the mesh when it draws
    world.run(1)
    world.subscribe("s1", "s2", "s3")
    world.run(2)
    assert accuracy(world) == pytest.approx(expected)


def test_covers_are_drawn_once_and_stay(seed: int) -> None:
    """Fig. 13: an observer of one draw after another finds the subscribers as those who are always there."""
    names = [f"n{number}" for number in range(12)]
    links = " ".join(f"{one}-{other}" for one in ("p", "s") for other in names)
    world = drawn(seed, f"p-s {links}", replace(QUICK, covers=CoverChoice(0.5, 0.0)))
    publication = world.advertise("p")
    world.subscribe("s")
    world.run(2)
    before = world.links()
    assert 2 < len(before) - 2 < 12
    for _ in range(20):
        world.publish("p", publication, b"again")
        world.run(0.5)
    assert world.links() == before


def test_covers_draw_covers_to_no_fixed_depth(seed: int) -> None:
    chain = " ".join(f"n{number}-n{number + 1}" for number in range(8))
    world = drawn(seed, f"p-s s-n0 {chain}", replace(QUICK, covers=CoverChoice(1.0, 1.0)))
    world.advertise("p")
    world.subscribe("s")
    world.run(2)
    assert len(world.links()) == 11
    world = drawn(seed, f"p-s s-n0 {chain}", replace(QUICK, covers=CoverChoice(1.0, 0.0)))
    world.advertise("p")
    world.subscribe("s")
    world.run(2)
    assert len(world.links()) == 3  # depth 0, for the paper's figures


def test_a_cover_has_a_lease(seed: int) -> None:
    world = drawn(seed, "p-s s-n0 n0-n1", replace(QUICK, covers=CoverChoice(1.0, 1.0)))
    world.advertise("p")
    world.subscribe("s")
    world.run(20)
    assert set(world.links()) == {"p", "s", "n0", "n1"}
    world.crash("s")
    world.run(20)
    assert world.links() == {}
    assert not any(world.node(name).community.states for name in ("n0", "n1"))


def test_a_cover_that_a_subscriber_comes_to_serves_it(seed: int) -> None:
    world = drawn(seed, "p-s s-n0 n0-late", QUICK, s=replace(QUICK, covers=CoverChoice(1.0, 0.0)))
    publication = world.advertise("p")
    world.subscribe("s")
    world.run(2)
    world.subscribe("late")
    world.run(1)
    world.publish("p", publication, b"parcel")
    world.run(1)
    assert got(world, "late") == [[b"parcel"]]
    world.node("s").unsubscribe(BRAKES)
    world.run(10)
    world.publish("p", publication, b"parcel 2")
    world.run(2)
    assert got(world, "late") == [[b"parcel", b"parcel 2"]]


def test_probabilities_are_probabilities() -> None:
    with pytest.raises(Misuse):
        CoverChoice(1.5, 0.0)
