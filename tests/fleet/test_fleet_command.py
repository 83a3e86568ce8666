"""`tally fleet`: files, stdout, a topic on a real instance, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stack import READ, WRITE, Stack

from tallystick.cli import main
from tallystick.cli.fleet import ATTACKS
from tallystick.fleet.detect.attacks import FAMILIES
from tallystick.fleet.schemas import TEXTS, schema
from tallystick.fleet.vehicles import simulate
from tallystick.record.schema import Schema


def test_telemetry_to_parquet_with_its_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, truth = tmp_path / "drive.parquet", tmp_path / "truth.json"
    arguments = ["fleet", "simulate", "--vehicles", "10", "--minutes", "3", "--seed", "4", "--json"]
    assert main.run([*arguments, "--out", str(out), "--truth", str(truth)]) == 0
    summary = json.loads(capsys.readouterr().out)
    rows = pq.read_table(out)
    assert rows.equals(pa.Table.from_batches(list(simulate(10, 180, seed=4))))
    assert summary["rows"] == rows.num_rows
    told = json.loads(truth.read_text())
    assert told["trip_count"] == len(told["trips"]) == summary["trip_count"]


def test_a_bus_attacked_with_its_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, truth = tmp_path / "bus.parquet", tmp_path / "truth.json"
    arguments = ["fleet", "simulate", "--what", "bus", "--layout", "1", "--minutes", "1", "--seed", "3", "--json"]
    arguments += ["--out", str(out)]
    assert main.run(arguments) == 0
    benign = pq.read_table(out)
    assert benign.schema.equals(schema("can").arrow)
    assert json.loads(capsys.readouterr().out)["rows"] == benign.num_rows > 60_000
    assert main.run([*arguments, "--attack", "flood", "--truth", str(truth)]) == 0
    told = json.loads(truth.read_text())
    assert {name: told[name] for name in ("family", "layout", "version")} == {
        "family": "flood",
        "layout": 1,
        "version": 1,
    }
    attacked = pq.read_table(out)
    assert attacked.num_rows == benign.num_rows + len(told["attacker_rows"])
    assert set(attacked.take(told["attacker_rows"]).column("can_id").to_pylist()) == {0}
    assert list(FAMILIES) == ATTACKS


@pytest.mark.parametrize("what", ["telemetry", "can", "vitals", "home"])
def test_rows_on_stdout_and_the_summary_beside_them(what: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    arguments = ["fleet", "simulate", "--what", what, "--vehicles", "3", "--minutes", "2", "--out", "-", "--json"]
    assert main.run(arguments) == 0
    shown = capfdbinary.readouterr()
    rows = [json.loads(line) for line in shown.out.splitlines()]
    assert list(rows[0]) == schema(what).arrow.names
    assert json.loads(shown.err.splitlines()[-1])["rows"] == len(rows) > 0


def test_a_recording_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    day = tmp_path / "2015-06-07.csv"
    day.write_text(
        "vehicle_id,timestamp,speed,route_id,trip_id,latitude,longitude,trip_headsign\n"
        + "8,2015-06-07T08:15:59-05:00,10.0,3,76,30.2,-97.8,NORTH\n" * 2
    )
    assert main.run(["fleet", "replay", str(day), "--out", str(tmp_path / "day.parquet"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert {name: summary[name] for name in ("rows", "duplicates", "files")} == {"rows": 1, "duplicates": 1, "files": 1}


def test_published_to_a_topic_every_row_arrives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Stack(tmp_path / "instance") as stack:
        owner = stack.tenant("acme")
        token = stack.topic(owner, "telemetry", str(schema("telemetry")))
        car, reader = stack.principal("acme", "car"), stack.principal("acme", "reader")
        stack.grant(owner, token, car, WRITE)
        stack.grant(owner, token, reader, READ)
        arguments = ["fleet", "simulate", "--vehicles", "20", "--minutes", "2", "--topic", "telemetry", "--json"]
        assert main.run([*arguments, "--home", str(car.identity.home)]) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        arrived = []
        for received in reader.subscriber("telemetry"):
            arrived.append(received.batch.data)
            if sum(batch.num_rows for batch in arrived) >= rows:
                break
    sent = pa.Table.from_batches(list(simulate(20, 120)))
    assert pa.Table.from_batches(arrived).equals(sent)


def test_a_truth_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, truth = tmp_path / "rows.jsonl", tmp_path / "nowhere" / "truth.json"
    arguments = ["fleet", "simulate", "--vehicles", "1", "--minutes", "1", "--out", str(out), "--truth", str(truth)]
    assert main.run(arguments) == 4
    assert "nowhere" in capsys.readouterr().err


def test_every_schema_is_printed_as_one_writes_it(capsys: pytest.CaptureFixture[str]) -> None:
    for name in TEXTS:
        assert main.run(["fleet", "schema", name]) == 0
        assert Schema.parse(capsys.readouterr().out) == schema(name)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["simulate"], "--topic or --out"),
        (["simulate", "--out", "x.jsonl", "--topic", "t"], "--topic or --out"),
        (["simulate", "--out", "x.xlsx"], "x.xlsx"),
        (["simulate", "--out", "-", "--rate", "soon"], "soon"),
        (["simulate", "--out", "-", "--start", "2026-01-05"], "zone"),
        (["simulate", "--out", "-", "--step", "5"], "step_s"),
        (["simulate", "--out", "-", "--attack", "ramp"], "--attack ramp"),
        (["simulate", "--what", "bus", "--out", "-", "--minutes", "0"], "minutes"),
        (["replay", "nowhere.tar", "--out", "-"], "nowhere.tar"),
    ],
)
def test_mistakes_are_named(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["fleet", *arguments]) == 2
    assert named in capsys.readouterr().err
