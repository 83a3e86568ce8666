"""BPS's figures, shrunken: what they follow from, not how long it took."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.bps import fig07, fig09, fig10, fig11, fig12, transfer


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_batch_is_one_block_whatever_its_size(tmp_path: Path) -> None:
    assert fig07.main(["--small", "--out", str(tmp_path)]) == 0
    rows = table(tmp_path / "fig07.csv")
    assert [int(row["batch"]) for row in rows] == [1, 2, 8, 32, 128, 512, 1024, 4096]
    assert all(int(row["blocks"]) * int(row["batch"]) == int(row["operations"]) for row in rows)


def test_the_band_of_fig07_can_be_missed() -> None:
    linear = [fig07.Row(size, 0, 2 * size, 2, 1.0, 10.0 * min(size, 512)) for size in fig07.SIZES]
    assert fig07.misses(linear) == []
    assert fig07.misses([replace(row, per_second=10.0) for row in linear])
    assert fig07.misses([replace(row, blocks=3) for row in linear])


@pytest.mark.parametrize("figure", [one.FIGURE for one in (fig09, fig10, fig11, fig12)], ids=lambda one: one.name)
def test_the_bands_of_the_figures_on_kafka_can_be_missed(figure: transfer.Figure) -> None:
    fast = [
        transfer.Row(arm, figure.operation, count, 0, count / rate, rate)
        for count in transfer.PAPER
        for arm, rate in (("kafka", 1e5), ("tallystick", 2e5))
    ]
    slow = [replace(row, arm={"kafka": "tallystick", "tallystick": "kafka"}[row.arm]) for row in fast]
    assert figure.misses(fast) == []
    assert len(figure.misses(slow)) == len(transfer.PAPER)
    small = [replace(row, messages=row.messages // 100) for row in slow]
    assert figure.misses(small) == []  # below the paper's scale no band is meant
