"""A job from one table to another: each batch of the second is made of the next batches of the first.

How far the first table was read stands in the facts of the second's newest batch, so there is no checkpoint that could
be lost apart from the table. Several small batches are taken together, up to a bound; which ones is written down, and a
batch that is there is never made again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Misuse
from tallystick.pipeline.jobs.run import JobRun, explained
from tallystick.pipeline.jobs.warehouse import WarehouseTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_MAX = 5_000_000  # of the first table, taken for one batch of the second; at least one batch is
_POLL_S = 0.5

Make = Callable[["DataFrame", dict[str, Any]], dict[str, Any] | None]


def follow(run: JobRun, job: str, source: WarehouseTable, target: WarehouseTable, make: Make) -> dict[str, Any]:
    """Let `make(rows, facts)` write a batch of `target` with these facts, for all of `source` that is not in it yet.

    With `run.follow` it goes on with what comes until the run is stopped. Returns sums for the job's summary.
    """
    if not source.batches() and not run.follow:
        raise Misuse(
            f"{source.folder}: the table has no batch yet", hint=f"run the job that writes {source.name} first"
        )
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
            made = "" if written is None else f" batch {written['batch']}"
            run.tell(f"{target.name}{made}: {taken} rows, {rate:,.0f} rows/s, {behind} batches of {source.name} behind")
    return {"table": str(target.folder), "batches": batches, "rows": rows}


def _reached(source: WarehouseTable, target: WarehouseTable) -> int:
    """The first batch of `source` that is not in `target`; raises `Misuse` where they do not belong together."""
    last: Any = target.last()
    if last is None:
        return 0
    end = last.get("end")
    is_known = isinstance(end, int) and 0 < end <= len(source.batches()) and last.get("source") == source.name
    if not is_known or _digest(source, end) != last.get("after"):
        raise Misuse(
            f"{target.folder}: was made of another {source.name} than the one that is there",
            hint=f"remove {target.folder} and run its job anew, or restore {source.folder}",
        )
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
