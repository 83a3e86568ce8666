"""`ingest`: a topic becomes the table bronze, each row once, whatever happens in between."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lake import SCHEMA, Lake, rows
from pyspark.errors.exceptions import base
from pyspark.logger import PySparkLogger
from stack import wait_until
from tables import pipeline, rows_of

from tallystick.carriers.carrier import Fetched
from tallystick.errors import Misuse
from tallystick.pipeline.jobs.run import QUERY_LOGGERS, check_engine, hush
from tallystick.pipeline.jobs.warehouse import Warehouse

SPARK = ("--conf", "spark.master=local[2]", "--conf", "spark.driver.memory=1g")


def ingest(lake: Lake, topic: str, warehouse: Path, *more: object, home: Path | None = None) -> int:
    home = home or lake.home
    return pipeline("run", "ingest", "--home", home, "--topic", topic, "--warehouse", warehouse, *more)


def seqs(warehouse: Path) -> list[int]:
    return sorted(rows_of(warehouse / "bronze").seq.tolist())


def batches(warehouse: Path) -> int:
    return len(list((warehouse / "bronze").glob("batch=*")))


def test_every_run_goes_on_where_the_last_one_ended_across_a_new_column(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, warehouse = lake.topic("bronze-once", partitions=2), tmp_path / "warehouse"
    topic.publish(rows(range(20)), lanes=2, key="vin", batch_rows_max=5)
    assert ingest(lake, topic.name, warehouse, "--json") == 0
    shown = capsys.readouterr()
    told = {"job": "ingest", "table": str(warehouse / "bronze"), "batches": 1, "rows": 20, "findings": 0}
    assert json.loads(shown.out) == told
    assert re.search(r"bronze batch 0: 20 rows, \d[\d,]* rows/s, \d+ s after sealing\n", shown.err)
    topic.grow(SCHEMA + ", note string")
    topic.publish([{**row, "note": "new"} for row in rows(range(20, 30))])
    for _ in range(2):  # the second finds nothing new
        assert ingest(lake, topic.name, warehouse, "--quiet") == 0
        assert seqs(warehouse) == list(range(30))
    assert capsys.readouterr().err == ""
    table = Warehouse(warehouse).table("bronze").read(lake.spark)
    assert {"_parcel", "_leaf", "_offset", "_height", "_publisher", "_late", "_suspect"} <= set(table.columns)
    assert table.where("note = 'new'").count() == 10


def command(lake: Lake, topic: str, warehouse: Path, log: Path, *more: str) -> subprocess.Popen[bytes]:
    """A run in a process group of its own."""
    arguments = ["--home", str(lake.home), "--topic", topic, "--warehouse", str(warehouse), *SPARK, *more]
    with open(log, "wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "tallystick.cli", "pipeline", "run", "ingest", *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@pytest.mark.long
def test_after_kill_9_nothing_is_twice_and_nothing_missing_and_sigterm_ends_in_order(
    lake: Lake, tmp_path: Path
) -> None:
    topic, warehouse, log = lake.topic("bronze-killed"), tmp_path / "warehouse", tmp_path / "log"
    topic.publish_parcels(range(12))
    killed = command(lake, topic.name, warehouse, log, "--stream", "--batch-parcels-max", "1")
    try:
        wait_until(lambda: batches(warehouse) >= 3 or killed.poll() is not None, 240)
    finally:
        os.killpg(killed.pid, signal.SIGKILL)  # the JVM and the Python workers too
        killed.wait(20)
    assert killed.returncode == -signal.SIGKILL, log.read_text()
    reached = batches(warehouse)
    assert reached < 12
    (warehouse / "bronze" / f".batch={reached}").mkdir(exist_ok=True)  # as if it had been in the middle of one
    again = command(lake, topic.name, warehouse, log, "--stream", "--json", "--batch-parcels-max", "5")
    try:
        wait_until(lambda: len(seqs(warehouse)) >= 12 or again.poll() is not None, 240)
        again.send_signal(signal.SIGTERM)
        assert again.wait(60) == 0, log.read_text()
    finally:
        if again.poll() is None:
            os.killpg(again.pid, signal.SIGKILL)
            again.wait(20)
    assert seqs(warehouse) == list(range(12))
    lines = log.read_text().splitlines()
    assert json.loads(lines.pop())["rows"] == 12 - reached
    assert all(line.startswith("bronze batch ") for line in lines)  # what Spark says is in a file
    assert (warehouse / "scratch" / "spark.log").stat().st_size


# --- what a broker does ---


def altered(fetched: Fetched, headers: bool) -> Fetched:
    """The body of the parcel at offset 2 is another, where bodies are asked for."""
    at = 2 - fetched.first
    if headers or not 0 <= at < len(fetched.parcels):
        return fetched
    changed = bytearray(fetched.parcels[at])
    changed[-1] ^= 1
    return replace(fetched, parcels=(*fetched.parcels[:at], bytes(changed), *fetched.parcels[at + 1 :]))


def test_what_was_altered_is_quarantined_or_stops_the_run(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, warehouse = lake.topic("bronze-altered"), tmp_path / "warehouse"
    topic.publish_parcels(range(5))
    with lake.lying(altered):
        assert ingest(lake, topic.name, warehouse, "--on-bad", "fail") == 3
        assert "error: partition 0, offset 2" in capsys.readouterr().err
        assert batches(warehouse) == 0
        assert ingest(lake, topic.name, warehouse, "--json") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["findings"] == 1
    assert "warning: 1 new finding" in shown.err
    assert seqs(warehouse) == [0, 1, 3, 4]
    assert rows_of(warehouse / "quarantine").reason.tolist() == ["altered"]


# --- mistakes ---


@pytest.fixture(scope="module")
def ingested(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    topic, warehouse = lake.topic("bronze-mistaken"), tmp_path_factory.mktemp("mistakes") / "warehouse"
    topic.publish(rows(range(3)))
    assert ingest(lake, topic.name, warehouse, "--quiet") == 0
    return topic.name, warehouse


def test_topics_that_cannot_be_read_are_told_with_the_remedy(
    lake: Lake, ingested: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, warehouse = ingested
    lake.topic("bronze-empty")
    for code, said, topic, folder, home in (
        (2, "is unknown", "nowhere", tmp_path / "a", lake.home),
        (3, f'no right to subscribe on topic "{name}"', name, tmp_path / "a", lake.car.identity.home),
        (4, "nothing is anchored", "bronze-empty", tmp_path / "a", lake.home),
        (2, f'the warehouse of topic "{name}"', "bronze-empty", warehouse, lake.home),
        (2, "neither empty nor a warehouse", name, warehouse / "bronze", lake.home),
    ):
        assert ingest(lake, topic, folder, home=home) == code, said
        shown = capsys.readouterr().err
        assert said in shown
        assert "hint: " in shown
        assert "Traceback" not in shown


def spoil(path: Path, change: Callable[[dict[str, Any]], Any]) -> str:
    """Change a file of facts; what it was."""
    before = path.read_text()
    path.write_text(json.dumps(change(json.loads(before))))
    return before


def test_tables_that_are_damaged_are_told_with_the_remedy(
    lake: Lake, ingested: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    name, warehouse = ingested
    facts = warehouse / "bronze" / "batch=0" / "_batch.json"
    for code, said, change in (
        (3, "the ledger is behind", lambda whole: {**whole, "end": {"0": 99}}),
        (2, "does not say how far", lambda whole: {**whole, "end": "far"}),
        (2, "an object expected", lambda whole: [whole]),
    ):
        before = spoil(facts, change)
        assert ingest(lake, name, warehouse) == code
        assert said in capsys.readouterr().err
        facts.write_text(before)
    facts.write_text(before[:20])
    assert ingest(lake, name, warehouse) == 2
    assert "_batch.json: damaged" in capsys.readouterr().err
    facts.write_text(before)
    (warehouse / "bronze" / "batch=2").mkdir()
    assert ingest(lake, name, warehouse) == 2
    assert "batch 1 is missing" in capsys.readouterr().err
    (warehouse / "bronze" / "batch=2").rmdir()
    with Warehouse(warehouse).writing("ingest"):
        assert ingest(lake, name, warehouse) == 4
    assert "another run of ingest" in capsys.readouterr().err
    assert ingest(lake, name, warehouse, "--quiet") == 0
    assert seqs(warehouse) == [0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "refine", "--warehouse", "nowhere"], "run the job that writes bronze"),
        (["run", "trips", "--warehouse", "nowhere", "--late-s", "-1"], "late_s: 0 or more"),
        (["run", "ingest", "--topic", "t", "--warehouse", "nowhere"], "--home"),
        (["run", "ingest", "--topic", "t", "--warehouse", "w", "--conf", "master=x"], "spark.name=value"),
        (["run", "refine", "--warehouse", "w", "--dbc", "no.dbc"], "no.dbc"),
        (["run", "everything"], "everything"),
        (["export", "--warehouse", ".", "--out", "x.geojson"], "no trips yet"),
    ],
)
def test_mistakes_on_the_command_line_are_named(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pipeline(*arguments) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""


def test_the_jobs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline("list", "--json") == 0
    names = [job["name"] for job in json.loads(capsys.readouterr().out)]
    assert names[:3] == ["ingest", "refine", "trips"]
    for name in names:
        assert pipeline("run", name, "--help") == 0
        assert f"tally pipeline run {name} " in capsys.readouterr().out


def test_a_missing_extra_and_a_missing_java_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyspark", None)
        with pytest.raises(Misuse, match="not installed") as caught:
            check_engine()
        assert caught.value.hint == "pip install 'tallystick[spark]'"
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Misuse, match="needs java"):
        check_engine()
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(Misuse, match="java 17 or newer expected, found 11"):
        check_engine()


def test_errors_of_spark_are_said_once() -> None:
    """PySpark's own loggers, which print a document of each error with its stack, by the names that it gives them."""
    source = Path(base.__file__).read_text()
    for name in QUERY_LOGGERS:
        assert f'"{name}"' in source
        before = PySparkLogger.getLogger(name).level
        hush()
        assert not PySparkLogger.getLogger(name).isEnabledFor(logging.ERROR)
        PySparkLogger.getLogger(name).setLevel(before)
    assert source.count("PySparkLogger.getLogger(") == len(QUERY_LOGGERS)
