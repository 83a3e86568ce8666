"""The shell game: places change hands, and the mesh stays whole, at every moment and after every crash (AnonPubSub 4.5,
Fig. 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
from mesh_world import mesh_key
from node_world import GAME, STILL, NodeWorld, drawn, entry, is_connected
from without import without

from tallystick.carriers.mesh.community import CommunityLimits
from tallystick.carriers.mesh.frames import MeshKind, framed
from tallystick.carriers.mesh.matching import MatchingLimits, Stance
from tallystick.carriers.mesh.membership import ViewLimits
from tallystick.carriers.mesh.mesh_node import Publication
from tallystick.carriers.mesh.shell_game import ShellGameLimits
from tallystick.runtime.network import Link

BRAKES = mesh_key("brakes").pseudonym
QUICK = replace(
    STILL,
    view=ViewLimits(view_max=0, alive_s=1.0, lost_s=3.5),
    community=CommunityLimits(pulse_s=2.0, silent_s=6.0),
    matching=MatchingLimits(refresh_s=1.0, lease_s=5.0, doubt_s=5.0),
)
PLAYING = replace(QUICK, game=replace(GAME, decay=0.0, wait_s=1.0))
FIG_6 = "p-f f-s4 f-f3 f3-s3 p-f2 f2-s1 f2-s2"


def challenge(world: NodeWorld, name: str, partner: str) -> None:
    node = world.node(name)
    node._outbox.append(lambda now: node.game.challenge(BRAKES, world.identities[partner], now))


def swaps(world: NodeWorld) -> int:
    return sum(world.node(name).game.swaps for name in world.living())


def degrees(world: NodeWorld) -> list[int]:
    return sorted(len(near) for near in world.links().values())


def moments(world: NodeWorld, seconds: float) -> Iterator[None]:
    """After each event."""
    until = world.now + seconds
    while world.network.clock.step(until):
        yield


@pytest.fixture
def fig_6(seed: int) -> tuple[NodeWorld, Publication]:
    world = drawn(seed, FIG_6, QUICK)
    publication = world.advertise("p")
    world.subscribe("s1", "s2", "s3", "s4")
    world.run(4)
    return world, publication


# --- what a swap does ---


def test_fig_6_two_swaps(fig_6: tuple[NodeWorld, Publication]) -> None:
    world, publication = fig_6
    rest = {"f2": {"p", "s1", "s2"}, "s1": {"f2"}, "s2": {"f2"}}
    assert world.links() == rest | {
        "p": {"f", "f2"},
        "f": {"p", "s4", "f3"},
        "s4": {"f"},
        "f3": {"f", "s3"},
        "s3": {"f3"},
    }
    challenge(world, "f", "s4")
    world.run(4)
    assert world.links() == rest | {
        "p": {"s4", "f2"}, "s4": {"p", "f", "f3"}, "f": {"s4"}, "f3": {"s4", "s3"}, "s3": {"f3"},
    }  # fmt: skip
    challenge(world, "f3", "s3")
    world.run(4)
    assert world.links() == rest | {
        "p": {"s4", "f2"}, "s4": {"p", "f", "s3"}, "f": {"s4"}, "s3": {"s4", "f3"}, "f3": {"s3"},
    }  # fmt: skip
    world.publish("p", publication, b"parcel")
    world.run(1)
    assert world.delivered() == {name: Counter([b"parcel"]) for name in ("s1", "s2", "s3", "s4")}
    assert not any(world.node(name).game.locks for name in world.living())


def test_bearings_go_with_the_place(fig_6: tuple[NodeWorld, Publication]) -> None:
    """Who was below stays below: f is below s4 now, and s4 below the publisher."""
    world, _ = fig_6
    challenge(world, "f", "s4")
    world.run(4)
    up = {
        name: {world.names[one.hex()] for one, link in world.node(name).matching.links(BRAKES).items() if link.is_up}
        for name in world.links()
    }
    assert up == {"p": set(), "s4": {"p"}, "f": {"s4"}, "f3": {"s4"}, "s3": {"f3"}} | {
        "f2": {"p"}, "s1": {"f2"}, "s2": {"f2"},
    }  # fmt: skip


def test_a_publisher_may_play_since_envelopes_go_both_ways(fig_6: tuple[NodeWorld, Publication]) -> None:
    world, publication = fig_6
    challenge(world, "p", "f")
    world.run(4)
    assert world.links()["p"] == {"f", "s4", "f3"}
    world.publish("p", publication, b"parcel")
    world.run(1)
    assert world.delivered().keys() == {"s1", "s2", "s3", "s4"}


def test_along_the_subscriptions_alone_it_would_be_heard_by_some(fig_6: tuple[NodeWorld, Publication]) -> None:
    world, publication = fig_6
    with without("envelopes in both directions"):
        challenge(world, "p", "f")
        world.run(4)
        world.publish("p", publication, b"parcel")
        world.run(0.5)  # before what was lost is asked for
    assert world.delivered().keys() == {"s3", "s4"}


def test_common_neighbours_keep_both(seed: int) -> None:
    """a is a neighbour of both who swap: nothing changes for it but who is above."""
    world = drawn(seed, "p-v v-w v-a w-a w-s", QUICK)
    world.advertise("p")
    world.subscribe("s", "w", "a")
    world.run(4)
    for name, other in (("a", "w"), ("w", "a")):  # a link that shortest paths would not have made
        node = world.node(name)
        link = node.matching.link(BRAKES, world.identities[other], world.now)
        link.is_up, link.is_down, link.is_heard = name == "w", name == "a", True
    before = world.links()
    assert before == {"p": {"v"}, "v": {"p", "w", "a"}, "w": {"v", "a", "s"}, "a": {"v", "w"}, "s": {"w"}}
    challenge(world, "v", "w")
    world.run(4)
    assert world.links() == {"p": {"w"}, "w": {"p", "v", "a"}, "v": {"w", "a", "s"}, "a": {"v", "w"}, "s": {"v"}}


@pytest.mark.parametrize(("v", "w", "a", "b"), [("f", "s4", 2, 0), ("f", "f3", 2, 1), ("p", "f", 1, 2)])
def test_the_messages_of_a_swap(v: str, w: str, a: int, b: int, seed: int) -> None:
    """The paper's count has no locks for the neighbours of w, no word of the new neighbour and no release."""
    still = MatchingLimits(refresh_s=1000.0, lease_s=5000.0, doubt_s=1000.0)  # so that no word is just a repetition
    world = drawn(seed, FIG_6, QUICK)
    world.advertise("p")
    world.subscribe("s1", "s2", "s3", "s4")
    world.run(4.05)
    for name in world.living():
        world.node(name).matching.limits = still
        world.node(name).matching._refresh_at = world.now + 1000
    before = Counter(world.counts)
    challenge(world, v, w)
    world.run(2)
    spent = world.counts - before
    kinds = [MeshKind.LOCK, MeshKind.VOTE, MeshKind.DECIDE, MeshKind.SUBSCRIBE, MeshKind.UNSUBSCRIBE]
    assert [spent[kind.name] for kind in kinds] == [a + b + 1] * 3 + [a + b] * 2
    paper = 3 * (a + 1) + (b + 1)  # 3|N(v)| + |N(w)|, each counting the other: 3|N⁻(v)| + |N⁻(w)| + 4 where |N⁺| is 1
    assert sum(spent[kind.name] for kind in kinds) == 5 * (a + b) + 3 <= paper + 2 * a + 4 * b


