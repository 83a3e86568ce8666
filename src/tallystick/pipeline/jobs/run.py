"""What a job is handed: its warehouse, its options, a Spark session when it asks for one, and a way to say how it goes;
and how a job goes on from one table to another.

Spark runs here on one machine unless `spark.master` says otherwise, listens on loopback alone, and shows no page of its
own. Whatever stands in `settings` counts. What Spark has to say goes to a file of the warehouse, so that stderr is for
people.

Where a job goes from table to table (`follow`), each batch of the second is made of the next batches of the first. How
far the first table was read stands in the facts of the second's newest batch, so there is no checkpoint that could be
lost apart from the table. Several small batches are taken together, up to a bound; which ones is written down, and a
batch that is there is never made again.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import shutil
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Misuse, Refused, TallystickError, Unavailable
from tallystick.pipeline.jobs.warehouse import Warehouse, WarehouseTable
from tallystick.pipeline.session import Channel, configure, register
from tallystick.runtime.sources import Clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JAVA_MIN = 17
ROWS_MAX = 5_000_000  # of the first table, taken for one batch of the second; at least one batch is
_POLL_S = 0.5
QUERY_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")  # PySpark's
_FAILED = re.compile(r"TallyFailed: (?:([a-z][a-z-]+): )?([^\n]+)")  # as pipeline/explain.py writes it
_SETTINGS = {
    "spark.master": "local[*]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "8",  # of one machine; tables are small beside what shuffles were made for
}

Make = Callable[["DataFrame", dict[str, Any]], dict[str, Any]]


@dataclass
class JobRun:
    """One run of a job. `tell` takes a line for people; `stop` is set when the run should end in order."""

    warehouse: Warehouse
    clock: Clock
    options: Mapping[str, Any] = field(default_factory=dict)
    home: Path | None = None
    topic: str | None = None
    follow: bool = False  # wait for more, or end with what is there
    settings: Mapping[str, str] = field(default_factory=dict)  # Spark's
    tell: Callable[[str], None] = lambda _line: None
    stop: threading.Event = field(default_factory=threading.Event)

    @cached_property
    def spark(self) -> SparkSession:
        """The session, started when first asked for: what can fail before costs no JVM."""
        from pyspark.sql import SparkSession

        active = SparkSession.getActiveSession()  # a notebook's
        spark = active or start_spark({**_SETTINGS, **self.settings}, self.warehouse.log)
        Channel.of_session(spark).check()  # rows in the clear go over it, also where a job lends no key
        return spark


@contextmanager
def explained() -> Iterator[None]:
    """Errors of ours that come back through Spark, of which it passes on the text alone, by their kind again."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        match = _FAILED.search(str(error))
        if match is None:
            first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise TallystickError(f"spark: {first}", hint="see scratch/spark.log in the warehouse") from error
        text, _, hint = match[2].strip().partition("; ")
        if match[1]:
            raise Refused(text, reason=match[1], hint=hint or None) from error
        raise Unavailable(text, hint=hint or None) from error


def check_engine() -> None:
    """Raise `Misuse` where Spark cannot start: no PySpark, or no Java of its age."""
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pandas") is None:
        raise Misuse("the pipeline runs on Spark, which is not installed", hint="pip install 'tallystick[spark]'")
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    hint = f"install java {JAVA_MIN} or newer (debian: apt install openjdk-17-jre-headless), or set JAVA_HOME"
    if java is None:
        raise Misuse(f"spark needs java, and there is none{f' in {home}' if home else ''}", hint=hint)
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d+)', shown)
    if match is None or int(match[1]) < JAVA_MIN:
        raise Misuse(f"{java}: java {JAVA_MIN} or newer expected, found {match[1] if match else 'none'}", hint=hint)


def start_spark(settings: Mapping[str, str], log: Path) -> SparkSession:
    """A session that knows topics, whose JVM and workers write to `log`."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = configure(SparkSession.builder.appName("tally pipeline"))
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        with _stderr_to(log), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PySpark's own
            spark = builder.getOrCreate()
    except PySparkException as error:
        raise Unavailable(f"spark did not start: {error}", hint=f"see {log}") from error
    hush()
    register(spark)
    return spark


def hush() -> None:
    """PySpark logs a JSON document of each error to stderr, stack included, besides raising it."""
    from pyspark.logger import PySparkLogger

    for name in QUERY_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Processes that are started meanwhile have the file as their stderr, for as long as they live."""
    before = os.dup(2)
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


# --- from table to table ---


def follow(run: JobRun, job: str, source: WarehouseTable, target: WarehouseTable, make: Make) -> dict[str, Any]:
    """Let `make(rows, facts)` write a batch of `target` with these facts, for all of `source` that is not in it yet.

    With `run.follow` it goes on with what comes until the run is stopped. Returns sums for the job's summary.
    """
    if not source.batches() and not run.follow:
        hint = f"run the job that writes {source.name} first"
        raise Misuse(f"{source.folder}: the table has no batch yet", hint=hint)
    batches = rows = 0
    with run.warehouse.writing(job), explained():
        while not run.stop.is_set():
            first = _reached(source, target)
            end = _reach(source, first)
            if end == first:
                if not run.follow or run.stop.wait(_POLL_S):
                    break
                continue
            began_s = run.clock.monotonic()
            facts = {"source": source.name, "end": end, "after": _digest(source, end)}
            taken = sum(source.facts(number)["rows"] for number in range(first, end))
            written = make(source.read(run.spark, range(first, end)), facts)
            batches += 1
            rows += taken
            rate = taken / max(run.clock.monotonic() - began_s, 1e-3)
            behind = len(source.batches()) - end
            done = f"{target.name} batch {written['batch']}: {taken} rows, {rate:,.0f} rows/s"
            run.tell(f"{done}, {behind} batches of {source.name} behind")
    return {"table": str(target.folder), "batches": batches, "rows": rows}


def _reached(source: WarehouseTable, target: WarehouseTable) -> int:
    """The first batch of `source` that is not in `target`. Raises `Misuse` where they do not belong together."""
    last = target.last()
    if not last:
        return 0
    end: Any = last.get("end")
    is_known = isinstance(end, int) and 0 < end <= len(source.batches()) and last.get("source") == source.name
    if not is_known or _digest(source, end) != last.get("after"):
        hint = f"remove {target.folder} and run its job anew, or restore {source.folder}"
        raise Misuse(f"{target.folder}: was made of another {source.name} than the one that is there", hint=hint)
    return int(end)


def _digest(source: WarehouseTable, end: int) -> str:
    """What tells a table from one that was made anew in its place: the facts of the last batch that was taken."""
    text = json.dumps(source.facts(end - 1), sort_keys=True)
    return named_hash("tallystick batch 1", text.encode()).hex()[:16]


def _reach(source: WarehouseTable, first: int) -> int:
    rows, end = 0, first
    for number in range(first, len(source.batches())):
        rows += source.facts(number)["rows"]
        if rows > ROWS_MAX and number > first:
            break
        end = number + 1
    return end
