"""Topics, epochs, rights and permits: what an owner may do, and what nobody else may."""

from __future__ import annotations

import pytest
from ledger_world import HOME, HOSPITAL, NOW_MS, Bench, seed, token

from tallystick.ledger import entries
from tallystick.ledger.contracts import access, epochs, erasures, permits, topics, writes
from tallystick.ledger.contracts.epochs import End
from tallystick.ledger.contracts.permits import Status
from tallystick.trust.permit import Operation as Leave
from tallystick.trust.right import Right

HEART, AIR = token("heart"), token("air")
READ, WRITE, DESCRIBE, DELETE = Right
IDS = [seed(f"id {i}")[:16] for i in range(5)]


# --- topics ---


def test_a_topic_is_made_once_by_its_owner() -> None:
    bench = Bench()
    world = bench.world
    bench.refuse(world.landlord.sign(world.topic("heart", world.landlord, HOME)), "topic-exists", 0)
    bench.refuse(world.sensor.sign(world.topic("new", world.doctor, HOSPITAL)), "not-owner", 0)
    bench.refuse(world.sensor.sign(world.topic("new", world.sensor, HOSPITAL)), "wrong-tenant", 0)
    bench.accept(world.landlord.sign(world.topic("new", world.sensor, HOME)))
    assert topics.require(bench.state, token("new")).owner == world.sensor.id


def test_schema_versions_count_up_under_the_owner_s_signature() -> None:
    bench = Bench()
    world = bench.world
    doctor, sensor = world.doctor, world.sensor
    bench.accept(doctor.sign(entries.schema(world.instance, HEART, 2, seed("v2"), doctor.key)))
    bench.refuse(doctor.sign(entries.schema(world.instance, HEART, 2, seed("v2b"), doctor.key)), "wrong-version")
    bench.refuse(doctor.sign(entries.schema(world.instance, HEART, 4, seed("v4"), doctor.key)), "wrong-version")
    bench.refuse(doctor.sign(entries.schema(world.instance, HEART, 3, seed("v3"), sensor.key)), "forged")
    bench.refuse(sensor.sign(entries.schema(world.instance, HEART, 3, seed("v3"), sensor.key)), "not-owner")
    topic = topics.require(bench.state, HEART)
    assert (topic.version, topic.schema_hash) == (2, seed("v2"))


def test_nodes_are_assigned_by_the_owner() -> None:
    bench = Bench()
    world = bench.world
    bench.refuse(world.sensor.sign(entries.assign(HEART, 0, [world.node.id])), "not-owner")
    bench.refuse(world.doctor.sign(entries.assign(HEART, 1, [world.node.id])), "unknown-partition")
    bench.refuse(world.doctor.sign(entries.assign(HEART, 0, [world.sensor.id])), "not-node")
    bench.accept(world.doctor.sign(entries.assign(HEART, 0, [world.node.id])))


def test_a_topic_is_closed_once() -> None:
    bench = Bench()
    world = bench.world
    bench.refuse(world.landlord.sign(entries.close_topic(HEART)), "not-owner")
    bench.accept(world.doctor.sign(entries.close_topic(HEART)))
    bench.refuse(world.doctor.sign(entries.close_topic(HEART)), "topic-closed")


# --- rights ---


def test_another_tenant_cannot_grant_itself_a_right() -> None:
    bench = Bench()
    world = bench.world
    for thief in (world.landlord, world.sensor, world.node, world.monitor):
        bench.refuse(thief.sign(entries.grant(HEART, thief.id, READ)), "not-owner", 0)
    assert not access.allowed(bench.state, world.landlord.id, HEART, READ, "anywhere")


