"""Faults of the world that the clients must survive, one at a time: each of them once lost or doubled something.

The world is that of the simulation in calm weather, so every part is real and every fault is placed by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from without import without

from tallystick.client.opening import Opened
from tallystick.client.outbox import SendParcels
from tallystick.client.publish import PublisherSettings
from tallystick.errors import Unavailable
from tallystick.ledger import entries
from tallystick.ledger.block import parse
from tallystick.ledger.contracts.anchors import BROKEN
from tallystick.ledger.contracts.groups import OFFSETS
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.parcel.parcel import Parcel, VerifiedParcel
from tallystick.runtime.conversation import Attempt
from tallystick.runtime.http1 import Response
from tallystick.runtime.sources import SeededEntropy
from tallystick.sim.checker import Violation
from tallystick.sim.machine import SkewedClock
from tallystick.sim.sealing import seeded_sealing
from tallystick.sim.world import World


@pytest.fixture
def world() -> Iterator[World]:
    with seeded_sealing(SeededEntropy("faults")):
        yield make_world()


def make_world(**settings: Any) -> World:
    world = World(1)
    publisher = world.publishers[0]
    publisher.settings = replace(PublisherSettings(linger_s=0.0, heartbeat_s=1e6, batch_rows_max=4), **settings)
    publisher.stop()
    publisher.start()
    return world


def break_once(world: World, *words: bytes, answer_only: bool = False) -> None:
    """The next request whose first line has all the words is lost, or its answer is."""
    network = world.network
    usual = network.exchange

    def exchange(attempt: Attempt) -> Response | Unavailable:
        if not all(word in attempt.head.split(b"\r\n", 1)[0] for word in words):
            return usual(attempt)
        network.exchange = usual
        if answer_only:
            usual(attempt)
        # Twice, so that the client's own second attempt fails as well.
        network.exchange = exchange_again
        return Unavailable("lost")

    def exchange_again(attempt: Attempt) -> Unavailable:
        network.exchange = usual
        return Unavailable("lost again")

    network.exchange = exchange


def settle(world: World, rounds: int = 4) -> None:
    for _ in range(rounds):
        world.pass_time(1.0)
        world.node_works()
        for publisher in world.publishers:
            publisher.pump()


@pytest.mark.parametrize("behind_s", [0.0, 6.0])
def test_rows_of_an_epoch_that_has_just_begun_are_opened_though_the_authority_is_late(
    world: World, behind_s: float
) -> None:
    """It works once a second or so, and its clock may be behind; the publisher has the new key long before."""
    world.pass_time(30.0)
    world.node_works()
    world.alone.poll()
    world.keys_rotate()
    publisher = world.publishers[0]
    publisher.update_keys()
    assert world.alone.subscriber is not None
    world.alone.subscriber.update_keys()  # it knows of all that was announced
    world.authority.core.clock = SkewedClock(world.clock, -behind_s)
    world.pass_time(world.authority.core.settings.revoke_s)
    publisher.produce(4)
    settle(world, 2)
    world.node_works()
    storage = world.host.open_core.carrier.storage
    [place] = storage.places()
    [entry, *_] = storage.read(place, 0, 1, headers_only=True)
    assert Parcel.decode_front(entry.header).header.topics[0].epoch == 2
    world.alone.poll()
    assert world.alone.rows == (set() if behind_s else set(range(4)))
    world.pass_time(behind_s)
    world.node_works()
    world.alone.poll()
    assert world.alone.rows == set(range(4))


def test_two_processes_of_one_name_write_to_the_ledger_though_one_clock_is_behind(world: World) -> None:
    one, two = (member.person.author for member in world.members)
    world.members[0].person.clock.offset_s = 3.0
    one.write(entries.group(bytes(16), 15_000, [world.token]))
    world.members[0].person.clock.offset_s = -3.0
    two.write(entries.join(bytes(16), b"m" * 16))  # its number lies below the last one
    two.write(entries.leave(bytes(16), b"m" * 16))


# Subscribers.


@pytest.mark.parametrize("words", [(b"GET", b"/locks/"), (b"GET", b"/permits/"), (b"GET", b"ledger/state")])
def test_what_cannot_be_fetched_now_is_neither_skipped_nor_a_finding(world: World, words: tuple[bytes, ...]) -> None:
    world.publishers[0].produce(10)
    settle(world)
    break_once(world, *words)
    world.alone.poll()  # the checker raises at any finding
    assert len(world.alone.rows) < 10
    world.alone.poll()
    assert world.alone.rows == set(range(10))


def test_a_lane_met_in_the_middle_whose_head_cannot_be_fetched_now_is_no_finding(world: World) -> None:
    member = world.members[0]
    world.publishers[0].produce(4)
    settle(world)
    assert member.poll() == 1
    member.commit()
    member.restart()
    world.publishers[0].produce(4)
    settle(world, 20)  # the old member's lease ends
    member.poll()
    break_once(world, b"GET", b"/lanes/")
    assert member.poll() == 0
    assert member.poll() == 1


def test_what_came_before_a_failure_is_delivered_and_only_that_is_committed(world: World) -> None:
    world.publishers[1].settings = PublisherSettings(linger_s=0.0, heartbeat_s=1e6)
    for publisher in world.publishers:
        publisher.produce(4)
    settle(world)
    subscriber = world.alone.subscriber
    assert subscriber is not None
    opened = []

    def fail_second(verified: VerifiedParcel, *, is_first: bool = True) -> Opened:
        opened.append(verified)
        if len(opened) == 2:
            raise Unavailable("the authority cannot be reached")
        return usual(verified, is_first=is_first)

    usual, subscriber._opener.rows = subscriber._opener.rows, fail_second
    first = subscriber.poll(0)
    assert len(first) == 1
    assert sum(subscriber.positions().values()) == 1
    assert len(first + subscriber.poll(0)) == 2


def test_what_was_taken_is_delivered_before_an_old_ledger_is_told(world: World) -> None:
    world.publishers[0].produce(4)
    settle(world)
    assert world.alone.poll() == 1
    world.publishers[0].produce(4)
    settle(world)
    subscriber = world.alone.subscriber
    assert subscriber is not None
    usual = subscriber._opener.rows

    def fail_once(verified: VerifiedParcel, *, is_first: bool = True) -> Opened:
        subscriber._opener.rows = usual
        raise Unavailable("the authority cannot be reached")

    subscriber._opener.rows = fail_once
    assert world.alone.poll() == 0
    world.pass_time(100.0)  # no block for longer than a head may be old
    assert world.alone.poll() == 1
    assert world.alone.rows == set(range(8))


def test_an_offset_commit_whose_answer_was_lost_holds(world: World) -> None:
    member = world.members[0]
    world.publishers[0].produce(4)
    settle(world)
    member.poll()
    assert member.subscriber is not None
    break_once(world, b"POST", b"/transactions", answer_only=True)
    with pytest.raises(Unavailable):
        member.subscriber.commit()
    world.publishers[0].produce(4)
    settle(world)
    member.poll()
    member.subscriber.commit()  # from where the first one got to, to the end
    assert sum(row.offset for _, row in world.host.open_core.ledger.scan(OFFSETS)) == 2


def test_an_offset_that_the_ledger_does_not_show_yet_is_still_our_own(world: World) -> None:
    """Found by seed 9055: the answer to a commit was lost and its block was still open, so that the member, told that
    the offset had moved, found it where it was, and took it for another's."""
    member = world.members[0]
    world.publishers[0].produce(4)
    settle(world)
    member.poll()
    assert member.subscriber is not None
    world.host.is_slow = True
    with pytest.raises(Unavailable):
        member.subscriber.commit()

    def make_block(seconds: float) -> None:
        world.host.is_slow = False
        world.pass_time(1.0)
        world.node_works()

    member.person.clock.pause = make_block
    member.subscriber.commit()
    assert not world.host.is_slow  # it waited until the ledger showed what it had refused by
    assert sum(row.offset for _, row in world.host.open_core.ledger.scan(OFFSETS)) == 1


