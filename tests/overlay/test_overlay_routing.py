"""Routing on trees of virtual nodes, honest and not: publications reach all who may have them, and nobody else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from makers import token
from overlays import (
    GUARD,
    Claimant,
    Ledger,
    Overlay,
    advertiser,
    line,
    make_routing,
    node_name,
    order_for,
    relay,
    subscriber,
    tree,
)
from without import without

from tallystick.carriers.overlay.claim_store import RoutingLimits
from tallystick.carriers.overlay.claims import Claim, sign_claim
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.notices import Notice, NoticeKind, RoutingState
from tallystick.carriers.overlay.routing import Routing, RoutingStatistics
from tallystick.carriers.overlay.surroundings import NOWHERE
from tallystick.carriers.overlay.tables import RouteEntry, RoutingTables
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Misuse, Refused
from tallystick.guards.route import MessageKind
from tallystick.parcel.header import Header, ParcelKind, TopicRef
from tallystick.parcel.labels import Labeller, Wanted
from tallystick.policy.topic_code import TopicCode
from tallystick.runtime.effects import Effect, Send
from tallystick.runtime.network import Link
from tallystick.trust.permit import Operation
from tallystick.trust.plan import Plan

LOSSY = Link(delay_min_s=0.001, delay_max_s=0.8, loss=0.1, duplicate=0.1, reorder=0.1, held_max_s=3.0)


# --- whole overlays ---


def play(overlay: Overlay, random: Random, topics: int = 2) -> list[Claimant]:
    """Principals come, go, come back and move at random. Returns those that stayed."""
    live = []
    nodes = [node.identifier for node in overlay.plan.nodes]
    for number in range(8):
        make = advertiser if number % 3 == 0 else subscriber
        one = make(f"principal {number}", random.choice(nodes), f"topic {random.randrange(topics)}")
        when = 20 * random.random()
        overlay.say(when, one, one.claim)
        for _ in range(random.randrange(3)):
            when += 10 * random.random()
            if random.random() < 0.3:
                left, one = one.edge, replace(one, edge=random.choice(nodes))
                overlay.say(when, one, one.claim, one.edge, left)
                continue
            overlay.say(when, one, one.undo)
            identifier = one.permit.identifier
            overlay.network.clock.at(when + 2, lambda identifier=identifier: overlay.ledger.ended.add(identifier))  # type: ignore[misc]
            if random.random() < 0.3:
                break
            one = make(one.who, one.edge, one.topic, number=one.number + 1)
            when += 5 * random.random()
            overlay.say(when, one, one.claim)
        else:
            live.append(one)
    return live


def check(overlay: Overlay, live: list[Claimant]) -> None:
    for one in live:
        if one.operation is Operation.ADVERTISE:
            assert overlay.reached(one) == overlay.expected(one, live)


@pytest.mark.parametrize("bad", ["", "silent", "lying"])
@pytest.mark.parametrize(("nodes", "size"), [(1, 3), (3, 5), (7, 3)])
def test_publications_reach_every_subscriber_along_honest_relays_and_nobody_else(
    nodes: int, size: int, bad: str, seed: int
) -> None:
    random = Random(seed)
    parents = [random.randrange(max(number, 1)) for number in range(nodes)]
    overlay = Overlay(tree(parents, [size] * nodes), seed, bad, LOSSY)
    live = play(overlay, random)
    overlay.network.run(until=130.0)
    check(overlay, live)


@pytest.mark.long
def test_many_trees_and_many_lies(seed: int) -> None:
    for number in range(seed, seed + 40):
        random = Random(number)
        nodes, bad = random.randrange(1, 8), random.choice(["", "silent", "lying"])
        parents = [random.randrange(max(place, 1)) for place in range(nodes)]
        sizes = [random.choice([3, 3, 4, 5] if nodes < 5 else [3]) for _ in range(nodes)]
        overlay = Overlay(tree(parents, sizes), number, bad, LOSSY)
        live = play(overlay, random)
        overlay.network.run(until=130.0)
        check(overlay, live)


def test_one_honest_relay_is_enough_to_pass_a_fresh_claim_on_and_none_is_not() -> None:
    publisher, reader = advertiser("car", LEFT), subscriber("shop", RIGHT)
    for silent, nodes in ((1, (HERE,)), (2, (HERE,)), (3, ())):
        overlay = Overlay(line(3), 1)
        for index in range(silent):
            overlay.network.crash(at(1, index).hex())
        overlay.say(0.0, publisher, publisher.claim)
        overlay.say(1.0, reader, reader.claim)
        overlay.network.run(until=10.0)
        assert {role.routing.branches([token("brakes")], LEFT).nodes for role in overlay.honest[LEFT]} == {nodes}


# --- one relay, by hand: the middle of a line of three ---

HERE, LEFT, RIGHT = node_name(1), node_name(0), node_name(2)
NOW = 1000.0


def middle(plan: Plan | None = None, **options: Any) -> Routing:
    return make_routing(relay(1, 0).identifier, plan or line(3), **options)


def at(node: int, index: int = 0) -> bytes:
    return relay(node, index).identifier


FIRSTS = {at(node): node_name(node) for node in range(7)}


def told(effects: Sequence[Effect]) -> list[tuple[bytes, bytes]]:
    """(virtual node, claim), in the order in which its first relay is told."""
    frames = [(bytes.fromhex(one.to), OverlayFrame.decode(one.message)) for one in effects if isinstance(one, Send)]
    return [(FIRSTS[to], frame.content) for to, frame in frames if to in FIRSTS and frame.kind is FrameKind.ROUTE]


def reason(routing: Routing, data: bytes, sender: bytes, now: float = NOW) -> str:
    with pytest.raises(Refused) as caught:
        routing.take(data, sender, now)
    return caught.value.reason


def test_fig_4_advertisements_flood_subscriptions_follow_them_back_and_publications_those() -> None:
    routing, car, shop = middle(), advertiser("car", LEFT).claim(NOW), subscriber("shop", RIGHT)
    wanted = shop.claim(NOW)
    assert told(routing.receive(wanted, at(2), NOW)) == []  # nobody publishes yet
    assert told(routing.receive(car, at(0), NOW)) == [(RIGHT, car), (LEFT, wanted)]
    assert routing.branches([token("brakes")], LEFT) == ((RIGHT,), ())
    assert routing.branches([token("brakes")], RIGHT) == routing.branches([token("doors")], LEFT) == NOWHERE
    assert [routing.receive(wanted, at(2, index), NOW) for index in (1, 2)] == [[], []]
    assert routing.statistics() == RoutingStatistics(2, 0, 2, 2, {})
    assert told(routing.receive(undo := shop.undo(NOW), at(2), NOW)) == [(LEFT, undo)]
    assert routing.branches([token("brakes")], LEFT) == NOWHERE


def test_every_relay_of_a_neighbour_is_told_and_those_who_replicate_us_too() -> None:
    routing, yard = middle(line(3, 5)), subscriber("yard", HERE)
    sends = routing.receive(yard.claim(NOW), yard.permit.principal, NOW)
    assert {bytes.fromhex(one.to) for one in sends} == {at(1, index) for index in (1, 2, 3, 4)}
    sends = routing.receive(advertiser("car", LEFT).claim(NOW), at(0), NOW)
    assert len(sends) == 10  # to the right it floods, to the left goes the subscription
    assert routing.branches([token("brakes")], LEFT) == ((), (yard.permit.principal,))


def test_an_order_that_overtakes_its_claim_holds() -> None:
    routing, shop = middle(), subscriber("shop", RIGHT)
    assert routing.receive(undo := shop.undo(NOW), at(2), NOW) == []
    assert told(routing.receive(shop.claim(NOW), at(2), NOW)) == [(RIGHT, undo)]  # its sender may not know
    assert (routing.statistics().live, routing.statistics().refused) == (0, {"permit-ended": 1})


def test_a_permit_that_is_over_or_ended_on_the_ledger_is_swept_out() -> None:
    ledger = Ledger()
    routing, shop, yard = middle(ledger=ledger), subscriber("shop", RIGHT), subscriber("yard", RIGHT)
    routing.receive(advertiser("car", LEFT).claim(NOW), at(0), NOW)
    claims = {one.permit.identifier: one.claim(NOW) for one in (shop, yard)}
    first, second = sorted(claims)
    assert told(routing.receive(claims[first], at(2), NOW)) == [(LEFT, claims[first])]
    assert told(routing.receive(claims[second], at(2), NOW)) == []  # covered
    ledger.ended.add(first)
    assert told(routing.sweep(NOW)) == [(LEFT, claims[second])]
    assert reason(routing, claims[first], at(2)) == "permit-ended"
    routing.receive(yard.undo(NOW), at(2), NOW)
    assert routing.statistics().undone == 1
    ledger.ended.add(second)
    routing.sweep(NOW)
    assert (routing.statistics().live, routing.statistics().undone) == (1, 0)
    assert routing.sweep(2e12) == []
    assert routing.statistics().live == 0


def test_a_parcel_of_several_topics_goes_wherever_one_of_them_goes() -> None:
    plan = tree([0, 0, 1, 1], [3] * 4)
    routing, yard, both = middle(plan), subscriber("yard", HERE), [token("brakes"), token("doors")]
    for topic in ("brakes", "doors"):
        car = advertiser("car", HERE, topic)
        routing.receive(car.claim(NOW), car.permit.principal, NOW)
    assert routing.grown() == set(both)
    routing.receive(subscriber("shop", RIGHT).claim(NOW), at(2), NOW)
    assert (routing.grown(), routing.grown()) == ({token("brakes")}, set())
    routing.receive(subscriber("barn", node_name(3), "doors").claim(NOW), at(3), NOW)
    routing.receive(yard.claim(NOW), yard.permit.principal, NOW)
    assert routing.branches(both, None) == (tuple(sorted([RIGHT, node_name(3)])), (yard.permit.principal,))
    assert routing.branches([token("doors")], None) == ((node_name(3),), ())
    assert routing.subscriptions(token("brakes")) == (yard.permit,)
    assert routing.branches(both, RIGHT) == routing.branches([], None) == NOWHERE


# --- attacks, each with its defence and without ---


def test_a_forged_claim_ends_at_the_first_honest_relay() -> None:
    shop, routing = subscriber("shop", RIGHT), middle()
    routing.receive(advertiser("car", LEFT).claim(NOW), at(0), NOW)
    forged = sign_claim(
        MessageKind.SUBSCRIBE, RIGHT, shop.permit, SigningKey.from_seed(bytes(32)), bytes(16), int(NOW * 1000)
    )
    assert routing.receive(forged, at(2), NOW) == []
    assert routing.statistics().refused == {"bad-signature": 1}
    with without("the signature on a claim"):
        assert told(routing.receive(forged, at(2), NOW)) == [(LEFT, forged)]


def test_a_permit_that_no_authority_signed_fills_nobodys_window() -> None:
    """Its envelope verifies, under the forger's own key."""
    shop, mallory = subscriber("shop", RIGHT), SigningKey.from_seed(bytes(32))
    permit = replace(shop.permit, signing_key=mallory.public.raw).sign(mallory)
    routing = middle(guard=replace(GUARD, window_share_max=1))
    for number in range(3):
        forged = sign_claim(MessageKind.SUBSCRIBE, RIGHT, permit, mallory, bytes([number]) * 16, int(NOW * 1000))
        assert reason(routing, forged, at(2)) == "forged"
    routing.take(shop.claim(NOW), at(2), NOW)


