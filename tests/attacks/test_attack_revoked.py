"""The thief of a key goes on after its revocation, through a node that stores whatever it seals.

What the thief seals is suspect wherever it is read. What the key's owner had anchored before stands: otherwise one
stolen key would taint years of a car's data, and nobody would revoke.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from actors import Hand, Liar, Topic, anchored, publish, row_of, stored, subscribe_through, write_as_node
from stack import Stack, wait_until
from without import without

from tallystick.carriers.storage import Place
from tallystick.client.fetching import UNANCHORED_S
from tallystick.client.reader import Finding
from tallystick.client.subscribe import Received, Subscriber
from tallystick.ledger import entries
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.ledger.contracts.identity import IDENTITIES
from tallystick.ledger.engine import find_before_revocation, find_entry, is_anchor_of
from tallystick.pipeline.access import admit
from tallystick.pipeline.options import Options
from tallystick.pipeline.plan import Planner
from tallystick.trust.promise import Anchor
from tallystick.trust.receipt import AnchoredBefore, EntryProof, is_revocation

HONEST, BEFORE, STOLEN, LATER = 1, 2, 3, 4  # rows: of another publisher, of the victim, of the thief, of another again


def revoke(topic: Topic, principal: bytes) -> None:
    topic.owner.authority.revoke(principal)
    wait_until(lambda: bool(row_of(topic.reader.view, IDENTITIES(principal)).revoked))


def store_through_the_node(topic: Topic, hand: Hand, *numbers: int) -> None:
    """The node takes what the thief seals, over the connection of an accomplice, and anchors it."""
    size = topic.stack.node.carrier.storage.end(Place(topic.token, 0))
    with without("the guard of publishing", permit=hand.permit):
        for outcome in topic.car.node.publish(topic.token, [hand.seal(number).encode() for number in numbers]):
            stored(outcome)
    wait_until(lambda: anchored(topic.reader.view, topic.token) == size + len(numbers))


@dataclass
class Theft:
    """A topic of which one publisher's key was stolen, and revoked."""

    topic: Topic
    hand: Hand  # the victim's key, in the thief's hands
    doors: bytes = b""  # another topic, whose tree was larger before the revocation
    somebody: bytes = b""  # who was revoked after the theft

    @property
    def victim(self) -> bytes:
        return self.hand.session.identity.principal

    @property
    def place(self) -> tuple[bytes, int]:
        return self.topic.token, 0

    def marks(self, node: Any = None, **settings: Any) -> dict[int, bool]:
        """Which rows a reader takes for suspect, through `node` where one is given."""
        reader = self.topic.reader
        with subscribe_through(reader, node or reader.node, self.topic.name, **settings) as subscriber:
            return read_marks(subscriber, anchored(reader.view, self.topic.token))

    def marks_of_a_lie(self, lie: Callable[[Theft, AnchoredBefore], AnchoredBefore]) -> dict[int, bool]:
        liar: Any = Liar(self.topic.reader.node)
        liar.anchored_before = lambda *asked: lie(self, liar.honest.anchored_before(*asked))
        return self.marks(liar)


def read_marks(subscriber: Subscriber, count: int) -> dict[int, bool]:
    received = read_to(subscriber, count)
    told = {one.offset for one in subscriber.findings if one.reason == "suspect"}
    assert told == {one.offset for one in received if one.suspect}
    return {row["seq"]: one.suspect for one in received for row in one.to_pylist()}


def read_to(subscriber: Subscriber, count: int) -> list[Received]:
    """What comes until so many parcels were read."""
    received: list[Received] = []

    def is_read() -> bool:
        received.extend(subscriber.poll(50))
        return subscriber.positions()[0] >= count

    wait_until(is_read)
    return received


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("revoked")) as stack:
        yield stack


