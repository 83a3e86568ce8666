"""A broker that lies: it alters, drops, reorders, cuts, slips in, shows what is old, moves lanes, invents retirement,
withholds checkpoints. Every lie is found by its name by a subscriber, and by the publisher where it holds a promise.

A lie on the way is told by a `Liar` between the client and the real node; one that the node itself tells, with its own
anchors and promises, by the node's own parts with a guard taken out; one on the disk by editing the log while the node
is down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from actors import (
    SCHEMA,
    Hand,
    Liar,
    Topic,
    anchored,
    await_topic,
    fresh_memory,
    operate,
    publish,
    read_rows,
    reputation,
    settle,
    stored,
    subscribe_through,
    ties,
    write_as_node,
)
from stack import READ, WRITE, Stack, impatient, wait_until
from without import without

from tallystick.carriers.carrier import Fetch, Fetched, LaneFront, NotStored, Outcome, Stored
from tallystick.carriers.log.segments import FILE_HEADER_BYTES
from tallystick.carriers.storage import Place
from tallystick.client.publish import Publisher, PublisherSettings
from tallystick.client.subscribe import FoundError, Subscriber
from tallystick.crypto.merkle import leaf_hash
from tallystick.demo import disk
from tallystick.errors import Forged, Refused, TallystickError, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.ledger.contracts.identity import IDENTITIES
from tallystick.ledger.contracts.topics import TOPICS
from tallystick.parcel.header import lane_partition
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.http1 import RefusedByPeer
from tallystick.runtime.sources import SystemClock
from tallystick.trust.promise import Promise

Lie = Callable[[Fetched], Fetched]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("broker")) as stack:
        yield stack


@pytest.fixture(scope="module")
def topic(stack: Stack) -> Topic:
    """Two lanes that alternate in partition 0 of two: rows 0 to 7."""
    topic = Topic(stack, "acme", partitions=2)
    one, two = Hand(topic.car, "brakes"), Hand(topic.publisher("truck"), "brakes")
    for hand in (one, two):
        hand.lane = hand.open_lane(lane_in(hand, 0))
    for number in range(8):
        hand = (one, two)[number % 2]
        stored(hand.send(hand.seal(number))[0])
    settle(stack)
    return topic


def lane_in(hand: Hand, partition: int) -> bytes:
    """A lane's name that belongs into the partition."""
    while True:
        name = hand.session.entropy.bytes(16)
        if lane_partition(name, 2) == partition:
            return name


def another_topic(stack: Stack, topic: Topic, name: str, partitions: int = 1) -> bytes:
    """One more topic for the same people, to be spoilt."""
    token = stack.topic(topic.owner, name, SCHEMA, partitions=partitions)
    stack.grant(topic.owner, token, topic.car, WRITE)
    stack.grant(topic.owner, token, topic.reader, READ)
    await_topic(stack, token)
    return token


def found_by(subscriber: Subscriber, count: int = 8) -> tuple[list[int], list[str]]:
    """What was delivered, and the reasons of what was found, until that many rows or something that stops."""
    got: list[int] = []
    for _ in range(200):
        try:
            received = subscriber.poll(50)
        except FoundError:
            break
        except Refused as error:
            return got, [*(finding.reason for finding in subscriber.findings), error.reason]
        got += [row["seq"] for one in received for row in one.to_pylist()]
        if len(got) >= count or (not received and subscriber.findings):
            break
    return got, [finding.reason for finding in subscriber.findings]


# --- on the way: what the node sends is not what it has ---


def altered(parcels: tuple[bytes | memoryview, ...], at: int, position: int) -> tuple[bytes | memoryview, ...]:
    changed = bytearray(parcels[at])
    changed[position] ^= 1
    return (*parcels[:at], bytes(changed), *parcels[at + 1 :])