def test_anothers_permit_and_anothers_order_are_worth_nothing() -> None:
    shop, thief, when = subscriber("shop", RIGHT), subscriber("thief", RIGHT), int(NOW * 1000)

    def claim(kind: MessageKind, key: SigningKey, order: Any = None) -> bytes:
        return sign_claim(kind, RIGHT, shop.permit, key, bytes(16), when, order)

    undo, forged = MessageKind.UNSUBSCRIBE, order_for(shop.permit).sign(thief.key)
    assert reason(middle(), claim(MessageKind.SUBSCRIBE, thief.key), at(2)) == "bad-signature"
    assert reason(middle(), claim(MessageKind.ADVERTISE, shop.key), at(2)) == "wrong-permit"
    assert reason(middle(), claim(undo, shop.key, order_for(thief.permit)), at(2)) == "wrong-permit"
    assert reason(middle(), claim(undo, shop.key), at(2)) == "malformed"
    assert reason(middle(), claim(undo, shop.key, forged), at(2)) == "forged"
    assert reason(middle(), claim(undo, thief.key, order_for(shop.permit)), at(2)) == "bad-signature"
    assert reason(middle(), claim(undo, shop.key, order_for(shop.permit)), thief.permit.principal) == "not-yours"


def test_colluders_at_two_ends_cannot_draw_a_subscribers_publications_away() -> None:
    """A star around here: a liar on the right hands a claim to a friend above, who is quicker than the honest."""
    plan, above = tree([0, 0, 1, 1], [3] * 4), node_name(3)
    claim = subscriber("shop", RIGHT).claim(NOW)
    routing = middle(plan)
    routing.receive(advertiser("car", LEFT).claim(NOW), at(0), NOW)
    assert reason(routing, claim, at(3)) == "misrouted"
    routing.receive(claim, at(2), NOW)
    assert routing.branches([token("brakes")], LEFT).nodes == (RIGHT,)
    with without("the edge that a principal signs", last_hop=above):
        deceived = middle(plan)
        deceived.receive(claim, at(3), NOW)
        deceived.receive(claim, at(2), NOW)
    deceived.receive(advertiser("car", LEFT).claim(NOW), at(0), NOW)
    assert deceived.branches([token("brakes")], LEFT).nodes == (above,)


