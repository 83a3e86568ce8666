"""Baselines of detection: each finds what it is for, is quiet on its own calibration, and stands in one table."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.fleet.bus import simulate_bus
from tallystick.fleet.detect.attacks import inject
from tallystick.fleet.detect.evaluate import Case, Recording, recording, unlabelled
from tallystick.fleet.detect.frames import Frames
from tallystick.fleet.detect.readers import Capture

ROOT = Path(__file__).resolve().parents[2]


def load() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        return importlib.import_module("experiments.detect.baselines")


@pytest.fixture(scope="module")
def calm() -> Frames:
    return simulate_bus(0, 0.2, seed=1)


def attacked(family: str, seconds: float = 4.0) -> Recording:
    clean = simulate_bus(0, 0.2, seed=2)
    return recording(Capture(family, *inject(family, clean, int(clean.ts[len(clean) // 2]), seconds, seed=1)))


@pytest.mark.parametrize("name", ["interval", "bigram", "entropy", "lookup", "range", "forest"])
def test_a_baseline_says_nothing_of_its_own_calibration(name: str, calm: Frames) -> None:
    assert len(load().BASELINES[name]([calm])(calm).hits) == 0


@pytest.mark.parametrize(
    ("name", "family"),
    [("interval", "targeted"), ("bigram", "flood"), ("entropy", "flood"), ("lookup", "fuzzing"), ("range", "fuzzing")],
)
def test_a_baseline_marks_what_it_is_for(name: str, family: str, calm: Frames) -> None:
    test = attacked(family)
    hits = load().BASELINES[name]([calm])(test.frames).hits
    marked = np.isin(np.arange(len(test.attack)), hits["frame"])
    assert marked[test.attack].mean() > marked[~test.attack].mean()


def test_the_forest_ranks_what_is_rare_above_the_usual(calm: Frames) -> None:
    shown = load().forest([calm])
    odd = replace(calm, word=np.where(np.arange(len(calm)) % 50 == 0, ~calm.word, calm.word))
    scores = shown(odd)
    assert np.median(scores[::50]) > np.median(scores)


def test_one_run_has_all_checks_each_alone_and_each_removed(calm: Frames) -> None:
    baselines = load()
    case = Case("car", (unlabelled("calm", calm),), (attacked("fuzzing"),))
    found = dict(baselines.scores(case, {"lookup": baselines.BASELINES["lookup"]}))
    assert {"checks", "lookup", "only unknown", "without unknown", "only clock"} <= set(found)
    assert found["only unknown"].frame[0] > found["without unknown"].frame[0]
    assert found["checks"].frame[0] >= found["only unknown"].frame[0]


def test_bands_find_what_is_out_of_them() -> None:
    baselines = load()
    row = baselines.Row("checks", "car masquerade", 1, 1, 0.5, 0.9, 0.8, 1.0, 0.9, 1.0)
    rows = [row, replace(row, detector="lookup", frame_f1=0.1)]
    assert baselines.misses(rows) == []
    assert baselines.misses([row, replace(row, detector="lookup", frame_f1=0.5)])
    assert baselines.plot(rows).lines["lookup"] == [(0, 0.1)]
