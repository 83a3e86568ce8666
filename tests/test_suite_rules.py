"""The suite's own rules. Every test belongs to one of the tiers that CI runs. Tried on a small suite: engines may be
required, what is left out is said, seeds replay, homes are apart."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent

SUITE = {
    "kafka/test_absent_engine.py": """
        import pytest

        def test_needs_a_broker():
            pytest.skip("no broker here")
        """,
    "pipeline/test_absent_library.py": """
        import pytest

        pytest.importorskip("no_such_library")
        """,
    "test_ordinary.py": """
        import os
        import pytest

        def test_fails_by_its_seed(seed):
            assert seed < 0

        def test_sees_no_home_of_ours():
            assert os.environ["HOME"] != "/home/of/the/caller"
            assert "TALLY_HOME" not in os.environ

        def test_skips_for_another_reason():
            pytest.skip("not on this platform")
        """,
}


def run_suite(folder: Path, *arguments: str, **environment: str) -> str:
    tests = folder / "tests"
    tests.mkdir()
    shutil.copy(HERE / "conftest.py", tests)
    for name, source in SUITE.items():
        file = tests / name
        file.parent.mkdir(exist_ok=True)
        lines = source.strip("\n").splitlines()
        file.write_text("\n".join(line.removeprefix("        ") for line in lines), encoding="utf-8")
    markers = "\n  ".join(["simulation", "crashes", "spark", "kafka", "chain", "long"])
    (folder / "pytest.ini").write_text(f"[pytest]\nmarkers =\n  {markers}\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, "tests"],
        cwd=folder,
        env={
            **os.environ,
            "HOME": "/home/of/the/caller",
            "TALLY_HOME": "elsewhere",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # they take longer to import than the small suite to run
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def test_at_a_desk_an_absent_engine_is_a_skip_and_a_failure_can_be_replayed(tmp_path: Path) -> None:
    told = run_suite(tmp_path, "--seed", "77", "-rN", "-m", "not long", TALLY_REQUIRE_ENGINES="0", TALLY_SETUP_S="600")
    assert "pytest 'tests/test_ordinary.py::test_fails_by_its_seed' --seed 77" in told
    assert "    1  no broker here\n    1  not on this platform\n" in told
    *_, heading, setup, _unit, _sim, _crash, _spark, _kafka, chain, whole, closing = told.splitlines()
    assert heading.split() == ["part", "minutes", "budget"]
    assert setup.split() == ["set-up", "10.0", "6", "over"]
    assert chain.split() == ["chain", "0.0", "2"]
    assert whole.split()[:2] == ["in", "all"]
    assert closing.strip("= ").startswith("1 failed, 1 passed, 3 skipped")


def test_where_engines_are_required_an_absent_one_is_a_failure(tmp_path: Path) -> None:
    told = run_suite(tmp_path, "--continue-on-collection-errors", TALLY_REQUIRE_ENGINES="1")
    assert told.splitlines()[-1].strip("= ").startswith("2 failed, 1 passed, 1 skipped, 1 error")


# --- the tiers ---


def commands_of_ci() -> list[list[str]]:
    """The calls of pytest that CI makes, as make would make them."""
    targets = re.findall(r"^(?:exec )?make (\S+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    calls = []
    for target in targets:
        recipe = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        [call] = re.findall(r"-m (pytest .*)$", recipe, re.MULTILINE)
        calls.append(shlex.split(call))
    return calls


def collected(call: list[str]) -> set[str]:
    """What a call of pytest would run: file and function of each test."""
    done = subprocess.run(
        [sys.executable, "-m", *call, "-n0", "--collect-only", "-q"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    names = (line.partition("[")[0].split("::") for line in done.stdout.splitlines() if "::" in line)
    return {f"{file}::{test}" for file, *_, test in names}


def written() -> set[str]:
    """Every test function in the tree, found by reading."""
    found = set()
    for path in HERE.rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        found |= {
            f"{name}::{test}" for test in re.findall(r"^(?:    )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
        }
    return found


@pytest.mark.long
def test_every_test_is_in_a_tier_that_ci_runs() -> None:
    calls = commands_of_ci()
    assert [call[call.index("-m") + 1] for call in calls] == ["not long", "long"]  # so that none is in both
    tiers = [collected(call) for call in calls]
    assert all(tiers)
    assert set.union(*tiers) == written()
