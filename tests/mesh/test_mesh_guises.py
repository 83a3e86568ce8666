"""Guises: a topic's covers and games are its owner's choice, and forwarders follow it without knowing the topic."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mesh_world import mesh_key
from node_world import GAME, STILL, NodeWorld, drawn
from without import without

from tallystick.carriers.mesh.forwarding import CoverChoice, Guise
from tallystick.carriers.mesh.frames import MeshKind, framed
from tallystick.carriers.mesh.server import read_outside
from tallystick.errors import Misuse

BRAKES, ENGINE = (mesh_key(topic).pseudonym for topic in ("brakes", "engine"))
MANY = replace(STILL, guises=(Guise(CoverChoice(1.0, 0.0), 0.0),))
TREE = "p-f f-s p-p1 p-p2 p-p3 f-f1 f-f2 f-f3 s-s1 s-s2 s-s3"


def grown(seed: int) -> NodeWorld:
    """A publisher, a forwarder and a subscriber, each with three neighbours that have no use for the topic."""
    world = drawn(seed, TREE, MANY)
    for name in ("p", "s"):
        world.node(name).guises.own[BRAKES] = 1
        world.node(name).guises.own[ENGINE] = 0
    for topic in ("brakes", "engine"):
        world.advertise("p", topic)
        world.subscribe("s", topic=topic)
    world.run(4)
    return world


def test_a_forwarder_draws_as_the_topic_s_members_do(seed: int) -> None:
    world = grown(seed)
    assert {name: len(links) for name, links in world.links().items() if name in "pfs"} == {"p": 4, "f": 5, "s": 4}
    assert world.links("engine") == {"p": {"f"}, "f": {"p", "s"}, "s": {"f"}}  # another topic, another guise
    assert world.node("f").guises.own == {}
    assert (world.node("f").guises.number(BRAKES), world.node("f1").guises.number(BRAKES)) == (1, 1)


def test_without_that_an_observer_tells_members_by_the_number_of_their_covers(seed: int) -> None:
    with without("the guise in a subscription"):
        world = grown(seed)
    covers = {name: len(world.links()[name] - {"p", "f", "s"}) for name in ("p", "f", "s")}
    assert covers == {"p": 3, "f": 0, "s": 3}


def test_games_are_the_guise_s_too(seed: int) -> None:
    never, ever = CoverChoice(0.0, 0.0), Guise(CoverChoice(0.0, 0.0), 0.0)
    settings = replace(STILL, covers=never, guises=(ever,), game=replace(GAME, decay=1e6, wait_s=1.0))
    swaps = {}
    for number in (0, 1):
        world = drawn(seed, "p-f f-g g-s", settings)
        world.node("s").guises.own[BRAKES] = world.node("p").guises.own[BRAKES] = number
        world.advertise("p")
        world.subscribe("s")
        world.run(60)
        swaps[number] = sum(world.node(name).game.swaps for name in "pfgs")
    assert swaps[0] == 0
    assert swaps[1] > 0


def test_a_guise_that_a_node_does_not_know_goes_on_through_it(seed: int) -> None:
    world = drawn(seed, TREE, MANY, f=STILL)
    world.node("s").guises.own[BRAKES] = 1
    world.advertise("p")
    world.subscribe("s")
    world.run(4)
    assert len(world.links()["f"]) == 2
    assert world.node("p").guises.number(BRAKES) == 1  # it was told so: its kit said nothing


def test_it_is_forgotten_with_the_mesh_and_stays_with_a_member_that_forwards_on(seed: int) -> None:
    world = drawn(seed, "p-s s-t", MANY)
    for name in ("p", "s", "t"):
        world.node(name).guises.own[BRAKES] = 1
    world.advertise("p")
    world.subscribe("s", "t")
    world.run(2)
    world.node("s").unsubscribe(BRAKES)
    world.node("s").guises.own = {}
    world.run(1)
    assert world.node("s").guises.number(BRAKES) == 1
    world.node("t").unsubscribe(BRAKES)
    world.run(2)
    assert world.node("s").guises.met == {}


@pytest.mark.parametrize("word", [0, 4, 8, 16, 255])
def test_words_without_a_stance_are_refused(word: int, seed: int) -> None:
    world = drawn(seed, "p-f", STILL)
    world.advertise("p")
    world.run(1)
    world.network.send(
        world.identities["f"].hex(), world.identities["p"].hex(), framed(MeshKind.SUBSCRIBE, BRAKES, word)
    )
    world.run(0.2)
    assert world.node("p").matching.topics == {}
    assert sum(world.node("p").statistics().refused.values()) == 1


def test_a_node_s_guises_are_read_from_its_settings() -> None:
    found = read_outside({"mesh_guises": "0.7/0.05/0.03, 1/0/0"}).settings.guises
    assert found == (Guise(CoverChoice(0.7, 0.05), 0.03), Guise(CoverChoice(1.0, 0.0), 0.0))
    for wrong in ("0.7", "2/0/0", "0.7/0/-1", "a/b/c", "1/1/1,1/1/1,1/1/1,1/1/1"):
        with pytest.raises(Misuse):
            read_outside({"mesh_guises": wrong})
