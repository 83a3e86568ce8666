"""Overlays and their plans on the ledger: founded by the operator, changed by a threshold of administrators alone."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from ledger_world import ROLES, Actor, Bench, World, seed
from ledger_world import bench as bench
from ledger_world import world as world
from overlay_ledger import EDGE, HEART, LEASE_MS, OVERLAY, OverlayWorld, without_relay
from without import without

from tallystick import wire
from tallystick.ledger import entries
from tallystick.ledger.block import parse
from tallystick.ledger.contracts import identity, plans
from tallystick.ledger.contracts.plans import MARGIN_BLOCKS, PLANS_KEPT, plan_at
from tallystick.trust.certificate import ALL_TENANTS, SubjectKind
from tallystick.trust.plan import NODES_MAX, PLAN_BYTES_MAX, RELAYS_MIN, Plan, Relay, VirtualNode


@pytest.fixture
def overlay(bench: Bench, world: World) -> OverlayWorld:
    """Everybody enrolled and the contracts in force; nothing founded."""
    found = OverlayWorld(world)
    bench.bring_into_force()
    bench.accept(world.authority.sign(*found.enrolment()))
    return found


@pytest.fixture
def founded(bench: Bench, overlay: OverlayWorld) -> OverlayWorld:
    bench.accept(overlay.world.authority.sign(overlay.founding()))
    return overlay


@pytest.fixture
def standing(bench: Bench, world: World) -> OverlayWorld:
    found = OverlayWorld(world)
    found.stand(bench)
    return found


def ahead(bench: Bench) -> int:
    """A first height for the plan that runs in `play`'s next row."""
    return bench.height + MARGIN_BLOCKS + 8


# --- founding ---


@pytest.mark.parametrize("role", ROLES)
def test_the_operator_founds_an_overlay_and_nobody_else(bench: Bench, overlay: OverlayWorld, role: str) -> None:
    bench.play(overlay.world.row(role, "authority", overlay.founding(), "not-operator"))


def test_before_their_activation_the_contracts_have_no_entries() -> None:
    bench = Bench()
    bench.refuse(bench.world.authority.sign(OverlayWorld(bench.world).founding()), "unknown-kind")


def test_administrators_are_live_principals_each_once(bench: Bench, overlay: OverlayWorld) -> None:
    authority, (one, two, three) = overlay.world.authority, (actor.id for actor in overlay.administrators)
    node = overlay.edge[0].id
    twice = wire.encode([90, OVERLAY, 1, [one, one], 1, []])
    bench.play(
        (authority, entries.overlay(OVERLAY, [one, node], 1), "not-principal"),
        (authority, entries.overlay(OVERLAY, [one, seed("nobody")[:16]], 1), "unknown-identity"),
        (authority, twice, "malformed"),
        (authority, entries.overlay(OVERLAY, [one, two], 3), "malformed"),
        (authority, entries.overlay(OVERLAY, [one, two], 0), "malformed"),
        (authority, entries.overlay(bytes(16), [one], 1), "malformed"),
        (authority, entries.overlay(OVERLAY, [one], 1, number=2), "wrong-version"),
        (authority, entries.revoke(two), None),
        (authority, entries.overlay(OVERLAY, [one, two], 1), "revoked"),
        (authority, entries.overlay(OVERLAY, [one, three], 1), None),
    )


def test_new_administrators_need_the_old_threshold(bench: Bench, founded: OverlayWorld) -> None:
    world, (one, two, three) = founded.world, founded.administrators
    new = [two.id, world.doctor.id]

    def changed(*by: Actor, number: int = 2, instance: bytes = world.instance, threshold: int = 1) -> bytes:
        named = (instance, OVERLAY, number, new, 1)
        signed = [entries.sign_administrators(*named, by=actor.id, key=actor.key) for actor in by]
        return entries.overlay(OVERLAY, new, threshold, number=number, signatures=signed)

    bench.play(
        (world.authority, changed(), "too-few-signatures"),  # not even the operator's word
        (one, changed(one), "too-few-signatures"),
        (one, changed(one, world.doctor), "not-administrator"),  # those who are to come have no say
        (one, changed(one, two, instance=seed("another instance")), "forged"),
        (one, changed(one, two, threshold=2), "forged"),  # not what was signed
        (one, changed(one, two, number=3), "wrong-version"),
        (world.sensor, changed(one, three), None),  # whoever brings it
        (world.sensor, changed(one, three), "wrong-version"),
    )
    row = plans.require(bench.state, OVERLAY)
    assert (row.number, row.administrators, row.threshold) == (2, sorted(new), 1)


