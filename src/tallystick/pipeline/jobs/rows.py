"""Rows of a warehouse's tables for who shows them: columns of a known type, each row with its place, without Spark.

Threat: a folder that is another instance's, damaged, half written, or filled by a stranger. Its instance must be the
one that is asked for, every batch must have the rows that were written down for it, and every column its type. What
does not hold is a sentence with the remedy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tallystick import wire
from tallystick.errors import Misuse
from tallystick.pipeline.jobs.warehouse import Warehouse, WarehouseTable

OPEN = "open"  # in place of a batch's number: rows beside the newest batch, which may still change
TIME = pa.timestamp("us", "UTC")  # read as a number of microseconds: a stranger's may be in no calendar


class TableRows:
    """The tables of a warehouse of this instance. Raises `Misuse` where it is none."""

    def __init__(self, folder: Path, instance: bytes) -> None:
        self._warehouse = Warehouse(folder)
        found = self._warehouse.facts()
        if found.get("instance") != instance.hex():
            what = "the warehouse of another instance" if found else "no warehouse"
            raise Misuse(f"{folder}: {what}", hint="name one that tally pipeline run made: --warehouse")
        token = found.get("token")
        self.token = bytes.fromhex(token) if isinstance(token, str) and wire.is_identifier(token) else None

    def read(
        self,
        name: str,
        schema: pa.Schema,
        where: pc.Expression | None = None,
        batches: Collection[int] | None = None,
    ) -> pa.Table:
        """These columns of the rows that fit `where`. With `batches` of these alone.

        Without `where` each row has its place: `batch`, -1 where it is open, and `row`.
        """
        with self.table(name) as table:
            chosen = [number for number in [*table.batches(), -1] if batches is None or number in batches]
            return pa.concat_tables([_columns(table, number, schema, where) for number in chosen])

    def one(self, name: str, schema: pa.Schema, batch: str, row: str) -> dict[str, Any]:
        """The row of this place, as an address has it. Raises `Misuse` where there is none."""
        found: list[dict[str, Any]] = []
        with self.table(name) as table:
            if batch == OPEN or (wire.is_number(batch) and int(batch) in table.batches()):
                rows = _columns(table, -1 if batch == OPEN else int(batch), schema)
                found = rows.slice(int(row), 1).to_pylist() if wire.is_number(row) and int(row) < len(rows) else []
        if not found:
            raise Misuse(f"{name}: no row {row[:20]} of batch {batch[:20]}", hint="open rows move on: look again")
        return found[0]

    def files(self, name: str, batch: int) -> list[str]:
        """The files of a batch's rows; of the open ones for -1."""
        with self.table(name) as table:
            return _files(table, batch)

    @contextmanager
    def table(self, name: str) -> Iterator[WarehouseTable]:
        """What is wrong with it within the block is told with the remedy."""
        table = self._warehouse.table(name)
        try:
            yield table
        except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
            why = str(error).partition("\n")[0][:200] or type(error).__name__
            hint = f"restore it, or remove {table.folder} and run the job anew that writes it: tally pipeline list"
            raise Misuse(f"{table.folder}: not what its job writes: {why}", hint=hint) from error


def _columns(table: WarehouseTable, batch: int, schema: pa.Schema, where: pc.Expression | None = None) -> pa.Table:
    if batch >= 0:
        table.check(batch)
    files = _files(table, batch)
    found = schema.empty_table()
    if files:
        found = ds.dataset(files).to_table(columns=schema.names, filter=where).cast(schema)
    for place, one in enumerate(schema):
        if one.type == TIME:
            found = found.set_column(place, one.name, found[one.name].cast(pa.int64()))
    rows = pa.array(range(len(found)), pa.int64())
    return found.append_column("batch", pa.repeat(pa.scalar(batch, pa.int64()), len(rows))).append_column("row", rows)


def _files(table: WarehouseTable, batch: int) -> list[str]:
    if batch < 0:
        return table.files(beside=OPEN)
    return [str(path) for path in sorted(table.place(batch).glob("*.parquet"))]
