"""The arms of `make bench-kafka`, shrunken: every row is measured, and all arms bring all records back."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from broker import broker

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))

pytestmark = pytest.mark.long

OPERATIONS = ("fetch_64", "produce_dicts_64", "produce_columns_64")


def test_every_row_of_one_size_is_measured(tmp_path: Path) -> None:
    cluster = broker()
    import kafka_arms
    import kafka_transfers

    with ExitStack() as stack:
        instance = stack.enter_context(kafka_arms.Direct(tmp_path / "ours", cluster, notary_nice=0))
        transfer = kafka_transfers.Transfer(
            cluster, instance, 64, 512, stack, warm=0
        )  # rows are looked at, not figures
        results = list(transfer.measure({*OPERATIONS, "disk_64"}, rounds=1))
    assert [one.name for one in results] == [
        *("disk_64", "disk_64_unsealed", "disk_64_notary"),
        *(name + suffix for name in OPERATIONS for suffix in suffixes(name)),
    ]
    disk = {one.name: one.ours for one in results if one.name.startswith("disk")}
    assert 0 < disk["disk_64_unsealed"] < disk["disk_64"]  # headers and signatures weigh something


def suffixes(operation: str) -> list[str]:
    """Reading alone can be verified fast."""
    fast = ["_fast"] if operation.startswith("fetch") else []
    return ["", "_unsealed", *fast, "_cpu", "_cpu_unsealed", "_broker", "_notary"]
