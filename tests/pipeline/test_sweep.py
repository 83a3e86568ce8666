"""Sweeps of figures on Spark: the same rows as one seed after the other, whoever runs them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from experiments import sweep


@pytest.mark.long
def test_seeds_on_executors_give_what_they_give_here(spark: SparkSession) -> None:
    seeds = [4, 5, 6]
    found = sweep.sweep(spark, "synapse.placement", seeds, small=True)
    assert found == [row for seed in seeds for row in sweep.run_seed("synapse.placement", seed, True)]
    assert {row["seed"] for row in found} == set(seeds)


def test_the_spread_over_seeds() -> None:
    rows = [{"seed": seed, "tree": tree, "shares": seed * 2} for seed in (1, 2, 3) for tree in ("complete", "drawn")]
    (first, _) = sweep.summary(rows, ["tree"])
    assert first.pop("shares_deviation") == pytest.approx(1.633, abs=0.001)
    assert first == {"tree": "complete", "seeds": 3, "shares_mean": 4.0, "shares_least": 2.0, "shares_most": 6.0}