def test_claims_come_from_their_own_side() -> None:
    car, yard = advertiser("car", LEFT), subscriber("yard", HERE)
    stranger, routing = subscriber("shop", HERE).permit.principal, middle()
    assert reason(routing, car.claim(NOW), at(2)) == "misrouted"
    assert reason(routing, car.claim(NOW), car.permit.principal) == "misrouted"  # a client of another edge
    assert reason(routing, yard.claim(NOW), stranger) == "misrouted"
    assert reason(routing, yard.claim(NOW), at(0)) == "misrouted"
    assert reason(routing, car.claim(NOW, edge=bytes(16)), at(0)) == "unknown-edge"
    routing.take(yard.claim(NOW), at(1, 1), NOW)


def test_an_undone_subscription_does_not_come_back_by_replay() -> None:
    routing, shop = middle(), subscriber("shop", RIGHT)
    routing.receive(advertiser("car", LEFT).claim(NOW), at(0), NOW)
    claim, undo = shop.claim(NOW), shop.undo(NOW)
    routing.receive(claim, at(2), NOW)
    routing.receive(undo, at(2), NOW)
    answer = routing.receive(claim, at(2, 2), NOW + 1)  # maybe it missed the order
    assert [(one.to, OverlayFrame.decode(one.message).content) for one in answer] == [(at(2, 2).hex(), undo)]
    assert reason(routing, shop.claim(NOW + 2), shop.permit.principal) == "permit-ended"
    assert routing.branches([token("brakes")], LEFT) == NOWHERE
    with without("the end of claims", "the window of envelopes"):
        routing.receive(claim, at(2, 2), NOW + 3)
    assert routing.branches([token("brakes")], LEFT).nodes == (RIGHT,)


