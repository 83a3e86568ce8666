"""The attacker on the simulated bus, shrunken: what each search tries, and that a seed repeats it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def attacker() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        return importlib.import_module("experiments.detect.attacker")


@pytest.mark.long
def test_searches_repeat_and_a_lie_that_all_tell_goes_unseen(attacker: Any) -> None:
    bench = attacker.Bench(0, attacker.SMALL)
    found = [attacker.search(bench, 1, 40, "learnt", np.random.default_rng(1)) for _ in range(2)]
    assert found[0] == found[1]
    assert len(found[0]) == 40
    agreed = np.array([0.3, 0.0, 10.0, *np.ones(bench.names - 1)])  # 2 km/h more every second, for ten seconds
    assert bench.attempt(agreed) == (True, pytest.approx(20, abs=0.1))
    alone = agreed[:3]
    assert bench.attempt(alone)[0] is False


def test_the_interval_of_no_evasion_is_not_zero(attacker: Any) -> None:
    assert attacker._wilson(0, 1_000) == pytest.approx(3.8e-3, abs=1e-4)
    assert attacker._wilson(1_000, 1_000) == pytest.approx(1.0)