# --- when it is played ---


def test_games_begin_with_the_first_neighbour_and_before_the_first_envelope(seed: int) -> None:
    world = drawn(seed, FIG_6, replace(PLAYING, community=CommunityLimits(pulse_s=1000.0, silent_s=3000.0)))
    world.advertise("p")
    world.subscribe("s1", "s2", "s3", "s4")
    world.run(0.5)
    for name in world.living():
        for publication in world.node(name)._publications.values():
            publication.pulse_at = world.now + 1000
    before = world.counts["NOTIFY"]
    world.run(10)
    assert swaps(world) > 3
    assert world.counts["NOTIFY"] == before


def test_without_locks_games_change_the_shape_of_the_mesh(seed: int) -> None:
    world, before = settled(seed)
    with without("the locks of a swap"):
        world.run(20)
    play(world, replace(GAME, plays=False))
    world.run(8)
    assert degrees(world) != before


def play(world: NodeWorld, limits: ShellGameLimits) -> None:
    for name in world.living():
        world.node(name).game._limits = limits


def settled(number: int) -> tuple[NodeWorld, list[int]]:
    """A mesh that stands before the games begin, and how many links each of its members has."""
    world = drawn(number, lattice(16), QUICK)
    world.advertise("n0")
    world.subscribe("n3", "n5", "n8", "n9", "n13")
    world.run(3)
    play(world, PLAYING.game)
    return world, degrees(world)


def lattice(size: int) -> str:
    """A ring of nodes that know two on each side."""
    return " ".join(f"n{i}-n{(i + step) % size}" for i in range(size) for step in (1, 2))