LIES: dict[str, tuple[str, Lie]] = {
    "a body is altered": ("altered", lambda f: replace(f, parcels=altered(f.parcels, 2, -1))),
    "a header is altered": ("altered", lambda f: replace(f, parcels=altered(f.parcels, 2, 200))),
    "the magic is altered": ("altered", lambda f: replace(f, parcels=altered(f.parcels, 2, 0))),
    "a parcel is dropped": ("altered", lambda f: replace(f, parcels=f.parcels[:2] + f.parcels[3:])),
    "a whole lane is dropped": ("altered", lambda f: replace(f, parcels=f.parcels[::2])),
    "two are swapped": ("altered", lambda f: replace(f, parcels=(f.parcels[1], f.parcels[0], *f.parcels[2:]))),
    "one is repeated": ("altered", lambda f: replace(f, parcels=(*f.parcels[:2], f.parcels[1], *f.parcels[2:]))),
    "one is slipped in": ("altered", lambda f: replace(f, parcels=(*f.parcels, f.parcels[0]))),
    "a junk parcel is slipped in": ("altered", lambda f: replace(f, parcels=(b"junk", *f.parcels[1:]))),
    "another range is sent": ("altered", lambda f: replace(f, first=f.first + 1)),
    "the tail is cut": ("missing", lambda f: replace(f, parcels=())),
    "the proof is cut": ("altered", lambda f: replace(f, parcels=f.parcels[:3], proof=f.proof[:-1])),
    "retirement is invented": ("missing", lambda f: replace(f, parcels=(), retired=4)),
}


@pytest.mark.parametrize(("expected", "lie"), LIES.values(), ids=LIES)
def test_on_the_way(expected: str, lie: Lie, topic: Topic) -> None:
    """… the lie named is found, and nothing that comes after it is delivered."""
    liar = Liar(topic.reader.node)
    liar.fetch = lambda wanted: lie(topic.reader.node.fetch(wanted))
    subscriber = subscribe_through(topic.reader, liar, "brakes", on_bad="fail")
    got, reasons = found_by(subscriber)
    assert reasons[-1] == expected
    assert got in ([], [0, 1])  # a range that is not the anchored one is dropped whole


def test_one_altered_body_is_one_finding_and_the_reader_goes_on(topic: Topic) -> None:
    liar = Liar(topic.reader.node)
    lie = LIES["a body is altered"][1]
    liar.fetch = lambda wanted: lie(topic.reader.node.fetch(wanted))
    subscriber = subscribe_through(topic.reader, liar, "brakes", on_bad="report")
    got, reasons = found_by(subscriber, 7)
    assert (got, reasons) == ([0, 1, 3, 4, 5, 6, 7], ["altered"])
    assert subscriber.findings[0].offset == 2


def test_without_the_range_proof_a_whole_lane_vanishes_unseen(topic: Topic) -> None:
    """Chains of sequences alone do not show a lane of which nothing is left."""
    liar = Liar(topic.reader.node)
    lie = LIES["a whole lane is dropped"][1]
    liar.fetch = lambda wanted: lie(topic.reader.node.fetch(wanted))
    with without("the proof of a range"):
        assert found_by(subscribe_through(topic.reader, liar, "brakes"), 4) == ([0, 2, 4, 6], [])


def test_without_the_chain_and_the_proof_a_parcel_vanishes_unseen(topic: Topic) -> None:
    liar = Liar(topic.reader.node)
    lie = LIES["a parcel is dropped"][1]
    liar.fetch = lambda wanted: lie(topic.reader.node.fetch(wanted))
    with without("the proof of a range", "the chain of a lane"):
        assert found_by(subscribe_through(topic.reader, liar, "brakes"), 7) == ([0, 1, 3, 4, 5, 6, 7], [])


@pytest.mark.parametrize(
    ("expected", "lie"),
    [
        ("missing", lambda shown: None),
        ("altered", lambda shown: replace(shown, anchored=shown.anchored - 1)),
        ("altered", lambda shown: replace(shown, offset=7)),
        ("forged", lambda shown: replace(shown, offset=0)),
        ("forged", lambda shown: replace(shown, proof=shown.proof[:-1])),
    ],
    ids=["none", "of another tree", "of another place", "elsewhere in the tree", "with half a proof"],
)
def test_a_lane_met_in_the_middle_is_joined_to_what_the_node_proves(
    expected: str, lie: Callable[[Any], LaneFront | None], topic: Topic
) -> None:
    """Started at offset 4 a reader knows no heads; the node must show them, or be named."""
    honest = topic.reader.node
    assert found_by(subscribe_through(topic.reader, honest, "brakes", start=4), 4) == ([4, 5, 6, 7], [])
    liar = Liar(honest)
    liar.lane_front = lambda *args: lie(honest.lane_front(*args))
    liar.lane_fronts = lambda *args: [lie(one) for one in honest.lane_fronts(*args)]
    subscriber = subscribe_through(topic.reader, liar, "brakes", start=4, on_bad="fail")
    assert found_by(subscriber)[1][-1] == expected


