"""A publisher's decisions, without a publisher: effects out, events in."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import pytest

from tallystick.carriers.carrier import NotStored, Outcome, Stored
from tallystick.client.outbox import (
    AccuseNode,
    CheckAnchor,
    CloseLanes,
    Commit,
    Delivery,
    EndLane,
    ForgetCopies,
    LearnEpoch,
    Outbox,
    RenewPermits,
    Rows,
    SealAgain,
    SealBeats,
    SealRun,
    SendParcels,
    ShowPermits,
    Spooled,
    SyncSpool,
    Waiter,
)
from tallystick.client.settings import PublisherSettings
from tallystick.errors import Misuse, Refused, TallystickError, Unavailable
from tallystick.parcel.header import TopicRef
from tallystick.parcel.seal import Gap
from tallystick.trust.promise import JointPromise

E = TypeVar("E")

TOKEN = b"t" * 16
NOW = 100.0


class Permits:
    """What the publisher holds."""

    current, held = True, True

    def is_current(self, topics: Sequence[TopicRef]) -> bool:
        return self.current

    def covers(self, topics: Sequence[TopicRef]) -> bool:
        return self.held


class Desk:
    """Both hands of a publisher: carries effects out in memory, and tells what came of them."""

    def __init__(self, **settings: Any) -> None:
        self.permits = Permits()
        self.told: list[tuple[TallystickError | None, Delivery | None]] = []
        self.outbox = Outbox(
            PublisherSettings(**settings), self.permits, lambda error, delivery: self.told.append((error, delivery))
        )
        self.now = NOW
        self.next_sequence: dict[bytes, int] = {}
        self.lane = b"lane 0"

    def rows(self, *numbers: int) -> None:
        self.outbox.order(*(Rows(0, number, 10, Waiter([])) for number in numbers))  # type: ignore[arg-type]

    def parcel(self, rows: int = 1, waiter: Waiter | None = None, *, closes: bool = False) -> Spooled:
        sequence = self.next_sequence.get(self.lane, 0)
        self.next_sequence[self.lane] = sequence + 1
        topics = (TopicRef(TOKEN, b"p" * 16, 1),)
        name = b"%s %d" % (self.lane, sequence)
        return Spooled(self.lane, sequence, name, rows, 100, topics, (b"lock",), waiter or Waiter([]), closes)

    def seal(self, most: int = 99) -> Any:
        """Carry out the next effect of sealing."""
        effect = self.outbox.next_seal(self.now, has_room=True)
        match effect:
            case SealRun(rows):
                self.outbox.sealed(effect, [self.parcel(1, one.waiter) for one in rows[:most]], self.now)
            case SealAgain(_, waiting):
                self.lane += b"'"
                self.outbox.sealed(effect, [self.parcel(one.rows, one.waiter) for one in waiting], self.now)
            case EndLane():
                self.lane += b"'"
                self.outbox.sealed(effect, [], self.now)
            case CloseLanes():
                self.outbox.sealed(effect, [self.parcel(0, closes=True)], self.now)
                self.lane += b"'"
            case Gap() | Commit() | SealBeats():
                self.outbox.sealed(effect, [self.parcel(0)], self.now)
        return effect

    def sync(self) -> None:
        self.outbox.synced(self.next_of(SyncSpool))

    def send(self, *answers: NotStored | None) -> SendParcels:
        """Send the next request; `answers` are those of its first parcels, the others are stored."""
        effect: SendParcels = self.next_of(SendParcels)
        self.outbox.sent(effect, True, [answer or stored(one) for one, answer in paired(effect, answers)], self.now)
        return effect

    def stored_rows(self, *numbers: int) -> None:
        self.rows(*numbers)
        self.seal()
        self.sync()
        self.send()

    def check(self, below: int, judged: tuple[int, NotStored] | None = None) -> CheckAnchor:
        """Hold what was stored to an anchor of this size."""
        effect = self.next_of(CheckAnchor)
        proved = [(one, offset) for one, offset in effect.parcels if offset < below]
        found = None if judged is None else (effect.parcels[judged[0]][0], judged[1])
        self.outbox.checked(effect, proved, found, self.now)
        return effect

    def next_of(self, kind: type[E]) -> E:
        """The next effect of sending, behind what only has to be forgotten."""
        while isinstance(effect := self.outbox.next_send(self.now), ForgetCopies):
            pass
        assert isinstance(effect, kind)
        return effect

    def reports(self) -> list[str]:
        """What callers are told: the parcel's place, or the reason of the error."""
        for callback, error, delivery in self.outbox.reports:
            callback(error, delivery)
        self.outbox.reports = []
        told, self.told = self.told, []
        return [
            f"{one.lane.decode()} {one.sequence}" if one is not None else getattr(error, "reason", "")
            for error, one in told
        ]


