"""Who orders a partition of a topic that travels over an overlay: one relay at a time, by a lease with a fence."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_world import NOW_MS, Bench, World, seed, token
from ledger_world import bench as bench
from ledger_world import world as world
from overlay_ledger import EDGE, HEART, LEASE_MS, OVERLAY, RIM, OverlayWorld, anchored, without_relay
from without import without

from tallystick.crypto.merkle import Tree, leaf_hash
from tallystick.ledger import entries
from tallystick.ledger.contracts import anchors, leases, reputation
from tallystick.ledger.contracts.operations import OperatorRole
from tallystick.trust.certificate import ALL_TENANTS, SubjectKind
from tallystick.trust.promise import Promise
from tallystick.trust.right import Right

AIR = token("air")
TREE = Tree([leaf_hash(seed(f"parcel {number}")) for number in range(8)])


@pytest.fixture
def overlay(bench: Bench, world: World) -> OverlayWorld:
    found = OverlayWorld(world)
    found.stand(bench)
    return found


def take(fence: int, partition: int = 0) -> bytes:
    return entries.lease(HEART, partition, fence)


def anchor(overlay: OverlayWorld, size: int, story: str = "", fence: int = 1, **change: Any) -> bytes:
    return anchored(overlay, size, TREE.root(size) if not story else seed(story), fence, **change)


def suspect(relay: bytes, version: int = 1) -> bytes:
    return entries.suspect(OVERLAY, version, relay)


def holder(bench: Bench) -> tuple[bytes, int] | None:
    found = leases.find(bench.state.row, HEART, 0, bench.time_ms)
    return None if found is None else found[:2]


def test_a_lease_is_taken_once_renewed_by_its_holder_and_free_when_it_ran_out(
    bench: Bench, overlay: OverlayWorld
) -> None:
    one, two, _ = overlay.edge
    assert holder(bench) is None
    bench.play(
        (one, take(1), None),
        (two, take(1), "fenced"),  # of two that reached for it the first has it
        (two, take(2), "lease-held"),
        (one, take(2), "fenced"),  # renewed with the fence that stands there
        (one, take(1), None),
    )
    bench.time_ms += LEASE_MS - 1
    bench.play((two, take(2), "lease-held"), (one, take(1), None))
    bench.time_ms += LEASE_MS
    assert holder(bench) is None
    bench.play((one, take(1), "fenced"), (two, take(2), None), (one, take(3), "lease-held"))
    assert holder(bench) == (two.id, 2)


def test_only_relays_of_the_virtual_node_at_the_publishers_edge_take_it(bench: Bench, overlay: OverlayWorld) -> None:
    world = overlay.world
    bench.play(
        (overlay.hub[0], take(1), "not-relay"),
        (world.node, take(1), "not-relay"),  # the topic's own node
        (world.doctor, take(1), "not-relay"),
        (overlay.edge[0], take(1, partition=1), "unknown-partition"),
        (overlay.edge[0], entries.lease(AIR, 0, 1), "not-entrusted"),
        (overlay.edge[0], entries.lease(seed("none")[:16], 0, 1), "unknown-topic"),
        (overlay.edge[0], take(0), "malformed"),
        (overlay.edge[0], take(1), None),
    )


def test_only_the_holder_anchors_and_a_stale_one_does_not(bench: Bench, overlay: OverlayWorld) -> None:
    (one, two, _), node = overlay.edge, overlay.world.node
    bench.play(
        (one, anchor(overlay, 1), "not-host"),
        (node, anchor(overlay, 1), "not-host"),  # whom the topic was taken from
        (one, [take(1), anchor(overlay, 2)], None),
        (two, anchor(overlay, 3), "not-host"),
        (one, entries.notarise(HEART, 0, 3, TREE.root(3), before=2), "not-joint"),
        (one, entries.anchor(HEART, 0, 3, TREE.root(3)), "not-joint"),
    )
    bench.time_ms += LEASE_MS
    bench.play(
        (one, anchor(overlay, 4), "not-host"),  # its time is over, though nobody has taken it
        (two, [take(2), anchor(overlay, 5, fence=2, before=2)], None),
        (one, anchor(overlay, 6), "not-host"),
        (one, entries.retire(HEART, 0, 1, TREE.root(1)), "not-host"),
        (two, anchor(overlay, 5, "another", 2, before=2), "anchor-moved"),  # the first anchor stands
    )
    found = anchors.find(bench.state, HEART, 0)
    assert found is not None
    assert (found.size, found.author) == (5, two.id)


def test_what_was_signed_under_an_earlier_fence_comes_too_late(bench: Bench, overlay: OverlayWorld) -> None:
    """Held back on its way, while another ordered: its author has the lease again, and the numbers tell."""
    one, two, _ = overlay.edge
    bench.play((one, take(1), None))
    late = one.sign(anchor(overlay, 7, "what nobody follows any more"))
    bench.time_ms += LEASE_MS
    bench.play((two, [take(2), anchor(overlay, 5, fence=2)], None))
    bench.time_ms += LEASE_MS
    bench.play((one, take(3), None))
    bench.refuse(late, "replayed")
    bench.play((one, anchor(overlay, 8, fence=3, before=5), None))


def test_without_the_holder_s_claim_a_lease_is_anybody_s(bench: Bench, overlay: OverlayWorld) -> None:
    one, two, _ = overlay.edge
    with without("the claim of a lease's holder"):
        bench.play((one, take(1), None), (two, take(2), None), (one, take(3), None))


def test_without_its_end_a_silent_holder_orders_for_ever(bench: Bench, overlay: OverlayWorld) -> None:
    one, two, _ = overlay.edge
    bench.play((one, take(1), None))
    bench.time_ms += 1_000 * LEASE_MS
    with without("the end of a lease"):
        bench.play((two, take(2), "lease-held"), (one, anchor(overlay, 1), None))


def test_ordinary_topics_and_nodes_are_as_they_were(bench: Bench, overlay: OverlayWorld) -> None:
    world = overlay.world
    bench.play(
        (world.node, entries.anchor(AIR, 0, 1, TREE.root(1)), None),
        (overlay.edge[0], entries.anchor(AIR, 0, 2, TREE.root(2)), "not-host"),
        (overlay.edge[0], [take(1), anchor(overlay, 1)], None),
        (world.doctor, entries.take_back(HEART), None),
        (overlay.edge[0], anchor(overlay, 2), "not-host"),
        (overlay.edge[0], take(1), "not-entrusted"),
        (world.node, entries.anchor(HEART, 0, 2, TREE.root(2)), None),
    )


def test_nobody_is_blamed_for_a_promise_on_a_topic_that_moved(bench: Bench, overlay: OverlayWorld) -> None:
    """Else an owner could ruin any node's name: take a promise, and then the topic."""
    world = overlay.world
    told = (1, seed("never"), bench.height, bench.time_ms)
    first, other = (Promise(world.instance, world.node.id, AIR, n, *told).sign(world.node.key) for n in (0, 1))
    bench.time_ms += 1_000
    bench.play((world.landlord, entries.entrust(AIR, OVERLAY, EDGE, LEASE_MS), None))
    bench.time_ms += 60_000
    bench.play((world.landlord, entries.broken_promise(first), "taken-away"))
    bench.time_ms += 60_000
    bench.play(
        (world.landlord, entries.take_back(AIR), None),
        (world.landlord, entries.broken_promise(other), "taken-away"),
    )
    assert reputation.score(bench.state, world.node.id) == 100


