"""Anchors, promises, groups and equivocation."""

from __future__ import annotations

import pytest
from ledger_world import HOSPITAL, NOW_MS, ROLES, Actor, Bench, World, seed, token
from ledger_world import bench as bench
from ledger_world import world as world

from tallystick.crypto.merkle import EMPTY_ROOT, Tree, leaf_hash
from tallystick.crypto.signatures import SigningKey
from tallystick.ledger import entries
from tallystick.ledger.contracts import anchors, groups, reputation
from tallystick.parcel.header import SIGNATURE_CONTEXT, Group, Header, ParcelKind, TopicRef
from tallystick.trust.certificate import ALL_TENANTS, SubjectKind
from tallystick.trust.promise import Promise, Refusal
from tallystick.trust.right import Right

HEART, AIR = token("heart"), token("air")
GROUP, ONE, TWO = (seed(name)[:16] for name in ("group", "process 1", "process 2"))
PARCELS = [seed(f"parcel {i}") for i in range(8)]
LEAVES = [leaf_hash(parcel) for parcel in PARCELS]
TREE = Tree(LEAVES)


# --- anchors ---


def test_a_partition_never_shrinks_and_one_size_has_one_root(bench: Bench, world: World) -> None:
    bench.play(
        (world.node, entries.anchor(HEART, 0, 5, TREE.root(5)), None),
        (world.node, entries.anchor(HEART, 0, 4, TREE.root(4)), "anchor-shrinks", 0),
        (world.node, entries.anchor(HEART, 0, 5, seed("another")), "anchor-shrinks", 0),
        (world.node, entries.anchor(HEART, 0, 5, TREE.root(5)), None),
        (world.node, entries.anchor(HEART, 0, 8, TREE.root()), None),
    )
    assert (anchors.find(bench.state, HEART, 0) or ())[:2] == (8, TREE.root())


@pytest.mark.parametrize("role", ROLES)
def test_only_a_node_of_the_partition_anchors_it(bench: Bench, world: World, role: str) -> None:
    other = world.actor("other node", SubjectKind.NODE, ALL_TENANTS)
    bench.play(
        (other, entries.enrol(other.certificate), None),
        (other, entries.anchor(HEART, 0, 1, TREE.root(1)), "not-host", 0),
        (world.node, entries.anchor(HEART, 1, 1, TREE.root(1)), "not-host", 0),
        (world.node, entries.anchor(HEART, 0, 0, seed("x")), "wrong-root", 0),
        (world.node, entries.anchor(HEART, 0, 0, EMPTY_ROOT), None),
        world.row(role, "node", entries.anchor(HEART, 0, 1, TREE.root(1)), "not-host"),
        world.row(role, "node", entries.notarise(HEART, 0, 2, TREE.root(2), before=1), "not-host"),
        world.row(role, "node", entries.retire(HEART, 0, 1, TREE.root(1)), "not-host"),
    )


def test_only_what_was_anchored_is_retired_and_marks_only_rise(bench: Bench, world: World) -> None:
    bench.play(
        (world.node, entries.retire(HEART, 0, 1, TREE.root(1)), "not-anchored"),
        (world.node, entries.anchor(HEART, 0, 5, TREE.root(5)), None),
        (world.node, entries.retire(HEART, 0, 6, TREE.root(6)), "not-anchored"),
        (world.node, entries.retire(HEART, 0, 5, seed("x")), "wrong-root"),
        (world.node, entries.retire(HEART, 0, 3, TREE.root(3)), None),
        (world.node, entries.retire(HEART, 0, 3, TREE.root(3)), "retire-shrinks"),
        (world.doctor, entries.retire(HEART, 0, 4, TREE.root(4)), "not-host"),
    )
    assert bench.state.get(b"retired/" + HEART + bytes(4))[:2] == [3, TREE.root(3)]


