"""One arm of the Spark suite: a Spark session in a process of its own, which runs a query for each line that it reads.

A line is JSON, {"source", "query", "options"}; the answer is a line with what the query found, its processor time by
kind of process, and the peak memory of the JVM and of the largest Python worker; or with why it failed. Sources are
`tally` and its peers: JSON files, text with `from_json`, and, with its connector's jars as arguments, Kafka with
`from_json`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tallystick.pipeline import configure, register

DDL = (
    "vin string, ts bigint, seq bigint, lat double, lon double, odo double,"
    " speed float, soc float, temp float, heading smallint, brake boolean"
)
THREE = "vin string, speed float, soc float"
_TOLD_CHARACTERS = 600
SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
}


def session(warehouse: str, jars: Sequence[str]) -> SparkSession:
    builder = configure(SparkSession.builder.appName("bench"))
    added = {"spark.jars": ",".join(jars)} if jars else {}
    for name, value in {**SETTINGS, **added, "spark.sql.warehouse.dir": warehouse}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


# ── Sources ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def frame(spark: SparkSession, source: str, schema: str, options: dict[str, Any]) -> DataFrame:
    if source == "tally":
        return spark.read.schema(schema).format("tally").options(**options).load()
    if source == "json":
        return spark.read.schema(schema).json(options["path"])
    if source == "kafka":
        return _parsed(spark.read.format(source).options(**options).load(), schema)
    return _parsed(spark.read.text(options["path"]), schema)


def _parsed(text: DataFrame, schema: str) -> DataFrame:
    return text.select(F.from_json(F.col("value").cast("string"), schema).alias("r")).select("r.*")


def stream(spark: SparkSession, source: str, schema: str, options: dict[str, Any]) -> DataFrame:
    if source == "kafka":
        return _parsed(spark.readStream.format(source).options(**options).load(), schema)
    reader = spark.readStream.schema(schema).format(source)
    return reader.options(**{name: value for name, value in options.items() if name != "path"}).load(
        options.get("path")
    )


# ── Queries ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def three(rows: DataFrame) -> list[Any]:
    by_vin = rows.groupBy("vin").agg(F.avg("speed").alias("a"), F.max("soc").alias("m"), F.count("*").alias("n"))
    return list(by_vin.agg(F.sum("n"), F.sum("a"), F.sum("m")).collect()[0])


def everything(rows: DataFrame) -> list[Any]:
    averages = [F.avg(name) for name in ("ts", "seq", "lat", "lon", "odo", "speed", "soc", "temp", "heading")]
    groups = rows.groupBy("vin", "brake").agg(*averages, F.count("*").alias("n"))
    return list(groups.agg(F.sum("n"), F.count("*")).collect()[0])


QUERIES = {"three": (THREE, three), "everything": (DDL, everything)}


def run(spark: SparkSession, source: str, query: str, options: dict[str, Any]) -> list[Any]:
    if query == "sink":
        return write(spark, source, options)
    if query == "stream":
        return follow(spark, source, options)
    schema, work = QUERIES[query]
    return work(frame(spark, source, schema, options))


def write(spark: SparkSession, source: str, options: dict[str, Any]) -> list[Any]:
    """The rows of a parquet folder, onto a topic or into JSON files."""
    rows = spark.read.parquet(options.pop("parquet"))
    rows.write.format(source).mode("append" if source == "tally" else "overwrite").options(**options).save()
    return []


def follow(spark: SparkSession, source: str, options: dict[str, Any]) -> list[Any]:
    """The first query over the micro-batches of what is there."""
    found: list[list[Any]] = []
    checkpoint = tempfile.mkdtemp(dir=spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:"))

    def take(batch: DataFrame, _: int) -> None:
        found.append(three(batch))

    writer = stream(spark, source, THREE, options).writeStream.foreachBatch(take)
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    shutil.rmtree(checkpoint)
    return [sum(one[0] or 0 for one in found), len(found)]


# ── Memory and processor time ─────────────────────────────────────────────────────────────────────────────────────────


def peaks() -> dict[str, int]:
    """The most memory, in bytes, that the JVM and any Python worker of this session ever held."""
    found = {"jvm": 0, "worker": 0}
    for pid in _descendants(os.getpid()):
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
            kind = "jvm" if fields["Name"].strip() == "java" else "worker"
            found[kind] = max(found[kind], int(fields.get("VmHWM", "0 kB").split()[0]) * 1024)
    return found


def spent() -> dict[str, float]:
    """Processor seconds of this session so far: of the JVM's tasks, of its compilers, of all else in it; of Python on
    both sides."""
    found = {"tasks": 0.0, "compilers": 0.0, "jvm": 0.0, "python": sum(os.times()[:2])}
    for pid in _descendants(os.getpid()):
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() != "java":
                found["python"] += _ticks(Path(f"/proc/{pid}/stat"))[1]
                continue
            for thread in Path(f"/proc/{pid}/task").iterdir():
                name, seconds = _ticks(thread / "stat")
                is_compiler = name.startswith(("C1 Comp", "C2 Comp"))
                kind = "compilers" if is_compiler else "tasks" if name.startswith("Executor task") else "jvm"
                found[kind] += seconds
    return found


def _ticks(stat: Path) -> tuple[str, float]:
    """Name and processor seconds of a process, with those of children that ended, or of a thread."""
    name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
    fields = rest.split()
    own, children = fields[11:13], fields[13:15] if stat.parent.parent.name == "proc" else []
    return name, sum(map(int, [*own, *children])) / os.sysconf("SC_CLK_TCK")


def _descendants(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from _descendants(int(child))


def answer(spark: SparkSession, source: str, query: str, options: dict[str, Any]) -> dict[str, Any]:
    """What a query found and cost, or why it failed."""
    before = spent()
    try:
        found = run(spark, source, query, options)
    except Exception as error:  # of Spark, of ours, of a missing file: the suite says which arm it was
        return {"failed": f"{type(error).__name__}: {str(error)[:_TOLD_CHARACTERS]}"}
    after = spent()
    return {"answer": found, "peaks": peaks(), "spent": {kind: after[kind] - before[kind] for kind in after}}


def main() -> None:
    with tempfile.TemporaryDirectory() as warehouse:
        spark = session(warehouse, sys.argv[1:])
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            wanted = json.loads(line)
            print(json.dumps(answer(spark, **wanted), default=str), flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
