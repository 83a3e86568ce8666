"""Topics, epochs, rights and permits: what an owner may do, and what nobody else may."""

from __future__ import annotations

import pytest
from ledger_world import HOME, HOSPITAL, NOW_MS, ROLES, Bench, World, seed, token
from ledger_world import bench as bench
from ledger_world import world as world

from tallystick.ledger import entries
from tallystick.ledger.contracts import access, epochs, permits, topics, writes
from tallystick.ledger.contracts.epochs import End
from tallystick.ledger.contracts.permits import Status
from tallystick.trust.permit import Operation as Leave
from tallystick.trust.right import Right

HEART, AIR = token("heart"), token("air")
READ, WRITE, DESCRIBE, DELETE = Right
IDS = [seed(f"id {i}")[:16] for i in range(5)]


@pytest.mark.parametrize("role", ROLES)
def test_who_may_write_of_a_topic_what(bench: Bench, world: World, role: str) -> None:
    """The doctor owns the topic and its tenant; the authority is in charge of every tenant."""
    bench.play(
        world.row(role, "doctor", world.topic("new", world.doctor, HOSPITAL), "not-owner"),
        world.row(role, "doctor", entries.schema(world.instance, HEART, 2, seed("2"), world.doctor.key), "not-owner"),
        world.row(role, "doctor", entries.assign(HEART, 0, [world.node.id]), "not-owner"),
        world.row(role, "doctor", entries.grant(HEART, world.sensor.id, READ | DESCRIBE), "not-owner"),
        world.row(role, "doctor", entries.withdraw(HEART, world.sensor.id, READ | DESCRIBE), "not-owner"),
        world.row(role, "doctor", entries.close_topic(HEART), "not-owner"),
        world.row(role, "authority", entries.announce_epoch(HEART, 1, seed("k"), NOW_MS), "not-authority"),
        world.row(role, "authority", entries.end_epoch(HEART, 1, End.SCHEDULE, NOW_MS), "not-authority"),
    )


# --- topics ---


def test_a_topic_is_made_once_by_its_owner(bench: Bench, world: World) -> None:
    bench.play(
        (world.landlord, world.topic("heart", world.landlord, HOME), "topic-exists", 0),
        (world.sensor, world.topic("new", world.sensor, HOSPITAL), "wrong-tenant", 0),
        (world.landlord, world.topic("new", world.sensor, HOME), None),
    )
    assert topics.require(bench.state, token("new")).owner == world.sensor.id


def test_schema_versions_count_up_under_the_owner_s_signature(bench: Bench, world: World) -> None:
    instance, doctor, sensor = world.instance, world.doctor, world.sensor
    bench.play(
        (doctor, entries.schema(instance, HEART, 2, seed("v2"), doctor.key), None),
        (doctor, entries.schema(instance, HEART, 2, seed("v2b"), doctor.key), "wrong-version"),
        (doctor, entries.schema(instance, HEART, 4, seed("v4"), doctor.key), "wrong-version"),
        (doctor, entries.schema(instance, HEART, 3, seed("v3"), sensor.key), "forged"),
        (sensor, entries.schema(instance, HEART, 3, seed("v3"), sensor.key), "not-owner"),
    )
    topic = topics.require(bench.state, HEART)
    assert (topic.version, topic.schema_hash) == (2, seed("v2"))


def test_nodes_are_assigned_by_the_owner(bench: Bench, world: World) -> None:
    bench.play(
        (world.doctor, entries.assign(HEART, 1, [world.node.id]), "unknown-partition"),
        (world.doctor, entries.assign(HEART, 0, [world.sensor.id]), "not-node"),
        (world.doctor, entries.assign(HEART, 0, [world.node.id]), None),
    )


def test_a_topic_is_closed_once(bench: Bench, world: World) -> None:
    bench.play((world.doctor, entries.close_topic(HEART), None))
    bench.play((world.doctor, entries.close_topic(HEART), "topic-closed"))


# --- rights ---


@pytest.mark.parametrize("role", ROLES)
def test_another_tenant_cannot_grant_itself_a_right(bench: Bench, world: World, role: str) -> None:
    own = getattr(world, role).id
    bench.play(world.row(role, "doctor", entries.grant(HEART, own, READ), "not-owner"))
    assert access.allowed(bench.state, own, HEART, READ, "anywhere") == (role == "doctor")


