"""The data team's half: the jobs of the pipeline over what was published, and what its audit makes of the attacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tallystick.demo.broker import READER, TOPIC, shown
from tallystick.demo.scene import NotObserved, Scene, Seen
from tallystick.demo.spark import SparkProcess
from tallystick.demo.stage import TOPICS, Stage

TABLES = "tables"
# Who runs what. The audit is the owner's: it may know the names of its own people.
JOBS = {"ingest": READER, "refine": READER, "trips": READER, "audit": TOPICS[TOPIC].tenant}
# What the audit must find after the scenes of this demo, by its rules' names.
FOUND = ("unauthorised", "replay", "flood", "equivocation", "framing")


def scene(rows: Callable[[], int], say: Callable[[str], None]) -> Scene:
    """`rows()` of the fleet were published by now."""

    def look(stage: Stage) -> Seen:
        if stage.spark is None:
            raise NotObserved("Spark was left out")
        tables = stage.folder / TABLES
        done = {name: _run(stage, stage.spark, name, tables, say) for name in JOBS}
        if done["ingest"]["rows"] != rows():
            raise NotObserved(f"{done['ingest']['rows']:,} rows in bronze, {rows():,} were published")
        found = _rules(tables / "findings")
        if missing := [name for name in FOUND if name not in found]:
            raise NotObserved(f"the audit does not find {', '.join(missing)}")
        return Seen(
            f"{done['ingest']['rows']:,} rows, {done['trips']['rows']:,} trips; the audit names"
            f" {', '.join(name for name in FOUND)}",
            shown(stage, tables / "findings"),
        )

    return Scene("all of the above, to the Spark jobs", "every row in the tables; the attacks in the audit", look)


def _run(stage: Stage, spark: SparkProcess, name: str, tables: Path, say: Callable[[str], None]) -> dict[str, Any]:
    began = stage.clock.monotonic()
    summary = spark.run(name, tables, stage.people[JOBS[name]].identity.home, TOPIC)
    facts = ", ".join(f"{key} {value}" for key, value in summary.items() if isinstance(value, int))
    say(f"job {name}: {facts} ({stage.clock.monotonic() - began:.1f} s)")
    return summary


def _rules(table: Path) -> set[str]:
    """The rules by which something was found, in the newest batch."""
    newest = max(table.glob("batch=*"), key=lambda path: int(path.name.partition("=")[2]))
    return set(pq.read_table(newest, columns=["rule"])["rule"].to_pylist())