@pytest.fixture(scope="module")
def theft(stack: Stack) -> Theft:
    topic = Topic(stack, "acme")
    publish(topic.car, "brakes", [HONEST])
    hand = Hand(topic.publisher("victim"), "brakes")
    stored(hand.send(hand.seal(BEFORE))[0])
    wait_until(lambda: anchored(topic.reader.view, topic.token) > 1)
    other = topic.beside("doors")
    publish(topic.car, "doors", range(8))
    found = Theft(topic, hand, other.token, topic.publisher("somebody").identity.principal)
    revoke(topic, found.victim)
    store_through_the_node(topic, hand, STOLEN)
    publish(topic.car, "brakes", [LATER])
    revoke(topic, found.somebody)
    return found


HELD = {HONEST: False, BEFORE: False, STOLEN: True, LATER: False}
DECEIVED = {**HELD, STOLEN: False}


def test_what_the_thief_sealed_is_suspect_and_what_was_anchored_before_stands(theft: Theft) -> None:
    assert theft.marks() == HELD


def test_without_the_mark_the_thiefs_rows_pass(theft: Theft) -> None:
    with without("the mark of a revoked key"):
        assert theft.marks() == DECEIVED


def test_what_no_anchor_covers_is_suspect(theft: Theft) -> None:
    assert theft.marks(read="stored") == {**HELD, BEFORE: True}


def test_who_proves_a_row_of_the_thief_is_told(theft: Theft) -> None:
    with theft.topic.reader.subscriber("brakes") as subscriber:
        received = read_to(subscriber, anchored(theft.topic.reader.view, theft.topic.token))
    offsets = {row["seq"]: one.offset for one in received for row in one.to_pylist()}
    told: list[Finding] = []
    theft.topic.reader.prove("brakes", 0, offsets[BEFORE], 0, on_finding=told.append)
    assert told == []
    theft.topic.reader.prove("brakes", 0, offsets[STOLEN], 0, on_finding=told.append)
    assert [(one.reason, one.offset) for one in told] == [("suspect", offsets[STOLEN])]


# --- nodes that lie about the anchor ---


def entry_proof(theft: Theft, height: int, matches: Callable[[bytes], bool]) -> EntryProof:
    ledger = theft.topic.stack.node.ledger
    found = find_entry(ledger, height, matches)
    assert found is not None
    return ledger.receipt(*found)


def newest_anchor(theft: Theft, token: bytes) -> EntryProof:
    height = row_of(theft.topic.reader.view, ANCHORS(token, 0)).height
    return entry_proof(theft, height, lambda entry: is_anchor_of(entry, token, 0))


def after_it(theft: Theft, true: AnchoredBefore) -> AnchoredBefore:
    """The newest anchor for one before the revocation."""
    return AnchoredBefore(true.revocation, newest_anchor(theft, theft.topic.token), ())


def of_another_topic(theft: Theft, true: AnchoredBefore) -> AnchoredBefore:
    """A larger tree that was anchored before the revocation, elsewhere."""
    return AnchoredBefore(true.revocation, newest_anchor(theft, theft.doors), true.path)


def before_another_revocation(theft: Theft, true: AnchoredBefore) -> AnchoredBefore:
    """The newest anchor, which came before somebody else was revoked."""
    height = row_of(theft.topic.reader.view, IDENTITIES(theft.somebody)).revoked
    other = entry_proof(theft, height, lambda entry: is_revocation(entry, theft.somebody))
    return AnchoredBefore(other, newest_anchor(theft, theft.topic.token), ())


LIES = (after_it, of_another_topic, before_another_revocation)


@pytest.mark.parametrize("lie", LIES)
def test_a_node_that_lies_about_the_anchor_makes_more_suspect_and_not_less(theft: Theft, lie: Any) -> None:
    assert theft.marks_of_a_lie(lie) == {**HELD, BEFORE: True}


@pytest.mark.parametrize("lie", LIES)
def test_without_the_proof_it_makes_the_thiefs_rows_pass(theft: Theft, lie: Any) -> None:
    with without("the proof of what was anchored before a revocation"):
        assert theft.marks_of_a_lie(lie) == DECEIVED


