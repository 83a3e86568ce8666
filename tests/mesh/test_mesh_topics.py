"""Topics of one principal over different carriers, and the groups of a mesh node's principal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from actors import SCHEMA, Hand, await_topic, read_rows, rows, stored
from mesh_stack import NAME, MeshTown, mesh_of
from stack import WRITE, wait_beyond, wait_until
from without import without

from tallystick import wire
from tallystick.carriers.carrier import GROUPS_PATH
from tallystick.carriers.mesh.keeping import AGAIN_PARCELS
from tallystick.carriers.storage import Place
from tallystick.client.group import group_id
from tallystick.client.session import Session
from tallystick.errors import Misuse, Refused
from tallystick.identity.choices import CarrierChoice, choose_carrier, read_choices
from tallystick.ledger import entries
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.ledger.contracts.kinds import EntryKind

MESH = f"mesh://{NAME}"


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshTown]:
    with mesh_of(tmp_path_factory.mktemp("mesh"), forwarders=3) as town:
        yield town


@pytest.fixture(scope="module")
def reader(town: MeshTown) -> Session:
    return town.member("reader")


@pytest.fixture(scope="module")
def car(town: MeshTown) -> Session:
    return town.member("car")


@pytest.fixture(scope="module")
def hidden(town: MeshTown, car: Session, reader: Session) -> bytes:
    """A topic on the mesh."""
    token = town.topic("hidden", car, reader, partitions=2)
    wait_until(lambda: town.is_whole(token, car, reader))
    return token


@pytest.fixture(scope="module")
def both(town: MeshTown, car: Session, hidden: bytes) -> Session:
    """The car as its folder has it: the instance's node for its topics, and the mesh for one of them."""
    return town.beside(car, hidden=hidden)


@pytest.fixture(scope="module")
def shown(town: MeshTown, both: Session) -> bytes:
    """A topic on the log."""
    token = town.stack.topic(town.owner, "shown", SCHEMA)
    town.stack.grant(town.owner, token, both, WRITE)
    await_topic(town.stack, token)
    return token


# --- the choice of a carrier ---


def test_one_principal_publishes_one_topic_on_the_log_and_another_on_the_mesh(
    town: MeshTown, both: Session, reader: Session, hidden: bytes, shown: bytes
) -> None:
    with both.publisher("shown", acks="anchored") as publisher:
        publisher.send(rows(1))
        assert publisher.flush(30) == 0
    with both.publisher("hidden", carrier=MESH) as publisher:
        publisher.send(rows(2))
        assert publisher.flush(30) == 0
    with reader.subscriber("hidden") as subscriber:
        assert read_rows(subscriber, 1) == [2]
    here, there = town.stack.node.carrier.storage, town.node_of(both).carrier.storage
    assert here.end(Place(shown, 0)) > 0
    assert there.end(Place(shown, 0)) == 0
    assert sum(here.end(Place(hidden, partition)) for partition in (0, 1)) == 0
    assert both.acks_most == "anchored"
    assert both.over("hidden").acks_most == "stored"


def publish_openly(town: MeshTown, both: Session, number: int) -> None:
    with (
        without("the choice of a topic's carrier"),
        town.stack.again(both).publisher("hidden", acks="anchored") as publisher,
    ):
        publisher.send(rows(number))
        assert publisher.flush(30) == 0


def test_without_the_choice_it_is_told_to_everybody(town: MeshTown, both: Session, hidden: bytes) -> None:
    publish_openly(town, both, 9)
    assert any(one[4] == EntryKind.OPERATION for one in town.owner.node.audit(token=hidden))