def paired(effect: SendParcels, answers: Sequence[NotStored | None]) -> list[tuple[Spooled, NotStored | None]]:
    padded = [*answers, *[None] * len(effect.parcels)]
    return list(zip(effect.parcels, padded, strict=False))


def stored(one: Spooled) -> Outcome:
    return Stored((), offsets=((TOKEN, 0, one.sequence),))


def refusal(reason: str, expected: int | None = None) -> NotStored:
    return NotStored(reason, f"refused: {reason}", expected)


# --- from order to anchor ---


def test_a_parcel_is_sealed_synced_sent_and_forgotten_when_an_anchor_covers_it() -> None:
    desk = Desk(acks="anchored")
    desk.rows(1, 2)
    assert isinstance(desk.seal(), SealRun)
    assert desk.outbox.pending == 2
    desk.sync()
    request = desk.send()
    assert [one.sequence for one in request.parcels] == [0, 1]
    assert request.locks == [b"lock"]
    assert desk.reports() == []
    desk.check(1)
    assert desk.reports() == ["lane 0 0"]
    assert desk.outbox.next_send(desk.now) == ForgetCopies(b"lane 0", [0], drop=False)
    assert desk.outbox.pending == 1


def test_nothing_is_sent_before_it_is_durable_and_what_came_since_is_not_taken_for_it() -> None:
    desk = Desk()
    desk.rows(1)
    desk.seal()
    effect = desk.outbox.next_send(desk.now)
    assert effect == SyncSpool({b"lane 0": 1})
    desk.rows(2)
    desk.seal()  # while the disk syncs
    desk.outbox.synced(SyncSpool({b"lane 0": 1}))
    assert desk.outbox.next_send(desk.now) == SyncSpool({b"lane 0": 2})


def test_locks_are_handed_over_once_and_again_when_the_node_lost_them() -> None:
    desk = Desk()
    desk.stored_rows(1)
    desk.rows(2)
    desk.seal()
    desk.sync()
    assert desk.send(refusal("unknown-lock")).locks == []
    assert desk.send().locks == [b"lock"]


def test_a_run_is_as_long_as_time_allowed_and_the_rest_waits() -> None:
    desk = Desk()
    desk.rows(1, 2, 3)
    desk.seal(most=1)
    assert desk.outbox.pending == 3
    assert desk.outbox.waiting_bytes == 20
    assert [one.batch for one in desk.seal().rows] == [2, 3]


def test_a_silent_lane_has_a_heartbeat_and_a_closed_one_does_not() -> None:
    desk = Desk(heartbeat_s=5.0)
    desk.stored_rows(1)
    assert desk.seal() is None
    desk.now = 106.0
    assert desk.seal() == SealBeats([b"lane 0"])
    desk.outbox.order(CloseLanes())
    desk.seal()
    desk.now = 120.0
    assert desk.seal() is None


def test_rows_that_were_dropped_are_told_as_one_gap_when_there_is_room() -> None:
    desk = Desk()
    desk.outbox.drop(3, 1_000)
    desk.outbox.drop(4, 2_000)
    assert desk.outbox.next_seal(desk.now, has_room=False) is None
    assert desk.seal() == Gap(7, 1_000, 2_000, "spool full")
    assert desk.seal() is None


