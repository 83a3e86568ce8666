"""Whole relays while plans change under load: from (2, 3) to (3, 4) and back, from (3, 5) to (4, 6) and back, and a
silent one replaced, with as many liars beside them as may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from carrying_world import sealed
from relay_world import RelayWorld
from sharing_world import chain
from test_relay import arrived, begin

from tallystick.carriers.overlay.membership import attached, detached
from tallystick.carriers.overlay.share_ends import Given
from tallystick.parcel.parcel import Parcel
from tallystick.trust.plan import Plan, Relay


def newcomer(size: int) -> Relay:
    return chain((3, size + 1, 3)).nodes[1].relays[size]


def carry(world: RelayWorld, plan: Plan, parcels: Sequence[Parcel], newcomer: Relay | None = None) -> list[Given]:
    """Six parcels and three lane keys go in before the plan stands on the ledger, before it counts, and after."""
    given = []
    for step in range(3):
        if step == 1:
            world.plans[plan.version] = plan
            world.ledger.known.append((world.ledger.height + 2, plan))
            if newcomer is not None:
                world.add(newcomer.identifier, started=world.now)
        if step:
            world.block()
        given.append(world.give(10 * plan.version + step))
        world.publish(parcels[2 * step : 2 * step + 2])
        world.run(6)
    return given


@pytest.mark.parametrize(("size", "bad"), [(3, ((1, 2), (2, 2), (3, 3))), (5, ((1, 3), (2, 2), (2, 4), (3, 1)))])
def test_schemes_change_under_load_and_back_and_nothing_is_lost(size: int, bad: tuple[tuple[int, int], ...]) -> None:
    world = RelayWorld((3, size, 3), size, frozenset(bad))
    begin(world)
    world.run(20)
    plan, more = world.plans[1], newcomer(size)
    wider = attached(plan, plan.nodes[1].identifier, more)
    narrower = detached(wider, plan.nodes[1].relays[0].identifier)
    schemes = [(one.nodes[1].need, len(one.nodes[1].relays)) for one in (plan, wider, narrower)]
    assert schemes == [(size // 2 + 1, size), (size // 2 + 2, size + 1), (size // 2 + 1, size)]
    given = carry(world, wider, sealed(12)[:6], more) + carry(world, narrower, sealed(12)[6:])
    world.run(20)
    arrived(world, sealed(12))
    assert world.opened() == {one.secret for one in given}
    world.run(30)  # liars do not acknowledge
    assert world.departed() == {plan.nodes[1].relays[0].identifier.hex()}


def test_a_silent_relay_is_replaced_by_one_plan_and_nothing_is_lost() -> None:
    world = RelayWorld((3, 3, 3))
    begin(world)
    plan, instead = world.plans[1], newcomer(3)
    middle = plan.nodes[1]
    world.network.crash(middle.relays[0].identifier.hex())
    seats = replace(middle, relays=(*middle.relays[1:], instead))
    following = replace(plan, version=2, nodes=(plan.nodes[0], seats, plan.nodes[2]))
    given = carry(world, following, sealed(6), instead)
    world.run(20)
    arrived(world, sealed(6))
    assert world.opened() == {one.secret for one in given}
    assert world.role(instead.identifier).relay.routing.statistics().live == 2  # it knows who publishes and who reads


@pytest.mark.parametrize(("at", "leaver"), [(0, 1), (2, 0)])
def test_relays_come_and_go_at_both_edges(at: int, leaver: int) -> None:
    """Clients are told of a plan as everybody is, and claim their places at newcomers too."""
    world = RelayWorld((3, 3, 3))
    begin(world)
    plan, sizes = world.plans[1], [3, 3, 3]
    sizes[at] = 4
    more, parcels = chain((sizes[0], sizes[1], sizes[2])).nodes[at].relays[3], sealed(12)
    wider = attached(plan, plan.nodes[at].identifier, more)
    narrower = detached(wider, plan.nodes[at].relays[leaver].identifier)
    given = carry(world, wider, parcels[:6], more)
    for claimant in (world.publisher, world.reader):
        world.claim(claimant)
        world.run(1)
    given += carry(world, narrower, parcels[6:])
    world.run(20)
    assert world.opened() == {one.secret for one in given}
    assert world.departed() == {plan.nodes[at].relays[leaver].identifier.hex()}
    for relay in narrower.nodes[2].relays:
        held = [offset for offset, _ in world.carried(relay.identifier)]
        since = 4 if relay == more else 0  # what was carried before it came is for it to catch up on
        assert held == list(range(since, 12))
