"""Relays come and go under load: Algorithms 3, 4 and 5, the plans they rest on, and liars among their neighbours."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import overlays
import pytest
from makers import token
from overlays import Overlay, RelayRole, advertiser, line, make_routing, node_name, subscriber
from without import without

from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.membership import (
    Algorithm3,
    Algorithm4,
    Algorithm5,
    MembershipLimits,
    PlanVersions,
    attached,
    detached,
)
from tallystick.carriers.overlay.notices import Notice, NoticeKind, RoutingState, states
from tallystick.errors import Malformed, Misuse, Refused
from tallystick.runtime.effects import Arrived, Effect, Event, Send
from tallystick.runtime.network import Link
from tallystick.trust.plan import Plan

NEWCOMER = overlays.relay(1, 99)
LIMITS = MembershipLimits(hop_keep_s=30.0, again_s=1.0)


def sends(effects: Sequence[Effect]) -> list[tuple[bytes, OverlayFrame]]:
    return [(bytes.fromhex(one.to), OverlayFrame.decode(one.message)) for one in effects if isinstance(one, Send)]


# --- plans ---


@pytest.mark.parametrize(("size", "before", "after"), [(3, (2, 3), (3, 4)), (5, (3, 5), (4, 6))])
def test_the_scheme_changes_with_the_plan_and_back(size: int, before: tuple[int, int], after: tuple[int, int]) -> None:
    plan = line(3, size)
    more = attached(plan, node_name(1), NEWCOMER)
    less = detached(more, NEWCOMER.identifier)
    schemes = [(one.node(node_name(1)).need, len(one.node(node_name(1)).relays)) for one in (plan, more, less)]
    assert schemes == [before, after, before]
    assert [one.version for one in (plan, more, less)] == [1, 2, 3]
    assert Plan.decode(more.encode()) == more


def test_fewer_than_three_are_not_left_and_more_than_seven_not_made() -> None:
    plan = line(2)
    with pytest.raises(Refused) as caught:
        detached(plan, overlays.relay(1, 0).identifier)
    assert caught.value.reason == "attach-first"
    assert "attach first" in (caught.value.hint or "")
    with pytest.raises(Refused, match="at most 7"):
        attached(line(2, 7), node_name(1), NEWCOMER)
    with pytest.raises(Misuse):
        detached(plan, NEWCOMER.identifier)


def test_new_lane_keys_go_by_the_version_in_effect_and_old_ones_end_under_theirs() -> None:
    first = line(2, 4)
    second = detached(first, overlays.relay(1, 3).identifier)
    versions = PlanVersions(first, height=10)
    versions.announce(second, height=20)
    assert [versions.at(height).version for height in (10, 19, 20, 99)] == [1, 1, 2, 2]
    versions.sweep(19, 100.0, 30.0)
    versions.sweep(20, 200.0, 30.0)
    versions.sweep(25, 229.0, 30.0)
    assert versions.get(1) == first
    versions.sweep(26, 230.0, 30.0)
    assert versions.get(1) is None
    assert versions.get(2) == second
    for plan, height in ((second, 30), (replace(second, version=4), 30), (replace(second, version=3), 20)):
        with pytest.raises(Refused, match="expected"):
            versions.announce(plan, height)


# --- Algorithm 3: a relay leaves ---


@pytest.fixture(params=[4, 6])
def leaving(request: pytest.FixtureRequest) -> tuple[Algorithm3, Plan, bytes]:
    plan = line(3, request.param)
    me = overlays.relay(1, request.param - 1).identifier
    return Algorithm3(me, plan, detached(plan, me), LIMITS), plan, me


def acknowledge(algorithm: Algorithm3, me: bytes, relays: Sequence[bytes]) -> None:
    for relay in relays:
        algorithm.acknowledged(Notice(NoticeKind.ACKNOWLEDGE, me, 2), relay)


def test_it_leaves_when_all_acknowledged_and_the_queues_are_empty(leaving: tuple[Algorithm3, Plan, bytes]) -> None:
    algorithm, plan, me = leaving
    neighbours = [relay.identifier for node in (plan.nodes[0], plan.nodes[2]) for relay in node.relays]
    told = sends(algorithm.tell(0.0))
    assert [to for to, _ in told] == neighbours
    assert {Notice.decode(frame.content) for _, frame in told} == {Notice(NoticeKind.DETACH, me, 2)}
    assert {frame.plan for _, frame in told} == {1}
    assert not algorithm.is_done(True, 0.0)  # where the printed rule would leave
    acknowledge(algorithm, me, neighbours[:-1])
    assert [to for to, _ in sends(algorithm.tell(1.0))] == neighbours[-1:]
    assert not algorithm.is_done(True, 1.0)
    acknowledge(algorithm, me, neighbours[-1:])
    assert not algorithm.is_done(False, 2.0)  # and here too
    assert algorithm.is_done(True, 2.0)


def test_silent_neighbours_hold_it_no_longer_than_data_is_kept(leaving: tuple[Algorithm3, Plan, bytes]) -> None:
    algorithm, _, me = leaving
    algorithm.tell(100.0)
    algorithm.acknowledged(Notice(NoticeKind.DETACH, me, 2), overlays.relay(0, 0).identifier)
    assert not algorithm.is_done(True, 129.9)
    assert algorithm.is_done(False, 130.0)


def test_nobody_leaves_whom_the_plan_keeps() -> None:
    plan = line(3, 4)
    with pytest.raises(Misuse):
        Algorithm3(overlays.relay(1, 0).identifier, plan, detached(plan, overlays.relay(1, 3).identifier))


def test_algorithm_3_as_printed_loses_what_is_in_flight_and_the_corrected_one_nothing() -> None:
    detach = importlib.import_module("experiments.synapse.detach").detach
    for size in (4, 6):
        rows = {
            variant: detach(variant, size, (size - 1) // 2, 1, 4) for variant in ("printed", "all but f", "corrected")
        }
        assert rows["printed"].lost > 0
        assert rows["all but f"].lost > 0  # f liars who acknowledge at once, f honest ones who are slow
        assert rows["corrected"].lost == 0
        assert rows["corrected"].stayed_s < 5


# --- Algorithm 5: its neighbours ---


def neighbour(plan: Plan, following: Plan) -> Algorithm5:
    routing = make_routing(overlays.relay(0, 0).identifier, plan)
    versions = PlanVersions(plan)
    versions.announce(following, 1)
    return Algorithm5(routing, versions, LIMITS)


def test_a_neighbour_acknowledges_when_all_was_received() -> None:
    plan, me = line(3, 4), overlays.relay(1, 3).identifier
    algorithm = neighbour(plan, detached(plan, me))
    for _ in range(2):  # the first acknowledgement may be lost
        assert algorithm.receive(Notice(NoticeKind.DETACH, me, 2), me, 0.0) == []
        assert algorithm.acknowledge(lambda relay: False) == []
        assert list(algorithm.leaving) == [me]
        [(to, frame)] = sends(algorithm.acknowledge(lambda relay: True))
        assert (to, Notice.decode(frame.content)) == (me, Notice(NoticeKind.ACKNOWLEDGE, me, 2))
        assert not algorithm.leaving


def test_notices_that_contradict_the_plan_are_refused() -> None:
    plan, me, other = line(3, 4), overlays.relay(1, 3).identifier, overlays.relay(1, 2).identifier
    algorithm = neighbour(plan, detached(plan, me))
    far = overlays.relay(2, 0).identifier
    for notice, sender in (
        (Notice(NoticeKind.DETACH, me, 2), other),  # in another's name: a liar evicts nobody
        (Notice(NoticeKind.DETACH, other, 2), other),  # it stays
        (Notice(NoticeKind.DETACH, me, 3), me),  # of a version that nobody knows
        (Notice(NoticeKind.ATTACH, NEWCOMER.identifier, 2), NEWCOMER.identifier),  # the plan does not name it
        (Notice(NoticeKind.ATTACH, me, 2), me),  # it is named no more
        (Notice(NoticeKind.ATTACH, far, 2), far),  # no neighbour
        (Notice(NoticeKind.ATTACH, other, 2), me),
    ):
        with pytest.raises(Refused) as caught:
            algorithm.receive(notice, sender, 0.0)
        assert caught.value.reason == "not-in-plan"
    assert not algorithm.leaving


def test_a_newcomer_that_asks_without_end_is_answered_now_and_then() -> None:
    plan = line(3, 3)
    algorithm = neighbour(plan, attached(plan, node_name(1), NEWCOMER))
    notice = Notice(NoticeKind.ATTACH, NEWCOMER.identifier, 2)
    [(_, frame)] = sends(algorithm.receive(notice, NEWCOMER.identifier, 0.0))
    assert RoutingState.decode(frame.content) == RoutingState(True, ())
    with pytest.raises(Refused, match="just now"):
        algorithm.receive(notice, NEWCOMER.identifier, 0.9)
    assert algorithm.receive(notice, NEWCOMER.identifier, 1.0)


# --- Algorithm 4: a newcomer ---


class NewcomerRole(RelayRole):
    """A relay that gathers state until it is ready, and then does what all do."""

    def __init__(self, plan: Plan, ledger: overlays.Ledger) -> None:
        super().__init__(make_routing(NEWCOMER.identifier, plan, ledger), plan, NEWCOMER.identifier)
        self.algorithm = Algorithm4(self.me, plan, self.routing, LIMITS)
        self.ready_at: float | None = None

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        effects: list[Effect] = []
        if isinstance(event, Arrived) and (frame := OverlayFrame.decode(event.message)).kind is FrameKind.STATE:
            effects += self.algorithm.receive_state(frame.content, bytes.fromhex(event.sender), now)
        elif isinstance(event, Arrived) or self.algorithm.is_ready:
            effects += super().receive(event, now)
        else:
            effects += self.algorithm.ask(now)
        if self.algorithm.is_ready and self.ready_at is None:
            self.ready_at = now
        return effects


@pytest.mark.parametrize(("size", "bad"), [(3, "silent"), (4, "lying"), (5, "lying")])
def test_a_newcomer_takes_state_over_from_f_plus_1_and_liars_add_nothing(size: int, bad: str, seed: int) -> None:
    """The claims are old by then, and some were undone; the ledger tells the newcomer nothing about those."""
    plan = line(3, size)
    overlay = Overlay(plan, seed, bad, Link(delay_max_s=0.5, loss=0.05, duplicate=0.05))
    live = [advertiser("car", node_name(0)), subscriber("shop", node_name(2)), subscriber("yard", node_name(1))]
    gone = subscriber("gone", node_name(2), topic="doors"), advertiser("van", node_name(0), topic="doors")
    for at, one in enumerate([*live, *gone]):
        overlay.say(float(at), one, one.claim)
    for one in gone:
        overlay.say(20.0, one, one.undo)
    overlay.network.run(until=100.0)
    following = attached(plan, node_name(1), NEWCOMER)
    for roles in overlay.honest.values():
        for role in roles:
            role.versions.announce(following, 1)
    newcomer = NewcomerRole(following, overlays.Ledger())
    overlay.network.add(NEWCOMER.identifier.hex(), lambda stored: newcomer)
    overlay.network.run(until=110.0)
    assert newcomer.ready_at is not None
    assert newcomer.ready_at < 108.0
    for role in [role for roles in overlay.honest.values() for role in roles]:
        for to, frame in sends(role.adopt(following)):
            overlay.network.send(role.me.hex(), to.hex(), frame.encode())
    overlay.plan = following
    overlay.say(110.0, live[2], live[2].claim)  # the newcomer's own clients come by themselves
    overlay.network.run(until=125.0)
    overlay.honest[node_name(1)].append(newcomer)
    assert overlay.reached(live[0]) == overlay.expected(live[0], live)
    assert newcomer.routing.branches([token("doors")], node_name(0)) == ((), ())
    assert newcomer.routing.statistics().live == 3


def test_what_is_claimed_between_the_newcomers_question_and_the_new_plan_is_told_with_the_plan() -> None:
    plan, here = line(3), overlays.relay(0, 0).identifier
    following = attached(plan, node_name(1), NEWCOMER)
    routing, car = make_routing(here, plan), advertiser("car", node_name(0))
    claim = car.claim(0.0)
    routing.receive(claim, car.permit.principal, 0.0)
    told = [(to, frame) for to, frame in sends(routing.adopt(following)) if to == NEWCOMER.identifier]
    assert [RoutingState.decode(frame.content).claims for _, frame in told] == [(claim,)]
    newcomer = make_routing(NEWCOMER.identifier, following)
    assert make_routing(here, plan).receive(claim, NEWCOMER.identifier, 0.0) == []  # of no version that counts here
    newcomer.receive_state(told[0][1].content, here, 1.0)
    assert newcomer.statistics().live == 1


def liars_state(count: int, plan: Plan, old: bytes) -> tuple[Algorithm4, list[int]]:
    """What a newcomer to a line of three makes of an undone subscription, 1,000 s old, that `count` relays tell of."""
    algorithm = Algorithm4(NEWCOMER.identifier, plan, routing := make_routing(NEWCOMER.identifier, plan))
    live = []
    for index in range(count):
        algorithm.receive_state(RoutingState(True, (old,)).encode(), overlays.relay(2, index).identifier, 1000.0)
        live.append(routing.statistics().live)
    return algorithm, live


def test_an_old_claim_counts_with_f_plus_1_and_one_suffices_without_that_rule() -> None:
    plan = attached(line(3, 5), node_name(1), NEWCOMER)
    old = subscriber("shop", node_name(2)).claim(0.0)
    algorithm, live = liars_state(5, plan, old)
    assert live == [0, 0, 1, 1, 1]
    assert not algorithm.is_ready  # the other neighbour said nothing yet
    with without("the voucher for old claims"):
        assert liars_state(5, plan, old)[1] == [1] * 5


def test_state_is_cut_into_frames_and_bounded() -> None:
    claims = [bytes([number % 256]) * 700 for number in range(300)]
    parts = list(states(claims))
    assert [claim for part in parts for claim in part.claims] == claims
    assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]
    assert max(len(part.encode()) for part in parts) < 70_000
    assert list(states([])) == [RoutingState(True, ())]
    for content in (RoutingState(True, (b"",) * 257).encode(), RoutingState(True, (bytes(20_000),)).encode(), b"\x80"):
        with pytest.raises(Malformed):
            RoutingState.decode(content)


def test_hostile_notices_are_malformed() -> None:
    good = Notice(NoticeKind.ATTACH, bytes(16), 7).encode()
    assert Notice.decode(good) == Notice(NoticeKind.ATTACH, bytes(16), 7)
    random = Random(5)
    for _ in range(200):
        data = bytearray(good)
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        try:
            assert Notice.decode(bytes(data)).encode() == data
        except Malformed:
            continue
