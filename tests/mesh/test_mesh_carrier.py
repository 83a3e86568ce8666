"""The mesh as a carrier: what is published at one principal's node is read at those of others, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from actors import Hand, read_rows, reason, rows, stored
from mesh_stack import MeshTown, is_in, mesh_of
from stack import READ, WRITE, impatient, wait_until
from without import without

from tallystick.carriers.carrier import Fetch
from tallystick.carriers.mesh import keeping
from tallystick.carriers.mesh.direct import ask_status, give_kit, leave_mesh
from tallystick.carriers.mesh.kit import read_entry
from tallystick.carriers.mesh.server import read_outside, serve
from tallystick.carriers.received import Receiver
from tallystick.carriers.storage import Place
from tallystick.client.session import Session
from tallystick.errors import Forged, Misuse, Refused, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.retention import Retention
from tallystick.node.settings import NodeSettings
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.disk import RealDisk

Topic = tuple[str, bytes]


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshTown]:
    with mesh_of(tmp_path_factory.mktemp("mesh"), forwarders=4) as town:
        yield town


@pytest.fixture(scope="module")
def car(town: MeshTown) -> Session:
    return town.member("car")


@pytest.fixture(scope="module")
def reader(town: MeshTown) -> Session:
    return town.member("reader")


@pytest.fixture
def topic(town: MeshTown, car: Session, reader: Session, request: pytest.FixtureRequest) -> Topic:
    name = request.node.name
    token = town.topic(name, car, reader)
    wait_until(lambda: town.is_whole(token, car, reader))
    return name, token


def publish(session: Session, topic: str, *numbers: int, **settings: Any) -> None:
    with session.publisher(topic, **settings) as publisher:
        for number in numbers:
            publisher.send(rows(number))
        assert publisher.flush(30) == 0


def test_rows_are_read_at_the_node_of_whoever_subscribes(car: Session, reader: Session, topic: Topic) -> None:
    publish(car, topic[0], *range(5))
    with reader.subscriber(topic[0]) as subscriber:
        assert read_rows(subscriber, 5) == [0, 1, 2, 3, 4]
        assert subscriber.findings == []


def test_what_was_taken_is_final_and_the_spool_lets_it_go(car: Session, topic: Topic) -> None:
    with car.publisher(topic[0]) as publisher:
        publisher.send(rows(1, 2, 3))
        assert publisher.flush(30) == 0
        wait_until(lambda: publisher.statistics().unproved == 0)
        counts = publisher.statistics().produced
        assert (counts.stored, counts.anchored, counts.waiting) == (3, 0, 0)


def test_no_act_comes_to_the_ledger_and_nothing_is_anchored(
    town: MeshTown, car: Session, reader: Session, topic: Topic
) -> None:
    name, token = topic
    publish(car, name, 1, 2)
    with reader.subscriber(name) as subscriber:
        assert read_rows(subscriber, 2) == [1, 2]
    hand = Hand(car, name, node=car.carrier)
    assert reason(hand.send(bytes((1 << 20) + 1))[0]) == "too-large"  # a refusal is an act as well
    for session in (car, reader):
        node = town.node_of(session)
        node.core.work()
        assert node.carrier.statistics().operations_waiting == 0
    told = town.owner.node.audit(token=token)
    assert [one for one in told if one[4] in (EntryKind.OPERATION, EntryKind.ANCHOR)] == []


def test_waiting_for_an_anchor_is_a_misuse(car: Session, reader: Session, topic: Topic) -> None:
    with pytest.raises(Misuse, match="acks=anchored: the mesh anchors nothing"):
        car.publisher(topic[0], acks="anchored")
    with pytest.raises(Misuse, match="read=anchored: the mesh anchors nothing"):
        reader.subscriber(topic[0], read="anchored")


def test_a_node_that_promises_nothing_is_not_believed_by_others(town: MeshTown, car: Session, topic: Topic) -> None:
    """Only the identity's own folder says that nothing will be anchored."""
    leave_mesh(car.identity.home)
    try:
        publisher = town.stack.again(car).publisher(topic[0], background=False)
        publisher.send(rows(1))
        with pytest.raises(Forged, match="promises"):
            publisher.flush(5)
    finally:
        (car.identity.home / "mesh.json").write_text(json.dumps({"mesh": "city"}))


# --- whom a node serves ---


