"""The benchmark of the console runs, and its rows are those that the page needs. No times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import console
import harness

ROWS = {
    "first_page",
    "block_shown",
    "scene_shown",
    "idle",
    "replay",
    "memory",
    "page_first",
    "page_topics",
    "page_ledger",
}


@pytest.mark.long
def test_a_short_run_has_every_row(tmp_path: Path) -> None:
    command = [sys.executable, console.__file__, "--quick", "--into", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert {row["name"] for row in harness.read(tmp_path, console.SUITE)} >= ROWS
