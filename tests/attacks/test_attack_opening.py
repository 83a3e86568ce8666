"""Little that opens to much: an entitled publisher's parcel of 8.6 kB opened to 250 MiB, and one `poll` to a range
of them. A frame is judged after it is decrypted and before it is decompressed, and a round has a room."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from actors import SCHEMA, Hand, Topic, anchored, stored
from hostile import frame
from stack import Stack, wait_until
from without import without

from tallystick import wire
from tallystick.client.reader import FoundError
from tallystick.client.settings import SubscriberSettings
from tallystick.client.subscribe import Received, Subscriber
from tallystick.crypto.merkle import leaf_hash
from tallystick.errors import Misuse
from tallystick.ledger import entries
from tallystick.parcel.header import COUNT_MAX, ParcelKind, lane_partition
from tallystick.parcel.parcel import RAW_BYTES_FLOOR, NoRoom, Parcel, Room, decode_section
from tallystick.parcel.seal import Lane, Packed, pack
from tallystick.record.batch import Batch, to_message
from tallystick.record.codec import LZ4, ZSTD, compress, compress_parts
from tallystick.record.schema import Schema

MIB = 1 << 20
FRAME_BYTES = 24  # before a section's content
RATIO, ROOM = "the bound on what a frame opens to", "the room of a round"


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topic]:
    with Stack(tmp_path_factory.mktemp("opening")) as stack:
        yield Topic(stack, "acme")


def of_size(schema: Schema, number: int, size: int) -> Batch:
    """One row of about `size` bytes that are all alike."""
    return Batch.of(schema, pa.RecordBatch.from_pylist([{"vin": "0" * size, "seq": number}], schema=schema.arrow))


def sealed(hand: Hand, number: int, size: int = 1) -> Parcel:
    """A parcel whose row compresses as well as zstd can, whatever a publisher's own code would do."""
    batch = of_size(hand.lane.schema, number, size)
    message = to_message(batch.data)
    packed = Packed(batch, ((batch, ZSTD, message.size, compress_parts(message, ZSTD)),))
    now_ms = int(hand.session.clock.now() * 1000)
    return hand.lane.seal(packed, now_ms=now_ms, entropy=hand.session.entropy.bytes(32))


def gap(hand: Hand, plaintext: bytes) -> Parcel:
    """One whose frame is what the publisher likes."""
    now_ms, entropy = int(hand.session.clock.now() * 1000), hand.session.entropy.bytes(32)
    said = plaintext[FRAME_BYTES:]
    return hand.lane._seal(ParcelKind.GAP, [plaintext], lambda _, salts: leaf_hash(salts + said), 0, now_ms, entropy)


def send(topic: Topic, hand: Hand, *parcels: Parcel) -> None:
    before = anchored(topic.reader.view, topic.token)
    for outcome in hand.send(*parcels):
        stored(outcome)
    wait_until(lambda: anchored(topic.reader.view, topic.token) == before + len(parcels))


def beside(topic: Topic, name: str, *parcels: Any, partitions: int = 1) -> Topic:
    """Another topic, with a parcel for each size, or each that a function seals."""
    other = topic.beside(name, partitions=partitions)
    hand = Hand(topic.car, name)
    made = [one(hand) if callable(one) else sealed(hand, at, one) for at, one in enumerate(parcels)]
    send(other, hand, *made)
    return other


def numbers(received: list[Received]) -> list[int]:
    return [row["seq"] for one in received for row in one.to_pylist()]


def reader(topic: Topic, **settings: Any) -> Subscriber:
    return topic.reader.subscriber(topic.name, **{"on_bad": "report", "wait_ms": 50, **settings})


def rounds(subscriber: Subscriber, count: int) -> list[list[int]]:
    """The rows of each round until so many came."""
    found: list[list[int]] = []
    while sum(map(len, found)) < count:
        found.append(numbers(subscriber.poll()))
    return found


# --- one parcel ---


@pytest.fixture(scope="module")
def bombed(topic: Topic) -> Topic:
    """An honest row, one of 12 MiB in some hundred bytes, and another honest one."""
    return beside(topic, "bombed", 1, 12 * MIB, 1)


def test_a_bomb_is_found_and_not_opened(bombed: Topic) -> None:
    with reader(bombed) as subscriber:
        assert rounds(subscriber, 2) == [[0, 2]]
        (finding,) = subscriber.findings
        assert (finding.reason, finding.offset, finding.publisher) == (
            "oversized",
            1,
            bombed.car.identity.principal,
        )
        assert "times as many expected" in finding.message
    with reader(bombed, on_bad="fail") as subscriber:
        assert numbers(subscriber.poll()) == [0]
        with pytest.raises(FoundError) as caught:
            subscriber.poll()
        assert caught.value.reason == "oversized"