def test_a_node_serves_one_principal_alone(town: MeshTown, car: Session, reader: Session, topic: Topic) -> None:
    """Somebody with every right on the topic learns nothing from another's node."""
    name, token = topic
    identity = replace(car.identity, node_urls=reader.identity.node_urls, nodes=reader.identity.nodes)
    intruder = town.stack.session(identity)
    for ask in (
        lambda: Hand(intruder, name, node=intruder.carrier),
        lambda: intruder.carrier.fetch(Fetch(token, 0, bytes(16), 0, 1 << 20)),
        lambda: give_kit(intruder.node, town.maker.kit("car").encode()),
        lambda: ask_status(intruder.node),
    ):
        with pytest.raises(Refused) as refusal:
            ask()
        assert refusal.value.reason == "not-served"


def test_without_that_others_ask_it_what_its_principal_reads(
    town: MeshTown, car: Session, reader: Session, topic: Topic
) -> None:
    name, _ = topic
    other = town.stack.principal("acme", "other reader")
    town.stack.grant(town.owner, topic[1], other, WRITE)
    identity = replace(other.identity, node_urls=reader.identity.node_urls, nodes=reader.identity.nodes)
    with without("a mesh node's one principal"):
        Hand(town.stack.session(identity), name)


def test_a_node_without_the_publishers_key_turns_parcels_away(town: MeshTown, reader: Session, topic: Topic) -> None:
    name, token = topic
    town.stack.grant(town.owner, token, reader, WRITE)
    hand = Hand(reader, name, node=reader.carrier)
    with impatient(reader), pytest.raises(Unavailable, match="no publisher's key"):
        hand.send(hand.seal(1))
    assert town.node_of(reader).carrier.storage.end(Place(token, 0)) == 0


def test_a_kit_that_is_none_is_refused(car: Session) -> None:
    for junk in (b"", b"junk", bytes(2_000)):
        with pytest.raises(Refused, match="mesh kit"):
            give_kit(car.node, junk)


def test_the_status_tells_the_entry_by_which_others_know_the_node(town: MeshTown, car: Session) -> None:
    told = ask_status(car.node)
    assert told["joined"] is True
    assert read_entry(str(told["entry"])) == town.node_of(car).station.entry


# --- loss, lateness, restarts ---


def test_locks_go_at_the_start_of_a_lane_and_again_and_again(town: MeshTown, car: Session, topic: Topic) -> None:
    """So that whoever comes late, or missed some, opens the lane from there on."""
    name, token = topic
    watcher, taken = town.forwarders.stations[0], town.forwarders.taken[0]
    taken.clear()
    watcher.change([town.maker.topic("watcher", token, reads=True, publishes=False)])
    wait_until(lambda: is_in(watcher, town.pseudonym(token)))
    hand = Hand(car, name, node=car.carrier)
    count = 2 * keeping.AGAIN_PARCELS + 1
    for outcome in hand.send(*(hand.seal(number) for number in range(count))):
        stored(outcome)
    wait_until(lambda: len(taken) == count)
    by_sequence = {Parcel.decode(one.parcel).header.sequence: one for one in taken}
    assert [n for n in range(count) if by_sequence[n].locks] == [0, keeping.AGAIN_PARCELS, 2 * keeping.AGAIN_PARCELS]
    assert all(bool(one.locks) == bool(one.permits) for one in taken)


def test_one_who_comes_late_reads_from_there_on(town: MeshTown, car: Session, topic: Topic) -> None:
    name, token = topic
    with car.publisher(name) as publisher:
        publisher.send(rows(1))
        assert publisher.flush(30) == 0
        late = town.member("late")
        town.stack.grant(town.owner, token, late, READ)
        town.equip(late, town.maker.topic("late", token, reads=True, publishes=False))
        wait_until(lambda: town.is_whole(token, late))
        publisher.send(rows(2))
        assert publisher.flush(30) == 0
        with late.subscriber(name) as subscriber:
            assert read_rows(subscriber, 1)[-1] in (1, 2)


def test_after_a_restart_both_nodes_have_their_keys_and_go_on(
    town: MeshTown, car: Session, reader: Session, topic: Topic
) -> None:
    name, token = topic
    publish(car, name, 1, 2)
    place = Place(token, 0)
    wait_until(lambda: town.node_of(reader).carrier.storage.end(place) >= 3)  # and the closing parcel
    for one in ("car", "reader"):
        town.nodes[one].end()
        town.start(one)
    wait_until(lambda: town.is_whole(token, car, reader))
    publish(car, name, 3)
    with reader.subscriber(name) as subscriber:
        assert read_rows(subscriber, 3) == [1, 2, 3]
        assert subscriber.findings == []


