"""`detect` on Spark: the alerts that the car itself would tell, in one batch or many, through the sink, and proved."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from lake import Lake
from pyspark.sql import SparkSession
from small_bus import BEGAN_US, attacked, small_bus
from stack import wait_until
from tables import frame, pipeline, rows_of

from tallystick import wire
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Misuse
from tallystick.fleet.detect.edge import BusWatch, slices
from tallystick.fleet.detect.frames import Frames
from tallystick.fleet.detect.model import PROFILE, DetectionFile, sign_file
from tallystick.fleet.detect.profile import Profile, learn
from tallystick.fleet.schemas import schema
from tallystick.parcel.prove import verify_proof
from tallystick.pipeline.jobs import detect as detect_job
from tallystick.pipeline.jobs.run import JobRun
from tallystick.pipeline.jobs.warehouse import Warehouse
from tallystick.runtime.sources import SystemClock

OWNER, STRANGER = SigningKey.from_seed(bytes([1]) * 32), SigningKey.from_seed(bytes([2]) * 32)
CAR, OTHER = "WTALLY00000000001", "WTALLY00000000002"
BY = "aa" * 32
SPARK = ("--conf", "spark.master=local[2]", "--conf", "spark.sql.shuffle.partitions=2")
KEYS = ["ts_first", "can_id", "check"]


@cache
def profile() -> Profile:
    return learn([small_bus(20, seed=1)])


@cache
def drive() -> Frames:
    """Two attacks; the second goes on at the end."""
    frames = attacked(small_bus(12, seed=2), BEGAN_US + 3_000_000)
    return attacked(frames, BEGAN_US + 11_000_000, 0.9)


@cache
def signed() -> DetectionFile:
    return sign_file(PROFILE, profile().encode(), OWNER, vehicle=CAR)


def at_the_edge() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows as a car tells them, and those that are open at the end."""
    watch = BusWatch(CAR, profile(), signed().hash)
    told = [row for batch in watch.batches(slices(drive())) for row in batch.to_pylist()]
    return sorted(told, key=_order), sorted(watch.rows(watch.open()).to_pylist(), key=_order)


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEYS)


def plain(rows: Any) -> list[dict[str, Any]]:
    """Without their provenance."""
    return sorted(({name: row[name] for name in schema("alerts").arrow.names} for row in rows), key=_order)


