"""Two commits compared: what counts as moved, and the command on a small repository."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import compare
import harness

# A suite whose values are those of the source: one asked in this process, one in a process whose environment has no
# search path, as the servers of benchmarks may have none.
SUITE = """
import json, pathlib, subprocess, sys
import tallystick
code = "import tallystick; print(tallystick.VALUE)"
inner = float(subprocess.run([sys.executable, "-c", code], env={}, capture_output=True, text=True, check=True).stdout)
rows = {"here": tallystick.VALUE, "elsewhere": inner, **getattr(tallystick, "MORE", {})}
out = pathlib.Path(__file__).parent.parent / "build" / "bench"
out.mkdir(parents=True, exist_ok=True)
written = [{"name": name, "ours": value, "unit": "ns/record"} for name, value in rows.items()]
(out / "fake.json").write_text(json.dumps(written))
assert sys.argv[1:] == ["--only", "this"], sys.argv
"""


@pytest.mark.parametrize(
    ("unit", "base", "head", "told"),
    [
        ("ns/record", [100, 102, 101], [120, 119, 125], "worse"),
        ("ns/record", [100, 102, 101], [80, 82, 81], "better"),
        ("parcels/s", [100, 102, 101], [120, 119, 125], "better"),
        ("parcels/s", [100, 102, 101], [80, 82, 81], "worse"),
        ("bytes/record", [40, 40, 40], [44, 44, 44], "worse"),
        ("ns/record", [100, 140, 101], [120, 119, 145], "the same"),  # far apart by the medians, and within the noise
        ("ns/record", [100, 110, 118], [119, 130, 150], "the same"),  # apart, and no further than each of them varies
        ("ns/record", [100, 101, 102], [103, 104, 105], "the same"),  # apart, by less than five per cent
        ("ns/record", [100, 101], [200, 201], "unknown"),  # two passes lie apart by chance once in three
        ("ns/record", [0, 0, 0], [0, 0, 0], "the same"),
    ],
)
def test_a_row_has_moved_when_ranges_are_apart_and_medians_further_than_the_noise(
    unit: str, base: list[float], head: list[float], told: str
) -> None:
    assert compare.judge("x", unit, base, head).told == told


def test_ratio_and_noise_are_those_of_the_medians() -> None:
    found = compare.judge("x", "ns/record", [90, 100, 120], [150, 151, 152])
    assert (found.ratio, found.noise) == (1.51, 0.3)


def test_rows_of_one_side_are_named_and_the_others_judged() -> None:
    def passes(**values: float) -> list[dict[str, harness.Row]]:
        return [{name: {"unit": "ns/record", "ours": value} for name, value in values.items()}] * 3

    found, gone, new = compare.verdicts(passes(both=1.0, old=1.0), passes(both=2.0, new=1.0))
    assert [(one.name, one.told) for one in found] == [("both", "worse")]
    assert (gone, new) == (["old"], ["new"])
    line = compare.in_a_line(found, "abc", "def+", 3)
    assert line == "bench-compare abc..def+, 3 passes: of 1 rows 1 moved: both +100 % (worse, noise 0 %)"
    assert compare.in_a_line([], "abc", "def", 3).endswith("of 0 rows none moved")


@pytest.mark.long
def test_the_command_runs_each_side_on_its_own_source(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True, capture_output=True)

    source, suite = tmp_path / "src" / "tallystick" / "__init__.py", tmp_path / "benchmarks" / "fake.py"
    for path, text in ((source, "VALUE = 100.0\n"), (suite, SUITE), (tmp_path / ".gitignore", "build/\n")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git("init", "-q")
    git("add", ".")
    git(
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@example.org",
        "-c",
        "commit.gpgsign=false",
        "commit",
        "-q",
        "-m",
        "first",
    )
    source.write_text("VALUE = 200.0\nMORE = {'new': 1.0}\n")  # not committed: head is the working tree
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    git("add", "pyproject.toml")
    arguments = ("--suite", "fake", "--passes", "3", "--strict", "--only", "this")
    command = [sys.executable, compare.__file__, "HEAD", *arguments]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr  # something got worse, and --strict was said
    said = ended.stdout
    assert "only in head: new" in said
    assert "note: pyproject.toml" in said
    assert "2 moved: here +100 % (worse, noise 0 %), elsewhere +100 % (worse" in said
    kept = json.loads((tmp_path / "build" / "bench" / "compare.json").read_text())
    assert [(row["base"], row["head"]) for row in kept["rows"]] == [([100.0] * 3, [200.0] * 3)] * 2
    assert source.read_text().startswith("VALUE = 200.0")  # the working tree is as it was
