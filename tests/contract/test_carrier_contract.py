"""What every carrier does alike: one suite, run against each of them through the client's side of `Carrier`.

A carrier joins by a line in `CARRIERS`: how it is started (a context that yields a `Running`) and what it can do. A
capability that a carrier lacks leaves out the tests that ask for it; what is left out of the flags binds them all.
Clients that go to Kafka themselves join too: both of them beside a notary alone, or one of them beside a gateway that
serves the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
from actors import SCHEMA, Hand, await_topic, give_up, permit_of, read_rows, reason, stored
from broker import anchorer_of, await_access, broker, node_settings, straight
from fabric_town import FabricTown, fabric_of
from memory_carrier import server as memory_server
from mesh_stack import MeshTown, mesh_of
from overlay_stack import Town, overlay_of
from stack import READ, WRITE, Stack, wait_until

from tallystick.carriers import registry
from tallystick.carriers.carrier import Can, Carrier, Fetch, Fetched, LaneSought
from tallystick.carriers.fabric import server as fabric_server
from tallystick.carriers.kafka import direct as straight_kafka
from tallystick.carriers.kafka import server as gateway
from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.log import server as log_server
from tallystick.carriers.mesh import server as mesh_server
from tallystick.carriers.overlay import server as overlay_server
from tallystick.carriers.storage import Place
from tallystick.client.session import Session
from tallystick.crypto.merkle import leaf_hash, verify_inclusion, verify_range
from tallystick.errors import Refused, Unavailable
from tallystick.ledger.contracts.anchors import ANCHORS, AnchorRow
from tallystick.node.node import Node
from tallystick.parcel.header import lane_partition
from tallystick.parcel.locks import lock_hash
from tallystick.parcel.parcel import Parcel, front_bytes
from tallystick.policy.topic_code import TopicCode
from tallystick.record.schema import Schema
from tallystick.trust.permit import Operation, Permit
from tallystick.trust.promise import Promise

Test = TypeVar("Test", bound=Callable[..., None])
Start = Callable[[Path], AbstractContextManager["Running"]]


@dataclass
class Running:
    """A carrier on an instance of its own, with an owner, a publisher and a reader."""

    stack: Stack
    retire: Callable[[Session, Place, int], None] = lambda owner, place, below: None
    await_access: Callable[[Session, bytes], None] = lambda session, token: None  # until it may reach the topic
    owner: Session = field(init=False)
    car: Session = field(init=False)
    reader: Session = field(init=False)

    def __post_init__(self) -> None:
        self.owner = self.stack.tenant("acme")
        self.car, self.reader = (self.stack.principal("acme", name) for name in ("car", "reader"))

    def topic(self, name: str, partitions: int = 1) -> bytes:
        token = self.stack.topic(self.owner, name, SCHEMA, partitions=partitions)
        self.stack.grant(self.owner, token, self.car, WRITE)
        self.stack.grant(self.owner, token, self.reader, READ)
        await_topic(self.stack, token)
        for session in (self.car, self.reader):
            self.await_access(session, token)
        return token

    def carrier(self, session: Session) -> Carrier:
        return session.carrier

    anchors = True  # what is taken

    def await_kept(self, place: Place, size: int) -> None:
        """Where the reader's own node keeps what is pushed to it: until it has so much."""

    def await_anchor(self, place: Place, size: int) -> None:
        """Where one node writes an anchor, and others follow: until they have."""

    def stop_polled(self) -> Callable[[], object]:
        """End the node that somebody's poll waits at, once it does. Returns what starts it again."""
        wait_until(lambda: is_polled(self.stack.node))
        self.stack.stop_node()
        return self.stack.start_node

    def hand(self, *topics: str, session: Session | None = None) -> Hand:
        session = session or self.car
        return Hand(session, *topics, node=self.carrier(session))

    def subscribe(self, topic: str, interest: str = "") -> Reading:
        grant = self.reader.authority.permit(Operation.SUBSCRIBE, topic, 1, interest)
        carrier = self.carrier(self.reader)
        carrier.subscribe(grant.permit)
        return Reading(self, carrier, grant.token, Permit.decode(grant.permit).identifier)


