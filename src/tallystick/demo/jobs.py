"""The data team's half: the jobs of the pipeline over what was published, and what its audit makes of the attacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tallystick.demo.operator import READER, TOPIC
from tallystick.demo.scene import NotObserved, Scene, Seen
from tallystick.demo.stage import TOPICS, Stage
from tallystick.demo.traffic import Pace
from tallystick.parcel.prove import verify_proof

# In this order, and who runs them. The audit is the owner's, who may know the names of its own people.
JOBS = {
    "ingest": READER,
    "refine": READER,
    "trips": READER,
    "audit": TOPICS[TOPIC].tenant,
    "prove": READER,
    "report": READER,
}
# What the audit must find after the scenes of this demo, by the names of its rules.
FOUND = ("unauthorised", "replay", "flood", "equivocation", "framing")
_PROVED = "_offset = 0 and _leaf < 2"  # a few rows of each partition


def report_of(folder: Path) -> Path:
    """Where the report of a demo lies."""
    return folder / "tables" / "report.html"


def scene(published: Mapping[str, int], say: Callable[[str], None], paces: dict[str, Pace]) -> Scene:
    """`published` are rows by topic; how fast they went into the tables is noted in `paces`."""

    def look(stage: Stage) -> Seen:
        tables, proofs, rows = stage.folder / "tables", stage.folder / "proofs", published[TOPIC]
        options = {"prove": {"where": _PROVED, "out": str(proofs)}}
        done: dict[str, dict[str, Any]] = {}
        for name in JOBS:
            began = stage.clock.monotonic()
            done[name] = _run(stage, name, tables, options.get(name, {}))
            pace = Pace(rows, stage.clock.monotonic() - began)
            say(f"job {name}: {_facts(done[name])} ({pace.seconds:.1f} s)")
            if name == "ingest":
                paces["ingest telemetry into tables"] = pace
        if done["ingest"]["rows"] != rows:
            raise NotObserved(f"{done['ingest']['rows']:,} rows in bronze, {rows:,} were published")
        found = _rules(tables / "findings")
        if missing := [name for name in FOUND if name not in found]:
            raise NotObserved(f"the audit finds {', '.join(sorted(found))}, and not {', '.join(missing)}")
        count = _verify(stage, proofs)
        return Seen(
            f"{rows:,} rows, {done['trips']['trips'] + done['trips']['open']:,} trips; the audit names"
            f" {', '.join(FOUND)}; {count} proofs hold offline",
            stage.shown(tables / "findings"),
        )

    return Scene("all of the above, to the Spark jobs", "every row in the tables, every attack in the audit", look)


def _run(stage: Stage, name: str, tables: Path, options: dict[str, str]) -> dict[str, Any]:
    if stage.spark is None:
        raise NotObserved("Spark was left out")
    return stage.spark.run(name, tables, stage.people[JOBS[name]].identity.home, TOPIC, options)


def _facts(summary: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value:,}" for key, value in summary.items() if isinstance(value, int))


def _rules(table: Path) -> set[str]:
    """The rules by which something was found, in the newest batch."""
    newest = max(table.glob("batch=*"), key=lambda path: int(path.name.partition("=")[2]))
    files = sorted(newest.glob("*.parquet"))
    return {rule for file in files for rule in pq.read_table(file, columns=["rule"])["rule"].to_pylist()}


def _verify(stage: Stage, folder: Path) -> int:
    """Check that every proof holds with the trust file and nothing else. Returns how many there are."""
    proofs = sorted(folder.glob("*.proof"))
    for path in proofs:
        verify_proof(path.read_bytes(), stage.trust)
    if not proofs:
        raise NotObserved("no proof was written")
    return len(proofs)
