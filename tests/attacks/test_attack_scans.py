"""One tenant lets the node look for parcels: with parcels that contradict what lies in the log, and with questions for
parcels of lanes that are not there. Each looked through the headers of the partition, the first with the lock held that
every publisher needs. What is counted is headers read, never time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from actors import Hand, Topic, reason, reputation, settle, stored
from stack import Stack, wait_until
from without import without

from tallystick.carriers.carrier import QUESTIONS_MAX, LaneSought
from tallystick.carriers.front import ASKING, Front
from tallystick.carriers.kafka.anchorer import convict
from tallystick.carriers.kafka.notary import HOST
from tallystick.carriers.storage import Place
from tallystick.errors import Refused, Unavailable
from tallystick.guards.publish import Contradiction
from tallystick.trust.permit import Operation, Permit

STORED = 120
LIES = 12


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("scans")) as stack:
        yield stack


@pytest.fixture(scope="module")
def topic(stack: Stack) -> Topic:
    return Topic(stack, "acme")


@pytest.fixture(scope="module")
def victim(stack: Stack) -> Hand:
    """A publisher of another tenant."""
    return Hand(Topic(stack, "honest").car, "brakes")


class Watched:
    """Headers that the front reads, and how many of them while it holds its lock."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self.headers = self.locked = 0

    def __enter__(self) -> Watched:
        storage: Any = self._front.storage
        self._read = storage.read

        def read(*args: Any, **options: Any) -> Any:
            entries = self._read(*args, **options)
            self.headers += len(entries)
            self.locked += len(entries) if self._front.lock._is_owned() else 0  # type: ignore[attr-defined]
            return entries

        storage.read = read
        return self

    def __exit__(self, *_: object) -> None:
        storage: Any = self._front.storage
        storage.read = self._read


def liar(topic: Topic, name: str) -> tuple[Hand, list[Any]]:
    """A publisher with many parcels in the log, and parcels that contradict the second of them."""
    hand = Hand(topic.publisher(name), topic.token)
    stored(hand.send(hand.seal(0))[0])
    forks = [hand.fork() for _ in range(LIES)]
    for outcome in hand.send(*(hand.seal(number) for number in range(1, STORED))):
        stored(outcome)
    return hand, [hand.seal(1000 + number, lane=fork) for number, fork in enumerate(forks)]


def test_a_parcel_that_contradicts_costs_one_header(stack: Stack, topic: Topic, victim: Hand) -> None:
    hand, lies = liar(topic, "liar")
    settle(stack)
    with Watched(stack.node.carrier) as watched:
        assert {reason(outcome) for outcome in hand.send(*lies)} == {"equivocation"}
    assert watched.locked == LIES
    stored(victim.send(victim.seal(1))[0])


def test_without_the_index_each_reads_all_headers_under_the_lock(stack: Stack, topic: Topic) -> None:
    hand, lies = liar(topic, "old-liar")
    settle(stack)
    with without("the index of sequences"), Watched(stack.node.carrier) as watched:
        assert {reason(outcome) for outcome in hand.send(*lies)} == {"equivocation"}
    assert watched.locked > LIES * STORED


def test_parcels_sent_again_are_known_by_one_header_each(stack: Stack, topic: Topic) -> None:
    """As a publisher does that lost its answers: nobody is blamed, and nothing is looked through."""
    hand = Hand(topic.publisher("stutterer"), topic.token)
    parcels = [hand.seal(number) for number in range(LIES)]
    first = [stored(outcome) for outcome in hand.send(*parcels)]
    with Watched(stack.node.carrier) as watched:
        again = [stored(outcome) for outcome in hand.send(*parcels)]
    assert watched.locked == LIES - 1  # the head is known without
    assert [one.again for one in again] == [True] * LIES
    offsets = [[promise.offset for promise in one.promises] for one in first]
    assert [[promise.offset for promise in one.promises] for one in again] == offsets


class Asker:
    """A subscriber that asks for lanes."""

    def __init__(self, topic: Topic, name: str) -> None:
        self.session, self.token = topic.subscriber(name), topic.token
        grant = self.session.authority.permit(Operation.SUBSCRIBE, topic.token, 1)
        self.session.node.subscribe(grant.permit)
        self.permit = Permit.decode(grant.permit).identifier

    @property
    def principal(self) -> bytes:
        return self.session.identity.principal

    def ask(self, publisher: bytes, lane: bytes, below: int, times: int = QUESTIONS_MAX) -> list[Any]:
        question = LaneSought(self.token, 0, self.permit, publisher, lane, below, size=below)
        return self.session.node.lane_fronts([question] * times)


