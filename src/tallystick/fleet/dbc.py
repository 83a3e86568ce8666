"""Frames of any DBC to signals, whole columns at once.

`cantools` reads the file; each signal's place is then compiled to byte gathers, a shift and a mask over all frames of
its message, so that a frame costs nanoseconds instead of the microseconds of a decoder that is called for each. Either
byte order, signs, floats and multiplexing to any depth are compiled. Only a signal that touches more than eight bytes,
as one of 64 bits may, is taken frame by frame. The tests hold every frame to what `cantools` says of it.

A frame that is no good gives what can be said of it and a problem by name, never an error: one broken sensor must not
stop a fleet's table. `unknown-id`: the DBC has no such message. `short-payload`: shorter than the message; no signal is
given. `unknown-multiplexer`: no signal belongs to the value of a multiplexer; the others are given.

By our convention a signal whose comment in the DBC is a path of the Vehicle Signal Specification, such as
`CM_ SG_ 272 VehicleSpeed "Vehicle.Speed";`, has that name; any other is called `Message.Signal`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tallystick.errors import Misuse
from tallystick.fleet.routes import Bools, Floats

EXTENDED = 0x8000_0000  # SocketCAN's mark of a 29-bit identifier
STANDARD_MAX = 0x7FF
_WORD_BYTES = 8
_FLOATS: dict[int, tuple[Any, Any]] = {
    16: (np.uint16, np.float16),
    32: (np.uint32, np.float32),
    64: (np.uint64, np.float64),
}
_PATH = re.compile(r"Vehicle(\.[A-Za-z0-9]+)+")


@dataclass(frozen=True)
class DbcSignal:
    """A signal compiled: `bits` of the word of the bytes `first_byte` to `end_byte`, above `shift`."""

    key: str  # of the values: its VSS path, or Message.Signal
    unit: str
    first_byte: int
    end_byte: int
    is_big: bool
    shift: int
    bits: int
    is_signed: bool
    is_float: bool
    factor: float
    offset: float
    multiplexer: int | None  # the place of its multiplexer in the message
    multiplexer_ids: tuple[int, ...]

    @property
    def wire_bits(self) -> set[int]:
        """Its bits by their places on the wire, the highest of the first byte being 0."""
        places = range(self.shift, self.shift + self.bits)
        if self.is_big:
            return {8 * self.end_byte - 1 - one for one in places}
        return {8 * (self.first_byte + one // 8) + 7 - one % 8 for one in places}

    def decode(self, payloads: npt.NDArray[np.uint8]) -> Floats:
        """The physical values of all payloads, a row each."""
        count = self.end_byte - self.first_byte
        if count > _WORD_BYTES:
            return self._number(self._wide(payloads)) * self.factor + self.offset
        word = np.zeros(len(payloads), np.uint64)
        for number in range(count):
            place = count - 1 - number if self.is_big else number
            word |= payloads[:, self.first_byte + number].astype(np.uint64) << np.uint64(8 * place)
        raw = (word >> np.uint64(self.shift)) & np.uint64((1 << self.bits) - 1)
        return self._number(raw) * self.factor + self.offset

    def _wide(self, payloads: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
        order: Literal["big", "little"] = "big" if self.is_big else "little"
        words = (int.from_bytes(row[self.first_byte : self.end_byte].tobytes(), order) for row in payloads)
        return np.array([(word >> self.shift) & ((1 << self.bits) - 1) for word in words], np.uint64)

    def _number(self, raw: npt.NDArray[np.uint64]) -> Floats:
        if self.is_float:
            unsigned, floating = _FLOATS[self.bits]
            with np.errstate(invalid="ignore"):  # not a number is a value like others
                found: Floats = raw.astype(unsigned).view(floating).astype(np.float64)
            return found
        if self.is_signed:
            sign = np.uint64(1 << (self.bits - 1))
            return ((raw ^ sign) - sign).view(np.int64).astype(np.float64)
        return raw.astype(np.float64)


@dataclass(frozen=True)
class DbcMessage:
    name: str
    payload_bytes: int
    signals: tuple[DbcSignal, ...]


@dataclass(frozen=True)
class Decoded:
    """The frames of one message: their rows in what was decoded, and by signal the values and where there is one."""

    name: str
    rows: npt.NDArray[np.int64]
    values: dict[str, tuple[Floats, Bools]]
    problems: dict[str, Bools]


class Dbc:
    """A DBC, ready to decode."""

    def __init__(self, messages: Iterable[Any]) -> None:
        self.messages: dict[int, DbcMessage] = {}
        for message in messages:
            compiled = _compile(message)
            if not message.is_extended_frame or message.frame_id > STANDARD_MAX:
                self.messages[message.frame_id] = compiled
            if message.is_extended_frame:
                self.messages[message.frame_id | EXTENDED] = compiled

    @staticmethod
    @lru_cache(maxsize=8)
    def parse(text: str) -> Dbc:
        """From the text of a DBC file. Raises `Misuse` where it is none, or `cantools` is not installed."""
        try:
            import cantools
        except ImportError as error:
            hint = "pip install 'tallystick[fleet]'"
            raise Misuse("DBC files are read by cantools, which is not installed", hint=hint) from error
        try:
            database: Any = cantools.database.load_string(text, "dbc")
        except Exception as error:  # its parser raises what it likes
            raise Misuse(f"not a DBC: {error}") from error
        return Dbc(database.messages)

    def units(self) -> dict[str, str]:
        """The unit of every signal, by its name."""
        return {signal.key: signal.unit for message in self.messages.values() for signal in message.signals}

    def decode(self, can_ids: npt.NDArray[Any], payloads: pa.Array) -> list[Decoded]:
        """All frames by message; those of unknown identifiers come last, under the name of nothing."""
        found, taken = [], np.zeros(len(can_ids), np.bool_)
        for can_id in np.unique(can_ids).tolist():
            if can_id in self.messages:
                rows = np.flatnonzero(can_ids == can_id)
                taken[rows] = True
                found.append(_decode(self.messages[can_id], rows, payloads.take(pa.array(rows))))
        unknown = np.flatnonzero(~taken)
        if len(unknown):
            found.append(Decoded("", unknown, {}, {"unknown-id": np.ones(len(unknown), np.bool_)}))
        return found


def _compile(message: Any) -> DbcMessage:
    names = [signal.name for signal in message.signals]
    return DbcMessage(
        message.name, message.length, tuple(_compile_signal(message, signal, names) for signal in message.signals)
    )


def _compile_signal(message: Any, signal: Any, names: list[str]) -> DbcSignal:
    is_big = signal.byte_order == "big_endian"
    first_byte, bit = divmod(signal.start, 8)
    before = 7 - bit if is_big else bit  # bits of the first byte that come before the signal
    count = -(-(before + signal.length) // 8)
    is_path = isinstance(signal.comment, str) and _PATH.fullmatch(signal.comment)
    return DbcSignal(
        key=signal.comment if is_path else f"{message.name}.{signal.name}",
        unit=signal.unit or "",
        first_byte=first_byte,
        end_byte=first_byte + count,
        is_big=is_big,
        shift=8 * count - before - signal.length if is_big else before,
        bits=signal.length,
        is_signed=signal.is_signed,
        is_float=signal.conversion.is_float,
        factor=float(signal.scale),
        offset=float(signal.offset),
        multiplexer=names.index(signal.multiplexer_signal) if signal.multiplexer_signal else None,
        multiplexer_ids=tuple(signal.multiplexer_ids or ()),
    )


def _decode(message: DbcMessage, rows: npt.NDArray[np.int64], payloads: pa.Array) -> Decoded:
    data, is_whole = _matrix(payloads, message.payload_bytes)
    decoded = [signal.decode(data) for signal in message.signals]
    valid = [_is_sent(message.signals, number, decoded, is_whole) for number in range(len(decoded))]
    problems = {"short-payload": ~is_whole} if not is_whole.all() else {}
    for number in {signal.multiplexer for signal in message.signals} - {None}:
        assert number is not None
        known = [one for signal in message.signals if signal.multiplexer == number for one in signal.multiplexer_ids]
        lost = valid[number] & ~np.isin(np.trunc(decoded[number]), known)
        if lost.any():
            problems["unknown-multiplexer"] = problems.get("unknown-multiplexer", False) | lost
    values = {signal.key: (value, sent) for signal, value, sent in zip(message.signals, decoded, valid, strict=True)}
    return Decoded(message.name, rows, values, problems)


def _is_sent(signals: tuple[DbcSignal, ...], number: int, decoded: list[Floats], is_whole: Bools) -> Bools:
    """In which frames a signal is: those in which its multiplexer is, with a value of its own."""
    signal = signals[number]
    if signal.multiplexer is None:
        return is_whole
    chosen = np.isin(np.trunc(decoded[signal.multiplexer]), signal.multiplexer_ids)
    return chosen & _is_sent(signals, signal.multiplexer, decoded, is_whole)


def _matrix(payloads: pa.Array, width: int) -> tuple[npt.NDArray[np.uint8], Bools]:
    """The payloads as rows of `width` bytes, and which of them are so long."""
    if not len(payloads):
        return np.zeros((0, width), np.uint8), np.zeros(0, np.bool_)
    _, offset_buffer, data_buffer = payloads.cast(pa.binary()).buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[payloads.offset : payloads.offset + len(payloads) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    is_whole = np.diff(offsets) >= width
    if is_whole.all() and np.diff(offsets).max() == width:
        return data[offsets[0] : offsets[-1]].reshape(-1, width), is_whole
    places = offsets[:-1, None] + np.arange(width, dtype=np.int32)
    padded = np.append(data, np.uint8(0))
    return padded[np.where(is_whole[:, None], places, len(data))], is_whole
