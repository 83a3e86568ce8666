"""A driver of its own: a process has one Spark context, and this one is on a cluster, or is to be killed.

In comes one JSON object; out go files in `folder`: `started-…` as tasks begin, `shown` with what Spark's page says, and
`rows` or `error` at the end. Identities are named by paths relative to this process: executors run elsewhere, and have
none.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from lake import build
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from streams import into

from tallystick.errors import TallystickError
from tallystick.pipeline.jobs import audit, ingest, prove
from tallystick.pipeline.jobs.run import JobRun
from tallystick.pipeline.jobs.warehouse import Warehouse
from tallystick.runtime.sources import SystemClock

Options = dict[str, str]


def through(spark: SparkSession, folder: Path, options: Options, onto: Options, shuffled: int) -> None:
    """From topic to topic, and back: read, shuffle, hold every row until `go` is there, write, read what came of it."""

    def hold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (folder / f"started-{os.getppid()}-{os.getpid()}").touch()
        while not (folder / "go").exists():
            time.sleep(0.05)
        yield from batches

    try:
        frame = read(spark, options)
        held = frame.repartition(shuffled).mapInArrow(hold, frame.schema)
        held.write.format("tally").options(**onto).mode("append").save()
        written = read(spark, {**options, "topic": onto["topic"]})
        _write(folder / "rows", json.dumps(sorted(row["seq"] for row in written.select("seq", "vin").collect())))
    except PySparkException as error:
        _write(folder / "error", str(error))
    _write(folder / "shown", "\n".join(_shown(spark)))


def read(spark: SparkSession, options: Options) -> DataFrame:
    return spark.read.format("tally").options(**options).load()


def jobs(spark: SparkSession, folder: Path, options: Options) -> None:
    """Ingest a topic, prove all of its rows, audit its log; `rows` has the three summaries."""
    run = JobRun(Warehouse(folder / "tables"), SystemClock(), {"out": folder / "proofs"}, Path(options["home"]))
    run.topic = options["topic"]
    _write(folder / "rows", json.dumps([one.run(run) for one in (ingest, prove, audit)]))
    _write(folder / "shown", "\n".join(_shown(spark)))


def refused(spark: SparkSession, folder: Path, options: Options, onto: Options) -> None:
    """Everything that a channel may be too open for; `error` has what was said."""
    columns = ("'V' AS vin", "seq", "CAST(0.5 AS float) AS speed")
    numbers = spark.range(3).withColumnRenamed("id", "seq").selectExpr(*columns)
    coming = spark.readStream.format("rate").load().withColumnRenamed("value", "seq").selectExpr(*columns)
    lists = {**onto, "checkpointLocation": str(folder / "checkpoint")}
    attempts: list[Callable[[], Any]] = [
        lambda: read(spark, options).collect(),
        lambda: numbers.write.format("tally").options(**onto).mode("append").save(),
        lambda: coming.writeStream.format("tally").options(**lists).start().awaitTermination(),
        lambda: JobRun(Warehouse(folder / "tables"), SystemClock()).spark,
    ]
    told = []
    for attempt in attempts:
        try:
            attempt()
            told.append("")
        except (PySparkException, TallystickError) as error:
            told.append(str(error))
    _write(folder / "error", json.dumps(told))


def _shown(spark: SparkSession) -> Iterator[str]:
    """What Spark's page tells whoever asks."""
    port = (spark.sparkContext.uiWebUrl or "").rpartition(":")[2]
    page = f"http://127.0.0.1:{port}/api/v1/applications/{spark.sparkContext.applicationId}"
    for part in ("environment", "sql?details=true&planDescription=true", "stages?details=true", "allexecutors"):
        with urllib.request.urlopen(f"{page}/{part}", timeout=60) as answer:
            yield answer.read().decode()


def _write(path: Path, text: str) -> None:
    """Whole or not at all: somebody waits for it."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def stream(spark: SparkSession, options: Options, checkpoint: str, out: str = "", onto: Options | None = None) -> None:
    """Into a table, or onto a topic, until killed."""
    frame = spark.readStream.format("tally").options(**options).load()
    if onto is None:
        into(frame, Path(out), Path(checkpoint)).start().awaitTermination()
    else:
        frame.writeStream.format("tally").options(**onto, checkpointLocation=checkpoint).start().awaitTermination()


def main(given: dict[str, Any]) -> None:
    folder, work, more = Path(given["folder"]), given["work"], given["more"]
    spark = build(folder / "events", given["master"], given["settings"])
    if work == "stream":
        stream(spark, given["options"], **more)
    else:
        works: dict[str, Callable[..., None]] = {"through": through, "jobs": jobs, "refused": refused}
        works[work](spark, folder, given["options"], **more)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