@pytest.fixture(scope="module")
def late(stack: Stack, topic: Topic) -> tuple[Hand, int]:
    """A publisher whose lane begins late in the partition, and where."""
    hand = Hand(topic.publisher("late"), topic.token)
    (promise,) = stored(hand.send(hand.seal(5))[0]).promises
    wait_until(lambda: stack.node.carrier.ends(topic.token, 0)[0] > promise.offset)
    return hand, promise.offset


@pytest.fixture(scope="module")
def asker(topic: Topic) -> Asker:
    return Asker(topic, "asker")


def test_questions_for_absent_lanes_read_nothing(
    stack: Stack, topic: Topic, late: tuple[Hand, int], asker: Asker
) -> None:
    hand, begin = late
    publisher = hand.session.identity.principal
    with Watched(stack.node.carrier) as watched:
        assert asker.ask(publisher, hand.lane.lane, begin) == [None] * QUESTIONS_MAX  # before it begins
        assert asker.ask(publisher, b"?" * 16, begin) == [None] * QUESTIONS_MAX
        assert watched.headers == 0
        (front,) = asker.ask(publisher, hand.lane.lane, begin + 1, times=1)
    assert (front.offset, watched.headers) == (begin, 1)


def test_without_the_index_each_question_reads_what_lies_below(
    stack: Stack, topic: Topic, late: tuple[Hand, int], asker: Asker
) -> None:
    hand, begin = late
    with without("the index of lanes below an offset"), Watched(stack.node.carrier) as watched:
        assert asker.ask(hand.session.identity.principal, hand.lane.lane, begin, times=4) == [None] * 4
    assert watched.headers >= 4 * begin


def spend_all(front: Front, principal: bytes, now: float) -> None:
    """Questions of one principal that go to the disk as often as they may."""
    spent = 0.0
    while spent <= ASKING.most:
        with front.asking(principal, now) as work:
            spent += 1 + work.reads
            work.reads = 0


def test_who_asks_too_much_waits_and_nobody_else_does(
    stack: Stack, topic: Topic, late: tuple[Hand, int], asker: Asker, victim: Hand
) -> None:
    hand, begin = late
    publisher, front = hand.session.identity.principal, stack.node.carrier
    greedy, (lying, lies) = Asker(topic, "greedy"), liar(topic, "greedy-liar")
    for principal in (greedy.principal, lying.session.identity.principal):
        spend_all(front, principal, stack.clock.now() + 600)  # so that it lasts for the test
    with Watched(front) as watched:
        with pytest.raises(Unavailable, match="looked up"):
            greedy.ask(publisher, hand.lane.lane, begin + 1, times=1)
        with pytest.raises(Unavailable, match="looked up"):
            lying.send(lies[0])
        assert watched.headers == 0
    (found,) = asker.ask(publisher, hand.lane.lane, begin + 1, times=1)
    assert found.offset == begin
    stored(victim.send(victim.seal(2))[0])
    with without("the charge for questions about lanes"):
        (found,) = greedy.ask(publisher, hand.lane.lane, begin + 1, times=1)
        assert found.offset == begin
        assert reason(lying.send(lies[0])[0]) == "equivocation"


def test_a_notary_looks_up_no_more_for_one_client_than_it_may(stack: Stack, topic: Topic) -> None:
    hand, (lie, *_) = liar(topic, "direct-liar")
    principal, front, place = hand.session.identity.principal, stack.node.carrier, Place(topic.token, 0)
    found = Contradiction(lie, hand.permit, (0,))
    with Watched(front) as watched:
        assert not convict(front, found, place)
        assert watched.headers == 1
    wait_until(lambda: reputation(stack, principal)[1] > 0)  # both headers are on the ledger
    spend_all(front, HOST.encode() + principal, front.block()[1] / 1000 + 60)
    with Watched(front) as watched, pytest.raises(Refused) as refused:
        convict(front, found, place)
    assert (refused.value.reason, watched.headers) == ("behind", 0)
    with without("the charge for questions about lanes"), Watched(front) as watched:
        assert not convict(front, found, place)
    assert watched.headers == 1
