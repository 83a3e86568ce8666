"""Warming: one line of progress, and afterwards nothing is left to compile."""

from __future__ import annotations

import os
import subprocess
import sys


def test_one_line_of_progress() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tallystick.record.warm"], capture_output=True, text=True, check=True, timeout=300
    )
    assert result.stdout == ""
    assert result.stderr.startswith("compiling the kernels")
    assert result.stderr.count("\n") == 1


def test_the_cache_lies_where_the_user_says(tmp_path: object) -> None:
    """Nothing is compiled here: the folder is chosen when the kernels are decorated."""
    script = "from tallystick.kernels.encode_columns import hash_batch; print(hash_batch.stats.cache_path)"
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.stdout.startswith(str(tmp_path))