def test_the_owner_and_the_tenant_s_owner_grant_and_withdraw(bench: Bench, world: World) -> None:
    bench.play((world.doctor, entries.grant(HEART, world.sensor.id, READ | DESCRIBE), None))
    assert access.allowed(bench.state, world.sensor.id, HEART, READ, "10.0.0.1")
    assert not access.allowed(bench.state, world.sensor.id, HEART, WRITE, "10.0.0.1")
    bench.play(
        (world.doctor, entries.grant(HEART, world.sensor.id, READ | DESCRIBE), "rule-exists"),
        (world.landlord, entries.withdraw(HEART, world.sensor.id, READ | DESCRIBE), "not-owner"),
        (world.doctor, entries.withdraw(HEART, world.sensor.id, READ | DESCRIBE), None),
    )
    assert not access.allowed(bench.state, world.sensor.id, HEART, READ, "10.0.0.1")
    bench.play((world.doctor, entries.withdraw(HEART, world.sensor.id, READ | DESCRIBE), "unknown-rule"))


@pytest.mark.parametrize(
    ("rules", "host", "expected"),
    [
        ([], "a", False),
        ([[1, READ, "*"]], "a", True),
        ([[1, READ, "a"]], "a", True),
        ([[1, READ, "a"]], "b", False),
        ([[1, WRITE, "*"]], "a", False),
        ([[0, READ, "*"], [1, READ, "a"]], "a", False),
        ([[0, READ, "a"], [1, READ, "*"]], "a", False),
        ([[0, READ, "a"], [1, READ, "*"]], "b", True),
        ([[0, WRITE, "*"], [1, READ, "*"]], "a", True),
    ],
)
def test_deny_beats_allow_and_silence_is_no(rules: list[list[object]], host: str, expected: bool) -> None:
    assert access.decide(rules, READ, host) is expected


def test_topics_with_is_one_lookup_in_an_index_that_follows_every_change(bench: Bench, world: World) -> None:
    bench.play((world.doctor, entries.grant(HEART, world.monitor.id, READ | WRITE), None))
    bench.play((world.landlord, entries.grant(AIR, world.monitor.id, READ, host="10.0.0.1"), None))
    assert access.topics_with(bench.state, world.monitor.id, READ) == sorted([HEART, AIR])
    assert access.topics_with(bench.state, world.monitor.id, WRITE) == [HEART]
    bench.play((world.doctor, entries.grant(HEART, world.monitor.id, WRITE, allow=False), None))
    assert access.topics_with(bench.state, world.monitor.id, WRITE) == []
    bench.play((world.landlord, entries.withdraw(AIR, world.monitor.id, READ, host="10.0.0.1"), None))
    assert access.topics_with(bench.state, world.monitor.id, READ) == [HEART]


def test_a_host_is_a_literal_or_a_star(bench: Bench, world: World) -> None:
    bench.play((world.doctor, entries.grant(HEART, IDS[0], READ, host="10.*"), "wrong-host"))
    bench.play((world.doctor, entries.grant(HEART, IDS[0], READ), "unknown-identity"))


def test_one_refused_entry_refuses_the_whole_transaction(bench: Bench, world: World) -> None:
    good, bad = (entries.grant(topic, world.monitor.id, READ) for topic in (HEART, AIR))
    bench.play((world.doctor, [good, bad], "not-owner", 1))
    assert not access.allowed(bench.state, world.monitor.id, HEART, READ, "a")


# --- epochs ---


def test_an_epoch_is_announced_once_in_order_by_the_authority(bench: Bench, world: World) -> None:
    bench.play(
        (world.authority, entries.announce_epoch(HEART, 1, seed("k1"), NOW_MS), None),
        (world.authority, entries.announce_epoch(HEART, 1, seed("again"), NOW_MS), "wrong-epoch"),
        (world.authority, entries.announce_epoch(HEART, 3, seed("k3"), NOW_MS), "wrong-epoch"),
        (world.authority, entries.announce_epoch(HEART, 2, seed("k2"), NOW_MS - 1), "wrong-epoch"),
    )


def test_the_next_epoch_begins_at_its_time_or_when_the_last_was_revoked(bench: Bench, world: World) -> None:
    authority, starts = world.authority, {1: NOW_MS, 2: NOW_MS + 1000, 3: NOW_MS + 2000}
    bench.play(*((authority, entries.announce_epoch(HEART, n, seed(f"k{n}"), starts[n]), None) for n in starts))
    at = [NOW_MS - 1, NOW_MS, NOW_MS + 999, NOW_MS + 1000, NOW_MS + 5000]
    assert [epochs.current(bench.state, HEART, t) for t in at] == [None, 1, 1, 2, 3]
    bench.play((authority, entries.end_epoch(HEART, 1, End.REVOCATION, NOW_MS + 300), None))
    assert [epochs.current(bench.state, HEART, NOW_MS + t) for t in (299, 300, 1000)] == [1, 2, 2]
    bench.play((authority, entries.end_epoch(HEART, 1, End.SCHEDULE, NOW_MS + 9), "epoch-ended"))
    bench.play((authority, entries.end_epoch(HEART, 3, End.SCHEDULE, NOW_MS + 6000), None))
    assert epochs.current(bench.state, HEART, NOW_MS + 6000) is None


