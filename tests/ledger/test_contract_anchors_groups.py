"""Anchors, promises, groups and equivocation."""

from __future__ import annotations

import pytest
from ledger_world import NOW_MS, Actor, Bench, World, seed, token

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
TREE = Tree([leaf_hash(parcel) for parcel in PARCELS])


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def world(bench: Bench) -> World:
    return bench.world


# --- anchors ---


def test_a_partition_never_shrinks_and_one_size_has_one_root(bench: Bench, world: World) -> None:
    bench.accept(world.node.sign(entries.anchor(HEART, 0, 5, TREE.root(5))))
    bench.refuse(world.node.sign(entries.anchor(HEART, 0, 4, TREE.root(4))), "anchor-shrinks", 0)
    bench.refuse(world.node.sign(entries.anchor(HEART, 0, 5, seed("another"))), "anchor-shrinks", 0)
    bench.accept(world.node.sign(entries.anchor(HEART, 0, 5, TREE.root(5))))
    bench.accept(world.node.sign(entries.anchor(HEART, 0, 8, TREE.root())))
    found = anchors.find(bench.state, HEART, 0)
    assert found is not None
    assert found[:2] == (8, TREE.root())


def test_only_a_node_of_the_partition_anchors_it(bench: Bench, world: World) -> None:
    other = world.actor("other node", SubjectKind.NODE, ALL_TENANTS)
    bench.accept(other.sign(entries.enrol(other.certificate)))
    for author in (other, world.doctor, world.authority):
        bench.refuse(author.sign(entries.anchor(HEART, 0, 1, TREE.root(1))), "not-host", 0)
    bench.refuse(world.node.sign(entries.anchor(HEART, 1, 1, TREE.root(1))), "not-host", 0)
    bench.refuse(world.node.sign(entries.anchor(HEART, 0, 0, seed("x"))), "wrong-root", 0)
    bench.accept(world.node.sign(entries.anchor(HEART, 0, 0, EMPTY_ROOT)))


def test_only_what_was_anchored_is_retired_and_marks_only_rise(bench: Bench, world: World) -> None:
    bench.refuse(world.node.sign(entries.retire(HEART, 0, 1, TREE.root(1))), "not-anchored")
    bench.accept(world.node.sign(entries.anchor(HEART, 0, 5, TREE.root(5))))
    bench.refuse(world.node.sign(entries.retire(HEART, 0, 6, TREE.root(6))), "not-anchored")
    bench.refuse(world.node.sign(entries.retire(HEART, 0, 5, seed("x"))), "wrong-root")
    bench.accept(world.node.sign(entries.retire(HEART, 0, 3, TREE.root(3))))
    bench.refuse(world.node.sign(entries.retire(HEART, 0, 3, TREE.root(3))), "retire-shrinks")
    bench.refuse(world.doctor.sign(entries.retire(HEART, 0, 4, TREE.root(4))), "not-host")
    assert bench.state.get(b"retired/" + HEART + bytes(4))[:2] == [3, TREE.root(3)]


def test_of_two_notaries_the_first_to_continue_the_anchor_wins(bench: Bench, world: World) -> None:
    refused = [Refusal(1, 2, "plain"), Refusal(2, 4, "no-right")]
    bench.accept(world.node.sign(entries.notarise(HEART, 0, 5, TREE.root(5), before=0, refused=refused)))
    bench.refuse(world.node.sign(entries.notarise(HEART, 0, 3, TREE.root(3), before=0)), "anchor-moved", 0)
    bench.refuse(world.node.sign(entries.notarise(HEART, 0, 8, TREE.root(), before=4)), "anchor-moved", 0)
    bench.refuse(world.node.sign(entries.notarise(HEART, 0, 5, seed("x"), before=5)), "anchor-moved", 0)
    bench.refuse(world.doctor.sign(entries.notarise(HEART, 0, 8, TREE.root(), before=5)), "not-host", 0)
    bench.accept(world.node.sign(entries.notarise(HEART, 0, 8, TREE.root(), before=5)))
    found = anchors.find(bench.state, HEART, 0)
    assert found is not None
    assert found[:2] == (8, TREE.root())


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
    bench.accept(world.node.sign(entries.notarise(HEART, 0, 5, TREE.root(5), before=0)))
    bench.refuse(world.node.sign(entries.notarise(HEART, 0, 8, TREE.root(), before=5, refused=refused)), "malformed", 0)


def promise(world: World, offset: int, parcel: bytes, signer: Actor | None = None) -> Promise:
    unsigned = Promise(world.instance, world.node.id, HEART, 0, offset, parcel, 1, NOW_MS)
    return unsigned.sign((signer or world.node).key)