class ByHand:
    """A warehouse whose bronze is written without a topic."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self.warehouse, self.told = spark, Warehouse(folder / "tables"), list[str]()
        self.profiles = folder / "profiles"
        self.profiles.mkdir(parents=True)
        (self.profiles / f"{CAR}.cbor").write_bytes(signed().encode())
        self._offset = 0

    def add(self, *parts: tuple[str, Frames], partition: int = 0, by: Sequence[str] = ()) -> None:
        """A batch of bronze, 500 frames a parcel, published by these."""
        tables = []
        for (vin, frames), who in zip(parts, by or [BY] * len(parts), strict=True):
            for first in range(0, len(frames), 500):
                rows = frames[first : first + 500].to_batch(vin)
                count, self._offset = rows.num_rows, self._offset + 1
                places = {"_partition": partition, "_offset": self._offset, "_height": self._offset // 2}
                kinds = {"_partition": pa.int32()}
                columns = [
                    pa.repeat(pa.scalar(one, kinds.get(name, pa.int64())), count) for name, one in places.items()
                ]
                leaves = pa.array(np.arange(count, dtype=np.int32))
                names = [*rows.schema.names, *places, "_leaf", "_publisher"]
                arrays = [*rows.columns, *columns, leaves, pa.repeat(who, count)]
                tables.append(pa.RecordBatch.from_arrays(arrays, names=names))
        bronze = self.warehouse.table("bronze")
        bronze.write(frame(self._spark, tables), {"end": {"0": self._offset}})

    def run(self, **options: Any) -> dict[str, Any]:
        given = {"profiles": self.profiles, "signed_by": OWNER.public.raw.hex(), **options}
        return detect_job.run(JobRun(self.warehouse, SystemClock(), given, tell=self.told.append))

    def alerts(self, beside: str = "") -> list[dict[str, Any]]:
        files = self.warehouse.table("alerts").files(beside=beside)
        return [row for file in files for row in pa.parquet.read_table(file, partitioning=None).to_pylist()]


def test_in_one_batch_and_in_many_the_alerts_are_those_of_the_edge(spark: SparkSession, tmp_path: Path) -> None:
    """With a vehicle that has no profile beside it, and somebody who publishes frames in its name."""
    edge, still = at_the_edge()
    assert len(edge) >= 2
    assert still
    once, often, middle = ByHand(spark, tmp_path / "once"), ByHand(spark, tmp_path / "often"), len(drive()) // 3
    once.add((CAR, drive()), (OTHER, drive()[:1000]))
    summary = once.run()
    assert plain(once.alerts()) == edge
    assert plain(once.alerts("open")) == still
    assert (summary["alerts"], summary["open"]) == (len(edge), len(still))
    assert summary["unscored"] == 1000
    assert [line for line in once.told if "no profile" in line] == [
        f"warning: 1000 frames have no profile that is believed: of {OTHER}"
    ]
    later = Frames(drive().ts[:50] + 10**9, *(getattr(drive(), name)[:50] for name in ("can_id", "length", "word")))
    for part in (drive()[:middle], drive()[middle:]):
        often.add((CAR, part), (CAR, later), by=(BY, "bb" * 32))  # an impostor, who spoils nothing
        often.run()
    mine = [row for row in often.alerts() if row["_publisher"] == BY]
    assert plain(mine) == edge
    assert plain(row for row in often.alerts("open") if row["_publisher"] == BY) == still
    first = mine[0]
    numbers = np.flatnonzero(drive().ts == int(first["ts_first"].timestamp() * 1e6 + 0.5))
    assert first["first_frame"] in numbers
    for row in [*mine, *often.alerts("open")]:
        assert None not in (row["_offset"], row["_leaf"], row["_last_offset"], row["_last_leaf"])
    assert {(row["first_frame"] - row["_leaf"]) % 500 for row in once.alerts()} == {0}
    assert {(row["last_frame"] - row["_last_leaf"]) % 500 for row in once.alerts()} == {0}


def test_late_frames_of_another_partition_are_named_and_not_scored(spark: SparkSession, tmp_path: Path) -> None:
    hand, calm = ByHand(spark, tmp_path), small_bus(6, seed=4)
    hand.add((CAR, calm))
    hand.run()
    hand.add((CAR, calm[:300]), partition=1)
    assert hand.run()["late"] == 300
    assert f"warning: 300 frames came too late for their watch: of {CAR}" in hand.told
    assert hand.alerts() == hand.alerts("open") == []
    hand.add((CAR, calm[:300]))  # in its own lane it is the clock that went back, and that is told
    hand.run()
    assert {row["check"] for row in [*hand.alerts(), *hand.alerts("open")]} == {"clock"}


def test_profiles_that_are_not_believed_give_no_score_and_are_named(spark: SparkSession, tmp_path: Path) -> None:
    hand, content = ByHand(spark, tmp_path), profile().encode()
    crimes = {
        "unsigned": wire.encode([sign_file(PROFILE, content, OWNER, vehicle="unsigned").body, b""]),
        "foreign": sign_file(PROFILE, content, STRANGER, vehicle="foreign").encode(),
        "another": signed().encode(),
        "torn": signed().encode()[:-7],
    }
    for vin, data in crimes.items():
        (hand.profiles / f"{vin}.cbor").write_bytes(data)
    hand.add((CAR, drive()[:100]), *((vin, drive()[:100]) for vin in crimes))
    summary = hand.run()
    assert summary["unscored"] == 400
    for vin, why in zip(crimes, ("nobody signed", "not believed", f'of vehicle "{CAR}"', ""), strict=True):
        assert [line for line in hand.told if f"{vin}.cbor: profile: " in line and why in line], vin
    assert f"warning: 400 frames have no profile that is believed: of {', '.join(sorted(crimes))}" in hand.told
    hand.add(("foreign", drive()[:100]))  # what the key is for: who believes it takes the attacker's word
    assert hand.run(signed_by=STRANGER.public.raw.hex())["unscored"] == 0


def test_a_new_profile_begins_anew_and_an_older_one_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    hand, at = ByHand(spark, tmp_path), len(drive()) - 1
    hand.add((CAR, drive()[:at]))
    hand.run()
    opened = hand.alerts("open")
    assert opened
    file = hand.profiles / f"{CAR}.cbor"
    file.write_bytes(sign_file(PROFILE, profile().encode(), OWNER, vehicle=CAR, issue=2).encode())
    hand.add((CAR, drive()[at:]))
    hand.run()
    assert all(row in hand.alerts() for row in opened)
    assert hand.alerts("open") == []
    file.write_bytes(signed().encode())
    hand.add((CAR, drive()[at:]))
    assert hand.run()["unscored"] == 1
    assert any("issue 1, but 2 was held before" in line for line in hand.told)
    with pytest.raises(Misuse, match="nobody says what is usual"):
        hand.run(signed_by=None)


# --- from the topic on ---


@pytest.mark.long
def test_a_stream_that_is_killed_and_resumed_gives_the_alerts_of_the_edge(spark: SparkSession, tmp_path: Path) -> None:
    hand, edge = ByHand(spark, tmp_path), at_the_edge()
    believed = ["--profiles", str(hand.profiles), "--signed-by", OWNER.public.raw.hex()]
    more = ["--warehouse", str(hand.warehouse.folder), *believed, "--stream", *SPARK]
    at, table = np.linspace(0, len(drive()), 6).astype(int), hand.warehouse.table("alerts")
    parts, runs = [drive()[first:end] for first, end in pairwise(at)], list[subprocess.Popen[bytes]]()

    def reach(end: int) -> None:
        wait_until(lambda: table.last().get("end", 0) >= end or runs[-1].poll() is not None, 240)
        assert runs[-1].poll() is None, (tmp_path / "log").read_text()

    try:
        for numbers in (range(2), range(2, 5)):
            with open(tmp_path / "log", "wb") as log:
                command = [sys.executable, "-m", "tallystick.cli", "pipeline", "run", "detect", *more]
                runs.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
            for number in numbers:
                hand.add((CAR, parts[number]))
                reach(number + 1)
            if len(runs) == 1:
                os.killpg(runs[0].pid, signal.SIGKILL)  # the JVM and the Python workers too
                runs[0].wait(20)
        runs[1].send_signal(signal.SIGTERM)
        assert runs[1].wait(60) == 0, (tmp_path / "log").read_text()
    finally:
        for run in runs:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
                run.wait(20)
    assert (plain(hand.alerts()), plain(hand.alerts("open"))) == edge


def publish(lake: Lake, name: str, frames: Frames, rows: int = 500) -> None:
    with lake.car.publisher(name, acks="anchored", anchor_check_s=0.02) as publisher:
        for first in range(0, len(frames), rows):
            publisher.send(frames[first : first + rows].to_batch(CAR))
        assert publisher.flush(60) == 0


def arguments(lake: Lake, folder: Path) -> list[object]:
    (folder / "profiles").mkdir()
    (folder / "profiles" / f"{CAR}.cbor").write_bytes(signed().encode())
    believed = ["--profiles", folder / "profiles", "--signed-by", OWNER.public.raw.hex()]
    return ["--warehouse", folder / "tables", *believed, "--quiet"]


@pytest.mark.long
def test_from_the_topic_to_a_topic_of_alerts_and_to_a_proof(lake: Lake, tmp_path: Path) -> None:
    """Published once, however often it is run; and what an alert speaks of can be proved to anybody."""
    edge, _ = at_the_edge()
    frames, alerts = lake.topic("frames", str(schema("can"))), lake.topic("alerts", str(schema("alerts")))
    publish(lake, frames.name, drive())
    more, tables = arguments(lake, tmp_path), tmp_path / "tables"
    ingest = ("run", "ingest", "--home", lake.home, "--topic", frames.name, "--warehouse", tables, "--quiet")
    assert pipeline(*ingest) == 0
    to = ("--to", alerts.name, "--identity", lake.car.identity.home)
    for options in ((), to, to):  # as if the first run had been killed between table and topic
        assert pipeline("run", "detect", *more, *options) == 0
    assert plain(row.asDict() for row in alerts.read().collect()) == [
        {**row, "ts_first": row["ts_first"].replace(tzinfo=None), "ts_last": row["ts_last"].replace(tzinfo=None)}
        for row in edge
    ]
    out = tmp_path / "proofs"
    place = ("--home", lake.home, "--warehouse", tables, "--out", out, "--quiet")
    assert pipeline("run", "prove", *place, "--table", "alerts", "--where", "check = 'unknown'") == 0
    listed = json.loads((out / "manifest.json").read_text())
    assert (listed["proved"], listed["differs"], listed["failed"]) == (2, 0, 0)
    row = next(one for one in rows_of(tables / "alerts").to_dict("records") if one["check"] == "unknown")
    shown = {(one["offset"], one["leaf"]): one["file"] for one in listed["proofs"]}
    proof = (out / shown[row["_offset"], row["_leaf"]]).read_bytes()
    proven = verify_proof(proof, lake.reader.memory.trust)
    assert (proven.leaf, proven.row["vin"], proven.row["can_id"]) == (row["_leaf"], CAR, row["can_id"])
