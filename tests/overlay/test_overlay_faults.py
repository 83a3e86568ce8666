"""The overlay as a carrier while relays end, come back, lose their disks, stall and lie: whole nodes, one ledger.

Whatever happens: what was promised to a publisher is read once, each lane in its order, and the logs of all relays that
keep a partition are equal in the end.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from actors import Hand, anchored, read_rows, stored
from commands import done, refused
from overlay_stack import RelayNode, Town, overlay_of
from stack import wait_until
from without import without

from tallystick import wire
from tallystick.carriers.carrier import Fetch, Fetched
from tallystick.carriers.overlay.anchoring import Anchoring
from tallystick.carriers.overlay.keeper import OverlayKeeper
from tallystick.carriers.overlay.ordering import Ordering
from tallystick.carriers.overlay.places import OrderedPartition, Unjudged
from tallystick.carriers.storage import Place
from tallystick.client.fetching import Supplier
from tallystick.client.reader import ReadTopic
from tallystick.client.session import Session
from tallystick.errors import Refused, Unavailable
from tallystick.guards.route import MessageKind
from tallystick.ledger.contracts.blame import FAULTS, MISDEALS
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.leases import LEASES
from tallystick.ledger.engine import Query
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.verify import PermitBook
from tallystick.runtime.effects import Effect, Send
from tallystick.trust.permit import Operation, Permit
from tallystick.trust.promise import JointPromise
from tallystick.trust.right import Right


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with overlay_of(tmp_path_factory.mktemp("overlay"), {"edge": "", "rim": "edge"}) as town:
        yield town


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Town]:
    """A town whose relays may be ruined."""
    with overlay_of(tmp_path, {"edge": ""}) as town:
        yield town


@pytest.fixture(scope="module")
def people(town: Town) -> tuple[Session, Session]:
    return town.principal("car", "edge"), town.principal("reader", "rim")


class Topic:
    """A topic of the town's people, and a publisher that seals row after row."""

    def __init__(self, town: Town, people: tuple[Session, Session], name: str) -> None:
        self.town, (self.car, self.reader), self.name = town, people, name
        self.token = town.topic(name, "edge", *people)
        self.place = Place(self.token, 0)
        self.hand = Hand(self.car, name, node=self.car.carrier)
        self.sent = 0

    def publish(self, count: int) -> list[int]:
        """So many rows more, each as often as it takes. Returns their offsets."""
        found = []
        for number in range(self.sent, self.sent + count):
            parcel = self.hand.seal(number)
            found += self.send(parcel)
        self.sent += count
        return found

    def send(self, *parcels: Parcel) -> list[int]:
        """Together, as often as it takes."""
        taken: list[int] = []

        def try_once() -> bool:
            try:
                outcomes = self.hand.send(*parcels)
            except Unavailable:
                return False
            taken.extend(stored(one).promises[0].offset for one in outcomes)
            return True

        wait_until(try_once)
        return taken

    def check(self, nodes: Sequence[RelayNode] | None = None) -> None:
        """All that was sent is anchored once, in its order; logs are equal; the reader reads it."""
        wait_until(lambda: anchored(self.town.owner.view, self.token) == self.sent)
        with self.reader.subscriber(self.name) as subscriber:
            assert read_rows(subscriber, self.sent) == list(range(self.sent))
            assert not subscriber.findings
        self.check_logs(list(self.town.relays.values()) if nodes is None else nodes)

    def check_logs(self, nodes: Sequence[RelayNode]) -> None:
        wait_until(lambda: all(node.carrier.storage.end(self.place) == self.sent for node in nodes))
        assert len({node.carrier.storage.tree(self.place).root(self.sent) for node in nodes}) == 1

    def fence(self) -> int:
        row = self.town.owner.view.row(LEASES(*self.place))
        return 0 if row is None else row.fence


@pytest.fixture
def topic(town: Town, people: tuple[Session, Session], request: pytest.FixtureRequest) -> Topic:
    return Topic(town, people, request.node.name.removeprefix("test_")[:40])


def others(town: Town, place: Place) -> list[tuple[str, int]]:
    """The relays of the entry that do not hold the lease."""
    return [one for one in town.relays if one[0] == "edge" and town.relays[one] is not town.holder(place)]


@pytest.mark.long
def test_relays_that_end_during_load_catch_up_when_they_are_back(topic: Topic) -> None:
    town = topic.town
    topic.publish(3)
    topic.check()
    ended = [others(town, topic.place)[0], ("rim", 1)]
    for one in ended:
        town.end(one)
    topic.publish(5)
    for one in ended:
        town.start(one)
    topic.publish(5)
    topic.check()
    assert topic.fence() == 1


