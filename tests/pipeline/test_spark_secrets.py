"""Keys stay where they are used: a search of everything that Spark ships, logs or shows for keys in any spelling.

The same search of a worker's memory finds them: a search that found nothing anywhere would prove nothing.
"""

from __future__ import annotations

import os
import pickle
import re
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from attribute_actors import Attributes
from lake import Lake, Topic, fails, first_row, rows, seqs
from policy_world import need_pymcl
from pyspark.sql import DataFrame, SparkSession
from searches import descendants, files_under, found, memory_of, read
from streams import ended, into
from test_spark_sink import delivered, write

from tallystick import wire
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
    sought = {"topic key": secrets["topic key"]}
    assert any(found(sought, memory_of(pid)) for pid in workers)


# --- everything that Spark shows or writes, while the driver lends keys ---

CLOSED = b"canary-of-a-closed-column"
POLICY = "role::police"
COLUMNS = Schema.parse("seq int64 not null, place string", groups=(("seq",), ("place",)))


def page(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return bytes(answer.read())
    except HTTPError as error:
        return bytes(error.read())


def shown_by_the_ui(spark: SparkSession) -> bytes:
    """Every page that its pages lead to, and what its REST API tells of jobs, stages, tasks, plans and settings."""
    root = spark.sparkContext.uiWebUrl or ""
    assert root.startswith("http")
    api = f"{root}/api/v1/applications/{spark.sparkContext.applicationId}"
    told = [
        page(f"{api}/{name}")
        for name in (
            "jobs",
            "stages?details=true&withSummaries=true",
            "sql?details=true&planDescription=true&length=1000",
            "environment",
            "allexecutors",
            "storage/rdd",
            "streaming/statistics",
        )
    ]
    seen: set[str] = set()
    left = ["/jobs/", "/SQL/", "/environment/", "/executors/", "/storage/", "/StreamingQuery/"]
    while left and len(seen) < 60:
        path = left.pop()
        seen.add(path)
        told.append(page(root + path))
        for link in re.findall(rb'href="(/[^"#]*(?:id|attempt)=[^"#]*)"', told[-1]):
            target = link.decode().replace("&amp;", "&")
            if target not in seen and not re.search(r"kill|sort|page|threadDump", target):
                left.append(target)
    return b"\n".join(told)


def explained(frame: DataFrame) -> bytes:
    """Every form of its plan."""
    query = frame._jdf.queryExecution()
    machine: Any = frame.sparkSession._jvm
    modes = machine.org.apache.spark.sql.execution.ExplainMode
    told = [query.explainString(modes.fromString(mode)) for mode in ("extended", "codegen", "cost", "formatted")]
    return "\n".join([*told, query.toString(), query.executedPlan().toJSON()]).encode()


def secrets_of(lake: Lake, topic: Topic) -> dict[str, bytes]:
    permit = lake.reader.grants.obtain(Operation.SUBSCRIBE, topic.name).grant
    found: dict[str, bytes] = {
        "closed value": CLOSED,
        "undo token": permit.undo_token,
        "topic key": lake.reader.authority.permit(Operation.SUBSCRIBE, topic.name, 1).private_keys[0][1],
        "attribute key": wire.decode(lake.reader.authority.attribute_key().key, "attribute key")[2],
    }
    for name, session in (("reader", lake.reader), ("writer", lake.car)):
        keys = read_keys(session.identity.home)
        found |= {f"{name}'s signing seed": keys.signing_seed, f"{name}'s sealing seed": keys.sealing_seed}
    assert all(len(secret) >= 16 for secret in found.values())
    return found


@pytest.mark.long
def test_nothing_that_spark_shows_or_writes_holds_what_was_lent_or_is_closed(
    lake: Lake, spark: SparkSession, event_log: Path, tmp_path: Path
) -> None:
    """A batch, a stream, a write and a failure, each with keys that the driver lends."""
    need_pymcl()
    Attributes(lake.stack, lake.owner).give(lake.reader, role="garage")
    topic, onto = lake.topic("shown", COLUMNS), lake.topic("shown-onto", "seq int64 not null")
    topic.publish([{"seq": number, "place": CLOSED.decode()} for number in range(20)], policy={"place": POLICY})
    secrets = secrets_of(lake, topic)

    frame = topic.read(keys="driver", provenance="true")
    joined = frame.join(frame.groupBy("seq").count(), "seq").cache()
    assert joined.where("place IS NULL").count() == 20
    spark.sparkContext.setJobDescription("a shuffle of what is open")
    assert first_row(joined.repartition(2).selectExpr("max(seq)"))[0] == 19
    query = into(topic.stream(keys="driver"), tmp_path / "out", tmp_path / "checkpoint", availableNow=True).start()
    ended(query)
    progress = repr([one.json for one in query.recentProgress]).encode()
    write(onto, topic.read(keys="driver").select("seq"), keys="driver", lanes=str(tmp_path / "lanes"))
    assert len(delivered(onto)) == 20
    failure = fails(topic.read(keys="driver", closed="error")).encode()

    places = {
        "plans": explained(frame) + explained(joined),
        "pages": shown_by_the_ui(spark),
        "event log": files_under(event_log),
        "progress": progress,
        "checkpoint": files_under(tmp_path / "checkpoint"),
        "lanes": files_under(tmp_path / "lanes"),
        "local disks": files_under(event_log / "local"),
        "failure": failure,
        "settings": repr(spark.sparkContext.getConf().getAll()).encode(),
        "processes": b"".join(
            read(pid, "cmdline") + read(pid, "environ") for pid in [os.getpid(), *descendants(os.getpid())]
        ),
    }
    assert {place: found(secrets, data) for place, data in places.items() if found(secrets, data)} == {}
    # Each place was looked at while something was there.
    assert b"do not satisfy the policy" in failure
    assert topic.token.hex().encode() in places["checkpoint"]
    for place, sign in {
        "plans": b"tally",
        "pages": b"do not satisfy the policy",
        "event log": b"a shuffle of what is open",
        "progress": b"numInputRows",
        "lanes": b"TLY",
        "processes": b"tallystick.pipeline.daemon",
    }.items():
        assert sign in places[place], place
    assert len(places["local disks"]) > 100