def test_a_commit_that_cannot_be_sealed_is_told_to_its_caller_and_not_tried_again() -> None:
    desk = Desk(write=(b"w" * 16, 1))
    commit = Commit(b"list", Waiter([]))
    desk.outbox.order(commit)
    effect = desk.outbox.next_seal(desk.now, has_room=True)
    assert effect is commit
    desk.outbox.sealed(commit, [], desk.now, Unavailable("the disk is full"))
    with pytest.raises(Unavailable):
        desk.outbox.is_kept(commit)
    assert desk.seal() is None
    again = Commit(b"list", Waiter([]))
    desk.outbox.order(again)
    desk.seal()
    assert not desk.outbox.is_kept(again)
    desk.sync()
    assert desk.outbox.is_kept(again)


# --- a carrier that anchors nothing ---


def sent_for_good(desk: Desk, *numbers: int) -> None:
    desk.rows(*numbers)
    desk.seal()
    desk.sync()
    effect: SendParcels = desk.next_of(SendParcels)
    desk.outbox.sent(effect, True, [Stored((), final=True) for _ in effect.parcels], desk.now)


def test_what_is_final_is_delivered_and_its_copy_goes() -> None:
    desk = Desk()
    sent_for_good(desk, 1, 2)
    assert desk.reports() == ["lane 0 0", "lane 0 1"]
    assert desk.outbox.next_send(desk.now) == ForgetCopies(b"lane 0", [0], drop=False)
    assert desk.outbox.next_send(desk.now) == ForgetCopies(b"lane 0", [1], drop=False)
    counts = desk.outbox.statistics(0, 0)
    assert (counts.produced.stored, counts.produced.anchored, counts.unproved) == (2, 0, 0)
    sent_for_good(desk, 3)
    assert desk.reports() == ["lane 0 2"]


def test_who_waits_for_an_anchor_that_never_comes_is_told_at_once() -> None:
    desk = Desk(acks="anchored")
    sent_for_good(desk, 1, 2)
    assert isinstance(desk.outbox.failure, Misuse)
    assert desk.outbox.next_send(desk.now) is None


# --- refusals ---


def test_a_node_that_has_less_is_sent_it_again_and_one_that_lost_what_was_anchored_is_named() -> None:
    desk = Desk()
    desk.stored_rows(1, 2, 3)
    desk.rows(4)
    desk.seal()
    desk.sync()
    desk.send(refusal("ahead", 1))
    assert [one.sequence for one in desk.send().parcels] == [1, 2, 3]
    desk.check(4)
    desk.rows(5)
    desk.seal()
    desk.sync()
    desk.reports()
    desk.send(refusal("ahead", 2))
    end = desk.seal()
    assert isinstance(end, EndLane)
    assert end.waiting[0].sequence == 4
    assert desk.reports() == ["lost"]


def test_a_parcel_that_is_stored_twice_counts_once_for_whoever_waits_for_two() -> None:
    desk, told = Desk(), list[object]()
    waiter = Waiter([lambda error, delivery: told.append(error)], left=2)
    desk.outbox.order(*(Rows(0, number, 10, waiter) for number in (1, 2)))  # type: ignore[arg-type]
    desk.seal()
    desk.sync()
    desk.send(None, refusal("ahead", 0))  # the node lost the first in between
    desk.send(None, refusal("unknown-lock"))
    desk.reports()
    assert told == []
    desk.send()
    desk.reports()
    assert told == [None]


def test_what_is_refused_for_good_fails_with_all_behind_it_and_the_next_rows_have_another_lane() -> None:
    desk = Desk()
    desk.stored_rows(1)
    desk.rows(2, 3)
    desk.seal()
    desk.sync()
    desk.reports()
    desk.send(refusal("too-large"))
    desk.rows(4)
    assert desk.next_of(CheckAnchor)  # the lane sends nothing more
    assert isinstance(desk.seal(), EndLane)
    assert desk.reports() == ["too-large", "too-large"]
    desk.seal()
    desk.sync()
    assert desk.next_of(SendParcels).lane == b"lane 0'"


