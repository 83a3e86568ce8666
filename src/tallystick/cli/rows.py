"""Rows in and out of files: JSON lines, CSV, Arrow and Parquet.

JSON has fewer types than a topic: times are written in ISO 8601, bytes in hexadecimal, decimals and floats that are not
finite as text; what `tally subscribe` writes `tally publish` reads back.

A file that is read for publishing knows at each row how far it is (`FileMark`). So whoever stops can say where, and go
on there, once the part before it was found unchanged.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from hashlib import sha256
from io import BytesIO, StringIO
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson
import pyarrow as pa

from tallystick.cli import output
from tallystick.errors import Misuse
from tallystick.record.gather import to_batches
from tallystick.record.gather_values import BadRow
from tallystick.record.leaves import decode_row, encode_row
from tallystick.record.schema_text import show_type
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
RECORD_BYTES_MAX = 64 << 20  # of CSV: a quote that is never closed would take the whole file in
_FINER = re.compile(r"\.\d{6}(\d+)")
_UNREADABLE = (ValueError, InvalidOperation, TypeError, AttributeError)  # what parsers raise


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


@dataclass(frozen=True)
class FileMark:
    """How far a file was taken. Numbers count from its first line, or its first row where it has no lines."""

    rows: int = 0
    lines: int = 0
    size_bytes: int = 0  # of what was taken; of the whole file where it has no lines
    digest: str = ""  # of those bytes


class Portion(NamedTuple):
    """Rows that fit the topic, and how far the file is taken with them."""

    batch: Any
    end: FileMark


class _Record(NamedTuple):
    """A row's text, behind the blank lines before it."""

    line: int  # its own first one
    end: int  # its last one
    data: bytes


