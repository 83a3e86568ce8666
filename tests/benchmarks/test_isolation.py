"""The benchmark of tenants apart runs, each attack is described, and its rows are what the page needs. No times."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import isolation
from isolation_attacks import ATTACKS

FEW = ("elsewhere", "polls")  # one that is always refused, and one that is not


@pytest.mark.long
def test_a_short_run_tells_what_honest_and_hostile_did(tmp_path: Path) -> None:
    command = [sys.executable, isolation.__file__, "--quick", "--into", str(tmp_path)]
    ran = subprocess.run([*command, *(f"--only={name}" for name in FEW)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    rows = {row["name"]: row for row in json.loads((tmp_path / "isolation.json").read_text())}
    assert list(rows) == [*isolation.PACES_S, *(f"attack_{name}" for name in FEW)]
    for name in isolation.PACES_S:
        assert rows[name]["target"] == isolation.TARGET
        assert rows[name]["ratio"] == pytest.approx(rows[name]["peer"] / rows[name]["ours"])
    astray, polls = (rows[f"attack_{name}"] for name in FEW)
    assert astray["requests"] == astray["refused"] > 0
    assert polls["requests"] > polls["refused"] == 0
    assert "| elsewhere | " in ran.stdout


def test_of_a_hundred_values_the_last_but_one_counts() -> None:
    assert isolation.p99([float(value) for value in range(100, 0, -1)]) == 99
    assert isolation.p99([3.0, 1.0]) == 3


def test_every_attack_says_what_it_does() -> None:
    assert [name for name, attack in ATTACKS.items() if not attack.__doc__] == []
