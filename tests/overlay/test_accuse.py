"""What relays find on the way convicts on the ledger: liars of every kind, and nobody else; and bait is not taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import pytest
from carrying_world import sealed, sealed_long
from ledger_world import Bench
from sharing_world import (
    LIES,
    NOW,
    PUBLISHER,
    TOKEN,
    Around,
    Honest,
    Lie,
    World,
    chain,
    false_shares,
    key_of,
    relay_name,
    seeded,
    two_sets,
)
from test_ordering import HERE, Edge, Ledger, Orderly, fork
from without import without

from tallystick import wire
from tallystick.carriers.carrier import split_frames
from tallystick.carriers.overlay.accuse import accuse
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.places import Lease
from tallystick.carriers.overlay.relayed_keys import Evidence, SharesMessage
from tallystick.carriers.overlay.share_ends import give_shares
from tallystick.errors import Refused
from tallystick.ledger.contracts import identity, plans, reputation
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.effects import Arrived, Deliver, Effect, Send, StoreEffect
from tallystick.trust.plan import Plan
from tallystick.trust.promise import JointPromise
from tallystick.trust.shares import ShareList, ShareSet


def courtroom(plan: Plan) -> Bench:
    """A ledger that knows this plan and its relays, whose names are not made as the ledger makes them."""
    bench = Bench()
    bench.bring_into_force()
    rows: dict[bytes, Any] = {
        plans.OVERLAYS(plan.overlay): [1, [bytes(16)], 1, plan.version],
        plans.PLANS(plan.overlay, plan.version): [1, plan.encode()],
        identity.KEYS(key_of(PUBLISHER).public.raw): [PUBLISHER, 1, 0],
    }
    for relay in (relay for node in plan.nodes for relay in node.relays):
        rows |= {identity.KEYS(relay.key): [relay.identifier, 1, 0], plans.RELAYS(relay.identifier): plan.overlay}
    bench.stored.update({bytes(key): wire.encode(row) for key, row in rows.items()})
    bench.state.refresh(map(bytes, rows))
    return bench


def tried(bench: Bench, plan: Plan, found: Sequence[Evidence]) -> set[bytes]:
    """Whose reputation is lower once the ledger has all of the evidence, every piece of which it believes."""
    around = Around({plan.version: plan}, plan.nodes[0].identifier)
    for evidence in found:
        signed = bench.world.sensor.sign(accuse(evidence, around))
        result = bench.run(signed)
        assert result.accepted or result.reason in ("known-evidence", "blacklisted"), (evidence.reason, result.reason)
    names = [PUBLISHER, *(relay.identifier for node in plan.nodes for relay in node.relays)]
    return {name for name in names if reputation.score(bench.state, name) < 100}


@pytest.mark.parametrize("lie", [two_sets, false_shares])
def test_lies_about_shares_convict(lie: Lie) -> None:
    world = World((3, 3, 3), 5, {(2, 1): [lie]})
    for number in range(4):
        world.publish(number)
    world.run()
    assert world.evidence()
    assert tried(courtroom(world.plans[1]), world.plans[1], world.evidence()) == {relay_name(2, 1)}


@pytest.mark.parametrize("seed", range(4))
def test_whatever_liars_do_nobody_else_is_convicted(seed: int) -> None:
    random = Random(seed)
    bad: dict[tuple[int, int], Sequence[Lie]] = {
        (node, random.randrange(1, 4)): random.choices([*LIES.values()], k=3) for node in (1, 2, 3)
    }
    world = World((3, 3, 3), seed, bad)
    for number in range(3):
        world.publish(number)
    world.run()
    liars = {relay_name(*place) for place in bad}
    assert tried(courtroom(world.plans[1]), world.plans[1], world.evidence()) <= liars


def deceive(world: World) -> None:
    """The publisher gives the same lane key another secret."""
    plan = world.plans[1]
    fixed = plan, plan.nodes[0].identifier, PUBLISHER, seeded("lock", 0), int(NOW * 1000)
    for effect in give_shares(*fixed, (TOKEN,), seeded("other"), key_of(PUBLISHER)).effects:
        assert isinstance(effect, Send)
        world.network.send(PUBLISHER.hex(), effect.to, effect.message)


def test_two_origins_convict_their_publisher() -> None:
    world = World((3, 3))
    world.publish()
    world.run(1)
    deceive(world)
    world.run()
    assert {one.reason for one in world.evidence()} == {"two-origins"}
    assert tried(courtroom(world.plans[1]), world.plans[1], world.evidence()) == {PUBLISHER}


def test_an_orderer_that_forks_is_convicted() -> None:
    plan = chain((5,))
    bench = courtroom(plan)
    edge = Edge(5, 2, {1: fork}, instance=bench.world.instance)
    edge.publish(sealed(8))
    edge.run(4)
    found = [value for _, _, value in edge.network.delivered if isinstance(value, Evidence)]
    assert {one.reason for one in found} == {"two-orders"}
    assert tried(bench, plan, found) == {relay_name(1, 1)}


# --- bait ---


def baited(frame: bytes, other: bytes) -> bytes:
    """The first message with the set and the list of the second."""
    first, second = (SharesMessage.decode(OverlayFrame.decode(one)) for one in (frame, other))
    return first._replace(shares=second.shares, listed=second.listed).frame(OverlayFrame.decode(frame).plan)


def heard(*frames: bytes) -> list[Evidence]:
    """What the first relay of an edge finds in what a publisher sends it."""
    plan = chain((3, 3))
    relay, found = Honest(relay_name(1, 1), Around({1: plan}, plan.nodes[0].identifier), 1), list[Effect]()
    for frame in frames:
        found += relay.receive(Arrived(PUBLISHER.hex(), frame), NOW)
    return [one.value for one in found if isinstance(one, Deliver) and isinstance(one.value, Evidence)]


def given(number: int) -> bytes:
    plan = chain((3, 3))
    fixed = plan, plan.nodes[0].identifier, PUBLISHER, seeded("lock", number), int(NOW * 1000)
    effect = give_shares(*fixed, (TOKEN,), seeded("entropy", number), key_of(PUBLISHER)).effects[0]
    assert isinstance(effect, Send)
    data: bytes = effect.message
    return data


class Signed(NamedTuple):
    """What a publisher signs for a relay of its edge."""

    origin: bytes
    shares: bytes
    listed: bytes

    @classmethod
    def of(cls, frame: bytes) -> Signed:
        origin, _, shares, listed = SharesMessage.decode(OverlayFrame.decode(frame))
        return cls(origin, shares or b"", listed or b"")


def test_a_set_of_another_lane_key_is_no_contradiction_and_accuses_nobody() -> None:
    first, second = given(0), given(1)
    assert not heard(first, baited(first, second))


def test_no_accusation_is_made_of_what_proves_nothing() -> None:
    plan = chain((3, 3))
    around = Around({1: plan}, plan.nodes[0].identifier)
    one, two = Signed.of(given(0)), Signed.of(given(1))
    edge = plan.nodes[0]
    what = bytes(32), plan.overlay, 1, edge.identifier
    placed = [JointPromise(*what, fence, *HERE, 0, bytes([fence]) * 32, 1, 1, ()) for fence in (1, 2)]
    orders = [promise.sign(1, key_of(relay_name(1, 1))).encode() for promise in placed]
    mine = ShareSet.decode(one.shares).sign(key_of(relay_name(1, 1)))
    for principal, reason, objects in (
        (PUBLISHER, "two-sets", (one.shares, two.shares)),
        (PUBLISHER, "two-sets", (one.shares, one.shares)),
        (PUBLISHER, "two-sets", (one.shares, replace(mine, attempt=0).encode())),
        (PUBLISHER, "two-origins", (one.origin, two.origin)),
        (PUBLISHER, "false-share", (one.shares, one.listed)),
        (PUBLISHER, "false-share", (one.shares, two.listed)),
        (relay_name(1, 1), "two-orders", (orders[0], orders[1])),
        (PUBLISHER, "two-orders", (orders[0], orders[0])),
        (PUBLISHER, "two-orders", (b"x", orders[0])),
    ):
        with pytest.raises(Refused):
            accuse(Evidence(principal, reason, objects), around)


def test_without_that_judgement_a_relay_brings_what_the_ledger_refuses() -> None:
    plan = chain((3, 3))
    bench = courtroom(plan)
    one, two = (Signed.of(given(number)).shares for number in (0, 1))
    with without("the judgement of an accusation"):
        entry = accuse(Evidence(PUBLISHER, "two-sets", (one, two)), Around({1: plan}, plan.nodes[0].identifier))
    bench.play((bench.world.sensor, entry, "false-evidence"))


def test_a_list_that_is_too_long_is_evidence_too() -> None:
    plan = chain((3, 3))
    message = Signed.of(given(0))
    listed = ShareList.decode(message.listed)
    longer = replace(listed, encoded=(*listed.encoded, listed.encoded[0])).sign(key_of(PUBLISHER)).encode()
    assert tried(courtroom(plan), plan, [Evidence(PUBLISHER, "false-share", (message.shares, longer))]) == {PUBLISHER}


# --- a relay that does not convict itself ---


def order(ledger: Ledger, parcel: Parcel, signer: int) -> Arrived:
    plan = ledger.newest_plan()
    where = ledger.instance, plan.overlay, 1, plan.nodes[0].identifier, ledger.lease_now.fence
    promise = JointPromise(*where, *HERE, 0, parcel.hash, 1, 1, ()).sign(signer, key_of(relay_name(1, signer)))
    frame = OverlayFrame(FrameKind.ORDER, 1, wire.encode([1, promise.encode(), None]))
    return Arrived(relay_name(1, signer).hex(), frame.encode())


def signed(ledger: Ledger, parcel: Parcel, by: int, stored: Mapping[str, bytes]) -> dict[str, bytes]:
    """What the second relay, started with what it stored, stores of the holder's order."""
    relay = Orderly(relay_name(1, 2), ledger, stored)
    effects = [*relay.propose(parcel, NOW), *relay.receive(order(ledger, parcel, by), NOW)]
    return {one.key: one.value for one in effects if isinstance(one, StoreEffect) and one.value is not None}


def led_astray(bench: Bench) -> list[bytes]:
    """What a relay signs under two fences, and then of one that fell back to the first: its view of the ledger did."""
    ledger = Ledger({1: chain((5,))}, Lease(relay_name(1, 1), 1), instance=bench.world.instance)
    one, two, three = sealed(8)[0], sealed_long()[0], sealed(1, (2, 3))[0]
    first = signed(ledger, one, 1, {})
    ledger.lease_now = Lease(relay_name(1, 3), 2)
    second = signed(ledger, two, 3, first)
    ledger.lease_now = Lease(relay_name(1, 1), 1)
    third = signed(ledger, three, 1, second)
    return [split_frames(value)[0] for stored in (first, second, third) for value in stored.values()]


def test_a_relay_whose_ledger_fell_back_does_not_convict_itself() -> None:
    bench = courtroom(chain((5,)))
    assert [JointPromise.decode(one).fence for one in led_astray(bench)] == [1, 2]
    with without("the memory of what was signed"):
        first, _, third = led_astray(bench)
    found = [Evidence(relay_name(1, 2), "two-orders", (first, third))]
    assert tried(bench, chain((5,)), found) == {relay_name(1, 2)}
