"""Retention: what carriers may give up is the owner's to say, judged from what anchors leave on the ledger."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_world import HOSPITAL, ROLES, Bench, World, seed, token
from ledger_world import world as world

from tallystick.ledger import entries
from tallystick.ledger.contracts import anchors, reputation, retention, topics
from tallystick.ledger.contracts.retention import EARLIER, POINTS_MAX, SAMPLES, Earlier, Point, Retention, deletable
from tallystick.ledger.contracts.topics import Terms
from tallystick.trust.certificate import ALL_TENANTS, SubjectKind
from tallystick.trust.promise import Promise

HEART = token("heart")
DAY_MS = 86_400_000
FOREVER, A_DAY, TEN = Retention(), Retention(age_ms=DAY_MS), Retention(parcels=10)


@pytest.fixture
def bench() -> Bench:
    found = Bench()
    found.bring_into_force()
    return found


def anchor(size: int, of: bytes = HEART) -> bytes:
    return entries.anchor(of, 0, size, seed(f"root {size}"))


def retire(below: int, of: bytes = HEART) -> bytes:
    return entries.retire(of, 0, below, seed(f"root {below}"))


def grow(bench: Bench, *sizes: int, each_ms: int = DAY_MS) -> None:
    """Anchors of these sizes, each so long after the one before."""
    for size in sizes:
        bench.play((bench.world.node, anchor(size), None))
        bench.time_ms += each_ms


# --- what may go ---


def test_by_default_nothing_goes(bench: Bench, world: World) -> None:
    grow(bench, 10, 20, 30)
    bench.play((world.node, retire(1), "kept", 0))
    bench.time_ms += 3_000 * DAY_MS
    bench.play((world.node, retire(1), "kept", 0))


def test_by_age_what_every_parcel_of_is_older(bench: Bench, world: World) -> None:
    bench.play((world.doctor, entries.retain(HEART, Retention(age_ms=2 * DAY_MS)), None))
    bench.time_ms += 1_000
    grow(bench, 10, 20, 30)  # three, two and one days ago
    bench.play(
        (world.node, retire(11), "kept", 0),
        (world.node, retire(20), "kept", 0),  # two days are not more than two
        (world.node, retire(10), None),
    )
    bench.time_ms += 1
    bench.play((world.node, retire(21), "kept", 0), (world.node, retire(20), None))
    bench.time_ms += 2 * DAY_MS
    bench.play((world.node, retire(31), "not-anchored"), (world.node, retire(30), None))


def test_by_number_all_but_the_newest(bench: Bench, world: World) -> None:
    bench.play((world.doctor, entries.retain(HEART, TEN), None))
    grow(bench, 9, 25)
    bench.play((world.node, retire(16), "kept", 0), (world.node, retire(15), None))
    assert anchors.let_go(bench.state.row, HEART, 0, bench.time_ms) == 15, "what is gone stays gone"


def test_a_topic_is_made_with_its_retention(bench: Bench, world: World) -> None:
    binding = world.bind("lungs", HOSPITAL)
    made = world.topic("lungs", world.doctor, HOSPITAL, binding=binding, terms=Terms(keep_parcels=10))
    bench.play(
        (world.doctor, made, None),
        (world.node, anchor(25, binding.token), None),
        (world.node, retire(16, binding.token), "kept"),
        (world.node, retire(15, binding.token), None),
    )


def test_what_was_anchored_under_a_longer_promise_keeps_it(bench: Bench, world: World) -> None:
    """The change counts for what is anchored after it, to the parcel, however rarely the sample gets a point."""
    bench.play((world.doctor, entries.retain(HEART, Retention(age_ms=30 * DAY_MS)), None))
    bench.time_ms += 1_000
    grow(bench, 10, each_ms=10)
    grow(bench, 11)  # too soon for a point of its own
    bench.play((world.doctor, entries.retain(HEART, A_DAY), None))
    grow(bench, 20, 30)
    bench.time_ms += DAY_MS
    bench.play((world.node, retire(1), "kept", 0))
    bench.time_ms += 26 * DAY_MS
    bench.play((world.node, retire(11), "kept", 0), (world.node, retire(10), None))
    bench.time_ms += DAY_MS + 1
    bench.play((world.node, retire(30), None))


def test_what_was_kept_for_ever_goes_only_by_release(bench: Bench, world: World) -> None:
    grow(bench, 10)
    bench.play((world.doctor, entries.retain(HEART, A_DAY), None))
    grow(bench, 20, 30)
    bench.time_ms += DAY_MS
    bench.play(
        (world.node, retire(1), "kept", 0),
        (world.doctor, entries.release(HEART, 0, 9), None),
        (world.node, retire(10), "kept", 0),
        (world.node, retire(9), None),
        (world.doctor, entries.release(HEART, 0, 10), None),
        (world.node, retire(30), None),
    )


def test_a_longer_promise_counts_for_what_is_there(bench: Bench, world: World) -> None:
    bench.play((world.doctor, entries.retain(HEART, A_DAY), None))
    grow(bench, 10, 20)
    bench.play((world.doctor, entries.retain(HEART, Retention(age_ms=9 * DAY_MS)), None))
    bench.play((world.node, retire(10), "kept", 0))
    bench.time_ms += 9 * DAY_MS
    bench.play((world.node, retire(20), None))


def test_a_promise_of_before_the_first_anchor_binds_nothing(bench: Bench, world: World) -> None:
    bench.play((world.doctor, entries.retain(HEART, A_DAY), None))
    grow(bench, 10, 20, 30)
    bench.play((world.node, retire(20), None))


def test_what_version_1_anchored_counts_from_its_newest_anchor() -> None:
    bench = Bench()
    grow(bench, 10, 20)
    bench.bring_into_force()
    bench.play((bench.world.doctor, entries.release(HEART, 0, 20), None))
    bench.play((bench.world.doctor, entries.retain(HEART, A_DAY), None))
    grow(bench, 30, 40, 50)
    assert (bench.state.row(SAMPLES(HEART, 0)) or [])[0].size == 20
    bench.play((bench.world.node, retire(41), "kept", 0), (bench.world.node, retire(40), None))


# --- whose word it is ---


@pytest.mark.parametrize("role", ROLES)
def test_retention_is_the_owner_s(bench: Bench, world: World, role: str) -> None:
    grow(bench, 10)
    bench.play(
        world.row(role, "doctor", entries.retain(HEART, A_DAY), "not-owner"),
        world.row(role, "doctor", entries.release(HEART, 0, 5), "not-owner"),
    )


def test_what_says_nothing_is_refused(bench: Bench, world: World) -> None:
    grow(bench, 10)
    bench.play(
        (world.doctor, entries.retain(HEART, FOREVER), "unchanged", 0),
        (world.doctor, entries.retain(HEART, Retention(1, 1)), "malformed", 0),
        (world.doctor, entries.retain(token("none"), A_DAY), "unknown-topic", 0),
        (world.doctor, entries.release(HEART, 0, 11), "not-anchored", 0),
        (world.doctor, entries.release(HEART, 1, 1), "not-anchored", 0),
        (world.doctor, entries.release(HEART, 0, 0), "unchanged", 0),
        (world.doctor, entries.release(HEART, 0, 5), None),
        (world.doctor, entries.release(HEART, 0, 5), "unchanged", 0),
    )


def test_before_its_activation_nothing_of_it_is_known() -> None:
    bench = Bench()
    doctor, node = bench.world.doctor, bench.world.node
    grow(bench, 10)
    bench.play(
        (doctor, entries.retain(HEART, A_DAY), "unknown-kind"),
        (doctor, entries.release(HEART, 0, 5), "unknown-kind"),
        (node, retire(9), None),  # on the carrier's word alone
    )


# --- what is remembered has bounds ---


def test_a_sample_is_short_and_spans_what_is_kept(bench: Bench, world: World) -> None:
    bench.play((world.doctor, entries.retain(HEART, Retention(age_ms=100 * DAY_MS)), None))
    for day in range(1, 300):
        bench.play((world.node, anchor(10 * day), None))
        bench.time_ms += DAY_MS
    sample = bench.state.row(SAMPLES(HEART, 0)) or []
    assert len(sample) <= POINTS_MAX
    assert sample[0].size <= 20
    allowed = anchors.let_go(bench.state.row, HEART, 0, bench.time_ms)
    assert 1_600 <= allowed <= 1_990
    bench.play((world.node, retire(allowed), None))
    after = bench.state.row(SAMPLES(HEART, 0)) or []
    assert after[0].size <= allowed < after[1].size


def test_promises_that_are_too_many_become_one_that_keeps_more(bench: Bench, world: World) -> None:
    grow(bench, 10)
    kept = [Retention(age_ms=(90 - number) * DAY_MS) for number in range(20)]
    for one in kept:
        bench.play((world.doctor, entries.retain(HEART, one), None))
    earlier = bench.state.row(EARLIER(HEART)) or []
    assert [one.retention for one in earlier] == [FOREVER, *kept[-8:-1]]
    bench.play((world.doctor, entries.retain(HEART, FOREVER), None))
    assert bench.state.row(EARLIER(HEART)) is None, "it keeps what they all keep"


retentions = st.one_of(
    st.just(FOREVER),
    st.integers(1, 50).map(lambda n: Retention(age_ms=n)),
    st.integers(1, 50).map(lambda n: Retention(0, n)),
)


@given(st.data())
def test_no_parcel_goes_before_every_promise_that_held_for_it(data: st.DataObject) -> None:
    """Against a plain account of every parcel: when it was anchored, and under which promises it was kept."""
    anchored: list[int] = []  # the time of each parcel
    promises: list[tuple[int, Retention]] = [(0, data.draw(retentions))]
    earlier: list[Earlier] = []
    sample: list[Point] = []
    old: Point | None = None
    now = 0
    for _ in range(data.draw(st.integers(1, 25))):
        now += data.draw(st.integers(1, 3_000))
        if data.draw(st.booleans()):
            anchored += [now] * data.draw(st.integers(1, 9))
            new = Point(now, len(anchored))
            sample = retention.sampled(sample, old, new, earlier[-1].until_ms if earlier else 0)
            old = new
        else:
            new_promise = data.draw(retentions)
            earlier.append(Earlier(now, promises[-1][1]))
            promises.append((now, new_promise))
    now += data.draw(st.integers(0, 200))
    ended = [*(start for start, _ in promises[1:]), now + 1]
    below = deletable(promises[-1][1], earlier, [*sample, *([old] if old else [])], 0, now)
    for offset in range(below):
        for end, (_, kept) in zip(ended, promises, strict=True):
            if end > anchored[offset]:
                assert kept != FOREVER
                assert not kept.age_ms or now - anchored[offset] > kept.age_ms
                assert not kept.parcels or offset < len(anchored) - kept.parcels


# --- promises of a node from which the partition was taken ---


def promised(bench: Bench, offset: int = 5) -> bytes:
    node = bench.world.node
    unsigned = Promise(bench.world.instance, node.id, HEART, 0, offset, seed("parcel"), bench.height, bench.time_ms)
    return entries.broken_promise(unsigned.sign(node.key))


@pytest.fixture
def other(bench: Bench, world: World) -> bytes:
    found = world.actor("other node", SubjectKind.NODE, ALL_TENANTS)
    bench.play((found, entries.enrol(found.certificate), None))
    return found.id


def test_a_partition_that_was_taken_away_in_time_blames_nobody(bench: Bench, world: World, other: bytes) -> None:
    broken = promised(bench)
    bench.time_ms += 59_000
    bench.play((world.doctor, entries.assign(HEART, 0, [other]), None))
    bench.time_ms += 100_000
    bench.play((world.monitor, broken, "taken-away"))
    bench.play((world.doctor, entries.assign(HEART, 0, [world.node.id]), None))
    bench.time_ms += 100_000
    bench.play((world.monitor, broken, "taken-away"))
    assert reputation.score(bench.state, world.node.id) == 100


def test_giving_it_back_for_a_moment_does_not_make_it_guilty(bench: Bench, world: World, other: bytes) -> None:
    broken = promised(bench)
    for nodes in ([other], [world.node.id], [other]):
        bench.time_ms += 25_000
        bench.play((world.doctor, entries.assign(HEART, 0, nodes), None))
    bench.play((world.monitor, broken, "taken-away"))


def test_a_node_that_had_its_time_is_held_to_its_word(bench: Bench, world: World, other: bytes) -> None:
    broken = promised(bench)
    bench.time_ms += 60_001
    bench.play(
        (world.doctor, entries.assign(HEART, 0, [other]), None),
        (world.monitor, broken, None),
    )
    assert reputation.score(bench.state, world.node.id) == 90


def test_a_node_that_stays_is_held_to_its_word(bench: Bench, world: World, other: bytes) -> None:
    broken = promised(bench)
    bench.play((world.doctor, entries.assign(HEART, 0, [world.node.id, other]), None))
    bench.time_ms += 60_001
    bench.play((world.monitor, broken, None))
    assert bench.state.row(topics.TENURES(HEART, 0, world.node.id)) is None
