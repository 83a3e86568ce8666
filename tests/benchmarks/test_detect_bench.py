"""The benchmark of detection runs, and its rows are those that the page needs. No times."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import detect
import detect_tables
import harness
import pages

from tallystick.fleet.bus import simulate_bus
from tallystick.fleet.detect.evaluate import DriveScore, figures

KINDS = ("fabrication", "suspension", "masquerade")


def told(kind: str, right: int, wrong: int) -> dict[str, object]:
    counts = (right, wrong, 100 - right)
    return figures(f"car {kind}", [DriveScore("car", "one", kind, 36.0, True, 0.5, 1, counts, counts, counts)] * 2)


def test_a_target_is_met_from_below_or_from_above() -> None:
    rows = {row.name: row for row in detect.group_rows(told("fabrication", 99, 1))}
    assert [(name, row.met) for name, row in rows.items()] == [
        ("car_fabrication_found", True),
        ("car_fabrication_frame", True),
        ("car_fabrication_second", True),
        ("car_fabrication_delay", True),
    ]
    late = {**told("masquerade", 20, 1), "delay_s_max": 1.2, "found": 1}
    assert [row.met for row in detect.group_rows(late)] == [False] * 4
    assert [row.met for row in detect.group_rows(told("suspension", 20, 1))][1:] == [None] * 3


def test_the_tables_have_a_line_for_each_group_and_each_detector(tmp_path: Path) -> None:
    rows = [row for kind in KINDS for row in detect.group_rows(told(kind, 95, 1))]
    rows += [detect.result("car_masquerade_frame lookup", 0.25, "F1"), detect.result("alarms lookup", 70.0, "an hour")]
    rows += [detect.result("alarms checks", 1.0, "an hour")]
    harness.merge(tmp_path, detect.SUITE, [asdict(row) for row in rows])
    found = pages.Suite(tmp_path, detect.SUITE)
    assert [line.split(" | ")[0] for line in detect_tables.groups(found).splitlines()[2:]] == [
        f"| car, {kind}" for kind in KINDS
    ]
    assert "| lookup |  |  | 0.250 | 70.0 |" in detect_tables.detectors(found)


def test_bronze_of_the_benchmark_has_every_frame_of_every_vehicle(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    frames = simulate_bus(0, 0.1, seed=1)
    assert detect.bronze(frames, 3, tmp_path / "bronze.parquet") == 3 * len(frames)
    table = pq.read_table(tmp_path / "bronze.parquet")
    assert table.num_rows == 3 * len(frames)
    assert table.column("vin").unique().to_pylist() == ["VIN0000", "VIN0001", "VIN0002"]


@pytest.mark.long
def test_a_short_run_has_every_row(tmp_path: Path) -> None:
    """Without Spark, which tests/pipeline runs."""
    subjects = [f"--only={one}" for one in detect.SUBJECTS if one != "spark"]
    command = [sys.executable, detect.__file__, "--quick", *subjects, "--into", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    names = [row["name"] for row in harness.read(tmp_path, detect.SUITE)]
    assert {"checks", "network", "edge", "alarms_simulated", "alarms_2_min", "alarms network"} <= set(names)
    assert {f"simulated_{kind}_found" for kind in KINDS} <= set(names)
    assert "simulated_masquerade_frame without jump" in names
