"""A driver of its own: a process has one Spark context, and this one is on a cluster, or is to be killed.

In comes one JSON object; out go files in `folder`: `started-…` as tasks begin, `shown` with what Spark's page says, and
`rows` or `error` at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from lake import build
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from streams import into


def batch(spark: SparkSession, folder: Path, options: dict[str, str], shuffled: int) -> None:
    """Read, shuffle, and hold every row until `go` is there."""

    def hold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (folder / f"started-{os.getppid()}-{os.getpid()}").touch()
        while not (folder / "go").exists():
            time.sleep(0.05)
        yield from batches

    try:
        frame = spark.read.format("tally").options(**options).load()
        held = frame.repartition(shuffled).mapInArrow(hold, frame.schema)
        _write(folder / "rows", json.dumps(sorted(row["seq"] for row in held.select("seq", "vin").collect())))
    except PySparkException as error:
        _write(folder / "error", str(error))
    _write(folder / "shown", "\n".join(_shown(spark)))


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


def main(given: dict[str, Any]) -> None:
    folder = Path(given["folder"])
    spark = build(folder / "events", given["master"], given["settings"])
    if "checkpoint" in given:
        frame = spark.readStream.format("tally").options(**given["options"]).load()
        into(frame, Path(given["out"]), Path(given["checkpoint"])).start().awaitTermination()
    else:
        batch(spark, folder, given["options"], given["shuffled"])
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