def test_a_commit_after_a_round_that_failed_while_partitions_were_dealt_anew_holds(world: World) -> None:
    member, other = world.members
    world.publishers[0].produce(4)
    settle(world)
    member.poll()
    assert member.subscriber is not None
    break_once(world, b"POST", b"/transactions", answer_only=True)
    member.commit()  # got through, and nobody said so
    other.poll()  # the group is dealt anew
    world.pass_time(10.0)
    world.node_works()
    subscriber = member.subscriber
    group = subscriber._member
    assert group is not None
    group.join()  # as far as the round got
    member.commit()
    for _ in range(4):
        world.pass_time(10.0)
        world.node_works()
        for one in world.members:
            one.poll()
            one.commit()
    assert sum(row.offset for _, row in world.host.open_core.ledger.scan(OFFSETS)) == 1


def test_a_group_whose_block_was_never_made_is_joined_later(world: World) -> None:
    """Found by seed 323: told that the group was there, a member joined it; it had been in a block that the node's fall
    took along, and the refusal ended the member's subscription."""
    member, other = world.members
    world.host.is_slow = True
    other.poll()  # its group is in the open block
    usual = world.network.exchange

    def fall_before_joining(attempt: Attempt) -> Response | Unavailable:
        is_written = attempt.head.startswith(b"POST /v1/transactions")
        if is_written and next(parse(attempt.body).decode_entries())[0] == EntryKind.JOIN and world.host.is_slow:
            world.host.is_slow = False
            world.host.crash()
            world.host.start()
        return usual(attempt)

    world.network.exchange = fall_before_joining
    member.poll()
    assert not world.host.is_slow  # it was told of the group, and the node fell
    world.publishers[0].produce(4)
    for _ in range(4):
        settle(world, 1)
        member.poll()
        other.poll()
    assert member.rows | other.rows == set(range(4))


