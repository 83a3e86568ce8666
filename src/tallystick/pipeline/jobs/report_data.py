"""What a report shows, out of a warehouse's tables: read as parquet files, without Spark, node or network.

Each function gives None where its table is not there; the page then says which job writes it. Times are seconds since
1970, in bins of a round width.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tallystick.page.svg import step_s
from tallystick.pipeline.jobs import lines
from tallystick.pipeline.jobs.warehouse import Warehouse

Numbers = npt.NDArray[np.float64]
TRACKS_MAX = 600  # lines on the map: more would be a blot, and megabytes
EVENTS_MAX = 800
_SUMMED = ("distance_km", "idle_s", "fuel_l", "harsh_braking", "harsh_acceleration")


@dataclass(frozen=True)
class Bins:
    """Sums over time."""

    times: list[float]
    values: dict[str, list[float]]


@dataclass(frozen=True)
class Traffic:
    bins: Bins
    rows: int | None  # None where every parcel is padded
    parcels: int
    bytes: int
    publishers: int


@dataclass(frozen=True)
class Trips:
    bins: Bins
    count: int
    open: int
    vehicles: int
    totals: dict[str, float]  # over all trips, by the names of their columns
    lines: list[list[list[float]]]
    events: list[tuple[float, float, bool, str]]  # longitude, latitude, whether it braked, which vehicle
    left_out: int
    farthest: list[tuple[str, float]]


@dataclass(frozen=True)
class LedgerFacts:
    growth: Bins  # entries and bytes, summed up
    kinds: list[tuple[str, float]]
    topics: list[tuple[str, float]]  # parcels accepted, by topic
    refused: Bins
    reasons: list[tuple[str, float]]
    entries: int
    bytes: int


@dataclass(frozen=True)
class Lag:
    bins: Bins  # medians, NaN where there is none
    steps: list[tuple[str, int, float, float, float]]  # what, of how many parcels, median, 95 in 100, most


@dataclass(frozen=True)
class Updates:
    """As the jobs `campaign` and `ecu_health` know them now."""

    releases: list[dict[str, Any]]
    campaigns: list[dict[str, Any]]
    running: Counter[str]  # vehicles, by the image that an ECU of theirs runs; "" where one was never heard
    ecus: int
    vehicles: int
    findings: list[dict[str, Any]]


@dataclass(frozen=True)
class Intrusions:
    """As the job `detect` found them."""

    alerts: list[dict[str, Any]]
    open: int  # so many of them may still change
    frames: int
    late: int
    unscored: int
    names: dict[str, list[str]]  # of vehicles with frames that are late or unscored

    def named(self, what: str) -> str:
        return f" ({', '.join(self.names[what][:8])})" if what in self.names else ""


class Tables:
    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        names = self.read("names")
        self.names = {} if names is None else {row["identifier"]: row["name"] for row in names.to_pylist()}

    def read(self, name: str, columns: Sequence[str] | None = None, *, newest: bool = False) -> pa.Table | None:
        """Some columns of a table, or of its newest batch, or None where it has no rows."""
        files = self._warehouse.table(name).files(newest=newest)
        if not files:
            return None
        found = ds.dataset(files)
        return found.to_table(columns=[one for one in columns or found.schema.names if one in found.schema.names])

    def has(self, name: str) -> bool:
        """Whether the job that writes the table was run."""
        return bool(self._warehouse.table(name).batches())

    def name(self, identifier: str | None) -> str:
        """What an identifier is called where the auditor was told, or its first digits."""
        if identifier is None:
            return "nobody known"
        return self.names.get(identifier) or f"{identifier[:8]}…"

    def findings(self) -> list[dict[str, Any]] | None:
        """What the audit found, and the jobs of updates."""
        found = None if (table := self.read("findings", newest=True)) is None else list(table.to_pylist())
        updates = self._update_findings()
        return found if not updates else [*(found or []), *updates]

    def updates(self) -> Updates | None:
        ecus = self.read("ecus", newest=True)
        rows = {name: self.read(name, newest=True) for name in ("releases", "campaigns")}
        if ecus is None and all(one is None for one in rows.values()):
            return None
        releases, campaigns = ([] if one is None else list(one.to_pylist()) for one in rows.values())
        runs = [] if ecus is None else ecus.select(["vehicle", "image"]).to_pylist()
        pairs = {(row["vehicle"], row["image"] or "") for row in runs}
        running, vehicles = Counter(image for _, image in sorted(pairs)), len({vehicle for vehicle, _ in pairs})
        return Updates(releases, campaigns, running, len(runs), vehicles, self._update_findings())

    def intrusions(self) -> Intrusions | None:
        table = self._warehouse.table("alerts")
        facts = [table.facts(number) for number in table.batches()]
        if not facts:
            return None
        still = ds.dataset(files).to_table().to_pylist() if (files := table.files(beside="open")) else []
        ended = self.read("alerts")
        counts = {name: sum(one[name] for one in facts) for name in ("frames", "late", "unscored")}
        names = {what: one["named"][what] for one in facts for what in one["named"]}
        rows = [*(ended.to_pylist() if ended is not None else []), *still]
        return Intrusions(rows, open=len(still), names=names, **counts)

    def _update_findings(self) -> list[dict[str, Any]]:
        tables = [self.read(name, newest=True) for name in ("campaign_findings", "ecu_findings")]
        return [row for table in tables if table is not None for row in table.to_pylist()]

    def audited(self) -> dict[str, Any]:
        """What the newest audit says of the ledger."""
        return self._warehouse.table("findings").last()

    def sizes(self) -> list[tuple[str, int, int]]:
        """Each table: name, batches, rows."""
        found = []
        for folder in sorted(path.parent for path in self._warehouse.folder.glob("*/batch=0")):
            table = self._warehouse.table(folder.name)
            numbers = table.batches()
            found.append((folder.name, len(numbers), sum(table.facts(number)["rows"] for number in numbers)))
        return found

    # ── Traffic ──────────────────────────────────────────────────────────────────────────────────────────────────

    def traffic(self) -> Traffic | None:
        table = self.read("parcels", ["publisher", "rows", "bytes", "sealed", "found", "partition", "offset"])
        if table is not None:
            table = table.filter(pc.field("found").is_null())
        if table is None or not table.num_rows:
            return None
        at, rows, size = _seconds(table["sealed"]), _numbers(table["rows"]), _numbers(table["bytes"])
        known = ~np.isnan(at)
        values = {"rows": np.nan_to_num(rows), "parcels": np.ones(len(at)), "bytes": size}
        return Traffic(
            bins=_bins(at[known], {name: value[known] for name, value in values.items()}),
            rows=None if np.isnan(rows).all() else int(np.nansum(rows)),
            parcels=table.num_rows,
            bytes=int(pc.sum(table["bytes"]).as_py() or 0),
            publishers=len(pc.unique(table["publisher"])),
        )

    # ── Trips ────────────────────────────────────────────────────────────────────────────────────────────────────

    def trips(self) -> Trips | None:
        still = self._trip_rows("open")
        every = [*self._trip_rows(), *still]
        if not every:
            return None
        shown = [lines.geometry(trip["line"]) for trip in every]
        drawn = [line["coordinates"] for line in shown if line is not None]
        events = [
            (event["longitude"], event["latitude"], event["acceleration_ms2"] < 0, str(trip["vehicle_id"]))
            for trip in every
            for event in trip["events"] or []
            if None not in (event["longitude"], event["latitude"])
        ]
        distances = np.array([trip["distance_km"] or 0.0 for trip in every])
        farthest = _sums([str(trip["vehicle_id"]) for trip in every], distances)
        at = np.array([trip["start_ts"].timestamp() for trip in every])
        return Trips(
            bins=_bins(at, {"trips": np.ones(len(at))}),
            count=len(every),
            open=len(still),
            vehicles=len(farthest),
            totals={name: sum(trip[name] or 0 for trip in every) for name in _SUMMED},
            lines=drawn[:TRACKS_MAX],
            events=events[:EVENTS_MAX],
            left_out=max(0, len(drawn) - TRACKS_MAX),
            farthest=farthest[:8],
        )

    def _trip_rows(self, beside: str = "") -> list[dict[str, Any]]:
        files = self._warehouse.table("trips").files(beside=beside)
        return list(ds.dataset(files).to_table().to_pylist()) if files else []

    # ── The ledger ───────────────────────────────────────────────────────────────────────────────────────────────

    def ledger(self) -> LedgerFacts | None:
        table = self.read("ledger", ["time", "kind", "bytes", "token", "operation", "reason", "count", "end"])
        if table is None:
            return None
        at, size = _seconds(table["time"]), _numbers(table["bytes"])
        grown = _bins(at, {"entries": np.ones(len(at)), "bytes": size})
        summed = {name: [float(one) for one in np.cumsum(values)] for name, values in grown.values.items()}
        refused = table.filter(pc.field("reason").is_valid())
        accepted = (pc.field("kind") == "operation") & pc.field("reason").is_null()
        taken = table.filter(accepted & (pc.field("operation") == "write") & (pc.field("end") > 0))
        return LedgerFacts(
            growth=Bins(grown.times, summed),
            kinds=_sums(table["kind"], np.ones(len(at)))[:8],
            topics=[(self.name(token), value) for token, value in _sums(taken["token"], _numbers(taken["count"]))[:10]],
            refused=_bins(_seconds(refused["time"]), {"refused": _numbers(refused["count"])}, within=at),
            reasons=_sums(refused["reason"], _numbers(refused["count"]))[:10],
            entries=table.num_rows,
            bytes=int(size.sum()),
        )

    # ── Lag ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def lag(self) -> Lag | None:
        parcels = self.read("parcels", ["token", "partition", "offset", "sealed", "found"])
        ledger = self.read("ledger", ["time", "acted", "kind", "token", "partition", "operation", "reason", "end"])
        if parcels is None or ledger is None:
            return None
        parcels = parcels.filter(pc.field("found").is_null() & pc.field("sealed").is_valid())
        is_read = (pc.field("operation") == "read") & pc.field("reason").is_null()
        is_anchor = pc.field("kind").isin(["anchor", "notarise"])
        found: list[tuple[Numbers, Numbers, Numbers]] = []  # when parcels were sealed, anchored, first read
        places = {*zip(parcels["token"].to_pylist(), parcels["partition"].to_pylist(), strict=True)}
        for token, partition in sorted(places):
            place = (pc.field("token") == token) & (pc.field("partition") == partition)
            here, marks, reads = parcels.filter(place), ledger.filter(place & is_anchor), ledger.filter(place & is_read)
            anchored = _first(marks["end"], marks["time"], here["offset"])
            found.append((_seconds(here["sealed"]), anchored, _first(reads["end"], reads["acted"], here["offset"])))
        if not found:
            return None
        begun, fixed, seen = (np.concatenate(parts) for parts in zip(*found, strict=True))
        steps = {
            "sealed to anchored": np.maximum(fixed - begun, 0),
            "anchored to first read": np.maximum(seen - fixed, 0),
        }
        return Lag(_bins(begun, steps, fold=_median), [_step(name, values) for name, values in steps.items()])


def _first(ends: Any, times: Any, offsets: Any) -> Numbers:
    """When each offset was first covered by an end above it; NaN where it never was."""
    at = _seconds(times)
    order = np.argsort(at, kind="stable")
    reach = np.maximum.accumulate(_numbers(ends)[order])
    place = np.searchsorted(reach, _numbers(offsets), side="right")
    return np.append(at[order], np.nan)[np.minimum(place, len(at))]


def _step(name: str, values: Numbers) -> tuple[str, int, float, float, float]:
    known = values[~np.isnan(values)]
    if not len(known):
        return name, 0, math.nan, math.nan, math.nan
    return name, len(known), _median(known), float(np.percentile(known, 95)), float(known.max())


def _median(values: Numbers) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else math.nan


def _sum(values: Numbers) -> float:
    return float(values.sum())


def _bins(
    at: Numbers, values: dict[str, Numbers], within: Numbers | None = None, fold: Callable[[Numbers], float] = _sum
) -> Bins:
    """What the values come to in each bin, from the first time to the last of `within`, or of `at`."""
    span = at if within is None else within
    if not len(span):
        return Bins([], {name: [] for name in values})
    low, high = float(span.min()), float(span.max())
    width = step_s(low, high)
    begin = low // width * width
    place = ((at - begin) // width).astype(np.int64)
    bins = range(int((high - begin) // width) + 1)
    found = {name: [fold(value[place == n]) for n in bins] for name, value in values.items()}
    return Bins([begin + width * n for n in bins], found)


def _sums(keys: Any, values: Numbers) -> list[tuple[str, float]]:
    """What each key comes to, most first."""
    table = pa.table({"key": keys, "value": values}).group_by("key").aggregate([("value", "sum")])
    pairs = zip(table["key"].to_pylist(), table["value_sum"].to_pylist(), strict=True)
    return sorted(((str(key), float(value)) for key, value in pairs), key=lambda pair: (-pair[1], pair[0]))


def _seconds(column: Any) -> Numbers:
    """Times as seconds since 1970; NaN where there is none."""
    micros = pc.cast(pc.cast(column, pa.timestamp("us", "UTC")), pa.int64())
    return _numbers(micros) / 1e6


def _numbers(column: Any) -> Numbers:
    """A column as floats; NaN where there is nothing."""
    array: Numbers = np.asarray(pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
    return array