def test_another_relay_takes_over_from_a_holder_that_ended(topic: Topic) -> None:
    town = topic.town
    assert topic.publish(4) == [0, 1, 2, 3]
    holder = town.seat_of(town.holder(topic.place))
    town.end(holder)
    try:
        assert topic.publish(6) == [4, 5, 6, 7, 8, 9]
        assert topic.fence() == 2
    finally:
        town.start(holder)
    topic.check()


@pytest.mark.long
def test_a_publisher_that_reaches_f_plus_one_relays_is_served(small: Town) -> None:
    """The third gets the parcels from the others, and the locks and permits too; nobody calls it silent."""
    few, reader = small.principal("few", "edge", reaches=2), small.principal("reader", "edge")
    for number in range(3):  # so that the third holds the lease of some topic, too
        topic = Topic(small, (few, reader), f"few-{number}")
        topic.publish(2)
        topic.check()
    assert not any(small.owner.view.row(FAULTS(node.identifier)) for node in small.relays.values())


def test_a_relay_whose_disk_was_wiped_gets_all_again(topic: Topic) -> None:
    """Also what was given up, of which only fronts are left, at both edges."""
    town = topic.town
    topic.publish(6)
    topic.check()
    town.give_up(topic.place, 2)
    lost = [others(town, topic.place)[0], ("rim", 0)]
    for one in lost:
        town.end(one)
        town.wipe(one)
        town.start(one)
    topic.publish(2)
    topic.check_logs(town.edge("edge"))
    with topic.reader.subscriber(topic.name) as subscriber:  # its permit is shown again, so the topic is followed again
        topic.check_logs(town.edge("rim"))
        assert sorted(read_rows(subscriber, 6)) == [2, 3, 4, 5, 6, 7]
    for one in lost:
        assert town.relays[one].carrier.storage.tree(topic.place).below == 2


def test_a_relay_that_has_nothing_yet_accuses_nobody(topic: Topic) -> None:
    """It knows neither the reader's subscription nor the publisher's permit, and says nothing of any parcel by that."""
    town, empty, reader = topic.town, ("rim", 0), topic.reader
    topic.publish(3)
    topic.check()
    with reader.subscriber(topic.name) as subscriber:
        assert read_rows(subscriber, 3) == [0, 1, 2]
        town.end(empty)
        town.wipe(empty)
        town.start(empty)
        for _ in town.edge("rim"):  # whoever of them is asked first
            reader.node.ask_another()
            subscriber.seek(0, 1)  # where the lane is met in the middle, and its head asked for
            assert read_rows(subscriber, 2) == [1, 2]
        assert not subscriber.findings
        fetcher, me = subscriber._fetcher, reader.identity
        anchor = fetcher.anchor(0)
        assert anchor is not None
        shown = fetcher.headers(0, 0, 3, anchor.size).parcels
        assert not town.relays[empty].log.end(topic.place)  # else this shows nothing
    known = ReadTopic(me.instance, topic.token, 1, PermitBook(me.instance, [me.authority]))
    supplier, headers = Supplier(reader.node, reader.view, known), [Parcel.decode_front(one).header for one in shown]
    others = [one for one in town.relays if one[0] == "rim" and one != empty]
    for one in others:  # between what they showed, and what is asked for next
        town.end(one)
    try:
        with pytest.raises(Unavailable):
            supplier.learn(headers)
    finally:
        for one in others:
            town.start(one)
    assert supplier.learn(headers) == {}


def test_an_edge_keeps_nothing_of_a_tenant_that_its_operator_does_not_carry(topic: Topic) -> None:
    """Whose permit no guard there takes sends the claim alone: parcels are sent there, and not kept."""
    town = topic.town
    owner, car = town.stack.tenant("rival"), town.principal("rival-car", "edge", tenant="rival")
    greedy = town.principal("greedy", "rim", tenant="rival")
    token = town.topic("greedy", "edge", car, greedy, owner=owner)
    hand, place, rim = Hand(car, "greedy", node=car.carrier), Place(token, 0), town.edge("rim")
    kept: list[Any] = [node.carrier.storage for node in rim]

    def publish(*numbers: int) -> None:
        for parcel in map(hand.seal, numbers):
            wait_until(lambda: _is_taken(hand, parcel))  # noqa: B023
        wait_until(lambda: anchored(owner.view, token) == numbers[-1] + 1)

    for node in rim:
        node.rules._tenants = frozenset({town.owner.identity.tenant})
    try:
        permit = greedy.authority.permit(Operation.SUBSCRIBE, "greedy").permit
        with pytest.raises(Refused, match="does not carry"):
            greedy.carrier.subscribe(permit)
        carrier: Any = greedy.carrier
        claim = carrier._claim(MessageKind.SUBSCRIBE, Permit.decode(permit))
        for name, relay in greedy.node.each().items():
            carrier.exchange(name, relay, [claim])
        publish(0, 1, 2)
        topic.publish(2)  # of a tenant that is carried there, on the same ways
        topic.check()
        assert not any(storage.has_some(place) for storage in kept)
        with without("the tenants whose parcels an edge keeps"):
            publish(3)
            wait_until(lambda: all(storage.end(place) == 4 for storage in kept))
    finally:
        for node in rim:
            node.rules._tenants = frozenset()


