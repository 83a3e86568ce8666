r"""Captures of a bus: a candump log, a CSV of the ROAD or of the V40 recordings, or rows of schema `can`, as frames.

Each format of text is one pattern for a line. A last line that was cut off, or that lacks its newline, is left out and
counted; any other line that the pattern does not fit is refused with its number. Frames stay in the file's order: those
that are earlier than the one before them are counted, and the check *clock* tells them.

What the files hide, and what becomes of it:

- *ROAD.* Bytes of a payload are columns of their own; those of a shorter one are empty. `Label` is `Benign` or the kind
  of attack.
- *V40.* DLC counts bits. Identifiers went through a table of floats: `290.0` is the hexadecimal 290.
- *candump.* Identifiers of eight digits have 29 bits. A remote request carries no payload and is no frame of data: bit
  30 of its identifier is set, as SocketCAN does, so that it is never taken for one. `##` begins a frame of CAN FD.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from tallystick.errors import Malformed, Misuse
from tallystick.fleet.detect.frames import LENGTH_MAX, WORD_BYTES, Frames, frames_of
from tallystick.fleet.schemas import schema
from tallystick.fleet.sources import opened

EXTENDED, REMOTE = np.uint64(1 << 31), np.uint64(1 << 30)  # bits of an identifier
STANDARD_MAX, STANDARD_DIGITS = 0xFFF, 3  # ROAD has frames of an identifier FFF, which no standard frame can carry

_TIME = r"(?P<time>[0-9]{1,11}(?:\.[0-9]{1,20})?(?:e-[0-9]{1,2})?)"  # seconds
_BYTE = "[0-9A-Fa-f]{2}"
_ID = "(?P<id>[0-9A-Fa-f]{1,3}|[01]?[0-9A-Fa-f]{4,7})"
_COLUMNS = "|".join(f"(?:{_BYTE},){{{full}}},{{{WORD_BYTES - full}}}" for full in range(WORD_BYTES + 1))
ROAD = rf"^{_TIME},{_ID},(?P<payload>{_COLUMNS})(?P<label>\w+)\r?$"
V40 = (
    rf"^{_TIME},{_ID}(?:\.0)?,(?P<bits>[0-9]{{1,2}}),(?P<payload>(?:{_BYTE}){{0,{WORD_BYTES}}}),[01]*,"
    r"(?P<label>(?i:true|false))\r?$"
)
CANDUMP = (
    rf"^\({_TIME}\) (?P<bus>\w{{1,16}}) (?P<id>[0-9A-Fa-f]{{3}}|[01][0-9A-Fa-f]{{7}})"
    rf"#(?P<kind>R[0-8]?|#[0-9A-Fa-f])?(?P<payload>(?:{_BYTE}){{0,64}})(?: [RT])?\r?$"
)
HEADERS = {
    b"Time,Id,Byte1,Byte2,Byte3,Byte4,Byte5,Byte6,Byte7,Byte8,Label": ROAD,
    b"timestamp,CAN_ID,DLC,PAYLOAD_HEX,PAYLOAD_BIN,ANOMALY": V40,
}


@dataclass(frozen=True)
class Capture:
    """What was recorded from one bus."""

    name: str
    frames: Frames
    attack: npt.NDArray[np.bool_] | None  # per frame, where the recording says so
    torn: int = 0  # lines left out because they were cut off
    unordered: int = 0  # frames earlier than the one before


def read_capture(path: Path) -> Capture:
    """The capture in a file, by its suffix and first line. Raises `Misuse`, `Malformed`, `Unavailable`."""
    if path.suffix == ".parquet":
        return _of_rows(path)
    with opened(path) as source:
        if len(source) != 1:
            raise Misuse(f"{path}: holds {len(source)} captures, expected one")
        ((name, read),) = source.items()
        return parse_capture(read(), name)


def pattern_of(data: bytes) -> str | None:
    """The pattern of the capture's lines, by its first one; None where this is no capture."""
    return CANDUMP if data.startswith(b"(") else HEADERS.get(data[:100].split(b"\n")[0].strip())


