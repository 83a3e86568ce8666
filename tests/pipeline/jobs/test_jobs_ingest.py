"""`ingest`: a topic becomes the table bronze, each row once, whatever happens in between."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from lake import Lake, rows

from tallystick.cli import main


def pipeline(*arguments: object) -> int:
    return main.run(["pipeline", *(str(argument) for argument in arguments)])


def ingest(lake: Lake, topic: str, warehouse: Path, *more: object) -> int:
    return pipeline("run", "ingest", "--home", lake.home, "--topic", topic, "--warehouse", warehouse, *more)


def seqs(warehouse: Path) -> list[int]:
    return sorted(ds.dataset(warehouse / "bronze", partitioning="hive").to_table().column("seq").to_pylist())


def test_every_run_goes_on_where_the_last_one_ended(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, warehouse = lake.topic("bronze-once", partitions=2), tmp_path / "warehouse"
    topic.publish(rows(range(20)), lanes=2, key="vin", batch_rows_max=5)
    assert ingest(lake, topic.name, warehouse, "--json") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {
        "job": "ingest", "table": str(warehouse / "bronze"), "batches": 1, "rows": 20, "findings": 0
    }  # fmt: skip
    assert "bronze batch 0: 20 rows" in shown.err
    topic.publish(rows(range(20, 30)))
    for _ in range(2):
        assert ingest(lake, topic.name, warehouse, "--quiet") == 0
        assert seqs(warehouse) == list(range(30))
    assert capsys.readouterr().err == ""