def test_of_two_notaries_the_first_to_continue_the_anchor_wins(bench: Bench, world: World) -> None:
    refused = [Refusal(1, 2, "plain"), Refusal(2, 4, "no-right")]
    bench.play(
        (world.node, entries.notarise(HEART, 0, 5, TREE.root(5), before=0, refused=refused), None),
        (world.node, entries.notarise(HEART, 0, 3, TREE.root(3), before=0), "anchor-moved", 0),
        (world.node, entries.notarise(HEART, 0, 8, TREE.root(), before=4), "anchor-moved", 0),
        (world.node, entries.notarise(HEART, 0, 5, seed("x"), before=5), "anchor-moved", 0),
        (world.doctor, entries.notarise(HEART, 0, 8, TREE.root(), before=5), "not-host", 0),
        (world.node, entries.notarise(HEART, 0, 8, TREE.root(), before=5), None),
    )
    assert (anchors.find(bench.state, HEART, 0) or ())[:2] == (8, TREE.root())


@pytest.mark.parametrize(
    "refused",
    [
        [Refusal(4, 6, "plain")],  # below what the anchor continues
        [Refusal(7, 9, "plain")],  # beyond its size
        [Refusal(6, 6, "plain")],
        [Refusal(6, 8, "plain"), Refusal(5, 6, "plain")],
        [Refusal(5, 7, "plain"), Refusal(6, 8, "plain")],
        [Refusal(5, 6, "")],
        [Refusal(5, 6, "r" * 33)],
    ],
)
def test_refused_offsets_lie_in_order_within_the_anchor(bench: Bench, world: World, refused: list[Refusal]) -> None:
    bench.play((world.node, entries.notarise(HEART, 0, 5, TREE.root(5), before=0), None))
    bench.play((world.node, entries.notarise(HEART, 0, 8, TREE.root(), before=5, refused=refused), "malformed", 0))


def promise(world: World, offset: int, parcel: bytes, signer: Actor | None = None) -> Promise:
    unsigned = Promise(world.instance, world.node.id, HEART, 0, offset, parcel, 1, NOW_MS)
    return unsigned.sign((signer or world.node).key)


def test_a_promise_that_was_not_kept_in_time_counts_once(bench: Bench, world: World) -> None:
    broken = entries.broken_promise(promise(world, 5, PARCELS[5]))
    bench.play((world.node, entries.anchor(HEART, 0, 5, TREE.root(5)), None))
    bench.play((world.monitor, broken, "not-due"))
    bench.time_ms += 60_001
    bench.play((world.monitor, broken, None))
    assert reputation.score(bench.state, world.node.id) == 90
    bench.play((world.doctor, broken, "known-evidence"))


def test_another_parcel_at_the_promised_offset_convicts(bench: Bench, world: World) -> None:
    path, swapped = TREE.inclusion(3, 8), promise(world, 3, seed("swapped"))
    framed = promise(world, 3, seed("swapped"), world.sensor)
    bench.play(
        (world.node, entries.anchor(HEART, 0, 8, TREE.root()), None),
        (world.monitor, entries.broken_promise(promise(world, 3, PARCELS[3]), LEAVES[3], path), "promise-kept"),
        (world.monitor, entries.broken_promise(swapped, LEAVES[2], path), "forged"),
        (world.monitor, entries.broken_promise(framed, LEAVES[3], path), "forged"),
        (world.monitor, entries.broken_promise(swapped, LEAVES[3], path), None),
    )
    assert reputation.score(bench.state, world.node.id) == 90


# --- groups ---


@pytest.fixture
def grouped(bench: Bench, world: World) -> World:
    """The sensor and the landlord may read `air`, which has four partitions; a group reads it."""
    for reader in (world.sensor, world.landlord, world.monitor):
        bench.play((world.landlord, entries.grant(AIR, reader.id, Right.READ), None))
    bench.play((world.landlord, entries.group(GROUP, 10_000, [AIR]), None))
    return world


