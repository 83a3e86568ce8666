"""Parcels on their way through relays that drop, alter, repeat and move them, in a simulated network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from carrying_world import (
    CAR,
    MANNERS,
    STRATEGIES,
    CarryingWorld,
    Drop,
    drop,
    promised,
    sealed,
    sealed_long,
)
from sharing_world import LINK, NOW, chain, key_of, relay_name
from without import without

from tallystick import wire
from tallystick.carriers.overlay.carried import ContentMessage, RelayedParcel, name_carried
from tallystick.carriers.overlay.content import Strategy, carrier
from tallystick.carriers.overlay.content_forwarding import CarriedParcel, ContentLimits
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.crypto.coding import encode
from tallystick.errors import Forged, Malformed, Misuse
from tallystick.parcel.header import SIGNATURE_CONTEXT
from tallystick.parcel.labels import LABEL_BYTES, Wanted
from tallystick.parcel.parcel import Parcel, is_front
from tallystick.runtime.effects import Arrived, Deliver, Effect, Send, WakeAt, Woken
from tallystick.runtime.network import Link
from tallystick.trust.promise import JointPromise

CHAINS = [(3,), (3, 3), (5, 5), (3, 3, 3, 3, 3)]


def code_for(sizes: tuple[int, ...], coded: tuple[int, int] | None) -> tuple[int, int] | None:
    return None if coded is None else (max(sizes) // 2 + 1, max(sizes))


def bad(
    sizes: tuple[int, ...], seed: int, manners: Sequence[Drop] | None = None
) -> dict[tuple[int, int], Sequence[Drop]]:
    random = Random(seed)
    return {
        (number, index): manners or random.sample(list(MANNERS.values()), 2)
        for number, size in enumerate(sizes, start=1)
        for index in random.sample(range(1, size + 1), (size - 1) // 2)
    }


def holds(world: CarryingWorld, parcels: Sequence[Parcel], seconds: float = 40.0) -> None:
    """Every honest relay at the subscriber's edge has every parcel once, at its place, and no honest one is suspected
    by another."""
    world.offer(parcels)
    world.run(seconds)
    wanted = [(offset, parcel.hash) for offset, parcel in enumerate(parcels)]
    for index in range(1, world.sizes[-1] + 1):
        if (len(world.sizes), index) not in world.bad:
            assert world.delivered(index) == wanted
    assert world.suspected() <= {relay_name(*place) for place in world.bad}


@pytest.mark.parametrize(("strategy", "coded"), STRATEGIES)
@pytest.mark.parametrize("sizes", [*CHAINS, (3, 5, 3)])
def test_what_is_offered_arrives_once(
    sizes: tuple[int, ...], strategy: Strategy, coded: tuple[int, int] | None
) -> None:
    world = CarryingWorld(sizes, link=replace(LINK, duplicate=0.2), limits=ContentLimits(strategy=strategy))
    holds(world, sealed(4, code_for(sizes, coded)))
    assert not world.suspected()


@pytest.mark.parametrize(("strategy", "coded"), STRATEGIES)
def test_long_bodies_and_blocks_arrive_too(strategy: Strategy, coded: tuple[int, int] | None) -> None:
    world = CarryingWorld((3, 3), bad={(1, 2): [drop]}, limits=ContentLimits(strategy=strategy))
    holds(world, sealed_long(coded))


@pytest.mark.parametrize(("strategy", "coded"), STRATEGIES)
@pytest.mark.parametrize("manner", MANNERS)
def test_whatever_the_bad_do(manner: str, strategy: Strategy, coded: tuple[int, int] | None) -> None:
    for sizes in ((3, 3, 3), (5, 5)):
        limits = ContentLimits(strategy=strategy)
        holds(
            CarryingWorld(sizes, 1, bad(sizes, 1, [MANNERS[manner]]), limits=limits), sealed(3, code_for(sizes, coded))
        )


@pytest.mark.parametrize("seed", range(6))
def test_mixtures_along_a_whole_way_with_messages_that_are_late(seed: int) -> None:
    sizes, (strategy, coded) = CHAINS[seed % len(CHAINS)], STRATEGIES[seed % 3]
    late = Link(0.001, 0.02, reorder=0.05, held_max_s=2.0)
    holds(
        CarryingWorld(sizes, seed, bad(sizes, seed), late, ContentLimits(strategy=strategy)),
        sealed(3, code_for(sizes, coded)),
    )


def test_virtual_nodes_of_different_sizes_speak_of_the_same_parts() -> None:
    """Of five relays behind three, all have a part of their own that those before them know."""
    sizes = (3, 3, 5, 3)
    holds(CarryingWorld(sizes, 1525, bad(sizes, 1525), Link(0.001, 0.02, reorder=0.05, held_max_s=2.0)), sealed(3))


def test_one_copy_goes_round_those_who_keep_it_back() -> None:
    """Its carrier at each hop drops it; without asking it never comes."""
    sizes, limits = (3, 3, 3), ContentLimits(strategy=Strategy.ONE_COPY)
    carriers: dict[tuple[int, int], Sequence[Drop]] = {
        (hop + 1, carrier(0, hop, size) + 1): [drop] for hop, size in enumerate(sizes)
    }
    holds(CarryingWorld(sizes, 1, carriers, limits=limits), sealed(2))
    with without("asking for what did not come"):
        world = CarryingWorld(sizes, 1, carriers, limits=limits)
        world.offer(sealed(2))
        world.run()
        assert not any(world.delivered(index) for index in (1, 2, 3) if (3, index) not in carriers)


def test_a_relay_that_drops_everything_is_suspected() -> None:
    world = CarryingWorld((3, 3, 3), bad={(2, 1): [drop]})
    holds(world, sealed(2))
    assert world.suspected() == {relay_name(2, 1)}


def test_with_one_bad_relay_too_many_nothing_arrives() -> None:
    world = CarryingWorld((3, 3, 3), bad={(2, index): [drop] for index in (1, 2, 3)})
    world.offer(sealed(2))
    world.run()
    assert not world.delivered(1)


def test_a_parcel_of_which_nothing_is_missing_is_left_alone() -> None:
    """One look when its parts had time to come, and one when it is over."""
    world, parcel = CarryingWorld((3, 3)), sealed(1)[0]
    promise, limits = promised(world.plans[1], parcel, 0), ContentLimits()
    message = ContentMessage(promise.encode(), parcel.encode_front(), None, bytes(parcel.body))
    soon, end = WakeAt(NOW + limits.hop_wait_s), WakeAt(NOW + limits.hop_keep_s)
    first, last = world.relay(1, 1), world.relay(2, 1)
    assert end in first.content.offer(promise, parcel, NOW)
    assert soon in last.receive(arrived(message, relay_name(1, 1)), NOW)
    assert last.receive(Woken(), soon.time) == [end]


def test_a_relay_that_rests_fetches_what_it_is_asked_for() -> None:
    parcel = sealed(1, (2, 3))[0]
    world = CarryingWorld((3, 3, 3))
    world.offer([parcel])
    world.run(5.0)
    relay, name = world.relay(2, 1), name_carried(promised(world.plans[1], parcel, 0))
    errand = relay.content._errands[name]
    (lacking, *_) = sorted({0, 1, 2} - errand.carried.held)
    assert errand.rests
    effects = relay.receive(Arrived(relay_name(3, 1).hex(), question(name, lacking)), NOW + 5)
    assert [effect for effect in effects if isinstance(effect, WakeAt)] == [WakeAt(NOW + 5.5)]
    asked = [effect for effect in relay.receive(Woken(), NOW + 5.5) if isinstance(effect, Send)]
    assert {OverlayFrame.decode(one.message).kind for one in asked} == {FrameKind.ASK}


def test_without_asking_what_is_lost_stays_lost() -> None:
    sizes = (3, 3, 3)
    with without("asking for what did not come"):
        world = CarryingWorld(sizes, 1, {(number, number): [drop] for number in (1, 2, 3)})
        world.offer(sealed(2, (2, 3)))
        world.run()
        assert not world.delivered(1)
        assert not world.delivered(2)
    holds(CarryingWorld(sizes, 1, {(number, number): [drop] for number in (1, 2, 3)}), sealed(2, (2, 3)))


# --- bodies go where they are wanted ---


def labelled(parcels: Sequence[Parcel]) -> list[Parcel]:
    """Each with a label of its own number."""
    found = []
    for number, parcel in enumerate(parcels):
        header = replace(parcel.header, labels=(label(number),))
        found.append(Parcel(header, CAR.sign(SIGNATURE_CONTEXT, header.encoded), parcel.body))
    return found


def label(number: int) -> bytes:
    return bytes([1, 0]) + bytes([number]) * LABEL_BYTES


def asking(world: CarryingWorld, nodes: Sequence[int], *numbers: int) -> None:
    """Who is at these virtual nodes, or behind them, asks for these labels."""
    epoch = sealed(1)[0].header.topics[0].epoch.to_bytes(4, "big")
    for node in nodes:
        for index in range(1, world.sizes[node - 1] + 1):
            world.relay(node, index).routes.wanted = Wanted(epoch + label(number) for number in numbers)


def fronts(world: CarryingWorld, index: int) -> list[int]:
    """Offsets of what an edge relay of the subscriber delivered without a body."""
    name = relay_name(len(world.sizes), index).hex()
    told = [value for _, who, value in world.network.delivered if who == name and isinstance(value, CarriedParcel)]
    return sorted(one.promise.offset for one in told if is_front(one.parcel))


@pytest.mark.parametrize(("strategy", "coded"), STRATEGIES)
@pytest.mark.parametrize("manner", [None, *MANNERS])
def test_a_body_goes_only_where_a_label_asks_for_it_and_the_front_everywhere(
    manner: str | None, strategy: Strategy, coded: tuple[int, int] | None
) -> None:
    sizes, parcels = (3, 3, 3), labelled(sealed(4, coded))
    liars = {} if manner is None else bad(sizes, 1, [MANNERS[manner]])
    world = CarryingWorld(sizes, 1, liars, limits=ContentLimits(strategy=strategy))
    asking(world, (1, 2, 3), 0, 2)
    holds(world, parcels)
    for index in range(1, 4):
        if (3, index) not in liars:
            assert fronts(world, index) == [1, 3]
    held = [world.relay(2, index).content._errands.values() for index in range(1, 4) if (2, index) not in liars]
    assert not any(one.carried.held for errands in held for one in errands if one.carried.promise.offset in (1, 3))


@pytest.mark.parametrize("lying", [False, True])
@pytest.mark.parametrize(("strategy", "coded"), STRATEGIES)
def test_who_knows_more_than_those_before_it_asks_and_gets_the_body(
    strategy: Strategy, coded: tuple[int, int] | None, lying: bool
) -> None:
    """The claim has not come to the relays on the way yet, of which some may lie."""
    sizes = (3, 3, 3)
    world = CarryingWorld(sizes, 2, bad(sizes, 2) if lying else {}, limits=ContentLimits(strategy=strategy))
    asking(world, (1, 2), 0)
    asking(world, (3,), 0, 1)
    holds(world, labelled(sealed(2, coded)))
    assert not any(fronts(world, index) for index in range(1, 4))


# --- who can make a relay carry something ---


def arrived(message: ContentMessage, sender: bytes, plan: int = 1) -> Arrived:
    return Arrived(sender.hex(), message.frame(plan))


def test_what_f_relays_promise_is_carried_by_nobody() -> None:
    world, parcel = CarryingWorld((3, 3)), sealed(1)[0]
    relay, plan = world.relay(2, 1), world.plans[1]
    alone = promised(plan, parcel, 7, (2,))
    message = ContentMessage(alone.encode(), parcel.encode_front(), None, bytes(parcel.body))
    assert not relay.receive(arrived(message, relay_name(1, 2)), NOW)
    assert dict(relay.content.dropped) == {"forged": 1}
    with without("more signatures than may be bad"):
        effects = relay.receive(arrived(message, relay_name(1, 2)), NOW)
    assert any(isinstance(one, Deliver) and isinstance(one.value, CarriedParcel) for one in effects)


@pytest.mark.parametrize(
    ("change", "sender", "reason"),
    [
        ({}, relay_name(2, 2), "misrouted"),
        ({"instance": bytes(32)}, relay_name(1, 1), "forged"),
        ({"parcel": bytes(32)}, relay_name(1, 1), "forged"),
        ({"token": bytes(16)}, relay_name(1, 1), "malformed"),
        ({"plan": 2}, relay_name(1, 1), "plan"),
        ({"node": bytes(16)}, relay_name(1, 1), "malformed"),
        ({"overlay": bytes(16)}, relay_name(1, 1), "malformed"),
    ],
)
def test_a_promise_that_does_not_fit_is_dropped(change: dict[str, object], sender: bytes, reason: str) -> None:
    world, parcel = CarryingWorld((3, 3)), sealed(1)[0]
    relay, plan = world.relay(2, 1), world.plans[1]
    promise = replace(promised(plan, parcel, 0, ()), **change)  # type: ignore[arg-type]
    for index in (1, 2):
        promise = promise.sign(index, key_of(relay_name(1, index)))
    message = ContentMessage(promise.encode(), parcel.encode_front(), None, bytes(parcel.body))
    assert not relay.receive(arrived(message, sender, promise.plan), NOW)
    assert dict(relay.content.dropped) == {reason: 1}


def test_a_header_that_its_publisher_did_not_sign_is_dropped() -> None:
    world, parcel = CarryingWorld((3, 3)), sealed(1)[0]
    relay = world.relay(2, 1)
    forged = Parcel(parcel.header, bytes(64), parcel.body)
    message = ContentMessage(promised(world.plans[1], parcel, 0).encode(), forged.encode_front())
    assert not relay.receive(arrived(message, relay_name(1, 1)), NOW)
    assert dict(relay.content.dropped) == {"forged": 1}


def question(name: bytes, *parts: int) -> bytes:
    return OverlayFrame(FrameKind.ASK, 1, wire.encode([1, name, list(parts)])).encode()


def test_who_asks_without_end_is_not_answered_without_end() -> None:
    world, parcel = CarryingWorld((3, 3)), sealed(1)[0]
    edge, promise = world.relay(1, 1), promised(world.plans[1], parcel, 0)
    edge.content.offer(promise, parcel, NOW)
    asked = Arrived(relay_name(2, 1).hex(), question(name_carried(promise), 0))
    answers = [edge.receive(asked, NOW) for _ in range(50)]
    assert len([one for one in answers if one]) == ContentLimits().answers_max
    assert not edge.receive(Arrived(relay_name(1, 2).hex(), question(name_carried(promise), 0)), NOW)
    assert not edge.receive(Arrived(relay_name(2, 1).hex(), question(bytes(32), 0)), NOW)
    assert dict(edge.content.dropped) == {"full": 50 - ContentLimits().answers_max, "unknown": 2}


def test_memory_has_a_bound_and_the_oldest_goes() -> None:
    parcels = sealed(6)
    size = len(parcels[0].body)
    world = CarryingWorld((3, 3), limits=ContentLimits(bytes_max=3 * size))
    edge, plan = world.relay(1, 1), world.plans[1]
    for offset, parcel in enumerate(parcels):
        edge.content.offer(promised(plan, parcel, offset), parcel, NOW)
    assert [one.carried.promise.offset for one in edge.content._errands.values()] == [3, 4, 5]
    edge.receive(Woken(), NOW + ContentLimits().hop_keep_s)
    assert not edge.content._errands


def test_blocks_that_are_no_code_of_the_body_are_not_sent_on() -> None:
    """The publisher signs blocks of something else."""
    honest = sealed(1)[0]
    header = replace(honest.header, coding=encode(bytes(len(honest.body)), 2, 3).coding)
    parcel = Parcel(header, CAR.sign(SIGNATURE_CONTEXT, header.encoded), honest.body)
    world = CarryingWorld((3, 3))
    with pytest.raises(Forged, match="signed blocks"):
        world.relay(1, 1).content.offer(promised(world.plans[1], parcel, 0), parcel, NOW)


def test_any_one_bit_turned_is_dropped_or_harmless() -> None:
    world, parcel = CarryingWorld((3, 3)), sealed(1)[0]
    plan, random = world.plans[1], Random(2)
    message = ContentMessage(promised(plan, parcel, 0).encode(), parcel.encode_front(), None, bytes(parcel.body))
    data = message.frame(1)
    for _ in range(400):
        relay = CarryingWorld((3, 3)).relay(2, 1)
        turned = bytearray(data)
        turned[random.randrange(len(data))] ^= 1 << random.randrange(8)
        effects: Sequence[Effect] = []
        try:
            effects = relay.receive(Arrived(relay_name(1, 1).hex(), bytes(turned)), NOW)
        except Malformed:
            continue  # no frame at all: the driver drops it
        assert not [one for one in effects if isinstance(one, Deliver)]


def test_signatures_are_joined_and_counted_once() -> None:
    plan, parcel = chain((3, 3)), sealed(1)[0]
    first, second = promised(plan, parcel, 0, (1,)), promised(plan, parcel, 0, (3,))
    both = first.join(second)
    both.verify(plan)
    assert both == second.join(first) == JointPromise.decode(both.encode())
    assert [index for index, _ in both.join(both).signatures] == [1, 3]
    with pytest.raises(Misuse):
        first.join(promised(plan, parcel, 1, (3,)))
    with pytest.raises(Forged):
        first.verify(plan)
    with pytest.raises(Forged):
        replace(both, signatures=((1, both.signatures[0][1]), (2, both.signatures[0][1]))).verify(plan)
    with pytest.raises(Malformed):
        replace(both, signatures=(*both.signatures, (7, bytes(64)))).verify(plan)
    doubled = wire.encode([1, *wire.listed(both)[:-1], [list(both.signatures[0])] * 2])
    with pytest.raises(Malformed):
        JointPromise.decode(doubled)


def test_a_part_is_kept_only_where_it_fits() -> None:
    plan, (whole,) = chain((3, 3)), sealed(1)
    (coded,) = sealed(1, (2, 3))
    path = plan.path(plan.nodes[0].identifier, plan.nodes[1].identifier)
    carried = RelayedParcel(promised(plan, coded, 0), coded, plan, path, 0, False)
    assert not carried.take(carried.bare())
    assert not carried.take(carried.bare()._replace(body=bytes(coded.body)))  # it travels in blocks
    blocks = encode(bytes(coded.body), 2, 3)
    for index in (2, 0):
        message = carried.bare()._replace(block=blocks.block(coded.hash, index).encoded)
        assert carried.take(message)
        assert not carried.take(message)
    carried.rebuild()
    found = carried.whole()
    assert found is not None
    assert bytes(found.body) == bytes(coded.body)
    plain = RelayedParcel(promised(plan, whole, 0), whole, plan, path, 0, False)
    with pytest.raises(Forged):
        plain.take(plain.bare()._replace(body=bytes(len(whole.body))))
    assert not plain.messages([])
