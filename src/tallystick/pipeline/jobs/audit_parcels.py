"""The table `parcels`: what lies in a topic's log, header by header, held to the ledger's anchors.

Threat: a node whose log is not what it anchored: altered, cut, reordered, forked. The driver's planner fetches headers
without bodies, proves each range under the proved anchor and joins each lane (pipeline/plan.py); a row here is a header
that held, or, with `found`, what did not. Values stay sealed: an audit needs no row of anybody's.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tallystick.client.reader import Finding, Placed
from tallystick.parcel.parcel import VerifiedHeader
from tallystick.pipeline.access import Access
from tallystick.pipeline.jobs.audit_ledger import as_us
from tallystick.pipeline.jobs.warehouse import WarehouseTable
from tallystick.pipeline.options import Options
from tallystick.pipeline.plan import Planner

TABLE = "parcels"
BATCH_PARCELS = 200_000

SCHEMA = pa.schema(
    [
        pa.field("token", pa.string(), False),
        pa.field("partition", pa.int32(), False),
        pa.field("offset", pa.int64(), False),
        pa.field("publisher", pa.string()),
        pa.field("lane", pa.string()),
        pa.field("sequence", pa.int64()),
        pa.field("continues", pa.string()),  # the lane that this one took over from
        pa.field("kind", pa.string()),  # data, heartbeat, gap, close, commit
        pa.field("rows", pa.int64()),  # null on padded topics, where the count is sealed
        pa.field("bytes", pa.int64()),  # of the sealed body
        pa.field("sealed", pa.timestamp("us", "UTC")),  # the publisher's claim; null on padded topics
        pa.field("found", pa.string()),  # why this is no verified parcel: a reason of client/reader.py
        pa.field("message", pa.string()),
    ]
)


def follow(table: WarehouseTable, spark: SparkSession, access: Access, home: str, topic: str) -> int:
    """Bring the table up to the topic's newest anchors. Returns how many parcels were added."""
    # With a quarantine a range that does not hold is halved down to the bad parcel, and the others are read.
    heads, told = (str(table.folder / name) for name in ("_heads", "_found"))
    planner, added = Planner(Options(home, topic, heads=heads, quarantine=told), access), 0
    while True:
        done, anchors = _done(table, access), planner.anchors()
        waiting = {p: anchor for p, anchor in anchors.items() if anchor.size > done[p]}
        if not waiting:
            return added
        rows: list[dict[str, Any]] = []
        for partition, anchor in sorted(waiting.items()):
            end = min(anchor.size, done[partition] + max(1, BATCH_PARCELS - len(rows)))
            for item in planner.headers(partition, done[partition], end, anchor):
                rows.append({"token": access.token.hex(), "partition": partition, **_facts(item)})
            done[partition] = end
            if len(rows) >= BATCH_PARCELS:
                break
        offsets = {str(partition): offset for partition, offset in done.items()}
        table.write_rows(spark, rows, SCHEMA, {"topic": topic, "token": access.token.hex(), "offsets": offsets})
        added += len(rows)


def _done(table: WarehouseTable, access: Access) -> dict[int, int]:
    """Up to which offset each partition was read."""
    offsets = table.last().get("offsets", {})
    return {partition: int(offsets.get(str(partition), 0)) for partition in range(access.partitions)}


def _facts(item: Placed[VerifiedHeader] | Finding) -> dict[str, Any]:
    if isinstance(item, Finding):
        lane = {"publisher": item.publisher.hex() or None, "lane": item.lane.hex() or None, "sequence": item.sequence}
        return {"offset": item.offset or 0, **lane, "found": item.reason, "message": item.message}
    header = item.verified.header
    return {
        "offset": item.offset,
        "publisher": item.verified.publisher.hex(),
        "lane": header.lane.hex(),
        "sequence": header.sequence,
        "kind": header.kind.name.lower(),
        "bytes": header.body_bytes,
        "continues": None if header.continues is None else header.continues.lane.hex(),
        "rows": None if header.padded else header.count,
        "sealed": as_us(header.time_ms) if header.time_ms else None,
    }
