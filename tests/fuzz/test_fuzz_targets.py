"""Every fuzz target for a few seconds: nothing but errors of our family comes out of whatever libFuzzer thinks of."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 10
TARGETS = sorted(Path(__file__).parent.glob("fuzz_*.py"))


MEMORY_MB = 2048


def fuzz(target: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """What libFuzzer takes for a target's memory begins with the most that we, who start it, ever had."""
    pytest.importorskip("atheris", reason="atheris is not installed: pip install 'tallystick[fuzz]'")
    ours_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return subprocess.run(
        [sys.executable, str(target), f"-rss_limit_mb={ours_mb + MEMORY_MB}", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS, ids=[target.stem for target in TARGETS])
def test_nothing_breaks_on_hostile_bytes(target: Path, tmp_path: Path, seed: int) -> None:
    done = fuzz(target, tmp_path, f"-max_total_time={SECONDS}", f"-seed={seed % 2**31 or 1}")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Done " in done.stderr


@pytest.mark.long
def test_a_decoder_that_breaks_is_found(tmp_path: Path) -> None:
    target = tmp_path / "fuzz_broken.py"
    target.write_text("from targets import run\nrun([lambda data: data.decode('ascii')], [b'fine'])\n")
    done = fuzz(target, tmp_path, f"-max_total_time={SECONDS}", "-seed=1")
    assert done.returncode != 0
    assert "UnicodeDecodeError" in done.stderr + done.stdout