def test_an_epoch_that_is_over_is_sealed_again_with_what_was_sealed_meanwhile() -> None:
    desk = Desk()
    desk.stored_rows(1)
    desk.rows(2)
    desk.seal()
    desk.sync()
    desk.send(refusal("epoch-over"))
    learn = desk.next_of(LearnEpoch)
    desk.rows(3)
    desk.seal()  # in the old lane still
    desk.sync()
    desk.outbox.learnt(learn, desk.now)
    assert desk.outbox.next_send(desk.now) is None  # the authority knows of no other: ask again later
    desk.now = 110.0
    desk.send(refusal("epoch-over"))
    desk.permits.current = False
    desk.outbox.learnt(desk.next_of(LearnEpoch), desk.now)
    again = desk.seal()
    assert isinstance(again, SealAgain)
    assert again.head is not None
    assert (again.head.sequence, [one.sequence for one in again.waiting]) == (0, [1, 2])
    desk.reports()
    desk.sync()
    desk.send()
    assert desk.reports() == ["lane 0' 0", "lane 0' 1"]


def test_a_revoked_permit_is_renewed_or_ends_the_publisher_and_nobody_is_asked_again() -> None:
    for refused in (None, Refused("the right is gone", reason="no-right")):
        desk = Desk()
        desk.rows(1)
        desk.seal()
        desk.sync()
        desk.send(refusal("permit-ended"))
        desk.outbox.renewed(desk.next_of(RenewPermits), refused)
        effect = desk.seal()
        assert isinstance(effect, SealAgain if refused is None else EndLane)
        desk.rows(2)
        assert (desk.seal() is None) == (refused is not None)
        assert desk.outbox.failure is refused


def test_without_a_right_not_even_another_lane_asks() -> None:
    desk = Desk()
    desk.stored_rows(1)
    desk.lane = b"other"
    desk.rows(2, 3)
    desk.seal()
    desk.sync()
    desk.send(refusal("no-right"))
    desk.lane = b"third"
    desk.outbox.order(Commit(b"", Waiter([])))
    assert desk.outbox.next_send(desk.now) is None
    assert isinstance(desk.seal(), EndLane)
    assert desk.outbox.failure is not None
    assert desk.seal() is None


def test_permits_are_shown_again_and_a_failure_to_do_so_is_not_forgotten() -> None:
    desk = Desk()
    desk.rows(1)
    desk.seal()
    desk.sync()
    desk.send(refusal("not-advertised"))
    assert isinstance(desk.outbox.next_send(desk.now), ShowPermits)
    desk.outbox.pause(Unavailable("the node is away"), desk.now)
    assert desk.outbox.next_send(desk.now) is None
    desk.now = 101.0
    assert isinstance(desk.outbox.next_send(desk.now), ShowPermits)
    desk.outbox.shown()
    desk.send()


def test_what_a_notary_refused_takes_back_all_behind_it() -> None:
    desk = Desk(acks="anchored")
    desk.stored_rows(1, 2, 3)
    desk.permits.current = False
    desk.check(1, judged=(1, refusal("epoch-over")))
    again = desk.seal()
    assert isinstance(again, SealAgain)
    assert [one.sequence for one in again.waiting] == [1, 2]


def test_an_overdue_promise_is_brought_to_the_ledger_until_that_was_done() -> None:
    desk = Desk(promise_s=10.0, anchor_check_s=1.0)
    desk.stored_rows(1)
    (one,) = desk.outbox.tracks[b"lane 0"].parcels.values()
    one.promises = ("promise",)  # type: ignore[assignment]
    desk.check(0)
    assert desk.outbox.next_send(desk.now) is None
    for done in (False, True):
        desk.now += 20.0
        desk.check(0)
        accusation = desk.next_of(AccuseNode)
        desk.outbox.accused(accusation, done)
    desk.now += 20.0
    desk.check(0)
    assert desk.outbox.next_send(desk.now) is None


JOINT = JointPromise(bytes(32), bytes(16), 1, bytes(16), 1, TOKEN, 0, 0, bytes(32), 1, 1, ((1, bytes(64)),))


