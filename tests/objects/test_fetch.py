"""Fetching, one story at a time: who is asked for what, what each defence stops, and what happens without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from fetch_world import (
    CAR,
    FAST,
    LIES,
    LIMITS,
    SLOW,
    MadeObject,
    World,
    forged_object,
    forged_seed,
    made_object,
)
from without import without

from tallystick.crypto.merkle import cut
from tallystick.errors import Misuse
from tallystick.objects.fetch import ObjectFetch
from tallystick.objects.layout import SLIP_BYTES, Slip
from tallystick.objects.outcomes import FENCE, SLIPS, FetchGivenUp, chunk_key
from tallystick.objects.ranges import RangeAnswer, RangeAsk
from tallystick.runtime.effects import Arrived, Send, Woken

MADE = made_object(1, 64)
A, B, C, D = "a", "b", "c", "d"


def world_of(*names: str, made: MadeObject = MADE, **fields: object) -> World:
    return World(made, list(names), **fields)  # type: ignore[arg-type]


def none_kept(slips: Sequence[Slip]) -> list[bool]:
    return [False] * len(slips)


# --- the way of a fetch ---


def test_each_server_sends_its_own_subtree_and_no_byte_comes_twice() -> None:
    world = world_of(A, B, C, D)
    world.add_server(A, rate=1e5, fence=1)
    for name in (B, C, D):
        world.add_server(name, rate=1e5)
    world.start()
    world.run(60)
    assert world.is_whole()
    assert world.named() == {}
    starts = MADE.starts()
    for name, (first, end) in zip((A, B, C, D), cut(64, 2), strict=True):
        [slips] = world.asked_of(name, ".slips")
        assert (slips.first, slips.length) == (first * SLIP_BYTES, (end - first) * SLIP_BYTES)
        asked = [ask for ask in world.asked_of(name, ".chunks") if starts[first] <= ask.first < starts[end]]
        assert sum(ask.length for ask in asked) > 0.6 * (starts[end] - starts[first])
    assert sum(ask.length for _, _, ask in world.asked if ask.file.endswith(".chunks")) == MADE.docket.sealed_length
    assert max(ask.length for _, _, ask in world.asked if not ask.file.endswith(".seed")) <= LIMITS.ask_bytes_max


def test_plain_web_servers_need_no_seeder() -> None:
    world = world_of(A, B, C)
    for name in (A, B, C):
        world.add_server(name, rate=1e5)
    world.start()
    world.run(60)
    assert world.is_whole()
    assert len([ask for _, _, ask in world.asked if ask.file.endswith(".slips")]) == 1
    assert all(world.asked_of(name, ".chunks") for name in (A, B, C))


def test_slips_that_do_not_fit_into_one_request_come_in_several_from_one_server() -> None:
    small = replace(LIMITS, ask_bytes_max=1000, first_bytes=1000)
    world = world_of(A, B, limits=small)
    world.add_server(A, lie="slips")
    world.add_server(B)
    world.start()
    world.run(120)
    assert world.is_whole()
    assert set(world.named()) == {A}
    assert {len(world.asked_of(name, ".slips")) for name in (A, B)} == {-(-64 * SLIP_BYTES // 1000)}


def test_a_server_that_the_caller_did_not_name_is_never_asked() -> None:
    world = world_of(A, B)
    world.add_server(A, fence=1, dealt_to=["stranger", A])
    world.add_server(B)
    world.add_dead("stranger")
    world.start()
    world.run(60)
    assert world.is_whole()
    assert {to for _, to, _ in world.asked} == {A, B}


def test_nobody_there_ends_in_words() -> None:
    world = world_of(A, B)
    world.add_dead(A)
    world.add_dead(B)
    world.start()
    world.run(300)
    assert world.outcome() == FetchGivenUp("nothing new came for 60.0 s")
    assert world.named() == {}


def test_where_everybody_lies_all_are_named() -> None:
    world = world_of(A, B)
    world.add_server(A, lie="slips")
    world.add_server(B, lie="noise")
    world.start()
    world.run(300)
    assert world.outcome() == FetchGivenUp("every server lied")
    assert set(world.named()) == {A, B}


def test_a_docket_that_contradicts_its_slips_is_nobody_s_lie() -> None:
    """The author of the object signed both."""
    false = replace(MADE.docket, plain_length=MADE.docket.plain_length + 1)
    world = world_of(A, made=replace(MADE, docket=false))
    world.add_server(A)
    world.start()
    world.run(60)
    outcome = world.outcome()
    assert isinstance(outcome, FetchGivenUp)
    assert "contradicts its docket" in outcome.why
    assert world.named() == {}


def test_servers_are_few_and_different() -> None:
    for names in ([], [A, A], [str(number) for number in range(65)]):
        with pytest.raises(Misuse, match="different servers"):
            ObjectFetch(MADE.docket, names, none_kept)


# --- going on after a crash ---


def test_what_was_verified_is_not_fetched_again_and_what_is_damaged_is() -> None:
    world = world_of(A)
    world.add_server(A, rate=1e5, fence=3)
    world.start()
    world.run(1.5)
    world.network.crash(CAR)
    stored = world.network._nodes[CAR].stored
    had = [number for number in range(64) if chunk_key(number) in stored]
    assert 8 < len(had) < 56
    assert stored[FENCE] == bytes(7) + b"\3"
    stored[chunk_key(had[2])] = bytes(5)
    stored[chunk_key(had[4])] = stored[chunk_key(had[5])]
    asks = len(world.asked)
    world.network.restart(CAR)
    world.run(60)
    assert world.is_whole()
    assert world.asked_again == []
    assert all(ask.file.endswith(".chunks") for _, _, ask in world.asked[asks:])  # the slips lay there
    lengths = [len(MADE.chunks[n]) for n in range(64) if n not in had or n in (had[2], had[4])]
    assert sum(ask.length for _, _, ask in world.asked[asks:]) == sum(lengths)


def test_damaged_slips_on_disk_are_fetched_again() -> None:
    world = world_of(A)
    world.add_server(A)
    world.start()
    world.run(60)
    world.network.crash(CAR)
    world.network._nodes[CAR].stored[SLIPS] = bytes(len(MADE.slips))
    world.network.restart(CAR)
    world.run(120)
    assert world.is_whole()
    assert world.asked_again == []
    assert len(world.asked_of(A, ".slips")) == 2


def test_an_answer_to_an_earlier_life_is_nobody_s_lie() -> None:
    first, second = (ObjectFetch(MADE.docket, [A], none_kept) for _ in range(2))
    [ask] = [RangeAsk.decode(effect.message) for effect in first.receive(Woken(), 5.0) if isinstance(effect, Send)]
    second.receive(Woken(), 5.1)
    assert second.receive(Arrived(A, RangeAnswer(ask.number, b"late").encode()), 5.2) == []
    assert second.statistics().named == ()


# --- liars ---


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_names_its_sender_and_wastes_what_is_under_way(lie: str) -> None:
    world = world_of(A, B, C)
    world.add_server(A, lie=lie, fence=2)
    world.add_server(B)
    world.add_server(C, fence=1)
    world.start()
    world.run(60)
    assert world.is_whole()
    assert set(world.named()) == {A}
    assert 1 <= world.heard_lies[A] <= LIMITS.lanes
    assert world.wasted[A] <= LIMITS.lanes * (LIMITS.ask_bytes_max + 14)
    role = world.network.role(CAR).fetch  # type: ignore[attr-defined]
    statistics = role.statistics()
    assert statistics.named == (A,)
    assert statistics.chunks == 64
    assert statistics.bytes_arrived - statistics.bytes_used <= LIMITS.ask_bytes_max + 4


def beside_a_flipped_byte(file: str, at: int) -> World:
    """One byte of one file of the first server, which is also asked first, is another; the second is honest."""
    made = made_object(5, 3)

    def alter(ask: RangeAsk, data: bytes, _: object) -> bytes:
        here = at - ask.first
        if not ask.file.endswith(file) or not 0 <= here < len(data):
            return data
        return data[:here] + bytes([data[here] ^ 1]) + data[here + 1 :]

    world = world_of(A, B, made=made)
    world.add_server(A, lie=alter, fence=1, dealt_to=[A])
    world.add_server(B, rate=SLOW)
    world.start()
    world.run(200)
    return world


def check_flips(file: str, length: int, step: int) -> None:
    places, named = range(0, length, step), 0
    for at in places:
        world = beside_a_flipped_byte(file, at)
        assert world.is_whole(), f"{file}, byte {at}"
        assert world.heard_lies.keys() == world.named().keys() <= {A}, f"{file}, byte {at}"
        named += len(world.named())
    assert named > len(places) // 2  # the others came from the second


SMALL = made_object(5, 3)


@pytest.mark.parametrize(("file", "length"), [(".slips", 3 * SLIP_BYTES), (".chunks", SMALL.starts()[-1])])
def test_flipped_bytes_of_slips_and_chunks_name_their_sender_and_the_object_comes(file: str, length: int) -> None:
    check_flips(file, length, 1 + length // 40)


@pytest.mark.long
def test_every_flipped_byte_of_slips_and_every_fourth_of_chunks_name_their_sender() -> None:
    """That every byte of a chunk counts for its slip: test_object_store.py."""
    check_flips(".slips", 3 * SLIP_BYTES, 1)
    check_flips(".chunks", SMALL.starts()[-1], 4)


def conspiracy() -> World:
    """The seeder and another server have an object of their own; one server is honest."""
    world = world_of(A, B, C)
    forged = forged_object(MADE, 9)
    seed = forged_seed(forged, [A, B, C], 5, 2)
    world.add_server(A, made=forged, lie=lambda ask, data, _: seed if ask.file.endswith(".seed") else data)
    world.add_server(B, made=forged)
    world.add_server(C)
    world.start()
    world.run(60)
    return world


def test_a_seeder_cannot_choose_the_tree() -> None:
    world = conspiracy()
    assert world.is_whole()
    assert world.named().keys() == {A, B}
    assert "uncle layer" in world.named()[A]


def test_without_the_root_over_the_uncle_layer_the_honest_are_named() -> None:
    with without("the root over the uncle layer"):
        world = conspiracy()
    assert not world.is_whole()
    assert C in world.named()  # and what was stored is the seeder's
    assert set(world.kept()) - {None} <= set(forged_object(MADE, 9).chunks)


def liar(suffix: str) -> World:
    world = world_of(A, B)
    forged = forged_object(MADE, 9)
    world.add_server(A, made=forged if suffix == ".slips" else None, lie=LIES["chunks"] if suffix != ".slips" else None)
    world.add_server(B, fence=1)
    world.start()
    world.run(60)
    return world


def test_slips_are_proved_before_a_chunk_is_asked_for() -> None:
    world = liar(".slips")
    assert world.is_whole()
    assert world.named().keys() == {A}
    assert world.asked_of(A, ".chunks") == []
    with without("the uncle over its slips"):
        world = liar(".slips")
    assert not world.is_whole()
    assert A not in world.named()


def test_a_chunk_is_what_its_slip_says() -> None:
    world = liar(".chunks")
    assert world.is_whole()
    assert world.named().keys() == {A}
    with without("the hash of a sealed chunk"):
        world = liar(".chunks")
    assert not world.is_whole()
    assert world.kept().count(None) == 0
    assert world.named() == {}


def beside_a_liar(until: float) -> World:
    world = world_of(A, B)
    world.add_server(A, lie="chunks")
    world.add_server(B, rate=2e4)
    world.start()
    world.run(until)
    return world


def test_a_liar_is_asked_no_more() -> None:
    world = beside_a_liar(100)
    assert world.is_whole()
    assert world.heard_lies[A] <= LIMITS.lanes
    with without("the end of a server that lied"):
        world = beside_a_liar(2)
    assert world.heard_lies[A] > 20


def test_answers_that_are_longer_than_asked_for_are_a_lie() -> None:
    def played() -> World:
        world = world_of(A)
        world.add_server(A, lie=lambda ask, data, _: data + bytes(9000) if ask.file.endswith(".chunks") else data)
        world.start()
        world.run(60)
        return world

    assert set(played().named()) == {A}
    with without("the length of an answer"):
        world = played()
    assert world.named() == {}
    assert world.heard_lies[A] > 5


# --- the slow and the dead ---


def beside_a_silent_one() -> World:
    world = world_of(A, B)
    world.add_server(A, rate=5e4)
    world.add_server(B, rate=5e4, fence=1)
    world.start()
    world.network.clock.at(0.5, lambda: world.network.crash(A))
    world.run(600)
    return world


def test_a_silent_server_loses_what_it_was_asked_for() -> None:
    world = beside_a_silent_one()
    assert world.is_whole()
    assert world.ended_at() < 10
    with without("the floor under a server's rate"):
        world = beside_a_silent_one()
    assert not world.is_whole()


def beside_a_slow_one() -> World:
    """It is just above the floor, and would send its subtree for ever."""
    world = world_of(A, B)
    world.add_server(A, rate=SLOW)
    world.add_server(B, rate=FAST, fence=1)
    world.start()
    world.run(600)
    assert world.is_whole()
    assert world.named() == {}
    return world


def test_idle_servers_take_from_slow_ones() -> None:
    quick = beside_a_slow_one().ended_at()
    with without("what idle servers take from slow ones"):
        slow = beside_a_slow_one().ended_at()
    assert quick < 4 < 10 < slow


# --- two seeders ---


def two_seeders(deposed_first: bool) -> World:
    """A's lease ended, and it deals everything to a server that sends nothing."""
    world = world_of(A, B, C)
    late = 0.05
    world.add_server(A, fence=4, dealt_to=[C], rate=FAST if deposed_first else 200 / late)
    world.add_server(B, fence=5, dealt_to=[A, B], rate=200 / late if deposed_first else FAST)
    world.add_dead(C)
    world.start()
    world.run(60)
    assert world.is_whole()
    assert world.named() == {}
    return world


@pytest.mark.parametrize("deposed_first", [True, False])
def test_the_highest_fence_is_followed_whoever_speaks_first(deposed_first: bool) -> None:
    world = two_seeders(deposed_first)
    assert world.network._nodes[CAR].stored[FENCE] == bytes(7) + b"\5"


def test_the_word_of_a_deposed_seeder_does_not_stand_against_its_successor() -> None:
    with without("the fence of seeders"):
        world = two_seeders(deposed_first=False)
    assert world.network._nodes[CAR].stored[FENCE] == bytes(7) + b"\4"  # its dealing came last, and was followed


def test_a_fence_that_the_caller_knows_is_a_lower_bound() -> None:
    world = world_of(A, B)
    world.add_server(A, fence=4)
    world.add_server(B)
    world.network.add(CAR, lambda stored: ObjectFetch(MADE.docket, [A, B], none_kept, fence=5, limits=LIMITS))
    world.run(60)
    assert world.network._nodes[CAR].stored.get(FENCE) is None
    assert world.is_whole()
    assert world.named() == {}