def test_games_cool_down_and_begin_again_with_a_new_neighbour(seed: int) -> None:
    world = drawn(seed, lattice(16), replace(PLAYING, game=replace(GAME, decay=0.2, wait_s=1.0)))
    world.advertise("n0")
    world.subscribe("n3", "n8", "n13")
    world.run(15)
    hot = swaps(world)
    world.run(20)
    cold = swaps(world)
    world.run(15)
    assert hot > 3
    assert swaps(world) - cold <= 1
    members = set(world.links())
    late = next(f"n{number}" for number in range(16) if f"n{number}" not in members)
    world.subscribe(late)
    world.run(15)
    assert swaps(world) - cold > 2


def test_waits_are_exponential(seed: int) -> None:
    world = drawn(seed, "p-s", replace(QUICK, game=replace(GAME, wait_s=5.0)))
    waits = [world.node("p").game._wait() for _ in range(4000)]
    assert sum(waits) / len(waits) == pytest.approx(5.0, rel=0.1)
    assert sum(wait > 5.0 for wait in waits) / len(waits) == pytest.approx(0.368, abs=0.04)


# --- two games at a time ---


def test_a_locked_node_votes_no(fig_6: tuple[NodeWorld, Publication]) -> None:
    world, _ = fig_6
    challenge(world, "f", "s4")
    challenge(world, "f3", "s3")  # f3 is a neighbour of f, f a neighbour of f3
    for _ in moments(world, 6):
        assert is_connected(world.links())
    assert swaps(world) <= 1
    assert not any(world.node(name).game.locks for name in world.living())


def check_every_moment(number: int, seconds: float) -> None:
    world, before = settled(number)
    for count, _ in enumerate(moments(world, seconds)):
        if count % 3 == 0:
            assert is_connected(world.links())
    assert swaps(world) > 5
    play(world, replace(GAME, plays=False))
    world.run(8)
    assert degrees(world) == before  # games leave the shape of the mesh as it was


def test_the_mesh_is_whole_at_every_moment_of_parallel_games_and_keeps_its_shape(seed: int) -> None:
    check_every_moment(seed, 12)


@pytest.mark.long
@pytest.mark.parametrize("number", range(10))
def test_it_is_and_does_with_many_seeds(number: int) -> None:
    check_every_moment(number, 20)


def test_without_the_new_neighbour_s_word_it_is_not(seed: int) -> None:
    world, _ = settled(seed)
    with without("the new neighbour's word in a swap"):
        broken = [not is_connected(world.links()) for number, _ in enumerate(moments(world, 12)) if number % 3 == 0]
    assert any(broken)


# --- doubt ---


def deaf(world: NodeWorld, sender: str, to: str) -> None:
    world.network.set_link(world.identities[sender].hex(), world.identities[to].hex(), Link(loss=1.0))


def hearing(world: NodeWorld, sender: str, to: str) -> None:
    world.network.set_link(world.identities[sender].hex(), world.identities[to].hex(), Link())


def until(world: NodeWorld, kind: MeshKind, count: int) -> None:
    """Until so many frames of a kind have left."""
    before = world.counts[kind.name]
    for _ in moments(world, 5):
        if world.counts[kind.name] >= before + count:
            return
    raise AssertionError(f"{kind.name} did not leave")


def test_a_decision_that_is_lost_is_learnt_from_the_new_neighbour(fig_6: tuple[NodeWorld, Publication]) -> None:
    world, _ = fig_6
    challenge(world, "f", "s4")
    until(world, MeshKind.LOCK, 3)
    deaf(world, "f", "f3")
    world.run(2.5)
    assert world.links()["f3"] == {"s4", "s3"}
    hearing(world, "f", "f3")
    world.run(8)
    assert "f3" not in world.links()["f"]
    assert is_connected(world.links())


def test_in_doubt_old_and_new_stay_together_until_the_new_one_speaks(fig_6: tuple[NodeWorld, Publication]) -> None:
    world, _ = fig_6
    challenge(world, "f", "s4")
    until(world, MeshKind.LOCK, 3)
    deaf(world, "f", "f3")
    deaf(world, "s4", "f3")
    for _ in moments(world, 2):
        assert is_connected(world.links())
        assert "f" in {world.names[one.hex()] for one in world.node("f3").matching.links(BRAKES)}
    for sender in ("f", "s4"):
        hearing(world, sender, "f3")
    world.run(12)
    assert is_connected(world.links())
    assert "s4" in world.links()["f3"]