def test_an_old_list_of_administrators_is_not_brought_back(bench: Bench, founded: OverlayWorld) -> None:
    instance, (one, two, three) = founded.world.instance, founded.administrators
    both, others = [one.id, two.id], [two.id, three.id]

    def signed(names: list[bytes], number: int, *by: Actor) -> bytes:
        named = (instance, OVERLAY, number, names, 2)
        words = [entries.sign_administrators(*named, by=actor.id, key=actor.key) for actor in by]
        return entries.overlay(OVERLAY, names, 2, number=number, signatures=words)

    first = signed(both, 2, one, two)
    bench.play(
        (one, first, None),
        (one, signed(others, 3, one, two), None),
        (one, first, "wrong-version"),
        (one, signed(both, 4, one, two), "not-administrator"),
    )


# --- plans ---


def test_a_plan_counts_from_its_height_on_and_not_before(bench: Bench, founded: OverlayWorld) -> None:
    first = ahead(bench)
    plan = founded.plan()
    bench.play((founded.world.sensor, founded.signed(plan, first), None))  # whoever brings it
    assert plan_at(bench.state.row, OVERLAY, first - 1) is None
    assert plan_at(bench.state.row, OVERLAY, first) == plan
    assert plans.find_plan(bench.state.row, OVERLAY, 1) == plan
    assert plans.find_plan(bench.state.row, OVERLAY, 2) is None


def test_a_plan_needs_a_threshold_of_administrators(bench: Bench, founded: OverlayWorld) -> None:
    (one, two, three), plan, first = founded.administrators, founded.plan(), ahead(bench)
    other = replace(plan, nodes=plan.nodes[:1])
    word = entries.sign_plan(founded.world.instance, plan, first, one.id, one.key)
    twice = entries.plan(plan, first, [word, word])
    borrowed = entries.plan(plan, first, [word, (two.id, word[1])])
    stretched = wire.decode(founded.signed(plan, first))
    stretched[2] += 1_000_000
    bench.play(
        (one, founded.signed(plan, first, by=[]), "too-few-signatures"),
        (one, founded.signed(plan, first, by=[one]), "too-few-signatures"),
        (one, twice, "malformed"),
        (one, borrowed, "forged"),
        (one, founded.signed(plan, first, by=[one, founded.world.doctor]), "not-administrator"),
        (one, founded.signed(plan, first, instance=seed("another instance")), "forged"),
        (one, wire.encode([91, other.encode(), *wire.decode(founded.signed(plan, first))[2:]]), "forged"),
        (one, wire.encode(stretched), "forged"),  # whoever brings it does not choose the height
        (one, founded.signed(plan, first, by=[two, three]), None),
    )


def test_without_the_threshold_a_stranger_seats_whom_it_likes(bench: Bench, founded: OverlayWorld) -> None:
    with without("the threshold of administrators"):
        bench.play((founded.world.sensor, founded.signed(founded.plan(), ahead(bench), by=[]), None))


def test_a_revoked_administrator_signs_nothing(bench: Bench, founded: OverlayWorld) -> None:
    (one, two, three), plan, first = founded.administrators, founded.plan(), ahead(bench)
    bench.play(
        (founded.world.authority, entries.revoke(two.id), None),
        (one, founded.signed(plan, first, by=[one, two]), "revoked"),
        (one, founded.signed(plan, first, by=[one, three]), None),
    )


