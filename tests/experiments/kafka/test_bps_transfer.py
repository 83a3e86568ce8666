"""BPS's figures on Kafka, shrunken: all four from one run."""

from __future__ import annotations

import csv
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest
from broker import broker

from experiments.bps import transfer

pytestmark = pytest.mark.long
has_plots = find_spec("matplotlib") is not None


def test_both_arms_are_measured_at_every_point_and_each_figure_is_drawn(tmp_path: Path) -> None:
    rows = list(transfer.measure(broker(), tmp_path / "work", transfer.SMALL))
    points = [(row.arm, row.operation, row.messages) for row in rows]
    assert sorted(points) == sorted(product(("kafka", "tallystick"), ("produce", "fetch"), transfer.SMALL.messages))
    for figure in transfer.figures():
        assert figure.report(rows, tmp_path) == 0
        assert (tmp_path / f"{figure.name}.png").exists() == has_plots
        with (tmp_path / f"{figure.name}.csv").open(encoding="utf-8") as file:
            told = list(csv.DictReader(file))
        assert {row["operation"] for row in told} == {figure.operation}
        assert len(told) == len(rows) // 2