def test_the_owner_and_the_tenant_s_owner_grant_and_withdraw() -> None:
    bench = Bench()
    world = bench.world
    bench.accept(world.doctor.sign(entries.grant(HEART, world.sensor.id, READ | DESCRIBE)))
    assert access.allowed(bench.state, world.sensor.id, HEART, READ, "10.0.0.1")
    assert not access.allowed(bench.state, world.sensor.id, HEART, WRITE, "10.0.0.1")
    bench.refuse(world.doctor.sign(entries.grant(HEART, world.sensor.id, READ | DESCRIBE)), "rule-exists")
    bench.refuse(world.landlord.sign(entries.withdraw(HEART, world.sensor.id, READ | DESCRIBE)), "not-owner")
    bench.accept(world.doctor.sign(entries.withdraw(HEART, world.sensor.id, READ | DESCRIBE)))
    assert not access.allowed(bench.state, world.sensor.id, HEART, READ, "10.0.0.1")
    bench.refuse(world.doctor.sign(entries.withdraw(HEART, world.sensor.id, READ | DESCRIBE)), "unknown-rule")


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


def test_topics_with_is_one_lookup_in_an_index_that_follows_every_change() -> None:
    bench = Bench()
    world = bench.world
    bench.accept(world.doctor.sign(entries.grant(HEART, world.monitor.id, READ | WRITE)))
    bench.accept(world.landlord.sign(entries.grant(AIR, world.monitor.id, READ, host="10.0.0.1")))
    assert access.topics_with(bench.state, world.monitor.id, READ) == sorted([HEART, AIR])
    assert access.topics_with(bench.state, world.monitor.id, WRITE) == [HEART]
    bench.accept(world.doctor.sign(entries.grant(HEART, world.monitor.id, WRITE, allow=False)))
    assert access.topics_with(bench.state, world.monitor.id, WRITE) == []
    bench.accept(world.landlord.sign(entries.withdraw(AIR, world.monitor.id, READ, host="10.0.0.1")))
    assert access.topics_with(bench.state, world.monitor.id, READ) == [HEART]


def test_a_host_is_a_literal_or_a_star() -> None:
    bench = Bench()
    bench.refuse(bench.world.doctor.sign(entries.grant(HEART, IDS[0], READ, host="10.*")), "wrong-host")
    bench.refuse(bench.world.doctor.sign(entries.grant(HEART, IDS[0], READ)), "unknown-identity")


def test_one_refused_entry_refuses_the_whole_transaction() -> None:
    bench = Bench()
    world = bench.world
    good = entries.grant(HEART, world.monitor.id, READ)
    bench.refuse(world.doctor.sign(good, entries.grant(AIR, world.monitor.id, READ)), "not-owner", 1)
    assert not access.allowed(bench.state, world.monitor.id, HEART, READ, "a")


# --- epochs ---


def test_an_epoch_is_announced_once_in_order_by_the_authority() -> None:
    bench = Bench()
    world = bench.world
    bench.refuse(world.doctor.sign(entries.announce_epoch(HEART, 1, seed("k"), NOW_MS)), "not-authority")
    bench.accept(world.authority.sign(entries.announce_epoch(HEART, 1, seed("k1"), NOW_MS)))
    bench.refuse(world.authority.sign(entries.announce_epoch(HEART, 1, seed("again"), NOW_MS)), "wrong-epoch")
    bench.refuse(world.authority.sign(entries.announce_epoch(HEART, 3, seed("k3"), NOW_MS)), "wrong-epoch")
    bench.refuse(world.authority.sign(entries.announce_epoch(HEART, 2, seed("k2"), NOW_MS - 1)), "wrong-epoch")


def test_the_next_epoch_begins_at_its_time_or_when_the_last_was_revoked() -> None:
    bench = Bench()
    world = bench.world
    for number in (1, 2, 3):
        start = NOW_MS + (number - 1) * 1000
        bench.accept(world.authority.sign(entries.announce_epoch(HEART, number, seed(f"k{number}"), start)))
    at = [NOW_MS - 1, NOW_MS, NOW_MS + 999, NOW_MS + 1000, NOW_MS + 5000]
    assert [epochs.current(bench.state, HEART, t) for t in at] == [None, 1, 1, 2, 3]
    bench.accept(world.authority.sign(entries.end_epoch(HEART, 1, End.REVOCATION, NOW_MS + 300)))
    assert [epochs.current(bench.state, HEART, NOW_MS + t) for t in (299, 300, 1000)] == [1, 2, 2]
    bench.refuse(world.authority.sign(entries.end_epoch(HEART, 1, End.SCHEDULE, NOW_MS + 9)), "epoch-ended")
    bench.accept(world.authority.sign(entries.end_epoch(HEART, 3, End.SCHEDULE, NOW_MS + 6000)))
    assert epochs.current(bench.state, HEART, NOW_MS + 6000) is None


