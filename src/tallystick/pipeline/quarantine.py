"""The quarantine table: a row for everything that a query found, and read on.

A finding is one small parquet file whose name is a function of what was found and where, written beside its place and
moved there: a task that is tried again, a replayed micro-batch, or driver and executor finding the same make one row.
The folder is read with `spark.read.parquet`; where executors are other machines it must be one that they share.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tallystick.client.reader import Finding
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Unavailable

SCHEMA = pa.schema(
    [
        ("token", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("reason", pa.string()),
        ("message", pa.string()),
        ("publisher", pa.string()),
        ("lane", pa.string()),
        ("sequence", pa.int64()),
        ("evidence", pa.list_(pa.binary())),
    ]
)


def write(folder: str, finding: Finding) -> None:
    """Add a finding to the table; again is once. `Unavailable` if the folder cannot be written."""
    row = {
        "token": finding.token.hex(),
        "partition": finding.partition,
        "offset": finding.offset,
        "reason": finding.reason,
        "message": finding.message,
        "publisher": finding.publisher.hex() or None,
        "lane": finding.lane.hex() or None,
        "sequence": finding.sequence,
        "evidence": list(finding.evidence),
    }
    place = f"{finding.token.hex()} {finding.partition} {finding.offset} {finding.reason} {finding.lane.hex()}"
    digest = named_hash("tallystick quarantine 1", place.encode()).hex()[:16]
    path = Path(folder) / f"{finding.partition:05d}-{finding.offset or 0:012d}-{finding.reason}-{digest}.parquet"
    hidden = path.with_name(f".{path.name}.{os.getpid()}")  # Spark passes over names that begin with a dot
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([row], schema=SCHEMA), hidden)
        hidden.replace(path)
    except OSError as error:
        raise Unavailable(f"quarantine {folder}: cannot be written: {error.strerror}") from error