def test_locks_and_permits_are_held_to_their_names(topic: Topic) -> None:
    honest = topic.reader.node
    other = Hand(topic.car, "brakes")
    for method, answer, expected in [
        ("lock", honest.lock(next(iter(other.lane.keys)).locks[0]), "cannot-open"),
        ("permit", honest.permit(other.permit.identifier), "unknown-permit"),
    ]:
        liar = Liar(honest)
        setattr(liar, method, lambda _, answer=answer: answer)
        liar.permits = lambda _: []  # then each is asked for alone
        subscriber = subscribe_through(topic.reader, liar, "brakes", on_bad="fail")
        assert found_by(subscriber)[1][-1] == expected


def no_such_permit(*_: Any) -> Any:
    raise RefusedByPeer("no such permit", reason="not-found", status=404)


def test_that_a_node_does_not_show_a_permit_accuses_no_parcel(topic: Topic) -> None:
    """The ledger says which permits there are: nobody's parcel is passed over by the word of a node."""
    liar = Liar(topic.reader.node)
    liar.permits, liar.permit = lambda _: [], no_such_permit
    subscriber = subscribe_through(topic.reader, liar, "brakes", on_bad="report")
    assert found_by(subscriber) == ([], ["missing"])
    assert not subscriber.findings
    del liar.permit
    assert found_by(subscriber) == (list(range(8)), [])


def test_a_permit_that_was_never_issued_is_found(topic: Topic) -> None:
    subscriber = topic.reader.subscriber("brakes")
    supplier, header = subscriber._fetcher.supplier, Hand(topic.car, "brakes").seal(0).header
    forged = replace(header, topics=(replace(header.topics[0], permit=b"never was issued"),))
    assert supplier.learn([forged])[b"never was issued"].reason == "not-found"


# --- what the ledger says, and how old it is ---


class Later(SystemClock):
    """Two minutes from now."""

    def now(self) -> float:
        return super().now() + 120


def test_a_withheld_tail(stack: Stack, topic: Topic) -> None:
    """A node shows an old anchor under an old checkpoint, as if nothing had come since."""
    token = another_topic(stack, topic, "tails")
    hand, honest = Hand(topic.car, "tails"), topic.reader.node
    shown = (ANCHORS(token, 0), IDENTITIES(topic.car.identity.principal), TOPICS(token))
    stored(hand.send(hand.seal(0))[0])
    wait_until(lambda: anchored(topic.reader.view, token) == 1)
    old = {one: honest.state(one) for one in shown}
    while len({proof.note for proof in old.values()}) > 1:  # all under one checkpoint
        old = {one: honest.state(one) for one in shown}
    stored(hand.send(hand.seal(1))[0])
    wait_until(lambda: anchored(topic.reader.view, token) == 2)
    liar = Liar(honest)
    liar.state, liar.states = old.__getitem__, lambda keys: [old[key] for key in keys]
    # Whoever has seen the newer checkpoint names a rollback;
    with pytest.raises(Refused) as rollback:
        subscribe_through(topic.reader, liar, "tails")
    assert rollback.value.reason == "rollback"
    # whoever has not sees what there is until the checkpoint is too old;
    memory = fresh_memory(topic.reader, stack, "tails")
    subscriber = subscribe_through(topic.reader, liar, "tails", memory=memory)
    assert read_rows(subscriber, 1) == [0]
    assert subscriber.poll(0) == []
    subscriber._view._clock = Later()
    assert found_by(subscriber)[1] == ["stale-head"]
    # and without a bound on the age it would wait for ever and find nothing.
    subscriber._view._head_age_max_s = float("inf")
    assert found_by(subscriber) == ([], [])


