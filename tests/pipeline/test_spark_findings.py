"""What publishers, authorities and operators do, as Spark tells it: openly done and read on, or found and named."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from actors import Hand, give_up, settle, stored
from lake import Lake, Topic, edited, fails, rows, seqs
from pyspark.sql import SparkSession
from stack import WRITE, Stack, wait_until

from tallystick.carriers.log.segments import frames
from tallystick.carriers.storage import Place
from tallystick.demo import disk
from tallystick.identity.folder import Identity
from tallystick.ledger import entries
from tallystick.ledger.block import compose
from tallystick.ledger.contracts.topics import ERASABLE
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.node.node import Node
from tallystick.node.settings import NodeSettings
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.seal import Gap
from tallystick.trust.promise import Anchor


def sealed(hand: Hand, *numbers: int) -> Parcel:
    return hand.seal_batch(pa.RecordBatch.from_pylist(rows(numbers), schema=hand.lane.schema.arrow))


def send(topic: Topic, hand: Hand, *parcels: Parcel) -> None:
    """Store parcels and wait for their anchor."""
    size = topic.size()
    for outcome in hand.send(*parcels):
        stored(outcome)
    wait_until(lambda: topic.size() == size + len(parcels))


def told(lake: Lake, place: Path) -> list[tuple[int, str]]:
    """Offsets and reasons in the quarantine."""
    return sorted((row["offset"], row["reason"]) for row in lake.spark.read.parquet(str(place)).collect())


def quarantine(tmp_path: Path) -> dict[str, str]:
    return {"onBad": "quarantine", "quarantinePath": str(tmp_path / "told")}


# --- done openly: told, and read on ---


def test_a_gap_that_its_publisher_sealed_is_told_and_stops_nothing(lake: Lake, tmp_path: Path) -> None:
    topic = lake.topic("gapped")
    hand = Hand(lake.car, "gapped")
    first, now_ms = sealed(hand, 0), int(lake.stack.clock.now() * 1000)
    gap = hand.lane.seal_gap(Gap(12, now_ms, now_ms, "spool full"), now_ms=now_ms, entropy=lake.stack.entropy.bytes(32))
    send(topic, hand, first, gap, sealed(hand, 1))
    assert seqs(topic.read()) == [0, 1]
    assert seqs(topic.read(**quarantine(tmp_path)).where("seq >= 0")) == [0, 1]
    assert told(lake, tmp_path / "told") == [(1, "gap")]
    (row,) = lake.spark.read.parquet(str(tmp_path / "told")).collect()
    assert "12 rows were dropped: spool full" in row["message"]


def test_erased_rows_are_told_even_by_a_worker_that_had_the_keys(lake: Lake, tmp_path: Path) -> None:
    topic = lake.topic("erasable", flags=ERASABLE)
    truck = lake.member("truck", topic, WRITE)
    topic.publish(rows(range(3)))
    topic.publish(rows(range(10, 13)), by=truck)
    assert seqs(topic.read()) == [0, 1, 2, 10, 11, 12]  # the workers have the keys now
    lake.owner.authority.erase(topic.token, lake.car.identity.principal, [])
    assert seqs(topic.read()) == [10, 11, 12]
    assert seqs(topic.read(**quarantine(tmp_path))) == [10, 11, 12]
    assert told(lake, tmp_path / "told") == [(0, "erased")]


def test_a_value_that_the_query_s_older_schema_cannot_hold_is_found(lake: Lake, tmp_path: Path) -> None:
    topic = lake.topic("widened", "seq int32 not null")
    topic.publish([{"seq": 1}])
    topic.grow("seq int64 not null")
    topic.publish([{"seq": 2}, {"seq": 2**40}])
    assert seqs(topic.read()) == [1, 2, 2**40]
    text = fails(topic.read(schemaVersion="1"))
    assert "does-not-fit: " in text
    assert "start the query anew with the newest version" in text
    assert seqs(topic.read(schemaVersion="1", **quarantine(tmp_path))) == [1]
    assert [reason for _, reason in told(lake, tmp_path / "told")] == ["does-not-fit"]


def test_what_was_retired_is_told_and_stops_a_query_only_where_it_asks(lake: Lake, tmp_path: Path) -> None:
    topic = lake.topic("retired")
    topic.publish_parcels(range(4))
    give_up(lake.owner, lake.stack.node, Place(topic.token, 0), 2)
    assert seqs(topic.read()) == [2, 3]
    assert seqs(topic.read(**quarantine(tmp_path))) == [2, 3]
    [told] = lake.spark.read.parquet(str(tmp_path / "told")).collect()
    assert (told["reason"], told["partition"], told["offset"], told["end"]) == ("retired", 0, 0, 2)
    assert "parcels from offset 0 to 2 were retired before they were read" in fails(topic.read(onBad="strict"))
    text = fails(topic.read(startingOffsets='{"0": 1}'))
    assert "offset 1 of partition 0 was retired, 2 is the first left; start at earliest" in text


# --- on the disk of the node ---


def mended(change: disk.Change) -> Callable[[bytes], bytes]:
    """The change, with checksums that fit."""
    return lambda whole: disk.rewritten(whole, change)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (mended(disk.altered(2)), "altered: partition 0, offset 2"),
        (mended(disk.altered(2, in_header=True)), "altered: "),
        (mended(disk.dropped(2)), "missing: "),
        (mended(disk.swapped(2)), "altered: "),
        (mended(disk.cut(2)), "missing: "),
    ],
    ids=["body altered", "header altered", "dropped", "reordered", "tail cut"],
)
def test_what_the_owner_of_the_disk_did_is_named(lake: Lake, change: Callable[[bytes], bytes], expected: str) -> None:
    topic = _six(lake)
    with edited(lake, topic, change):
        assert expected in fails(topic.read())


def test_a_damaged_disk_is_named_and_in_quarantine_the_rest_is_read(lake: Lake, tmp_path: Path) -> None:
    topic = _six(lake)
    segment = disk.newest_segment(lake.stack.folders.node, topic.token, 0)
    whole = segment.read_bytes()
    body = list(frames(whole, 0))[3].rest

    def write(byte: int) -> None:
        """In the middle of a body, under the running node; the checksum is as it was."""
        with open(segment, "r+b") as file:
            file.seek(whole.index(body) + len(body) // 2)
            file.write(bytes([byte]))

    good = body[len(body) // 2]
    write(good ^ 1)
    try:
        text = fails(topic.read())
        assert "damaged: " in text
        assert "restores the node's log" in text
        assert seqs(topic.read(**quarantine(tmp_path))) == [0, 1, 2, 4, 5]
    finally:
        write(good)
    assert told(lake, tmp_path / "told") == [(3, "damaged")]
    assert seqs(topic.read()) == list(range(6))


def _six(lake: Lake) -> Topic:
    """Six rows, a parcel each, and the closing parcel; made once."""
    name = "on-disk"
    if name not in _topics:
        _topics[name] = lake.topic(name)
        _topics[name].publish_parcels(range(6))
    return _topics[name]


_topics: dict[str, Topic] = {}


# --- on the ledger ---


@contextmanager
def twin(lake: Lake, folder: Path) -> Iterator[None]:
    """A second node with the keys of the first, which is shown to the reader alone."""
    node = Node(folder, lake.stack.clock, NodeSettings(port=0, commit_ms=20, window_ms=5))
    thread = threading.Thread(target=node.run, daemon=True)
    thread.start()
    honest = Identity.load(lake.home)
    replace(honest, node_urls=(node.url,)).write_file()
    try:
        yield
    finally:
        honest.write_file()
        node.server.stop()
        thread.join(20)


def copy_ledger(source: Path, to: Path) -> None:
    """The ledger's files, of a node that is down, to another folder."""
    to.mkdir(exist_ok=True)
    for path in to.glob("ledger.sqlite*"):
        path.unlink()
    for path in source.glob("ledger.sqlite*"):
        shutil.copy(path, to / path.name)


