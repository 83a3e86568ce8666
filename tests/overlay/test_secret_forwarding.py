"""Secrets on their way through relays that lie, in a simulated network: who opens, who does not, and who is convicted.

Theorems 1 to 3 of the paper (000) are here: what the bad relays of every virtual node hold together does not open, what
the good ones send does, and so an authorised subscriber opens and another does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations, product
from random import Random
from typing import Any

import pytest
from sharing_world import (
    LIES,
    LIMITS,
    NOW,
    PERMIT,
    PUBLISHER,
    STRANGER,
    SUBSCRIBER,
    TOKEN,
    Honest,
    Liar,
    Lie,
    World,
    chain,
    false_shares,
    key_of,
    relay_name,
    seeded,
    silent,
    two_sets,
)
from without import without

from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.redistribution import commitment_to, secret_of
from tallystick.carriers.overlay.relayed_keys import ForwardingLimits, SharesMessage
from tallystick.carriers.overlay.share_ends import Given, give_shares, pull_shares
from tallystick.crypto import group
from tallystick.errors import Malformed
from tallystick.runtime.effects import Arrived, Effect, Send, Woken
from tallystick.runtime.network import Link
from tallystick.trust.shares import NO_LINEAGE, Complaint, Origin, ShareList, ShareSet

CHAINS = [(3,), (3, 3), (5, 5), (3, 5, 3), (3, 3, 3, 3, 3)]


def liars(
    sizes: tuple[int, ...], seed: int, lies: Sequence[Lie] | None = None, more: int = 0
) -> dict[tuple[int, int], Sequence[Lie]]:
    """As many as there may be in every virtual node, or `more`; left out, each has some lies of its own."""
    random = Random(seed)
    return {
        (number, index): lies or random.sample(list(LIES.values()), random.randint(1, 4))
        for number, size in enumerate(sizes, start=1)
        for index in random.sample(range(1, size + 1), (size - 1) // 2 + more)
    }


def ran(world: World) -> Given:
    given = world.publish()
    world.run()
    return given


def holds(world: World) -> None:
    given = ran(world)
    assert world.opened() == [given.secret]
    assert not world.opened(STRANGER)
    assert {one.principal for one in world.evidence()} <= {liar.name for liar in world.liars}


@pytest.mark.parametrize("sizes", [*CHAINS, (4, 6, 4), (7, 7)])
def test_honest_relays_bring_every_secret_in_one_attempt(sizes: tuple[int, ...]) -> None:
    world = World(sizes)
    holds(world)
    assert max(time for time, who, _ in world.network.delivered if who == SUBSCRIBER.hex()) < NOW + LIMITS.hop_wait_s


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("sizes", [(3,), (3, 3, 3), (5, 5)])
def test_theorem_2_what_the_good_send_opens_whatever_the_bad_do(sizes: tuple[int, ...], lie: str) -> None:
    holds(World(sizes, 1, liars(sizes, 1, [LIES[lie]])))


@pytest.mark.parametrize("seed", range(12))
def test_theorem_3_mixtures_of_lies_along_a_whole_way(seed: int) -> None:
    sizes = CHAINS[seed % len(CHAINS)]
    holds(World(sizes, seed, liars(sizes, seed)))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12, 132))
def test_many_mixtures_of_lies(seed: int) -> None:
    sizes = CHAINS[seed % len(CHAINS)]
    holds(World(sizes, seed, liars(sizes, seed), Link(0.001, 0.02, duplicate=0.05)))


def test_with_one_bad_relay_too_many_nothing_arrives() -> None:
    world = World((3, 3), 2, liars((3, 3), 2, [silent], more=1))
    ran(world)
    assert not world.opened()


def pooled(world: World) -> list[bytes]:
    """Secrets that the bad relays can compute from all that they were sent."""
    held: dict[bytes, dict[int, int]] = {}
    keys: dict[bytes, Origin] = {}
    for liar in world.liars:
        number, index = liar.name[0], liar.name[1]
        contributions: dict[tuple[int, int], tuple[ShareSet, ShareList]] = {}
        for _, data in liar.saw:
            message = SharesMessage.decode(OverlayFrame.decode(data))
            origin = Origin.decode(message.origin)
            keys[origin.lane_key] = origin
            if message.shares is not None and message.listed is not None:
                shares = ShareSet.decode(message.shares)
                contributions[shares.attempt, shares.sender] = shares, ShareList.decode(message.listed)
        # Any sum by which the next virtual node's share is made, over any contributors: points of a polynomial with s.
        need = 1 if number == 1 else len(world.plans[1].nodes[number - 2].relays) // 2 + 1
        for attempt in {attempt for attempt, _ in contributions}:
            senders = sorted(sender for number, sender in contributions if number == attempt)
            for chosen in combinations(senders, need):
                offered = [contributions[attempt, sender] for sender in chosen]
                names = set.intersection(*({one.lineage.name for one in shares.lineages} for shares, _ in offered))
                weights = group.weights_at_zero(chosen)
                for name in names:
                    at = [[one.lineage.name for one in shares.lineages].index(name) for shares, _ in offered]
                    values = [listed.shares[place].value for (_, listed), place in zip(offered, at, strict=True)]
                    value = sum(v * w for v, w in zip(values, weights, strict=True)) % group.ORDER
                    place = bytes([number]) + bytes(chosen) + name
                    held.setdefault(place, {})[index] = value
    found = []
    for place, points in held.items():
        need = len(world.plans[1].nodes[place[0] - 1].relays) // 2 + 1
        for some in combinations(sorted(points), min(need, len(points))):
            scalar = sum(points[i] * w for i, w in zip(some, group.weights_at_zero(some), strict=True)) % group.ORDER
            for origin in keys.values():
                secret = secret_of(scalar, origin.lane_key)
                found += [secret] if commitment_to(secret, origin.lane_key) == origin.opens else []
    return found


def listening(liar: Liar, send: Send, now: float) -> list[Effect]:
    return [send]


@pytest.mark.parametrize("sizes", CHAINS)
def test_theorem_1_what_all_bad_relays_hold_together_does_not_open(sizes: tuple[int, ...]) -> None:
    for lies in ([listening], [listening, LIES["false alarms"]]):  # the second sees all attempts
        world = World(sizes, 3, liars(sizes, 3, lies))
        holds(world)
        assert not pooled(world)


def test_with_one_more_of_one_virtual_node_it_does() -> None:
    bad = liars((3, 3, 3), 3, [listening, LIES["false alarms"]])
    bad |= {(2, index): [listening] for index in (1, 2)}
    world = World((3, 3, 3), 3, bad)
    assert ran(world).secret in pooled(world)


def test_without_waits_that_grow_with_the_way_relays_that_tell_only_some_stop_everything() -> None:
    sizes, lies = (3, 3, 3, 3), [LIES["sometimes"]]
    with without("waits that grow with the way"):
        world = World(sizes, 3, liars(sizes, 3, lies))
        ran(world)
        assert not world.opened()
    holds(World(sizes, 3, liars(sizes, 3, lies)))


@pytest.mark.parametrize("lie", [silent, LIES["false shares"]], ids=["silent", "false shares"])
def test_however_late_messages_are_every_key_arrives_where_the_bad_only_fail(lie: Lie) -> None:
    sizes, link = (3, 3, 3), Link(1.0, 15.0)  # the last of all waits is 4 s a hop
    with without("empty sets that stay open"):
        world = World(sizes, 1, liars(sizes, 1, [lie]), link)
        world.publish()
        world.run(200)
        assert not world.opened()
    world = World(sizes, 1, liars(sizes, 1, [lie]), link)
    given = world.publish()
    world.run(200)
    assert world.opened() == [given.secret]


def send_again(world: World) -> None:
    """A link broke, and what was sent is sent again."""
    world.run(1)
    relay = edge_relay(world, 1, 1)
    with without("a branch is served once"):
        for effect in relay.forwarding.serve(TOKEN):
            assert isinstance(effect, Send)
            world.network.send(relay.name.hex(), effect.to, effect.message)
    world.run()


def test_what_is_sent_again_is_the_same_and_with_a_new_polynomial_would_convict() -> None:
    world = World((3, 3), 1)
    world.publish()
    send_again(world)
    assert not world.evidence()
    with without("polynomials that are a function of the lineage"):
        world = World((3, 3), 1)
        world.publish()
        send_again(world)
        assert {(one.principal, one.reason) for one in world.evidence()} == {(relay_name(1, 1), "two-sets")}


@pytest.mark.parametrize(("lie", "reason"), [(two_sets, "two-sets"), (false_shares, "false-share")])
def test_lies_that_are_signed_convict(lie: Lie, reason: str) -> None:
    world = World((3, 3, 3), 5, {(2, 1): [lie]})
    for number in range(4):
        world.publish(number)
    world.run()
    assert {(one.principal, one.reason) for one in world.evidence()} >= {(relay_name(2, 1), reason)}
    assert {one.principal for one in world.evidence()} == {relay_name(2, 1)}


def test_a_publisher_that_signs_two_origins_is_convicted_and_the_first_counts() -> None:
    world = World((3, 3))
    world.publish()
    world.run(1)
    plan = world.plans[1]
    fixed = plan, plan.nodes[0].identifier, PUBLISHER, seeded("lock", 0), int(NOW * 1000)
    for effect in give_shares(*fixed, (TOKEN,), seeded("other"), key_of(PUBLISHER)).effects:
        assert isinstance(effect, Send)
        world.network.send(PUBLISHER.hex(), effect.to, effect.message)
    world.run()
    assert {(one.principal, one.reason) for one in world.evidence()} == {(PUBLISHER, "two-origins")}
    assert len(world.opened()) == 1


def edge_relay(world: World, number: int = 1, index: int = 1) -> Honest:
    role = world.network.role(relay_name(number, index).hex())
    assert isinstance(role, Honest)
    return role


def told(given: Given, index: int = 1) -> bytes:
    effect = given.effects[index - 1]
    assert isinstance(effect, Send)
    data: bytes = effect.message
    return data


def test_a_relay_that_was_started_again_says_nothing_of_older_keys() -> None:
    """It forgot what it signed, and another set would convict it."""
    world = World((3, 3))
    given = ran(world)
    relay = Honest(relay_name(1, 1), edge_relay(world).around, 99)
    relay.forwarding._since_ms = 1000 * (NOW + 1)
    assert not relay.receive(Arrived(PUBLISHER.hex(), told(given)), NOW + 2)
    assert relay.forwarding.dropped == {"stale": 1}
    with without("keys that are older than the relay"):
        for effect in relay.receive(Arrived(PUBLISHER.hex(), told(given)), NOW + 2):
            if isinstance(effect, Send):
                world.network.send(relay.name.hex(), effect.to, effect.message)
        world.run(130)
    assert {(one.principal, one.reason) for one in world.evidence()} == {(relay.name, "two-sets")}


def test_whoever_subscribes_over_and_over_makes_nobody_send_again() -> None:
    world = World((3, 3))
    world.publish()
    world.run()
    relay = edge_relay(world, 2, 1)
    assert not relay.forwarding.serve(TOKEN)
    with without("a branch is served once"):
        assert relay.forwarding.serve(TOKEN)


def test_who_subscribes_late_gets_the_same_shares() -> None:
    world = World((3, 3), 4, liars((3, 3), 4, [silent]))
    plan = world.plans[1]
    for index in (1, 2, 3):
        edge_relay(world, 2, index).around.subscribers = ()
    given = ran(world)
    assert not world.opened()
    for index in range(1, len(plan.nodes[1].relays) + 1):
        role = edge_relay(world, 2, index)
        role.around.subscribers = (SUBSCRIBER,)
        for effect in role.forwarding.serve(TOKEN):
            assert isinstance(effect, Send)
            world.network.send(role.name.hex(), effect.to, effect.message)
    world.run(200)
    assert world.opened() == [given.secret]


@pytest.mark.parametrize(
    ("sender", "change", "reason"),
    [
        (PUBLISHER, {}, None),
        (STRANGER, {}, "misrouted"),
        (PUBLISHER, {"created_ms": int(1000 * (NOW - 90))}, "stale"),
        (PUBLISHER, {"created_ms": int(1000 * (NOW + 60))}, "future"),
        (PUBLISHER, {"publisher": STRANGER}, "no-right"),
        (PUBLISHER, {"plan": 2}, "plan"),
        (PUBLISHER, {"edge": b"?" * 16}, "malformed"),
        (PUBLISHER, {"commitments": (bytes(32),)}, "malformed"),
    ],
)
def test_an_origin_that_does_not_fit_is_dropped_and_counted(
    sender: bytes, change: dict[str, Any], reason: str | None
) -> None:
    world = World((3, 3))
    relay = edge_relay(world)
    origin = replace(world.publish().origin, **change)
    signed = origin.sign(key_of(origin.publisher)).encode()
    effects = relay.receive(Arrived(sender.hex(), SharesMessage(signed).frame(origin.plan)), NOW)
    assert bool(effects) == (reason is None)
    assert dict(relay.forwarding.dropped) == ({reason: 1} if reason else {})


def test_a_publisher_has_a_bound_of_lane_keys() -> None:
    world = World((3,), limits=ForwardingLimits(publisher_keys_max=2))
    relay = edge_relay(world)
    for number in range(4):
        relay.receive(Arrived(PUBLISHER.hex(), told(world.publish(number))), NOW)
    assert dict(relay.forwarding.dropped) == {"full": 2}
    relay.receive(Woken(), NOW + LIMITS.keep_s)
    assert not relay.forwarding._lanes  # and what is old goes


def test_a_tenant_with_many_publishers_has_a_bound_too() -> None:
    """Each gives in less than it may; all together they would fill every relay on the way."""
    crowd = tuple(bytes([65, number]) * 8 for number in range(6))

    def crowded() -> Honest:
        world = World((3,), limits=ForwardingLimits(publisher_keys_max=4, tenant_keys_max=5))
        relay, plan = edge_relay(world), world.plans[1]
        relay.around.publishers = (PUBLISHER, *crowd)
        relay.around.tenants = dict.fromkeys(crowd, b"one tenant's all")
        for who, number in product(crowd, range(2)):
            fixed = plan, plan.nodes[0].identifier, who, seeded("lock", number), int(NOW * 1000), (TOKEN,)
            given = give_shares(*fixed, seeded(who, number), key_of(who))
            relay.receive(Arrived(who.hex(), told(given)), NOW)
        relay.receive(Arrived(PUBLISHER.hex(), told(world.publish())), NOW)
        return relay

    relay = crowded()
    kept = Counter(lane.origin.publisher for lane in relay.forwarding._lanes.values())
    assert (kept.total(), kept[PUBLISHER]) == (6, 1)
    assert relay.forwarding.dropped == {"full": 7}
    relay.receive(Woken(), NOW + LIMITS.keep_s)
    assert not relay.forwarding._lanes
    assert not relay.forwarding._of
    with without("a tenant's share of lane keys"):
        assert len(crowded().forwarding._lanes) == 13


def test_whoever_complains_buys_a_bounded_number_of_rounds() -> None:
    sizes = (3, 3, 3)
    quiet, loud = World(sizes), World(sizes, lies=liars(sizes, 1, [LIES["false alarms"]]))
    counts = []
    for world in (quiet, loud):
        holds(world)
        attempts = [len(lane.attempts) for lane in edge_relay(world, 1, 1).forwarding._lanes.values()]
        counts += attempts
    assert counts == [1, LIMITS.attempts_max + 1]


@pytest.mark.parametrize("who", [STRANGER, SUBSCRIBER])
def test_a_complaint_counts_only_from_who_may_complain(who: bytes) -> None:
    world = World((3,))
    relay, origin = edge_relay(world), world.publish().origin
    relay.receive(Arrived(PUBLISHER.hex(), SharesMessage(origin.encode()).frame(1)), NOW)
    complaint = Complaint(origin.lane_key, 1, 0, who, 0, NO_LINEAGE, ()).sign(key_of(who)).encode()
    effects = relay.receive(Arrived(who.hex(), SharesMessage(origin.encode(), complaint).frame(1)), NOW)
    assert bool(effects) == (who == SUBSCRIBER)
    assert relay.forwarding.dropped == ({} if who == SUBSCRIBER else {"no-right": 1})


def test_what_nobody_signed_so_is_dropped() -> None:
    """Any one bit of what an honest relay sends, turned."""
    world = World((3, 3))
    given = world.publish()
    random, data, dropped = Random(1), told(given), 0
    for _ in range(300):
        relay = Honest(relay_name(1, 1), edge_relay(world).around, 1)
        bad = bytearray(data)
        bad[random.randrange(len(bad))] ^= 1 << random.randrange(8)
        with suppress(Malformed):  # what is no frame, or of another kind, does not come here
            frame = OverlayFrame.decode(bytes(bad))
            if frame.kind is FrameKind.SHARES:
                relay.forwarding.take(frame, PUBLISHER, NOW)
        assert not any(lane.attempts[0].came for lane in relay.forwarding._lanes.values())
        dropped += relay.forwarding.dropped.total()
    assert dropped > 250


def test_shares_of_another_plan_version_are_never_combined() -> None:
    world = World((3, 3))
    world.plans[2] = chain((3, 3), 2)
    given = ran(world)
    first = edge_relay(world, 1, 1)
    lane = next(iter(first.forwarding._lanes.values()))
    other = Honest(relay_name(2, 1), edge_relay(world, 2, 1).around, 5)
    lane.told.clear()
    effects = [
        one for one in first.forwarding.serve(TOKEN) if isinstance(one, Send) and one.to == relay_name(2, 1).hex()
    ]
    for effect in effects:
        message = SharesMessage.decode(OverlayFrame.decode(effect.message))
        other.forwarding.take(OverlayFrame.decode(effect.message), relay_name(1, 1), NOW)
        if message.shares is not None:
            forged = ShareSet.decode(message.shares)
            signed = replace(forged, plan=2).sign(key_of(relay_name(1, 1)))
            content = SharesMessage(lane.encoded, None, signed.encode(), message.listed)
            before = dict(other.forwarding.dropped)
            other.forwarding.take(OverlayFrame.decode(content.frame(2)), relay_name(1, 1), NOW)
            assert dict(other.forwarding.dropped) != before
    assert world.opened() == [given.secret]


# --- out of band ---


def test_repositories_give_each_one_share_to_who_has_a_right_and_no_more_often_than_that() -> None:
    """Three of them, one bad: the publisher gives in, and who comes later pulls."""
    world = World((3,), 7, liars((3,), 7, [false_shares]))
    plan, lock = world.plans[1], seeded("lock", 0)
    for index in (1, 2, 3):
        edge_relay(world, 1, index).around.subscribers = ()
    given = ran(world)
    assert not world.opened()
    for who in (SUBSCRIBER, STRANGER):
        for effect in pull_shares(plan, plan.nodes[0].identifier, lock, PERMIT):
            assert isinstance(effect, Send)
            world.network.send(who.hex(), effect.to, effect.message)
    world.run(130)
    assert world.opened() == [given.secret]
    assert not world.opened(STRANGER)
    honest = next(edge_relay(world, 1, index) for index in (1, 2, 3) if (1, index) not in world.lies)
    assert honest.forwarding.dropped == {"no-right": 1}
    asked = [pull_shares(plan, plan.nodes[0].identifier, lock, PERMIT)[0] for _ in range(40)]
    answers = [honest.receive(Arrived(SUBSCRIBER.hex(), one.message), NOW) for one in asked if isinstance(one, Send)]
    assert len([one for one in answers if one]) == LIMITS.pulls_max - 1
    unknown = pull_shares(plan, plan.nodes[0].identifier, bytes(32), PERMIT)[0]
    assert isinstance(unknown, Send)
    assert not honest.receive(Arrived(SUBSCRIBER.hex(), unknown.message), NOW)


@pytest.mark.parametrize("token", [TOKEN, b"another topic !!"])
def test_who_lost_what_it_had_pulls_it_at_its_edge_whoever_else_names_the_lock(token: bytes) -> None:
    """Another publisher with a right was quicker with an origin for the same lock; perhaps of a topic that the
    subscriber has no permit for."""
    world = World((3, 3), 3)
    plan, lock = world.plans[1], seeded("lock", 0)
    for node, index in product((1, 2), (1, 2, 3)):
        around = edge_relay(world, node, index).around
        around.publishers, around.subscribers = (PUBLISHER, STRANGER), ()
    fixed = plan, plan.nodes[0].identifier, STRANGER, lock, int(NOW * 1000), (token,)
    for effect in give_shares(*fixed, seeded("thief"), key_of(STRANGER)).effects:
        assert isinstance(effect, Send)
        world.network.send(STRANGER.hex(), effect.to, effect.message)
    world.run(1)
    given = world.publish(lock=lock)
    world.run(5)
    for effect in pull_shares(plan, plan.nodes[1].identifier, lock, PERMIT):
        assert isinstance(effect, Send)
        world.network.send(SUBSCRIBER.hex(), effect.to, effect.message)
    world.run(20)
    assert given.secret in world.opened()