def group_of(bench: Bench) -> groups.GroupRow:
    found = groups.find(bench.state, GROUP)
    assert found is not None
    return found


def commit(fence: int, old: int, new: int, *, member: bytes = ONE, partition: int = 0) -> bytes:
    return entries.commit_offset(GROUP, member, AIR, partition, fence=fence, old=old, new=new)


def test_partitions_are_dealt_in_turn_and_every_change_raises_the_fence(bench: Bench, grouped: World) -> None:
    bench.play((grouped.sensor, entries.join(GROUP, ONE), None))
    fence = group_of(bench).fence
    bench.play((grouped.landlord, entries.join(GROUP, TWO), None))
    assert group_of(bench).fence == fence + 1
    dealt = groups.deal(bench.state, group_of(bench))
    assert sorted(dealt) == [(AIR, p) for p in range(4)]
    assert len({dealt[AIR, 0], dealt[AIR, 1]}) == 2
    assert dealt == {place: groups.holder(bench.state, group_of(bench), *place) for place in dealt}
    bench.play((grouped.landlord, entries.join(GROUP, TWO), None))
    assert group_of(bench).fence == fence + 1, "renewing a lease changes nothing for the others"
    bench.play((grouped.landlord, entries.leave(GROUP, TWO), None))
    assert set(groups.deal(bench.state, group_of(bench)).values()) == {(grouped.sensor.id, ONE)}
    bench.play((grouped.landlord, entries.leave(GROUP, TWO), "not-member"))


def test_an_offset_moves_by_compare_and_set_with_the_fence(bench: Bench, grouped: World) -> None:
    bench.play((grouped.sensor, entries.join(GROUP, ONE), None))
    fence = group_of(bench).fence
    bench.play(
        (grouped.sensor, commit(fence, 0, 10), None),
        (grouped.sensor, commit(fence, 0, 12), "offset-moved"),
        (grouped.sensor, commit(fence, 10, 9), "offset-back"),
        (grouped.sensor, commit(fence - 1, 10, 12), "fenced"),
        (grouped.sensor, commit(fence, 0, 1, partition=4), "unknown-partition"),
    )
    assert groups.offset(bench.state, GROUP, AIR, 0) == 10


def test_nobody_else_moves_a_group_s_offsets(bench: Bench, grouped: World) -> None:
    """A broker, another tenant that may read the topic, a member that does not hold the partition."""
    bench.play((grouped.sensor, entries.join(GROUP, ONE), None))
    bench.play((grouped.landlord, entries.join(GROUP, TWO), None))
    group = group_of(bench)
    outsiders = (grouped.node, grouped.monitor, grouped.doctor, grouped.authority)
    holder = groups.holder(bench.state, group, AIR, 0)
    assert holder is not None
    other = grouped.landlord if holder[0] == grouped.sensor.id else grouped.sensor
    bench.play(
        *((who, commit(group.fence, 0, 9), "wrong-tenant") for who in outsiders),
        *((who, entries.join(GROUP, ONE), "wrong-tenant") for who in outsiders),
        *((other, commit(group.fence, 0, 9, member=member), "not-holder") for member in (ONE, TWO)),
    )


def test_a_member_whose_lease_ran_out_is_fenced(bench: Bench, grouped: World) -> None:
    bench.play((grouped.sensor, entries.join(GROUP, ONE), None))
    fence = group_of(bench).fence
    bench.time_ms += 10_000
    bench.play((grouped.sensor, commit(fence, 0, 5), "fenced"))
    bench.play((grouped.landlord, entries.join(GROUP, TWO), None))
    assert [member[1] for member in group_of(bench).members] == [TWO]
    bench.play((grouped.sensor, commit(fence, 0, 5), "fenced"))


