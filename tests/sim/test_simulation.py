"""Thirty seeded worlds, and proof that they would notice: with one defence switched off, some seed fails.

A failing seed is replayed by the command in its message. The long tier has more (test_seeds.py); `make soak` runs as
many as one likes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress

import pytest
from without import without

from tallystick.errors import Refused
from tallystick.runtime.conversation import Attempt
from tallystick.sim.checker import Violation
from tallystick.sim.run import STEPS, replay, run_many, run_one
from tallystick.sim.world import World, simulate

SEEDS = range(30)
HUNTED = 30  # seeds within which a missing defence must show


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)  # a world full of faults has much to warn of
    yield
    logging.disable(logging.NOTSET)


def test_every_acknowledged_record_is_delivered_once() -> None:
    failures = [
        f"{replay(outcome.seed, STEPS)}\n{outcome.violation}"
        for outcome in run_many(SEEDS)
        if outcome.violation is not None
    ]
    assert not failures, "\n\n".join(failures)


def test_a_seed_replays_to_the_last_request() -> None:
    one, two = simulate(5, STEPS), simulate(5, STEPS)
    assert one == two
    assert one.trace != simulate(6, STEPS).trace


# Without one defence.


# What is missing: what is then noticed, and from which seed on to look, since some worlds are rare.
MISSING: dict[str, tuple[tuple[str, ...], int]] = {
    "the sync of the spool before sending": (("sealed sequence", "equivocation"), 0),
    "the order of sequences in a lane": (("repeated", "came twice", "broken-chain"), 0),
    "the sync of segments before the promise": (("damage", "promised"), 0),
}


@pytest.mark.parametrize("name", MISSING)
def test_without_a_defence_some_seed_fails(name: str) -> None:
    expected, first = MISSING[name]
    with without(name):
        for seed in range(first, first + HUNTED):
            violation = run_one(seed, 120).violation
            if violation is not None and any(words in violation for words in expected):
                return
    pytest.fail(f"no seed from {first} to {first + HUNTED} noticed that {name} is missing")


# Two defences stand behind others, so that no seed may ever need them: shown by hand, and the checker notices. So is
# the end of a lane on the disk (test_client_faults.py), which a seed in some hundreds needs.


def replay_after_a_restart() -> None:
    """An advertisement arrives once more, when the node that took it has been started anew."""
    world = World(1)
    seen: list[Attempt] = []
    watch = world.network._watch
    world.network._watch = lambda attempt: (seen.append(attempt), watch(attempt))[1]
    world.publishers[0].stop()
    world.publishers[0].start()
    world.host.crash()
    world.host.start()
    advertised = next(one for one in seen if b"/advertisements" in one.head)
    world.host.serve(advertised.head, advertised.body)


def test_the_window_that_survives_a_restart_stops_a_replay() -> None:
    replay_after_a_restart()
    with without("the window's memory of before a restart"), pytest.raises(Violation, match="counted a second time"):
        replay_after_a_restart()


def move_an_offset_back() -> None:
    """A member commits what it should have committed long ago."""
    world = World(1)
    world.publishers[0].produce(32)
    for _ in range(3):
        world.pass_time(1.0)
        world.publishers[0].pump()
        world.node_works()
    reader = world.members[0]
    reader.poll()
    reader.commit()
    world.node_works()
    assert reader.subscriber is not None
    partition = next(p for p, end in reader.subscriber.positions().items() if end)
    member = reader.subscriber._member
    assert member is not None
    with suppress(Refused):
        member._move(partition, 0, 1)
    world.node_works()


def test_an_offset_is_compared_before_it_moves() -> None:
    move_an_offset_back()
    with without("the comparison before an offset moves"), pytest.raises(Violation, match="went back"):
        move_an_offset_back()