def test_an_undone_subscription_does_not_come_back_when_all_is_forgotten() -> None:
    """Nobody here ever heard of it, and it is old: f liars cannot vouch for it. Without that rule one of them can."""
    claim, later = subscriber("shop", RIGHT).claim(NOW), NOW + 66
    routing = middle()
    assert reason(routing, claim, at(2, 2), later) == "unvouched"
    assert reason(routing, claim, at(2, 2), later) == "unvouched"  # one vote, however often
    assert reason(routing, claim, at(0, 0), later) == "misrouted"
    with without("the voucher for old claims"):
        middle().take(claim, at(2, 2), later)
    routing.take(claim, at(2, 1), later)


def test_a_relay_that_vouches_for_junk_wears_out_its_own_votes() -> None:
    routing = middle(limits=RoutingLimits(votes_max=4))
    claims = [subscriber(f"reader {number}", RIGHT).claim(NOW) for number in range(8)]
    later = NOW + 66
    routing.receive(claims[0], at(2, 1), later)
    for claim in claims:
        routing.receive(claim, at(2, 2), later)
    assert routing.statistics().live == 1
    for claim in (claims[7], claims[1]):  # the second vote for this one was pushed out
        routing.receive(claim, at(2, 1), later)
    assert (routing.statistics().live, routing.statistics().refused) == (2, {"unvouched": 9})