def test_true_retirement_is_skipped_and_a_mark_is_not_stretched(stack: Stack, topic: Topic) -> None:
    token = another_topic(stack, topic, "retired")
    hand, honest = Hand(topic.car, "retired"), topic.reader.node
    for number in range(4):
        stored(hand.send(hand.seal(number))[0])
    settle(stack)
    topic.owner.author.write(entries.release(token, 0, 2))
    root = stack.node.carrier.storage.tree(Place(token, 0)).root(2)
    write_as_node(stack.node, entries.retire(token, 0, 2, root))

    def through(retired: int) -> Subscriber:
        def fetch(wanted: Fetch) -> Fetched:
            fetched = honest.fetch(wanted)
            return replace(fetched, parcels=(), retired=retired) if wanted.offset < retired else fetched

        liar = Liar(honest)
        liar.fetch = fetch
        return subscribe_through(topic.reader, liar, "retired")

    assert found_by(through(2), 2) == ([2, 3], ["retired"])
    assert found_by(through(3)) == ([], ["missing"])


def test_read_stored_is_held_to_the_anchor_when_it_comes(stack: Stack, topic: Topic) -> None:
    """Before the anchor a reader has the carrier's word alone; a broken one is found when the anchor is there."""
    token = another_topic(stack, topic, "stored")
    hand, honest = Hand(topic.car, "stored"), topic.reader.node
    fork = hand.fork()
    shown, real = hand.seal(1), hand.seal(2, lane=fork)
    stored(hand.send(real)[0])
    settle(stack)
    liar = Liar(honest)

    def fetch(wanted: Fetch) -> Fetched:
        fetched = honest.fetch(wanted)
        return replace(fetched, parcels=(shown.encode(),)) if wanted.stored and wanted.offset == 0 else fetched

    liar.fetch = fetch
    subscriber = subscribe_through(topic.reader, liar, "stored", read="stored")
    assert read_rows(subscriber, 1) == [1]
    assert found_by(subscriber)[1] == ["altered"]
    assert token


@pytest.mark.parametrize("extra", [False, True], ids=["nothing", "too much"])
def test_what_was_read_before_its_anchor_is_not_left_unconfirmed(extra: bool, stack: Stack, topic: Topic) -> None:
    """A node that shows a parcel early and then no proof of it, though the anchor is there, withholds."""
    name = f"unconfirmed-{extra}"
    token = another_topic(stack, topic, name)
    hand, honest = Hand(topic.car, name), topic.reader.node
    stored(hand.send(hand.seal(1))[0])
    settle(stack)
    liar = Liar(honest)

    def fetch(wanted: Fetch) -> Fetched:
        fetched = honest.fetch(wanted)
        if not wanted.headers:
            return fetched
        return replace(fetched, parcels=fetched.parcels * 2 if extra else (), proof=())

    liar.fetch = fetch
    subscriber = subscribe_through(topic.reader, liar, name, read="stored")
    assert read_rows(subscriber, 1) == [1]
    wait_until(lambda: topic.reader.view.row(ANCHORS(token, 0)) is not None)
    assert found_by(subscriber)[1][-1:] in (["missing"], ["altered"])


# --- the node itself: its own anchors over a spoilt log ---


@pytest.mark.parametrize(
    ("order", "delivered", "expected"),
    [
        ((0, 2, 3), [0, 2, 3], ["missing"]),
        ((0, 1, 1, 2), [0, 1, 2], ["repeated"]),
        ((1, 0, 2), [1, 2], ["missing", "repeated"]),
        ((1, 2), [1, 2], ["missing"]),
    ],
    ids=["dropped", "repeated", "reordered", "the first dropped"],
)
def test_a_node_that_anchors_a_spoilt_lane(
    order: tuple[int, ...],
    delivered: list[int],
    expected: list[str],
    stack: Stack,
    topic: Topic,
) -> None:
    """… is found through the chain of the lane: here the anchor itself is a lie, and the range proof holds."""
    name = f"spoilt-{'-'.join(map(str, order))}"
    another_topic(stack, topic, name)
    hand = Hand(topic.car, name)
    parcels = [hand.seal(number) for number in range(4)]
    with without("the guard of publishing"):
        for number in order:
            stored(hand.send(parcels[number])[0])
    subscriber = topic.reader.subscriber(name, on_bad="report")
    assert found_by(subscriber, len(delivered)) == (delivered, expected)
    assert all(finding.evidence for finding in subscriber.findings)


