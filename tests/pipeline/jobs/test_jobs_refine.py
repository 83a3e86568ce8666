"""`refine`: signals by their VSS names, whatever they came in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from lake import first_row, pandas_of
from pyspark.sql import DataFrame, SparkSession
from tables import frame

from tallystick.errors import Misuse
from tallystick.fleet import can
from tallystick.fleet.city import Sensors
from tallystick.fleet.replay import POSITIONS_HEADER, RecordingReplay
from tallystick.fleet.schemas import schema
from tallystick.fleet.signals import SIGNALS
from tallystick.fleet.vehicles import simulate
from tallystick.pipeline.jobs.refine import refine
from tallystick.pipeline.jobs.trips import trips


@pytest.fixture(scope="module")
def telemetry() -> pa.Table:
    return pa.Table.from_batches(list(simulate(5, 300, seed=6)))


@pytest.fixture(scope="module")
def refined(spark: SparkSession, telemetry: pa.Table) -> DataFrame:
    return refine(frame(spark, telemetry.to_batches()))


def test_telemetry_has_its_vss_names_types_and_values(refined: DataFrame, telemetry: pa.Table) -> None:
    kinds = {"float": "float", "double": "double", "uint16": "int", "uint8": "smallint", "int8": "tinyint"}
    columns = []
    for signal in SIGNALS:
        column = refined.select(signal.path)
        # The odometer stays as it was published: sixteen metres would be lost.
        expected = "double" if signal.column == "odometer_km" else kinds.get(signal.datatype, signal.datatype)
        assert column.dtypes[0][1] == expected, signal.path
        columns.append(f"{signal.path} as {signal.column}")
    found = pandas_of(refined.selectExpr("ts", "vehicle_id", *columns)).sort_values(["ts", "vehicle_id"])
    sent = telemetry.to_pandas().sort_values(["ts", "vin"])
    assert found.vehicle_id.tolist() == sent.vin.tolist()
    for signal in SIGNALS:
        ours, theirs = found[signal.column].to_numpy(), sent[signal.column].to_numpy()
        if "int" in signal.datatype:
            theirs = np.floor(theirs + 0.5)
        assert np.array_equal(ours, theirs.astype(ours.dtype)), signal.path


def test_frames_give_the_signals_of_the_telemetry_they_were_made_of(
    spark: SparkSession, refined: DataFrame, telemetry: pa.Table
) -> None:
    frames = frame(spark, (can.encode(batch) for batch in telemetry.to_batches()))
    columns = ("message", "problem", "other", "bus", "vehicle_id", "Vehicle.Speed as speed")
    found = pandas_of(refine(frames).selectExpr(*columns))
    assert len(found) == 4 * telemetry.num_rows
    assert found.problem.isna().all()
    assert found.other.isna().all()
    motion = found[found.message == "Motion"]
    assert found.speed.notna().sum() == len(motion) == telemetry.num_rows
    assert motion.speed.sum() == pytest.approx(first_row(refined.selectExpr("sum(Vehicle.Speed)"))[0], rel=1e-3)


ODD = """
VERSION ""
BU_: A
BO_ 100 Doors: 2 A
 SG_ Open : 0|4@1+ (1,0) [0|0] "" A
 SG_ Speed : 15|8@0+ (2,0) [0|0] "km/h" A
CM_ SG_ 100 Speed "Vehicle.Speed";
"""


def test_any_dbc_and_frames_that_are_no_good(spark: SparkSession) -> None:
    arrow = schema("can").arrow
    sent = [(100, b"\x03\x10"), (100, b"\x03"), (7, b""), (100, b"\x01\x20")]
    rows = [
        {"ts": 1000 + i, "vin": "V", "bus": 0, "can_id": id_, "payload": data} for i, (id_, data) in enumerate(sent)
    ]
    found = refine(frame(spark, pa.Table.from_pylist(rows, schema=arrow).to_batches()), ODD).orderBy("ts").collect()
    told = [(row["message"], row["problem"], row["Vehicle"]["Speed"], row["other"]) for row in found]
    assert told == [
        ("Doors", None, 32.0, {"Doors.Open": 3.0}),
        ("Doors", "short-payload", None, None),
        (None, "unknown-id", None, None),
        ("Doors", None, 64.0, {"Doors.Open": 1.0}),
    ]


def test_positions_of_buses_keep_what_has_no_vss_name(spark: SparkSession, tmp_path: Path) -> None:
    day = tmp_path / "2015-06-07.csv"
    lines = ["8,2015-06-07T08:15:59-05:00,10.0,3,76,30.2,-97.8,NORTH", "9,2015-06-07T08:16:59-05:00,255.0,3,76,0,0,"]
    day.write_text("\n".join([POSITIONS_HEADER, *lines, ""]))
    known, unknown = refine(frame(spark, RecordingReplay(day).batches())).orderBy("ts").collect()
    assert known["Vehicle"]["Speed"] == pytest.approx(16.09344)
    assert (known["Vehicle"]["CurrentLocation"]["Latitude"], known["route"], known["headsign"]) == (30.2, "3", "NORTH")
    assert unknown["Vehicle"]["Speed"] is None
    assert unknown["Vehicle"]["CurrentLocation"]["Longitude"] is None


def test_a_recorded_drive_has_its_obd_names_and_a_trip_from_its_speeds(spark: SparkSession, tmp_path: Path) -> None:
    names = ["ENGINE_RUN_TINE ()", *(f"PID_{number} ()" for number in range(26))]
    lines = [",".join([str(at), rpm, speed, *["1"] * 24]) for at, rpm, speed in DRIVE]
    (tmp_path / "drive1.csv").write_text("\n".join([",".join(names), *lines, ""]))
    signals = refine(frame(spark, RecordingReplay(tmp_path).batches()))
    earliest = first_row(signals.orderBy("ts"))
    assert earliest["vehicle_id"] == "drive1"
    assert earliest["Vehicle"]["Speed"] == 0.0
    assert (earliest["Vehicle"]["OBD"]["MAP"], earliest["Vehicle"]["OBD"]["RunTime"]) == (1.0, 0.0)
    (trip,) = trips(signals).collect()
    assert (trip["duration_s"], trip["idle_s"], trip["distance_by"]) == (40.0, 20.0, "speed")
    assert trip["distance_km"] == pytest.approx((18 * 10 + 36 * 10 + 18 * 10) / 3600)
    assert (trip["fuel_l"], trip["line"], trip["cut"]) == (None, None, "ignition")


DRIVE = [(0, "0", "0"), (1, "800", "0"), (11, "900", "0"), (21, "2000", "36"), (31, "2000", "36"), (41, "0", "0")]


def test_rows_that_are_not_of_vehicles_are_refused(spark: SparkSession) -> None:
    with pytest.raises(Misuse, match="not of vehicles"):
        refine(frame(spark, Sensors("vitals", 2, 60).batches()))
