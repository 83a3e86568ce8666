"""A broker that drops what owners keep, and calls it retention. The mark was its word alone, and whoever began to read
below it heard nothing; now the ledger judges the mark by what the owner lets go, and readers are told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from actors import Hand, Topic, anchored, give_up, publish, read_rows, settle, stored, write_as_node
from ledger_world import Bench, World, seed, token
from stack import Stack, wait_until
from without import without

from tallystick.carriers.kafka.storage import KafkaStorage
from tallystick.carriers.storage import Place
from tallystick.client.subscribe import FoundError
from tallystick.errors import Misuse, Refused
from tallystick.ledger import entries
from tallystick.ledger.contracts import reputation
from tallystick.ledger.contracts.anchors import RETIRED
from tallystick.ledger.contracts.retention import Retention
from tallystick.node.settings import FILE, NodeSettings, read_settings
from tallystick.trust.certificate import ALL_TENANTS, SubjectKind
from tallystick.trust.promise import Promise


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topic]:
    with Stack(tmp_path_factory.mktemp("retention")) as stack:
        yield Topic(stack, "acme")


def six(topic: Topic, name: str) -> Topic:
    """Another topic of the same people, with six parcels."""
    found = topic.beside(name)
    hand = Hand(found.car, name)
    for number in range(6):
        stored(hand.send(hand.seal(number))[0])
    settle(topic.stack)
    wait_until(lambda: anchored(found.owner.view, found.token) == 6)
    return found


def drop(topic: Topic, below: int) -> None:
    """What a broker does that wants its disk back."""
    node, place = topic.stack.node, Place(topic.token, 0)
    write_as_node(node, entries.retire(*place, below, node.carrier.storage.tree(place).root(below)))
    node.carrier.storage.retire(place, below)


def test_a_carrier_cannot_retire_what_the_owner_keeps(topic: Topic) -> None:
    kept = six(topic, "kept")
    with pytest.raises(Refused, match=r"lets go of partition 0 below 0, found 4") as refused:
        drop(kept, 4)
    assert refused.value.reason == "kept"
    kept.owner.author.write(entries.retain(kept.token, Retention(parcels=1)))  # for the future
    with pytest.raises(Refused, match=r"lets go of partition 0 below 0, found 4"):
        drop(kept, 4)
    assert read_rows(kept.reader.subscriber("kept"), 6) == [*range(6)]


def test_without_the_owner_s_word_readers_miss_rows_and_hear_nothing(topic: Topic) -> None:
    dropped = six(topic, "dropped")
    with without("the owner's word on what is retired", "the finding of what was retired"):
        drop(dropped, 4)
        subscriber = dropped.reader.subscriber("dropped", on_bad="strict")
        assert read_rows(subscriber, 2) == [4, 5]
        assert subscriber.findings == []


@pytest.mark.parametrize("read", ["anchored", "stored"])
def test_a_reader_that_begins_below_the_mark_is_told(topic: Topic, read: str) -> None:
    name = f"told-{read}"
    told = six(topic, name)
    give_up(told.owner, told.stack.node, Place(told.token, 0), 4)
    subscriber = told.reader.subscriber(name, read=read)
    assert read_rows(subscriber, 2) == [4, 5]
    [finding] = subscriber.findings
    found = (finding.reason, finding.token, finding.partition, finding.offset, finding.end)
    assert found == ("retired", told.token, 0, 0, 4)
    strict = told.reader.subscriber(name, read=read, on_bad="strict")
    with pytest.raises(FoundError, match="parcels from offset 0 to 4 were retired before they were read"):
        strict.poll(5_000)
    assert read_rows(strict, 2) == [4, 5], "it goes on if it is asked to"


def test_the_node_gives_up_what_the_owner_lets_go_and_nothing_else(topic: Topic) -> None:
    """A full quota has a way out: what is released frees bytes, while the rest stays."""
    kept, full = six(topic, "beside"), six(topic, "full")
    storage = topic.stack.node.carrier.storage
    before = storage.bytes_stored(Place(full.token, 0))
    full.owner.author.write(entries.release(full.token, 0, 6))
    wait_until(lambda: storage.bytes_stored(Place(full.token, 0)) < before)
    mark = full.reader.view.row(RETIRED(full.token, 0))
    assert mark is not None
    assert mark.below == 6
    publish(full.car, "full", [6])
    subscriber = full.reader.subscriber("full")
    assert read_rows(subscriber, 1) == [6]
    assert [finding.reason for finding in subscriber.findings] == ["retired"]
    assert storage.tree(Place(kept.token, 0)).below == 0


# --- the node's own settings, and Kafka ---


def test_old_settings_get_a_sentence_and_delete_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE).write_text("format = 1\nport = 7411\nretention_bytes = 4000\nretention_s = 60\n")
    assert read_settings(tmp_path) == NodeSettings(port=7411)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert (
        "retention_s = 60 has no effect: what is kept belongs to each topic's owner: tally topic retain" in caplog.text
    )


def test_kafka_never_deletes() -> None:
    storage = KafkaStorage.__new__(KafkaStorage)  # it needs no broker to say so
    assert storage.retirable(Place(bytes(16), 0), 1_000) == 0
    with pytest.raises(Misuse, match="not retired"):
        storage.retire(Place(bytes(16), 0), 1)


# --- an owner that takes a partition away to ruin a node's name ---


def promise_and_lose_it(bench: Bench) -> bytes:
    """The evidence against a node that promised, and had no time to keep its promise."""
    world: World = bench.world
    bench.bring_into_force()
    other = world.actor("other node", SubjectKind.NODE, ALL_TENANTS)
    bench.accept(other.sign(entries.enrol(other.certificate)))
    place = (token("heart"), 0, 5, seed("parcel"))
    promise = Promise(world.instance, world.node.id, *place, bench.height, bench.time_ms).sign(world.node.key)
    bench.accept(world.doctor.sign(entries.assign(token("heart"), 0, [other.id])))
    bench.time_ms += 60_001
    return entries.broken_promise(promise)


def test_a_partition_taken_away_just_after_a_promise_blames_nobody() -> None:
    bench = Bench()
    bench.play((bench.world.doctor, promise_and_lose_it(bench), "taken-away"))
    assert reputation.score(bench.state, bench.world.node.id) == 100


def test_without_its_tenure_an_honest_node_is_blamed() -> None:
    bench = Bench()
    broken = promise_and_lose_it(bench)
    with without("the tenure of a node that promised"):
        bench.play((bench.world.doctor, broken, None))
    assert reputation.score(bench.state, bench.world.node.id) == 90
