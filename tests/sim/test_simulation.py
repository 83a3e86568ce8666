"""Hundreds of seeded worlds, and proof that they would notice: with one defence switched off, some seed fails.

A failing seed is replayed by the command in its message. `make soak` runs as many as one likes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tallystick.carriers.log.partition import Write
from tallystick.client.lane_keys import KeptLane
from tallystick.client.spool import Unsynced
from tallystick.errors import Refused
from tallystick.guards.lanes import Lanes
from tallystick.guards.route import Window
from tallystick.ledger.contracts import groups
from tallystick.runtime.conversation import Attempt
from tallystick.sim.checker import Violation
from tallystick.sim.run import STEPS, replay, run_many, run_one
from tallystick.sim.world import World, simulate

SEEDS = 200
HUNTED = 30  # seeds within which a missing defence must show


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)  # a world full of faults has much to warn of
    yield
    logging.disable(logging.NOTSET)


def test_every_acknowledged_record_is_delivered_once() -> None:
    failures = [
        f"{replay(outcome.seed, STEPS)}\n{outcome.violation}"
        for outcome in run_many(range(SEEDS))
        if outcome.violation is not None
    ]
    assert not failures, "\n\n".join(failures)


def test_a_seed_replays_to_the_last_request() -> None:
    one, two = simulate(5, STEPS), simulate(5, STEPS)
    assert one == two
    assert one.trace != simulate(6, STEPS).trace


# Without one defence.


def no_sync(segments: Unsynced) -> None:
    """The spool calls durable what is not."""


def ends_forgotten(kept: KeptLane, *arguments: Any) -> bytes:
    return encode(replace(kept, end=None), *arguments)


encode = KeptLane.encode


def move_anyway(call: Any, group: Any, token: bytes, partition: int, old: int, new: int) -> None:
    group.store(call.state)
    call.state.put(groups._offset_key(group.identifier, token, partition), [new, group.fence, call.author, call.height])


def sync_later(write: Write, disk: object) -> None:
    """The node promises what only the page cache holds."""
    write.close()


# (what is missing, where, in its place, what is then noticed, from which seed on to look: some worlds are rare)
MUTATIONS: list[tuple[str, Any, str, Callable[..., Any], tuple[str, ...], int]] = [
    ("the spool is not synced before sending", Unsynced, "sync", no_sync, ("sealed sequence", "equivocation"), 0),
    ("any sequence is taken", Lanes, "check_next", lambda *_: None, ("repeated", "came twice", "broken-chain"), 0),
    ("segments are not synced before the promise", Write, "sync", sync_later, ("damage", "promised"), 0),
    ("an ended lane counts again after a crash", KeptLane, "encode", ends_forgotten, ("came twice", "lies at"), 290),
]


@pytest.mark.parametrize(
    ("name", "owner", "attribute", "mutant", "expected", "first"), MUTATIONS, ids=[m[0] for m in MUTATIONS]
)
def test_without_a_defence_some_seed_fails(
    name: str,
    owner: Any,
    attribute: str,
    mutant: Callable[..., Any],
    expected: tuple[str, ...],
    first: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, attribute, mutant)
    for seed in range(first, first + HUNTED):
        violation = run_one(seed, 120).violation
        if violation is not None and any(words in violation for words in expected):
            return
    pytest.fail(f"no seed from {first} to {first + HUNTED} noticed that {name}")


# Two defences stand behind others, so that no seed may ever need them: shown by hand, and the checker notices.


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


def test_the_window_that_survives_a_restart_stops_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    replay_after_a_restart()
    monkeypatch.setattr(Window, "restore", lambda *_: None)
    with pytest.raises(Violation, match="counted a second time"):
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
    member = reader.subscriber._assigned.member
    assert member is not None
    with suppress(Refused):
        member._move(partition, 0, 1)
    world.node_works()


def test_an_offset_is_compared_before_it_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    move_an_offset_back()
    monkeypatch.setattr(groups, "_move", move_anyway)
    with pytest.raises(Violation, match="went back"):
        move_an_offset_back()