def test_a_lane_in_a_partition_where_it_does_not_belong(stack: Stack, topic: Topic) -> None:
    another_topic(stack, topic, "moved", partitions=2)
    hand = Hand(topic.car, "moved")
    hand.lane = hand.open_lane(lane_in(hand, 0))
    with without("the guard of publishing", partitions=(1,)):
        stored(hand.send(hand.seal(1))[0])
    subscriber = topic.reader.subscriber("moved", on_bad="report")
    wait_until(lambda: not subscriber.poll(50) and bool(subscriber.findings))
    assert [(one.reason, one.partition) for one in subscriber.findings] == [("wrong-partition", 1)]


# --- the publisher, who holds promises ---


def publisher_through(topic: Topic, node: Any, name: str, folder: Path, **settings: Any) -> Publisher:
    session = topic.car
    publishing = PublisherSettings(anchor_check_s=0.02, linger_s=0.0, **settings)
    return Publisher(ties(session, node, author=session.author), name, RealDisk(folder), publishing)


def vow(stack: Stack, token: bytes, parcel: bytes, offset: int) -> Promise:
    """The node's signed word for whatever it likes."""
    height, time_ms = stack.node.core.block()
    node = stack.node
    return Promise(node.trust.instance, node.identifier, token, 0, offset, parcel, height, time_ms).sign(node.keys.key)


@pytest.mark.parametrize("lie", ["for another parcel", "of a stranger", "for no topic"])
def test_a_promise_must_be_the_nodes_for_this_parcel(lie: str, stack: Stack, topic: Topic, tmp_path: Path) -> None:
    name = f"promises-{lie.replace(' ', '-')}"
    token = another_topic(stack, topic, name)
    liar = Liar(topic.car.node)

    def answer(token: bytes, parcels: list[bytes]) -> list[Outcome]:
        parcel = Parcel.decode(parcels[0]).hash
        promise = vow(stack, token, b"p" * 32 if lie == "for another parcel" else parcel, 0)
        if lie == "of a stranger":
            promise = promise.sign(topic.car.identity.signing_key)
        return [Stored(() if lie == "for no topic" else (promise,))]

    liar.publish = answer
    publisher = publisher_through(topic, liar, name, tmp_path)
    publisher.send([{"vin": "V", "seq": 1, "speed": 0.0}])
    with pytest.raises(Refused) as refusal:
        publisher.flush(20)
    assert isinstance(refusal.value, Forged)
    publisher.stop()
    assert token


def test_a_parcel_promised_and_then_replaced_convicts_the_node(stack: Stack, topic: Topic) -> None:
    """The anchor holds another leaf where the promise says: the contract takes it from anybody who shows both."""
    token = another_topic(stack, topic, "replaced")
    hand, node = Hand(topic.car, "replaced"), stack.node.identifier
    promised, other = hand.seal(1), hand.seal(2)
    promise = vow(stack, token, promised.hash, 0)
    before = reputation(stack, node)[0]
    with without("the guard of publishing"):
        stored(hand.send(other)[0])
    settle(stack)
    wait_until(lambda: topic.car.view.row(ANCHORS(token, 0)) is not None)
    path = topic.car.node.inclusion(token, 0, 1, [0])[0]
    kept = vow(stack, token, other.hash, 0)
    with pytest.raises(Refused) as refusal:  # what was kept is no evidence
        topic.car.author.write(entries.broken_promise(kept, leaf_hash(other.hash), path))
    assert refusal.value.reason == "promise-kept"
    topic.car.author.write(entries.broken_promise(promise, leaf_hash(other.hash), path))
    assert reputation(stack, node)[0] == before - 10
    with pytest.raises(Refused) as refusal:
        topic.reader.author.write(entries.broken_promise(promise, leaf_hash(other.hash), path))
    assert refusal.value.reason == "known-evidence"


def test_a_promise_without_an_anchor_goes_to_the_ledger(stack: Stack, topic: Topic, tmp_path: Path) -> None:
    """The node promises and forgets; the publisher brings its word to the ledger when it is overdue."""
    another_topic(stack, topic, "forgotten")
    operate(stack, entries.set_("anchor_ms", 1_000))
    before = reputation(stack, stack.node.identifier)[0]
    liar = Liar(topic.car.node)

    def promise_and_forget(token: bytes, parcels: list[bytes]) -> list[Outcome]:
        return [Stored((vow(stack, token, Parcel.decode(data).hash, n),)) for n, data in enumerate(parcels)]

    liar.publish = promise_and_forget
    publisher = publisher_through(topic, liar, "forgotten", tmp_path, promise_s=2.5)
    publisher.send([{"vin": "V", "seq": 1, "speed": 0.0}])
    assert publisher.flush(20) == 0  # acks=stored: the caller has the node's word
    wait_until(lambda: reputation(stack, stack.node.identifier)[0] == before - 10)
    assert publisher._spool.size_bytes > 0  # and the publisher still has the rows
    publisher.stop()