def test_a_joint_promise_without_an_anchor_is_no_ones_fault_and_the_parcel_is_sent_again() -> None:
    desk = Desk(promise_s=10.0, anchor_check_s=1.0)
    desk.stored_rows(1, 2)
    track = desk.outbox.tracks[b"lane 0"]
    for one in track.parcels.values():
        one.promises = (JOINT,)
    desk.now += 20.0
    assert isinstance(desk.outbox.next_send(desk.now), CheckAnchor | None)
    assert track.stored == 0
    assert [one.sequence for one in desk.send().parcels] == [0, 1]
    assert desk.reports() == ["lane 0 0", "lane 0 1"]  # each is told once


def test_a_parcel_whose_place_went_to_another_is_sent_again_after_a_pause_and_its_lane_goes_on() -> None:
    desk = Desk(acks="anchored", retry_s=5.0)
    desk.stored_rows(1, 2, 3)
    desk.check(1, judged=(1, refusal("displaced")))
    assert desk.outbox.next_send(desk.now) is None or isinstance(desk.outbox.next_send(desk.now), ForgetCopies)
    desk.now += 6.0
    assert [one.sequence for one in desk.send().parcels] == [1, 2]
    desk.rows(4)
    assert isinstance(desk.seal(), SealRun)
    desk.now += 6.0
    desk.sync()
    desk.send()
    desk.check(4)
    assert desk.reports() == [f"lane 0 {number}" for number in range(4)]


# --- whatever happens ---


def test_every_row_is_delivered_or_failed_once_whatever_the_node_answers(seed: int) -> None:
    """Random answers, anchors and pauses; a model of the node beside it takes sequences in order only."""
    chooser = random.Random(seed)
    for _ in range(30):
        outcomes: Counter[int] = Counter()
        desk = Desk(acks=chooser.choice(["stored", "anchored"]), anchor_check_s=0.0)
        for number in range(20):
            waiter = Waiter([partial(count, outcomes, number)])
            desk.outbox.order(Rows(0, number, 10, waiter))  # type: ignore[arg-type]
        node: dict[bytes, int] = {}
        for _ in range(400):
            desk.now += 1.0
            if chooser.random() < 0.5:
                desk.seal(most=chooser.randrange(1, 4))
            else:
                step_of_sending(desk, node, chooser)
            desk.reports()
        while desk.outbox.pending:
            desk.now += 1.0
            desk.seal()
            step_of_sending(desk, node, None)
            desk.reports()
        assert outcomes == dict.fromkeys(range(20), 1)


def count(outcomes: Counter[int], number: int, *_: object) -> None:
    outcomes[number] += 1


def step_of_sending(desk: Desk, node: dict[bytes, int], chooser: random.Random | None) -> None:
    """The sending hand's next effect, with a node that answers as it likes, or honestly without a chooser."""
    effect = desk.outbox.next_send(desk.now)
    match effect:
        case SyncSpool():
            desk.outbox.synced(effect)
        case SendParcels():
            answers: list[Outcome] = []
            for one in effect.parcels:
                due, lie = node.get(one.lane, 0), chooser is not None and chooser.random() < 0.3
                if one.sequence > due:
                    answers.append(refusal("ahead", due))
                elif lie and chooser is not None:
                    answers.append(refusal(chooser.choice(["epoch-over", "unknown-lock", "too-large", "quota"])))
                else:
                    node[one.lane] = max(due, one.sequence + 1)
                    answers.append(stored(one))
                    continue
                break
            desk.outbox.sent(effect, True, answers, desk.now)
        case LearnEpoch():
            desk.permits.current = bool(chooser and chooser.random() < 0.5)
            desk.outbox.learnt(effect, desk.now)
        case CheckAnchor():
            below = chooser.randrange(0, 20) if chooser else 99
            desk.outbox.checked(effect, [one for one in effect.parcels if one[1] < below], None, desk.now)
        case _:
            assert effect is None or isinstance(effect, ForgetCopies)
