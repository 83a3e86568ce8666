"""Frames that decode to the signals they were made of, by our decoder and by cantools."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tallystick.errors import Malformed, Misuse
from tallystick.fleet import can
from tallystick.fleet.schemas import schema
from tallystick.fleet.vehicles import simulate
from tallystick.record.batch import Batch


@pytest.fixture(scope="module")
def telemetry() -> pa.RecordBatch:
    return pa.Table.from_batches(list(simulate(6, 400, seed=9))).combine_chunks().to_batches()[0]


def test_every_signal_of_the_dbc_has_a_column_and_its_own_bits() -> None:
    names = set(schema("telemetry").arrow.names)
    for message in can.messages():
        taken = [bit for field in message.fields for bit in range(field.first_bit, field.first_bit + field.bits)]
        assert len(taken) == len(set(taken))
        assert max(taken) < 64
        assert {can.columns()[field.name] for field in message.fields} <= names
    assert {field.name for message in can.messages() for field in message.fields} == can.columns().keys()


def test_frames_are_of_the_schema_one_of_each_message_per_row(telemetry: pa.RecordBatch) -> None:
    frames = can.encode(telemetry)
    assert Batch.of(schema("can"), frames).rows == len(can.messages()) * telemetry.num_rows
    ids, counts = np.unique(frames.column("can_id").to_numpy(), return_counts=True)
    assert ids.tolist() == [message.can_id for message in can.messages()]
    assert set(counts) == {telemetry.num_rows}


def test_frames_decode_to_the_signals_within_resolution(telemetry: pa.RecordBatch) -> None:
    frames = can.encode(telemetry)
    for message in can.messages():
        decoded = can.decode(frames, message.name)
        assert decoded["vin"].equals(telemetry.column("vin"))
        for field in message.fields:
            column = can.columns()[field.name]
            sent = telemetry.column(column).to_numpy(zero_copy_only=False).astype(np.float64)
            assert np.abs(decoded[column].to_numpy() - sent).max() <= field.factor / 2 * (1 + 1e-6), column


def test_cantools_reads_our_dbc_and_our_frames_alike(telemetry: pa.RecordBatch) -> None:
    cantools = pytest.importorskip("cantools", reason="cantools is not installed: pip install 'tallystick[fleet]'")
    database = cantools.database.load_string(can.dbc_text(), "dbc")
    assert {message.name for message in database.messages} == {message.name for message in can.messages()}
    few = telemetry.slice(telemetry.num_rows // 2, 50)
    frames = can.encode(few)
    for message in can.messages():
        ours = can.decode(frames, message.name)
        rows = [row for row in frames.to_pylist() if row["can_id"] == message.can_id]
        for number, row in enumerate(rows):
            theirs = database.decode_message(row["can_id"], row["payload"])
            assert database.encode_message(row["can_id"], theirs) == row["payload"]
            for name, value in theirs.items():
                assert float(value) == pytest.approx(ours[can.columns()[name]][number].as_py(), abs=1e-9)


@pytest.mark.parametrize("signed", [False, True])
def test_values_out_of_range_are_held_at_its_end(signed: bool) -> None:
    field = can.Field("x", 4, 8, signed, 0.5, 10.0)
    decoded = field.decode(field.encode(np.array([-1e9, 10.0, 1e9])))
    assert decoded.tolist() == ([-54.0, 10.0, 73.5] if signed else [10.0, 10.0, 137.5])


def test_wrong_frames_and_names_are_refused(telemetry: pa.RecordBatch) -> None:
    frames = can.encode(telemetry.slice(0, 1))
    with pytest.raises(Misuse, match="EngineState"):
        can.decode(frames, "Door")
    short = frames.set_column(4, "payload", pa.array([b"1234567"] * frames.num_rows, pa.binary()))
    with pytest.raises(Malformed, match="Motion"):
        can.decode(short, "Motion")
