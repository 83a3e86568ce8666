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
from tallystick.carriers.overlay.places import Counted, Lease, OrderingLimits, Recalled, Unjudged
from tallystick.carriers.overlay.relayed_keys import Evidence
from tallystick.carriers.storage import Place
from tallystick.errors import Refused
from tallystick.parcel.header import Header
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
    behind: int = 0  # how much of that is not in the relays' logs

    def newest_plan(self) -> Plan:
        return self.plans[max(self.plans)]

    def plan(self, version: int) -> Plan | None:
        return self.plans.get(version)

    def lease(self, place: Place) -> Lease | None:
        return self.lease_now if place == HERE else None

    def anchored(self, place: Place) -> int:
        return self.anchored_now

    def kept(self, place: Place) -> int:
        return self.anchored_now - self.behind

    def block(self) -> tuple[int, int]:
        return 1, 1

    def is_next(self, place: Place, header: Header) -> bool:
        """What lies in the log are parcels of one lane, in its order."""
        logged = [one.hash for one in sealed(8)[: self.kept(place)]]
        return header.hash not in logged and (header.sequence == 0 or header.previous in logged)


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
                if isinstance(effect, Deliver) and isinstance(effect.value, Recalled):
                    self.counted = [one for one in self.counted if one.promise.offset < effect.value.offset]
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

    def settle(self, index: int, parcels: Sequence[Parcel]) -> None:
        """All of these are anchored, and lie in this relay's log."""
        relay, self.ledger.anchored_now = self.relay(index), len(parcels)
        logged = [one.hash for one in parcels]
        for effect in relay.ordering.settle(HERE, len(parcels), logged, self.network.clock.now()):
            self.network._carry_out(relay.name.hex(), effect)

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
    if seed % 2 == 0:  # who says half of it says it again
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
    edge.settle(2, sealed(8))
    assert not stored
    assert not edge.relay(2).ordering._partition(HERE).heard


def test_a_parcel_survives_a_crash_with_the_signature_under_its_place() -> None:
    """Else a place could be promised by f+1 relays, and nobody has what lies there."""
    edge, name = Edge(3), relay_name(1, 2).hex()
    edge.publish(sealed(8))
    edge.run(2)
    edge.network.crash(name)
    edge.network.restart(name)
    edge.wake()
    assert [one.promise.offset for one in edge.relay(2).counted] == list(range(8))
    in_one_order(edge, sealed(8))


def test_what_came_into_the_log_before_a_crash_is_not_ordered_once_more() -> None:
    """The log has grown, and what was signed was not forgotten yet when the relay ended. Then it takes the lease."""
    edge, name = Edge(3), relay_name(1, 2).hex()
    edge.publish(sealed(8)[:4])
    edge.run(2)
    edge.network.crash(name)
    for index in (1, 3):
        edge.settle(index, sealed(8)[:4])
    edge.network.restart(name)
    edge.take_lease(2)
    edge.run(8)
    assert not edge.relay(2).counted
    assert not edge.network._nodes[name].stored
    assert not edge.suspected()
    edge.publish(sealed(8)[4:])
    edge.run(3)
    assert [one.promise.offset for one in edge.relay(2).counted] == [4, 5, 6, 7]


def test_what_is_anchored_elsewhere_is_passed_over() -> None:
    """A relay that heard nothing of the first four orders goes on behind its log."""
    edge, name = Edge(3), relay_name(1, 3).hex()
    edge.network.crash(name)
    edge.publish(sealed(8)[:4], to=(1, 2))
    edge.run(2)
    edge.network.restart(name)
    edge.publish(sealed(8)[:4], to=(3,))
    for index in (1, 2, 3):
        edge.settle(index, sealed(8)[:4])
    edge.publish(sealed(8)[4:])
    edge.run(8)
    counted = edge.relay(3).counted
    assert [one.promise.offset for one in counted] == [4, 5, 6, 7]
    assert [one.parcel for one in counted] == [*sealed(8)[4:]]
    assert not edge.suspected()


def test_what_is_settled_waits_for_nobody() -> None:
    """Parcels that lie in the log, though this relay never heard of their places, make nobody suspected."""
    relay = Edge(3).relay(2)
    for parcel in sealed(8):
        relay.propose(parcel, NOW)
    relay.ordering.settle(HERE, 8, [one.hash for one in sealed(8)], NOW + 1)
    assert not [one for one in relay.ordering.wake(NOW + 60) if isinstance(one, Deliver)]
    partition = relay.ordering._partition(HERE)
    assert not partition.proposals
    assert not partition.unplaced


def test_nobody_orders_while_its_log_is_behind_the_ledger() -> None:
    """It would give places to parcels that have theirs."""
    edge = Edge(3)
    edge.ledger.anchored_now = edge.ledger.behind = 4
    edge.publish(sealed(8)[4:])
    edge.run(3)
    assert not any(edge.orders())
    edge.ledger.behind = 0
    for index in (1, 2, 3):
        edge.settle(index, sealed(8)[:4])
    edge.run(3)
    assert [one.promise.offset for one in edge.relay(2).counted] == [4, 5, 6, 7]


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