@dataclass
class Reading:
    """A live subscription."""

    running: Running
    carrier: Carrier
    token: bytes
    permit: bytes

    def fetch(self, offset: int = 0, partition: int = 0, bytes_max: int = 1 << 20, **options: bool | int) -> Fetched:
        options = options if self.running.anchors else {"stored": True, **options}
        return self.carrier.fetch(Fetch(self.token, partition, self.permit, offset, bytes_max=bytes_max, **options))  # type: ignore[arg-type]

    def parcels(self, first: int, end: int, partition: int = 0) -> list[bytes]:
        """What lies there, as a subscriber gets it: a fetch may bring less than there is, and never nothing of it."""
        found: list[bytes] = []
        while len(found) < end - first:
            more = self.fetch(first + len(found), partition).parcels
            assert more
            found += map(bytes, more)
        return found

    def settled(self, size: int, partition: int = 0) -> None:
        """Wait until so many parcels are there to be read for good."""
        if self.running.anchors:
            self.anchored(size, partition)
        else:
            self.running.await_kept(Place(self.token, partition), size)

    def anchored(self, size: int, partition: int = 0) -> bytes:
        """Wait until that many parcels are anchored; the root at exactly that size."""
        found: list[AnchorRow] = []

        def is_there() -> bool:
            row = self.running.reader.view.row(ANCHORS(self.token, partition))
            found[:] = [row] if row is not None else []
            return bool(found) and found[0].size >= size

        wait_until(is_there)
        self.running.await_anchor(Place(self.token, partition), size)
        assert found[0].size == size
        return found[0].root


@contextmanager
def log(folder: Path) -> Iterator[Running]:
    with Stack(folder) as stack:

        def retire(owner: Session, place: Place, below: int) -> None:
            give_up(owner, stack.node, place, below)

        yield Running(stack, retire)


@contextmanager
def memory(folder: Path) -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry._CARRIERS, "memory", registry._Known("memory_carrier"))
        with Stack(folder, node={"carrier": "memory"}) as stack:
            yield Running(stack)


@contextmanager
def kafka(folder: Path) -> Iterator[Running]:
    with Stack(folder, node=node_settings(broker())) as stack:
        yield Running(stack)


class OnOverlay(Running):
    """Owner, publisher and reader are at one edge of it."""

    def __init__(self, town: Town) -> None:
        self.town, self.stack, self.owner = town, town.stack, town.owner
        self.car, self.reader = town.principal("car", "edge"), town.principal("reader", "edge")
        self.retire = lambda owner, place, below: town.give_up(place, below)

    def await_anchor(self, place: Place, size: int) -> None:
        wait_until(lambda: all(node.carrier.anchored.size(place) >= size for node in self.town.relays.values()))

    def topic(self, name: str, partitions: int = 1) -> bytes:
        return self.town.topic(name, "edge", self.car, self.reader, partitions)

    def stop_polled(self) -> Callable[[], object]:
        found: list[tuple[str, int]] = []

        def is_there() -> bool:
            found[:] = [one for one, node in self.town.relays.items() if is_polled(node)]
            return bool(found)

        wait_until(is_there)
        self.town.end(found[0])
        return lambda: self.town.start(found[0])


@contextmanager
def overlay(folder: Path) -> Iterator[Running]:
    with overlay_of(folder, {"edge": ""}) as town:
        yield OnOverlay(town)


class OnMesh(Running):
    """Publisher and reader have nodes of their own."""

    anchors = False

    def __init__(self, town: MeshTown) -> None:
        self.town, self.stack, self.owner = town, town.stack, town.owner
        self.car, self.reader = town.member("car"), town.member("reader")

    def await_kept(self, place: Place, size: int) -> None:
        wait_until(lambda: self.town.nodes["reader"].carrier.storage.end(place) >= size)

    def topic(self, name: str, partitions: int = 1) -> bytes:
        token = self.town.topic(name, self.car, self.reader, partitions=partitions)
        wait_until(lambda: self.town.is_whole(token, self.car, self.reader))
        return token

    def stop_polled(self) -> Callable[[], object]:
        node = self.town.nodes["reader"]
        wait_until(lambda: is_polled(node))
        node.end()
        return lambda: self.town.start("reader")


@contextmanager
def mesh(folder: Path) -> Iterator[Running]:
    with mesh_of(folder, forwarders=3) as town:
        yield OnMesh(town)


class OnFabric(Running):
    """Publisher and reader have hosts of their own, at two switches."""

    anchors = False

    def __init__(self, town: FabricTown) -> None:
        self.town, self.stack, self.owner = town, town.stack, town.owner
        self.car, self.reader = town.member("car", "s0"), town.member("reader", "s1")

    def await_kept(self, place: Place, size: int) -> None:
        wait_until(lambda: self.town.nodes["reader"].carrier.storage.end(place) >= size)

    def topic(self, name: str, partitions: int = 1) -> bytes:
        token = self.town.topic(name, self.car, self.reader, partitions=partitions)
        self.subscribe(name)  # what is published before anybody subscribed goes nowhere
        return token

    def stop_polled(self) -> Callable[[], object]:
        node = self.town.nodes["reader"]
        wait_until(lambda: is_polled(node))
        node.end()
        return lambda: self.town.start("reader")