def test_a_promise_that_was_not_kept_in_time_counts_once(bench: Bench, world: World) -> None:
    broken = entries.broken_promise(promise(world, 5, PARCELS[5]))
    bench.accept(world.node.sign(entries.anchor(HEART, 0, 5, TREE.root(5))))
    bench.refuse(world.monitor.sign(broken), "not-due")
    bench.time_ms += 60_001
    bench.accept(world.monitor.sign(broken))
    assert reputation.score(bench.state, world.node.id) == 90
    bench.refuse(world.doctor.sign(broken), "known-evidence")


def test_another_parcel_at_the_promised_offset_convicts(bench: Bench, world: World) -> None:
    bench.accept(world.node.sign(entries.anchor(HEART, 0, 8, TREE.root())))
    path = TREE.inclusion(3, 8)
    kept = entries.broken_promise(promise(world, 3, PARCELS[3]), leaf_hash(PARCELS[3]), path)
    bench.refuse(world.monitor.sign(kept), "promise-kept")
    false = entries.broken_promise(promise(world, 3, seed("swapped")), leaf_hash(PARCELS[2]), path)
    bench.refuse(world.monitor.sign(false), "forged")
    framed = entries.broken_promise(promise(world, 3, seed("swapped"), world.sensor), leaf_hash(PARCELS[3]), path)
    bench.refuse(world.monitor.sign(framed), "forged")
    bench.accept(
        world.monitor.sign(entries.broken_promise(promise(world, 3, seed("swapped")), leaf_hash(PARCELS[3]), path))
    )
    assert reputation.score(bench.state, world.node.id) == 90


# --- groups ---


@pytest.fixture
def grouped(bench: Bench, world: World) -> World:
    """The sensor and the landlord may read `air`, which has four partitions; a group reads it."""
    for reader in (world.sensor, world.landlord, world.monitor):
        bench.accept(world.landlord.sign(entries.grant(AIR, reader.id, Right.READ)))
    bench.accept(world.landlord.sign(entries.group(GROUP, 10_000, [AIR])))
    return world


def group_of(bench: Bench) -> groups.GroupRow:
    found = groups.find(bench.state, GROUP)
    assert found is not None
    return found


def test_partitions_are_dealt_in_turn_and_every_change_raises_the_fence(bench: Bench, grouped: World) -> None:
    bench.accept(grouped.sensor.sign(entries.join(GROUP, ONE)))
    fence = group_of(bench).fence
    bench.accept(grouped.landlord.sign(entries.join(GROUP, TWO)))
    assert group_of(bench).fence == fence + 1
    dealt = groups.deal(bench.state, group_of(bench))
    assert sorted(dealt) == [(AIR, p) for p in range(4)]
    assert len({dealt[AIR, 0], dealt[AIR, 1]}) == 2
    assert dealt == {place: groups.holder(bench.state, group_of(bench), *place) for place in dealt}
    bench.accept(grouped.landlord.sign(entries.join(GROUP, TWO)))
    assert group_of(bench).fence == fence + 1, "renewing a lease changes nothing for the others"
    bench.accept(grouped.landlord.sign(entries.leave(GROUP, TWO)))
    assert set(groups.deal(bench.state, group_of(bench)).values()) == {(grouped.sensor.id, ONE)}
    bench.refuse(grouped.landlord.sign(entries.leave(GROUP, TWO)), "not-member")


def test_an_offset_moves_by_compare_and_set_with_the_fence(bench: Bench, grouped: World) -> None:
    sensor = grouped.sensor
    bench.accept(sensor.sign(entries.join(GROUP, ONE)))
    fence = group_of(bench).fence

    def commit(old: int, new: int, fence: int = fence, partition: int = 0) -> bytes:
        return entries.commit_offset(GROUP, ONE, AIR, partition, fence=fence, old=old, new=new)

    bench.accept(sensor.sign(commit(0, 10)))
    bench.refuse(sensor.sign(commit(0, 12)), "offset-moved")
    bench.refuse(sensor.sign(commit(10, 9)), "offset-back")
    bench.refuse(sensor.sign(commit(10, 12, fence - 1)), "fenced")
    bench.refuse(sensor.sign(commit(0, 1, partition=4)), "unknown-partition")
    assert groups.offset(bench.state, GROUP, AIR, 0) == 10


