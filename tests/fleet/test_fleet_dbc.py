"""Any DBC, compiled: every signal of every frame is what `cantools` says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tallystick.errors import Misuse
from tallystick.fleet import can
from tallystick.fleet.dbc import EXTENDED, Dbc, Decoded
from tallystick.fleet.signals import BY_COLUMN
from tallystick.fleet.vehicles import simulate

cantools = pytest.importorskip("cantools", reason="cantools is not installed: pip install 'tallystick[fleet]'")

# Motorola and Intel, signed and not, floats, plain and nested multiplexing, 64 bits across nine bytes, 64 bytes of FD.
ODD = """
VERSION ""
BU_: A
BO_ 100 Mixed: 8 A
 SG_ BigSigned : 7|12@0- (0.5,-3) [0|0] "m" A
 SG_ BigByte : 11|8@0+ (1,0) [0|0] "" A
 SG_ Little : 24|13@1+ (0.01,5) [0|0] "" A
 SG_ LittleSigned : 37|11@1- (2,0) [0|0] "" A
 SG_ Bit : 63|1@1+ (1,0) [0|0] "" A
BO_ 101 Plexed: 8 A
 SG_ Which M : 0|4@1+ (1,0) [0|0] "" A
 SG_ One m1 : 8|16@1- (0.1,0) [0|0] "" A
 SG_ Two m2 : 15|16@0- (0.1,0) [0|0] "" A
 SG_ Always : 56|8@1+ (1,-40) [0|0] "degC" A
BO_ 102 Nested: 8 A
 SG_ S0 M : 0|4@1+ (1,0) [0|0] "" A
 SG_ S1 m0M : 4|4@1+ (1,0) [0|0] "" A
 SG_ Deep m1 : 8|8@1+ (1,0) [0|0] "" A
 SG_ Range m2 : 16|12@1- (1,0) [0|0] "" A
BO_ 2147483752 Floats: 12 A
 SG_ Single : 0|32@1- (1,0) [0|0] "" A
 SG_ Double : 39|64@0- (1,0) [0|0] "" A
BO_ 2147553648 Wide: 64 A
 SG_ Nine : 3|64@1+ (1,0) [0|0] "" A
 SG_ NineBig : 84|62@0- (1,0) [0|0] "" A
 SG_ Last : 504|8@1+ (1,0) [0|0] "" A
SIG_VALTYPE_ 2147483752 Single : 1;
SIG_VALTYPE_ 2147483752 Double : 2;
SG_MUL_VAL_ 102 S1 S0 0-0;
SG_MUL_VAL_ 102 Deep S1 1-1;
SG_MUL_VAL_ 102 Range S1 2-5;
"""


def decode(dbc: Dbc, frames: list[tuple[int, bytes]]) -> list[Decoded]:
    ids = np.array([can_id for can_id, _ in frames], np.uint32)
    return dbc.decode(ids, pa.array([payload for _, payload in frames], pa.binary()))


def by_frame(decoded: list[Decoded], count: int) -> list[tuple[dict[str, float], set[str]]]:
    found: list[tuple[dict[str, float], set[str]]] = [({}, set()) for _ in range(count)]
    for one in decoded:
        for key, (values, valid) in one.values.items():
            for row, value in zip(one.rows[valid].tolist(), values[valid].tolist(), strict=True):
                found[row][0][key] = value
        for problem, where in one.problems.items():
            for row in one.rows[where].tolist():
                found[row][1].add(problem)
    return found


def theirs(database: Any, can_id: int, payload: bytes) -> dict[str, float]:
    message = next(message for message in database.messages if message.frame_id == can_id & ~EXTENDED)
    return {f"{message.name}.{name}": float(value) for name, value in message.decode(payload, False).items()}


def test_every_frame_is_what_cantools_says() -> None:
    database, dbc = cantools.database.load_string(ODD, "dbc"), Dbc.parse(ODD)
    rng = np.random.default_rng(5)
    lengths = {100: 8, 101: 8, 102: 8, 104 | EXTENDED: 12, 70000: 64}
    frames = []
    for number in range(3000):
        can_id = list(lengths)[number % len(lengths)]
        data = bytearray(rng.bytes(lengths[can_id] + int(rng.integers(0, 2))))  # an excess is passed over
        data[0] = data[0] if can_id not in (101, 102) or number % 7 == 0 else int(rng.integers(0, 4)) << 4
        frames.append((can_id, bytes(data)))
    compared = refused = 0
    for (can_id, payload), (ours, problems) in zip(frames, by_frame(decode(dbc, frames), len(frames)), strict=True):
        try:
            expected = theirs(database, can_id, payload)
        except cantools.database.DecodeError:
            assert problems == {"unknown-multiplexer"}
            refused += 1
            continue
        assert problems == set()
        assert ours.keys() == expected.keys()
        for name, value in expected.items():
            assert ours[name] == pytest.approx(value, rel=1e-12, nan_ok=True), name
        compared += 1
    assert compared > 1500
    assert refused > 100


def test_our_own_frames_come_back_by_their_vss_paths() -> None:
    telemetry = next(iter(simulate(4, 200, seed=3)))
    frames, dbc = can.encode(telemetry), Dbc.parse(can.dbc_text())
    assert set(dbc.units()) == {BY_COLUMN[column].path for column in can.columns().values()}
    for one in dbc.decode(frames.column("can_id").to_numpy(), frames.column("payload")):
        assert one.problems == {}
        for column, values in can.decode(frames, one.name).items():
            if column not in ("ts", "vin"):
                ours, valid = one.values[BY_COLUMN[column].path]
                assert valid.all()
                assert np.array_equal(ours, values.to_numpy())


def test_frames_that_are_no_good_are_told_by_name() -> None:
    dbc = Dbc.parse(ODD)
    (short, unknown, empty) = by_frame(decode(dbc, [(100, b"1234567"), (7, b"x"), (101, b"")]), 3)
    assert short == ({}, {"short-payload"})
    assert unknown == ({}, {"unknown-id"})
    assert empty == ({}, {"short-payload"})
    kept, problems = by_frame(decode(dbc, [(101, b"\x09" + bytes(7))]), 1)[0]
    assert kept == {"Plexed.Which": 9.0, "Plexed.Always": -40.0}
    assert problems == {"unknown-multiplexer"}


def test_a_slice_of_frames_decodes_as_the_frames_do() -> None:
    frames = [(100, bytes([number] * 8)) for number in range(10)]
    payloads = pa.array([payload for _, payload in frames], pa.binary())
    ids = np.array([can_id for can_id, _ in frames], np.uint32)
    whole, part = Dbc.parse(ODD).decode(ids, payloads)[0], Dbc.parse(ODD).decode(ids[3:7], payloads[3:7])[0]
    assert np.array_equal(whole.values["Mixed.Little"][0][3:7], part.values["Mixed.Little"][0])


def test_a_file_that_is_no_dbc_is_said() -> None:
    with pytest.raises(Misuse, match="not a DBC"):
        Dbc.parse("this is not a DBC")
