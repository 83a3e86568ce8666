"""Record batches to files: Parquet for tables, JSON lines for people and pipes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tallystick.errors import Misuse, Unavailable

Take = Callable[[pa.RecordBatch], None]


@contextmanager
def writing(path: Path) -> Iterator[Take]:
    """Yield what takes batches and writes them to `path`, by its suffix: `.parquet` or `.jsonl`."""
    if path.suffix not in (".parquet", ".jsonl"):
        raise Misuse(f"{path}: the suffix must be .parquet or .jsonl")
    try:
        with path.open("wb") as file:
            if path.suffix == ".jsonl":
                yield json_lines(file)
            else:
                with _parquet(file) as take:
                    yield take
    except OSError as error:
        raise Unavailable(f"{path}: cannot be written: {error.strerror}") from error


def json_lines(file: IO[bytes]) -> Take:
    """What writes one JSON object per row: times in ISO 8601, bytes in hexadecimal."""

    def take(batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            file.write(orjson.dumps(row, default=_hex, option=orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE))

    return take


@contextmanager
def _parquet(file: IO[bytes]) -> Iterator[Take]:
    """A row group per batch; the schema is that of the first."""
    writer: pq.ParquetWriter | None = None

    def take(batch: pa.RecordBatch) -> None:
        nonlocal writer
        if writer is None:
            writer = pq.ParquetWriter(file, batch.schema, compression="zstd")
        writer.write_batch(batch)

    try:
        yield take
    finally:
        if writer is not None:
            writer.close()


def _hex(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(type(value).__name__)