def test_a_swap_that_is_given_up_changes_nothing(fig_6: tuple[NodeWorld, Publication]) -> None:
    world, _ = fig_6
    before = world.links()
    deaf(world, "f3", "f")
    challenge(world, "f", "s4")
    world.run(2.5)
    hearing(world, "f3", "f")
    world.run(10)
    assert world.links() == before
    assert swaps(world) == 0
    assert not any(world.node(name).game.locks for name in world.living())


def test_whoever_locks_and_never_decides_is_not_given_another(fig_6: tuple[NodeWorld, Publication]) -> None:
    world, _ = fig_6
    world.crash("f")  # what it says from now on is the liar's
    node, liar = world.node("f3"), world.identities["f"].hex()

    def wait(seconds: int) -> None:
        for _ in range(seconds):
            for frame in (framed(MeshKind.ALIVE, 1), framed(MeshKind.SUBSCRIBE, BRAKES, int(Stance.PEER))):
                world.network.send(liar, world.identities["f3"].hex(), frame)
            world.run(1)

    def lock(number: int) -> str:
        before = Counter(world.counts)
        name = number.to_bytes(8, "big")
        frame = framed(MeshKind.LOCK, BRAKES, name, 0, [[entry("s4").listed(), 0]])
        world.network.send(liar, world.identities["f3"].hex(), frame)
        world.run(0.1)
        return "locked" if BRAKES in node.game.locks else f"{(world.counts - before)['VOTE']} vote"

    assert lock(1) == "locked"
    wait(6)
    assert BRAKES not in node.game.locks
    wait(5)  # in doubt it takes s4 beside it, who declines
    assert lock(2) == "1 vote"
    wait(6)
    assert lock(3) == "locked"


# --- crashes ---

SUBSCRIBERS = ("n4", "n5", "n6", "n7", "n9")


def begun(number: int) -> tuple[NodeWorld, Publication, str, str]:
    """A mesh on a ring, in which every node has another way, and two members that are about to swap."""
    world = drawn(number, lattice(13), QUICK)
    publication = world.advertise("n0")
    world.subscribe(*SUBSCRIBERS)
    world.run(4)
    links = world.links()
    below = [
        (name, world.names[one.hex()])
        for name in links
        for one, link in world.node(name).matching.links(BRAKES).items()
        if link.is_down and name != "n0"
    ]
    pairs = [(v, w) for v, w in below if (links[v] | links[w]) - {v, w, "n0"}]
    v, w = Random(number).choice(pairs)
    return world, publication, v, w


def crash_at(number: int, victim: str, point: int, is_midway: bool) -> bool:
    """Swap, and crash somebody when so many of its frames have left. Returns whether the swap was under way."""
    world, publication, v, w = begun(number)
    near = sorted((world.links()[v] | world.links()[w]) - {v, w, "n0"})
    name = {"v": v, "w": w}.get(victim) or near[point % len(near)]
    world.publish("n0", publication, b"before")
    challenge(world, v, w)
    for _ in moments(world, 0.4):
        if sum(world.counts[kind] for kind in ("LOCK", "VOTE", "DECIDE")) >= point:
            break
    if is_midway:
        world.network.crash_midway(world.identities[name].hex())
    else:
        world.crash(name)
    was_under_way = any(world.alive(one) and world.node(one).game.locks for one in world.identities)
    world.publish("n0", publication, b"during")
    world.run(15)
    world.publish("n0", publication, b"after")
    world.run(2)
    assert is_connected(world.links()), (number, victim, point, is_midway)
    expected = Counter([b"before", b"during", b"after"])
    for subscriber in SUBSCRIBERS:
        if subscriber != name:
            assert world.delivered()[subscriber] == expected, (number, victim, point, is_midway, subscriber)
    assert not any(world.node(one).game.locks for one in world.living())
    return was_under_way


@pytest.mark.parametrize("victim", ["v", "w", "neighbour"])
def test_after_a_crash_in_the_middle_of_a_swap_the_mesh_is_whole_again(victim: str, seed: int) -> None:
    under_way = [crash_at(seed % 1000 + point, victim, point, point % 2 == 0) for point in (3, 9)]
    assert any(under_way)


@pytest.mark.long
@pytest.mark.parametrize("victim", ["v", "w", "neighbour"])
@pytest.mark.parametrize("is_midway", [False, True])
def test_after_a_crash_at_every_point_of_a_swap_the_mesh_is_whole_again(
    victim: str, is_midway: bool, seed: int
) -> None:
    under_way = [crash_at(seed % 1000, victim, point, is_midway) for point in range(1, 20)]
    assert sum(under_way) > 5