def test_without_the_ratio_some_hundred_bytes_are_twelve_mebibytes(bombed: Topic) -> None:
    with without(RATIO), reader(bombed) as subscriber:
        (_, bomb, _) = subscriber.poll()
        verified, _ = subscriber.find(0, 1)
        assert len(verified.parcel.body) * 1000 < 12 * MIB < bomb.batch.data.nbytes


def test_rows_cost_room_even_where_their_columns_do_not() -> None:
    """A million rows of one bit are salts, leaves and objects of some hundred mebibytes."""
    section = memoryview(frame(b"", count=COUNT_MAX))
    with pytest.raises(NoRoom):
        decode_section(section, Room(60 * MIB))
    assert decode_section(section, Room(80 * MIB)).count == COUNT_MAX


def test_what_no_list_can_be_is_not_unpacked(topic: Topic) -> None:
    """Gaps and lists of writes are short, so their frames have little room."""
    bomb = frame(bytes(compress(bytes(4 * MIB), ZSTD)), codec=ZSTD, count=0, raw_bytes=4 * MIB)
    other = beside(topic, "gaps", lambda hand: gap(hand, bomb), 1)
    with reader(other) as subscriber:
        assert rounds(subscriber, 1) == [[1]]
        assert [one.reason for one in subscriber.findings] == ["oversized"]


def test_an_honest_publisher_s_constants_are_always_opened(topic: Topic) -> None:
    """With parcels as large as it likes, and the codec that packs constants best."""
    other = topic.beside("constant")
    settings: dict[str, Any] = {"codec": "zstd", "parcel_bytes_max": 64 * MIB, "batch_rows_max": COUNT_MAX}
    packed = pack(of_size(Schema.parse("vin string, seq int64 not null", version=1), 0, RAW_BYTES_FLOOR + 1), "zstd")
    assert [codec for _, codec, _, _ in packed.groups] == [LZ4]
    with topic.car.publisher(other.name, acks="anchored", anchor_check_s=0.02, **settings) as publisher:
        publisher.send([{"vin": "0" * (RAW_BYTES_FLOOR + 1), "seq": 7}])
        assert publisher.flush(30) == 0
    with reader(other) as subscriber:
        assert rounds(subscriber, 1) == [[7]]
        assert subscriber.findings == []


# --- a round ---


@pytest.fixture(scope="module")
def range_(topic: Topic) -> Topic:
    """Twelve parcels of a mebibyte each, in some kilobytes."""
    return beside(topic, "range", *[MIB] * 12)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_round_opens_what_fits_and_the_next_goes_on(range_: Topic, threads: int) -> None:
    """Threads that open ahead count in the sum."""
    settings = {"opened_bytes_max": 5 * MIB, "threads": threads, "handed_over_bytes_min": 0}
    with reader(range_, **settings) as subscriber:
        found = rounds(subscriber, 12)
        assert list(chain(*found)) == list(range(12))
        assert all(1 <= len(one) <= 4 for one in found)
        assert subscriber.positions() == {0: 12}
        assert subscriber.findings == []


def test_offsets_are_committed_up_to_what_was_returned(range_: Topic) -> None:
    with range_.reader.subscriber(range_.name, group="bounded", opened_bytes_max=5 * MIB) as subscriber:
        got: list[int] = []
        wait_until(lambda: bool(got.extend(numbers(subscriber.poll(50))) or got))
        subscriber.commit()
    with range_.reader.subscriber(range_.name, group="bounded") as subscriber:
        rest: list[int] = []
        wait_until(lambda: len(rest.extend(numbers(subscriber.poll(50))) or rest) + len(got) >= 12)
        assert got + rest == list(range(12))


def test_without_the_room_one_round_opens_the_whole_range(range_: Topic) -> None:
    with without(ROOM), reader(range_, opened_bytes_max=5 * MIB) as subscriber:
        assert rounds(subscriber, 12) == [list(range(12))]