def test_nobody_else_moves_a_group_s_offsets(bench: Bench, grouped: World) -> None:
    """A broker, another tenant that may read the topic, a member that does not hold the partition."""
    bench.accept(grouped.sensor.sign(entries.join(GROUP, ONE)))
    bench.accept(grouped.landlord.sign(entries.join(GROUP, TWO)))
    group = group_of(bench)
    moved = entries.commit_offset(GROUP, ONE, AIR, 0, fence=group.fence, old=0, new=9)
    bench.refuse(grouped.node.sign(moved), "wrong-tenant")
    bench.refuse(grouped.monitor.sign(moved), "wrong-tenant")
    bench.refuse(grouped.monitor.sign(entries.join(GROUP, ONE)), "wrong-tenant")
    holder = groups.holder(bench.state, group, AIR, 0)
    assert holder is not None
    other = grouped.landlord if holder[0] == grouped.sensor.id else grouped.sensor
    for member in (ONE, TWO):
        stolen = entries.commit_offset(GROUP, member, AIR, 0, fence=group.fence, old=0, new=9)
        bench.refuse(other.sign(stolen), "not-holder")


def test_a_member_whose_lease_ran_out_is_fenced(bench: Bench, grouped: World) -> None:
    bench.accept(grouped.sensor.sign(entries.join(GROUP, ONE)))
    fence = group_of(bench).fence
    bench.time_ms += 10_000
    late = entries.commit_offset(GROUP, ONE, AIR, 0, fence=fence, old=0, new=5)
    bench.refuse(grouped.sensor.sign(late), "fenced")
    bench.accept(grouped.landlord.sign(entries.join(GROUP, TWO)))
    assert [member[1] for member in group_of(bench).members] == [TWO]
    bench.refuse(grouped.sensor.sign(late), "fenced")


def test_going_back_is_its_own_entry_of_the_owner(bench: Bench, grouped: World) -> None:
    bench.accept(grouped.sensor.sign(entries.join(GROUP, ONE)))
    fence = group_of(bench).fence
    bench.accept(grouped.sensor.sign(entries.commit_offset(GROUP, ONE, AIR, 0, fence=fence, old=0, new=50)))
    back = entries.reset_offset(GROUP, AIR, 0, fence=fence, old=50, new=3)
    bench.refuse(grouped.sensor.sign(back), "not-owner")
    bench.accept(grouped.landlord.sign(back))
    bench.refuse(grouped.landlord.sign(back), "offset-moved")
    assert groups.offset(bench.state, GROUP, AIR, 0) == 3


def test_who_may_not_read_makes_and_joins_no_group(bench: Bench, world: World) -> None:
    bench.refuse(world.sensor.sign(entries.group(GROUP, 10_000, [AIR])), "no-right")
    bench.refuse(world.sensor.sign(entries.join(GROUP, ONE)), "unknown-group")
    bench.accept(world.landlord.sign(entries.grant(AIR, world.landlord.id, Right.READ)))
    bench.refuse(world.landlord.sign(entries.group(GROUP, 1, [AIR])), "out-of-range")
    bench.accept(world.landlord.sign(entries.group(GROUP, 10_000, [AIR])))
    bench.refuse(world.landlord.sign(entries.group(GROUP, 10_000, [AIR])), "group-exists")
    bench.refuse(world.sensor.sign(entries.join(GROUP, ONE)), "no-right")


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
    bench.accept(world.sensor.sign(proof))
    assert reputation.is_blacklisted(bench.state, world.monitor.id)
    bench.refuse(world.doctor.sign(proof), "known-evidence")


def test_false_evidence_convicts_nobody(bench: Bench, world: World) -> None:
    one, other = header(world, "one story"), header(world, "another")
    bench.refuse(world.sensor.sign(evidence(world, one, one)), "forged")
    bench.refuse(world.sensor.sign(evidence(world, one, header(world, "another", sequence=5))), "forged")
    bench.refuse(world.sensor.sign(evidence(world, one, other, world.sensor.key)), "false-evidence")
    assert not reputation.is_blacklisted(bench.state, world.monitor.id)


def test_evidence_under_a_key_that_was_replaced_since_still_convicts(bench: Bench, world: World) -> None:
    proof = evidence(world, header(world, "one story"), header(world, "another"))
    certificate = world.certify(
        SigningKey.from_seed(seed("new")),
        SubjectKind.PRINCIPAL,
        world.monitor.certificate.tenant,
        subject=world.monitor.id,
    )
    bench.accept(world.monitor.sign(entries.replace(certificate)))
    bench.accept(world.sensor.sign(proof))
    assert reputation.is_blacklisted(bench.state, world.monitor.id)


def test_a_group_of_a_blacklisted_principal_takes_no_more_part(bench: Bench, grouped: World) -> None:
    equivocated = evidence(grouped, header(grouped, "a"), header(grouped, "b"))
    bench.accept(grouped.sensor.sign(equivocated))
    bench.refuse(grouped.monitor.sign(entries.group(seed("g")[:16], 10_000, [AIR])), "blacklisted")