@pytest.mark.long
def test_anchors_of_a_topic_s_log_elsewhere_say_nothing_of_the_node_s_own(
    town: MeshTown, both: Session, reader: Session, hidden: bytes
) -> None:
    """A topic that was on a log before goes on over the mesh."""
    publish_openly(town, both, 8)
    assert any(town.owner.view.row(ANCHORS(hidden, partition)) for partition in (0, 1))
    fill(town, both, reader, hidden, 3)
    with reader.subscriber("hidden") as subscriber:
        found: set[int] = set()
        wait_until(lambda: found.update(read_rows(subscriber, 1)) or 3 in found)
        assert 8 not in found
        assert subscriber.findings == []
    with reader.subscriber("hidden", start="latest") as subscriber:
        assert subscriber.poll(0) == []
        fill(town, both, reader, hidden, 4)
        assert read_rows(subscriber, 1) == [4]


def test_who_asks_for_a_carrier_gets_it_or_nothing(both: Session, reader: Session, hidden: bytes, shown: bytes) -> None:
    with pytest.raises(Misuse, match="not chosen for mesh://city"):
        both.publisher("shown", carrier=MESH)
    with pytest.raises(Misuse, match="not chosen for mesh://town"):
        both.publisher("hidden", carrier="mesh://town")
    with pytest.raises(Misuse, match="different carriers"):
        both.publisher(["hidden", "shown"])
    with pytest.raises(Misuse, match="the mesh anchors nothing"):
        both.publisher("hidden", acks="anchored")
    with pytest.raises(Misuse, match="the mesh anchors nothing"):
        both.prove("hidden", 0, 0, 0)
    assert both.over(hidden.hex()) is both.over("hidden")  # by its token as well
    for topic, carrier in (("shown", None), ("hidden", "mesh://town")):
        with pytest.raises(Misuse, match="for others, over mesh://city"):
            both.over("hidden").publisher(topic, carrier=carrier)
    assert reader.over("hidden", MESH) is reader  # all its topics go there


def test_a_choice_holds_until_it_is_made_anew(both: Session, tmp_path: Path) -> None:
    known = read_choices(both.identity.home)[MESH]
    choose_carrier(tmp_path, known)
    choose_carrier(tmp_path, CarrierChoice("mesh://town", known.url, known.node, {"hidden": known.topics["hidden"]}))
    assert list(read_choices(tmp_path)) == ["mesh://town"]
    (tmp_path / "carriers.json").write_text('{"mesh://town": 7}')
    with pytest.raises(Misuse, match="not a choice of carriers"):
        read_choices(tmp_path)


# --- locks ---


@pytest.mark.long
def test_who_comes_late_gets_locks_without_asking_and_would_not_if_they_went_once(
    town: MeshTown, both: Session, hidden: bytes
) -> None:
    """They are pushed to all of the topic's mesh; no frame asks for one, and a node has those that came to it."""
    watcher, taken, session = town.forwarders.stations[0], town.forwarders.taken[0], both.over("hidden")
    hand, pseudonym = Hand(session, "hidden", node=session.carrier), town.pseudonym(hidden)
    stored(hand.send(hand.seal(100))[0])
    watcher.change([town.maker.topic("watcher", hidden, reads=True, publishes=False)])
    wait_until(lambda: bool(watcher.node.matching.links(pseudonym)))
    taken.clear()

    def send(first: int) -> bool:
        """Whether locks came with some of these parcels."""
        parcels = [hand.seal(first + number) for number in range(AGAIN_PARCELS)]
        sent = {one.encode() for one in parcels}
        for outcome in hand.send(*parcels):
            stored(outcome)
        wait_until(lambda: sent <= {one.parcel for one in taken})
        return any(one.locks for one in taken if one.parcel in sent)

    with without("the locks of a mesh that go again"):
        assert not send(101)
    assert send(101 + AGAIN_PARCELS)
    lacking = bytes(32)
    with pytest.raises(Refused):
        session.carrier.lock(lacking)


# --- groups ---


def group_entries(town: MeshTown) -> list[int]:
    kinds = EntryKind.GROUP, EntryKind.JOIN, EntryKind.COMMIT_OFFSET
    return [len(town.owner.node.audit(kind=int(kind))) for kind in kinds]