def test_a_topic_that_moved_leaves_old_leases_behind(bench: Bench, overlay: OverlayWorld) -> None:
    old, new = overlay.edge[0], overlay.rim[0]
    bench.play(
        (old, take(1), None),
        (overlay.world.doctor, entries.entrust(HEART, OVERLAY, RIM, LEASE_MS), None),
        (old, anchor(overlay, 1), "not-host"),
        (old, take(1), "not-relay"),
        (new, [take(2), anchor(overlay, 1, fence=2, node=RIM)], None),
        (overlay.world.doctor, entries.entrust(HEART, OVERLAY, EDGE, LEASE_MS), None),
        (new, anchor(overlay, 2), "not-host"),
        (old, [take(3), anchor(overlay, 2, fence=3, before=1)], None),
    )


def test_an_anchor_counts_by_f_plus_one_signatures_under_the_lease_in_force(
    bench: Bench, overlay: OverlayWorld
) -> None:
    """Its holder alone could anchor what nobody has: nothing would ever be proved in the partition again."""
    one = overlay.edge[0]
    bench.play(
        (one, take(1), None),
        (one, anchor(overlay, 1, signers=(1,)), "forged"),
        (one, anchor(overlay, 1, "junk", signers=(1,)), "forged"),
        (one, anchor(overlay, 1, node=RIM), "forged"),
        (one, anchor(overlay, 1, fence=2), "fenced"),
        (one, anchor(overlay, 1, plan=2), "no-plan"),
        (one, anchor(overlay, 1, signers=(2, 3)), None),
    )


