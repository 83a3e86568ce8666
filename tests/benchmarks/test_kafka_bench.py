"""What `make bench-kafka` makes of its measurements; the arms themselves: kafka/test_kafka_arms.py."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import harness

NAMES = ("produce_dicts_512", "produce_columns_512", "fetch_512")


def test_a_ratio_is_the_median_of_the_rounds_and_not_that_of_the_medians() -> None:
    result = harness.compare("x", [1.0, 2.0, 4.0], [2.0, 8.0, 4.0], "ns", target=2.0)
    assert (result.ours, result.peer, result.ratio, result.runs, result.met) == (2.0, 4.0, 2.0, 3, True)
    assert harness.compare("x", [1.0], [1.9], "ns", target=2.0).met is False
    assert harness.compare("x", [0.0], [0.0], "ns").ratio == 1.0  # too coarse to see
    assert harness.compare("x", [3.0], None, "ns").ratio is None


@pytest.fixture
def report(tmp_path: Path) -> ModuleType:
    pytest.importorskip("confluent_kafka")
    import kafka_report

    results = [harness.compare("spark_batch", [250.0], [1000.0], "ns/record", 5.0)]
    for name in NAMES:
        results += [
            harness.compare(name, [500.0], [2000.0], "ns/record", 4.0),
            harness.compare(f"{name}_unsealed", [250.0], [2000.0], "ns/record"),
            harness.compare(f"{name}_cpu", [400.0], [1600.0], "ns CPU/record"),
            harness.compare(f"{name}_cpu_unsealed", [200.0], [1600.0], "ns CPU/record"),
            harness.compare(f"{name}_broker", [100.0], [900.0], "ns CPU/record"),
            harness.compare(f"{name}_notary", [300.0], None, "ns CPU/record"),
        ]
    results += [
        harness.compare("disk_512", [40.0], [180.0], "bytes/record"),
        harness.compare("disk_512_unsealed", [30.0], [180.0], "bytes/record"),
        harness.compare("disk_512_notary", [2.0], None, "bytes/record"),
    ]
    harness.keep("kafka", results, tmp_path)
    return kafka_report


def test_the_tables_show_all_arms_beside_each_other(report: ModuleType, tmp_path: Path) -> None:
    text = report.tables(tmp_path)
    assert "| fetch_512 | 500 | 4,000 | 2,000 | thousand/s | 4.00 | 4 | met |" in text
    assert "| spark_batch | 1,000 | | 4,000 | thousand/s | 4.00 | 5 | **missed** |" in text
    assert "| fetch_512 | 1,600 | 200 | 400 | 900 | 100 | 300 |" in text
    assert "| disk_512 | 180.0 | 30.0 | 40.0 | bytes/record, and 2.0 at the notary |" in text


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_each_operation_is_drawn(report: ModuleType, tmp_path: Path) -> None:
    assert [path.name for path in report.draw(tmp_path)] == [
        "kafka_produce_dicts.png",
        "kafka_produce_columns.png",
        "kafka_fetch.png",
    ]
    assert all(path.stat().st_size for path in report.draw(tmp_path))


def test_the_section_of_the_arm_without_sealing_is_that_of_a_parcel() -> None:
    pytest.importorskip("confluent_kafka")
    import data
    import kafka_arms

    from tallystick.record.batch import Batch

    for rows in (8, 4_096):  # below and above what is laid out in planes
        batch = Batch.of(data.SCHEMA, data.columns(rows))
        assert kafka_arms.decode(kafka_arms.encode(batch)).data.equals(batch.data)


def test_results_of_other_cases_stay(tmp_path: Path) -> None:
    harness.keep(
        "kafka", [harness.compare("a", [1.0], [2.0], "ns"), harness.compare("b", [1.0], [2.0], "ns")], tmp_path
    )
    harness.keep("kafka", [harness.compare("b", [2.0], [2.0], "ns")], tmp_path)
    found = {one["name"]: one["ratio"] for one in json.loads((tmp_path / "kafka.json").read_text())}
    assert found == {"a": 2.0, "b": 1.0}