def test_versions_count_up_and_no_plan_comes_twice(bench: Bench, founded: OverlayWorld) -> None:
    one, first = founded.administrators[0], ahead(bench)
    old = founded.signed(founded.plan(), first)
    bench.play(
        (one, founded.signed(founded.plan(2), first), "wrong-version"),
        (one, founded.signed(founded.plan(0), first), "wrong-version"),
        (one, old, None),
        (one, old, "wrong-version"),
        (one, founded.signed(founded.plan(3), first + 1), "wrong-version"),
        (one, founded.signed(founded.plan(2), first), "out-of-range"),  # each version counts for a block at least
        (one, founded.signed(founded.plan(2), first + 1), None),
        (one, old, "wrong-version"),
    )
    for height, version in ((first - 1, None), (first, 1), (first + 1, 2), (first + 99, 2)):
        found = plan_at(bench.state.row, OVERLAY, height)
        assert (None if found is None else found.version) == version


def test_everybody_hears_of_a_plan_before_it_counts(bench: Bench, founded: OverlayWorld) -> None:
    soon = bench.height + 1 + MARGIN_BLOCKS
    bench.play(
        (founded.administrators[0], founded.signed(founded.plan(), soon - 2), "out-of-range"),
        (founded.administrators[0], founded.signed(founded.plan(), soon), None),
    )


def test_relays_are_live_nodes_with_the_key_that_the_plan_names(bench: Bench, founded: OverlayWorld) -> None:
    world, plan, one = founded.world, founded.plan(), founded.administrators[0]
    seated, spare = founded.edge[0], world.actor("spare", SubjectKind.NODE, ALL_TENANTS)
    first = ahead(bench)
    stolen = replace(spare, certificate=world.node.certificate)  # the node's name with another key

    def with_(relay: Actor) -> bytes:
        return founded.signed(without_relay(plan, seated, relay, 1), first)

    bench.play(
        (one, with_(spare), "unknown-identity"),
        (one, with_(world.doctor), "not-node"),
        (one, with_(world.authority), "not-node"),
        (one, with_(stolen), "wrong-key"),
        (spare, entries.enrol(spare.certificate), None),
        (world.authority, entries.revoke(spare.id), None),
        (one, with_(spare), "revoked"),
        (one, with_(world.node), None),
    )


def test_without_their_enrolment_a_plan_hands_shares_to_anybody(bench: Bench, founded: OverlayWorld) -> None:
    thief = founded.world.stranger
    plan = without_relay(founded.plan(), founded.edge[0], thief, 1)
    with without("the enrolment of relays"):
        bench.play((founded.administrators[0], founded.signed(plan, ahead(bench)), None))
    assert plan_at(bench.state.row, OVERLAY, bench.height + 99) == plan


def test_a_relay_serves_one_overlay_and_never_another(bench: Bench, founded: OverlayWorld) -> None:
    """What relays sign names a version and no overlay: in two of them an honest one would contradict itself."""
    one, first, other = founded.administrators[0], ahead(bench), seed("another overlay")[:16]
    bench.play(
        (founded.world.authority, founded.founding(overlay=other), None),
        (one, founded.signed(founded.plan(), first), None),
        (one, founded.signed(founded.plan(overlay=other), first), "other-overlay"),
    )


@pytest.mark.parametrize("waiting", [True, False])
def test_eight_versions_are_kept_and_the_one_in_force_is_never_lost(
    bench: Bench, standing: OverlayWorld, waiting: bool
) -> None:
    one, first = standing.administrators[0], bench.height + 100
    for version in range(2, PLANS_KEPT + 2):
        if waiting and version > PLANS_KEPT:
            bench.refuse(one.sign(standing.signed(standing.plan(version), first + version)), "too-many-plans")
        elif waiting:
            bench.accept(one.sign(standing.signed(standing.plan(version), first + version)))
        else:
            standing.bring_plan(bench, standing.plan(version))
    kept = [version for version in range(20) if plans.find_plan(bench.state.row, OVERLAY, version)]
    assert kept == (list(range(1, 9)) if waiting else list(range(2, 10)))
    found = plan_at(bench.state.row, OVERLAY, bench.height)
    assert found is not None
    assert found.version == (1 if waiting else 9)


