"""BPS's figures, shrunken: what they follow from, not how long it took."""

from __future__ import annotations

import csv
import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        return importlib.import_module(f"experiments.bps.{name}")


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_batch_is_one_block_whatever_its_size(tmp_path: Path) -> None:
    assert load("fig07").main(["--small", "--out", str(tmp_path)]) == 0
    rows = table(tmp_path / "fig07.csv")
    assert [int(row["batch"]) for row in rows] == [1, 2, 8, 32, 128, 512, 1024, 4096]
    assert all(int(row["blocks"]) * int(row["batch"]) == int(row["operations"]) for row in rows)


def test_the_band_of_fig07_can_be_missed() -> None:
    fig07 = load("fig07")
    linear = [fig07.Row(size, 0, 2 * size, 2, 1.0, 10.0 * min(size, 512)) for size in fig07.SIZES]
    assert fig07.misses(linear) == []
    assert fig07.misses([replace(row, per_second=10.0) for row in linear])
    assert fig07.misses([replace(row, blocks=3) for row in linear])
