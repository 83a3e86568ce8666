"""Whole relays: what a publisher gives in arrives, in one order, and opens, whatever the bad ones do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from carrying_world import sealed
from relay_world import RelayWorld
from sharing_world import LINK, chain

from tallystick.carriers.overlay.membership import attached, detached
from tallystick.carriers.overlay.places import Lease
from tallystick.errors import Misuse
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.effects import Arrived
from tallystick.trust.plan import Plan


def begin(world: RelayWorld) -> None:
    world.claim(world.publisher)
    world.run(2)
    world.claim(world.reader)
    world.run(4)


def bad(sizes: tuple[int, ...], seed: int) -> frozenset[tuple[int, int]]:
    """As many as may be; not the one that orders, which is another test's."""
    random = Random(seed)
    return frozenset(
        (number, index)
        for number, size in enumerate(sizes, start=1)
        for index in random.sample(range(2 if number == 1 else 1, size + 1), (size - 1) // 2)
    )


def arrived(world: RelayWorld, parcels: Sequence[Parcel], plan: Plan | None = None) -> None:
    """Every honest relay of the subscriber's edge has every parcel once, all at the same places."""
    found = []
    for index, relay in enumerate((plan or world.plans[1]).nodes[-1].relays, start=1):
        if (len(world.sizes), index) not in world.bad:
            found.append(world.carried(relay.identifier))
    assert all(one == found[0] for one in found)
    assert [offset for offset, _ in found[0]] == list(range(len(parcels)))
    assert sorted(parcel for _, parcel in found[0]) == sorted(one.hash for one in parcels)


@pytest.mark.parametrize("sizes", [(3,), (3, 3), (3, 5, 3), (3, 3, 3, 3, 3)])
def test_what_is_given_in_arrives_and_opens(sizes: tuple[int, ...]) -> None:
    world = RelayWorld(sizes)
    begin(world)
    given = world.give()
    world.publish(sealed(4))
    world.run(10)
    arrived(world, sealed(4))
    assert world.opened() == {given.secret}


def relay_runs(seed: int) -> None:
    sizes = [(3, 3), (3, 3, 3), (5, 3), (3, 3, 3, 3)][seed % 4]
    through(RelayWorld(sizes, seed, bad(sizes, seed), replace(LINK, duplicate=0.05)))


def through(world: RelayWorld) -> None:
    begin(world)
    world.run(20)  # what liars kept from others is told again
    given = [world.give(number) for number in range(2)]
    world.publish(sealed(4))
    world.run(60)
    arrived(world, sealed(4))
    assert world.opened() == {one.secret for one in given}


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_bad_relays_of_every_virtual_node_do(seed: int) -> None:
    relay_runs(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6, 60))
def test_more_of_them(seed: int) -> None:
    relay_runs(seed)


def test_who_has_no_claim_gets_nothing() -> None:
    world = RelayWorld((3, 3))
    world.claim(world.publisher)
    world.run(5)
    world.give()
    world.publish(sealed(4))
    world.run(10)
    assert not world.opened()
    assert not any(world.carried(relay.identifier) for relay in world.plans[1].nodes[1].relays)


def test_whose_permit_the_ledger_ended_gets_no_more_keys() -> None:
    world = RelayWorld((3, 3))
    begin(world)
    first = world.give(0)
    world.run(5)
    world.ledger.ended.add(world.reader.permit.identifier)
    world.block()
    world.run(5)
    world.give(1)
    world.run(20)
    assert world.opened() == {first.secret}


def test_who_subscribes_late_gets_the_keys_that_live() -> None:
    world = RelayWorld((3, 3, 3))
    world.claim(world.publisher)
    world.run(5)
    given = world.give()
    world.run(5)
    world.claim(world.reader)
    world.run(10)
    assert world.opened() == {given.secret}


def test_another_orderer_goes_on() -> None:
    world = RelayWorld((3, 3))
    begin(world)
    world.publish(sealed(8)[:4])
    world.run(5)
    world.ledger.lease_now = Lease(world.plans[1].nodes[0].relays[1].identifier, 2)
    world.block()
    world.publish(sealed(8)[4:])
    world.run(10)
    arrived(world, sealed(8))


def test_a_relay_that_crashed_takes_part_again() -> None:
    world = RelayWorld((3, 3, 3))
    begin(world)
    middle = world.plans[1].nodes[1].relays[0].identifier
    world.network.crash(middle.hex())
    world.publish(sealed(4))
    world.run(5)
    world.network.restart(middle.hex())
    world.run(20)
    assert (
        world.role(middle)
        .relay.routing.branches([world.publisher.permit.token], world.plans[1].nodes[0].identifier)
        .nodes
    )
    arrived(world, sealed(4))


# --- attach and detach ---


def changed(world: RelayWorld, plan: Plan, wait_s: float = 6.0) -> None:
    """A new version stands on the ledger, and counts from the next block but one."""
    world.plans[plan.version] = plan
    world.ledger.known.append((world.ledger.height + 2, plan))
    world.block()
    world.run(wait_s)
    world.block()
    world.run(wait_s)


def test_relays_attach_and_detach_under_load_and_nothing_is_lost() -> None:
    """From (2, 3) in the middle to (3, 4) and back, without the one that was there first."""
    world = RelayWorld((3, 3, 3))
    begin(world)
    plan, more = world.plans[1], chain((3, 4, 3)).nodes[1].relays[3]
    wider = attached(plan, plan.nodes[1].identifier, more)
    keys = [world.give(0)]
    world.publish(sealed(8)[:3])
    world.plans[2] = wider
    world.ledger.known.append((world.ledger.height + 2, wider))
    world.add(more.identifier, started=world.now)
    changed_at = world.ledger.height
    world.block()
    world.run(8)
    world.block()
    assert world.ledger.height == changed_at + 2
    world.publish(sealed(8)[3:5])
    world.run(8)
    keys.append(world.give(1))
    world.run(8)
    narrower = detached(wider, plan.nodes[1].relays[0].identifier)
    changed(world, narrower)
    world.publish(sealed(8)[5:])
    keys.append(world.give(2))
    world.run(40)
    arrived(world, sealed(8))
    assert world.opened() == {one.secret for one in keys}
    assert world.departed() == {plan.nodes[1].relays[0].identifier.hex()}


def test_a_relay_that_no_plan_names_does_not_begin() -> None:
    world = RelayWorld((3, 3))
    with pytest.raises(Misuse, match="no relay"):
        world.add(b"nobody's relay!!")
    world.ledger.known = []
    with pytest.raises(Misuse, match="no plan"):
        world.add(b"another relay !!")


# --- what no relay raises at ---


def test_no_bytes_from_a_link_end_a_relay() -> None:
    world, random = RelayWorld((3, 3)), Random(4)
    begin(world)
    role = world.role(world.plans[1].nodes[0].relays[0].identifier)
    others = [relay.identifier.hex() for node in world.plans[1].nodes for relay in node.relays]
    for _ in range(2_000):
        data = random.randbytes(random.randrange(200))
        role.receive(Arrived(random.choice(others), data), world.now)
    role.receive(Arrived("no hex", b""), world.now)
    assert role.relay.dropped.total() == 2_001