def test_a_flood_of_new_claims_ends_with_its_principals_share() -> None:
    """A principal that goes to and fro between two edges makes everybody talk, for as long as its share lasts."""

    def flood(routing: Routing) -> int:
        shop, count = subscriber("shop", RIGHT), 0
        routing.receive(advertiser("car", LEFT).claim(NOW), at(0), NOW)
        routing.receive(advertiser("van", RIGHT).claim(NOW), at(2), NOW)
        for number in range(40):
            edge, side = (RIGHT, 2) if number % 2 else (LEFT, 0)
            count += len(told(routing.receive(shop.claim(NOW + number / 100, edge), at(side), NOW)))
        return count

    few = replace(GUARD, window_share_max=8)
    assert flood(middle(guard=few)) == 8
    with without("the window of envelopes"):
        assert flood(middle(guard=few)) == 40


def test_repetitions_cost_a_look_and_go_nowhere() -> None:
    routing, claim = middle(), subscriber("shop", RIGHT).claim(NOW)
    routing.receive(claim, at(2), NOW)
    assert [routing.receive(claim, at(2, 1), NOW) for _ in range(1000)] == [[]] * 1000
    assert routing.statistics().repeated == 1000


def test_tables_are_bounded_for_each_principal_and_in_all() -> None:
    routing = middle(limits=RoutingLimits(claims_max=4, principal_max=2))
    greedy = [subscriber("greedy", RIGHT, f"topic {number}") for number in range(4)]
    for one in greedy[:2]:
        routing.take(one.claim(NOW), at(2), NOW)
    assert reason(routing, greedy[2].claim(NOW), at(2)) == "too-many-claims"
    [notice] = routing.receive(greedy[3].claim(NOW), at(2), NOW)
    assert Notice.decode(OverlayFrame.decode(notice.message).content).subject == greedy[3].permit.identifier
    for who in ("shop", "yard"):
        routing.take(subscriber(who, RIGHT).claim(NOW), at(2), NOW)
    assert reason(routing, subscriber("late", RIGHT).claim(NOW), at(2)) == "tables-full"
    routing.take(greedy[0].undo(NOW), at(2), NOW)  # taking back needs no room
    assert reason(routing, greedy[2].claim(NOW), at(2)) == "too-many-claims"  # the order is remembered
    with without("the room for one principal"):
        for one in greedy[2:]:
            routing.take(one.claim(NOW), at(2), NOW)


def test_a_tenant_with_many_principals_leaves_room_for_others() -> None:
    many = [subscriber(f"puppet {number}", RIGHT) for number in range(8)]
    tenants = {one.permit.principal: b"greedy" for one in many}

    def fill() -> Routing:
        routing = middle(limits=RoutingLimits(claims_max=8, tenant_max=4), tenants=tenants)
        for one in (*many, subscriber("shop", RIGHT)):
            routing.receive(one.claim(NOW), at(2), NOW)
        return routing

    routing = fill()
    assert routing.statistics().live == 4 + 1
    assert routing.statistics().refused == {"too-many-claims": 4}
    routing.take(many[0].undo(NOW), at(2), NOW)
    assert reason(routing, many[5].claim(NOW), at(2)) == "too-many-claims"  # the order is remembered
    routing.sweep(max(one.permit.not_after_ms for one in many) / 1000)
    assert not routing._store._held
    assert not routing._store._tenants
    with without("the room for one tenant"):
        assert fill().statistics().refused == {"tables-full": 1}  # the other's


