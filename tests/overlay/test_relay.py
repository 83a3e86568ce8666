"""Whole relays: what a publisher gives in arrives, in one order, and opens, whatever the bad ones do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest
from carrying_world import sealed
from relay_world import RelayWorld
from sharing_world import LINK, chain, seeded
from without import without

from tallystick.carriers.overlay.accuse import SAID_MAX, Accusations
from tallystick.carriers.overlay.content_forwarding import Suspicion
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.membership import attached, detached
from tallystick.carriers.overlay.places import Lease
from tallystick.carriers.overlay.relayed_keys import Evidence
from tallystick.carriers.overlay.share_ends import give_shares, pull_shares
from tallystick.errors import Misuse
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.effects import Arrived, Deliver, Effect, Send, WakeAt
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


def give_back(world: RelayWorld) -> None:
    frame = OverlayFrame(FrameKind.ROUTE, 1, world.reader.undo(world.now)).encode()
    for name in world.plans[1].node(world.reader.edge).names:
        world.network.send(world.reader.permit.principal.hex(), name.hex(), frame)
    world.run(1)


def lose(world: RelayWorld) -> None:
    world.ledger.ended.add(world.reader.permit.identifier)


def outlive(world: RelayWorld) -> None:
    world.ledger.permits_end = world.now


def shares_for(world: RelayWorld) -> int:
    """How many sets a relay of its edge sends the reader for a pull."""
    role, who = world.role(world.plans[1].nodes[1].names[0]), world.reader.permit
    asked = pull_shares(world.plans[1], world.reader.edge, seeded("lock", 0), who.identifier)[0]
    assert isinstance(asked, Send)
    return len(role.receive(Arrived(who.principal.hex(), asked.message), world.now))


@pytest.mark.parametrize("end", [give_back, lose, outlive])
def test_who_has_no_live_permit_any_more_pulls_nothing(end: Callable[[RelayWorld], None]) -> None:
    """Its right still stands on the ledger, and the relays still keep the shares."""
    world = RelayWorld((3, 3))
    begin(world)
    world.give()
    world.run(5)
    assert shares_for(world)
    end(world)
    assert not shares_for(world)
    with without("the live permit of a pull"):
        assert shares_for(world)


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


# --- what is said against others ---


def with_many_origins(world: RelayWorld) -> int:
    """How much evidence a relay delivers against a publisher that gives one lane key four secrets, each three times."""
    plan, who = world.plans[1], world.publisher
    fixed = plan, who.edge, who.permit.principal, seeded("lock", 0), int(world.now * 1000), (who.permit.token,)
    relay, found = world.role(plan.nodes[0].names[0]), list[Effect]()
    for number in [*range(4)] * 3:
        effect = give_shares(*fixed, seeded("entropy", number), who.key).effects[0]
        assert isinstance(effect, Send)
        found += relay.receive(Arrived(who.permit.principal.hex(), effect.message), world.now)
    return len([one for one in found if isinstance(one, Deliver) and isinstance(one.value, Evidence)])


def test_a_contradiction_that_is_repeated_is_told_once() -> None:
    assert with_many_origins(RelayWorld((3, 3))) == 1
    with without("what was said is not said again"):
        assert with_many_origins(RelayWorld((3, 3))) == 9


def with_a_silent_relay() -> list[tuple[str, bytes]]:
    """By whom it is suspected."""
    world = RelayWorld((3, 3))
    begin(world)
    world.network.crash(world.plans[1].nodes[1].names[0].hex())
    for parcel in sealed(4):
        world.publish([parcel])
        world.run(1)
    world.run(80)
    return [(who, value.relay) for _, who, value in world.network.delivered if isinstance(value, Suspicion)]


def test_a_relay_is_suspected_once_by_each_under_one_plan() -> None:
    """The ledger refuses a suspicion that it knows, and a refusal costs whoever brought it."""
    found, plan = with_a_silent_relay(), chain((3, 3))
    assert sorted(found) == sorted((name.hex(), plan.nodes[1].names[0]) for name in plan.nodes[0].names)
    with without("what was said is not said again"):
        assert len(with_a_silent_relay()) == 12


def test_what_was_said_has_a_bound_and_old_plans_are_not_spoken_of() -> None:
    accusations, told = Accusations(), [Deliver(Suspicion(1, number.to_bytes(16))) for number in range(SAID_MAX + 1)]
    assert accusations.sift(told, 1) == told
    assert accusations.sift(told[1:], 1) == []
    assert accusations.sift(told[:1], 1) == told[:1]
    assert accusations.sift([Deliver(Suspicion(1, b"r" * 16)), Deliver("other"), WakeAt(1.0)], 2) == [
        Deliver("other"),
        WakeAt(1.0),
    ]


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
