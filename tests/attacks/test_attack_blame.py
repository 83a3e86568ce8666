"""Honest readers that ruin their principal's name: its right is withdrawn, and nine of them ask once more before they
can know, or come back from a holiday at once. A node that tells of each would have it blacklisted everywhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from actors import Topic, acts, fetch_query, is_in_force, operate, reputation
from ledger_world import NOW_MS, Bench, Row, World, refusal, request, token
from stack import READ, Stack, wait_until
from without import without

from tallystick.demo.forgery import exchange
from tallystick.ledger import entries
from tallystick.ledger.contracts import reputation as contract
from tallystick.ledger.contracts.settings import SETTINGS
from tallystick.trust.right import Right

HEART = token("heart")
NINE = range(9)
PATIENCE = "the contract's patience"
GRACE_MS, WINDOW_MS = SETTINGS["grace_ms"].default, SETTINGS["fall_window_ms"].default


@pytest.fixture
def bench() -> Bench:
    """The monitor might write until now; its right is withdrawn in the last block."""
    bench = Bench()
    world = bench.world
    bench.bring_into_force()
    bench.play((world.doctor, entries.grant(HEART, world.monitor.id, Right.WRITE), None))
    bench.play((world.doctor, entries.withdraw(HEART, world.monitor.id, Right.WRITE), None))
    return bench


@pytest.fixture
def world(bench: Bench) -> World:
    return bench.world


def told(bench: Bench, after_ms: int, nonce: int = 0) -> Row:
    """The node tells of a request that the monitor signed so long after the withdrawal."""
    world = bench.world
    sent = request(world.monitor, world.node, now=(NOW_MS + after_ms) // 1000, nonce=nonce)
    return world.node, refusal(world.monitor, sent), None


def score(bench: Bench) -> int:
    return contract.score(bench.state, bench.world.monitor.id)


def test_what_is_asked_before_anybody_can_know_counts_nothing(bench: Bench) -> None:
    for nonce in NINE:
        bench.time_ms = NOW_MS + 1_000 * nonce
        bench.play(told(bench, 1_000 * nonce, nonce))
    bench.time_ms = NOW_MS + GRACE_MS + 30_000
    bench.play(told(bench, GRACE_MS, 9))  # told late
    assert score(bench) == 100
    bench.play(told(bench, GRACE_MS + 1_000, 10))
    assert score(bench) == 90, "the control: after that it counts"


def test_nine_at_once_are_one_fall_however_a_node_spreads_them(bench: Bench) -> None:
    asked_ms = GRACE_MS + 1_000
    for nonce in NINE:
        bench.time_ms = NOW_MS + asked_ms + 13_000 * nonce  # the last of them when evidence is just young enough
        bench.play(told(bench, asked_ms, nonce))
    assert score(bench) == 90


def test_a_clock_that_is_ahead_costs_nothing(bench: Bench) -> None:
    bench.play(*(told(bench, GRACE_MS + 2_000, nonce) for nonce in NINE))
    assert score(bench) == 100


def test_who_asks_on_and_on_ends_on_the_blacklist_all_the_same(bench: Bench, world: World) -> None:
    for nonce in NINE:
        assert not contract.is_blacklisted(bench.state, world.monitor.id)
        after_ms = GRACE_MS + 1_000 + WINDOW_MS * nonce
        bench.time_ms = NOW_MS + after_ms
        bench.play(told(bench, after_ms, nonce), told(bench, after_ms, 100 + nonce))
    assert contract.is_blacklisted(bench.state, world.monitor.id)


def test_falls_are_counted_topic_by_topic_and_who_never_had_a_right_has_no_grace(bench: Bench, world: World) -> None:
    heart, again = (refusal(world.sensor, request(world.sensor, world.node, nonce=n)) for n in (0, 1))
    bench.play((world.node, [heart, again], None))
    assert contract.score(bench.state, world.sensor.id) == 90


def test_without_patience_nine_honest_readers_are_blacklisted(bench: Bench, world: World) -> None:
    bench.time_ms = NOW_MS + 1_000
    with without(PATIENCE):
        bench.play(*(told(bench, 1_000, nonce) for nonce in NINE))
    assert contract.is_blacklisted(bench.state, world.monitor.id)


def test_the_settings_are_not_known_before_the_version_that_has_them() -> None:
    bench = Bench()
    authority = bench.world.authority
    bench.play((authority, entries.set_("grace_ms", 0), "unknown-setting"))
    bench.bring_into_force()
    bench.play(
        (authority, entries.set_("grace_ms", 0), None),
        (authority, entries.set_("fall_window_ms", 0), None),
        (authority, entries.set_("fall_window_ms", -1), "malformed"),
    )


# --- on a whole instance ---


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("blame")) as stack:
        wait_until(lambda: is_in_force(stack, "operations"))
        yield stack


def ask_nine_times(stack: Stack, topic: Topic, name: str) -> tuple[int, tuple[int, int]]:
    """Nine readers of one principal fetch once more. Returns how many pieces of evidence the node brought, and how the
    principal stands."""
    reader = topic.subscriber(name)
    stack.withdraw(topic.owner, topic.token, reader, READ)
    withdrawn_ms = stack.node.ledger.block(stack.node.ledger.height).time_ms
    wait_until(lambda: int(stack.clock.now()) * 1000 > withdrawn_ms)  # envelopes tell whole seconds
    for _ in NINE:
        exchange(reader, "GET", f"/v1/topics/{topic.token.hex()}/parcels", fetch_query(bytes(16)))
    refused = acts(stack, token=topic.token, principal=reader.identity.principal, refused=True)
    assert sum(act.count for act in refused) == 9
    return sum(bool(act.evidence) for act in refused), reputation(stack, reader.identity.principal)


def test_nine_readers_of_one_principal_keep_its_name(stack: Stack) -> None:
    topic = Topic(stack, "acme")
    assert ask_nine_times(stack, topic, "many") == (1, (100, 0))  # more would count nothing, and fill the ledger
    operate(stack, entries.set_("fall_window_ms", 0))
    wait_until(lambda: stack.node.rules.fall_window_ms() == 0)
    assert ask_nine_times(stack, topic, "more") == (9, (100, 0))  # by grace alone
    with without(PATIENCE):
        evidence, (points, blacklisted) = ask_nine_times(stack, topic, "ruined")
    assert (evidence, points) == (9, 10)
    assert blacklisted
