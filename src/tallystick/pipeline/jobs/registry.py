"""The jobs by name, and what each can be told: `tally pipeline` lists and runs them. Nothing here loads Spark or a job.

A job's module has `run(run: JobRun) -> dict[str, object]`: it does the work and returns the summary that is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.pipeline.jobs.run import JobRun


@dataclass(frozen=True)
class Option:
    """An option of one job: `Option("gap_s", …)` is `--gap-s`, and `run.options["gap_s"]`."""

    name: str
    help: str
    type: type[str] | type[int] | type[float] | type[Path] = str
    default: Any = None
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


def _setting(default: float, help_: str) -> Any:
    return field(default=default, metadata={"help": help_})


@dataclass(frozen=True)
class JobSettings:
    """Settings by name, each with its help."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The settings among a run's options."""
        names = [one.name for one in fields(cls)]
        return cls(**{name: options[name] for name in names if options.get(name) is not None})

    @classmethod
    def options(cls, kind: type[int] | type[float]) -> tuple[Option, ...]:
        return tuple(Option(one.name, one.metadata["help"], kind, one.default) for one in fields(cls))


@dataclass(frozen=True)
class AuditSettings(JobSettings):
    window_s: int = _setting(300, "Acts of one principal are counted in windows of so many seconds.")
    unauthorised_min: int = _setting(1, "Attempts without a right, in a window.")
    # Nine proved attempts are the blacklist's; so many in one window are a purpose, not a mistake.
    unauthorised_many: int = _setting(9, "So many of them in a window are a warning, not a notice.")
    probing_topics_min: int = _setting(3, "Topics tried without a right, in a window.")
    replay_min: int = _setting(10, "Replayed, stale or postdated requests, in a window.")  # a retry makes one or two
    flood_min: int = _setting(100, "Refused requests of one principal, or of nobody known, in a window.")
    silence_s: int = _setting(120, "A lane without parcel, heartbeat or closing for so long is silent.")  # 4 heartbeats
    anchor_s: int = _setting(60, "From an accepted parcel to its anchor, at most.")  # the ledger's own `anchor_ms`
    settle_s: int = _setting(30, "How far a node's operations and anchors may be apart.")
    evidence_max: int = _setting(16, "Places on the ledger that one finding names.")

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is not int or value < 1:
                raise Misuse(f"{name}: a number from 1 expected, found {value!r}")


@dataclass(frozen=True)
class TripSettings(JobSettings):
    gap_s: float = _setting(300.0, "A silence longer than this ends a trip.")
    late_s: float = _setting(120.0, "How far a row may lie behind the newest one of its vehicle.")
    harsh_ms2: float = _setting(3.5, "The change of speed from which braking and acceleration are harsh.")
    idle_kmh: float = _setting(0.0, "At most so fast, a vehicle whose engine runs idles.")
    line_m: float = _setting(10.0, "How far the line of a trip may be from its points.")
    trip_h_max: float = _setting(24.0, "A longer trip is cut; it bounds what is kept of an open one.")

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value >= 0:
                raise Misuse(f"{name}: 0 or more expected, found {value}")


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
    TripSettings.options(float),
)

_DETECT = Job(
    "detect",
    "find who added, silenced or imitated senders on CAN buses, in the table alerts",
    "tally pipeline run detect --profiles profiles --signed-by maker.key.pub --warehouse tables",
    (
        Option("profiles", "The folder of signed profiles, VIN.cbor each.", Path),
        Option("signed_by", "The key that is believed, hex digits or a .pub file; several with commas."),
        Option("model", "A signed network, to score frames as well.", Path),
        Option("dbc", "The DBC that names signals; else they are named by their bits.", Path),
        Option("bus", "The bus that profiles were learnt on; frames of others are left out.", int, 0),
        Option("to", "Publish alerts to this topic too."),
        Option("identity", "The folder of the identity that publishes them.", Path),
    ),
)

_AUDIT = Job(
    "audit",
    "replay the ledger, hold a topic's log to it, and write what misbehaved to the table findings",
    "tally pipeline run audit --home owner --topic telemetry --warehouse tables",
    (
        Option("topic", "The topic whose log is looked at; that of the warehouse otherwise."),
        Option("genesis", "The instance's first trust file, where the identity holds a later one.", Path),
        Option("every_s", "With --stream: from the end of one round to the next.", float, 10.0),
        *AuditSettings.options(int),
    ),
    needs_home=True,
)

_UPDATES = (
    Option("fleet", "The fleet's ota.json.", Path, Path("ota.json")),
    Option("vehicles", "The folder of enrolled vehicles, if not the identity's own.", Path),
    Option("every_s", "With --stream: from the end of one round to the next.", float, 60.0),
)

_CAMPAIGN = Job(
    "campaign",
    "recount campaigns from the manifests of vehicles, and say where the Director's reports disagree",
    "tally pipeline run campaign --home reader --fleet ota.json --warehouse updates",
    (*_UPDATES, Option("settle_s", "How late a Director may read what is anchored.", int, 120)),
    needs_home=True,
)

_ECU_HEALTH = Job(
    "ecu_health",
    "find ECUs that are silent, run what is no release, drift or are ill",
    "tally pipeline run ecu_health --home reader --fleet ota.json --warehouse updates",
    (
        *_UPDATES,
        Option("silence_s", "An ECU without a report for so long is silent.", int, 14 * 86_400),  # two diagnoses
        Option("returns_min", "So many returns to the image before are a finding.", int, 2),
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

_ALL = (_INGEST, _REFINE, _TRIPS, _DETECT, _AUDIT, _CAMPAIGN, _ECU_HEALTH, _PROVE, _REPORT)
JOBS = {job.name: job for job in _ALL}