class RowFile:
    """The rows of a file or of stdin, held to a topic's schema. It is read portion by portion, from any mark on."""

    def __init__(
        self, file: str, format_: str, schema: Any, *, header: bool = True, at_once: int = ROWS_AT_ONCE
    ) -> None:
        """`header` says whether a CSV file names its columns in its first line; if not, they are the topic's."""
        if not header and format_ != "csv":
            raise Misuse("--no-header is for CSV: no other format has a header line")
        self.name, self.can_resume = ("stdin", False) if file == "-" else (file, True)
        self._file, self._format, self._schema, self._at_once = file, format_, schema, at_once
        self._has_header = header and format_ == "csv"
        self.unit = "line" if format_ in ("jsonl", "csv") else "row"
        self._names: list[str] = schema.names  # of the columns, in the file's order
        self._parse = _parser(schema)
        self._unseen = set(schema.names)  # columns that no row of JSON had so far

    def portions(self, start: FileMark = FileMark()) -> Iterator[Portion | Misuse]:
        """What fits, in order, and between it a `Misuse` for each row that does not, which names its place. Raises
        `Misuse` at once if the part before `start` was changed, and later where the file as a whole is not what it
        should be."""
        return self._portions(start, self._hashed(start))

    def _portions(self, start: FileMark, hasher: Any) -> Iterator[Portion | Misuse]:
        found = 0
        with self._opened() as source:
            try:
                for portion in (
                    self._text(source, start, hasher) if self.unit == "line" else self._columns(source, start)
                ):
                    found += 1
                    yield portion
            except pa.ArrowInvalid as error:
                raise Misuse(f"{self.name}: not {self._format} that fits the topic: {error}") from None
        if not found:
            what = "nothing behind the rows that were published before" if start.rows else "no rows"
            output.note(f"{self.name} has {what}")

    def count(self, start: FileMark = FileMark()) -> int | None:
        """How many rows there are behind `start`, or None where the file cannot be read, or not twice."""
        try:
            return None if self._file == "-" else self._counted(start)
        except (Misuse, pa.ArrowInvalid):
            return None

    def _counted(self, start: FileMark) -> int:
        with self._opened() as source:
            if self._format == "parquet":
                from pyarrow import parquet

                return int(parquet.ParquetFile(source).metadata.num_rows) - start.rows
            if self.unit == "row":
                return sum(int(batch.num_rows) for batch in self._batches(source)) - start.rows
            source.seek(start.size_bytes)
            found = sum(1 for _ in self._records(source, start.lines))
        return found - (1 if found and self._has_header and not start.lines else 0)

    def vouched(self, mark: FileMark) -> FileMark:
        """The mark with the hash by which `portions` knows the file again."""
        if self.unit == "line":
            return mark
        size = Path(self._file).stat().st_size
        return replace(mark, size_bytes=size, digest=self._hashed(FileMark(size_bytes=size)).hexdigest())

    def behind(self, mark: FileMark, rows: int) -> FileMark:
        """The mark so many rows further. Raises `Misuse` if they are not there any more."""
        if not rows or self.unit == "row":
            return replace(mark, rows=mark.rows + rows, lines=mark.lines + rows)
        at_once, self._at_once = self._at_once, rows
        first = next(self.portions(mark), None)
        self._at_once = at_once
        if isinstance(first, Portion) and first.end.rows == mark.rows + rows:
            return first.end
        raise Misuse(f"{self.name} is not what was published before: it was changed")

    def place(self, mark: FileMark) -> int:
        """The line, or row, with which to go on behind the mark."""
        return (mark.lines if self.unit == "line" else mark.rows) + 1

    def _opened(self) -> AbstractContextManager[IO[bytes]]:
        return nullcontext(sys.stdin.buffer) if self._file == "-" else Path(self._file).open("rb")

    def _hashed(self, start: FileMark) -> Any:
        """What goes on hashing behind `start`. Raises `Misuse` if the part before it is not what was hashed then."""
        hasher, left = sha256(), start.size_bytes
        if left:
            with self._opened() as source:
                while left and (data := source.read(min(left, 1 << 20))):
                    hasher.update(data)
                    left -= len(data)
        if start.digest and hasher.hexdigest() != start.digest:
            part = f"up to line {start.lines} " if self.unit == "line" else ""
            raise Misuse(
                f"{self.name} {part}is not what was published before: it was changed",
                hint="--resume goes on with the same file only; publish what is missing as a file of its own",
            )
        return hasher

    # ── Lines ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _text(self, source: IO[bytes], start: FileMark, hasher: Any) -> Iterator[Portion | Misuse]:
        mark, records = start, self._records(source, 0)
        if self._has_header:
            header = next(records, None)
            if header is None:
                return
            self._read_header(header.data)
            if not start.lines:
                mark = _moved(mark, hasher, [header], rows=0)
        if start.lines:
            source.seek(start.size_bytes)
            records = self._records(source, start.lines)
        while chunk := list(islice(records, self._at_once)):
            while chunk:
                batch, bad = self._fit(chunk)
                if batch.num_rows:
                    mark = _moved(mark, hasher, chunk[: batch.num_rows])
                    yield Portion(batch, mark)
                chunk = chunk[batch.num_rows :]
                if bad is not None:
                    yield bad
                    mark, chunk = _moved(mark, hasher, chunk[:1]), chunk[1:]
        if self._format == "jsonl" and mark.rows and not start.rows:
            self._check_lacking(field for field in self._schema if field.name in self._unseen and field.nullable)

    def _records(self, source: IO[bytes], lines: int) -> Iterator[_Record]:
        """The rows behind so many lines. A value of CSV that is quoted may hold line ends."""
        parts: list[bytes] = []
        size, first, is_open, is_csv = 0, 0, False, self._format == "csv"
        for line in source:
            lines += 1
            parts.append(line)
            size += len(line)
            if not first and line.isspace():
                continue
            first = first or lines
            if is_csv and line.count(b'"') % 2:
                is_open = not is_open
            if is_open and size <= RECORD_BYTES_MAX:
                continue
            if is_open:
                break
            yield _Record(first, lines, b"".join(parts))
            parts, size, first = [], 0, 0
        if is_open:
            raise Misuse(f"line {first}: a quote is opened and not closed")

    def _fit(self, records: list[_Record]) -> tuple[Any, Misuse | None]:
        """The rows up to the first that does not fit, and what is wrong with that one."""
        rows, bad = self._parsed_json(records) if self._format == "jsonl" else self._parsed_csv(records)
        batch, unfit = self._fitting(rows)
        return batch, bad if unfit is None else self._at("line", records[unfit.row].line, unfit)

    def _fitting(self, rows: Any) -> tuple[Any, BadRow | None]:
        """The rows before the first that the topic cannot hold, and what is wrong with it. Columns are looked at one
        after the other: the first complaint need not be about the first row."""
        first = None
        while len(rows):
            try:
                return to_batches(rows, self._schema), first
            except BadRow as error:
                first = error
                rows = rows[: error.row]
        return _none_of(self._schema), first

    def _at(self, unit: str, number: int, error: BadRow) -> Misuse:
        return Misuse(f"{unit} {number}{error.complaint}", hint=error.hint)

    def _parsed_json(self, records: list[_Record]) -> tuple[list[dict[str, Any]], Misuse | None]:
        rows: list[dict[str, Any]] = []
        for one in records:
            try:
                row = orjson.loads(one.data)
                if not isinstance(row, dict):
                    return rows, Misuse(f"line {one.line}: expected an object, found {type(row).__name__}")
                rows.append(self._parse(row))
            except orjson.JSONDecodeError as error:
                return rows, Misuse(f"line {one.line}: not JSON: {error}")
            except (Misuse, *_UNREADABLE):
                return rows, Misuse(f"line {one.line}{self._unreadable(row)}")
            if self._unseen:
                self._unseen.difference_update(row)
        return rows, None

    def _unreadable(self, row: dict[str, Any]) -> str:
        """What is wrong with a row of JSON. It names the column and never quotes a value."""
        for field in self._schema:
            value = row.get(field.name)
            try:
                self._parse({field.name: value})
            except Misuse as error:
                return f', column "{field.name}": {error}'
            except _UNREADABLE:
                kinds: dict[type, str] = {str: "text", list: "list", dict: "object"}
                kind = kinds.get(type(value))
                found = f"a {kind} that cannot be read as one" if kind else type(value).__name__
                return f', column "{field.name}": expected {show_type(field.type)}, found {found}'
        return ": not a row of the topic"

    def _read_header(self, data: bytes) -> None:
        import csv

        try:
            self._names = next(csv.reader([data.decode("utf-8-sig").strip("\r\n")]))
        except UnicodeDecodeError:
            raise Misuse(f"{self.name}: its first line is not UTF-8") from None
        self._check_columns(self._names)

    def _check_columns(self, names: list[str]) -> None:
        """Say which columns are too many, and which the file lacks."""
        for place, name in enumerate(names):
            if name not in self._schema.names:
                raise Misuse(f'{self.name}: column "{name}": the topic has no such column', hint=self._advice(names))
            if name in names[:place]:
                raise Misuse(f'{self.name}: column "{name}": given twice')
        self._check_lacking(field for field in self._schema if field.name not in names)

    def _check_lacking(self, fields: Iterable[Any]) -> None:
        for field in fields:
            if not field.nullable:
                raise Misuse(f'{self.name} lacks the column "{field.name}", which may not be null')
            output.note(f'{self.name} lacks the column "{field.name}": it is null in every row')

    def _advice(self, names: list[str]) -> str:
        """What to do where the file names a column that the topic lacks."""
        said = f"the topic's columns are {', '.join(self._schema.names)}"
        if self._format != "csv" or not {*names}.isdisjoint(self._schema.names):
            return said
        if len(names) == 1 and any(separator in names[0] for separator in ";\t|"):
            return f"{said}; values are separated by commas"
        return f"{said}; --no-header where the first line is a row"

    def _parsed_csv(self, records: list[_Record]) -> tuple[Any, Misuse | None]:
        """By halving: a row that Arrow cannot convert spoils all that are converted with it."""
        table = self._converted(records)
        if table is not None:
            return table, None
        low, high = 0, len(records)  # those before low are good, one of those before high is not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._converted(records[low:middle]) is None else (middle, high)
        table = self._converted(records[:low]) if low else _none_of(self._schema)
        return table, Misuse(f"line {records[low].line}{self._complaint(records[low])}")

    def _converted(self, records: list[_Record], only: str | None = None) -> Any:
        """A table of the rows, where needed with one column alone as the topic has it, or None if it cannot be."""
        from pyarrow import csv

        fields = {field.name: field.type for field in self._schema if field.name in self._names}
        if only is not None:
            fields = dict.fromkeys(fields, pa.binary()) | {only: fields[only]}
        data = b"".join(one.data for one in records)
        try:
            table = csv.read_csv(
                BytesIO(data),
                csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=self._names),
                csv.ParseOptions(newlines_in_values=True),
                csv.ConvertOptions(column_types=fields, strings_can_be_null=True),
            )
        except pa.ArrowInvalid:
            return None
        except pa.ArrowNotImplementedError as error:
            raise Misuse(f"{self.name}: CSV cannot hold every type of the topic: {error}") from None
        return table if table.num_rows == len(records) else None

    def _complaint(self, record: _Record) -> str:
        """What is wrong with a row of CSV. It names the column and never quotes a value."""
        import csv

        text = record.data.decode("utf-8-sig", "replace").strip("\r\n")
        found = len(next(csv.reader(StringIO(text, newline="")), []))
        if found != len(self._names):
            return f": expected {output.plural(len(self._names), 'value')}, found {found}"
        for field in self._schema:
            if field.name in self._names and self._converted([record], field.name) is None:
                expected = f"{show_type(field.type)}, found a text that cannot be read as one"
                return f', column "{field.name}": expected {expected}'
        return ": not a row of CSV"

    # ── Columns ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _columns(self, source: IO[bytes], start: FileMark) -> Iterator[Portion | Misuse]:
        taken, is_first = 0, True
        for whole in self._batches(source):
            if is_first:
                self._check_columns(whole.schema.names)
                is_first = False
            behind = max(0, min(start.rows - taken, whole.num_rows))  # was published before
            taken += behind
            while behind < whole.num_rows:
                batch, unfit = self._fitting(whole.slice(behind, self._at_once))
                behind, taken = behind + batch.num_rows, taken + batch.num_rows
                if batch.num_rows:
                    yield Portion(batch, FileMark(taken, taken))
                if unfit is not None:
                    yield self._at("row", taken + 1, unfit)
                    behind, taken = behind + 1, taken + 1

    def _batches(self, source: IO[bytes]) -> Iterator[Any]:
        if self._format == "parquet":
            from pyarrow import parquet

            yield from parquet.ParquetFile(source).iter_batches(self._at_once)
            return
        try:
            reader = pa.ipc.open_file(source)
        except pa.ArrowInvalid:
            source.seek(0) if self._file != "-" else None
            yield from pa.ipc.open_stream(source)
            return
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def _moved(mark: FileMark, hasher: Any, records: list[_Record], rows: int | None = None) -> FileMark:
    data = b"".join(one.data for one in records)
    hasher.update(data)
    rows = len(records) if rows is None else rows
    return FileMark(mark.rows + rows, records[-1].end, mark.size_bytes + len(data), hasher.hexdigest())