def test_a_node_that_claims_to_have_less_than_it_anchored_is_named(stack: Stack, topic: Topic, tmp_path: Path) -> None:
    another_topic(stack, topic, "lost")
    liar = Liar(topic.car.node)
    publisher = publisher_through(topic, liar, "lost", tmp_path, acks="anchored")
    publisher.send([{"vin": "V", "seq": 1, "speed": 0.0}])
    assert publisher.flush(20) == 0
    liar.publish = lambda token, parcels: [NotStored("ahead", "sequence 0 expected", 0)] * len(parcels)
    told: list[TallystickError | None] = []
    publisher.send([{"vin": "V", "seq": 2, "speed": 0.0}], lambda error, _: told.append(error))
    publisher.flush(20)
    assert [error.reason for error in told if isinstance(error, Refused)] == ["lost"]
    publisher.stop()


# --- on the disk ---


def test_bytes_flipped_in_a_stored_segment_reach_no_reader(stack: Stack, topic: Topic, seed: int) -> None:
    """Sampled through the whole stack; tests/carriers/log flips every byte under the store alone."""
    token = another_topic(stack, topic, "disk")
    publish(topic.car, "disk", range(4))
    segment = next((stack.folders.node / "log" / "topics" / token.hex() / "0").glob("*.segment"))
    stack.stop_node()
    whole = segment.read_bytes()
    for number in range(3):
        position = FILE_HEADER_BYTES + (seed * 2654435761 + number * 40503 * 977) % (len(whole) - FILE_HEADER_BYTES)
        changed = bytearray(whole)
        changed[position] ^= 1 << number
        assert read_edited(stack, topic, segment, bytes(changed)) != list(range(4))
    # Whoever edits a disk on purpose mends the checksums too.
    for change in (disk.altered(0), disk.altered(0, in_header=True), disk.swapped(1)):
        assert read_edited(stack, topic, segment, disk.rewritten(whole, change)) != list(range(4))
    assert read_edited(stack, topic, segment, whole) == list(range(4))
    stack.start_node()


def test_an_edited_log_is_found_by_name(stack: Stack, topic: Topic) -> None:
    token = another_topic(stack, topic, "edited")
    publish(topic.car, "edited", range(4))
    segment = disk.newest_segment(stack.folders.node, token, 0)
    whole = segment.read_bytes()
    for change, expected in [
        (disk.altered(1), "altered"),
        (disk.altered(1, in_header=True), "altered"),
        (disk.dropped(1), "missing"),
        (disk.swapped(1), "altered"),
        (disk.cut(2), "missing"),
    ]:
        stack.stop_node()
        segment.write_bytes(disk.rewritten(whole, change))
        stack.start_node()
        got, reasons = found_by(topic.reader.subscriber("edited"), 4)
        assert (reasons, got in ([], [0])) == ([expected], True)
    stack.stop_node()
    segment.write_bytes(whole)
    stack.start_node()
    assert found_by(topic.reader.subscriber("edited"), 4) == ([0, 1, 2, 3], [])


def read_edited(stack: Stack, topic: Topic, segment: Path, data: bytes) -> list[int]:
    """What a subscriber reads if this is what lies on the disk; the first thing it finds, or cannot get, ends it."""
    segment.write_bytes(data)
    got: list[int] = []
    try:
        stack.start_node()
    except TallystickError:  # the node itself will not serve what it finds
        return got
    try:
        subscriber = topic.reader.subscriber("disk", wait_ms=0)
        with impatient(topic.reader):  # what is damaged stays so
            while len(got) < 4:
                got += [row["seq"] for one in subscriber.poll(0) for row in one.to_pylist()]
    except (Refused, Unavailable):
        pass
    finally:
        stack.stop_node()
    assert got == list(range(len(got)))  # whatever came was right
    return got
