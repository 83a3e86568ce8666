"""The jobs by name: what `tally pipeline` lists and runs. Nothing here loads Spark, or a job.

A job's module has `run(run: Run) -> dict[str, object]`: it does the work and returns the summary that is printed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallystick.pipeline.jobs.audit_settings import AuditSettings

if TYPE_CHECKING:
    from tallystick.pipeline.jobs.run import Run


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
    streams: bool = True  # it can follow what comes, with --stream

    def load(self) -> Callable[[Run], dict[str, Any]]:
        """The job's `run`; this imports its module."""
        run: Callable[[Run], dict[str, Any]] = import_module(f"tallystick.pipeline.jobs.{self.name}").run
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

JOBS = {job.name: job for job in (_INGEST, _REFINE, _AUDIT)}