def test_who_asks_what_was_ordered_is_told_once_in_a_while() -> None:
    relay = Edge(3).relay(2)
    relay.propose(sealed(8)[0], NOW)
    relay.receive(order(sealed(8)[0], 1)[0], NOW)
    question = wire.encode([1, *HERE, 0])
    asked = Arrived(relay_name(1, 3).hex(), OverlayFrame(FrameKind.TAKE_OVER, 1, question).encode())
    assert len([one for one in relay.receive(asked, NOW) if isinstance(one, Send)]) == 1
    assert not relay.receive(asked, NOW)
    assert dict(relay.ordering.dropped) == {"full": 1}


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
        event, _ = order(sealed(8)[5], 3, height=number)
        relay.receive(event, NOW)


def test_stories_about_one_place_have_a_bound_and_keep_no_order_out() -> None:
    relay = Edge(3).relay(2)
    flood(relay)
    assert len(relay.ordering._partition(HERE).heard[0]) == OrderingLimits().stories_max
    assert relay.ordering.dropped["full"] == 20 - OrderingLimits().stories_max
    relay.propose(sealed(8)[0], NOW)
    event, _ = order(sealed(8)[0], 1)
    relay.receive(event, NOW)
    assert relay.counted


def test_were_stories_counted_together_one_liar_would_stop_the_order() -> None:
    relay = Edge(3).relay(2)
    with without("the count of stories by who tells them"):
        flood(relay)
        relay.propose(sealed(8)[0], NOW)
        event, _ = order(sealed(8)[0], 1)
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


@pytest.mark.parametrize("seed", range(8))
def test_what_links_lose_is_said_again(seed: int) -> None:
    edge = Edge(3, seed, link=replace(LINK, loss=0.4))
    edge.publish(sealed(8))
    edge.run(60)
    in_one_order(edge, sealed(8))


def test_unless_it_is_said_again_a_place_stands_still_when_links_lose_it() -> None:
    with without("an order said again"):
        counted = []
        for seed in range(8):
            edge = Edge(3, seed, link=replace(LINK, loss=0.4))
            edge.publish(sealed(8))
            edge.run(60)
            counted.append(sorted(map(len, edge.orders()))[-2])
    assert min(counted) < 8


def test_a_publisher_that_leaves_the_orderer_out_does_not_make_it_suspected() -> None:
    edge = Edge(3)
    edge.publish(sealed(8)[:4])
    edge.publish(sealed(8)[4:], to=(2, 3))
    edge.run(10)
    in_one_order(edge, sealed(8))
    assert not edge.suspected()
    with without("what waits is brought to the orderer"):
        left_out = Edge(3)
        left_out.publish(sealed(8), to=(2, 3))
        left_out.run(10)
    assert left_out.suspected() == {relay_name(1, 1)}


def test_a_publisher_that_shows_the_orderer_alone_does_not_make_it_suspected() -> None:
    """One place that nobody else signs would hold up all behind it."""
    edge = Edge(3)
    edge.publish(sealed(8)[:2], to=(1,))
    edge.run(0.1)
    edge.publish(sealed(8)[2:])
    edge.run(10)
    in_one_order(edge, sealed(8))
    assert not edge.suspected()
    with without("what is ordered is asked for"):
        alone = Edge(3)
        alone.publish(sealed(8)[:2], to=(1,))
        alone.run(0.1)
        alone.publish(sealed(8)[2:])
        alone.run(10)
    assert alone.suspected() == {relay_name(1, 1)}


def hear(edge: Edge, index: int, parcels: Sequence[Parcel]) -> None:
    """The first relay orders these, towards another alone."""
    for offset, parcel in enumerate(parcels):
        relay = edge.relay(index)
        for effect in relay.receive(order(parcel, 1, offset=offset)[0], edge.network.clock.now()):
            edge.network._carry_out(relay.name.hex(), effect)


@pytest.mark.parametrize("wrong", [(1, 0), (0, 2), (0, 0), (0, 1, 0), (0, 1, 1, 2)])
def test_nobody_signs_or_counts_a_lane_turned_round_or_with_gaps_or_twice(wrong: tuple[int, ...]) -> None:
    edge = Edge(3, bad={1: mute})
    edge.publish(sealed(8), to=(2, 3))
    for index in (2, 3):
        hear(edge, index, [sealed(8)[number] for number in wrong])
    edge.run(1)
    for found in edge.orders():
        assert found == [one.hash for one in sealed(8)[: len(found)]]
    with without("the order of lanes"):
        open_to_it = Edge(3, bad={1: mute})
        open_to_it.publish(sealed(8), to=(2, 3))
        for index in (2, 3):
            hear(open_to_it, index, [sealed(8)[number] for number in wrong])
        open_to_it.run(1)
    assert open_to_it.orders()[0] == [sealed(8)[number].hash for number in wrong]