@contextmanager
def fabric(folder: Path) -> Iterator[Running]:
    with fabric_of(folder) as town:
        yield OnFabric(town)


def direct(*who: str, gateway: bool) -> Start:
    """These go to Kafka themselves."""

    @contextmanager
    def start(folder: Path) -> Iterator[Running]:
        with (
            closing(KafkaClient(broker().operator())) as kafka,
            Stack(folder, node={**node_settings(broker()), "gateway": gateway}) as stack,
        ):
            anchorer_of(stack).check_ms = 100  # each test waits until Kafka knows of its rights
            running = Running(stack, await_access=lambda session, token: await_access(kafka, session, token))
            for name in who:
                setattr(running, name, straight(stack, getattr(running, name), kafka, has_right=False))
            yield running

    return start


def of_both(sending: Can, reading: Can) -> Can:
    """What holds where publishers and subscribers go different ways."""
    return sending & Can.SENDING | reading & Can.READING


CARRIERS: dict[str, tuple[Start, Can]] = {
    "log": (log, log_server.CAN),
    "memory": (memory, memory_server.CAN),
    "kafka": (kafka, gateway.CAN),
    "overlay": (overlay, overlay_server.CAN),
    "mesh": (mesh, mesh_server.CAN),
    "fabric": (fabric, fabric_server.CAN),
    "kafka-direct": (direct("car", "reader", gateway=False), straight_kafka.CAN),
    "kafka-direct-publisher": (direct("car", gateway=True), of_both(straight_kafka.CAN, gateway.CAN)),
    "kafka-direct-subscriber": (direct("reader", gateway=True), of_both(gateway.CAN, straight_kafka.CAN)),
}


