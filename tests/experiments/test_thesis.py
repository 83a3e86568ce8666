"""The thesis's figures, shrunken: what they follow from, not how long they took."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path
from typing import Any

import pytest

from tallystick.crypto.abe import group

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ["fig21", "fig22", "fig23", "fig24", "fig25"]


def load(name: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        return importlib.import_module(f"experiments.thesis.{name}")


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_lands_in_its_band(name: str, tmp_path: Path) -> None:
    if not group.available():
        pytest.skip("pymcl has no wheel for Python 3.13")
    figure = load(name)
    assert figure.main(["--small", "--out", str(tmp_path)]) == 0
    with (tmp_path / f"{name}.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["scheme"] for row in rows} == {"bsw07", "fabeo"}
    assert all(float(row["cpu_ms"]) > 0 for row in rows)


def test_the_band_can_be_missed() -> None:
    if not group.available():
        pytest.skip("pymcl has no wheel for Python 3.13")
    from dataclasses import replace

    figure = load("fig23")
    rows = list(figure.run(4, True))
    assert figure.misses(rows) == []
    assert figure.misses([replace(row, pairings=row.pairings + row.attributes) for row in rows])


def test_labels_lie_between_flooding_and_exact_matching(tmp_path: Path) -> None:
    experiment = load("false_positives")
    rows = list(experiment.run(4, True))
    assert experiment.misses(rows) == []
    assert rows == list(experiment.run(4, True))  # a function of the seed
    assert {row.labels for row in rows} == {"flooding", "joint", "each"}
    assert len({(row.attributes, row.together) for row in rows}) == 4
    assert all(row.withheld == 0 for row in rows)
    assert experiment.main(["--small", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "false_positives.csv").exists()