# --- permits, erasures, writes ---


def test_no_permit_without_the_right_and_none_twice(bench: Bench, world: World) -> None:
    authority, doctor, monitor = world.authority, world.doctor, world.monitor.id
    subscribe = entries.issue_permit(IDS[0], Leave.SUBSCRIBE, HEART, monitor, NOW_MS + 1000)
    bench.play(
        (authority, subscribe, "no-right"),
        (doctor, entries.grant(HEART, monitor, READ), None),
        (authority, subscribe, "no-right"),
        (doctor, entries.grant(HEART, monitor, DESCRIBE), None),
        (doctor, subscribe, "not-authority"),
        (authority, subscribe, None),
        (authority, subscribe, "permit-exists"),
        (authority, entries.issue_permit(IDS[1], Leave.ADVERTISE, HEART, monitor, NOW_MS + 1000), "no-right"),
    )


def test_undone_and_revoked_are_final(bench: Bench, world: World) -> None:
    authority, monitor = world.authority, world.monitor
    bench.play(
        (world.doctor, entries.grant(HEART, monitor.id, READ | WRITE | DESCRIBE), None),
        *((authority, entries.issue_permit(i, Leave.ADVERTISE, HEART, monitor.id, NOW_MS), None) for i in IDS[:3]),
        (world.sensor, entries.undo_permit(IDS[0]), "not-authority"),
        (monitor, entries.undo_permit(IDS[0]), None),
        (authority, entries.undo_permit(IDS[1]), None),
        (monitor, entries.revoke_permit(IDS[2]), "not-authority"),
        (authority, entries.revoke_permit(IDS[2]), None),
    )
    assert [permits.status(bench.state, i) for i in IDS[:4]] == [Status.UNDONE, Status.UNDONE, Status.REVOKED, None]
    bench.play(*((authority, entries.undo_permit(i), "permit-ended") for i in IDS[:3]))
    bench.play((authority, entries.undo_permit(IDS[4]), "unknown-permit"))


def test_only_an_erasable_topic_is_erased_once_by_its_authority(bench: Bench, world: World) -> None:
    gone, monitor = token("gone"), world.monitor.id
    bench.play(
        (world.doctor, world.topic("gone", world.doctor, HOSPITAL, flags=topics.ERASABLE), None),
        (world.authority, entries.erase(HEART, monitor, 1), "not-erasable"),
        (world.doctor, entries.erase(gone, monitor, 1), "not-authority"),
        (world.authority, entries.erase(gone, monitor, 1), None),
        (world.authority, entries.erase(gone, monitor, 1), "already-erased"),
    )
    assert bench.state.row(epochs.ERASURES(gone, monitor, 1)) is not None
    assert bench.state.row(epochs.ERASURES(gone, monitor, 2)) is None


def test_the_first_hash_of_a_batch_wins(bench: Bench, world: World) -> None:
    bench.play(
        (world.monitor, entries.write(HEART, IDS[0], 7, seed("list")), "no-right"),
        (world.doctor, entries.grant(HEART, world.monitor.id, WRITE), None),
        (world.monitor, entries.write(HEART, IDS[0], 7, seed("list")), None),
        (world.monitor, entries.write(HEART, IDS[0], 7, seed("other list")), "batch-taken"),
    )
    assert writes.winner(bench.state, world.monitor.id, IDS[0], 7) == seed("list")
    assert writes.winner(bench.state, world.monitor.id, IDS[0], 8) is None


def test_from_version_2_on_the_operator_moves_partitions_and_who_may_delete_closes(bench: Bench, world: World) -> None:
    elsewhere = entries.assign(AIR, 0, [world.node.id])
    rows = [
        (world.authority, elsewhere, "not-owner"),
        (world.landlord, entries.grant(AIR, world.sensor.id, int(Right.DELETE)), None),
        (world.sensor, entries.close_topic(AIR), "not-owner"),
    ]
    bench.play(*rows)
    bench.bring_into_force()
    bench.play(
        (world.authority, elsewhere, None),
        (world.sensor, elsewhere, "not-owner"),
        (world.monitor, entries.close_topic(AIR), "not-owner"),
        (world.sensor, entries.close_topic(AIR), None),
        (world.landlord, entries.close_topic(AIR), "topic-closed"),
    )
