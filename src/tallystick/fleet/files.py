"""Record batches to files: Parquet for tables, JSON lines for people and pipes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

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
        with path.open("wb") as file, ExitStack() as stack:
            yield json_lines(file) if path.suffix == ".jsonl" else _parquet(file, stack)
    except OSError as error:
        raise Unavailable(f"{path}: cannot be written: {error.strerror}") from error


def json_lines(file: IO[bytes]) -> Take:
    """What writes one JSON object per row: times in ISO 8601, bytes in hexadecimal."""

    def take(batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            file.write(orjson.dumps(row, default=bytes.hex, option=orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE))

    return take


def _parquet(file: IO[bytes], stack: ExitStack) -> Take:
    """What writes a row group per batch; the schema is that of the first, and `stack` ends the file."""
    writer: pq.ParquetWriter | None = None

    def take(batch: pa.RecordBatch) -> None:
        nonlocal writer
        if writer is None:
            writer = stack.enter_context(pq.ParquetWriter(file, batch.schema, compression="zstd"))
        writer.write_batch(batch)

    return take