# Publishers.


def test_rows_that_are_stored_are_not_sealed_again_when_their_epoch_ends_before_the_answer(world: World) -> None:
    world.publishers[0].produce(10)
    break_once(world, b"POST", b"/parcels", answer_only=True)
    world.publishers[0].pump()
    rotate(world)
    settle(world)
    read_all(world, 10)


def test_rows_that_waited_too_long_are_sealed_again_by_the_next_process(world: World) -> None:
    """Its permit is another than the one under which the rows were sealed."""
    spool_rows(world)
    rotate(world)
    world.publishers[0].start()
    settle(world)
    read_all(world, 10)


@pytest.mark.parametrize("change", range(1, 26, 2))
def test_sealing_again_counts_once_whenever_the_power_fails(world: World, change: int) -> None:
    spool_rows(world)
    rotate(world)
    publisher = world.publishers[0]
    publisher.start()
    publisher.person.disk.power_off_after(change)
    publisher.pump()
    publisher.person.disk.disarm()
    settle(world, 8)
    read_all(world, 10)


def test_rows_wait_while_the_disk_of_the_spool_is_full(world: World) -> None:
    publisher = world.publishers[0]
    publisher.person.disk.fill(700)
    publisher.produce(10)
    settle(world)
    assert publisher.pending
    publisher.person.disk.fill(None)
    settle(world)
    assert world.checker.acknowledged == set(range(10))
    read_all(world, 10)


def test_nothing_is_sealed_under_a_key_that_the_full_disk_did_not_take() -> None:
    with seeded_sealing(SeededEntropy("keys")):
        world = make_world(lane_parcels_max=1)
        publisher = world.publishers[0]
        publisher.produce(4)
        settle(world)
        publisher.person.disk.fill(1_000)  # room for a parcel, none for the lane's record
        publisher.produce(4)
        settle(world, 1)
        publisher.crash()
        publisher.person.disk.fill(None)
        settle(world)
        publisher.produce(4)
        settle(world)
        assert publisher.pending == 0


