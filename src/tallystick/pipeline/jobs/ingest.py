"""`ingest`: a topic into the table `bronze`: its columns as published, and the columns that say where each row is from.

Spark streams; the table remembers. Each run gives Spark a checkpoint folder of its own, for this run alone, and starts
it at the offsets that stand in the facts of the newest batch: table and position are then one thing, and cannot fall
out of step by a kill, a lost checkpoint, or a power cut between two files.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession

from tallystick.errors import Misuse, Withheld
from tallystick.pipeline.access import admit
from tallystick.pipeline.jobs.run import JobRun, explained
from tallystick.pipeline.jobs.warehouse import WarehouseTable
from tallystick.pipeline.options import Options
from tallystick.pipeline.plan import Planner

BRONZE, QUARANTINE = "bronze", "quarantine"
_TRIGGER = "1 second"  # between the beginnings of batches: fewer, larger files
_POLL_S = 0.2


def bronze(spark: SparkSession, home: str | Path, topic: str, **options: Any) -> DataFrame:
    """A topic's rows with their provenance; `options` are those of the data source."""
    return spark.read.format("tally").options(home=str(home), topic=topic, provenance="true", **options).load()


def run(run: JobRun) -> dict[str, Any]:
    """Read on where the table ends; the summary counts what this run added."""
    table, options = run.warehouse.table(BRONZE), _options(run)
    _check(run, table, options)
    with run.warehouse.writing("ingest"), explained():
        quarantine = run.warehouse.folder / QUARANTINE
        before, work = len(list(quarantine.glob("*.parquet"))), _Work(run, table)
        work.stream(options)
        found = len(list(quarantine.glob("*.parquet"))) - before
    if found:
        run.tell(f"warning: {found} new {'finding' if found == 1 else 'findings'}: see the table {quarantine}")
    return {"table": str(table.folder), "batches": work.batches, "rows": work.rows, "findings": found}


def _options(run: JobRun) -> dict[str, str]:
    """Of the data source."""
    given = run.options
    options = {
        "home": str(run.home),
        "topic": str(run.topic),
        "provenance": "true",
        "verify": given.get("verify") or "full",
        "onBad": given.get("on_bad") or "quarantine",
        "heads": str(run.warehouse.folder / "scratch" / "heads"),
    }
    if options["onBad"] == "quarantine":
        options["quarantinePath"] = str(run.warehouse.folder / QUARANTINE)
    for name, option in (("batch_parcels_max", "maxParcelsPerTrigger"), ("batch_bytes_max", "maxBytesPerTrigger")):
        if given.get(name):
            options[option] = str(given[name])
    return options


def _check(run: JobRun, table: WarehouseTable, options: dict[str, str]) -> None:
    """What can be wrong is found before a JVM is started, and the warehouse is claimed for the topic."""
    with closing(admit(options["home"], options["topic"])) as access:
        run.warehouse.claim(access.session.identity.instance, options["topic"], access.token)
        planner = Planner(Options.parse(options), access)
        ends = planner.ends(planner.anchors())
        if not run.follow:
            planner.check_some(ends)
        last = table.last()
        if last:
            try:
                planner.check_reached(_offsets(table, last), ends)
            except Withheld as error:
                hint = "the ledger is behind, or not the one that it was: see the evidence before going on"
                told = str(error).replace("the query's checkpoint", f"the table {table.folder}")
                raise Withheld(told, reason=error.reason, hint=hint) from error


def _offsets(table: WarehouseTable, facts: dict[str, Any]) -> dict[int, int]:
    """How far the topic was read, as the facts of a batch say."""
    try:
        return {int(partition): int(offset) for partition, offset in facts["end"].items()}
    except (KeyError, ValueError, AttributeError) as error:
        hint = f"restore it from a copy, or remove {table.folder} and run ingest anew"
        raise Misuse(f"{table.folder}: the newest batch does not say how far the topic was read", hint=hint) from error


class _Work:
    """One run: what it added so far."""

    def __init__(self, run: JobRun, table: WarehouseTable) -> None:
        self._run, self._table = run, table
        self._checkpoint = run.warehouse.scratch("ingest")
        self.batches = self.rows = 0

    def stream(self, options: dict[str, str]) -> None:
        run, last = self._run, self._table.last()
        if last:
            options = {**options, "startingOffsets": json.dumps(_offsets(self._table, last))}
        query = (
            run.spark.readStream.format("tally")
            .options(**options)
            .load()
            .writeStream.foreachBatch(self._add)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(**({"processingTime": _TRIGGER} if run.follow else {"availableNow": True}))
            .start()
        )
        try:
            while query.isActive and not run.stop.wait(_POLL_S):
                pass
        finally:
            query.stop()
        query.awaitTermination()  # raises what ended it, if it did not end by itself

    def _add(self, frame: DataFrame, number: int) -> None:
        """A micro-batch is a batch of the table, with the offsets that Spark wrote down before it began."""
        clock, began_s = self._run.clock, self._run.clock.monotonic()
        end = json.loads((self._checkpoint / "offsets" / str(number)).read_text().splitlines()[-1])
        end.pop("topic")
        facts = self._table.write(frame, {"end": end}, empty=False)
        if not facts:  # heartbeats and closing parcels
            return
        self.batches += 1
        self.rows += facts["rows"]
        rate = facts["rows"] / max(clock.monotonic() - began_s, 1e-3)
        sealed = pc.max(ds.dataset(self._table.files(newest=True)).to_table(columns=["_time"])["_time"]).as_py()
        lag = "" if sealed is None else f", {max(clock.now() - sealed.timestamp(), 0):.0f} s after sealing"
        self._run.tell(f"{self._table.name} batch {facts['batch']}: {facts['rows']} rows, {rate:,.0f} rows/s{lag}")