def test_who_is_refused_over_there_covers_nobody_here() -> None:
    """A reader whose share is spent on the left would otherwise starve all whom it covers here."""

    def play_refusal(routing: Routing) -> list[tuple[bytes, bytes]]:
        readers = sorted([subscriber("shop", RIGHT), subscriber("yard", RIGHT)], key=lambda one: one.permit.identifier)
        routing.receive(advertiser("car", LEFT).claim(NOW), at(0), NOW)
        assert told(routing.receive(first := readers[0].claim(NOW), at(2), NOW)) == [(LEFT, first)]
        assert told(routing.receive(readers[1].claim(NOW), at(2), NOW)) == []
        refusal = Notice(NoticeKind.REFUSE, readers[0].permit.identifier, 1)
        found = told(routing.receive_refusal(refusal, at(0, 1)))
        assert routing.receive_refusal(refusal, at(0, 2)) == []
        return found

    assert [node for node, _ in play_refusal(middle())] == [LEFT]
    with without("the word that a claim was refused"):
        assert play_refusal(middle()) == []


def test_a_relay_that_refuses_everything_costs_the_saving_and_no_endless_choosing() -> None:
    readers = sorted((subscriber(f"reader {n}", RIGHT) for n in range(20)), key=lambda one: one.permit.identifier)
    routing = middle()
    routing.receive(advertiser("car", LEFT).claim(NOW), at(0), NOW)
    for one in readers:
        routing.receive(one.claim(NOW), at(2), NOW)
    counts = []
    for one in readers:
        refusal = Notice(NoticeKind.REFUSE, one.permit.identifier, 1)
        counts.append(len(told(routing.receive_refusal(refusal, at(0, 2)))))
    assert counts == [1] * 8 + [11] + [0] * 11
    assert len(told(routing.receive(subscriber("late", RIGHT).claim(NOW), at(2), NOW))) == 1


def test_a_reader_that_signs_for_two_edges_at_once_starves_nobody() -> None:
    """On the left it is elsewhere by a later claim. The answer to ours tells us so, and what it covered is sent."""
    plan, elsewhere = tree([0, 0, 1, 0], [3] * 4), node_name(3)
    readers = sorted([subscriber("shop", RIGHT), subscriber("yard", RIGHT)], key=lambda one: one.permit.identifier)
    older, later = readers[0].claim(NOW), readers[0].claim(NOW + 1, elsewhere)
    second = readers[1].claim(NOW)

    def talk() -> bytes:
        here, left = middle(plan), make_routing(at(0), plan)
        for routing in (here, left):
            car = advertiser("car", LEFT)
            routing.receive(car.claim(NOW), car.permit.principal if routing is left else at(0), NOW)
        left.receive(later, at(3), NOW)
        sends = [*here.receive(older, at(2), NOW), *here.receive(second, at(2), NOW)]
        for _, claim in told(sends):
            for answer in left.receive(claim, at(1), NOW):
                if answer.to == at(1).hex():
                    for _, again in told(here.receive(OverlayFrame.decode(answer.message).content, at(0), NOW)):
                        left.receive(again, at(1), NOW)
        return b"".join(left.branches([token("brakes")], None).nodes)

    assert talk() == b"".join(sorted([HERE, elsewhere]))
    with without("the answer to an older claim"):
        assert talk() == elsewhere


# --- a principal that moves ---


def test_a_principal_that_goes_to_another_edge_takes_its_subscription_along(seed: int) -> None:
    overlay = Overlay(tree([0, 0, 1, 1, 0], [3] * 5), seed, "lying", Link(delay_max_s=0.5, loss=0.05))
    car, van = advertiser("car", node_name(0)), advertiser("van", node_name(2))
    shop, yard = subscriber("shop", node_name(2)), subscriber("yard", node_name(3))
    for one in (car, van, shop, yard):
        overlay.say(0.0, one, one.claim)
    overlay.network.run(until=10.0)
    check(overlay, [car, van, shop, yard])
    moved = replace(shop, edge=node_name(4))
    overlay.say(10.0, moved, moved.claim, moved.edge, shop.edge)
    overlay.network.run(until=30.0)
    check(overlay, [car, van, moved, yard])


