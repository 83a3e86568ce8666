"""The doctor tries things for real, reports as a table or as JSON, and fails only for what the core needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tallystick.cli import doctor, main


def test_this_machine_is_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["doctor", "--home", str(tmp_path), "--json"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert {
        "versions",
        "processor",
        "hpke",
        "ml-dsa",
        "leaf hashing",
        "clock",
        "disk",
        "java",
    } == checks.keys()
    assert [name for name, check in checks.items() if check["state"] == "bad"] == []
    assert list(tmp_path.iterdir()) == []


def test_a_home_that_is_not_yet_made_is_tried_where_it_will_lie(tmp_path: Path) -> None:
    assert doctor.check_disk(tmp_path / "not" / "yet").state == "ok"
    assert list(tmp_path.iterdir()) == []


def test_without_java_the_report_says_what_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    check = doctor.check_java()
    assert check.state == "missing"
    assert "spark" in (check.hint or "")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder that nobody can write to")
def test_a_bad_check_fails_the_command_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["doctor", "--home", "/proc"]) == 4
    shown = capsys.readouterr()
    assert "bad     disk" in shown.out
    assert shown.err.endswith("error: this machine lacks what tallystick needs: disk\n")


def test_every_library_that_is_asked_for_is_one_we_depend_on() -> None:
    import re
    import tomllib
    from pathlib import Path

    from tallystick.cli.doctor import LIBRARIES

    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    names = {re.split(r"[<>=]", line)[0] for line in project["project"]["dependencies"]}
    assert set(LIBRARIES) <= names
