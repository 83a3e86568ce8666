"""Streaming a topic into tables: nothing twice and nothing missing, whatever stops in the middle."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from lake import SCHEMA, Lake, rows
from pyspark.errors import PySparkException
from stack import wait_until
from streams import arrived, arrived_seqs, ended, into, run


def batches(out: Path) -> int:
    """How many batches are written, or begun."""
    return len(list(out.glob("batch=*")))


@pytest.mark.long
def test_a_running_query_goes_on_across_a_new_column_and_a_restart(lake: Lake, tmp_path: Path) -> None:
    topic, out, checkpoint = lake.topic("live", partitions=2), tmp_path / "out", tmp_path / "checkpoint"
    first = into(topic.stream(provenance="true"), out, checkpoint).start()  # before anything is published
    topic.publish(rows(range(20)), lanes=2, key="vin", batch_rows_max=5)
    wait_until(lambda: len(arrived(out)) == 20 or not first.isActive, 120)
    assert first.exception() is None
    topic.grow(SCHEMA + ", note string")
    topic.publish([{**row, "note": "new"} for row in rows(range(20, 30))])
    wait_until(lambda: len(arrived(out)) == 30 or not first.isActive, 120)
    first.stop()
    assert first.exception() is None
    assert not any("note" in row for row in arrived(out))  # the query's schema is that of its start
    topic.publish([{**row, "note": "newer"} for row in rows(range(30, 40))])
    run(topic.stream(schemaVersion="1", provenance="true"), out, checkpoint)
    assert arrived_seqs(out) == list(range(40))


def test_a_micro_batch_keeps_its_limits(lake: Lake, tmp_path: Path) -> None:
    topic = lake.topic("limited")
    topic.publish_parcels(range(7))
    run(topic.stream(maxParcelsPerTrigger="3"), tmp_path / "out", tmp_path / "checkpoint")
    assert batches(tmp_path / "out") == 3  # seven rows and the closing parcel
    assert arrived_seqs(tmp_path / "out") == list(range(7))
    start = '{"0": 5}'
    run(topic.stream(maxBytesPerTrigger="1", startingOffsets=start), tmp_path / "bytes", tmp_path / "checkpoint-2")
    assert batches(tmp_path / "bytes") == 3  # at least one parcel each
    assert arrived_seqs(tmp_path / "bytes") == [5, 6]


@pytest.mark.long
def test_a_checkpoint_of_another_topic_or_none_at_all_is_told(lake: Lake, tmp_path: Path) -> None:
    topic, other = lake.topic("checked"), lake.topic("unchecked")
    for one in (topic, other):
        one.publish(rows(range(3)))
    checkpoint = tmp_path / "checkpoint"
    run(topic.stream(), tmp_path / "out", checkpoint)
    with pytest.raises(PySparkException, match="not one of this topic"):
        run(other.stream(), tmp_path / "out", checkpoint)
    topic.publish(rows(range(3, 5)))
    log = checkpoint / "offsets" / "0"
    *front, offset = log.read_text().splitlines()
    ahead = {name: value if name == "topic" else value + 100 for name, value in json.loads(offset).items()}
    for damage, told in (
        ('{"x": 1}', "choose a new checkpointLocation"),
        ("[3]", "choose a new checkpointLocation"),
        (json.dumps(ahead), "rollback: "),
        (offset[:9], "not JSON; the checkpoint folder is damaged"),  # Spark parses it before we see it
    ):
        log.write_text("\n".join([*front, damage]))
        (log.parent / ".0.crc").unlink(missing_ok=True)
        with pytest.raises(PySparkException, match=told):
            run(topic.stream(), tmp_path / "out", checkpoint)


@pytest.mark.long
def test_a_query_whose_logs_were_lost_does_not_begin_anew(lake: Lake, tmp_path: Path) -> None:
    topic, checkpoint = lake.topic("lost-offsets"), tmp_path / "checkpoint"
    topic.publish(rows(range(3)))
    run(topic.stream(checkpointLocation=str(checkpoint)), tmp_path / "out", checkpoint)
    for name in ("offsets", "commits"):
        shutil.rmtree(checkpoint / name)
    with pytest.raises(PySparkException, match=r"offsets is missing: .*; restore it from a copy"):
        run(topic.stream(checkpointLocation=str(checkpoint)), tmp_path / "again", checkpoint)
    run(topic.stream(), tmp_path / "again", checkpoint)  # a reader that is not told of the folder
    assert arrived_seqs(tmp_path / "again") == [0, 1, 2]
    with pytest.raises(PySparkException, match="a batch has no checkpoint"):
        topic.read(checkpointLocation=str(checkpoint)).collect()


def test_a_stream_has_no_end(lake: Lake, tmp_path: Path) -> None:
    writer = lake.topic("endless").stream(endingHeight="4").writeStream
    with pytest.raises(PySparkException, match="a stream has no end"):
        ended(writer.format("noop").option("checkpointLocation", str(tmp_path)).start())