def test_a_claim_signed_again_changes_nothing_and_travels_nowhere() -> None:
    routing, shop = middle(), subscriber("shop", RIGHT)
    routing.receive(advertiser("car", LEFT).claim(NOW), at(0), NOW)
    routing.receive(shop.claim(NOW), at(2), NOW)
    assert routing.receive(again := shop.claim(NOW + 1), at(2), NOW) == []
    parts = [RoutingState.decode(OverlayFrame.decode(one.message).content) for one in routing.state_for(at(0), LEFT)]
    assert again in parts[0].claims
    assert routing.receive(shop.claim(NOW - 500), at(2), NOW) == []  # older still
    assert routing.statistics().live == 2


def test_another_plan_sends_claims_the_other_way() -> None:
    """The right hangs on the left from now on; and an edge that is gone takes its claims along."""
    first = tree([0, 0, 1, 1], [3] * 4)
    routing = middle(first)
    car, gone = advertiser("car", RIGHT).claim(NOW), subscriber("gone", node_name(3))
    routing.receive(car, at(2), NOW)
    routing.receive(gone.claim(NOW), at(3), NOW)
    assert routing.branches([token("brakes")], RIGHT).nodes == (node_name(3),)
    second = tree([0, 0, 0], [3] * 3, version=2)
    yard = subscriber("yard", HERE)
    routing.receive(yard.claim(NOW), yard.permit.principal, NOW)
    sends = routing.adopt(second)
    assert [node for node, _ in told(sends)] == [LEFT]
    assert {OverlayFrame.decode(one.message).plan for one in sends} == {2}
    assert routing.branches([token("brakes")], RIGHT) == NOWHERE
    assert routing.branches([token("brakes")], LEFT) == ((), (yard.permit.principal,))
    assert routing.statistics().refused == {"unknown-edge": 1}
    with pytest.raises(Misuse):
        routing.adopt(tree([0], [3], version=3))


# --- labels and covering ---


def keyed(epoch: int, *names: int, number: int = 0) -> tuple[bytes, ...]:
    return tuple(sorted(epoch.to_bytes(4, "big") + bytes([1, number]) + bytes([name]) * 8 for name in names))


def header(*labels: bytes, epoch: int = 7) -> Header:
    topic = TopicRef(token("brakes"), bytes(16), epoch)
    values = (bytes(32), ParcelKind.DATA, (topic,), bytes(16), 0, bytes(32), 1, bytes(32), bytes(16), 0, 1, (), 0)
    return Header(*values, bytes(32), labels=tuple(label[4:] for label in labels))


def test_labels_keep_a_publication_from_where_nobody_wants_it() -> None:
    routing = middle()
    routing.receive(advertiser("car", LEFT).claim(NOW), at(0), NOW)
    shop = subscriber("shop", RIGHT, labels=keyed(7, 1, 2))
    yard = subscriber("yard", HERE, labels=keyed(7, 2, 3))
    routing.receive(shop.claim(NOW), at(2), NOW)
    routing.receive(yard.claim(NOW), yard.permit.principal, NOW)
    for labels, nodes, here in (
        (keyed(7, 1), (RIGHT,), ()),
        (keyed(7, 3), (), (yard.permit.principal,)),
        (keyed(7, 9), (), ()),
        ((), (RIGHT,), (yard.permit.principal,)),
        (keyed(7, 2), (RIGHT,), (yard.permit.principal,)),
    ):
        assert routing.branches([token("brakes")], LEFT, header(*labels)) == (nodes, here)
    assert routing.branches([token("brakes")], LEFT, header(*keyed(7, 9), epoch=8)) == (
        (RIGHT,),
        (yard.permit.principal,),
    )
    assert routing.branches([token("brakes")], LEFT) == ((RIGHT,), (yard.permit.principal,))
    routing.receive(subscriber("all", RIGHT).claim(NOW), at(2), NOW)
    assert routing.branches([token("brakes")], LEFT, header(*keyed(7, 9))).nodes == (RIGHT,)