def test_a_plan_of_any_size_is_bounded_before_it_is_read(bench: Bench, founded: OverlayWorld) -> None:
    one = founded.administrators[0]
    bench.play(
        (one, wire.encode([91, bytes(PLAN_BYTES_MAX + 1), 1_000, []]), "malformed"),
        (one, wire.encode([91, b"plan", 1_000, []]), "malformed"),
        (one, founded.signed(founded.plan(overlay=seed("none")[:16]), ahead(bench)), "unknown-overlay"),
    )


def test_a_relay_with_a_new_key_needs_a_new_plan(bench: Bench, standing: OverlayWorld) -> None:
    world, relay = standing.world, standing.edge[0]
    key = world.actor("new key", SubjectKind.NODE, ALL_TENANTS).key
    certificate = world.certify(key, SubjectKind.NODE, ALL_TENANTS, subject=relay.id)
    bench.accept(relay.sign(entries.replace(certificate)))
    bench.refuse(standing.administrators[0].sign(standing.signed(standing.plan(2), ahead(bench))), "wrong-key")
    relay.key = key
    assert identity.require(bench.state, relay.id).key == key.public.raw
    standing.bring_plan(bench, standing.plan(2))


# --- topics ---


@pytest.mark.parametrize("role", ROLES)
def test_its_owner_entrusts_a_topic_to_an_overlay(bench: Bench, standing: OverlayWorld, role: str) -> None:
    world = standing.world
    bench.play(
        world.row(role, "doctor authority", entries.take_back(HEART), "not-owner"),
        world.row(role, "doctor authority", entries.entrust(HEART, OVERLAY, EDGE, LEASE_MS + 1), "not-owner"),
    )


def test_a_topic_goes_to_a_virtual_node_that_the_plan_has(bench: Bench, standing: OverlayWorld) -> None:
    doctor, none = standing.world.doctor, seed("none")[:16]
    bench.play(
        (doctor, entries.entrust(HEART, OVERLAY, EDGE, LEASE_MS), "unchanged"),
        (doctor, entries.entrust(HEART, OVERLAY, none, LEASE_MS), "unknown-node"),
        (doctor, entries.entrust(HEART, none, EDGE, LEASE_MS), "no-plan"),
        (doctor, entries.entrust(HEART, OVERLAY, EDGE, 1), "out-of-range"),
        (doctor, entries.entrust(HEART, bytes(16), EDGE, 0), "malformed"),
        (doctor, entries.entrust(none, OVERLAY, EDGE, LEASE_MS), "unknown-topic"),
        (doctor, entries.take_back(HEART), None),
        (doctor, entries.take_back(HEART), "unchanged"),
    )


def test_a_plan_of_the_most_virtual_nodes_fits_into_a_transaction(world: World) -> None:
    overlay, random = OverlayWorld(world), Random(1)

    def relay() -> Relay:
        keys = (random.randbytes(16), random.randbytes(32), random.randbytes(32))
        return Relay(*keys, f"relay-{random.getrandbits(32)}.example:7000", "an operator", "a host")

    nodes = [
        VirtualNode(random.randbytes(16), b"", tuple(relay() for _ in range(RELAYS_MIN))) for _ in range(NODES_MAX)
    ]
    root, *others = nodes
    plan = Plan(OVERLAY, 1, (root, *(replace(node, parent=root.identifier) for node in others)))
    assert PLAN_BYTES_MAX // 2 < len(plan.encode()) < PLAN_BYTES_MAX
    signed = overlay.administrators[0].sign(overlay.signed(plan, 100, by=overlay.administrators))
    assert Plan.decode(next(parse(signed.data).decode_entries(0, 1))[1]) == plan
