"""Two origins of one lane key, and two parcels for one place, convict whoever signed both, and nobody else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ledger_world import Actor, Bench, World, seed
from ledger_world import bench as bench
from ledger_world import world as world
from overlay_ledger import HUB, OVERLAY, OverlayWorld, ordered, originated, without_relay
from without import without

from tallystick import wire
from tallystick.ledger import entries
from tallystick.ledger.contracts import blame, plans, reputation
from tallystick.trust.certificate import ALL_TENANTS, SubjectKind
from tallystick.trust.promise import JointPromise
from tallystick.trust.shares import Origin


@pytest.fixture
def overlay(bench: Bench, world: World) -> OverlayWorld:
    found = OverlayWorld(world)
    found.stand(bench)
    return found


def score(bench: Bench, who: Actor) -> int:
    return reputation.score(bench.state, who.id)


def two_origins(liar: Actor, one: Origin, other: Origin) -> bytes:
    return entries.two_origins(liar.id, liar.key.public.raw, one, other)


def two_orders(liar: Actor, index: int, one: JointPromise, other: JointPromise) -> bytes:
    return entries.two_orders(liar.id, liar.key.public.raw, index, one, other)


# --- origins ---


def test_a_publisher_with_two_origins_for_a_lane_key_is_convicted_once(bench: Bench, overlay: OverlayWorld) -> None:
    liar, relay = overlay.world.monitor, overlay.edge[0]
    one, other, third = (originated(liar, story=story) for story in ("", "another", "a third"))
    elsewhere = replace(one, edge=HUB).sign(liar.key)
    bench.play(
        (relay, two_origins(liar, one, other), None),
        (relay, two_origins(liar, other, one), "known-evidence"),
        (relay, two_origins(liar, one, third), "known-evidence"),
        (relay, two_origins(liar, one, elsewhere), "known-evidence"),
        (relay, two_origins(liar, originated(liar, "lane 2"), originated(liar, "lane 2", "b")), None),
    )
    assert (score(bench, liar), bench.state.row(blame.FAULTS(liar.id))) == (80, None)


def test_what_is_no_second_origin_proves_nothing(bench: Bench, overlay: OverlayWorld) -> None:
    honest, liar = overlay.world.monitor, overlay.edge[0]
    one = originated(honest)
    mine = replace(originated(honest, story="b"), signature=one.signature)
    in_its_name = [originated(honest, story=story).sign(liar.key) for story in ("", "b")]
    bench.play(
        (liar, two_origins(honest, one, one), "false-evidence"),
        (liar, two_origins(honest, one, Origin.decode(one.encode())), "false-evidence"),
        (liar, two_origins(honest, one, originated(honest, "lane 2")), "false-evidence"),
        (liar, two_origins(honest, one, replace(one, created_ms=8).sign(honest.key)), "false-evidence"),
        (liar, two_origins(honest, one, mine), "forged"),
        (liar, two_origins(honest, *in_its_name), "forged"),
        (liar, two_origins(liar, *in_its_name), "false-evidence"),  # of a lane key that is not the signer's
        (liar, entries.two_origins(honest.id, liar.key.public.raw, *in_its_name), "false-evidence"),
        (liar, wire.encode([98, honest.id, honest.key.public.raw, one.encode(), b"x"]), "malformed"),
    )
    assert (score(bench, honest), score(bench, liar)) == (100, 100)


# --- orders ---


def test_a_relay_with_two_parcels_for_a_place_is_convicted_once(bench: Bench, overlay: OverlayWorld) -> None:
    liar, other = overlay.edge[:2]
    one, two, three = (ordered(overlay, name, 1) for name in ("one", "two", "three"))
    bench.play(
        (other, two_orders(liar, 1, one, ordered(overlay, "two", 1, 2, 3)), None),  # whoever else signed one of them
        (other, two_orders(liar, 1, two, one), "known-evidence"),
        (other, two_orders(liar, 1, one, three), "known-evidence"),
        (other, two_orders(liar, 1, one, ordered(overlay, "two", 1, height=9, time_ms=9)), "known-evidence"),
        (other, two_orders(liar, 1, *(ordered(overlay, name, 1, fence=2) for name in ("one", "two"))), None),
        (other, two_orders(liar, 1, *(ordered(overlay, name, 1, offset=1) for name in ("one", "two"))), None),
    )
    assert [score(bench, one) for one in overlay.edge] == [70, 100, 100]
    assert blame.is_suspected(bench.state.row, liar.id, 1)  # so the lease goes to another


HONEST: list[dict[str, Any]] = [
    {"parcel": seed("two"), "fence": 2},  # a new orderer ordered anew what was not counted
    {"parcel": seed("two"), "plan": 2},
    {"parcel": seed("two"), "offset": 1},
    {"parcel": seed("two"), "partition": 1},
    {"parcel": seed("two"), "token": bytes(16)},
    {"height": 9},  # the same parcel, told again with another block
    {"time_ms": 9},
    {"height": 9, "time_ms": 9, "fence": 2},
    {},
]


@pytest.mark.parametrize("change", HONEST, ids=["/".join(change) or "none" for change in HONEST])
def test_a_relay_that_signs_one_parcel_for_a_place_is_safe(
    bench: Bench, overlay: OverlayWorld, change: dict[str, Any]
) -> None:
    one, other = ordered(overlay, "one", 1, 2), ordered(overlay, "one", 1, 2, 3, **change)
    for index, relay in enumerate(overlay.edge[:2], start=1):
        bench.play((overlay.edge[2], two_orders(relay, index, one, other), "false-evidence"))
        assert score(bench, relay) == 100


def test_without_the_fence_an_honest_relay_is_convicted_for_the_next_order(bench: Bench, overlay: OverlayWorld) -> None:
    honest, liar = overlay.edge[:2]
    one, other = ordered(overlay, "one", 1), ordered(overlay, "two", 1, fence=2)
    with without("the fence of a promised place"):
        bench.play((liar, two_orders(honest, 1, one, other), None))
    assert score(bench, honest) == 90


def test_what_a_liar_signs_itself_convicts_nobody_else(bench: Bench, overlay: OverlayWorld) -> None:
    honest, liar = overlay.edge[:2]
    one, other = ordered(overlay, "one", 1, 2), ordered(overlay, "two", 2, 3)
    (_, good), (_, mine) = one.signatures
    relabelled = replace(other, signatures=((1, mine),))  # an index is not signed: it may be any
    moved = replace(other, signatures=((1, good),))
    stolen = [replace(ordered(overlay, name), signatures=((1, mine),)) for name in ("one", "two")]
    lying = [ordered(overlay, name, 2) for name in ("one", "two")]
    as_first = [replace(promise, signatures=((1, promise.signatures[0][1]),)) for promise in lying]
    bench.play(
        (liar, two_orders(honest, 1, one, other), "false-evidence"),  # it did not sign the second
        (liar, two_orders(honest, 1, one, relabelled), "forged"),
        (liar, two_orders(honest, 1, one, moved), "forged"),
        (liar, two_orders(honest, 1, *stolen), "forged"),
        (liar, two_orders(honest, 2, *lying), "false-evidence"),  # the plan has another relay there
        (liar, two_orders(honest, 1, *as_first), "forged"),
        (liar, entries.two_orders(honest.id, liar.key.public.raw, 1, *as_first), "false-evidence"),  # not its key
        (liar, wire.encode([99, honest.id, honest.key.public.raw, 0, one.encode(), other.encode()]), "malformed"),
        (liar, wire.encode([99, honest.id, honest.key.public.raw, 1, one.encode(), b"x"]), "malformed"),
    )
    assert [score(bench, one) for one in overlay.edge] == [100, 100, 100]


@pytest.mark.parametrize(
    "change",
    [
        {"instance": seed("another")},
        {"overlay": seed("another")[:16]},
        {"plan": 0},
        {"plan": 2},  # nobody published it
        {"node": HUB},  # the signer is a relay of the edge
        {"node": seed("nowhere")[:16]},
    ],
    ids=lambda change: "/".join(change),
)
def test_promises_that_are_not_of_the_signer_s_place_are_refused(
    bench: Bench, overlay: OverlayWorld, change: dict[str, Any]
) -> None:
    signer, liar = overlay.edge[:2]
    both = [ordered(overlay, name, 1, **change) for name in ("one", "two")]
    bench.play((liar, two_orders(signer, 1, *both), "false-evidence"))


def forget_the_first_plan(bench: Bench, overlay: OverlayWorld) -> None:
    """By eight more plans, in all of which another relay has the first place of the edge."""
    new = overlay.world.actor("a newcomer", SubjectKind.NODE, ALL_TENANTS)
    bench.accept(overlay.world.authority.sign(entries.enrol(new.certificate)))
    for version in range(2, 2 + plans.PLANS_KEPT):
        overlay.bring_plan(bench, without_relay(overlay.plan(), overlay.edge[0], new, version))
    assert plans.find_plan(bench.state.row, OVERLAY, 1) is None
    assert plans.find_plan(bench.state.row, OVERLAY, 2) is not None


def test_under_a_plan_that_was_forgotten_the_signer_s_key_convicts_it_and_nobody_else(
    bench: Bench, overlay: OverlayWorld
) -> None:
    liar, honest = overlay.edge[:2]
    both = [ordered(overlay, name, 1) for name in ("one", "two")]
    as_second = [replace(promise, signatures=((2, promise.signatures[0][1]),)) for promise in both]
    forget_the_first_plan(bench, overlay)
    stranger = overlay.world.node  # no relay, whatever it signs
    foreign = [replace(ordered(overlay, name), signatures=()).sign(1, stranger.key) for name in ("one", "two")]
    bench.play(
        (liar, two_orders(honest, 1, *both), "forged"),
        (liar, two_orders(honest, 2, *as_second), "forged"),  # another index makes no other signer
        (liar, two_orders(stranger, 1, *foreign), "false-evidence"),
        (honest, two_orders(liar, 1, *both), None),
        (honest, two_orders(liar, 2, *as_second), "known-evidence"),
    )
    assert [score(bench, one) for one in (liar, honest, stranger)] == [90, 100, 100]
    assert bench.state.row(blame.FAULTS(liar.id)) is None  # the plan in force has it no more


def test_a_relay_that_went_is_held_to_the_plan_that_named_it(bench: Bench, overlay: OverlayWorld) -> None:
    liar, other = overlay.edge[:2]
    new = overlay.world.actor("a newcomer", SubjectKind.NODE, ALL_TENANTS)
    bench.accept(overlay.world.authority.sign(entries.enrol(new.certificate)))
    overlay.bring_plan(bench, without_relay(overlay.plan(), liar, new, 2))
    under = {version: [ordered(overlay, name, 1, plan=version) for name in ("one", "two")] for version in (1, 2)}
    bench.play(
        (other, two_orders(liar, 1, *under[2]), "false-evidence"),
        (other, two_orders(new, 1, *under[1]), "false-evidence"),
        (other, two_orders(new, 1, *under[2]), "forged"),
        (other, two_orders(liar, 1, *under[1]), None),
    )
    assert (score(bench, liar), score(bench, new)) == (90, 100)
