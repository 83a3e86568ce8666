"""Pacing on a clock that moves only when asked, cutting, and files."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tallystick.errors import Misuse, Unavailable
from tallystick.fleet import can
from tallystick.fleet.batches import SILENCE_S_MAX, TICK_S, paced, rechunked
from tallystick.fleet.files import writing
from tallystick.fleet.vehicles import simulate
from tallystick.runtime.sources import ManualClock


def rows(*seconds: float) -> pa.RecordBatch:
    ts = pa.array([round(1000 * second) for second in seconds], pa.int64()).cast(pa.timestamp("ms", "UTC"))
    return pa.RecordBatch.from_arrays([ts], names=["ts"])


@pytest.mark.parametrize("speed", [0.5, 1.0, 20.0])
def test_rows_are_handed_on_when_they_are_due(speed: float) -> None:
    clock = ManualClock()
    came = []
    for batch in paced([rows(50, 50, 51, 53), rows(53, 58)], clock, speed):
        came += [(clock.monotonic(), row["ts"].timestamp() - 50) for row in batch.to_pylist()]
    assert len(came) == 6
    for at_s, due_s in came:
        assert at_s <= due_s / speed + 1e-9
        assert at_s > due_s / speed - TICK_S - 1e-9


def test_a_long_silence_is_cut_short_and_the_pace_goes_on() -> None:
    clock = ManualClock()
    came = [clock.monotonic() for _ in paced([rows(0), rows(86_400), rows(86_402)], clock)]
    assert came == pytest.approx([0.0, SILENCE_S_MAX, SILENCE_S_MAX + 2.0])


def test_speed_and_chunks_must_be_positive() -> None:
    with pytest.raises(Misuse, match="speed"):
        paced([], ManualClock(), 0.0)
    with pytest.raises(Misuse, match="chunk"):
        rechunked([], 0)


@pytest.mark.parametrize("rows_each", [1, 3, 4, 100])
def test_cutting_changes_no_row(rows_each: int) -> None:
    parts = [rows(1, 2, 3), rows(), rows(4), rows(5, 6, 7, 8)]
    cut = list(rechunked(parts, rows_each))
    assert pa.Table.from_batches(cut).equals(pa.Table.from_batches(parts))
    assert all(batch.num_rows == rows_each for batch in cut[:-1])


def test_files_hold_the_rows(tmp_path: Path) -> None:
    batches = list(simulate(5, 200, seed=1, chunk_rows=100))
    for name in ("rows.parquet", "rows.jsonl"):
        with writing(tmp_path / name) as take:
            for batch in batches:
                take(batch)
    assert pq.read_table(tmp_path / "rows.parquet").equals(pa.Table.from_batches(batches))
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert len(lines) == sum(batch.num_rows for batch in batches)
    assert lines[0]["ts"].startswith("2026-01-05T06:00")


def test_payloads_are_written_in_hexadecimal(tmp_path: Path) -> None:
    frames = can.encode(next(simulate(1, 100)))
    with writing(tmp_path / "frames.jsonl") as take:
        take(frames)
    first = json.loads((tmp_path / "frames.jsonl").read_text().splitlines()[0])
    assert bytes.fromhex(first["payload"]) == frames.column("payload")[0].as_py()


def test_files_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"rows\.xlsx"), writing(tmp_path / "rows.xlsx"):
        pass
    with pytest.raises(Unavailable, match="nowhere"), writing(tmp_path / "nowhere" / "rows.jsonl"):
        pass