def _is_taken(hand: Hand, parcel: Parcel) -> bool:
    try:
        return all(map(stored, hand.send(parcel)))
    except Unavailable:
        return False


class Behind:
    """The fronts of an edge that lags until `is_over`."""

    def __init__(self, front: Any, is_over: Callable[[], bool]) -> None:
        self._front, self._is_over = front, is_over

    def __getattr__(self, name: str) -> Any:
        return getattr(self._front, name)

    def fetch(self, asked: Any, wanted: Fetch) -> Fetched:
        if not self._is_over():
            raise Unavailable("a body that nobody wanted here is on its way", retry_after_s=0.1)
        shown: Fetched = self._front.fetch(asked, wanted)
        return shown


@contextmanager
def lagging(town: Town, is_over: Callable[[], bool]) -> Iterator[None]:
    desks: list[Any] = [node.service._desk for node in town.edge("rim")]
    for desk in desks:
        desk._front = Behind(desk._front, is_over)
    try:
        yield
    finally:
        for desk in desks:
            desk._front = desk._front._front


def test_who_follows_waits_for_an_edge_that_lags_and_says_so_once(topic: Topic) -> None:
    topic.publish(3)
    topic.check()
    read = "subscribe", topic.name, "--follow", "-n", 3, "--home", topic.reader.identity.home

    def is_said() -> bool:
        said: Any = sys.stderr.buffer  # as `done` has it
        return b"waiting: " in said.getvalue()

    with lagging(topic.town, is_said):
        said = done(*read)
    assert [row["seq"] for row in said.rows] == [0, 1, 2]
    assert said.err.count("waiting: ") == 1
    assert "is on its way" in said.err
    with lagging(topic.town, lambda: False):
        assert "is on its way" in refused(4, *read, "--timeout", 0.2)[0]


def test_who_published_and_who_read_is_told_once(topic: Topic) -> None:
    topic.publish(5)
    topic.check()
    ledger, car, reader = topic.town.stack.node.ledger, topic.car.identity.principal, topic.reader.identity.principal

    def told(who: bytes, right: Right) -> int:
        """How many parcels the ledger has of somebody's acts."""
        found = [wire.decode(one.entry) for one in ledger.audit(Query(token=topic.token, kind=EntryKind.OPERATION))]
        return sum(one[10] - one[9] for one in found if (one[1], one[4]) == (who, int(right)))

    assert told(car, Right.WRITE) == 5
    wait_until(lambda: told(reader, Right.READ) >= 5)


@pytest.mark.long
def test_relays_go_on_when_the_ledger_is_there_again(topic: Topic) -> None:
    town = topic.town
    topic.publish(2)
    topic.check()
    away = [town.relays[one] for one in (("edge", 0), ("edge", 1), ("rim", 2))]
    for node in away:
        node.shared.is_away = True
    threading.Event().wait(1)
    for node in away:
        node.shared.is_away = False
    topic.publish(4)
    topic.check()


def test_an_edge_orders_nothing_of_a_tenant_that_its_operator_does_not_carry(town: Town) -> None:
    """Its owner entrusts the topic to relays, which nobody asked; without the operator's list they order it."""
    owner, edge = town.stack.tenant("guest"), town.edge("edge")
    car, reader = (town.principal(f"guest-{name}", "edge", tenant="guest") for name in ("car", "reader"))
    for node in edge:
        node.rules._tenants = frozenset({town.owner.identity.tenant})
    try:
        token = town.topic("unasked", "edge", car, reader, owner=owner)
        height = town.stack.node.ledger.height
        wait_until(lambda: town.stack.node.ledger.height > height + 10)
        assert owner.view.row(LEASES(token, 0)) is None
    finally:
        for node in edge:
            node.rules._tenants = frozenset()
    wait_until(lambda: owner.view.row(LEASES(token, 0)) is not None)


def test_what_another_relay_brings_is_judged_as_if_its_publisher_had(topic: Topic) -> None:
    topic.publish(1)
    node, sealed = topic.town.holder(topic.place), topic.hand.seal(1)
    topic.sent += 1
    forged = Parcel(sealed.header, bytes(64), sealed.body)
    keeper: Any = node.core.anchorer
    proposed: list[Parcel] = []
    station = SimpleNamespace(propose=lambda place, parcel: proposed.append(parcel), ask=node.relay.receive)
    judge = partial(OverlayKeeper._judge, cast(OverlayKeeper, Keeper(keeper, station)))
    judge(Unjudged(topic.place, forged, False))
    assert not proposed
    with without("the guard of what is brought"):
        judge(Unjudged(topic.place, forged, False))
    assert proposed.pop() is forged
    judge(Unjudged(topic.place, sealed, False))
    assert proposed == [sealed]
    topic.send(sealed)
    topic.check()


