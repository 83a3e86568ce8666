"""Captures: small texts with every trap, and the real ones against pandas where they lie."""

from __future__ import annotations

import lzma
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tallystick.errors import Malformed, Misuse
from tallystick.fleet.detect.readers import EXTENDED, HEADERS, REMOTE, Capture, read_capture
from tallystick.fleet.replay import RecordingReplay

ROAD, V40 = (header.decode() for header in HEADERS)


def text(tmp_path: Path, name: str, *lines: str, end: str = "\n") -> Path:
    path = tmp_path / name
    path.write_text("\n".join(lines) + end)
    return path


def words(capture: Capture) -> list[str]:
    return [f"{word:016x}" for word in capture.frames.word.tolist()]


def test_candump_has_29_bits_requests_and_can_fd(tmp_path: Path) -> None:
    lines = [
        "(1436509052.249713) can0 123#DEADBEEF",
        "(1436509052.249714) can0 00000123#DEADBEEF",
        "(1436509052.249715) can0 123#R",
        "(1436509052.249716) can0 7FF#R8 T",
        "(1436509052.249717) can0 124#",
        "(1436509052.249718) can0 124##1" + "0102030405060708" * 2,
    ]
    capture = read_capture(text(tmp_path, "drive.log", *lines))
    assert capture.name == "drive"
    assert capture.attack is None
    assert capture.frames.ts.tolist() == list(range(1436509052249713, 1436509052249719))
    expected = [0x123, 0x123 | int(EXTENDED), 0x123 | int(REMOTE), 0x7FF | int(REMOTE), 0x124, 0x124]
    assert capture.frames.can_id.tolist() == expected
    assert capture.frames.length.tolist() == [4, 4, 0, 0, 0, 16]
    assert words(capture) == ["deadbeef00000000"] * 2 + ["0" * 16] * 3 + ["0102030405060708"]


def test_road_has_shorter_payloads_and_v40_counts_bits(tmp_path: Path) -> None:
    lines = ["1.0,354,20,32,,,,,,,Benign", "1.5,5E1,89,1F,A0,07,0A,00,CC,80,Masquerade"]
    road = read_capture(text(tmp_path, "a.csv", ROAD, *lines))
    assert road.attack is not None
    assert road.attack.tolist() == [False, True]
    assert words(road) == ["2032000000000000", "891fa0070a00cc80"]
    assert road.frames.length.tolist() == [2, 8]
    path = tmp_path / "b.zip"
    with zipfile.ZipFile(path, "w") as archive:
        rows = ["9e-06,10,64,000000002FB031F8,0,FALSE", "0.00044,290.0,16,0A0B,0,True", "1.0,18DAF110,0,,,False"]
        archive.writestr("b.can.txt", "\n".join([V40, *rows, ""]))
    v40 = read_capture(path)
    assert v40.attack is not None
    assert v40.attack.tolist() == [False, True, False]
    assert v40.frames.ts.tolist() == [9, 440, 1_000_000]
    assert v40.frames.can_id.tolist() == [0x10, 0x290, 0x18DAF110 | int(EXTENDED)]
    assert v40.frames.length.tolist() == [8, 2, 0]


def test_a_torn_line_is_counted_and_disorder_is_told(tmp_path: Path) -> None:
    lines = ["(2.0) can0 123#01", "(1.0) can0 123#02", "(3.0) can0 123#0"]
    capture = read_capture(text(tmp_path, "torn.log", *lines, end=""))
    assert (len(capture.frames), capture.torn, capture.unordered) == (2, 1, 1)
    assert read_capture(text(tmp_path, "torn.log", *lines)).torn == 1
    whole = lzma.compress("\n".join([ROAD, *["1.0,354,20,32,,,,,,,Benign"] * 3]).encode())
    (tmp_path / "torn.csv.xz").write_bytes(whole)
    assert read_capture(tmp_path / "torn.csv.xz").torn == 1
    assert len(read_capture(text(tmp_path, "empty.csv", ROAD)).frames) == 0
    (tmp_path / "torn.csv.xz").write_bytes(whole[:-9])
    with pytest.raises(Malformed, match="cannot be unpacked"):
        read_capture(tmp_path / "torn.csv.xz")