def test_a_ledger_put_back_and_a_forked_one_are_named(tmp_path: Path, spark: SparkSession) -> None:
    with Stack(tmp_path / "other") as stack:
        lake, node = Lake(stack, spark), stack.folders.node
        topic = lake.topic("ledgers")
        topic.publish(rows(range(3)))
        assert seqs(topic.read()) == [0, 1, 2]  # the old copy knows the permit
        stack.stop_node()
        copy_ledger(node, tmp_path / "old")
        stack.start_node()
        topic.publish(rows(range(3, 6)))
        lake.car.view.refresh()  # what the car accepted of this history stands in its next headers
        topic.publish(rows(range(6, 8)))
        settle(stack)
        assert seqs(topic.read()) == list(range(8))
        stack.stop_node()
        shutil.copytree(node, tmp_path / "twin")
        stack.start_node()
        # Yesterday's copy: whoever remembers the newer checkpoint names it.
        copy_ledger(tmp_path / "old", tmp_path / "twin")
        with twin(lake, tmp_path / "twin"):
            assert "rollback: " in fails(lambda: topic.read().collect())
        # A history of its own, grown beyond what was remembered, under the ledger's own key.
        fork(stack, topic, tmp_path / "twin")
        with twin(lake, tmp_path / "twin"):
            assert "split-view: " in fails(lambda: topic.read().collect())
            # Whoever remembers nothing is told by the publishers' headers.
            shutil.rmtree(lake.home / "ledger")
            assert "split-view: " in fails(lambda: topic.read().collect())


def fork(stack: Stack, topic: Topic, folder: Path) -> None:
    """Anchor the partition as it is in the other history, which becomes the longer one."""
    node, now_ms = stack.node, int(stack.clock.now() * 1000)
    place = Place(topic.token, 0)
    partition, size = node.carrier.storage.tree(place), node.carrier.storage.end(place)
    anchor = Anchor(topic.token, 0, size, partition.root(size)).encode_entry()
    ledger = SqliteLedger(str(folder / "ledger.sqlite"), node.trust, node.keys.ledger_key, now_ms)
    number = 0
    while number < 20 or ledger.height <= node.ledger.height:
        junk = entries.junk("fork", 1, 2, time_ms=number)
        subject = node.keys.certificate.subject
        transaction = compose(node.trust.instance, subject, now_ms * 1000 + number, [anchor, junk], node.keys.key)
        ledger.submit(transaction.data, now_ms)
        ledger.flush(now_ms)
        number += 1
    ledger.close()