def test_a_parcel_that_never_fits_is_found(range_: Topic) -> None:
    with reader(range_, opened_bytes_max=MIB // 2) as subscriber:
        wait_until(lambda: subscriber.poll() == [] and len(subscriber.findings) == 12)
        assert {one.reason for one in subscriber.findings} == {"oversized"}
        assert "raise opened_bytes_max" in subscriber.findings[0].message


def test_a_partition_that_fills_every_round_keeps_no_other_waiting(topic: Topic) -> None:
    other = topic.beside("two", partitions=2)
    hand = Hand(topic.car, "two")
    full, small = (lane_of(hand, partition) for partition in (0, 1))
    for lane, sizes in ((full, [MIB] * 4), (small, [1])):
        hand.lane = lane
        for outcome in hand.send(*(sealed(hand, at, size) for at, size in enumerate(sizes))):
            stored(outcome)
    wait_until(lambda: [anchored(topic.reader.view, other.token, number) for number in (0, 1)] == [4, 1])
    with reader(other, opened_bytes_max=3 * MIB // 2, fetch_bytes_max=1) as subscriber:
        assert {one.partition for _ in range(2) for one in subscriber.poll()} == {0, 1}


def lane_of(hand: Hand, partition: int) -> Lane:
    return next(lane for lane in iter(hand.open_lane, None) if lane_partition(lane.lane, 2) == partition)


def test_columns_that_older_rows_lack_cost_room(topic: Topic) -> None:
    """A million rows of a byte become a million of a thousand columns once the schema has grown."""
    other = topic.beside("grown")
    hand = Hand(topic.car, "grown")
    many = pa.RecordBatch.from_pylist([{"vin": "", "seq": 1}] * 10_000, schema=hand.lane.schema.arrow)
    send(other, hand, hand.seal_batch(many))
    owner, identity = topic.owner, topic.owner.identity
    wide = ", ".join(f"c{number} int64" for number in range(100))
    proposed = Schema.parse(f"{SCHEMA}, {wide}", version=2).encode()
    version, digest = owner.authority.propose_schema(other.token, proposed)
    owner.author.write(entries.schema(identity.instance, other.token, version, digest, identity.signing_key))
    wait_until(lambda: len(topic.reader.authority.schemas(other.token)) == 2)
    with reader(other, opened_bytes_max=4 * MIB) as subscriber:
        assert subscriber.poll() == []
        assert [one.reason for one in subscriber.findings] == ["oversized"]
    with reader(other) as subscriber:
        (received,) = subscriber.poll()
        assert received.batch.data.nbytes // MIB >= 7


# --- Spark's tasks, without Spark ---


def task_reads(topic: Topic, folder: Path, **more: str) -> tuple[list[list[int]], list[tuple[int, str]]]:
    """The rows of each batch that a task hands over, and what it found: (offset, reason)."""
    pytest.importorskip("pyspark")
    from tallystick.pipeline import task
    from tallystick.pipeline.access import admit
    from tallystick.pipeline.columns import Projection, spark_schema
    from tallystick.pipeline.options import Options
    from tallystick.pipeline.plan import Planner

    given = {"home": str(topic.reader.identity.home), "topic": topic.name, "onBad": "quarantine"}
    options = Options.parse({**given, "quarantinePath": str(folder), **more})
    with closing(admit(options.home, options.topic)) as access:
        planner = Planner(options, access)
        anchors = planner.anchors()
        tasks = planner.plan(*planner.edges(anchors), anchors)
        wanted = Projection(spark_schema(access.schemas[-1], provenance=False))
    batches = [batch for slices in tasks for batch in task.read(slices, options, wanted)]
    told = [pq.read_table(path).to_pylist()[0] for path in sorted(folder.glob("*.parquet"))]
    return [one.column("seq").to_pylist() for one in batches], [(one["offset"], one["reason"]) for one in told]


def test_a_task_finds_the_bomb(bombed: Topic, tmp_path: Path) -> None:
    assert task_reads(bombed, tmp_path) == ([[0, 2]], [(1, "oversized")])


def test_a_task_hands_over_what_fits(range_: Topic, tmp_path: Path) -> None:
    batches, told = task_reads(range_, tmp_path, openedBytesMax=str(5 * MIB))
    assert (list(chain(*batches)), told) == (list(range(12)), [])
    assert max(map(len, batches)) <= 4
    batches, told = task_reads(range_, tmp_path, openedBytesMax=str(MIB // 2))
    assert (batches, [reason for _, reason in told]) == ([], ["oversized"] * 12)


def test_without_the_room_a_task_holds_the_whole_range(range_: Topic, tmp_path: Path) -> None:
    with without(ROOM):
        assert task_reads(range_, tmp_path, openedBytesMax=str(5 * MIB)) == ([list(range(12))], [])


def test_a_gap_that_says_nothing_is_its_publisher_s_doing(topic: Topic, tmp_path: Path) -> None:
    """The node showed what was anchored, so nothing is altered."""
    said = frame(wire.encode(["no gap"]), count=0)
    other = beside(topic, "said", lambda hand: gap(hand, said), 1)
    assert task_reads(other, tmp_path) == ([[1]], [(0, "cannot-open")])
    with reader(other) as subscriber:
        assert rounds(subscriber, 1) == [[1]]
        assert [one.reason for one in subscriber.findings] == ["cannot-open"]


def test_a_room_of_nothing_is_a_mistake() -> None:
    with pytest.raises(Misuse, match="opened_bytes_max"):
        SubscriberSettings(opened_bytes_max=0)
