"""A client at an edge of which one relay is dead, slow, or lies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from carrying_world import promised, sealed
from edge_world import TOKEN, Edge, EdgeRelay, dead, refuses
from makers import INSTANCE
from overlays import order_for
from sharing_world import key_of
from without import without

from tallystick.carriers.carrier import Fetch, NotStored, Outcome, Stored
from tallystick.carriers.overlay.claims import Claim
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.known_plans import KNOWN_S
from tallystick.errors import Misuse, Refused, Unavailable
from tallystick.guards.route import MessageKind
from tallystick.ledger.contracts.permits import PERMITS, PermitRow, Status
from tallystick.ledger.contracts.plans import ENTRUSTED, EntrustedRow
from tallystick.parcel.parcel import Parcel
from tallystick.trust.promise import JointPromise, Promise

PARCELS = sealed(4)
SENT = [parcel.encode() for parcel in PARCELS]
WANTED = Fetch(TOKEN, 0, bytes(16), 0, 1 << 20)


@pytest.fixture
def edge() -> Iterator[Edge]:
    edge = Edge()
    yield edge
    edge.hung.set()


def offsets(outcomes: list[Outcome]) -> list[int]:
    assert all(isinstance(one, Stored) for one in outcomes)
    return [one.promises[0].offset for one in outcomes if isinstance(one, Stored)]


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


# --- publishing ---


def test_all_relays_get_the_parcels_and_one_joint_promise_counts(edge: Edge) -> None:
    found = edge.carrier().publish(TOKEN, SENT)
    assert offsets(found) == [0, 1, 2, 3]
    eventually(lambda: all(relay.calls("publish") == [SENT] for relay in edge.relays))


@pytest.mark.parametrize("away", ["dead", "hang"])
def test_a_relay_that_is_gone_or_hangs_is_not_waited_for(edge: Edge, away: str) -> None:
    edge.relays[0].lies["publish"] = dead if away == "dead" else edge.hang
    carrier, began = edge.carrier(), time.monotonic()
    for _ in range(20):  # more than may wait for one relay
        assert offsets(carrier.publish(TOKEN, SENT[:1])) == [0]
    assert time.monotonic() - began < 20  # each would wait for thirty seconds


def test_more_than_f_that_are_gone_are_the_worlds_failure(edge: Edge) -> None:
    for relay in edge.relays:
        relay.lies["publish"] = dead
    with pytest.raises(Unavailable, match="connection refused"):
        edge.carrier().publish(TOKEN, SENT)


def lone_promise(edge: Edge, parcel: Parcel) -> JointPromise:
    return promised(edge.plan, parcel, 9, signers=(1,))


def of_another_node(edge: Edge, parcel: Parcel) -> JointPromise:
    return promised(edge.plan, parcel, 9, node=1)


def for_another_parcel(edge: Edge, parcel: Parcel) -> JointPromise:
    return promised(edge.plan, PARCELS[0], 9)


def of_an_unknown_plan(edge: Edge, parcel: Parcel) -> JointPromise:
    return replace(promised(edge.plan, parcel, 9), plan=7)


def with_a_false_signature(edge: Edge, parcel: Parcel) -> JointPromise:
    return promised(edge.plan, parcel, 8).sign(1, key_of(b"nobody"))


def its_own_word(edge: Edge, parcel: Parcel) -> Promise:
    return edge.relays[0].promise(parcel, 9)


def anothers_word(edge: Edge, parcel: Parcel) -> Promise:
    return edge.relays[1].promise(parcel, 9)


@pytest.mark.parametrize(
    "lie",
    [
        lone_promise, of_another_node, for_another_parcel, of_an_unknown_plan, with_a_false_signature, its_own_word,
        anothers_word,
    ],
)  # fmt: skip
def test_what_one_relay_promises_alone_does_not_count(edge: Edge, lie: Any) -> None:
    edge.relays[0].lies["publish"] = lambda _: [Stored((lie(edge, PARCELS[1]),))]
    for relay in edge.relays[1:]:
        relay.lies["publish"] = slowly(relay)
    assert offsets(edge.carrier().publish(TOKEN, SENT[1:2])) == [1]
    if lie is its_own_word:
        with without("f+1 relays that say the same of a parcel"):
            assert offsets(edge.carrier().publish(TOKEN, SENT[1:2])) == [9]
    if lie is lone_promise:
        with without("joint promises held to the plan"):
            assert offsets(edge.carrier().publish(TOKEN, SENT[1:2])) == [9]


def slowly(relay: EdgeRelay) -> Callable[[Any], list[Outcome]]:
    """The lie comes first."""

    def publish(parcels: Any) -> list[Outcome]:
        time.sleep(0.05)
        return [relay.store(Parcel.decode(one)) for one in parcels]

    return publish


def test_a_refusal_counts_when_more_than_f_give_it(edge: Edge) -> None:
    edge.relays[0].lies["publish"] = refuses("no-right")
    assert offsets(edge.carrier().publish(TOKEN, SENT)) == [0, 1, 2, 3]
    edge.relays[1].lies["publish"] = refuses("no-right")
    edge.relays[2].lies["publish"] = dead
    assert edge.carrier().publish(TOKEN, SENT) == [NotStored("no-right", "no-right")] * 4
    edge.relays[1].lies["publish"] = refuses("ahead", 1)
    with pytest.raises(Unavailable):
        edge.carrier().publish(TOKEN, SENT)
    with without("f+1 relays that say the same of a parcel"):
        assert edge.carrier().publish(TOKEN, SENT)[0] in (
            NotStored("no-right", "no-right"),
            NotStored("ahead", "ahead", 1),
        )


def test_what_counts_before_a_refusal_is_kept(edge: Edge) -> None:
    for relay in edge.relays[:2]:
        relay.lies["publish"] = lambda parcels, relay=relay: [
            relay.store(PARCELS[0]),
            *refuses("ahead", 1)(parcels[1:]),
        ]
    edge.relays[2].lies["publish"] = dead
    stored, refused, *_ = edge.carrier().publish(TOKEN, SENT)
    assert offsets([stored]) == [0]
    assert refused == NotStored("ahead", "ahead", 1)


def test_what_is_anchored_counts_by_f_plus_1_single_promises(edge: Edge) -> None:
    for relay in edge.relays[:2]:
        relay.anchored[PARCELS[0].hash] = 5
    edge.relays[2].lies["publish"] = dead
    (found,) = edge.carrier().publish(TOKEN, SENT[:1])
    assert offsets([found]) == [5]
    assert isinstance(found, Stored)
    assert isinstance(found.promises[0], Promise)


def test_an_old_joint_promise_of_a_place_that_went_to_another_does_not_count_alone(edge: Edge) -> None:
    """The liar is the quickest. Were it believed, the publisher would find the place taken, and send for ever."""
    edge.relays[0].lies["publish"] = lambda _: [Stored((promised(edge.plan, PARCELS[0], 0),))]
    for relay in edge.relays[1:]:
        relay.anchored[PARCELS[0].hash] = 5
        relay.lies["publish"] = slowly(relay)
    edge.rows.anchor(6)
    assert offsets(edge.carrier().publish(TOKEN, SENT[:1])) == [5]
    with without("joint promises below an anchor"):
        assert offsets(edge.carrier().publish(TOKEN, SENT[:1])) == [0]


def test_a_topic_that_is_not_entrusted_has_no_joint_promises(edge: Edge) -> None:
    edge.rows.held[ENTRUSTED(TOKEN)] = EntrustedRow(bytes(16), bytes(16), 0, 2, 2)
    with pytest.raises(Unavailable):
        edge.carrier().publish(TOKEN, SENT)


def test_the_ledger_is_asked_now_and_then_and_not_for_every_parcel(edge: Edge) -> None:
    carrier = edge.carrier()
    carrier.publish(TOKEN, SENT)
    asked = edge.rows.asked
    for _ in range(10):
        carrier.publish(TOKEN, SENT)
    assert edge.rows.asked - asked <= 4 * (1 + int(KNOWN_S))


# --- permits, claims, locks ---


def test_a_permit_goes_to_all_with_a_claim_and_who_missed_it_is_told_later(edge: Edge) -> None:
    edge.relays[2].lies["advertise"] = dead
    carrier, permit = edge.carrier(), edge.car.permit.encode()
    carrier.advertise(permit)
    eventually(lambda: len(edge.relays[2].calls("advertise")) == 1)
    for relay in edge.relays[:2]:
        assert relay.calls("advertise") == [permit]
    del edge.relays[2].lies["advertise"]
    carrier.publish(TOKEN, SENT)
    eventually(lambda: len(edge.relays[2].calls("publish")) == 1)
    assert edge.relays[2].calls("advertise") == [permit, permit]
    for relay in edge.relays:
        frame = OverlayFrame.decode(relay.calls("exchange_frames")[0][0])
        claim = Claim.decode(frame.content)
        assert (frame.kind, claim.edge, claim.message.kind) == (FrameKind.ROUTE, edge.car.edge, MessageKind.ADVERTISE)


def test_a_permit_that_f_plus_1_refuse_is_refused(edge: Edge) -> None:
    def refuse(_: Any) -> None:
        raise Refused("the right is gone", reason="no-right")

    edge.relays[0].lies["advertise"] = refuse
    edge.carrier().advertise(edge.car.permit.encode())
    edge.relays[1].lies["advertise"] = refuse
    with pytest.raises(Refused, match="the right is gone"):
        edge.carrier().advertise(edge.car.permit.encode())


def test_relays_that_do_not_know_of_a_permit_yet_are_waited_for(edge: Edge) -> None:
    """They see the block with the permit a moment later than its holder."""

    def refuse(_: Any) -> None:
        raise Refused("undone, revoked or never issued", reason="permit-ended")

    permit = edge.car.permit
    for relay in edge.relays:
        relay.lies["advertise"] = refuse
    with pytest.raises(Refused, match="never issued"):  # the ledger says the same
        edge.carrier().advertise(permit.encode())
    row = PermitRow(int(permit.operation), TOKEN, permit.principal, permit.authority, 1, int(Status.ISSUED), 1)
    edge.rows.held[PERMITS(permit.identifier)] = row
    with pytest.raises(Unavailable, match="behind the ledger"):
        edge.carrier().advertise(permit.encode())
    seen = iter([refuse, refuse])  # and then it knows
    edge.relays[0].lies["advertise"] = lambda given: next(seen, lambda _: None)(given)
    del edge.relays[1].lies["advertise"]
    edge.carrier().advertise(permit.encode())
    edge.rows.held[PERMITS(permit.identifier)] = row._replace(status=int(Status.REVOKED))
    for relay in edge.relays:
        relay.lies["advertise"] = refuse
    with pytest.raises(Refused, match="never issued"):
        edge.carrier().advertise(permit.encode())


def test_what_is_taken_back_is_taken_back_from_the_routes_as_well(edge: Edge) -> None:
    carrier, order = edge.carrier(), order_for(edge.car.permit)
    carrier.advertise(edge.car.permit.encode())
    carrier.undo(order.encode())
    eventually(lambda: all(relay.calls("undo") == [order.encode()] for relay in edge.relays))
    eventually(lambda: all(len(relay.calls("exchange_frames")) == 2 for relay in edge.relays))
    claim = Claim.decode(OverlayFrame.decode(edge.relays[0].calls("exchange_frames")[1][0]).content)
    assert claim.order == order


def test_an_identity_that_knows_too_few_relays_is_told_so(edge: Edge) -> None:
    del edge.relays[1:]
    with pytest.raises(Misuse, match="1 of the 3 relays"):
        edge.carrier().publish(TOKEN, SENT)


# --- reading ---


def test_a_reader_goes_from_relay_to_relay(edge: Edge) -> None:
    def lag(_: Any) -> Any:
        raise Unavailable("not so far yet", retry_after_s=0.5)

    def refuse(_: Any) -> Any:
        raise Refused("who are you", reason="not-subscribed")

    carrier = edge.carrier()
    edge.relays[0].lies["fetch"], edge.relays[1].lies["fetch"] = lag, refuse
    assert carrier.fetch(WANTED).parcels == (b"parcel",)
    carrier.fetch(WANTED)
    assert [len(relay.calls("fetch")) for relay in edge.relays] == [1, 1, 2]  # who answered is asked first
    assert carrier.ask_another() == 3
    carrier.fetch(WANTED)
    assert len(edge.relays[0].calls("fetch")) == 2
    edge.relays[2].lies["fetch"] = refuse
    with pytest.raises(Refused, match="who are you"):
        carrier.fetch(WANTED)


def test_a_lock_is_taken_from_who_has_the_right_one(edge: Edge) -> None:
    carrier, permit = edge.carrier(), edge.car.permit
    carrier.put_locks(TOKEN, permit.identifier, [b"a lock"])
    (name,) = edge.locks
    edge.relays[0].lies["lock"] = lambda _: b"another lock"
    assert carrier.lock(name) == b"a lock"
    with without("the names of locks at an edge"):
        assert edge.carrier().lock(name) == b"another lock"


def test_paths_count_when_f_plus_1_show_them(edge: Edge) -> None:
    edge.relays[0].lies["inclusion"] = lambda offsets: [[b"false"] for _ in offsets]
    assert edge.carrier().inclusion(TOKEN, 0, 4, [1, 2]) == [[b"path"], [b"path"]]
    edge.relays[1].lies["inclusion"] = dead
    with pytest.raises(Unavailable):
        edge.carrier().inclusion(TOKEN, 0, 4, [1])


def test_frames_that_come_back_are_handed_on(edge: Edge) -> None:
    carrier, came = edge.carrier(), list[tuple[bytes, list[bytes]]]()
    carrier.on_frames = lambda relay, frames: came.append((relay, frames))
    edge.relays[1].lies["exchange_frames"] = lambda _: [b"for you"]
    carrier.collect()
    eventually(lambda: len(came) == 3)
    assert (edge.relays[1].name, [b"for you"]) in came
    assert PARCELS[0].header.instance == INSTANCE
