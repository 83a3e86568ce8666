"""The lower bounds of pyproject.toml are true: the pure folders pass their tests with the oldest libraries allowed.

`constraints-oldest.txt` holds those versions. They are installed once, into an environment of their own in the user's
cache, by the version of Python that runs the suite and the contents of that file.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from engines.cache import cache_folder, cached, run_quietly

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints-oldest.txt"
PURE = ("policy", "record", "crypto", "trust", "parcel")
CACHE = cache_folder()  # read before the suite moves HOME
FEW = {"TALLY_PROFILE": "glance"}  # a library lacks what it lacks in every example; the others are the suite's own

# What the tests of the pure folders import beside the dependencies themselves.
FOR_TESTS = ("http-message-signatures", "hypothesis", "pandas", "polars", "pymcl", "pytest", "zfec")


def oldest() -> dict[str, Version]:
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("#")]
    return {name: Version(version) for name, version in (line.split("==") for line in lines)}


def lower_bounds() -> dict[str, Version]:
    """By name, of the dependencies and of what the tests of the pure folders need beside them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for extra in project["optional-dependencies"].values() for line in extra]
    beside = [one for one in map(Requirement, extras) if one.name in FOR_TESTS]
    wanted = [*map(Requirement, project["dependencies"]), *beside]
    return {one.name: Version(bound.version) for one in wanted for bound in one.specifier if bound.operator == ">="}


def test_the_oldest_versions_are_the_lower_bounds() -> None:
    assert oldest() == lower_bounds()


def environment(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
    run_quietly([*install, "-c", str(CONSTRAINTS), *oldest()], folder)


@pytest.mark.long
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the oldest numpy and pymcl have no wheels for Python 3.13")
def test_the_pure_folders_pass_with_the_oldest_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLY_ENGINES", str(CACHE))
    fingerprint = hashlib.sha256(CONSTRAINTS.read_bytes()).hexdigest()[:12]
    folder = cached(f"oldest-{sys.version_info[0]}.{sys.version_info[1]}-{fingerprint}", environment)
    done = subprocess.run(
        [str(folder / "bin" / "python"), "-m", "pytest", "-q", *(f"tests/{name}" for name in PURE)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "NUMBA_CACHE_DIR": str(folder / "numba"), **FEW},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert re.search(r"^\d{3,} passed", done.stdout.splitlines()[-1])