class Keeper:
    """A relay's keeper, with another station."""

    def __init__(self, keeper: Any, station: Any) -> None:
        self._keeper, self.station = keeper, station

    def __getattr__(self, name: str) -> Any:
        return getattr(self._keeper, name)


class Stalling(Ordering):
    """An orderer that gives one partition nothing."""

    stalled: Place

    def _order(self, partition: OrderedPartition, *rest: Any) -> None:
        if partition.place != self.stalled:
            super()._order(partition, *rest)


def make(node: RelayNode, kind: type[Ordering]) -> Any:
    """Let a relay order in another way."""
    ordering: Any = node.relay.ordering
    ordering.__class__ = kind
    return ordering


@pytest.mark.long
def test_an_orderer_that_stalls_holds_up_its_own_topic_alone(small: Town) -> None:
    town, people = small, (small.principal("car", "edge"), small.principal("reader", "edge"))
    stalls, flows = Topic(town, people, "stalls"), Topic(town, people, "flows")
    for topic in (stalls, flows):
        topic.publish(1)
    holder = town.holder(stalls.place)
    make(holder, Stalling).stalled = stalls.place
    sending = threading.Thread(target=stalls.publish, args=(3,))
    sending.start()
    flows.publish(8)
    assert sending.is_alive() or stalls.fence() > 1
    sending.join(60)
    assert not sending.is_alive()
    row = town.owner.view.row(FAULTS(holder.identifier))
    assert row is not None
    assert stalls.fence() > 1
    assert town.holder(stalls.place) is not holder
    flows.check()
    stalls.check()


class Forking(Ordering):
    """Gives each place to one parcel, and at another relay to another, as soon as there are two."""

    def _order(self, partition: OrderedPartition, *rest: Any) -> None:
        if len(partition.unplaced) > 1:
            super()._order(partition, *rest)

    def _sign(self, partition: OrderedPartition, promise: JointPromise, now: float, effects: list[Effect]) -> None:
        before = len(effects)
        super()._sign(partition, promise, now, effects)
        _, index = self._signatories.seat(promise.plan)
        other = next((one for one in partition.proposals if one != promise.parcel), None)
        if other is None or len(effects) == before:
            return
        forged = replace(promise, parcel=other, signatures=()).sign(index, self._signer)
        effects[-1] = self._others.order(bytes.fromhex(cast(Send, effects[-1]).to), forged)


@pytest.mark.long
def test_an_orderer_that_forks_is_convicted_and_both_parcels_find_a_place(small: Town) -> None:
    town, people = small, (small.principal("car", "edge"), small.principal("reader", "edge"))
    topic = Topic(town, people, "forked")
    topic.publish(1)
    liar = town.holder(topic.place)
    make(liar, Forking)
    second = Hand(topic.car, topic.name, node=topic.car.carrier)
    places: list[int] = []
    for number in (1, 3, 5):
        both = topic.hand.seal(number), second.seal(number + 1)
        places += topic.send(*both)
    assert sorted(places) == [1, 2, 3, 4, 5, 6]
    topic.sent = 7
    wait_until(lambda: anchored(town.owner.view, topic.token) == 7)
    with topic.reader.subscriber(topic.name) as subscriber:
        assert sorted(read_rows(subscriber, 7)) == list(range(7))
    topic.check_logs([node for node in town.relays.values() if node is not liar])
    ledger = town.stack.node.ledger
    wait_until(lambda: any(key[0] == liar.identifier for key, _ in ledger.scan(MISDEALS, most=100)))
    assert {key[0] for key, _ in ledger.scan(MISDEALS, most=100)} == {liar.identifier}


class Unanchoring(Anchoring):
    """A holder that promises, and lets nothing be anchored."""

    def offer(self, place: Place, size: int, now: float) -> list[Effect]:
        return []


@pytest.mark.long
def test_a_holder_that_anchors_nothing_loses_the_lease(small: Town) -> None:
    """Its word is enough for nothing: neither does it keep the lease, nor is anything lost that was promised."""
    town, people = small, (small.principal("car", "edge"), small.principal("reader", "edge"))
    topic = Topic(town, people, "unanchored")
    topic.publish(1)
    topic.check()
    holder = town.holder(topic.place)
    anchoring: Any = holder.relay.anchoring
    anchoring.__class__ = Unanchoring
    topic.publish(4)
    wait_until(lambda: topic.fence() > 1, 60)
    topic.check()