def test_what_was_stored_and_had_not_left_when_the_node_ended_leaves_when_it_starts(
    town: MeshTown, car: Session, reader: Session, topic: Topic
) -> None:
    name, token = topic
    with without("the way out of a mesh node's log"):  # as if it ended at this moment
        publish(car, name, 1)
    assert town.node_of(reader).carrier.storage.end(Place(token, 0)) == 0
    town.nodes["car"].end()
    town.start("car")
    with reader.subscriber(name) as subscriber:
        assert read_rows(subscriber, 1) == [1]
        assert subscriber.findings == []


def test_the_same_parcel_again_is_known_and_does_not_go_out_twice(
    town: MeshTown, car: Session, reader: Session, topic: Topic
) -> None:
    name, _ = topic
    hand = Hand(car, name, node=car.carrier)
    parcel = hand.seal(1)
    assert not stored(hand.send(parcel)[0]).again
    assert stored(hand.send(parcel)[0]).again
    publish(car, name, 2)
    with reader.subscriber(name) as subscriber:
        assert sorted(read_rows(subscriber, 2)) == [1, 2]


def test_a_reader_is_told_what_its_node_let_go_of_on_the_owner_s_word(
    town: MeshTown, car: Session, reader: Session, topic: Topic
) -> None:
    name, token = topic

    def is_retained() -> bool:
        with suppress(Refused):  # the contract comes into force some blocks after the instance begins
            town.owner.author.write(entries.retain(token, Retention(parcels=2)))
            return True
        return False

    wait_until(is_retained)
    hand, node, place = Hand(car, name, node=car.carrier), town.node_of(reader), Place(token, 0)
    for number in range(4):
        stored(hand.send(hand.seal(number))[0])
    storage, receiver = node.carrier.storage, cast(Receiver, node.core.anchorer)

    def retire() -> None:
        receiver.retire(node.rules.read, int(town.stack.clock.now() * 1000))

    wait_until(lambda: storage.end(place) == 4)
    retire()  # whole segments go, and this one gets no more entries from now on
    for number in (4, 5):
        stored(hand.send(hand.seal(number))[0])
    wait_until(lambda: storage.end(place) == 6)
    retire()
    assert storage.tree(place).below == 4
    with reader.subscriber(name) as subscriber:
        assert read_rows(subscriber, 2) == [4, 5]
        assert [finding.reason for finding in subscriber.findings] == ["retired"]


# --- settings ---


def test_settings_of_the_mesh_are_read_and_held_to_their_bounds() -> None:
    outside = read_outside({"mesh_dial": "constant", "mesh_beat_s": "0.5", "mesh_mu": "0.7", "mesh_lambda": "0.03"})
    assert (outside.dial.name, outside.settings.mesh.beat_s) == ("CONSTANT", 0.5)
    assert (outside.settings.covers.mu, outside.settings.game.decay) == (0.7, 0.03)
    for wrong in (
        {"mesh_dial": "loud"},
        {"mesh_beat_s": "0"},
        {"mesh_beat_cells": "many"},
        {"mesh_beat_cells": "1"},
        {"mesh_mu": "2"},
        {"mesh_contacts": "nobody"},
    ):
        with pytest.raises(Misuse):
            read_outside(wrong)


def test_a_node_keeps_up_the_keys_of_its_own_principal_and_of_no_other(
    town: MeshTown, car: Session, reader: Session
) -> None:
    node = town.node_of(car)
    before = node.settings
    try:
        for session in (car, reader):
            chosen = {**before.carrier_settings, "mesh_home": str(session.identity.home)}
            node.settings = replace(before, carrier_settings=chosen)
            if session is car:
                assert node._find_care() is not None
            else:
                with pytest.raises(Misuse, match="not that of the principal"):
                    node._find_care()
    finally:
        node.settings = before


def test_a_mesh_node_needs_a_principal(town: MeshTown, car: Session, tmp_path: Path) -> None:
    core = town.node_of(car).core
    with pytest.raises(Misuse, match="serves one principal"):
        serve(NodeSettings(carrier="mesh://city"), core, RealDisk(tmp_path))
