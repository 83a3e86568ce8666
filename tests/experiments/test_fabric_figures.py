"""The fabric's figures, shrunken: trees and clusterings land in their bands, and bands find what is out of them."""

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
        return importlib.import_module(f"experiments.fabric.{name}")


@pytest.mark.parametrize("name", ["trees", "clustering"])
def test_a_figure_of_the_fabric_lands_in_its_band(name: str, tmp_path: Path) -> None:
    assert load(name).main(["--small", "--out", str(tmp_path)]) == 0
    with (tmp_path / f"{name}.csv").open(encoding="utf-8") as file:
        assert list(csv.DictReader(file))


@pytest.mark.long
@pytest.mark.parametrize("name", ["trees", "clustering"])
def test_a_figure_of_the_fabric_lands_in_its_band_at_length(name: str, tmp_path: Path) -> None:
    assert load(name).main(["--out", str(tmp_path)]) == 0


def test_bands_find_what_is_out_of_them() -> None:
    trees, clustering = load("trees"), load("clustering")
    rows = list(trees.run(4, small=True))
    assert trees.misses(rows) == []
    assert trees.misses([replace(row, stretch=1.1) for row in rows])
    found = list(clustering.run(4, small=True))
    assert clustering.misses([replace(row, withheld=1) for row in found])
    assert clustering.misses([replace(row, false=1) for row in found])
    assert clustering.misses([replace(row, rate=0.5) for row in found])


def test_a_topic_s_clustering_is_chosen_by_the_rules_it_may_have() -> None:
    clustering = load("clustering")
    rows = [row for row in clustering.run(4, small=True) if row.events == "gathered"]
    few, many = clustering.best(rows, min(row.rules for row in rows)), clustering.best(rows, 10**9)
    assert many.clustering == "exact"
    assert few.false > many.false == 0