@pytest.mark.parametrize("next_one", [2, 3])
def test_relays_come_to_one_order_when_another_got_them_to_count_two(next_one: int) -> None:
    """It signed both, so each place has two parcels with f+1 signatures. The liar says nothing any more."""
    lane, other = sealed(8)[:2], sealed_long()

    def forked() -> Edge:
        edge = Edge(3, bad={1: mute})
        edge.publish([*lane, *other], to=(2, 3))
        hear(edge, 2, [lane[0], other[0], lane[1], other[1]])
        hear(edge, 3, [other[0], lane[0], other[1], lane[1]])
        assert edge.orders()[0] != edge.orders()[1]
        edge.run(1)
        edge.take_lease(next_one)
        edge.run(5)
        return edge

    edge = forked()
    assert edge.convicted() == {relay_name(1, 1)}
    in_one_order(edge, [*lane, *other])
    with without("what was forked is recalled"):
        first, second = forked().orders()
    assert first != second


def test_what_another_parcel_s_anchor_pushed_out_waits_again_with_those_behind_it() -> None:
    """Two parcels of a lane were counted here, and another lane's parcel is anchored at the place of the first."""
    edge = Edge(3)
    edge.publish(sealed(8)[:2])
    edge.run(2)
    relay = edge.relay(3)
    edge.ledger.anchored_now, edge.ledger.behind = 1, 1  # the lane's own log stays empty
    effects = relay.ordering.settle(HERE, 1, [sealed_long()[0].hash], edge.network.clock.now())
    (recalled,) = [one.value for one in effects if isinstance(one, Deliver) and isinstance(one.value, Recalled)]
    assert recalled.offset == 1
    assert [*recalled.parcels] == [sealed(8)[1]]
    assert [*relay.ordering._partition(HERE).proposals] == [one.hash for one in sealed(8)[1::-1]]


def whatever(liar: Disorderly, send: Send) -> list[Effect]:
    """Says it, drops it, or signs another parcel for the same place as well, each to whom it likes."""
    frame, drawn = OverlayFrame.decode(send.message), liar.random.random()
    if drawn < 0.3:
        return []
    if frame.kind is not FrameKind.ORDER or drawn < 0.6:
        return [send]
    promise = JointPromise.decode(wire.decode(frame.content)[1])
    other = liar.random.choice([*sealed(8), *sealed_long()]).hash
    forged = replace(promise, parcel=other, signatures=()).sign(liar.name[1], key_of(liar.name))
    content = wire.encode([1, forged.encode(), None])
    return [Send(send.to, OverlayFrame(frame.kind, frame.plan, content).encode())]


def run_schedule(seed: int) -> Edge:
    """f liars, lossy links, relays that end and begin again, publishers that show parcels to f+1 or more, and leases
    that go round until an honest relay has one for long enough."""
    random = Random(f"schedule {seed}")
    size = random.choice([3, 3, 5])
    faults = (size - 1) // 2
    bad: dict[int, Way] = dict.fromkeys(random.sample(range(1, size + 1), faults), whatever)
    edge = Edge(size, seed, bad, replace(LINK, loss=random.choice([0.0, 0.2]), duplicate=0.1))
    honest = [index for index in range(1, size + 1) if index not in bad]
    waiting = [*sealed(8), *sealed_long()]
    while waiting:
        shown = [waiting.pop(0) for _ in range(min(len(waiting), random.randint(1, 4)))]
        edge.publish(shown, to=random.sample(honest, random.randint(faults + 1, len(honest))))
        edge.publish(shown, to=[*bad])
        edge.run(random.choice([0.01, 0.3, 2.0]))
        if random.random() < 0.3:
            name = relay_name(1, random.choice(honest)).hex()
            edge.network.crash(name)
            edge.network.restart(name)
        if random.random() < 0.7:
            edge.take_lease(random.randint(1, size))
    edge.publish([*sealed(8), *sealed_long()], to=honest)  # whoever was not answered comes again
    for index in random.sample(honest, len(honest)):
        edge.take_lease(index)
        edge.run(20)
    return edge


def holds(edge: Edge) -> None:
    in_one_order(edge, [*sealed(8), *sealed_long()])
    first = edge.orders()[0]
    for lane in (sealed(8), sealed_long()):
        assert [one for one in first if one in {parcel.hash for parcel in lane}] == [parcel.hash for parcel in lane]
    assert edge.convicted() <= {relay_name(1, index) for index in edge.bad}


@pytest.mark.parametrize("seed", range(12))
def test_whatever_f_relays_do_honest_ones_come_to_one_order_of_every_lane(seed: int) -> None:
    holds(run_schedule(seed))