def crash_behind_a_lane_that_was_sealed_again() -> None:
    """Its first rows are stored and never checked, so that it stays in the spool; those behind them were sealed again
    in another lane when the power went."""
    with seeded_sealing(SeededEntropy("ends")):
        world = make_world(anchor_check_s=1e6)
        publisher = world.publishers[0]
        publisher.produce(4)
        settle(world)
        publisher.produce(4)
        assert publisher.publisher is not None
        publisher.publisher._seal_step()
        rotate(world)
        settle(world)
        publisher.crash()
        read_all(world, 8)


def test_rows_that_were_sealed_again_do_not_come_twice_after_a_crash() -> None:
    crash_behind_a_lane_that_was_sealed_again()
    with without("the end of a lane on the disk"), pytest.raises(Violation, match="came twice"):
        crash_behind_a_lane_that_was_sealed_again()


def test_rows_in_several_lanes_are_acknowledged_when_all_are_stored() -> None:
    with seeded_sealing(SeededEntropy("lanes")):
        world = make_world(lanes=2, request_parcels_max=1)
        publisher = world.publishers[0].publisher
        assert publisher is not None
        told: list[object] = []
        rows = [{"row": number, "name": "car"} for number in range(8)]
        publisher.send(rows, lambda error, delivery: told.append(error))  # two parcels, one in each lane
        publisher._seal_step()
        quicker = publisher._outbox.next_send(
            publisher._clock.monotonic(), served=[next(iter(publisher._outbox.tracks))]
        )
        assert isinstance(quicker, SendParcels)  # of the second one
        publisher._send_next(quicker)
        assert publisher.statistics().stored == 1
        assert not publisher._outbox.reports
        publisher.poll()
        assert told == [None]


def test_a_ledger_that_stood_still_does_not_end_a_publisher(world: World) -> None:
    world.publishers[0].produce(4)
    world.publishers[0].pump()
    world.pass_time(100.0)  # no block for longer than a head may be old
    world.publishers[0].pump()
    settle(world)
    read_all(world, 4)


def test_a_broken_promise_is_told_again_when_the_ledger_was_away(world: World) -> None:
    """The accused node is the one that carries the accusation: a failure to do so must not make it forgotten."""
    actor = world.publishers[0]
    actor.settings = replace(actor.settings, promise_s=100.0)
    actor.stop()
    actor.start()
    assert actor.publisher is not None
    actor.publisher._sender._ties.author = actor.person.author
    actor.produce(4)
    actor.pump()

    def anchor_nothing() -> None:
        world.host.open_core.ledger.tick(int(world.node_clock.now() * 1000))

    world.node_works = anchor_nothing
    break_once(world, b"POST", b"/transactions")
    for told in (0, 1):
        world.pass_time(110.0)
        world.node_works()
        actor.pump()
        world.node_works()
        assert len(world.host.open_core.ledger.scan(BROKEN)) == told


def spool_rows(world: World) -> None:
    """Ten rows sealed and spooled, and their publisher gone before it sent them."""
    publisher = world.publishers[0]
    publisher.produce(10)
    assert publisher.publisher is not None
    publisher.publisher._seal_step()
    publisher.stop()


def rotate(world: World) -> None:
    """Twice: the epoch before the last is no longer taken, however it ended."""
    for _ in range(2):
        world.keys_rotate()
        for _ in range(4):
            world.pass_time(1.0)
            world.node_works()
            world.authority_works()


def read_all(world: World, rows: int) -> None:
    """Everything came, and the checker saw nothing twice."""
    settle(world)
    for _ in range(3):
        world.alone.poll()
    assert world.alone.rows == set(range(rows))