def parse_capture(data: bytes, name: str) -> Capture:
    """The capture in a text. Raises `Malformed` with the number of the first bad line."""
    pattern = pattern_of(data)
    if pattern is None:
        raise Malformed(f"{name}: the first line is neither candump's nor the header of a ROAD or V40 capture")
    above = int(pattern != CANDUMP)  # lines of the header
    found = pc.extract_regex(_lines(data[: data.rfind(b"\n") + 1], name, above), pattern)
    torn = int(not data.endswith(b"\n"))
    if len(found) and not found[-1].is_valid:
        found, torn = found[:-1], torn + 1

    def refuse(bad: npt.NDArray[np.bool_]) -> None:
        if bad.any():
            raise Malformed(f"{name}: line {bad.argmax() + above + 1} is not one of this kind of capture")

    refuse(found.is_null().to_numpy(zero_copy_only=False))
    part = {key: found.field(key).cast(pa.string()) for key in found.type.names}
    hexadecimal = pc.replace_substring(part["payload"], ",", "")
    length = pc.binary_length(hexadecimal).to_numpy() // 2
    can_id = _numbers(pc.utf8_lpad(part["id"], 8, "0"), ">u4")
    if pattern == CANDUMP:
        if len(buses := part["bus"].unique().to_pylist()) > 1:
            hint = "write the frames of each to a file of its own, by grep"
            raise Misuse(f"{name}: holds frames of the buses {', '.join(buses[:8])}; expected one", hint=hint)
        remote, long = (pc.starts_with(part["kind"], mark).to_numpy(zero_copy_only=False) for mark in "R#")
        refuse(length > np.where(remote, 0, np.where(long, LENGTH_MAX, WORD_BYTES)))
        extended = pc.binary_length(part["id"]).to_numpy() > STANDARD_DIGITS
        can_id = can_id | extended * EXTENDED | remote * REMOTE
    else:
        can_id = can_id | (can_id > STANDARD_MAX) * EXTENDED
    if pattern == V40:
        refuse(part["bits"].cast(pa.int64()).to_numpy() != length * 8)
    ts = np.rint(part["time"].cast(pa.float64()).to_numpy() * 1e6).astype(np.int64)
    first = pc.utf8_slice_codeunits(pc.utf8_rpad(hexadecimal, 2 * WORD_BYTES, "0"), 0, 2 * WORD_BYTES)
    frames = Frames(ts, can_id.astype(np.uint32), length.astype(np.uint8), _numbers(first, ">u8"))
    attack = None
    if "label" in part:
        benign = pc.is_in(pc.utf8_lower(part["label"]), pa.array(["benign", "false"]))
        attack = ~benign.to_numpy(zero_copy_only=False)
    return Capture(_plain(name), frames, attack, torn, _unordered(frames))


def _lines(whole: bytes, name: str, above: int) -> pa.Array:
    text = whole.rstrip(b"\r\n").replace(b"\1", b"?") + b"\n"  # one column, so that no line has another number of them
    reading = pyarrow.csv.ReadOptions(column_names=["line"], skip_rows=above)
    parsing = pyarrow.csv.ParseOptions(delimiter="\1", quote_char=False, ignore_empty_lines=False)
    types = pyarrow.csv.ConvertOptions(column_types={"line": pa.binary()})
    try:
        table = pyarrow.csv.read_csv(io.BytesIO(text), reading, parsing, types)
    except pa.ArrowInvalid as error:
        raise Malformed(f"{name}: holds no lines of text: {error}") from error
    return pa.concat_arrays(table.column("line").chunks)


def _numbers(digits: pa.Array, kind: str) -> npt.NDArray[np.uint64]:
    """Hexadecimal texts, all of the kind's length, as numbers."""
    return np.frombuffer(bytes.fromhex("".join(digits.to_pylist())), kind).astype(np.uint64)


def _of_rows(path: Path) -> Capture:
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise Malformed(f"{path}: not readable as Parquet: {error}") from error
    arrow = schema("can").arrow
    if not set(arrow.names) <= set(table.column_names):
        raise Malformed(f"{path}: the columns are {', '.join(table.column_names)}, expected those of the schema can")
    for name in ("vin", "bus"):
        if len(found := table.column(name).unique()) > 1:
            raise Misuse(f"{path}: holds frames of {len(found)} values of {name}, expected one vehicle and bus")
    try:
        frames = frames_of(table.select(arrow.names).cast(arrow))
    except (pa.ArrowInvalid, ValueError) as error:
        raise Malformed(f"{path}: the columns are not those of the schema can: {error}") from error
    return Capture(_plain(path.name), frames, None, 0, _unordered(frames))


def _plain(name: str) -> str:
    return Path(name).name.split(".")[0]


def _unordered(frames: Frames) -> int:
    return int((np.diff(frames.ts) < 0).sum())
