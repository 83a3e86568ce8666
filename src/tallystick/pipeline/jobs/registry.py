"""The jobs by name: what `tally pipeline` lists and runs. Nothing here loads Spark, or a job.

A job's module has `run(run: JobRun) -> dict[str, object]`: it does the work and returns the summary that is printed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallystick.pipeline.jobs.audit_settings import AuditSettings
from tallystick.pipeline.jobs.trip_settings import TripSettings

if TYPE_CHECKING:
    from tallystick.pipeline.jobs.run import JobRun


@dataclass(frozen=True)
class Option:
    """An option of one job: `Option("gap_s", …)` is `--gap-s`, and `run.options["gap_s"]`."""

    name: str
    help: str
    type: type[str] | type[int] | type[float] | type[bool] | type[Path] = str
    default: Any = None
    many: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """What a job is called, what it needs, and where it lives."""

    name: str
    help: str
    example: str
    options: tuple[Option, ...] = ()
    needs_home: bool = False
    needs_topic: bool = False
    needs_spark: bool = True
    streams: bool = True  # it can follow what comes, with --stream

    def load(self) -> Callable[[JobRun], dict[str, Any]]:
        """The job's `run`; this imports its module."""
        run: Callable[[JobRun], dict[str, Any]] = import_module(f"tallystick.pipeline.jobs.{self.name}").run
        return run


_INGEST = Job(
    "ingest",
    "verify and open a topic into the table bronze",
    "tally pipeline run ingest --home reader --topic telemetry --warehouse tables",
    (
        Option("on_bad", "Tell bad parcels in the table quarantine, or stop.", choices=("quarantine", "fail")),
        Option("verify", "Recompute every leaf, or trust the signed body hash.", choices=("full", "fast")),
        Option("batch_parcels_max", "The most parcels of one batch.", int),
        Option("batch_bytes_max", "The most sealed bytes of one batch.", int, 256 << 20),
    ),
    needs_home=True,
    needs_topic=True,
)

_REFINE = Job(
    "refine",
    "name the signals of bronze by COVESA VSS in the table signals, CAN frames by a DBC",
    "tally pipeline run refine --warehouse tables --dbc bus.dbc",
    (Option("dbc", "The DBC of topics that hold CAN frames; that of the simulated fleet otherwise.", Path),),
)

_TRIPS = Job(
    "trips",
    "cut signals into the table trips: distance, duration, idling, fuel, harsh driving, a line for the map",
    "tally pipeline run trips --warehouse tables",
    tuple(Option(one.name, one.metadata["help"], float, one.default) for one in fields(TripSettings)),
)

_AUDIT = Job(
    "audit",
    "replay the ledger, hold a topic's log to it, and write what misbehaved to the table findings",
    "tally pipeline run audit --home owner --topic telemetry --warehouse tables",
    (
        Option("topic", "The topic whose log is looked at; that of the warehouse otherwise."),
        Option("genesis", "The instance's first trust file, where the identity holds a later one.", Path),
        Option("every_s", "With --stream: from the end of one round to the next.", float, 10.0),
        *(Option(one.name, one.metadata["help"], int, one.default) for one in fields(AuditSettings)),
    ),
    needs_home=True,
)

_PROVE = Job(
    "prove",
    "write the proofs of rows of a table as files, and say where the table differs from what was sealed",
    "tally pipeline run prove --home reader --where \"vin = 'X' and speed_kmh > 120\" --out proofs --warehouse tables",
    (
        Option("where", "Which rows, as a condition in SQL; all otherwise."),
        Option("out", "The folder of the proofs, which must be empty.", Path, Path("proofs")),
        Option("table", "The table whose rows are meant; it must have provenance columns.", str, "bronze"),
        Option("most", "Refuse to prove more rows than so many.", int, 10_000),
    ),
    needs_home=True,
    streams=False,
)

_REPORT = Job(
    "report",
    "make one page of a warehouse: traffic, trips, findings, ledger, lag; offline, without Spark",
    "tally pipeline run report --warehouse tables --out report.html",
    (Option("out", "The file; report.html in the warehouse otherwise.", Path),),
    needs_spark=False,
    streams=False,
)

JOBS = {job.name: job for job in (_INGEST, _REFINE, _TRIPS, _AUDIT, _PROVE, _REPORT)}