@pytest.mark.parametrize(
    "line",
    [
        "(1.0) can0 12#01",  # two digits
        "(1.0) can0 123#0102030405060708090A",  # more than a frame holds
        "(1.0) can0 123##1" + "01" * 65,
        "(1.0) can0 123#R01",  # a request with a payload
        "(1.0) can0 20000004#0001000000000000",  # an error of the controller
        "(nan) can0 123#01",
        "(1.0) can0 123#0\x01",
        "",
        "\udce9",  # no text
    ],
)
def test_other_lines_are_refused_by_number(tmp_path: Path, line: str) -> None:
    good = "(1.0) can0 123#01"
    path = tmp_path / "bad.log"
    path.write_bytes("\n".join([good, line, good, ""]).encode(errors="surrogateescape"))
    with pytest.raises(Malformed, match=r"bad.*line 2"):
        read_capture(path)


@pytest.mark.parametrize(
    ("name", "lines", "reason"),
    [
        ("a.csv", ["a,b"], "header"),
        ("a.csv", [V40, "1.0,10,8,0A0B,0,False", "1.0,10,8,0A,0,False"], "line 2"),
        ("a.csv", [ROAD, "1.0,354,20,,32,,,,,,Benign", "1.0,354,20,32,,,,,,,Benign"], "line 2"),
        ("a.log", ["(1.0) can0 123#01", "(1.0) can1 123#01"], "can0, can1"),
        ("a.zip", ["not an archive"], "unpacked"),
        ("a.parquet", ["not a table"], "Parquet"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, name: str, lines: list[str], reason: str) -> None:
    with pytest.raises((Malformed, Misuse), match=rf"a\.[a-z]+: .*{reason}"):
        read_capture(text(tmp_path, name, *lines))


def test_replay_gives_rows_of_a_vehicle_that_read_back_as_the_capture(tmp_path: Path) -> None:
    path = text(tmp_path, "drive.log", "(2.0) can0 123#01", "(1.5) can0 124#DEADBEEF", "(3.0) can0 123")
    replay = RecordingReplay(path, vin="VIN0001")
    rows = pa.Table.from_batches(list(replay.batches()))
    assert rows.column("vin").unique().to_pylist() == ["VIN0001"]
    assert (replay.torn, replay.unordered, replay.duplicates) == (1, 1, 0)
    pq.write_table(rows, tmp_path / "drive.parquet")
    again = read_capture(tmp_path / "drive.parquet")
    assert again.frames.ts.tolist() == [1_500_000, 2_000_000]
    assert words(again) == ["deadbeef00000000", "0100000000000000"]
    unnamed = pa.Table.from_batches(list(RecordingReplay(path).batches()))
    pq.write_table(pa.concat_tables([rows, unnamed]), tmp_path / "two.parquet")
    with pytest.raises(Misuse, match="2 values of vin"):
        read_capture(tmp_path / "two.parquet")


def test_the_real_captures_agree_with_pandas(shared_data: Path) -> None:
    path = shared_data / "can-road" / "correlated_signal_attack_2.csv.xz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    table, capture = pd.read_csv(path, dtype=str), read_capture(path)
    assert capture.attack is not None
    assert capture.attack.tolist() == (table.Label != "Benign").tolist()
    assert capture.frames.can_id.tolist() == [int(one, 16) for one in table.Id]
    assert words(capture) == table.filter(like="Byte").sum(axis=1).str.lower().tolist()
    assert np.allclose(capture.frames.ts / 1e6, table.Time.astype(float), atol=1e-6, rtol=0)
    replayed = shared_data / "can-daga" / "ordered-replay-5.zip"
    assert (read_capture(replayed).frames.can_id < 0x800).all()