def test_without_the_others_signatures_a_holder_anchors_what_nobody_has(bench: Bench, overlay: OverlayWorld) -> None:
    one = overlay.edge[0]
    with without("the signatures of an anchor"):
        bench.play((one, take(1), None), (one, anchor(overlay, 1, "junk", signers=(1,)), None))


def forked(overlay: OverlayWorld) -> tuple[bytes, bytes]:
    """What the holder got from two honest relays that keep different parcels, since it forked its promises."""
    return anchor(overlay, 3, signers=(1, 2)), anchor(overlay, 4, "what only the third has", signers=(1, 3))


def test_of_two_anchors_that_do_not_continue_each_other_the_second_is_late(bench: Bench, overlay: OverlayWorld) -> None:
    one, (first, second) = overlay.edge[0], forked(overlay)
    bench.play((one, take(1), None), (one, first, None), (one, second, "anchor-moved"), (one, first, "anchor-moved"))
    bench.play((one, anchor(overlay, 3, before=3), "anchor-moved"), (one, anchor(overlay, 4, before=3), None))


def test_without_the_size_it_continues_a_liar_anchors_a_tree_that_nobody_can_prove(
    bench: Bench, overlay: OverlayWorld
) -> None:
    one, (first, second) = overlay.edge[0], forked(overlay)
    with without("the size that an anchor continues"):
        bench.play((one, take(1), None), (one, first, None), (one, second, None))


def test_relays_write_the_operations_and_no_other_node(bench: Bench, overlay: OverlayWorld) -> None:
    one, two, _ = overlay.edge
    act = entries.operation(
        overlay.world.monitor.id, OperatorRole.PUBLISHER, HEART, Right.WRITE, time_ms=NOW_MS, request=seed("request")
    )
    bench.play(
        (one, take(1), None), (two, act, None), (overlay.rim[0], act, None), (overlay.world.node, act, "not-host")
    )


# --- a holder that is silent ---


def test_f_plus_one_relays_of_its_virtual_node_take_the_lease_from_a_silent_holder(
    bench: Bench, overlay: OverlayWorld
) -> None:
    silent, two, three = overlay.edge
    bench.play(
        (silent, take(1), None),
        (two, suspect(silent.id), None),
        (two, take(2), "lease-held"),  # one liar is not enough
        (three, suspect(silent.id), None),
        (silent, take(1), "suspected"),
        (two, [take(2), anchor(overlay, 1, fence=2)], None),
        (silent, anchor(overlay, 2), "not-host"),
        (silent, take(3), "suspected"),  # it does not take it back
    )
    assert reputation.score(bench.state, silent.id) == 100


def test_where_all_are_suspected_the_lease_still_runs_out(bench: Bench, overlay: OverlayWorld) -> None:
    """A network that was cut makes everybody suspect everybody; there is progress all the same."""
    one, two, three = overlay.edge
    for accuser, accused in ((one, two), (three, two), (one, three), (two, three), (two, one), (three, one)):
        bench.play((accuser, suspect(accused.id), None))
    bench.play((one, take(1), None), (two, take(2), "suspected"))
    bench.time_ms += LEASE_MS
    bench.play((two, take(2), None))


def test_a_holder_that_the_next_plan_or_the_ledger_has_no_more_loses_it(bench: Bench, overlay: OverlayWorld) -> None:
    world, (one, two, three) = overlay.world, overlay.edge
    spare = world.actor("spare", SubjectKind.NODE, ALL_TENANTS)
    bench.play((one, take(1), None), (spare, entries.enrol(spare.certificate), None))
    overlay.bring_plan(bench, without_relay(overlay.plan(), one, spare, 2))
    bench.play(
        (one, take(1), "not-relay"),
        (spare, take(2), None),
        (world.authority, entries.revoke(spare.id), None),
        (two, take(3), None),
        (three, take(4), "lease-held"),
    )


def test_nobody_is_blamed_for_a_promise_whose_lease_was_taken(bench: Bench, overlay: OverlayWorld) -> None:
    world, (one, two, three) = overlay.world, overlay.edge

    def broken(relay: bytes, offset: int) -> Promise:
        return Promise(world.instance, relay, HEART, 0, offset, seed("never"), bench.height, bench.time_ms)

    bench.play((one, take(1), None))
    taken = broken(one.id, 1).sign(one.key)
    bench.play((two, suspect(one.id), None), (three, suspect(one.id), None), (two, take(2), None))
    own = broken(two.id, 2).sign(two.key)
    bench.time_ms += 60_001
    bench.play(
        (world.doctor, entries.broken_promise(taken), "taken-away"),
        (world.doctor, entries.broken_promise(own), None),
    )
    assert (reputation.score(bench.state, one.id), reputation.score(bench.state, two.id)) == (100, 90)
