"""`make bench-detect`: intrusion detection on the CAN bus, by the protocol of docs/detection.md.

    CAR_KIND_found, _frame, _second, _delay     a group's attacks: how many were found, F1 per frame and per second with
                                                the band of a bootstrap over captures, and the longest delay in seconds
    CAR_KIND_frame DETECTOR                     F1 per frame of a baseline, of one check alone, or of all but one
    alarms DETECTOR, alarms_CAR, alarms_N_min   false alarms: in all tests an hour, of a car, and after N minutes of
                                                calibration an hour of benign simulated driving
    checks, network, edge, spark                frames a second: the checks and the network on one core, both in slices
                                                of 10 ms, and the job `detect` over Parquet on two

Results go to `build/bench/detect.json`. `--only NAME` runs one subject and leaves the other rows; `--quick` is one
short round with one simulated car, to see that it works. The captures of `TALLY_DATA`, or of ../shared/data, are used
where they are; without them only the simulated cars have rows.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import Rate, Result, Row

sys.path += [str(harness.ROOT)]

from experiments.detect.baselines import BASELINES, data_folder, network, scores
from tallystick.fleet.bus import simulate_bus
from tallystick.fleet.detect import network as networks
from tallystick.fleet.detect.checks import begin, step
from tallystick.fleet.detect.edge import BusWatch, slices
from tallystick.fleet.detect.evaluate import DriveScore, cases, false_alarms, figures, grouped
from tallystick.fleet.detect.frames import Frames
from tallystick.fleet.detect.model import DetectionFile, unpack
from tallystick.fleet.detect.profile import Profile, learn
from tallystick.fleet.detect.train import STEPS, simulated, train

SUITE = "detect"
MODEL = harness.ROOT / "src" / "tallystick" / "fleet" / "detect" / "model.cbor"
TARGETS = {  # by the kind of attack: F1 per frame and per second, and seconds until it is found
    "fabrication": (0.90, 0.97, 1.5),
    "masquerade": (0.85, 0.85, 1.0),
    "suspension": (None, None, None),
}
ALARMS = {"can-road": 10.0, "can-daga": 2.0}  # 60 an hour in the 120 s of the V40 that nobody attacked
ALARMS_10_MIN = 1.0
TRAINED_ON = (0, 1)  # simulated cars of the network
VEHICLES, PARCEL_ROWS = 8, 4_096


def result(name: str, ours: float, unit: str, target: float | None = None, **told: Any) -> Result:
    """A figure that is better the greater it is, or with a `limit` the smaller."""
    limit = told.pop("limit", None)
    met = None if target is None and limit is None else ours <= limit if limit is not None else ours >= (target or 0)
    return Result(name, ours, None, unit, None, target if limit is None else limit, 1, met, **told)


# ── Figures ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def body(quick: bool) -> dict[str, Any]:
    """Of the model that ships, or of one trained here."""
    if MODEL.exists():
        return unpack(DetectionFile.decode(MODEL.read_bytes()).content)
    return train(simulated(0, TRAINED_ON, 2 if quick else 10), 0, steps=50 if quick else STEPS)


def figure_rows(quick: bool, _rounds: int | None) -> Iterator[Row]:
    found: dict[str, list[DriveScore]] = {}
    for case in cases(None if quick else data_folder(), quick):
        seen = case.car == "simulated" and case.calibration[0].name in [f"drive {one}" for one in TRAINED_ON]
        detectors = BASELINES if seen and not quick else {**BASELINES, "network": network(body(quick))}
        for name, one in scores(case, detectors):
            found.setdefault(name, []).append(one)
    rows: list[Result] = []
    for name, some in found.items():
        for told in grouped(some):
            if not told["group"].endswith("benign"):
                rows += group_rows(told) if name == "checks" else [_frame(told, f" {name}")]
        rows.append(result(f"alarms {name}", figures("", some)["false_alarms_per_hour"], "an hour"))
    for car in dict.fromkeys(one.car for one in found["checks"]):
        own = [one for one in found["checks"] if one.car == car]
        calm = [one for one in own if one.kind == "benign"] or own
        rows.append(result(f"alarms_{car}", sum(one.false_alarms for one in calm), "in all", limit=ALARMS.get(car)))
    return map(asdict, rows)


def group_rows(told: dict[str, Any]) -> Iterator[Result]:
    group, kind = told["group"].replace(" ", "_"), told["group"].split()[-1]
    frame, second, delay = TARGETS[kind]
    yield result(f"{group}_found", told["found"], f"of {told['tests']}", float(told["tests"]))
    if told["frame"]["recall"] is not None:
        yield _frame(told, "", frame)
    band = told["second"]["low"], told["second"]["high"]
    yield result(f"{group}_second", told["second"]["f1"] or 0.0, "F1", second, spread=band)
    if told["delay_s_max"] is not None:
        spread = told["delay_s"], told["delay_s_max"]
        yield result(f"{group}_delay", told["delay_s_max"], "s", limit=delay, spread=spread)


def _frame(told: dict[str, Any], detector: str, target: float | None = None) -> Result:
    name, frame = f"{told['group'].replace(' ', '_')}_frame{detector}", told["frame"]
    return result(name, frame["f1"] or 0.0, "F1", target, spread=(frame["low"], frame["high"]))


def alarm_rows(quick: bool, _rounds: int | None) -> Iterator[Row]:
    for one in false_alarms(quick, print):
        limit = ALARMS_10_MIN if one["minutes"] == 10 else None
        yield asdict(result(f"alarms_{one['minutes']}_min", one["per_hour"], "an hour", limit=limit))


# ── Rates ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def drive(quick: bool) -> tuple[Profile, Frames]:
    return learn([simulate_bus(0, 1 if quick else 5, seed=1)]), simulate_bus(0, 0.1 if quick else 2, seed=2)


def check_rows(quick: bool, _rounds: int | None) -> Iterator[Rate]:
    profile, frames = drive(quick)
    yield Rate("checks", lambda: step(profile, begin(profile), frames), len(frames), "frames/s", target=300_000)


def network_rows(quick: bool, _rounds: int | None) -> Iterator[Rate]:
    (profile, frames), one = drive(quick), networks.BusNetwork(body(quick))
    work = partial(one.step, profile, networks.begin(profile), frames)
    yield Rate("network", work, len(frames), "frames/s", target=100_000)


def edge_rows(quick: bool, _rounds: int | None) -> Iterator[Rate]:
    (profile, frames), one = drive(quick), networks.BusNetwork(body(quick))
    parts = list(slices(frames))

    def work() -> None:
        watch = BusWatch("VIN0001", profile, bytes(32), network=one)
        for part in parts:
            watch.look(part)

    yield Rate("edge", work, len(frames), "frames/s", target=18_000, rounds_max=5)


def bronze(frames: Frames, vehicles: int, path: Path) -> int:
    """Frames of so many vehicles as a table of bronze has them. Returns how many."""
    with pq.ParquetWriter(path, _table(frames[:1], "", 0).schema, compression="zstd") as writer:
        for at in range(0, len(frames), PARCEL_ROWS):
            for vehicle in range(vehicles):
                number = at // PARCEL_ROWS * vehicles + vehicle
                writer.write_table(_table(frames[at : at + PARCEL_ROWS], f"VIN{vehicle:04}", number))
    return len(frames) * vehicles


def _table(frames: Frames, vin: str, number: int) -> pa.Table:
    rows, count = frames.to_batch(vin), len(frames)
    places = {"_partition": pa.scalar(0, pa.int32()), "_offset": pa.scalar(number), "_height": pa.scalar(number)}
    columns = [*rows.columns, *(pa.repeat(one, count) for one in places.values())]
    columns += [pa.array(np.arange(count, dtype=np.int32)), pa.repeat("aa" * 32, count)]
    return pa.table(columns, names=[*rows.schema.names, *places, "_leaf", "_publisher"])


def spark_rows(quick: bool, _rounds: int | None) -> Iterator[Rate]:
    from spark_arm import session

    profile, frames = drive(quick)
    vehicles = 2 if quick else VEHICLES
    with tempfile.TemporaryDirectory(prefix="tally-bench-") as folder:
        path = Path(folder) / "bronze.parquet"
        count = bronze(frames, vehicles, path)
        spark = session(folder, [])
        try:
            from tallystick.pipeline.jobs.detect import Watcher, watched

            watcher = Watcher({f"VIN{one:04}": (profile.encode(), bytes(32)) for one in range(vehicles)})
            work, rounds = lambda: watched(spark.read.parquet(str(path)), None, watcher).count(), 1 if quick else 5
            yield Rate("spark", work, count, "frames/s", waits=True, rounds_max=rounds, target=200_000)
        finally:
            spark.stop()


def measured(cases: Callable[[bool, int | None], Iterable[Rate]], quick: bool, rounds: int | None) -> Iterator[Row]:
    return map(asdict, harness.run(cases(quick, rounds), 1 if quick else rounds or harness.ROUNDS))


SUBJECTS: dict[str, Callable[[bool, int | None], Iterable[Row]]] = {
    "figures": figure_rows,
    "alarms": alarm_rows,
    "checks": partial(measured, check_rows),
    "network": partial(measured, network_rows),
    "edge": partial(measured, edge_rows),
    "spark": partial(measured, spark_rows),
}


if __name__ == "__main__":
    harness.run_subjects(SUITE, SUBJECTS)
