"""A write with what the driver lends: tasks seal without the identity's folder, hold nothing that opens, and what ends
a loan ends the write by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lake import Lake, Topic, fails, rows, seqs
from pyspark import cloudpickle
from searches import files_under, found
from test_spark_sink import delivered, delivered_seqs, frame, lanes, stream, write

from tallystick.errors import Refused
from tallystick.identity.folder import read_keys
from tallystick.pipeline.columns import spark_schema
from tallystick.pipeline.explain import TallyFailed
from tallystick.pipeline.loan import EPOCH_S, _Lender
from tallystick.pipeline.session import Channel
from tallystick.pipeline.sink import BatchSink, batch_sink
from tallystick.record.schema import Schema
from tallystick.runtime.sources import ManualClock
from tallystick.trust.permit import Operation

LOCAL = Channel("local[2]")


def lent(topic: Topic, folder: Path, **options: Any) -> BatchSink:
    """The writer of a job whose tasks have no folder."""
    home = topic.lake.car.identity.home
    given = {"home": str(home), "topic": topic.name, "keys": "driver", "lanes": str(folder), **options}
    schema = spark_schema(Schema.parse("vin string, seq int64 not null, speed float32"), False)
    return batch_sink(given, schema, False, LOCAL)


def sealed(sink: BatchSink, *numbers: int) -> Any:
    """What a task returns for these rows; it has no `home`."""
    away = cloudpickle.loads(cloudpickle.dumps(sink))
    away._options = replace(away._options, home="nowhere")
    return away.write(iter([pa.RecordBatch.from_pylist(rows(numbers))]))


def test_a_task_seals_with_what_was_lent_and_the_driver_commits(lake: Lake, tmp_path: Path) -> None:
    topic = lake.topic("lent-onto")
    sink = lent(topic, tmp_path)
    parts = [sealed(sink, 0, 1), sealed(sink, 2)]
    sealed(sink, 99)  # an attempt that Spark does not take
    assert delivered(topic) == []
    sink.commit(parts)
    assert delivered(topic) == rows(range(3))
    assert len(lanes(topic)) == 2  # attempts one after the other share a lane; the other is the driver's
    assert not list((lake.car.identity.home / "spark").glob("lanes/*" + sink._options.folder("lanes").name))
    own = replace(sink._options, home="nowhere")
    with pytest.raises(TallyFailed, match="no identity is here"):
        BatchSink(own, sink._token, None).write(iter([pa.RecordBatch.from_pylist(rows([4]))]))


def test_what_is_lent_opens_nothing_and_lies_on_no_disk(lake: Lake, tmp_path: Path) -> None:
    topic, home = lake.topic("lent-little"), lake.car.identity.home
    sink = lent(topic, tmp_path)
    message = sealed(sink, *range(10))
    sink.commit([message])
    keys = read_keys(home)
    granted = lake.car.grants.obtain(Operation.ADVERTISE, topic.name)
    readers = lake.reader.authority.permit(Operation.SUBSCRIBE, topic.name, 1)
    secrets = {
        "signing seed": keys.signing_seed,
        "sealing seed": keys.sealing_seed,
        "undo token": granted.grant.undo_token,
        "topic key": readers.private_keys[0][1],
    }
    assert all(secrets.values())
    assert found(secrets, cloudpickle.dumps(sink)) == {"signing seed"}
    assert found(secrets, repr(sink._loan).encode() + cloudpickle.dumps(message)) == set()
    disk = files_under(tmp_path)
    assert b"TLY" in disk, "the lane is here"
    assert found(secrets, disk) == set()


@pytest.mark.long
def test_a_frame_and_a_stream_are_written_with_loans(lake: Lake, tmp_path: Path) -> None:
    source, topic = lake.topic("lent-from"), lake.topic("lent-both", partitions=2)
    given = {"keys": "driver", "lanes": str(tmp_path / "lanes")}
    write(topic, frame(lake, 0, 100), **given)
    write(topic, frame(lake, 100, 200), **given)
    source.publish_parcels(range(200, 206))
    stream(topic, source.stream(maxParcelsPerTrigger="2"), tmp_path / "checkpoint", **given)
    assert delivered(topic) == rows(range(206))
    assert seqs(topic.read()) == list(range(206))
    assert len(lanes(topic)) <= 4  # two cores, and a driver's for each folder of lists
    assert 'option keys: "mine" is unknown' in fails(lambda: write(topic, frame(lake, 0, 1), keys="mine"))


def test_a_permit_that_ends_ends_the_write_and_the_next_loan_goes_on(lake: Lake, tmp_path: Path) -> None:
    topic = lake.topic("lent-ended")
    sink = lent(topic, tmp_path)
    held = lake.car.grants.obtain(Operation.ADVERTISE, topic.name)
    sealed(sink, 0)
    lake.car.node.undo(lake.car.authority.undo(held.grant.permit, held.grant.undo_token).encode())
    with pytest.raises(TallyFailed, match="permit"):
        sealed(sink, 1)
    again = lent(topic, tmp_path)
    again.commit([sealed(again, 5)])
    assert delivered_seqs(topic) == [5]


def test_what_the_driver_did_not_lend_is_not_to_be_had(lake: Lake) -> None:
    clock = ManualClock()
    lender = _Lender(lake.car.grants.obtain(Operation.ADVERTISE, lake.topic("lent-once").name).grant, clock)
    assert lender.permit(Operation.ADVERTISE, "lent-once").permit
    with pytest.raises(Refused, match="the permit that the driver lent has ended"):
        lender.permit(Operation.ADVERTISE, "lent-once")
    assert lender.keys(b"", 0) is None  # an epoch may have begun by our clock alone
    clock.advance(EPOCH_S / 2)
    assert lender.keys(b"", 0) is None
    clock.advance(EPOCH_S)
    with pytest.raises(Refused, match="a new epoch began after the driver lent its keys"):
        lender.keys(b"", 0)
