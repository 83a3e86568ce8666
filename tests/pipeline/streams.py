"""Streams into folders of parquet, one for each batch: again is once, since the folder's name is the batch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

STUCK_S = 300  # a query over a handful of rows takes seconds, also where others want the cores


def ended(query: Any) -> None:
    """Wait until a query that ends by itself has ended; what ended it too early is raised."""
    assert query.awaitTermination(STUCK_S), f"a query that should have ended stands still: {query.status}"


def into(frame: DataFrame, out: Path, checkpoint: Path, **trigger: Any) -> Any:
    """The writer of such a stream, not yet started."""

    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(str(out / f"batch={number}"))

    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**trigger) if trigger else writer


def run(frame: DataFrame, out: Path, checkpoint: Path) -> None:
    """Everything that is there now, and no more."""
    ended(into(frame, out, checkpoint, availableNow=True).start())


def arrived(out: Path) -> list[dict[str, Any]]:
    """The rows of all batches that are written to the end."""
    done = [marker.parent for marker in out.glob("batch=*/_SUCCESS")]
    parts = [pq.ParquetFile(part).read() for folder in done for part in folder.glob("part-*.parquet")]
    return [row for part in parts for row in part.to_pylist()]


def arrived_seqs(out: Path) -> list[int]:
    return sorted(row["seq"] for row in arrived(out))
