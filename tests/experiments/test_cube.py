"""The studies of CUBE's claims, on windows made here: networks learn, and bands find what is out of them."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("optax")
ROOT = Path(__file__).resolve().parents[2]


def load() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        return importlib.import_module("experiments.cube.ablations")


def made(cube: Any) -> tuple[Any, Any, Any]:
    """Windows in which an attacker's frames lie a little higher."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 2, 400).astype(np.float32)
    rows = draw.normal(size=(400, cube.LENGTH * cube.WIDTH)).astype(np.float32) + 0.5 * labels[:, None]
    marked = np.column_stack([rows, labels])
    return marked[:300], rows[labels == 0], marked[300:]


def test_cells_and_pre_training_learn_what_is_easy() -> None:
    cube = load()
    size = cube.Size(seeds=1, steps=40, hidden=8)
    marked, free, judged = made(cube)
    for change in ({"cell": "GRU"}, {"pretrain": True, "dropout": 0.2}):
        variant = replace(cube.Variant(rates=(1e-2,)), **change)
        params, loss = cube.learn(variant, 0, size, marked, free)
        forward = cube.recurrent if variant.cell else cube.flat
        assert cube.area(np.asarray(forward(params, judged[:, :-1], None, variant))[:, 0], judged[:, -1]) > 0.9
        assert loss < np.log(2)


def test_the_area_counts_pairs() -> None:
    cube = load()
    scores, labels = np.array([1, 2, 3, 3], np.float32), np.array([0, 1, 0, 1], np.float32)
    assert cube.area(scores, labels) == (1 + 0 + 1 + 0.5) / 4


def test_bands_find_what_is_out_of_them() -> None:
    cube = load()
    rows = [cube.Row("cell", name, 1.0, seed, 0.1, 0.8) for name in ("RNN", "LSTM") for seed in (0, 1)]
    assert cube.misses(rows) == []
    assert cube.misses([replace(row, area=0.9) if row.variant == "LSTM" else row for row in rows])
    slow = [cube.Row("optimiser", name, 1.0, 0, loss, 0.8) for name, loss in (("SGD", 0.5), ("Adam", 0.6))]
    assert cube.misses(slow)
    assert "| cell | RNN | 0.100 (0.100–0.100) |" in cube.table(rows)


@pytest.mark.long
def test_pre_training_is_tried_on_simulated_cars(tmp_path: Path) -> None:
    """What leaves the band is said, not failed: at this size the seeds lie far apart."""
    cube = load()
    assert cube.main(["--quick", "--only", "labels", "--out", str(tmp_path)]) in (0, 1)
    assert len((tmp_path / "ablations.csv").read_text().splitlines()) == 1 + cube.QUICK.seeds * len(
        cube.STUDIES["labels"]
    )
