"""`make setup` says one line, and all that pip said where pip fails."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYTHON = """#!/bin/sh
i=0
while [ $i -lt 100 ]; do echo "pip says $i"; echo "pip warns $i" >&2; i=$((i + 1)); done
exit {code}
"""  # in the place of the environment's own: what pip would do is not asked of a network


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("code", [0, 1])
def test_pip_is_quiet_unless_it_fails(tmp_path: Path, code: int) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON.format(code=code))
    python.chmod(0o755)
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "EXTRAS"))}
    done = subprocess.run(["make", "setup"], cwd=tmp_path, env=outside, capture_output=True, text=True, check=False)
    assert [line for line in done.stdout.splitlines() if "pip" in line] == []
    assert done.stdout.startswith("installing tallystick[")
    if code:
        assert done.returncode != 0
        assert "pip says 99" in done.stderr
        assert "error: pip failed; all that it said is in .venv/pip.log" in done.stderr
        assert (tmp_path / ".venv" / "pip.log").read_text().startswith("pip says 0\n")
    else:
        assert (done.returncode, done.stderr) == (0, "")
