"""What a job is handed: its warehouse, its options, a Spark session when it asks for one, and a way to say how it goes.

Spark runs here on one machine unless `spark.master` says otherwise, listens on loopback alone, and shows no page of its
own. Whatever stands in `settings` counts. What Spark has to say goes to a file of the warehouse, so that stderr is for
people.
"""

from __future__ import annotations

import importlib.util
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

from tallystick.errors import Misuse, Refused, TallystickError, Unavailable
from tallystick.pipeline.channel import Channel
from tallystick.pipeline.jobs.warehouse import Warehouse
from tallystick.pipeline.session import configure, register
from tallystick.runtime.sources import Clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
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

    @property
    def channel(self) -> Channel:
        """That of the session."""
        return Channel.of_session(self.spark)


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
