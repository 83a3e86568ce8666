"""One tenant's topic at a node that does not carry it: one parcel makes an anchor that the ledger refuses for ever, and
the other tenants' parcels behind it would never be anchored."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from actors import SCHEMA, Hand, Topic, acts, anchored, await_topic, publish, reason, stored
from stack import PASSPHRASE, READ, WRITE, Stack, wait_beyond, wait_until
from without import without

from tallystick.authority.client import topic_entries
from tallystick.carriers.carrier import Fetch
from tallystick.demo.forgery import exchange
from tallystick.errors import Refused
from tallystick.ledger import entries
from tallystick.node.instance import create_node
from tallystick.node.settings import NodeSettings
from tallystick.record.schema import Schema
from tallystick.trust.permit import Operation, Permit


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("carried")) as stack:
        yield stack


@pytest.fixture(scope="module")
def honest(stack: Stack) -> Topic:
    return Topic(stack, "acme")


@pytest.fixture(scope="module")
def rogue(stack: Stack) -> Topic:
    """A tenant with a topic of its own, as anybody has."""
    return Topic(stack, "rival", "windows")


@pytest.fixture(scope="module")
def elsewhere(stack: Stack, rogue: Topic) -> bytes:
    """Another node of the instance; nobody has to run it."""
    made = create_node(
        *(stack.folders.root, stack.folders.root / "elsewhere", PASSPHRASE, NodeSettings(port=0)),
        *(int(stack.clock.now() * 1000), stack.entropy),
    )
    rogue.owner.author.write(entries.enrol(made))
    return made.subject


def foreign_topic(stack: Stack, rogue: Topic, name: str, elsewhere: bytes) -> bytes:
    """A topic of the rogue tenant's that names the other node alone."""
    draft = rogue.owner.authority.bind_topic(name, Schema.parse(SCHEMA).encode(), 1, 0)
    rogue.owner.author.write(*topic_entries(draft, rogue.owner.holder, nodes=(elsewhere,)))
    await_topic(stack, draft.token)
    for session, right in ((rogue.car, WRITE), (rogue.reader, READ)):
        stack.grant(rogue.owner, draft.token, session, right)
    return draft.token


def test_what_the_topic_does_not_ask_of_this_node_is_refused(stack: Stack, rogue: Topic, elsewhere: bytes) -> None:
    token = foreign_topic(stack, rogue, "doors", elsewhere)
    reading = rogue.reader.authority.permit(Operation.SUBSCRIBE, token).permit
    with pytest.raises(Refused) as subscribing:
        rogue.reader.node.subscribe(reading)
    with pytest.raises(Refused) as advertising:
        Hand(rogue.car, token)
    assert (subscribing.value.reason, advertising.value.reason) == ("not-carried", "not-carried")
    assert acts(stack, token=token) == []  # its history is another node's to write


def test_a_partition_that_was_moved_is_neither_filled_nor_read_here(
    stack: Stack, rogue: Topic, elsewhere: bytes
) -> None:
    moved = rogue.beside("moved", partitions=2)
    hand = Hand(moved.car, moved.token)
    parcel = hand.seal(1)
    stored(hand.send(parcel)[0])
    partition = parcel.header.partition(2)
    wait_until(lambda: anchored(rogue.owner.view, moved.token, partition) == 1)
    permit = moved.reader.authority.permit(Operation.SUBSCRIBE, moved.token).permit
    moved.reader.node.subscribe(permit)
    wanted = Fetch(moved.token, partition, Permit.decode(permit).identifier, 0, 1 << 20)
    assert len(moved.reader.node.fetch(wanted).parcels) == 1
    moved.owner.author.write(entries.assign(moved.token, partition, [elsewhere]))
    assert stored(hand.send(parcel)[0]).again  # whose answer was lost hears that it is stored
    assert reason(hand.send(hand.seal(2))[0]) == "not-carried"
    with pytest.raises(Refused) as fetching:
        moved.reader.node.fetch(wanted)
    assert fetching.value.reason == "not-carried"
    # What is told of the topic is told of the partition that is still here, so the ledger takes it.
    assert {act.reason for act in acts(stack, token=moved.token)} == {"", "not-carried"}
    moved.owner.author.write(entries.assign(moved.token, 1 - partition, [elsewhere]))
    with pytest.raises(Refused) as advertising:
        Hand(moved.car, moved.token)
    assert advertising.value.reason == "not-carried"
    moved.owner.author.write(entries.assign(moved.token, 1 - partition, [stack.node.identifier]))
    Hand(moved.car, moved.token)


CARRIED, ASIDE = "the question whether a node carries it", "the standing aside of refused anchors"


def go_astray(rogue: Topic, token: bytes) -> None:
    """With the guards away: a parcel of a topic that this node does not carry is stored, and gets no anchor."""
    hand = Hand(rogue.car, token)
    stored(hand.send(hand.seal(1))[0])


def test_an_anchor_that_is_refused_stands_aside_and_is_told_and_the_others_go_on(
    stack: Stack, honest: Topic, rogue: Topic, elsewhere: bytes
) -> None:
    with without(CARRIED):
        stray = foreign_topic(stack, rogue, "stray", elsewhere)
        go_astray(rogue, stray)
        later = honest.beside("later")
        publish(later.car, "later", [1])  # and waits for the anchor
        assert stack.node.carrier.ends(stray, 0) == (0, 1)
        wait_until(lambda: stack.node.statistics()["carrier"]["anchors_aside"] == 1)
    wait_until(lambda: b"carrier_anchors_aside 1" in exchange(honest.car, "GET", "/metrics").body)  # with them, too


def test_without_standing_aside_one_parcel_stops_the_anchors_of_all(
    stack: Stack, honest: Topic, rogue: Topic, elsewhere: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    def refusals() -> int:
        return sum("does not take an entry" in record.getMessage() for record in caplog.records)

    with without(CARRIED, ASIDE):
        # Anchors are offered in the order of their tokens, so both make topics until one of the rogue's comes early.
        strays, others = list[bytes](), list[Topic]()
        while not strays or min(strays) > max(one.token for one in others):
            strays.append(foreign_topic(stack, rogue, f"astray-{len(strays)}", elsewhere))
            others.append(honest.beside(f"latest-{len(others)}"))
        go_astray(rogue, min(strays))
        latest = max(others, key=lambda one: one.token)
        hand = Hand(latest.car, latest.token)
        stored(hand.send(hand.seal(7))[0])
        wait_beyond(refusals, refusals() + 20)
        assert anchored(honest.owner.view, latest.token) == 0
    wait_until(lambda: anchored(honest.owner.view, latest.token) == 1)
