"""Keys stay where they are used: a search of everything that Spark ships, logs or shows for keys in any spelling.

The same search of a worker's memory finds them: a search that found nothing anywhere would prove nothing.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path

from lake import Lake, rows, seqs
from pyspark.sql import SparkSession
from searches import descendants, files_under, found, memory_of, read

from tallystick.identity.folder import read_keys
from tallystick.pipeline.columns import spark_schema
from tallystick.pipeline.options import Options
from tallystick.pipeline.source import BatchReader, TallyDataSource
from tallystick.record.schema import Schema
from tallystick.trust.permit import Operation


def test_no_key_is_in_plans_the_event_log_slices_or_command_lines(
    lake: Lake, spark: SparkSession, event_log: Path
) -> None:
    topic = lake.topic("secret")
    topic.publish(rows(range(100)))
    keys = read_keys(lake.home)
    signing, sealing = keys.signing_seed, keys.sealing_seed
    grant = lake.reader.authority.permit(Operation.SUBSCRIBE, "secret", 1)
    secrets = {"signing seed": signing, "sealing seed": sealing, "topic key": grant.private_keys[0][1]}

    frame = topic.read(provenance="true")
    assert seqs(frame) == list(range(100))
    shown = frame._jdf.queryExecution().toString() + frame._jdf.queryExecution().executedPlan().treeString()
    assert found(secrets, shown.encode()) == set()

    pids = list(descendants(os.getpid()))
    for pid in pids:
        assert found(secrets, read(pid, "cmdline") + read(pid, "environ")) == set()

    options = Options.parse(topic.options())
    reader = BatchReader(options, spark_schema(Schema.parse("seq int64"), False))
    shipped = pickle.dumps([reader, TallyDataSource(topic.options()), [one.value for one in reader.partitions()]])
    assert found(secrets, shipped) == set()
    assert topic.token in shipped

    logged = files_under(event_log)
    assert found(secrets, logged) == set()
    assert b"SparkListenerSQLExecutionStart" in logged

    workers = [pid for pid in pids if b"tallystick.pipeline.daemon" in read(pid, "cmdline")]
    assert "topic key" in set.union(*(found(secrets, memory_of(pid)) for pid in workers))