def test_a_node_that_finds_nothing_gains_nothing(theft: Theft) -> None:
    liar: Any = Liar(theft.topic.reader.node)
    liar.anchored_before = lambda *_: None
    assert theft.marks(liar) == {**HELD, BEFORE: True}


def test_a_tree_that_was_made_up_in_advance_covers_nothing(stack: Stack) -> None:
    """Before the revocation the node anchors a tree that it does not have yet, larger than its own, to say later that
    what the thief sealed had been in it."""
    topic = Topic(stack, "initech")
    hand = Hand(topic.publisher("victim"), "brakes")
    stored(hand.send(hand.seal(BEFORE))[0])
    wait_until(lambda: anchored(topic.reader.view, topic.token) == 1)
    write_as_node(stack.node, entries.anchor(topic.token, 0, 2, bytes(32)))
    theft = Theft(topic, hand)
    revoke(topic, theft.victim)
    store_through_the_node(topic, hand, STOLEN, STOLEN + 1)
    assert theft.marks() == {BEFORE: True, STOLEN: True, STOLEN + 1: True}
    with without("the proof of what was anchored before a revocation"):
        assert theft.marks() == {BEFORE: False, STOLEN: False, STOLEN + 1: True}


# --- readers that were there before ---


@pytest.mark.parametrize("looks", [True, False])
def test_a_subscriber_that_reads_on_learns_of_the_revocation(stack: Stack, looks: bool) -> None:
    topic = Topic(stack, f"umbrella-{looks}")
    hand = Hand(topic.publisher("victim"), "brakes")
    stored(hand.send(hand.seal(BEFORE))[0])
    with ExitStack() as away, topic.reader.subscriber("brakes") as subscriber:
        if not looks:
            away.enter_context(without("the look at keys while one reads on"))
        assert read_marks(subscriber, 1) == {BEFORE: False}
        revoke(topic, hand.session.identity.principal)
        store_through_the_node(topic, hand, STOLEN)
        assert read_marks(subscriber, 2) == {STOLEN: looks}


@pytest.mark.parametrize("looks", [True, False])
def test_who_reads_on_before_the_anchor_learns_of_it_a_moment_later(stack: Stack, looks: bool) -> None:
    topic = Topic(stack, f"parasol-{looks}")
    hand = Hand(topic.publisher("victim"), "brakes")
    stored(hand.send(hand.seal(BEFORE))[0])
    with ExitStack() as away, topic.reader.subscriber("brakes", read="stored") as subscriber:
        if not looks:
            away.enter_context(without("the look at keys while one reads on"))
        assert read_marks(subscriber, 1) == {BEFORE: False}
        revoke(topic, hand.session.identity.principal)
        stack.clock.pause(UNANCHORED_S)
        store_through_the_node(topic, hand, STOLEN)
        assert read_marks(subscriber, 2) == {STOLEN: looks}


# --- Spark's driver ---


def test_a_query_tells_its_tasks_below_which_offset_a_revoked_publisher_stands(theft: Theft) -> None:
    home = str(theft.topic.reader.identity.home)
    access = admit(home, "brakes")
    try:
        planner = Planner(Options.parse({"home": home, "topic": "brakes"}), access)
        anchors = planner.anchors()
        [slices] = planner.plan({0: 0}, {0: anchors[0].size}, anchors)
        [(publisher, below)] = {pair for one in slices for pair in one.suspects}
    finally:
        access.close()
    found = find_before_revocation(theft.topic.stack.node.ledger, theft.victim, *theft.place)
    assert found is not None
    anchor = Anchor.decode_entry(theft.topic.stack.node.ledger.receipt(*found[1]).entry)
    assert (publisher, below) == (theft.victim, anchor.size)
    assert 0 < below < anchors[0].size