def test_going_back_is_its_own_entry_of_the_owner(bench: Bench, grouped: World) -> None:
    bench.play((grouped.sensor, entries.join(GROUP, ONE), None))
    fence = group_of(bench).fence
    back = entries.reset_offset(GROUP, AIR, 0, fence=fence, old=50, new=3)
    bench.play(
        (grouped.sensor, commit(fence, 0, 50), None),
        (grouped.sensor, back, "not-owner"),
        (grouped.landlord, back, None),
        (grouped.landlord, back, "offset-moved"),
    )
    assert groups.offset(bench.state, GROUP, AIR, 0) == 3


def test_who_may_not_read_makes_and_joins_no_group(bench: Bench, world: World) -> None:
    bench.play(
        (world.sensor, entries.group(GROUP, 10_000, [AIR]), "no-right"),
        (world.sensor, entries.join(GROUP, ONE), "unknown-group"),
        (world.landlord, entries.grant(AIR, world.landlord.id, Right.READ), None),
        (world.landlord, entries.group(GROUP, 1, [AIR]), "out-of-range"),
        (world.landlord, entries.group(GROUP, 10_000, [AIR]), None),
        (world.landlord, entries.group(GROUP, 10_000, [AIR]), "group-exists"),
        (world.sensor, entries.join(GROUP, ONE), "no-right"),
    )


# --- equivocation ---


def header(world: World, content: str, *, sequence: int = 4) -> bytes:
    return Header(
        instance=world.instance,
        kind=ParcelKind.DATA,
        topics=(TopicRef(HEART, seed("permit")[:16], 1),),
        lane=seed("lane")[:16],
        sequence=sequence,
        previous=seed("previous"),
        schema_version=1,
        schema_hash=seed("schema"),
        identifier=seed(content)[:16],
        time_ms=NOW_MS,
        count=1,
        groups=(Group(seed("root " + content), seed("commitment"), (seed("lock"),), 16),),
        body_bytes=16,
        body_root=seed("body " + content),
    ).encoded


def evidence(world: World, a: bytes, b: bytes, key: SigningKey | None = None) -> bytes:
    key = key or world.monitor.key
    return entries.equivocation(
        world.monitor.id, key.public.raw, a, key.sign(SIGNATURE_CONTEXT, a), b, key.sign(SIGNATURE_CONTEXT, b)
    )


def test_two_stories_under_one_number_blacklist_their_publisher(bench: Bench, world: World) -> None:
    proof = evidence(world, header(world, "one story"), header(world, "another"))
    bench.play((world.sensor, proof, None))
    assert reputation.is_blacklisted(bench.state, world.monitor.id)
    bench.play((world.doctor, proof, "known-evidence"))


def test_false_evidence_convicts_nobody(bench: Bench, world: World) -> None:
    one, other = header(world, "one story"), header(world, "another")
    bench.play(
        (world.sensor, evidence(world, one, one), "forged"),
        (world.sensor, evidence(world, one, header(world, "another", sequence=5)), "forged"),
        (world.sensor, evidence(world, one, other, world.sensor.key), "false-evidence"),
    )
    assert not reputation.is_blacklisted(bench.state, world.monitor.id)


def test_evidence_under_a_key_that_was_replaced_since_still_convicts(bench: Bench, world: World) -> None:
    proof = evidence(world, header(world, "one story"), header(world, "another"))
    key = SigningKey.from_seed(seed("new"))
    renewed = world.certify(key, SubjectKind.PRINCIPAL, HOSPITAL, subject=world.monitor.id)
    bench.play((world.monitor, entries.replace(renewed), None))
    bench.play((world.sensor, proof, None))
    assert reputation.is_blacklisted(bench.state, world.monitor.id)


def test_a_group_of_a_blacklisted_principal_takes_no_more_part(bench: Bench, grouped: World) -> None:
    equivocated = evidence(grouped, header(grouped, "a"), header(grouped, "b"))
    bench.play((grouped.sensor, equivocated, None))
    bench.play((grouped.monitor, entries.group(seed("g")[:16], 10_000, [AIR]), "blacklisted"))