def _none_of(schema: Any) -> Any:
    """A batch without rows."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


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
        raise Misuse("nanoseconds do not fit JSON lines here: publish Arrow or Parquet")
    return datetime.fromisoformat(text)


class Writer:
    """Writes batches to stdout in one of the formats. Where that is a terminal, CSV is escaped as all that is printed;
    JSON always is, since it means the same."""

    def __init__(self, format_: str, *, is_terminal: bool | None = None) -> None:
        self._format = format_
        self._is_terminal = sys.stdout.isatty() if is_terminal is None else is_terminal
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
            sys.stdout.buffer.write(b"".join(output.shown(line.decode()).encode() + b"\n" for line in lines))
        else:
            if self._stream is None:
                self._schema, self._stream = schema, self._open(schema)
            self._stream.write(_completed(batch, self._schema))
        sys.stdout.flush()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def _open(self, schema: Any) -> Any:
        if self._format == "csv":
            from pyarrow import csv

            return csv.CSVWriter(_Terminal() if self._is_terminal else pa.PythonFile(sys.stdout.buffer, "w"), schema)
        return pa.ipc.new_stream(pa.PythonFile(sys.stdout.buffer, mode="w"), schema)


class _Terminal(BytesIO):
    """Text for a terminal, written line by line as soon as a line is whole."""

    def write(self, data: Any) -> int:
        *lines, rest = (self.getvalue() + bytes(data)).split(b"\n")
        sys.stdout.buffer.write(b"".join(output.shown(line.decode()).encode() + b"\n" for line in lines))
        self.seek(0)
        self.truncate()
        super().write(rest)
        return len(data)


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
