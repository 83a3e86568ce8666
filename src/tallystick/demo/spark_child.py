"""The demo's Spark process: `python -m tallystick.demo.spark_child FOLDER` answers requests on standard input."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallystick.errors import Refused
from tallystick.pipeline.jobs.registry import JOBS
from tallystick.pipeline.jobs.run import JobRun, explained
from tallystick.pipeline.jobs.warehouse import Warehouse
from tallystick.runtime.sources import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Two cores, and findings that are wanted: nobody is to read about them in a log of Spark's.
OURS = {"spark.master": "local[2]", "spark.driver.memory": "1g", "spark.log.level": "FATAL"}


def read(spark: SparkSession, home: str, topic: str) -> dict[str, Any]:
    """Read a whole topic, verified and opened. Returns how many rows it has, or the reason to stop."""
    try:
        with explained():
            return {"rows": spark.read.format("tally").options(home=home, topic=topic).load().count()}
    except Refused as error:
        return {"reason": error.reason}


def job(spark: SparkSession, name: str, warehouse: str, home: str, topic: str, **given: Any) -> dict[str, Any]:
    """Run a job of the pipeline with its options as the command line would have them. Returns its summary."""
    found = JOBS[name]
    options = {one.name: one.choices[0] if one.choices else one.default for one in found.options}
    options |= {one.name: one.type(given[one.name]) for one in found.options if one.name in given}
    run = JobRun(Warehouse(Path(warehouse)), SystemClock(), options, Path(home), topic)
    run.spark = spark
    return found.load()(run)


ACTS: dict[str, Callable[..., dict[str, Any]]] = {"read": read, "job": job}


def main(folder: Path) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever Spark and its children print goes to the log
    settings = {**OURS, "spark.sql.warehouse.dir": (folder.resolve() / "hive").as_uri()}
    spark = JobRun(Warehouse(folder), SystemClock(), settings=settings).spark
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = ACTS[request.pop("do")](spark, **request)
        except Exception as error:  # whatever it was, there is somebody who waits for the answer
            traceback.print_exc()
            answer = {"failure": str(error).partition("\n")[0]}
        print(json.dumps(answer, default=str), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
