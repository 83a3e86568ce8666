"""`tally detect` as people use it: calibrate, score, explain; and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import done, refused
from stack import READ, WRITE, Stack

from tallystick.fleet.bus import dbc_of, simulate_bus
from tallystick.fleet.dbc import Dbc
from tallystick.fleet.detect.frames import Frames
from tallystick.fleet.schemas import schema

CAR, SPEED, S = "WVW42", "Vehicle.Speed", 1_000_000


def write(file: Path, frames: Frames) -> Path:
    pq.write_table(pa.table(frames.to_batch(CAR)), file)
    return file


@dataclass(frozen=True)
class Bench:
    """A simulated car: benign drives, one in which a message lies for five seconds, and a signed profile."""

    folder: Path
    drives: Sequence[Path]
    attacked: Path
    can_id: int

    @property
    def key(self) -> Path:
        return self.folder / "maker.key"

    @property
    def profile(self) -> Path:
        return self.folder / "profile.cbor"

    @property
    def score(self) -> tuple[object, ...]:
        return ("detect", "score", self.attacked, "--vehicle", CAR, "--profile", self.profile, *self.believed)

    @property
    def believed(self) -> tuple[object, ...]:
        return ("--signed-by", f"{self.key}.pub")

    @property
    def dbc(self) -> tuple[object, ...]:
        return ("--dbc", self.folder / "car.dbc")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("bench")
    drives = [write(folder / f"{n}.parquet", simulate_bus(0, 1, seed=n, start_us=n * 1000 * S)) for n in (1, 2)]
    frames = simulate_bus(0, 0.5, seed=3, start_us=5000 * S)
    (folder / "car.dbc").write_text(dbc_of(0))
    messages = Dbc.parse(dbc_of(0)).messages
    can_id = next(one for one, message in messages.items() if any(signal.key == SPEED for signal in message.signals))
    lies = (frames.can_id == can_id) & (frames.ts > 5010 * S) & (frames.ts < 5015 * S)
    word = np.where(lies, frames.word ^ np.uint64(0x5555_5555_5555_5555), frames.word)
    attacked = write(folder / "attacked.parquet", Frames(frames.ts, frames.can_id, frames.length, word))
    bench = Bench(folder, drives, attacked, can_id)
    done("detect", "calibrate", *drives, "--vehicle", CAR, "--out", bench.profile, "--key", bench.key)
    return bench


def test_a_lie_is_found_named_explained_and_drawn(bench: Bench, tmp_path: Path) -> None:
    for suffix in ("parquet", "jsonl"):
        alerts, svg = tmp_path / f"alerts.{suffix}", tmp_path / "alert.svg"
        told = done(*bench.score, *bench.dbc, "--out", alerts, "--json").json
        (number,) = [n for n, row in enumerate(told["rows"], 1) if row["can_id"] == bench.can_id]
        assert told["alerts"] == len(told["rows"]) <= 3
        explain = ("detect", "explain", number, "--alerts", alerts, "--capture", bench.attacked)
        words = (*explain, "--profile", bench.profile, *bench.believed, *bench.dbc, "--svg", svg)
        said = done(*words).out
        assert f"vehicle {CAR}, identifier {bench.can_id:X}, " in said
        assert done(*words, "--json").json["words"][0] in said
        drawn = ElementTree.fromstring(svg.read_text())
        assert len(drawn.findall("{*}polyline")) >= 1
    shown = done(*bench.score).out.splitlines()
    assert shown[0].split()[:3] == ["number", "time", "identifier"]
    assert any(f"{bench.can_id:X}" in line for line in shown)


def test_a_calibration_tells_what_it_found_and_what_is_off(bench: Bench, tmp_path: Path) -> None:
    short = write(tmp_path / "short.parquet", simulate_bus(0, 0.02, seed=1))
    words = ("--vehicle", CAR, "--out", tmp_path / "p.cbor", "--key", bench.key)
    told = done("detect", "calibrate", short, *words, "--json").json
    assert told["seconds"] == pytest.approx(1.2, abs=0.1)
    assert "at least" in told["off"]["jump"]
    assert told["fields"].keys() <= {"constant", "counter", "noise", "number", "state"}
    said = done("detect", "calibrate", short, *words)
    assert "off" in said.out
    assert "next: calibrate on longer drives" in said.err


def test_scoring_leaves_the_profile_as_it_was_signed(bench: Bench) -> None:
    before = bench.profile.read_bytes()
    done(*bench.score)
    assert bench.profile.read_bytes() == before


def test_a_profile_of_a_stranger_another_car_or_an_older_issue_is_refused(bench: Bench, tmp_path: Path) -> None:
    score = ("detect", "score", bench.attacked, "--profile", bench.profile)
    assert "of vehicle" in refused(3, *score, "--vehicle", "another", *bench.believed)[0]
    assert "not believed" in refused(3, *score, "--vehicle", CAR, "--signed-by", "12" * 32)[0]
    assert "not a key" in refused(2, *score, "--vehicle", CAR, "--signed-by", "maker")[0]
    held = tmp_path / "held.json"
    newer = tmp_path / "newer.cbor"
    words = ("--merge", bench.profile, "--vehicle", CAR, "--key", bench.key, "--out", newer, "--json")
    assert done("detect", "calibrate", bench.drives[0], *words).json["issue"] == 2
    done(*(newer if one == bench.profile else one for one in bench.score), "--held", held)
    assert "issue 1, but 2 was held before" in refused(3, *bench.score, "--held", held)[0]
    anew = ("--vehicle", CAR, "--key", bench.key, "--out", newer, "--issue", 3, "--json")
    assert done("detect", "calibrate", *bench.drives, *anew).json["issue"] == 3
    done(*(newer if one == bench.profile else one for one in bench.score), "--held", held)


def test_a_drive_whose_labels_mark_an_attack_is_not_learnt(bench: Bench, tmp_path: Path) -> None:
    capture = tmp_path / "road.csv"
    header = "Time,Id,Byte1,Byte2,Byte3,Byte4,Byte5,Byte6,Byte7,Byte8,Label\n"
    capture.write_text(header + "0.0,0D0,00,00,,,,,,,Benign\n0.1,0D0,00,01,,,,,,,Fuzzing\n")
    words = ("--vehicle", CAR, "--out", tmp_path / "p.cbor", "--key", bench.key)
    assert "mark an attack" in refused(2, "detect", "calibrate", capture, *words)[0]


def test_mistakes_in_explaining_are_named(bench: Bench, tmp_path: Path) -> None:
    alerts = tmp_path / "alerts.jsonl"
    done(*bench.score, "--out", alerts)
    more = ("--capture", bench.attacked, "--profile", bench.profile, *bench.believed)
    assert "not 99" in refused(2, "detect", "explain", 99, "--alerts", alerts, *more)[0]
    assert "holds no alerts" in refused(3, "detect", "explain", 1, "--alerts", bench.folder / "car.dbc", *more)[0]
    row = json.loads(alerts.read_text().splitlines()[0])
    alerts.write_text(json.dumps({**row, "profile": "00" * 32}) + "\n")
    assert "another profile" in refused(3, "detect", "explain", 1, "--alerts", alerts, *more)[0]


def test_alerts_are_published_by_an_identity_whose_own_key_signed_the_profile(bench: Bench, tmp_path: Path) -> None:
    with Stack(tmp_path / "instance") as stack:
        owner = stack.tenant("acme")
        token = stack.topic(owner, "alerts", str(schema("alerts")))
        car, reader = stack.principal("acme", "car"), stack.principal("acme", "reader")
        stack.grant(owner, token, car, WRITE)
        stack.grant(owner, token, reader, READ)
        home, profile = ("--home", car.identity.home), tmp_path / "profile.cbor"
        done("detect", "calibrate", *bench.drives, "--vehicle", CAR, "--out", profile, *home)
        words = ("detect", "score", bench.attacked, "--vehicle", CAR, "--profile", profile, *home, "--topic", "alerts")
        told = done(*words, "--json").json
        arrived = next(iter(reader.subscriber("alerts"))).batch.data
        assert arrived.num_rows == told["alerts"] > 0
        assert arrived.column("vin").to_pylist()[0] == CAR


@pytest.mark.long
def test_a_network_is_trained_and_looks_where_its_model_is_named(bench: Bench, tmp_path: Path) -> None:
    for module, extra in (("jax", "train"), ("onnx", "train"), ("onnxruntime", "detect")):
        pytest.importorskip(module, reason=f"{module} is not installed: pip install 'tallystick[{extra}]'")
    model, held = tmp_path / "model.cbor", ("--held", tmp_path / "held")
    told = done(
        "detect", "train", "--seed", 1, "--minutes", 0.3, "--issue", 2, "--out", model, "--key", bench.key, "--json"
    ).json
    assert told["bytes"] < 1_000_000
    alerts = done(*bench.score, *held, "--model", model, "--json").json["alerts"]
    assert alerts >= done(*bench.score, *held, "--json").json["alerts"]
    assert (
        "profile expected, found a model"
        in refused(3, *(model if one == bench.profile else one for one in bench.score))[0]
    )


@pytest.mark.long
def test_an_evaluation_tells_each_group_of_attacks() -> None:
    told = done("detect", "evaluate", "--quick", "--json").json
    assert {one["group"].split()[1] for one in told["groups"]} == {"fabrication", "suspension", "masquerade"}
    assert [one["minutes"] for one in told["false_alarms"]] == sorted(one["minutes"] for one in told["false_alarms"])