def test_a_narrower_subscription_is_sent_when_the_wider_goes_and_before_its_order() -> None:
    routing = middle()
    wide, narrow = subscriber("wide", RIGHT, labels=keyed(7, 1, 2)), subscriber("narrow", RIGHT, labels=keyed(7, 1))
    routing.receive(advertiser("car", LEFT).claim(NOW), at(0), NOW)
    assert len(told(routing.receive(wide.claim(NOW), at(2), NOW))) == 1
    assert told(routing.receive(claim := narrow.claim(NOW), at(2), NOW)) == []
    undo = wide.undo(NOW)
    assert told(routing.receive(undo, at(2), NOW)) == [(LEFT, claim), (LEFT, undo)]


SPEED = TopicCode.read(["speed:4:0..160"], pa.schema([("speed", pa.int32())]))


def clear(epoch: int, *strings: str) -> tuple[bytes, ...]:
    labeller = Labeller(SPEED, None)
    return tuple(sorted(epoch.to_bytes(4, "big") + labeller.label(0, string) for string in strings))


def test_prefixes_cover_only_where_the_topic_is_declared_clear() -> None:
    wide, narrow = (
        subscriber("wide", RIGHT, labels=clear(7, "01", "1")),
        subscriber("n", RIGHT, labels=clear(7, "0110")),
    )
    for is_clear, count in ((True, 0), (False, 1)):
        routing = middle(clear=frozenset({token("brakes")} if is_clear else ()))
        routing.receive(advertiser("car", LEFT).claim(NOW), at(0), NOW)
        routing.receive(wide.claim(NOW), at(2), NOW)
        assert len(told(routing.receive(narrow.claim(NOW), at(2), NOW))) == count


LABELS = [(), keyed(7, 1), keyed(7, 1, 2), keyed(7, 1, 2, 3), keyed(7, 3), keyed(8, 1), keyed(7, 1, number=1)]
CLAIMANTS = [advertiser(f"publisher {n}", node_name(n % 4)) for n in range(4)] + [
    subscriber(f"reader {n}", node_name(n % 4), labels=LABELS[n % len(LABELS)]) for n in range(14)
]
CLAIMS = [Claim.decode(one.claim(NOW)) for one in CLAIMANTS]


@given(st.lists(st.integers(0, len(CLAIMS) - 1), max_size=60))
@settings(max_examples=150, deadline=None)
def test_what_a_neighbour_is_to_know_hangs_on_the_claims_alone(order: list[int]) -> None:
    """Coming and going in any order: as if those that are there now had come at once. Told was all that is due."""
    neighbours = [node_name(number) for number in (1, 2, 3)]
    tables, live = RoutingTables(node_name(0), neighbours, lambda token: False), dict[int, RouteEntry]()
    sent: set[tuple[bytes, bytes]] = set()
    for number in order:
        if number in live:
            news = tables.remove(live.pop(number))
        else:
            claim = CLAIMS[number]
            live[number] = RouteEntry(claim, bytes(32), claim.edge, Wanted(claim.permit.labels))
            sent -= {(node, claim.identifier) for node in neighbours}
            news = tables.add(live[number])
        sent |= {(node, entry.claim.identifier) for node, entry in news}
    anew = RoutingTables(node_name(0), neighbours, lambda token: False)
    anew.load([RouteEntry(one.claim, one.digest, one.towards, one.wanted) for one in live.values()])
    for node in neighbours:
        due = {entry.claim.identifier for entry in tables.due(node)}
        assert due == {entry.claim.identifier for entry in anew.due(node)}
        assert {(node, identifier) for identifier in due} <= sent
        assert tables.branches(token("brakes"), node, None).nodes == anew.branches(token("brakes"), node, None).nodes


# --- hostile bytes ---

GOOD = [subscriber("shop", RIGHT).claim(NOW), subscriber("shop", RIGHT).undo(NOW)]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_hostile_claims_are_refused_and_leave_nothing_behind(data: st.DataObject) -> None:
    claim = bytearray(data.draw(st.sampled_from(GOOD)))
    place = data.draw(st.integers(0, len(claim) - 1))
    claim[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(min_size=1, max_size=3))
    routing = middle()
    if bytes(claim) not in GOOD:
        routing.receive(bytes(claim), at(2), NOW)
    assert routing.receive(data.draw(st.binary(max_size=60)), at(2), NOW) == []
    assert routing.statistics().live == routing.statistics().undone == 0
