"""One to eight servers, of which one is honest and fast and the others are dead, slow, lying or killed, seeders and the
vehicle itself lost at any step: the object arrives, liars and only they are named, no chunk comes twice. A seed is a
run.
"""

from __future__ import annotations

from random import Random

import pytest
from fetch_world import CAR, FAST, LIES, LIMITS, SLOW, World, made_object

from tallystick.objects.outcomes import FENCE, ObjectWhole
from tallystick.runtime.network import Link

pytestmark = pytest.mark.simulation

LOSSY = Link(loss=0.05, duplicate=0.05, reorder=0.1)


def played(number: int, link: Link, car_falls: bool) -> tuple[World, set[str]]:
    """The world after a run, and its liars."""
    random = Random(f"fetch {number}")
    m = 1 + number % 8
    names = [f"server{place}" for place in range(m)]
    made = made_object(number % 5, random.choice([1, 2, 7, 33, 64]))
    world = World(made, names, number, link)
    honest, liars = random.choice(names), set()
    fences = random.sample(range(1, 20), m)
    for name, fence in zip(names, fences, strict=True):
        is_seeder = random.random() < 0.4
        kind = (
            "honest" if name == honest else random.choice(["dead", "slow", "drips", "lies", "lies", "killed", "well"])
        )
        if kind == "dead":
            world.add_dead(name)
            continue
        lie = random.choice(list(LIES)) if kind == "lies" else None
        rate = {"slow": SLOW, "drips": 500.0}.get(kind, FAST)
        if lie is not None:
            liars.add(name)
        world.add_server(name, rate, lie, fence if is_seeder or lie in ("uncles", "seed") else None)
        if kind == "killed":
            falls_at = random.uniform(0, 0.3)
            world.network.clock.at(falls_at, lambda name=name: world.network.crash(name))  # type: ignore[misc]
            if random.random() < 0.5:
                back_at = falls_at + random.uniform(0.1, 10)
                world.network.clock.at(back_at, lambda name=name: world.network.restart(name))  # type: ignore[misc]
    world.start()
    if car_falls:
        for _ in range(random.randint(1, 4)):
            falls_at = random.uniform(0, 0.5)
            fall = random.choice([world.network.crash, world.network.crash_midway])
            world.network.clock.at(falls_at, lambda fall=fall: fall(CAR))  # type: ignore[misc]
            world.network.clock.at(falls_at + 0.01, lambda: _raise(world))
        for later in range(1, 30):  # who falls midway does so in an event that comes later
            world.network.clock.at(later, lambda: _raise(world))
    world.run(200)
    return world, liars


def _raise(world: World) -> None:
    if not world.network.alive(CAR):
        world.network.restart(CAR)


def check_run(number: int) -> World:
    link = LOSSY if number % 3 == 2 else Link()
    car_falls = number % 2 == 1
    world, liars = played(number, link, car_falls)
    assert world.outcome() == ObjectWhole()
    assert world.is_whole()
    assert set(world.named()) <= liars, "an honest server was named"
    assert world.asked_again == []
    if not car_falls:
        assert {key for key, times in world.stored.items() if times > 1} <= {FENCE}  # nothing comes twice
    if not car_falls and link == Link():
        assert set(world.named()) == set(world.heard_lies)  # everyone whose lie came, at once
        # What was under way in both lanes, and nobody lies again.
        assert max(world.heard_lies.values(), default=0) <= LIMITS.lanes
    return world


@pytest.mark.parametrize("number", range(32))
def test_the_object_arrives_and_liars_are_named(number: int) -> None:
    check_run(number)


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_hundreds_of_seeds(block: int) -> None:
    for number in range(100 + 50 * block, 150 + 50 * block):
        try:
            check_run(number)
        except AssertionError as error:
            raise AssertionError(f"seed {number}: {error}") from error


def test_the_same_seed_is_the_same_run() -> None:
    assert played(13, LOSSY, True)[0].network.trace_hash() == played(13, LOSSY, True)[0].network.trace_hash()


# --- every step, every kind ---


def three(made_count: int = 24, *, fence_of: int = 0) -> World:
    names = ["server0", "server1", "server2"]
    world = World(made_object(3, made_count), names, 1)
    for place, name in enumerate(names):
        world.add_server(name, 2e5, fence=7 if place == fence_of else None)
    return world


def test_the_seeder_is_lost_at_every_step() -> None:
    whole = three()
    whole.start()
    whole.run(60)
    for time, _, _ in whole.asked:
        world = three()
        world.start()
        world.network.clock.at(time, lambda world=world: world.network.crash("server0"))  # type: ignore[misc]
        world.run(100)
        assert world.is_whole(), f"lost at {time}"
        assert (world.named(), world.asked_again) == ({}, [])


def test_the_vehicle_falls_at_every_step() -> None:
    whole = three()
    whole.start()
    whole.run(60)
    for time, _, _ in whole.asked:
        world = three()
        world.start()
        world.network.clock.at(time + 1e-9, lambda world=world: world.network.crash(CAR))  # type: ignore[misc]
        world.network.clock.at(time + 1.0, lambda world=world: world.network.restart(CAR))  # type: ignore[misc]
        world.run(100)
        assert world.is_whole(), f"fell at {time}"
        assert (world.named(), world.asked_again) == ({}, [])


@pytest.mark.parametrize("m", range(2, 9))
def test_all_but_one_are_of_one_kind(m: int) -> None:
    for kind in ("dead", "slow", *LIES):
        names = [f"server{place}" for place in range(m)]
        world = World(made_object(4, 20), names, m)
        honest = m // 2
        for place, name in enumerate(names):
            if kind == "dead" and place != honest:
                world.add_dead(name)
            else:
                bad = place != honest
                rate, lie = (SLOW if bad and kind == "slow" else FAST), (kind if bad and kind in LIES else None)
                world.add_server(name, rate, lie, fence=place)
        world.start()
        world.run(150)
        assert world.is_whole(), kind
        assert set(world.named()) == set(world.heard_lies), kind
        assert set(world.named()) <= set(names) - {names[honest]}, kind