def fill(town: MeshTown, publisher: Session, reader: Session, token: bytes, *numbers: int) -> None:
    """Publish these, each in a lane of its own, and wait until they lie at the reader's node."""
    ends = town.node_of(reader).carrier.storage.end
    for number in numbers:
        before = sum(ends(Place(token, partition)) for partition in (0, 1))
        with publisher.publisher("hidden") as sending:
            sending.send(rows(number))
            assert sending.flush(30) == 0
        wait_beyond(lambda: sum(ends(Place(token, one)) for one in (0, 1)), before + 1)  # and its end


@pytest.mark.long
def test_a_group_s_offsets_are_kept_at_the_node_and_nothing_comes_to_the_ledger(
    town: MeshTown, both: Session, reader: Session, hidden: bytes
) -> None:
    fill(town, both, reader, hidden, *range(20, 26))
    one, other = (reader.subscriber("hidden", group="dash", renew_s=0.1) for _ in range(2))
    got: set[int] = set()
    with one, other:

        def read() -> bool:
            for subscriber in (one, other):
                got.update(row["seq"] for received in subscriber.poll(100) for row in received.to_pylist())
            return got >= set(range(20, 26))

        wait_until(read)
        wait_until(lambda: not (one.poll(50) or other.poll(50)))
        assert one.statistics().partitions == other.statistics().partitions == 1  # they share
        for subscriber in (one, other):
            subscriber.commit()
    town.nodes["reader"].end()
    town.start("reader")
    wait_until(lambda: town.is_whole(hidden, both, reader))
    fill(town, both, reader, hidden, 30)
    with reader.subscriber("hidden", group="dash") as again:
        assert read_rows(again, 1) == [30]
    assert group_entries(town) == [0, 0, 0]


def test_without_that_the_ledger_tells_who_reads_and_how_far(town: MeshTown, reader: Session, hidden: bytes) -> None:
    with without("the groups at a mesh node"), reader.subscriber("hidden", group="told") as subscriber:
        subscriber.poll(0)
    assert group_entries(town)[:2] == [1, 1]


def test_the_rules_of_a_group_are_those_of_the_ledger(town: MeshTown, reader: Session, hidden: bytes) -> None:
    group, member, end = group_id(reader.identity.tenant, "rules"), bytes(16), 1_000_000

    def write(*entry: bytes) -> None:
        reader.node.post(GROUPS_PATH, wire.encode([1, list(entry), []]))

    def reason(*entry: bytes) -> str:
        with pytest.raises(Refused) as refusal:
            write(*entry)
        return refusal.value.reason

    assert reason(entries.join(group, member)) == "unknown-group"
    write(entries.group(group, 15_000, [hidden]), entries.join(group, member))
    assert reason(entries.commit_offset(group, member, hidden, 0, fence=1, old=0, new=1)) == "fenced"
    assert reason(entries.commit_offset(group, member, hidden, 0, fence=2, old=0, new=end)) == "offset-ahead"
    assert reason(entries.commit_offset(group, b"1" * 16, hidden, 0, fence=2, old=0, new=1)) == "not-holder"
    assert reason(entries.group(bytes(16), 15_000, [bytes(16)])) == "unknown-topic"
    for junk in (b"", b"junk", wire.encode([1, [b"junk"], []]), wire.encode([1, [wire.encode([1, 2])], []])):
        with pytest.raises(Refused):
            reader.node.post(GROUPS_PATH, junk)


def test_nobody_else_asks_for_a_node_s_groups(town: MeshTown, both: Session, reader: Session) -> None:
    theirs = reader.identity
    stranger = town.stack.session(replace(both.identity, node_urls=theirs.node_urls, nodes=theirs.nodes))
    with pytest.raises(Refused) as refusal:
        stranger.node.post(GROUPS_PATH, wire.encode([1, [], []]))
    assert refusal.value.reason == "not-served"
