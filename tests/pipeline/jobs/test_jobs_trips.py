"""`trips` on Spark: against polars on real buses, against the simulator's truth through every job, and in pieces."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake import Lake, pandas_of
from pyspark.sql import DataFrame, SparkSession
from tables import frame, pipeline, rows_of

from tallystick.errors import Misuse
from tallystick.fleet import can
from tallystick.fleet.replay import RecordingReplay
from tallystick.fleet.schemas import schema
from tallystick.fleet.vehicles import Fleet, simulate
from tallystick.pipeline.jobs import refine as refine_job
from tallystick.pipeline.jobs import trips as trips_job
from tallystick.pipeline.jobs.refine import refine
from tallystick.pipeline.jobs.run import JobRun
from tallystick.pipeline.jobs.trips import trips
from tallystick.pipeline.jobs.warehouse import Warehouse
from tallystick.runtime.sources import SystemClock

KEY = ["vehicle_id", "start_ts"]


def plain(found: DataFrame | None) -> list[str]:
    """Every value of every trip, to the last bit."""
    assert found is not None
    return sorted(str(row) for row in found.drop("is_open").collect())


def open_trips(table: Path) -> pd.DataFrame:
    newest = max(table.glob("batch=*"), key=lambda path: int(path.name.removeprefix("batch=")))
    return pd.concat([pq.ParquetFile(part).read().to_pandas() for part in (newest / "_open").glob("*.parquet")])


# --- real buses, computed again in polars ---


@pytest.fixture(scope="module")
def buses(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """Four days of CapMetro: one in miles, two in metres, one empty."""
    archive = shared_data / "telemetry-capmetro" / "vehicle_positions.tar.xz"
    if not archive.exists():
        pytest.skip(f"{archive} is not there")
    folder, days = tmp_path_factory.mktemp("buses"), ("2015-06-07", "2016-02-14", "2016-11-24", "2017-04-18")
    with tarfile.open(archive) as packed:
        for member in packed:
            if Path(member.name).stem in days:
                (folder / Path(member.name).name).write_bytes(packed.extractfile(member).read())  # type: ignore[union-attr]
    replay = RecordingReplay(folder)
    table = pa.Table.from_batches(list(replay.batches()))
    assert (replay.files, replay.empty) == (4, 1)
    return table


def by_polars(table: pa.Table, gap_s: float) -> pl.DataFrame:
    """Trips of positions, written down a second time: no code of ours."""
    rows = pl.from_arrow(table).sort("vehicle", "ts", maintain_order=True)
    assert isinstance(rows, pl.DataFrame)
    rows = rows.with_columns(step=pl.col("ts").diff().over("vehicle").dt.total_milliseconds() / 1000)
    rows = rows.with_columns(number=(pl.col("step").is_null() | (pl.col("step") > gap_s)).cum_sum())
    places = rows.drop_nulls("latitude").with_columns(
        *(pl.col(name).radians().alias(name) for name in ("latitude", "longitude"))
    )
    before = [pl.col(name).shift().over("number").alias(f"{name}_0") for name in ("latitude", "longitude")]
    half = (pl.col("latitude") - pl.col("latitude_0")).truediv(2).sin() ** 2 + pl.col("latitude").cos() * pl.col(
        "latitude_0"
    ).cos() * (pl.col("longitude") - pl.col("longitude_0")).truediv(2).sin() ** 2
    ways = places.with_columns(*before).with_columns(km=half.sqrt().arcsin() * 2 * 6371.0088)
    lengths = ways.group_by("number").agg(distance_km=pl.col("km").sum(), places=pl.len())
    speeds = rows.with_columns(told=pl.col("speed_kmh").forward_fill().over("number"))
    idling = speeds.with_columns(next_s=pl.col("step").shift(-1).over("number")).with_columns(
        idle=pl.when(pl.col("told") <= 0).then(pl.col("next_s")).otherwise(0.0)
    )
    found = idling.group_by("number").agg(
        vehicle_id=pl.col("vehicle").first(),
        start_ts=pl.col("ts").min(),
        end_ts=pl.col("ts").max(),
        rows=pl.len(),
        idle_s=pl.col("idle").sum(),
        speed_max_kmh=pl.col("speed_kmh").max(),
    )
    return found.filter(pl.col("end_ts") > pl.col("start_ts")).join(lengths, on="number", how="left")


@pytest.mark.long
def test_trips_of_real_buses_are_those_that_polars_finds(spark: SparkSession, buses: pa.Table) -> None:
    expected = by_polars(buses, 300.0).to_pandas().sort_values(KEY, ignore_index=True)
    found = pandas_of(trips(refine(frame(spark, buses.to_batches())))).sort_values(KEY, ignore_index=True)
    assert len(found) > 1500
    assert found[["vehicle_id", "rows"]].equals(expected[["vehicle_id", "rows"]].astype(found.dtypes[["rows"]]))
    for name in ("start_ts", "end_ts"):
        assert (pd.to_datetime(found[name], utc=True) == pd.to_datetime(expected[name], utc=True)).all()
    assert set(found.cut) == {"gap"}
    moved = expected.places > 1
    assert (found.distance_by[moved] == "positions").all()
    assert found.distance_km[moved].to_numpy() == pytest.approx(expected.distance_km[moved].to_numpy(), abs=1e-6)
    known = expected.speed_max_kmh.notna()
    assert found.speed_max_kmh[known].to_numpy() == pytest.approx(expected.speed_max_kmh[known].to_numpy())
    assert found.idle_s[known].to_numpy() == pytest.approx(expected.idle_s[known].to_numpy(), abs=1e-6)
    assert found.fuel_l.isna().all()


# --- a fleet, from the topic to the map ---


@pytest.fixture(scope="module")
def fleet() -> tuple[Fleet, pa.Table]:
    """Half an hour of vehicles, rows late by up to 100 seconds."""
    fleet = Fleet(12, 1800, seed=11)
    table = pa.Table.from_batches(list(fleet.batches()))
    ms = table.column("ts").cast(pa.int64()).to_numpy() + np.random.default_rng(4).integers(0, 100_000, table.num_rows)
    return fleet, table.take(pa.array(np.argsort(ms, kind="stable"))).combine_chunks()


def driven_by_polars(table: pa.Table) -> pl.DataFrame:
    """Trips of telemetry, written down a second time: from ignition on to ignition off."""
    rows = pl.from_arrow(table)
    assert isinstance(rows, pl.DataFrame)
    rows = rows.sort("vin", "ts").with_columns(before=pl.col("ignition").shift().over("vin").fill_null(False))
    rows = rows.with_columns(number=(pl.col("ignition") & ~pl.col("before")).cum_sum().over("vin"))
    rows = rows.filter(pl.col("ignition") | pl.col("before"))
    trip = ["vin", "number"]
    step_s = pl.col("ts").diff().over(trip).dt.total_milliseconds() / 1000
    rows = rows.with_columns(
        next_s=step_s.shift(-1).over(trip).fill_null(0.0),
        rate=pl.col("speed_kmh").cast(pl.Float64).diff().over(trip) / 3.6 / step_s,
    )
    rows = rows.with_columns(kind=pl.when(pl.col("rate").abs() >= 3.5).then(pl.col("rate").sign()).otherwise(0.0))
    begins = pl.col("kind") != pl.col("kind").shift().over(trip).fill_null(0.0)
    return rows.group_by(trip).agg(
        start_ts=pl.col("ts").min(),
        end_ts=pl.col("ts").max(),
        distance_km=pl.col("odometer_km").max() - pl.col("odometer_km").min(),
        idle_s=pl.col("next_s").filter(pl.col("speed_kmh") == 0).sum(),
        fuel_l=(pl.col("next_s") * pl.col("fuel_rate_lh").cast(pl.Float64)).sum() / 3600,
        speed_max_kmh=pl.col("speed_kmh").max(),
        harsh_braking=(begins & (pl.col("kind") < 0)).sum(),
        harsh_acceleration=(begins & (pl.col("kind") > 0)).sum(),
        rows=pl.len(),
    )


@pytest.mark.long
def test_from_the_topic_to_the_map(
    lake: Lake, fleet: tuple[Fleet, pa.Table], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In three batches through ingest, refine and trips: the trips that really happened, those of one batch."""
    simulated, table = fleet
    topic, warehouse = lake.topic("driven", str(schema("telemetry"))), tmp_path / "tables"
    home = ("--home", lake.home, "--topic", topic.name)
    for part in range(3):
        rows = -(-table.num_rows // 3)
        with lake.car.publisher(topic.name, acks="anchored", anchor_check_s=0.02) as publisher:
            for batch in table.slice(part * rows, rows).to_batches():
                publisher.send(batch)
            assert publisher.flush(60) == 0
        assert pipeline("run", "ingest", *home, "--warehouse", warehouse, "--quiet") == 0
        if part != 1:  # two batches of bronze at once make one of signals
            assert pipeline("run", "refine", "--warehouse", warehouse, "--quiet") == 0
            assert pipeline("run", "trips", "--warehouse", warehouse, "--quiet") == 0
    capsys.readouterr()
    assert pipeline("run", "trips", "--warehouse", warehouse, "--json") == 0  # nothing new
    again = json.loads(capsys.readouterr().out)
    assert (again["batches"], again["rows"]) == (0, 0)
    counts = [len(list((warehouse / name).glob("batch=*"))) for name in ("bronze", "signals", "trips")]
    assert counts == [3, 2, 2]

    closed, opened = rows_of(warehouse / "trips"), open_trips(warehouse / "trips")
    truth = {(trip.vin, trip.start_ms): trip for trip in simulated.truth.trips}
    both = pd.concat([closed, opened])
    assert len(both) == len(truth)
    assert len(closed) > 10
    for trip in both.to_dict("records"):
        really = truth[trip["vehicle_id"], int(trip["start_ts"].timestamp() * 1000)]
        assert trip["distance_km"] == pytest.approx(really.distance_km, abs=1e-6)
        if really.end_ms is not None:
            assert int(trip["end_ts"].timestamp() * 1000) == really.end_ms
            assert trip["idle_s"] == pytest.approx(really.idle_s, abs=1e-6)
            assert trip["fuel_l"] == pytest.approx(really.fuel_l, abs=1e-5)
    assert both.harsh_braking.sum() + both.harsh_acceleration.sum() == len(simulated.truth.harsh)

    expected = driven_by_polars(table).to_pandas().sort_values(["vin", "start_ts"], ignore_index=True)
    found = both.sort_values(KEY, ignore_index=True)
    assert found.vehicle_id.tolist() == expected.vin.tolist()
    for name in expected.columns[2:]:
        if name.endswith("_ts"):
            assert (found[name] == expected[name]).all()
        else:
            assert found[name].to_numpy() == pytest.approx(expected[name].to_numpy(), abs=1e-6), name

    tables = Warehouse(warehouse)
    whole = trips(refine(tables.table("bronze").read(lake.spark))).persist()
    assert plain(whole.where("not is_open")) == plain(tables.table("trips").read(lake.spark))
    assert plain(whole.where("is_open")) == plain(tables.table("trips").read_beside(lake.spark, "open"))
    whole.unpersist()

    out = tmp_path / "trips.geojson"
    assert pipeline("export", "--warehouse", warehouse, "--out", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["trips"] == len(closed)
    features = json.loads(out.read_text())["features"]
    drawn = [one for one in features if one["geometry"]["type"] == "LineString"]
    assert {one["properties"]["vehicle_id"] for one in drawn} == set(closed.vehicle_id)
    points = [one for one in features if one["geometry"]["type"] == "Point"]
    assert len(points) == closed.harsh_braking.sum() + closed.harsh_acceleration.sum()
    longitude, latitude = np.array(drawn[0]["geometry"]["coordinates"]).T
    assert ((longitude > 2) & (longitude < 4) & (latitude > 54) & (latitude < 56)).all()


def test_trips_from_frames_of_the_bus_are_those_of_the_telemetry(spark: SparkSession) -> None:
    """Within the frames' resolution: a metre a stretch of odometer, a hundredth of a litre an hour."""
    batches = list(simulate(5, 1500, seed=8))
    plain = pandas_of(trips(refine(frame(spark, batches)))).sort_values(KEY, ignore_index=True)
    bus = pandas_of(trips(refine(frame(spark, map(can.encode, batches))))).sort_values(KEY, ignore_index=True)
    assert len(plain) > 7
    assert bus.vehicle_id.tolist() == plain.vehicle_id.tolist()
    assert (bus.start_ts == plain.start_ts).all()
    assert bus.distance_km.to_numpy() == pytest.approx(plain.distance_km.to_numpy(), abs=0.05)
    assert bus.idle_s.to_numpy() == pytest.approx(plain.idle_s.to_numpy(), abs=2.0)
    assert bus.fuel_l.to_numpy() == pytest.approx(plain.fuel_l.to_numpy(), rel=0.01, abs=0.001)
    assert bus.harsh_braking.tolist() == plain.harsh_braking.tolist()


# --- tables by hand ---


def drive(at: Sequence[int], running: Sequence[bool]) -> pa.Table:
    """A vehicle's rows at these seconds."""
    ts = pa.array(np.array(at) * 1000, pa.int64()).cast(pa.timestamp("ms", "UTC"))
    speed = pa.array([30.0 * is_on for is_on in running], pa.float32())
    return pa.table({"ts": ts, "vin": pa.array(["V"] * len(at)), "speed_kmh": speed, "ignition": pa.array(running)})


def test_late_rows_are_told_and_other_settings_or_tables_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    warehouse, told = Warehouse(tmp_path / "hand"), list[str]()
    bronze = warehouse.table("bronze")

    def add(table: pa.Table) -> None:
        bronze.write(frame(spark, table.to_batches()), {"end": {"0": len(bronze.batches()) + 1}})
        run = JobRun(warehouse, SystemClock(), follow=True, tell=lambda _line: run.stop.set())
        refine_job.run(run)

    def cut(**options: float) -> dict[str, Any]:
        return trips_job.run(JobRun(warehouse, SystemClock(), options, tell=told.append))

    add(drive([0, 10, 20, 1000], [True, True, False, False]))
    assert {name: cut()[name] for name in ("trips", "open", "late")} == {"trips": 1, "open": 0, "late": 0}
    leftover = warehouse.folder / "trips" / ".batch=1"  # of a run that was killed
    leftover.mkdir()
    (leftover / "part-0.parquet").write_bytes(b"half a file")
    add(drive([5, 15, 1010, 1020], [True, True, True, True]))
    summary = cut()
    assert {name: summary[name] for name in ("trips", "open", "late")} == {"trips": 0, "open": 1, "late": 2}
    assert any("2 rows came too late for" in line for line in told)
    assert len(rows_of(warehouse.folder / "trips")) == 1
    assert open_trips(warehouse.folder / "trips").duration_s.tolist() == [10.0]
    assert not leftover.exists()
    assert not (warehouse.folder / "trips" / "batch=0" / "_rows").exists()
    with pytest.raises(Misuse, match="another gap_s"):
        cut(gap_s=60.0)
    facts = warehouse.folder / "signals" / "batch=1" / "_batch.json"
    facts.write_text(facts.read_text().replace('"rows": 4', '"rows": 5'))
    with pytest.raises(Misuse, match="made of another signals"):
        cut()
