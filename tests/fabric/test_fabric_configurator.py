"""The configurator: whole or rolled back, withdrawals that are never taken back, epochs, successors; and after every
single write no loop, no miss and no mixed tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from fabric_world import (
    HOST_PORTS,
    KEY,
    SimulatedSwitch,
    advertise,
    line,
    name,
    random_wiring,
    ring,
    subscribe,
    withdraw,
)
from without import without

from tallystick.carriers.fabric.configurator import Configurator, ConfiguratorSettings
from tallystick.carriers.fabric.flows import Tables
from tallystick.carriers.fabric.installing import FlowInstaller
from tallystick.carriers.fabric.planning import RouteTrace, follow
from tallystick.carriers.fabric.requests import FlowAnswer, FlowKind, FlowRequest
from tallystick.carriers.fabric.route import next_epoch
from tallystick.carriers.fabric.rules import RuleTable, Superseded
from tallystick.carriers.fabric.trees import PortPlace, TreeKind, Wiring
from tallystick.errors import Refused, Unavailable


class FabricWorld:
    """Simulated switches, and controllers that drive them."""

    def __init__(self, wiring: Wiring, **settings: object) -> None:
        self.wiring, self.now = wiring, 1000.0
        self.switches = {one: SimulatedSwitch(one) for one in sorted(wiring.switches)}
        self.settings = replace(ConfiguratorSettings(), **settings)  # type: ignore[arg-type]
        self.history: list[Tables] = []
        self.pauses: list[int] = []  # how many states there were when frames under way had time
        self.first = self.controller(1)

    def controller(self, election: int, key: bytes = KEY) -> SimController:
        found = SimController(self, key)
        found.configurator.lead(election)
        found.configurator.rewire(self.wiring)
        return found

    def tables(self) -> Tables:
        return {one: dict(switch.table) for one, switch in self.switches.items()}

    def note(self) -> None:
        self.history.append(self.tables())

    def trace(self, flow: bytes, epoch: int | None = None) -> RouteTrace:
        book = self.first.configurator.book
        epoch = book.epochs[-1] if epoch is None else epoch
        switch = book.flows[flow].request.switch
        label = book.labels.first(flow, switch, epoch)
        return follow(self.tables(), self.wiring.far_ends, switch, epoch, label)

    def reached(self, flow: bytes) -> list[PortPlace]:
        trace = self.trace(flow)
        assert trace.faults == ()
        return [place for place, _ in trace.delivered]


class SimController:
    def __init__(self, world: FabricWorld, key: bytes) -> None:
        self.drivers = {one: switch.driver() for one, switch in world.switches.items()}
        for driver in self.drivers.values():
            driver.on_write = world.note
        self.told: list[tuple[str, FlowAnswer]] = []
        installer = FlowInstaller(self.drivers, lambda _: world.pauses.append(len(world.history)))
        ends = world.wiring.far_ends
        self.configurator = Configurator(
            key,
            installer,
            lambda owner, answer: self.told.append((owner, answer)),
            lambda place: place not in ends,
            lambda: world.now,
            world.settings,
        )

    def ask(self, *requests: FlowRequest, owner: str = "d") -> list[FlowAnswer]:
        self.told.clear()
        self.configurator.receive(owner, requests)
        asked = {one.identifier for one in requests}
        return [answer for _, answer in self.told if answer.identifier in asked]


def started(wiring: Wiring, **settings: object) -> tuple[FabricWorld, SimController]:
    world = FabricWorld(wiring, **settings)
    world.first.configurator.gathered()
    return world, world.first


# --- requests ---


def test_publisher_and_subscriber_are_told_labels_that_meet() -> None:
    world, controller = started(line(4))
    [published] = controller.ask(advertise(name(1), "s0"))
    [subscribed] = controller.ask(subscribe(name(10), "s3", 100, name(1)))
    [(_, first)] = published.send
    trace = follow(world.tables(), world.wiring.far_ends, "s0", published.epoch, first)
    assert trace.delivered == ((PortPlace("s3", 100), subscribed.receive[0]),)
    assert [hop.switch for hop in trace.hops] == ["s0", "s1", "s2", "s3"]
    assert len({hop.label for hop in trace.hops}) == 4  # changed at every hop


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (advertise(name(1), "s9"), "unknown-switch"),
        (advertise(name(1), "s0", 1), "not-a-host-port"),
        (replace(advertise(name(1), "s0"), expiry_ms=999_999), "expired"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(request_: FlowRequest, reason: str) -> None:
    _, controller = started(line(2))
    [answer] = controller.ask(request_)
    assert (answer.refused, answer.send, answer.receive) == (reason, (), ())


def test_the_second_subscription_of_a_port_is_told_to_the_first() -> None:
    _, controller = started(line(2))
    controller.ask(advertise(name(1), "s0"), subscribe(name(10), "s1", 100, name(1)))
    controller.ask(subscribe(name(11), "s1", 100, name(1)))
    answers = {answer.identifier: answer for _, answer in controller.told}
    assert set(answers[name(10)].receive) & set(answers[name(11)].receive)


# --- every step ---


def random_requests(random: Random, wiring: Wiring) -> list[FlowRequest]:
    flows, subscriptions = [name(n) for n in range(4)], [name(n) for n in range(100, 112)]
    found: list[FlowRequest] = []
    for _ in range(random.randrange(1, 4)):
        switch, port = random.choice(sorted(wiring.switches)), random.choice(HOST_PORTS)
        chosen = random.randrange(6)
        if chosen == 0:
            found.append(advertise(random.choice(flows), switch, port))
        elif chosen < 5:
            matches = random.sample(flows, random.randrange(1, 4))
            found.append(subscribe(random.choice(subscriptions), switch, port, *matches))
        else:
            found.append(withdraw(random.choice(subscriptions)))
    return found


class LaterAndLater(dict[str, RuleTable]):
    """The tables as a slow frame meets them: those of each switch are of a later time than those before."""

    def __init__(self, random: Random, states: Sequence[Tables]) -> None:
        self._random, self._states, self._at = random, states, random.randrange(len(states))

    def get(self, switch: str, default: Any = None) -> Any:
        self._at = self._random.randrange(self._at, len(self._states))
        return self._states[self._at][switch]


def check_every_way(
    random: Random, states: Sequence[Tables], world: FabricWorld, firsts: Sequence[tuple[str, int, bytes]]
) -> None:
    """A frame that is quick meets tables of one time; one that is slow, at each switch those of a later one."""
    for switch, epoch, label in firsts:
        for one in states:
            assert follow(one, world.wiring.far_ends, switch, epoch, label).faults == ()
        before, after = (
            {place for place, _ in follow(one, world.wiring.far_ends, switch, epoch, label).delivered}
            for one in (states[0], states[-1])
        )
        for _ in range(12):
            trace = follow(LaterAndLater(random, states), world.wiring.far_ends, switch, epoch, label)
            # What was on its way to somebody who is gone may be dropped where the rule went first.
            assert [fault for fault in trace.faults if not fault.startswith("miss")] == []
            reached = [place for place, _ in trace.delivered]
            assert len(reached) == len(set(reached))
            assert before & after <= set(reached) <= before | after


@pytest.mark.parametrize("kind", TreeKind)
@pytest.mark.parametrize("number", range(3))
def test_no_loop_no_miss_and_no_mixed_tree_at_any_step(kind: TreeKind, number: int, seed: int) -> None:
    """Requests at random, and links that come and go; frames under way while it changes are followed too."""
    random = Random(f"{seed}/{number}")
    wiring = random_wiring(random, switches=6, extra=4)
    world, controller = started(wiring, tree=kind)
    book, steps = controller.configurator.book, 0
    controller.ask(*(advertise(name(n), random.choice(sorted(wiring.switches)), 100 + n) for n in range(4)))
    for _ in range(40):
        world.history, world.pauses = [world.tables()], []
        before = {(f.request.switch, book.epochs[-1], book.answer(i).send[0][1]) for i, f in book.flows.items()}
        if random.random() < 0.25:
            kept = random.sample(sorted(wiring.links), random.randrange(len(wiring.links) // 2, len(wiring.links)))
            controller.configurator.rewire(replace(world.wiring, links=frozenset(kept)))
        else:
            controller.ask(*random_requests(random, wiring))
        after = {(f.request.switch, book.epochs[-1], book.answer(i).send[0][1]) for i, f in book.flows.items()}
        # Between the stages of a change, frames under way have had time to arrive.
        bounds = [0, *world.pauses, len(world.history)]
        for start, end in pairwise(bounds):
            states = world.history[max(start - 1, 0) : end]
            if states:
                check_every_way(random, states, world, sorted(before & after))
                steps += len(states)
    assert steps > 60


def test_without_the_order_of_installing_frames_are_lost_on_the_way() -> None:
    world, controller = started(line(4))
    controller.ask(advertise(name(1), "s0"))

    def faults_while(request: FlowRequest) -> set[str]:
        world.history.clear()
        controller.ask(request)
        book = controller.configurator.book
        [(_, first)] = book.answer(name(1)).send
        traces = [follow(one, world.wiring.far_ends, "s0", 1, first) for one in world.history]
        return {fault.partition(":")[0] for trace in traces for fault in trace.faults}

    assert faults_while(subscribe(name(10), "s3", 100, name(1))) == set()
    assert faults_while(withdraw(name(10))) == set()
    with without("the order of installing"):
        assert faults_while(subscribe(name(10), "s3", 100, name(1))) == {"miss at s1", "miss at s2", "miss at s3"}


def test_without_the_tree_in_a_label_two_trees_are_mixed() -> None:
    """A ring is cut, so that the way to the subscriber turns round."""
    for taken in (False, True):
        world, controller = started(ring(5))
        faults: set[str] = set()

        def change(world: FabricWorld = world, controller: SimController = controller) -> set[str]:
            controller.ask(advertise(name(1), "s0"))
            controller.ask(*(subscribe(name(10 + n), f"s{n}", 100, name(1)) for n in (1, 2, 3, 4)))
            found: set[str] = set()
            for link in sorted(world.wiring.links):
                world.history.clear()
                controller.configurator.rewire(replace(world.wiring, links=world.wiring.links - {link}))
                [(_, first)] = controller.configurator.book.answer(name(1)).send
                for one in world.history:
                    trace = follow(one, world.wiring.far_ends, "s0", 1, first)
                    found |= {fault.split()[0] for fault in trace.faults}
            return found

        if taken:
            with without("the tree in a label"):
                faults = change()
        else:
            faults = change()
        assert bool(faults) == taken


# --- whole or rolled back ---


@pytest.mark.parametrize("failing", ["s0", "s1", "s2", "s3"])
def test_a_switch_that_refuses_leaves_everything_as_it_was(failing: str) -> None:
    world, controller = started(line(4))
    controller.ask(advertise(name(1), "s0"), subscribe(name(10), "s2", 100, name(1)))
    before = world.tables()
    controller.drivers[failing].fails_at = 0
    [answer] = controller.ask(subscribe(name(11), "s3", 100, name(1)))
    if failing in ("s0", "s1"):  # they take no part in the change
        assert answer.receive
        return
    assert answer.refused == "unavailable"
    assert world.tables() == before
    assert world.reached(name(1)) == [("s2", 100)]
    [answer] = controller.ask(subscribe(name(11), "s3", 100, name(1)))
    assert world.reached(name(1)) == [("s2", 100), ("s3", 100)]
    assert controller.configurator.statistics().rolled_back == 1


def test_of_a_batch_that_fails_what_can_be_is_done() -> None:
    world, controller = started(line(3))
    controller.ask(advertise(name(1), "s0"))
    world.switches["s2"].is_down = True
    answers = controller.ask(subscribe(name(10), "s2", 100, name(1)), subscribe(name(11), "s1", 100, name(1)))
    assert [bool(one.refused) for one in sorted(answers, key=lambda one: one.identifier)][-1] is False
    assert world.reached(name(1)) == [("s1", 100)]


# --- withdrawals ---


def test_of_what_is_asked_at_once_the_last_about_each_thing_counts() -> None:
    """Withdrawals go first: one that came behind its own subscription must not be forgotten by that."""
    _world, controller = started(ring(3))
    controller.ask(advertise(name(1), "s0", 100))
    [answer] = controller.ask(subscribe(name(2), "s1", 100, name(1)), withdraw(name(2)))
    assert (answer.refused, answer.send) == ("", ())
    assert name(2) not in controller.configurator.book.subscriptions
    controller.ask(withdraw(name(2)), subscribe(name(2), "s1", 100, name(1)))
    assert name(2) in controller.configurator.book.subscriptions


def test_a_withdrawal_is_in_force_when_it_returns_and_goes_on_where_a_switch_fails() -> None:
    world, controller = started(line(4))
    controller.ask(advertise(name(1), "s0"))
    controller.ask(subscribe(name(10), "s3", 100, name(1)), subscribe(name(11), "s3", 101, name(1)))
    controller.ask(withdraw(name(11)))
    assert world.reached(name(1)) == [("s3", 100)]
    # The last switch obeys nobody any more: its neighbours send it nothing.
    world.switches["s3"].is_down = True
    controller.ask(withdraw(name(10)))
    assert world.reached(name(1)) == []
    assert world.tables()["s3"] != {}
    world.now += 2
    statistics = controller.configurator.statistics()
    assert (statistics.doubtful, statistics.overdue) == (("s3",), 1)
    world.switches["s3"].is_down = False
    controller.configurator.tick()
    assert world.tables() == {one: {} for one in world.switches}
    assert controller.configurator.statistics().overdue == 0


def test_subscribers_behind_a_switch_that_failed_are_reached_another_way_and_again_when_it_is_back() -> None:
    world, controller = started(ring(5))
    controller.ask(advertise(name(1), "s0"))
    controller.ask(*(subscribe(name(10 + n), f"s{n}", 100, name(1)) for n in range(1, 5)))
    world.switches["s1"].is_down = True
    controller.ask(withdraw(name(11)))
    assert world.reached(name(1)) == [(f"s{n}", 100) for n in (2, 3, 4)]
    world.switches["s1"].is_down = False
    controller.configurator.tick()
    controller.ask(subscribe(name(11), "s1", 100, name(1)))
    assert world.reached(name(1)) == [(f"s{n}", 100) for n in (1, 2, 3, 4)]


def test_rules_go_with_the_permit_s_expiry_unless_it_is_renewed() -> None:
    world, controller = started(line(2))
    controller.ask(advertise(name(1), "s0"))
    short = FlowRequest(FlowKind.SUBSCRIBE, name(10), "s1", 100, 1_010_000, 0, frozenset({name(1)}))
    other = replace(short, identifier=name(11), port=101)
    controller.ask(short, other)
    controller.ask(replace(other, expiry_ms=2_000_000))
    world.now = 1009.0
    controller.configurator.tick()
    assert world.reached(name(1)) == [("s1", 100), ("s1", 101)]
    world.now = 1010.0
    controller.configurator.tick()
    assert world.reached(name(1)) == [("s1", 101)]


# --- epochs ---


def test_an_epoch_begins_beside_the_old_one_and_the_old_one_ends() -> None:
    world, controller = started(line(3), epoch_s=100.0, grace_s=10.0)
    controller.ask(advertise(name(1), "s0"))
    controller.ask(subscribe(name(10), "s2", 100, name(1)))
    controller.told.clear()
    world.now += 100
    controller.configurator.tick()
    answers = {answer.identifier: answer for _, answer in controller.told}
    assert (answers[name(1)].epoch, answers[name(10)].epoch) == (2, 2)
    for epoch in (1, 2):
        trace = world.trace(name(1), epoch)
        assert ([place for place, _ in trace.delivered], trace.faults) == ([("s2", 100)], ())
    world.now += 10
    controller.configurator.tick()
    assert world.trace(name(1), 1).hops == ()
    assert world.reached(name(1)) == [("s2", 100)]


def test_an_epoch_is_not_used_again_while_entries_live() -> None:
    assert next_epoch(5, {5}) == 6
    assert next_epoch(65_535, {65_535, 0}) == 1
    with pytest.raises(Refused):
        next_epoch(0, set(range(65_536)))
    world, controller = started(line(2), epoch_s=100.0, grace_s=10.0)
    controller.ask(advertise(name(1), "s0"), subscribe(name(10), "s1", 100, name(1)))
    configurator = controller.configurator
    configurator.begin_epoch()
    with pytest.raises(Refused, match="has not ended"):
        configurator.begin_epoch()
    # Entries of epoch 3 are left at a switch that did not answer.
    stuck = next(iter(world.switches["s1"].table.values()))
    configurator.installer.in_force["s1"][3, stuck.label] = replace(stuck, epoch=3)
    configurator.installer.doubtful.add("s1")
    world.switches["s1"].is_down = True
    assert next_epoch(2, configurator.installer.epochs()) == 4


def test_an_epoch_that_a_switch_does_not_take_does_not_begin() -> None:
    world, controller = started(line(3))
    controller.ask(advertise(name(1), "s0"), subscribe(name(10), "s2", 100, name(1)))
    before = world.tables()
    controller.drivers["s1"].fails_at = 0
    with pytest.raises(Unavailable):
        controller.configurator.begin_epoch()
    assert world.tables() == before
    assert controller.configurator.book.epochs == (1,)


# --- several controllers ---


def populated() -> tuple[FabricWorld, list[FlowRequest]]:
    world, controller = started(ring(5))
    requests = [advertise(name(n), f"s{n}", 105) for n in range(3)]
    requests += [subscribe(name(10 + n), f"s{n % 5}", 100 + n // 5, name(n % 3)) for n in range(12)]
    controller.ask(*requests)
    return world, requests


def test_a_successor_computes_the_same_labels_and_touches_nothing_that_is_right() -> None:
    world, requests = populated()
    before = world.tables()
    for switch in world.switches.values():
        switch.writes.clear()
    successor = world.controller(2)
    for request in requests:
        successor.ask(request)
    assert world.tables() == before  # it has heard half of them and waits
    world.now += 5
    successor.configurator.tick()
    assert world.tables() == before
    assert [switch.writes for switch in world.switches.values()] == [[]] * 5
    assert {answer.identifier for _, answer in successor.told} == {one.identifier for one in requests}
    with pytest.raises(Superseded):
        world.first.ask(subscribe(name(50), "s1", 100, name(1)))


def test_a_successor_repairs_what_differs_and_nothing_else() -> None:
    world, requests = populated()
    before = world.tables()
    table = world.switches["s1"].table
    lost, bent = sorted(table)[:2]
    del table[lost]
    table[bent] = replace(table[bent], out=((109, name(7)),))
    foreign = replace(table[bent], label=name(9))
    table[foreign.key] = foreign
    for switch in world.switches.values():
        switch.writes.clear()
    successor = world.controller(2)
    successor.ask(*requests)
    successor.configurator.gathered()
    assert world.tables() == before
    written = [(key for key, rule in one.items() if rule is not None) for one in world.switches["s1"].writes]
    assert sorted(key for keys in written for key in keys) == sorted([lost, bent])
    assert [key for one in world.switches["s1"].writes for key, rule in one.items() if rule is None] == [foreign.key]
    assert [len(switch.writes) for one, switch in world.switches.items() if one != "s1"] == [0] * 4


def test_what_nobody_repeats_is_forgotten() -> None:
    world, requests = populated()
    successor = world.controller(2)
    successor.ask(*(one for one in requests if one.identifier != name(1)))
    successor.configurator.gathered()
    world.first = successor
    assert world.reached(name(0)) != []
    tables = world.tables()
    book = successor.configurator.book
    assert not any((1, book.labels.first(name(1), one, 1)) in tables[one] for one in tables)


def test_a_late_controller_is_refused_at_every_switch() -> None:
    world, _ = populated()
    world.controller(3)
    with pytest.raises(Superseded, match="election 3 leads"):
        world.controller(2)


# --- sharing ---


def test_before_a_table_is_full_flows_share_rules_and_after_that_it_is_said() -> None:
    world, controller = started(line(3), share_at=0.001)  # of 65,536: from 65 entries
    flows = [name(n) for n in range(30)]
    controller.ask(*(advertise(one, "s0", 100) for one in flows))
    for number in range(4):
        controller.ask(subscribe(name(100 + number), "s2", 100 + number, *flows))
        assert all(world.reached(one) == [("s2", 100 + n) for n in range(number + 1)] for one in flows)
    statistics = controller.configurator.statistics()
    assert statistics.is_sharing
    assert len(world.tables()["s2"]) == 30 + 1  # up for each, down one for all
    for number in range(4):
        controller.ask(withdraw(name(100 + number)))
    assert not controller.configurator.statistics().is_sharing
    assert all(world.reached(one) == [] for one in flows)