# --- permits, erasures, writes ---


def test_no_permit_without_the_right_and_none_twice() -> None:
    bench = Bench()
    world = bench.world
    until = NOW_MS + 1000
    subscribe = entries.issue_permit(IDS[0], Leave.SUBSCRIBE, HEART, world.monitor.id, until)
    bench.refuse(world.authority.sign(subscribe), "no-right")
    bench.accept(world.doctor.sign(entries.grant(HEART, world.monitor.id, READ)))
    bench.refuse(world.authority.sign(subscribe), "no-right")
    bench.accept(world.doctor.sign(entries.grant(HEART, world.monitor.id, DESCRIBE)))
    bench.refuse(world.doctor.sign(subscribe), "not-authority")
    bench.accept(world.authority.sign(subscribe))
    bench.refuse(world.authority.sign(subscribe), "permit-exists")
    bench.refuse(
        world.authority.sign(entries.issue_permit(IDS[1], Leave.ADVERTISE, HEART, world.monitor.id, until)), "no-right"
    )


def test_undone_and_revoked_are_final() -> None:
    bench = Bench()
    world = bench.world
    bench.accept(world.doctor.sign(entries.grant(HEART, world.monitor.id, READ | WRITE | DESCRIBE)))
    for identifier in IDS[:3]:
        leave = entries.issue_permit(identifier, Leave.ADVERTISE, HEART, world.monitor.id, NOW_MS)
        bench.accept(world.authority.sign(leave))
    bench.refuse(world.sensor.sign(entries.undo_permit(IDS[0])), "not-authority")
    bench.accept(world.monitor.sign(entries.undo_permit(IDS[0])))
    bench.accept(world.authority.sign(entries.undo_permit(IDS[1])))
    bench.refuse(world.monitor.sign(entries.revoke_permit(IDS[2])), "not-authority")
    bench.accept(world.authority.sign(entries.revoke_permit(IDS[2])))
    assert [permits.status(bench.state, i) for i in IDS[:4]] == [Status.UNDONE, Status.UNDONE, Status.REVOKED, None]
    for identifier in IDS[:3]:
        bench.refuse(world.authority.sign(entries.undo_permit(identifier)), "permit-ended")
    bench.refuse(world.authority.sign(entries.undo_permit(IDS[4])), "unknown-permit")


def test_only_an_erasable_topic_is_erased_once_by_its_authority() -> None:
    bench = Bench()
    world = bench.world
    bench.accept(world.doctor.sign(world.topic("gone", world.doctor, HOSPITAL, flags=topics.ERASABLE)))
    gone = token("gone")
    bench.refuse(world.authority.sign(entries.erase(HEART, world.monitor.id, 1)), "not-erasable")
    bench.refuse(world.doctor.sign(entries.erase(gone, world.monitor.id, 1)), "not-authority")
    bench.accept(world.authority.sign(entries.erase(gone, world.monitor.id, 1)))
    bench.refuse(world.authority.sign(entries.erase(gone, world.monitor.id, 1)), "already-erased")
    assert erasures.is_erased(bench.state, gone, world.monitor.id, 1)
    assert not erasures.is_erased(bench.state, gone, world.monitor.id, 2)


def test_the_first_hash_of_a_batch_wins() -> None:
    bench = Bench()
    world = bench.world
    bench.refuse(world.monitor.sign(entries.write(HEART, IDS[0], 7, seed("list"))), "no-right")
    bench.accept(world.doctor.sign(entries.grant(HEART, world.monitor.id, WRITE)))
    bench.accept(world.monitor.sign(entries.write(HEART, IDS[0], 7, seed("list"))))
    bench.refuse(world.monitor.sign(entries.write(HEART, IDS[0], 7, seed("other list"))), "batch-taken")
    assert writes.winner(bench.state, world.monitor.id, IDS[0], 7) == seed("list")
    assert writes.winner(bench.state, world.monitor.id, IDS[0], 8) is None
