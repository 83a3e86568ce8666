"""One order at a publisher's edge, whatever orderers and others do, in a simulated network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

import pytest
from carrying_world import sealed, sealed_long
from makers import INSTANCE, token
from sharing_world import LINK, NOW, chain, key_of, relay_name
from without import without

from tallystick import wire
from tallystick.carriers.overlay.content_forwarding import Suspicion
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.ordering import Ordering
from tallystick.carriers.overlay.places import Counted, Lease, OrderingLimits, Unjudged
from tallystick.carriers.overlay.relayed_keys import Evidence
from tallystick.carriers.storage import Place
from tallystick.errors import Refused
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, Role, Send, Woken
from tallystick.runtime.network import Link, Network
from tallystick.trust.plan import Plan
from tallystick.trust.promise import JointPromise

HERE = Place(token("brakes"), 0)


@dataclass
class Ledger:
    """What all relays know alike."""

    plans: dict[int, Plan]
    lease_now: Lease
    anchored_now: int = 0
    instance: bytes = INSTANCE

    def newest_plan(self) -> Plan:
        return self.plans[max(self.plans)]

    def plan(self, version: int) -> Plan | None:
        return self.plans.get(version)

    def lease(self, place: Place) -> Lease | None:
        return self.lease_now if place == HERE else None

    def anchored(self, place: Place) -> int:
        return self.anchored_now

    def block(self) -> tuple[int, int]:
        return 1, 1

    def stored(self, place: Place, parcel: bytes) -> Parcel | None:
        return next((one for one in (*sealed(8), *sealed_long()) if one.hash == parcel), None)


class Orderly:
    """A relay whose guards find every parcel good."""

    def __init__(self, name: bytes, ledger: Ledger, stored: Mapping[str, bytes]) -> None:
        self.name, self.ordering = name, Ordering(name, ledger.instance, key_of(name), ledger, stored)
        self.counted: list[Counted] = []

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if isinstance(event, Arrived):
            effects = self.ordering.take(OverlayFrame.decode(event.message), bytes.fromhex(event.sender), now)
        else:
            effects = self.ordering.wake(now)
        return self.judged(effects, now)

    def propose(self, parcel: Parcel, now: float) -> list[Effect]:
        return self.judged(self.ordering.propose(HERE, parcel, now), now)

    def judged(self, effects: list[Effect], now: float) -> list[Effect]:
        found: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Deliver) and isinstance(effect.value, Unjudged):
                found += self.propose(effect.value.parcel, now)
            else:
                if isinstance(effect, Deliver) and isinstance(effect.value, Counted):
                    self.counted.append(effect.value)
                found.append(effect)
        return found


Way = Callable[["Disorderly", Send], list[Effect]]


class Disorderly(Orderly):
    def __init__(self, name: bytes, ledger: Ledger, stored: Mapping[str, bytes], way: Way) -> None:
        super().__init__(name, ledger, stored)
        self._way, self.random = way, Random(name.hex())

    def judged(self, effects: list[Effect], now: float) -> list[Effect]:
        found: list[Effect] = []
        for effect in super().judged(effects, now):
            found += self._way(self, effect) if isinstance(effect, Send) else [effect]
        return found


def mute(liar: Disorderly, send: Send) -> list[Effect]:
    return []


def some(liar: Disorderly, send: Send) -> list[Effect]:
    return [send] if liar.random.random() < 0.5 else []


def fork(liar: Disorderly, send: Send) -> list[Effect]:
    """Another parcel for the same place, to those whose number is even."""
    frame = OverlayFrame.decode(send.message)
    if frame.kind is not FrameKind.ORDER or int(send.to[:4], 16) % 2:
        return [send]
    _, encoded, parcel = wire.decode(frame.content)
    promise = JointPromise.decode(encoded)
    other = sealed(8)[(promise.offset + 1) % 8].hash
    forged = replace(promise, parcel=other, signatures=()).sign(liar.name[1], key_of(liar.name))
    content = wire.encode([1, forged.encode(), parcel])
    return [Send(send.to, OverlayFrame(frame.kind, frame.plan, content).encode())]


WAYS: dict[str, Way] = {"mute": mute, "some": some, "fork": fork}


@dataclass
class Edge:
    """The relays of one virtual node; `bad` by index."""

    size: int = 3
    seed: int = 0
    bad: dict[int, Way] = field(default_factory=dict)
    link: Link = LINK
    instance: bytes = INSTANCE

    def __post_init__(self) -> None:
        self.ledger = Ledger({1: chain((self.size,))}, Lease(relay_name(1, 1), 1), instance=self.instance)
        self.network = Network(self.seed, self.link)
        self.network.clock.run(NOW)
        for index in range(1, self.size + 1):
            self.network.add(relay_name(1, index).hex(), partial(self._make, index))

    def _make(self, index: int, stored: Mapping[str, bytes]) -> Role:
        name, way = relay_name(1, index), self.bad.get(index)
        return Orderly(name, self.ledger, stored) if way is None else Disorderly(name, self.ledger, stored, way)

    def relay(self, index: int) -> Orderly:
        role = self.network.role(relay_name(1, index).hex())
        assert isinstance(role, Orderly)
        return role

    def publish(self, parcels: Sequence[Parcel], to: Sequence[int] | None = None) -> None:
        """To every relay, each in an order of its own."""
        random = Random(self.seed)
        for index in to or range(1, self.size + 1):
            for parcel in random.sample(list(parcels), len(parcels)):
                relay = self.relay(index)
                for effect in relay.propose(parcel, self.network.clock.now()):
                    self.network._carry_out(relay.name.hex(), effect)

    def run(self, seconds: float) -> None:
        self.network.run(self.network.clock.now() + seconds)

    def take_lease(self, index: int) -> None:
        """And all relays see the block."""
        self.ledger.lease_now = Lease(relay_name(1, index), self.ledger.lease_now.fence + 1)
        self.wake()

    def wake(self) -> None:
        for number in range(1, self.size + 1):
            relay = self.relay(number)
            for effect in relay.receive(Woken(), self.network.clock.now()):
                self.network._carry_out(relay.name.hex(), effect)

    def orders(self) -> list[list[bytes]]:
        """What honest relays counted, in the order of offsets."""
        found = []
        for index in range(1, self.size + 1):
            if index not in self.bad:
                counted = self.relay(index).counted
                assert [one.promise.offset for one in counted] == list(range(len(counted)))
                for one in counted:
                    one.promise.verify(self.ledger.plans[one.promise.plan])
                    assert one.promise.parcel == one.parcel.hash
                found.append([one.parcel.hash for one in counted])
        return found

    def convicted(self) -> set[bytes]:
        return {value.principal for _, _, value in self.network.delivered if isinstance(value, Evidence)}

    def suspected(self) -> set[bytes]:
        return {value.relay for _, _, value in self.network.delivered if isinstance(value, Suspicion)}


def in_one_order(edge: Edge, parcels: Sequence[Parcel]) -> None:
    first, *others = edge.orders()
    assert sorted(first) == sorted(one.hash for one in parcels)
    assert all(other == first for other in others)


@pytest.mark.parametrize("size", [3, 4, 5, 7])
def test_all_relays_give_parcels_the_same_places(size: int) -> None:
    edge = Edge(size)
    edge.publish(sealed(8))
    edge.run(3)
    in_one_order(edge, sealed(8))
    assert not edge.convicted() | edge.suspected()


@pytest.mark.parametrize("way", ["mute", "some"])
@pytest.mark.parametrize("size", [3, 5])
def test_relays_that_sign_nothing_hold_nobody_up(size: int, way: str) -> None:
    edge = Edge(size, 1, dict.fromkeys(range(2, 2 + (size - 1) // 2), WAYS[way]))
    edge.publish(sealed(8))
    edge.run(5)
    in_one_order(edge, sealed(8))


@pytest.mark.parametrize("seed", range(6))
def test_an_orderer_that_stalls_is_suspected_and_another_goes_on(seed: int) -> None:
    edge = Edge(3, seed, {1: [mute, some][seed % 2]}, replace(LINK, duplicate=0.1))
    edge.publish(sealed(8))
    edge.run(8)
    assert edge.suspected() == {relay_name(1, 1)}
    edge.take_lease(2)
    edge.run(8)
    in_one_order(edge, sealed(8))


def test_what_was_counted_keeps_its_place_when_the_lease_changes() -> None:
    edge = Edge(3)
    edge.publish(sealed(8)[:4])
    edge.run(2)
    before = edge.orders()[0]
    edge.take_lease(3)
    edge.publish(sealed(8)[4:])
    edge.run(4)
    in_one_order(edge, sealed(8))
    assert edge.orders()[0][:4] == before


def test_an_orderer_that_forks_is_convicted_by_its_own_hand_and_nobody_else_is() -> None:
    edge = Edge(5, 2, {1: fork})
    edge.publish(sealed(8))
    edge.run(4)
    assert edge.convicted() == {relay_name(1, 1)}


@pytest.mark.parametrize("parcels", [sealed(8), sealed_long()], ids=["short", "long"])
def test_a_relay_that_was_not_given_a_parcel_gets_it_from_the_others(parcels: tuple[Parcel, ...]) -> None:
    edge = Edge(3)
    edge.publish(parcels, to=(1, 2))
    edge.run(8)
    in_one_order(edge, parcels)


def test_one_that_was_started_again_does_not_contradict_itself() -> None:
    edge = Edge(3, 3)
    edge.publish(sealed(8))
    edge.run(0.01)
    edge.network.crash(relay_name(1, 2).hex())
    edge.network.restart(relay_name(1, 2).hex())
    edge.publish(sealed(8), to=(2,))
    edge.run(8)
    assert not edge.convicted()
    in_one_order(edge, sealed(8))


def test_what_is_anchored_is_forgotten() -> None:
    edge = Edge(3)
    edge.publish(sealed(8))
    edge.run(2)
    stored = edge.network._nodes[relay_name(1, 2).hex()].stored
    assert len(stored) == 8
    edge.ledger.anchored_now = 8
    for effect in edge.relay(2).ordering.wake(NOW + 3):
        edge.network._carry_out(relay_name(1, 2).hex(), effect)
    assert not stored
    assert not edge.relay(2).ordering._partition(HERE).heard


def order(parcel: Parcel, signer: int, sender: int = 0, **change: object) -> tuple[Arrived, JointPromise]:
    plan = chain((3,))
    what = INSTANCE, plan.overlay, plan.version, plan.nodes[0].identifier, 1, *HERE, 0, parcel.hash, 1, 1
    promise = replace(JointPromise(*what, ()), **change).sign(signer, key_of(relay_name(1, signer)))  # type: ignore[arg-type]
    content = wire.encode([1, promise.encode(), None])
    return Arrived(
        relay_name(1, sender or signer).hex(), OverlayFrame(FrameKind.ORDER, promise.plan, content).encode()
    ), promise


@pytest.mark.parametrize(
    ("signer", "sender", "change", "reason"),
    [
        (1, 9, {}, "misrouted"),
        (1, 2, {}, "malformed"),
        (1, 0, {"plan": 2}, "plan"),
        (1, 0, {"offset": 1 << 40}, "full"),
        (1, 0, {"instance": bytes(32)}, "plan"),
    ],
)
def test_orders_that_do_not_fit_are_dropped(signer: int, sender: int, change: dict[str, object], reason: str) -> None:
    relay = Edge(3).relay(2)
    event, _ = order(sealed(8)[0], signer, sender, **change)
    assert not relay.receive(event, NOW)
    assert dict(relay.ordering.dropped) == {reason: 1}


def test_nobody_orders_without_the_lease() -> None:
    relay = Edge(3).relay(2)
    relay.propose(sealed(8)[0], NOW)
    event, _ = order(sealed(8)[0], 3)
    assert not [one for one in relay.receive(event, NOW) if isinstance(one, Send)]
    question = wire.encode([1, *HERE, 0])
    asked = Arrived(relay_name(1, 3).hex(), OverlayFrame(FrameKind.TAKE_OVER, 1, question).encode())
    assert not relay.receive(asked, NOW)
    assert dict(relay.ordering.dropped) == {"no-right": 1}


def test_a_parcel_that_did_not_pass_the_guards_here_is_not_signed() -> None:
    relay = Edge(3).relay(2)
    event, _ = order(sealed(8)[0], 1)
    assert not [one for one in relay.receive(event, NOW) if isinstance(one, Send)]
    relay.propose(sealed(8)[0], NOW)
    assert relay.counted


def test_what_waits_has_a_bound() -> None:
    ledger = Ledger({1: chain((3,))}, Lease(relay_name(1, 1), 1))
    limits = OrderingLimits(proposals_max=2)
    ordering = Ordering(relay_name(1, 2), INSTANCE, key_of(relay_name(1, 2)), ledger, {}, limits)
    for parcel in sealed(8)[:2]:
        ordering.propose(HERE, parcel, NOW)
    with pytest.raises(Refused, match="too many"):
        ordering.propose(HERE, sealed(8)[2], NOW)


def flood(relay: Orderly) -> None:
    for number in range(20):
        event, _ = order(sealed(8)[0], 3, height=number)
        relay.receive(event, NOW)


def test_stories_about_one_place_have_a_bound_and_keep_no_order_out() -> None:
    relay = Edge(3).relay(2)
    flood(relay)
    assert len(relay.ordering._partition(HERE).heard[0]) == OrderingLimits().stories_max
    assert relay.ordering.dropped["full"] == 20 - OrderingLimits().stories_max
    relay.propose(sealed(8)[1], NOW)
    event, _ = order(sealed(8)[1], 1)
    relay.receive(event, NOW)
    assert relay.counted


def test_were_stories_counted_together_one_liar_would_stop_the_order() -> None:
    relay = Edge(3).relay(2)
    with without("the count of stories by who tells them"):
        flood(relay)
        relay.propose(sealed(8)[1], NOW)
        event, _ = order(sealed(8)[1], 1)
        relay.receive(event, NOW)
    assert not relay.counted


def test_partitions_that_nobody_orders_take_no_memory() -> None:
    relay = Edge(3).relay(2)
    for number in range(20):
        event, _ = order(sealed(8)[0], 3, token=bytes([number]) * 16)
        relay.receive(event, NOW)
        question = wire.encode([1, bytes([number]) * 16, 0, 0, bytes(32)])
        relay.receive(Arrived(event.sender, OverlayFrame(FrameKind.FETCH, 1, question).encode()), NOW)
    assert not relay.ordering._partitions
    assert relay.ordering.dropped == {"unknown": 40}


def test_what_was_signed_under_the_plan_before_convicts_nobody_who_has_the_index_now() -> None:
    edge = Edge(3)
    relay, found = edge.relay(2), list[Effect]()
    for version, parcel in ((1, sealed(8)[0]), (2, sealed(8)[1])):
        edge.ledger.plans[version] = chain((3,), version)
        event, _ = order(parcel, 3, plan=version)
        found += relay.receive(event, NOW)
    assert not [one for one in found if isinstance(one, Deliver) and isinstance(one.value, Evidence)]
    event, _ = order(sealed(8)[2], 3, plan=2)
    assert [one for one in relay.receive(event, NOW) if isinstance(one, Deliver)]


@pytest.mark.parametrize("after_s", [0.0, 0.501, 0.505, 0.51, 0.52, 2.0])
def test_a_plan_that_changes_while_orders_are_under_way_holds_nothing_up(after_s: float) -> None:
    """The relays are the same, at other indices."""
    edge = Edge(3)
    edge.publish(sealed(8)[:5])
    edge.run(after_s)
    (node,) = edge.ledger.plans[1].nodes
    turned = replace(node, relays=(*node.relays[1:], node.relays[0]))
    edge.ledger.plans[2] = replace(edge.ledger.plans[1], version=2, nodes=(turned,))
    edge.wake()
    edge.publish(sealed(8)[5:])
    edge.run(8)
    in_one_order(edge, sealed(8))
    assert not edge.convicted() | edge.suspected()
