"""Frames sealed onto topics: what is written is read, once; and what cannot be written is said before anything is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from actors import give_up, read_anchored
from lake import Lake, Topic, fails, first_row, rows, seqs
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, lit
from searches import descendants, files_under, found, read
from stack import WRITE
from streams import arrived_seqs, ended
from streams import run as run_into_tables
from test_spark_tampering import flipped, only

from tallystick.carriers.storage import Place
from tallystick.client.writes import Committer
from tallystick.errors import Misuse
from tallystick.identity.folder import read_keys
from tallystick.parcel.commit import CommitList, WrittenRun
from tallystick.parcel.parcel import Parcel
from tallystick.pipeline.session import Channel
from tallystick.pipeline.sink import SinkOptions
from tallystick.pipeline.source import TallyDataSource


def frame(lake: Lake, first: int, end: int, tasks: int = 2) -> DataFrame:
    numbers = lake.spark.range(first, end, 1, tasks).withColumnRenamed("id", "seq")
    return numbers.selectExpr("concat('V', seq % 7) AS vin", "seq", "CAST(seq / 2 AS float) AS speed")


def write(topic: Topic, rows: DataFrame, **options: Any) -> None:
    options = {"home": str(topic.lake.car.identity.home), **options}
    rows.write.format("tally").options(**options).mode("append").save(topic.name)


def stream(topic: Topic, rows: DataFrame, checkpoint: Path, **options: Any) -> None:
    """Everything that is there now, onto the topic."""
    options = {"home": str(topic.lake.car.identity.home), "topic": topic.name, **options}
    writer = rows.writeStream.format("tally").options(**options)
    ended(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start())


def delivered(topic: Topic) -> list[dict[str, Any]]:
    """All rows that are anchored, as a subscriber gets them."""
    with topic.lake.reader.subscriber(topic.name) as subscriber:
        return read_anchored(subscriber)


def delivered_seqs(topic: Topic) -> list[int]:
    return [row["seq"] for row in delivered(topic)]


def lanes(topic: Topic) -> set[bytes]:
    """The lanes that lie in the topic."""
    found = set()
    with topic.lake.reader.subscriber(topic.name) as subscriber:
        for partition in range(subscriber.partitions):
            size = topic.size(partition)
            fetched = subscriber._fetcher.headers(partition, 0, size, size) if size else None
            found |= {Parcel.decode_front(one).header.lane for one in fetched.parcels} if fetched else set()
    return found


def test_a_frame_becomes_rows_of_a_topic(lake: Lake) -> None:
    topic = lake.topic("written", partitions=2)
    write(topic, frame(lake, 0, 1000, 3))
    assert delivered(topic) == rows(range(1000))
    topic.publish(rows(range(1000, 1003)))
    write(topic, frame(lake, 1003, 1010))
    assert delivered_seqs(topic) == list(range(1010))
    found = topic.read(provenance="true").collect()
    assert sorted(row["seq"] for row in found) == list(range(1010))
    assert {row["_publisher"] for row in found} == {lake.car.identity.principal.hex()}
    by_parcel = {(row["_partition"], row["_offset"], row["_parcel"], row["_leaf"]) for row in found}
    assert len(by_parcel) == 1010  # each row tells the place of its own parcel
    partition, offset, parcel, _ = min(by_parcel)
    with lake.reader.subscriber("written") as subscriber:
        assert subscriber.find(partition, offset)[0].header.hash.hex() == parcel


def test_an_empty_frame_and_empty_partitions_commit_nothing(lake: Lake) -> None:
    topic = lake.topic("hollow")
    write(topic, frame(lake, 0, 0))
    assert topic.size() == 0
    write(topic, frame(lake, 0, 6, 2).where("seq = 4"))
    assert delivered_seqs(topic) == [4]


def test_a_job_that_has_a_name_is_done_once(lake: Lake) -> None:
    topic = lake.topic("nightly")
    for _ in range(2):
        write(topic, frame(lake, 0, 10), write="2026-11-15")
    write(topic, frame(lake, 10, 12), write="2026-11-16")
    assert delivered_seqs(topic) == list(range(12)) == seqs(topic.read())


@pytest.mark.long
def test_a_stream_from_topic_to_topic_is_one_lane_a_task_at_once(lake: Lake, tmp_path: Path) -> None:
    source, topic = lake.topic("from"), lake.topic("onto", partitions=2)
    source.publish_parcels(range(6))
    stream(topic, source.stream(maxParcelsPerTrigger="2"), tmp_path / "checkpoint")
    assert delivered_seqs(topic) == list(range(6)) == seqs(topic.read())
    source.publish_parcels(range(6, 8))
    stream(topic, source.stream(), tmp_path / "checkpoint")
    assert delivered(topic) == rows(range(8))
    assert len(lanes(topic)) <= 3  # two cores, and the driver's; not one for each of five batches
    # A query elsewhere is another write, though its batches have the same numbers.
    stream(topic, source.stream(), tmp_path / "another")
    assert delivered_seqs(topic) == sorted([*range(8), *range(8)])


@pytest.mark.long
def test_writes_come_into_a_table_as_a_stream_with_their_commit(lake: Lake, tmp_path: Path) -> None:

    topic, out, checkpoint = lake.topic("through", partitions=2), tmp_path / "out", tmp_path / "checkpoint"
    for first in (0, 10, 20):
        write(topic, frame(lake, first, first + 10))
        run_into_tables(topic.stream(maxParcelsPerTrigger="2"), out, checkpoint)
        assert arrived_seqs(out) == list(range(first + 10))
    again = tmp_path / "again"
    run_into_tables(topic.stream(), again, tmp_path / "checkpoint-2")
    assert arrived_seqs(again) == list(range(30))


def test_an_attempt_that_failed_counts_for_nothing(lake: Lake) -> None:
    topic = lake.topic("failed")

    def break_off(batches: Any) -> Any:
        yield from batches
        raise RuntimeError("in the last moment")

    spoilt = frame(lake, 0, 20_000, 1)
    with pytest.raises(PySparkException, match="in the last moment"):
        write(topic, spoilt.mapInArrow(break_off, spoilt.schema))
    assert delivered(topic) == []
    write(topic, frame(lake, 0, 5))  # in the lane that the failed attempt left
    assert delivered_seqs(topic) == list(range(5)) == seqs(topic.read())


def test_types_of_spark_become_those_of_the_topic(lake: Lake) -> None:
    schema = "seq int64 not null, small uint8, big uint64, at timestamp[ms, UTC], tags list<string>, note string"
    topic = lake.topic("typed", schema)
    values = "(1, 200S, 18446744073709551615BD, TIMESTAMP '2026-05-01 12:00:00.250Z', array('a', NULL))"
    data = lake.spark.sql(
        f"SELECT CAST(a AS bigint) seq, b small, CAST(c AS decimal(20,0)) big, d at, e tags FROM VALUES {values}"
        " AS t(a, b, c, d, e)"
    )
    write(topic, data)
    row = delivered(topic)[0]
    assert (row["small"], row["big"], row["tags"], row["note"]) == (200, 2**64 - 1, ["a", None], None)
    assert topic.read().select(*data.columns).collect() == data.collect()
    for wrong, told in (
        (data.withColumn("small", lit(300).cast("smallint")), "does-not-fit: a value does not fit the topic"),
        (data.withColumn("at", col("at") + lit(1).cast("interval second") / 3000), "does-not-fit"),
        (data.withColumn("seq", lit(None).cast("bigint")), "seq"),
    ):
        assert told in fails(lambda wrong=wrong: write(topic, wrong))
    assert len(delivered(topic)) == 1


def test_what_cannot_be_written_is_said_first(lake: Lake, tmp_path: Path) -> None:
    topic = lake.topic("strict")
    good = frame(lake, 0, 3)
    refused: list[tuple[Any, str]] = [
        (lambda: write(topic, good.withColumn("color", lit("red"))), 'column "color" is not in the topic; it has vin'),
        (lambda: write(topic, good.withColumn("speed", lit("fast"))), 'column "speed": float expected, found string'),
        (lambda: write(topic, good.drop("seq")), 'column "seq" is missing, and the topic allows no null there'),
        (lambda: write(topic, good, kolumns="1"), 'option "kolumns" is unknown to the sink'),
        (lambda: write(topic, good, home=str(tmp_path)), "no identity is here"),
        (lambda: write(topic, good, home=str(lake.home)), "no-right: "),
        (lambda: good.write.format("tally").mode("append").save("strict"), 'option "home" is missing'),
        (
            lambda: good.write.format("tally").option("home", str(lake.home)).mode("overwrite").save("strict"),
            "a topic cannot be overwritten: what was anchored stays",
        ),
        (
            lambda: good.write.format("tally").option("home", str(lake.home)).mode("append").save("nowhere"),
            'topic "nowhere" is unknown',
        ),
    ]
    for attempt, message in refused:
        assert message in fails(attempt), message
    assert topic.size() == 0


def test_a_checkpoint_elsewhere_needs_a_folder_for_the_lists(lake: Lake, tmp_path: Path) -> None:

    given = {"home": "h", "topic": "t", "checkpointLocation": "s3a://bucket/query"}
    with pytest.raises(Misuse, match="is not a folder of this machine"):
        SinkOptions.parse(given).lists()
    assert SinkOptions.parse({**given, "writes": "shared/lists"}).lists() == Path("shared/lists")
    given["checkpointLocation"] = f"file:{tmp_path}/a%20b"
    assert SinkOptions.parse(given).lists() == tmp_path / "a b" / "tally"


def test_what_was_retired_before_it_was_read_is_told(lake: Lake, tmp_path: Path) -> None:
    topic = lake.topic("gone")
    for first in (0, 4):
        write(topic, frame(lake, first, first + 4, 1))
    give_up(lake.owner, lake.stack.node, Place(topic.token, 0), 1)  # the first write's rows, not its commit parcel
    told = str(tmp_path / "told")
    assert seqs(topic.read(onBad="quarantine", quarantinePath=told)) == [4, 5, 6, 7]
    found = lake.spark.read.parquet(told).orderBy("end").collect()
    assert [(row["reason"], row["end"]) for row in found] == [("retired", None), ("retired", 1)]
    assert seqs(topic.read()) == [4, 5, 6, 7]


# --- commit parcels that lie, and nodes that do ---


def test_a_commit_parcel_that_lies_is_named_and_nothing_of_it_read(lake: Lake, tmp_path: Path) -> None:
    topic = lake.topic("lied")
    thief = lake.member("sink-thief", topic, WRITE)
    write(topic, frame(lake, 0, 4, 1))
    written = first_row(topic.read(provenance="true"))
    with lake.reader.subscriber("lied") as subscriber:
        parcel = subscriber.find(0, written["_offset"])[0].header

    run = WrittenRun(parcel.lane, 0, parcel.sequence, ((written["_offset"], 1),), parcel.hash)
    assert parcel.write is not None
    Committer(thief, "lied", tmp_path / "lists").commit(CommitList(topic.token, *parcel.write, (run,)))
    assert "bad-commit: " in fails(topic.read())
    place = str(tmp_path / "bad")
    assert seqs(topic.read(onBad="quarantine", quarantinePath=place)) == list(range(4))
    found = lake.spark.read.parquet(place).collect()
    assert [(row["reason"], "another publisher" in row["message"]) for row in found] == [("bad-commit", True)]


def test_a_node_that_alters_rows_of_a_write_is_named(lake: Lake) -> None:

    topic = lake.topic("bent")
    write(topic, frame(lake, 0, 4, 1))
    at = first_row(topic.read(provenance="true"))["_offset"]
    with lake.lying(only(False, lambda fetched: flipped(fetched, at, -1))):
        assert "altered: " in fails(topic.read())
    with lake.lying(only(True, lambda fetched: flipped(fetched, at, 200))):
        assert "altered: " in fails(topic.read())
    assert seqs(topic.read()) == list(range(4))


def test_no_key_of_the_writer_is_in_plans_the_event_log_messages_or_command_lines(lake: Lake, event_log: Path) -> None:

    topic, home = lake.topic("quiet"), lake.car.identity.home
    keys = read_keys(home)
    secrets = {"signing seed": keys.signing_seed, "sealing seed": keys.sealing_seed}
    assert found(secrets, files_under(home)) == set(secrets)  # the search finds them where they lie
    data = frame(lake, 0, 100)
    write(topic, data)
    assert delivered_seqs(topic) == list(range(100))
    for pid in descendants(os.getpid()):
        assert found(secrets, read(pid, "cmdline") + read(pid, "environ")) == set()
    source = TallyDataSource.over(Channel("local[2]"))({"home": str(home), "topic": "quiet"})
    assert found(secrets, cloudpickle.dumps([source, source.writer(data.schema, False)])) == set()
    for folder, known in ((event_log, b"SparkListenerSQLExecutionStart"), (home / "spark", b"TLY")):
        kept = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
        assert known in kept
        assert found(secrets, kept) == set()
