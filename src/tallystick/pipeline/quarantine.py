"""What a query found is told here: it fails the query, or is a row of the quarantine table, and the query reads on.

A finding is one small parquet file whose name is a function of what was found and where, written beside its place and
moved there: a task that is tried again, a replayed micro-batch, or driver and executor finding the same make one row.
The folder is read with `spark.read.parquet`; where executors are other machines it must be one that they share.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tallystick.client.reader import OPEN_REASONS, Finding, FoundError
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Unavailable
from tallystick.pipeline.options import Options

log = logging.getLogger(__name__)

SCHEMA = pa.schema(
    [
        *(("token", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())),
        *(("reason", pa.string()), ("message", pa.string())),
        *(("publisher", pa.string()), ("lane", pa.string()), ("sequence", pa.int64())),
        *(("evidence", pa.list_(pa.binary())), ("end", pa.int64())),
    ]
)


def report(finding: Finding, options: Options) -> None:
    """Tell a finding: as a row of the quarantine, or by failing the query."""
    log.warning("finding %s: %s", finding.reason, finding.message)
    if options.quarantine is not None:
        _write(options.quarantine, finding)
    elif options.strict or finding.reason not in OPEN_REASONS:
        raise FoundError(finding)


def _write(folder: str, finding: Finding) -> None:
    """Add a finding to the table, once however often. Raises `Unavailable` if the folder cannot be written."""
    row = vars(finding) | {name: getattr(finding, name).hex() or None for name in ("token", "publisher", "lane")}
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
