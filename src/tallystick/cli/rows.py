"""Rows in and out of files: JSON lines, CSV, Arrow and Parquet.

JSON has fewer types than a topic: times are written in ISO 8601, bytes in hexadecimal, decimals and floats that are not
finite as text; what `tally subscribe` writes `tally publish` reads back.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import IO, Any

import orjson
import pyarrow as pa

from tallystick.errors import Misuse
from tallystick.record.leaves import decode_row, encode_row
from tallystick.record.show import readable

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".parquet": "parquet",
}
ROWS_AT_ONCE = 4096
_FINER = re.compile(r"\.\d{6}(\d+)")


def find_format(file: str, asked: str | None) -> str:
    """Returns the format asked for, or else the one of the file's suffix. Stdin is JSON lines."""
    if asked is not None:
        return asked
    if file == "-":
        return "jsonl"
    suffix = Path(file).suffix.lower()
    if suffix not in FORMATS:
        raise Misuse(f"{file}: its format is not known", hint="say --format jsonl, csv, arrow or parquet")
    return FORMATS[suffix]


def read_rows(file: str, format_: str, schema: Any, advance: Callable[[int], None]) -> Iterator[Any]:
    """Portions of the file's rows, as the publisher takes them; `advance` hears of bytes read."""
    with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as source:
        try:
            if format_ == "jsonl":
                yield from _read_lines(source, schema, advance)
            else:
                for batch in _batches(source, file, format_, schema):
                    yield batch
                    advance(batch.nbytes)
        except pa.ArrowInvalid as error:
            raise Misuse(f"{file}: not {format_} that fits the topic: {error}") from None


def _read_lines(source: IO[bytes], schema: Any, advance: Callable[[int], None]) -> Iterator[list[dict[str, Any]]]:
    parse = _parser(schema)
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(source, 1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise Misuse(f"line {number}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise Misuse(f"line {number}: expected an object, found {type(row).__name__}")
        try:
            rows.append(parse(row))
        except (ValueError, InvalidOperation, TypeError) as error:
            raise Misuse(f"line {number}: {error}") from None
        advance(len(line))
        if len(rows) >= ROWS_AT_ONCE:
            yield rows
            rows = []
    if rows:
        yield rows


def _batches(source: IO[bytes], file: str, format_: str, schema: Any) -> Iterator[Any]:
    if format_ == "csv":
        from pyarrow import csv

        convert = csv.ConvertOptions(column_types=schema, strings_can_be_null=True)
        yield from csv.open_csv(source, convert_options=convert)
    elif format_ == "parquet":
        from pyarrow import parquet

        yield from parquet.ParquetFile(source).iter_batches(ROWS_AT_ONCE)
    else:
        try:
            reader = pa.ipc.open_file(source)
        except pa.ArrowInvalid:
            source.seek(0) if file != "-" else None
            yield from pa.ipc.open_stream(source)
            return
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


Parse = Callable[[Any], Any]


def _parser(schema: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Returns what turns texts into values, for columns whose type JSON lacks. The publisher checks everything else."""
    parsers = {field.name: parse for field in schema if (parse := _parse_for(field.type)) is not None}
    if not parsers:
        return lambda row: row
    return lambda row: {
        name: parsers[name](value) if name in parsers and value is not None else value for name, value in row.items()
    }


def _parse_for(type_: Any) -> Parse | None:
    if pa.types.is_timestamp(type_):
        return _parse_time
    if pa.types.is_date32(type_):
        return lambda text: date.fromisoformat(text)
    if pa.types.is_binary(type_):
        return lambda text: bytes.fromhex(text)
    if pa.types.is_decimal(type_):
        return lambda text: Decimal(text if isinstance(text, str | int) else str(text))
    if pa.types.is_floating(type_):
        return lambda value: float(value) if isinstance(value, str) else value
    if pa.types.is_list(type_):
        inner = _parse_for(type_.value_type)
        if inner is not None:
            return lambda values: [None if value is None else inner(value) for value in values]
    if pa.types.is_struct(type_):
        return _parser(type_)
    return None


def _parse_time(text: str) -> datetime:
    """Python's datetime holds microseconds, and would drop what is finer without a word."""
    finer = _FINER.search(text)
    if finer is not None and finer[1].strip("0"):
        raise ValueError("nanoseconds do not fit JSON lines here: publish Arrow or Parquet")
    return datetime.fromisoformat(text)


class Writer:
    """Writes batches to stdout in one of the formats."""

    def __init__(self, format_: str) -> None:
        self._format = format_
        self._stream: Any = None
        self._schema: Any = None  # what it was opened with

    def write(self, batch: Any, schema: Any, origin: dict[str, Any] | None = None, places: Any = None) -> None:
        """A record batch of the topic, of whose `schema` it may lack columns; `origin` is added to each row of JSON
        lines, with the row's place in its parcel (from `places`, where some rows of it were left out)."""
        if self._format == "jsonl":
            lines = [
                orjson.dumps(row | (origin | {"_row": i if places is None else int(places[i])} if origin else {}))
                for i, row in _readable_rows(batch)
            ]
            sys.stdout.buffer.write(b"".join(line + b"\n" for line in lines))
        else:
            if self._stream is None:
                self._schema, self._stream = schema, self._open(schema)
            self._stream.write(_completed(batch, self._schema))
        sys.stdout.flush()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def _open(self, schema: Any) -> Any:
        sink = pa.PythonFile(sys.stdout.buffer, mode="w")
        if self._format == "csv":
            from pyarrow import csv

            return csv.CSVWriter(sink, schema)
        return pa.ipc.new_stream(sink, schema)


def _completed(batch: Any, schema: Any) -> Any:
    """The batch with nulls for the columns that it lacks: those closed to the reader."""
    if batch.schema.equals(schema):
        return batch
    names = batch.schema.names
    columns = [batch.column(f.name) if f.name in names else pa.nulls(batch.num_rows, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _readable_rows(batch: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    schema = batch.schema
    if all(_is_plain(field.type) for field in schema):
        yield from enumerate(batch.to_pylist())
        return
    for i in range(batch.num_rows):
        yield i, readable(schema, decode_row(schema, encode_row(schema, i, batch)))


def _is_plain(type_: Any) -> bool:
    """Whether Python and JSON hold every value of the type alike."""
    types = pa.types
    return bool(types.is_string(type_) or types.is_integer(type_) or types.is_boolean(type_))