# Where one alone is direct, little is new; the memory carrier is the tests' own; overlay and direct have many beside.
MARKS = {"kafka": pytest.mark.kafka, **dict.fromkeys(("direct", "memory", "overlay"), pytest.mark.long)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test on every carrier that can do what it asks for."""
    needed = getattr(metafunc.function, "needed", Can(0))
    able = [name for name, (_, can) in CARRIERS.items() if needed in can]
    carriers = [pytest.param(name, marks=[MARKS[part] for part in MARKS if part in name]) for name in able]
    metafunc.parametrize("running", carriers, indirect=True, scope="module")


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    start, _ = CARRIERS[request.param]
    with start(tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A topic's name of the test's own."""
    return str(request.function.__name__)


def needs(capability: Can) -> Callable[[Test], Test]:
    """Marks a test that asks for what not every carrier can."""

    def mark(test: Test) -> Test:
        test.needed = capability  # type: ignore[attr-defined]
        return test

    return mark


# --- publish and fetch ---


def test_parcels_come_back_byte_for_byte_in_the_order_of_their_lane(running: Running, name: str) -> None:
    running.topic(name)
    hand, reading = running.hand(name), running.subscribe(name)
    parcels = [hand.seal(number) for number in range(5)]
    for outcome in hand.send(*parcels[:3]) + hand.send(*parcels[3:]):
        stored(outcome)
    reading.settled(5)
    assert reading.parcels(0, 5) == [parcel.encode() for parcel in parcels]
    assert reading.parcels(3, 5) == [parcel.encode() for parcel in parcels[3:]]


def test_a_lane_lies_whole_in_the_partition_that_its_name_says(running: Running, name: str) -> None:
    running.topic(name, partitions=3)
    hand, reading = running.hand(name), running.subscribe(name)
    lanes = [hand.lane, *(hand.open_lane() for _ in range(5))]
    for number in range(2):
        for lane in lanes:
            stored(hand.send(hand.seal(number, lane=lane))[0])
    for partition in range(3):
        expected = [lane.lane for lane in lanes if lane_partition(lane.lane, 3) == partition] * 2
        if expected:
            reading.settled(len(expected), partition)
        found = [Parcel.decode(data).header.lane for data in reading.parcels(0, len(expected), partition)]
        assert found == expected if running.anchors else sorted(found) == sorted(expected)  # each has its own way


@needs(Can.KNOW | Can.PROMISE)
def test_the_same_parcel_again_is_acknowledged_with_its_first_offset(running: Running, name: str) -> None:
    running.topic(name)
    hand, reading = running.hand(name), running.subscribe(name)
    one, two = hand.seal(1), hand.seal(2)
    first = [stored(outcome) for outcome in hand.send(one, two)]
    again = [stored(hand.send(parcel)[0]) for parcel in (two, one)]
    assert all(outcome.again for outcome in again)
    assert [o.promises[0].offset for o in again] == [o.promises[0].offset for o in reversed(first)]
    reading.settled(2)
    assert len(reading.fetch().parcels) == 2


def test_a_row_that_is_sent_again_is_read_once(running: Running, name: str) -> None:
    """Whether the carrier knows the parcel, or the reader passes over what it has read."""
    running.topic(name)
    hand = running.hand(name)
    one, two = hand.seal(1), hand.seal(2)
    for parcels in ((one,), (one, two), (one,), (hand.seal(3),)):
        for outcome in hand.send(*parcels):
            stored(outcome)
    with running.reader.subscriber(name) as subscriber:
        assert read_rows(subscriber, 3) == [1, 2, 3]
        assert subscriber.findings == []


def test_what_the_rules_refuse_reaches_no_reader(running: Running, name: str) -> None:
    """Whether a guard turns it away, or a notary marks it."""
    running.topic(name)
    hand = running.hand(name)
    parcels = [hand.seal(number) for number in range(3)]
    hand.send(parcels[2])  # ahead of two others
    for outcome in hand.send(*parcels):
        stored(outcome)
    with running.reader.subscriber(name, on_finding=lambda finding: None) as subscriber:
        assert read_rows(subscriber, 3) == [0, 1, 2]


def test_a_parcel_of_several_topics_lies_in_each(running: Running, name: str) -> None:
    tokens = {running.topic(name + suffix) for suffix in ("-a", "-b")}
    hand = running.hand(name + "-a", name + "-b")
    parcel = hand.seal(1)
    outcome = stored(hand.send(parcel)[0])
    named = {promise.token for promise in outcome.promises} | {place[0] for place in outcome.offsets}
    assert outcome.final or named == tokens
    for suffix in ("-a", "-b"):
        reading = running.subscribe(name + suffix)
        reading.settled(1)
        assert list(reading.fetch().parcels) == [parcel.encode()]


@needs(Can.GUARD)
def test_a_parcel_ahead_is_told_which_is_due(running: Running, name: str) -> None:
    running.topic(name)
    hand = running.hand(name)
    parcels = [hand.seal(number) for number in range(3)]
    outcome = hand.send(parcels[2])[0]
    assert (reason(outcome), getattr(outcome, "expected", None)) == ("ahead", 0)
    assert [type(one).__name__ for one in hand.send(*parcels)] == ["Stored"] * 3


@needs(Can.GUARD)
def test_outcomes_are_one_a_parcel_and_a_bad_one_spoils_no_other(running: Running, name: str) -> None:
    running.topic(name)
    hand = running.hand(name)
    outcomes = hand.send(hand.seal(1), b"junk", hand.seal(2))
    assert [type(one).__name__ for one in outcomes] == ["Stored", "NotStored", "Stored"]


@needs(Can.GUARD)
def test_nothing_is_taken_without_a_live_permit(running: Running, name: str) -> None:
    running.topic(name)
    hand = running.hand(name)
    stored(hand.send(hand.seal(1))[0])
    order = running.car.authority.undo(hand.held.grant.permit, hand.held.grant.undo_token)
    hand.node.undo(order.encode())
    assert reason(hand.send(hand.seal(2))[0]) == "not-advertised"


def test_nothing_is_handed_out_without_a_live_permit(running: Running, name: str) -> None:
    token = running.topic(name)
    hand, reading = running.hand(name), running.subscribe(name)
    stored(hand.send(hand.seal(1))[0])
    reading.settled(1)
    with pytest.raises(Refused):
        reading.carrier.fetch(Fetch(token, 0, b"n" * 16, 0, bytes_max=1))
    with pytest.raises(Refused):
        running.carrier(running.car).fetch(Fetch(token, 0, reading.permit, 0, bytes_max=1))


# --- what a fetch is bounded by, and what proves it ---


def test_a_fetch_keeps_to_its_bytes_but_always_moves(running: Running, name: str) -> None:
    running.topic(name)
    hand, reading = running.hand(name), running.subscribe(name)
    for number in range(6):
        stored(hand.send(hand.seal(number))[0])
    reading.settled(6)
    size = len(reading.fetch().parcels[0])
    assert len(reading.fetch(bytes_max=1).parcels) == 1
    assert 1 <= len(reading.fetch(bytes_max=3 * size).parcels) <= 3
    beyond = reading.fetch(6)
    assert (beyond.parcels, beyond.end) == ((), 6)


@needs(Can.ANCHOR)
def test_every_range_is_proved_under_the_anchor(running: Running, name: str) -> None:
    running.topic(name)
    hand, reading = running.hand(name), running.subscribe(name)
    parcels = [hand.seal(number) for number in range(7)]
    for outcome in hand.send(*parcels):
        stored(outcome)
    root = reading.anchored(7)
    leaves = [leaf_hash(parcel.hash) for parcel in parcels]
    for first in range(7):
        fetched = reading.fetch(first, bytes_max=2_000, size=7)
        end = first + len(fetched.parcels)
        assert fetched.anchored == 7
        verify_range(leaves[first:end], first, 7, list(fetched.proof), root)
    for offset, path in enumerate(reading.carrier.inclusion(reading.token, 0, 7, range(7))):
        verify_inclusion(leaves[offset], offset, 7, path, root)


def test_headers_come_without_bodies(running: Running, name: str) -> None:
    running.topic(name)
    hand, reading = running.hand(name), running.subscribe(name)
    parcel = hand.seal(1)
    stored(hand.send(parcel)[0])
    reading.settled(1)
    front = reading.fetch(headers=True).parcels[0]
    assert front == parcel.encode_front()


@needs(Can.ANCHOR)
def test_the_head_of_a_lane_below_an_offset_is_shown_with_its_proof(running: Running, name: str) -> None:
    running.topic(name)
    hand, reading = running.hand(name), running.subscribe(name)
    other = hand.open_lane()
    parcels = [hand.seal(0), hand.seal(1, lane=other), hand.seal(2), hand.seal(3, lane=other)]
    for parcel in parcels:
        stored(hand.send(parcel)[0])
    root, publisher = reading.anchored(4), running.car.identity.principal
    shown = reading.carrier.lane_front(LaneSought(reading.token, 0, reading.permit, publisher, hand.lane.lane, 2, 4))
    assert shown is not None
    assert (shown.offset, shown.front) == (0, parcels[0].encode_front())
    verify_inclusion(leaf_hash(parcels[0].hash), 0, 4, list(shown.proof), root)
    missing = reading.carrier.lane_front(LaneSought(reading.token, 0, reading.permit, publisher, other.lane, 1, 4))
    assert missing is None


@needs(Can.ANCHOR)
def test_a_size_that_is_not_anchored_is_asked_for_later(running: Running, name: str) -> None:
    running.topic(name)
    hand, reading = running.hand(name), running.subscribe(name)
    stored(hand.send(hand.seal(1))[0])
    reading.settled(1)
    with pytest.raises(Unavailable) as later:
        reading.fetch(size=99)
    assert later.value.retry_after_s  # worth asking again: the anchor may be on its way


# --- long polls ---


def test_a_long_poll_ends_when_something_comes(running: Running, name: str) -> None:
    running.topic(name)
    hand, reading = running.hand(name), running.subscribe(name)
    parcel = hand.seal(1)
    got: list[Fetched] = []
    poll = threading.Thread(target=lambda: got.append(reading.fetch(wait_ms=20_000)))
    poll.start()
    stored(hand.send(parcel)[0])
    poll.join(20)
    assert [list(fetched.parcels) for fetched in got] == [[parcel.encode()]]


def test_a_long_poll_ends_when_nothing_comes(running: Running, name: str) -> None:
    running.topic(name)
    assert running.subscribe(name).fetch(wait_ms=50).parcels == ()


def is_polled(node: Node) -> bool:
    """Whether somebody waits for the carrier to grow; the authority asks for other things."""
    growth = node.service._grown
    return growth is not None and bool(growth._waiters)


def test_a_long_poll_is_answered_when_the_node_stops(running: Running, name: str) -> None:
    running.topic(name)
    reading = running.subscribe(name)
    got: list[Fetched] = []  # stays empty where the poll is cut: that is an error of the client's
    poll = threading.Thread(target=lambda: got.append(reading.fetch(wait_ms=25_000)))
    poll.start()
    start = running.stop_polled()
    poll.join()
    start()
    assert [fetched.parcels for fetched in got] == [()]


# --- promises, locks, permits, limits, retention ---


@needs(Can.PROMISE)
def test_a_promise_is_the_nodes_word_for_the_parcel_and_is_kept(running: Running, name: str) -> None:
    running.topic(name)
    hand, reading = running.hand(name), running.subscribe(name)
    parcel = hand.seal(1)
    promise = stored(hand.send(parcel)[0]).promises[0]
    if isinstance(promise, Promise):  # a joint one is held to its plan by the publisher
        promise.verify(running.car.identity.nodes[0].verify_key)
    assert (promise.token, promise.parcel, promise.partition, promise.offset) == (reading.token, parcel.hash, 0, 0)
    root = reading.anchored(1)
    path = reading.carrier.inclusion(reading.token, 0, 1, [promise.offset])[0]
    verify_inclusion(leaf_hash(promise.parcel), promise.offset, 1, path, root)


@needs(Can.LOCKS)
def test_locks_are_kept_by_their_hash(running: Running, name: str) -> None:
    running.topic(name)
    hand, reading = running.hand(name), running.subscribe(name)
    for lock in hand.lane.keys[0].locks:
        assert lock_hash(reading.carrier.lock(lock)) == lock
    with pytest.raises(Refused) as refusal:
        reading.carrier.lock(b"n" * 32)
    assert refusal.value.reason == "not-found"
    with pytest.raises(Refused):
        hand.node.put_locks(hand.token, hand.permit.identifier, [b"junk"])
    with pytest.raises(Refused):
        hand.node.put_locks(hand.token, hand.permit.identifier, [bytes(1 << 20)])


def test_permits_of_publishers_are_shown_to_readers(running: Running, name: str) -> None:
    running.topic(name)
    hand, reading = running.hand(name), running.subscribe(name)
    stored(hand.send(hand.seal(1))[0])
    reading.settled(1)
    assert reading.carrier.permit(hand.permit.identifier) == hand.held.grant.permit


@needs(Can.GUARD)
def test_a_parcel_over_the_limit_is_refused_and_the_next_one_taken(running: Running, name: str) -> None:
    running.topic(name)
    hand = running.hand(name)
    assert reason(hand.send(bytes((1 << 20) + 1))[0]) == "too-large"
    stored(hand.send(hand.seal(1))[0])


@needs(Can.RETIRE)
def test_what_was_retired_is_marked_and_readers_go_on_above(running: Running, name: str) -> None:
    token = running.topic(name)
    hand, reading = running.hand(name), running.subscribe(name)
    for number in range(6):
        stored(hand.send(hand.seal(number))[0])
    root = reading.anchored(6)
    running.retire(running.owner, Place(token, 0), 3)
    assert reading.fetch(4).retired == 3
    path = reading.carrier.inclusion(token, 0, 6, [0])[0]  # headers outlive bodies, and so do proofs
    front = reading.fetch(0, headers=True).parcels[0]
    verify_inclusion(leaf_hash(Parcel.decode_front(front).hash), 0, 6, path, root)
    subscriber = running.reader.subscriber(name)
    assert read_rows(subscriber, 3) == [3, 4, 5]
    assert [(one.reason, one.offset, one.end) for one in subscriber.findings] == [("retired", 0, 3)]
    assert permit_of(subscriber)


@needs(Can.SELECT)
def test_a_permit_with_labels_is_sent_fronts_of_the_rest(running: Running, name: str) -> None:
    """Chain, anchor and range proof are those of the whole range, bodies only those that may be wanted."""
    token = running.topic(name)
    code = TopicCode.read(["speed:4:0..160"], Schema.parse(SCHEMA).arrow, number=5)
    running.owner.authority.labels(token, code.encode())
    with running.car.publisher(name, acks="anchored", anchor_check_s=0.02) as publisher:
        publisher.send([{"vin": "V", "seq": n, "speed": 150.0 * (n % 2)} for n in range(20)])
        assert publisher.flush(60) == 0
    plain, fast = running.subscribe(name), running.subscribe(name, "speed > 100")
    whole, part = plain.fetch(), fast.fetch()
    assert part.proof == whole.proof
    fronts = [Parcel.decode_front(data) for data in part.parcels]
    assert [one.hash for one in fronts] == [Parcel.decode(data).hash for data in whole.parcels]
    sent = [len(data) > front_bytes(data) for data in part.parcels if Parcel.decode_front(data).header.labels]
    assert sorted(sent) == [False, True]
    with running.reader.subscriber(name, interest="speed > 100") as subscriber:
        assert sorted(read_rows(subscriber, 10)) == list(range(1, 20, 2))
