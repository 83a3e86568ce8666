"""Telemetry as the frames of a CAN bus, and back, by `tallystick.dbc`.

Only the part of the DBC format that our file uses is read: messages and little-endian signals with factor and offset.
Whoever has another DBC decodes with `cantools`; the tests hold the two to the same result. A payload is packed as one
64-bit word per frame, so that a signal is a shift and a mask over a whole column.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tallystick.errors import Malformed, Misuse
from tallystick.fleet.schemas import schema
from tallystick.fleet.signals import BY_PATH

PAYLOAD_BYTES = 8
BUS = 0
FRAME_GAP_US = 250  # about as long as a frame takes at 500 kbit/s

_MESSAGE = re.compile(r"^BO_ (\d+) (\w+): \d+ \w+\n((?: SG_ .*\n)+)", re.MULTILINE)
_SIGNAL = re.compile(r"SG_ (\w+) : (\d+)\|(\d+)@1([+-]) \(([^,]+),([^)]+)\)")
_COMMENT = re.compile(r'CM_ SG_ \d+ (\w+) "([^"]+)";')


@dataclass(frozen=True)
class Field:
    """A signal's place in its message."""

    name: str
    first_bit: int
    bits: int
    signed: bool
    factor: float
    offset: float

    def encode(self, values: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        """Physical values as raw bits in their place; what does not fit is held at the end of the range."""
        lowest = -(1 << (self.bits - 1)) if self.signed else 0
        highest = (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1
        raw = np.clip(np.rint((values.astype(np.float64) - self.offset) / self.factor), lowest, highest)
        word = raw.astype(np.int64).view(np.uint64) & np.uint64((1 << self.bits) - 1)
        return word << np.uint64(self.first_bit)

    def decode(self, words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
        raw = ((words >> np.uint64(self.first_bit)) & np.uint64((1 << self.bits) - 1)).view(np.int64)
        if self.signed:
            sign = np.int64(1 << (self.bits - 1))
            raw = (raw ^ sign) - sign
        return raw.astype(np.float64) * self.factor + self.offset


@dataclass(frozen=True)
class CanMessage:
    can_id: int
    name: str
    fields: tuple[Field, ...]


def dbc_text() -> str:
    """The text of our DBC, for `cantools` and for people."""
    return files("tallystick.fleet").joinpath("tallystick.dbc").read_text(encoding="utf-8")


@cache
def messages() -> tuple[CanMessage, ...]:
    """The messages of our DBC, in the order in which a vehicle sends them."""
    return tuple(
        CanMessage(int(can_id), name, tuple(_field(*place) for place in _SIGNAL.findall(signals)))
        for can_id, name, signals in _MESSAGE.findall(dbc_text())
    )


def _field(name: str, first_bit: str, bits: str, sign: str, factor: str, offset: str) -> Field:
    return Field(name, int(first_bit), int(bits), sign == "-", float(factor), float(offset))


@cache
def columns() -> dict[str, str]:
    """The column of each signal: our DBC says its VSS path in a comment."""
    return {name: BY_PATH[path].column for name, path in _COMMENT.findall(dbc_text())}


def encode(telemetry: pa.RecordBatch) -> pa.RecordBatch:
    """The frames of a batch of telemetry: one of each message per row, in the order of rows."""
    sent = messages()
    words = np.empty((telemetry.num_rows, len(sent)), dtype="<u8")
    for number, message in enumerate(sent):
        word = np.zeros(telemetry.num_rows, dtype=np.uint64)
        for field in message.fields:
            word |= field.encode(telemetry.column(columns()[field.name]).to_numpy(zero_copy_only=False))
        words[:, number] = word
    ts_us = telemetry.column("ts").cast(pa.int64()).to_numpy()[:, None] * 1000 + np.arange(len(sent)) * FRAME_GAP_US
    arrays = [
        pa.array(ts_us.ravel(), pa.int64()).cast(pa.timestamp("us", "UTC")),
        telemetry.column("vin").take(pa.array(np.repeat(np.arange(telemetry.num_rows), len(sent)))),
        pa.array(np.full(words.size, BUS, np.uint8)),
        pa.array(np.tile(np.array([message.can_id for message in sent], np.uint32), telemetry.num_rows)),
        _payloads(words),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema("can").arrow)


def decode(frames: pa.RecordBatch, name: str) -> dict[str, pa.Array]:
    """The signals of all frames of the message `name`, by column, with their `ts` and `vin`.

    Raises `Misuse` for an unknown message, `Malformed` for a payload that is not eight bytes.
    """
    message = next((message for message in messages() if message.name == name), None)
    if message is None:
        raise Misuse(f'the DBC has no message "{name}", expected one of {", ".join(m.name for m in messages())}')
    ours = frames.filter(pa.array(frames.column("can_id").to_numpy() == message.can_id))
    payload = b"".join(ours.column("payload").to_pylist())
    if len(payload) != PAYLOAD_BYTES * ours.num_rows:
        raise Malformed(f"message {name}: {PAYLOAD_BYTES} bytes of payload expected in every frame")
    words = np.frombuffer(payload, dtype="<u8")
    signals = {columns()[field.name]: pa.array(field.decode(words)) for field in message.fields}
    return {"ts": ours.column("ts"), "vin": ours.column("vin"), **signals}


def _payloads(words: npt.NDArray[Any]) -> pa.Array:
    fixed = pa.Array.from_buffers(pa.binary(PAYLOAD_BYTES), words.size, [None, pa.py_buffer(words)])
    return fixed.cast(pa.binary())
