"""Recordings: small files with every trap, and the real ones against pandas where they lie."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tallystick.errors import Malformed, Misuse
from tallystick.fleet.replay import POSITIONS_HEADER, RecordingReplay
from tallystick.fleet.schemas import schema
from tallystick.record.batch import Batch

DRIVE_HEADER = ",".join(["ENGINE_RUN_TINE ()", *(f"PID_{number} ()" for number in range(26))])


def read(replay: RecordingReplay, chunk_rows: int = 1000) -> pd.DataFrame:
    batches = list(replay.batches(chunk_rows))
    names = {tuple(batch.schema.names) for batch in batches}
    for kind in ("positions", "drives"):
        if names == {tuple(schema(kind).arrow.names)}:
            batches = [Batch.of(schema(kind), batch).data for batch in batches]
    return pa.Table.from_batches(batches).to_pandas()


def positions(day: str, *rows: str) -> tuple[str, str]:
    return f"{day}.csv", "\n".join([POSITIONS_HEADER, *rows, ""])


def values(count: int, first: float = 0.0) -> str:
    return ", ".join([f"{first:.6f}", *(f"{number}.500000" for number in range(1, count))])


@pytest.fixture
def buses(tmp_path: Path) -> Path:
    """Four days: one in miles an hour and out of order, one empty, one in metres a second, one with duplicates."""
    folder = tmp_path / "buses"
    folder.mkdir()
    days = [
        positions(
            "2015-06-07",
            "9,2015-06-07T08:17:48-05:00,10.0,3,77,30.1,-97.7,",
            "8,2015-06-07T08:15:59-05:00,0.0,3,76,30.2,-97.8,NORTH",
        ),
        positions("2016-02-14"),
        positions(
            "2016-03-22",
            "8,2016-03-22T10:00:00-05:00,4.4704,3,78,30.2,-97.8,NORTH",
            "8,2016-03-22T10:00:10-05:00,113.9952,3,78,0.0,0.0,NORTH",
        ),
        positions("2017-03-21", *["8,2017-03-21T10:00:00-05:00,0.44704,3,79,30.2,-97.8,NORTH"] * 3),
    ]
    for name, text in days:
        (folder / name).write_text(text)
    return folder


def test_positions_are_sorted_and_in_kilometres_an_hour(buses: Path) -> None:
    replay = RecordingReplay(buses)
    frame = read(replay)
    assert frame.ts.is_monotonic_increasing
    assert frame.vehicle.tolist() == ["8", "9", "8", "8", "8"]
    assert frame.speed_kmh.tolist()[:3] == pytest.approx([0.0, 16.09344, 16.09344])
    assert frame.speed_kmh.iloc[4] == pytest.approx(1.609344)
    assert (replay.files, replay.empty, replay.duplicates) == (4, 1, 2)


def test_unknown_speeds_and_positions_are_null(buses: Path) -> None:
    unknown = read(RecordingReplay(buses)).iloc[3]
    assert unknown[["speed_kmh", "latitude", "longitude"]].isna().all()
    assert read(RecordingReplay(buses)).headsign.isna().sum() == 1


def test_duplicates_are_kept_on_request(buses: Path) -> None:
    replay = RecordingReplay(buses, keep_duplicates=True)
    assert len(read(replay)) == 7
    assert replay.duplicates == 0


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tar.xz"])
def test_an_archive_and_a_file_read_as_the_folder_does(buses: Path, tmp_path: Path, suffix: str) -> None:
    archive = tmp_path / f"buses.{suffix}"
    mode = suffix.removeprefix("tar").replace(".", "")
    with tarfile.open(archive, cast(Any, f"w:{mode}")) as packed:
        packed.add(buses, "buses")
    assert read(RecordingReplay(archive)).equals(read(RecordingReplay(buses)))
    assert len(read(RecordingReplay(buses / "2015-06-07.csv"))) == 2


def test_drives_have_ragged_lines_torn_ends_and_no_date(tmp_path: Path) -> None:
    lines = [values(27, 0.0) + ",", values(27, 0.0) + ",", values(27, 1.0), values(24, 2.0), "", "2.000000, 1.0, 2."]
    (tmp_path / "drive2.csv").write_text("\r\n".join([DRIVE_HEADER, *lines]))
    (tmp_path / "drive10.csv").write_text("\r\n".join([DRIVE_HEADER, values(27, 5.0) + ",", ""]))
    replay = RecordingReplay(tmp_path)
    frame = read(replay)
    assert frame.drive.tolist() == ["drive2"] * 3 + ["drive10"]
    assert frame.engine_run_s.tolist() == [0.0, 1.0, 2.0, 5.0]
    assert frame.ts.diff().dt.total_seconds().dropna().tolist() == [1.0, 1.0, 65.0]
    assert frame.warm_ups_since_cleared.isna().tolist() == [False, False, True, False]
    assert (replay.duplicates, replay.torn) == (1, 1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a,b,c\n1,2,3\n", "header"),
        (POSITIONS_HEADER + "\n9,yesterday,1.0,3,77,30.1,-97.7,\n", "ISO 8601"),
        (POSITIONS_HEADER + "\n9,2015-06-07T08:17:48-05:00,fast,3,77,30.1,-97.7,\n", "CSV"),
        (DRIVE_HEADER + "\n" + values(28) + "\n", "more than 27"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "odd.csv"
    path.write_text(text)
    with pytest.raises(Malformed, match=rf"odd\.csv.*{reason}"):
        read(RecordingReplay(path))


def test_what_is_not_there_or_not_an_archive_is_said(tmp_path: Path, buses: Path) -> None:
    with pytest.raises(Misuse, match="no such file"):
        read(RecordingReplay(tmp_path / "nothing"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(Misuse, match="no CSV"):
        read(RecordingReplay(tmp_path / "empty"))
    (tmp_path / "x.tar.xz").write_bytes(b"not an archive")
    with pytest.raises(Malformed, match="not a tar archive"):
        read(RecordingReplay(tmp_path / "x.tar.xz"))
    (buses / "zz.csv").write_text(DRIVE_HEADER + "\n")
    with pytest.raises(Malformed, match="holds drives"):
        read(RecordingReplay(buses))


# --- the real files ---


def members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as packed:
        files = [member for member in packed if member.name.endswith(".csv")]
        return {Path(member.name).stem: packed.extractfile(member).read() for member in files}  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def capmetro(shared_data: Path) -> tuple[Path, RecordingReplay, pd.DataFrame]:
    archive = shared_data / "telemetry-capmetro" / "vehicle_positions.tar.xz"
    if not archive.exists():
        pytest.skip(f"{archive} is not there")
    replay = RecordingReplay(archive)
    return archive, replay, pa.Table.from_batches(list(replay.batches())).to_pandas()


@pytest.mark.long
def test_capmetro_agrees_with_pandas(capmetro: tuple[Path, RecordingReplay, pd.DataFrame]) -> None:
    archive, replay, frame = capmetro
    assert (replay.files, replay.empty, replay.duplicates) == (32, 9, 145)
    assert len(frame) == 599_818 - 145
    assert frame.ts.is_monotonic_increasing
    assert frame.vehicle.nunique() == 490
    assert frame.speed_kmh.isna().sum() == 61
    assert frame.latitude.dropna().between(29.5, 31.0).all()
    local = frame.ts.dt.tz_convert("America/Chicago").dt.tz_localize(None)
    files = members(archive)
    for day, unit_ms in (("2015-06-07", 1.609344 / 3.6), ("2016-11-24", 1.0), ("2017-04-18", 1.0)):
        expected = pd.read_csv(io.BytesIO(files[day]), dtype=str).drop_duplicates()
        speed_kmh = expected.speed.astype(float) * unit_ms * 3.6
        own = frame[local.between(day, f"{day} 23:59:59")]
        assert len(own) == len(expected)
        assert own.speed_kmh.sum() == pytest.approx(speed_kmh[speed_kmh < 410].sum(), rel=1e-6)


def test_capmetro_speeds_agree_with_the_distance_between_positions(
    capmetro: tuple[Path, RecordingReplay, pd.DataFrame],
) -> None:
    """Two units in one recording: only with the right one is a speed what the positions say."""
    frame = capmetro[2].dropna(subset=["speed_kmh", "latitude"]).sort_values(["vehicle", "ts"], ignore_index=True)
    car = frame.groupby("vehicle")
    gap_s = car.ts.diff().dt.total_seconds()
    moved_m = np.hypot(car.latitude.diff() * 111_320, car.longitude.diff() * 96_100)
    told_kmh = (frame.speed_kmh + car.speed_kmh.shift()) / 2
    ratio = (moved_m / gap_s * 3.6 / told_kmh)[gap_s.between(20, 200) & (moved_m / gap_s > 3) & (told_kmh > 0)]
    early = frame.ts.dt.year[ratio.index] == 2015
    assert ratio[early].median() == pytest.approx(1.0, abs=0.15)
    assert ratio[~early].median() == pytest.approx(1.0, abs=0.15)


def test_the_drives_agree_with_pandas(shared_data: Path) -> None:
    archive = shared_data / "telemetry-carobd" / "obdiidata.tar.xz"
    if not archive.exists():
        pytest.skip(f"{archive} is not there")
    replay = RecordingReplay(archive)
    frame = pa.Table.from_batches(list(replay.batches())).to_pandas()
    assert (replay.files, replay.duplicates, replay.torn) == (129, 29_328, 3)
    assert len(frame) == 304_299 - 29_328 - 3
    assert frame.ts.is_monotonic_increasing
    assert frame.drive.nunique() == 129
    data = members(archive)["live6"]  # lacks the last three columns
    expected = pd.read_csv(io.BytesIO(data), index_col=False).drop_duplicates()
    own = frame[frame.drive == "live6"]
    assert len(own) == len(expected)
    assert own.engine_rpm.sum() == pytest.approx(expected["ENGINE_RPM ()"].sum(), rel=1e-6)
    assert own.warm_ups_since_cleared.isna().all()
    assert frame.speed_kmh.between(0, 127).all()
    assert frame.coolant_c.between(21, 96).all()
