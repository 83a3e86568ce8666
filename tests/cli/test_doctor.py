"""The doctor tries things for real, reports as a table or as JSON, and fails only for what the core needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tallystick.cli import doctor, main
from tallystick.engines.kafka import VERSION as KAFKA


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
        *doctor.ENGINES,
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


def test_engines_that_are_not_there_are_told_with_what_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("TALLY_ENGINES", str(tmp_path))
    monkeypatch.delenv("TALLY_COMETBFT", raising=False)
    needed_by = {
        "kafka": "tally dev kafka",
        "cometbft": "tally chain",
        "go": "make engines",
        "litewitness": "witnesses",
    }
    for name, what in needed_by.items():
        check = doctor.check_engine(name)
        assert (check.name, check.state, check.found) == (name, "missing", "not there")
        assert what in (check.hint or "")


def test_engines_that_are_there_are_told_with_their_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLY_ENGINES", str(tmp_path))
    (tmp_path / "litewitness-v1.2.3").mkdir()
    (tmp_path / "litewitness-v1.2.3" / "litewitness").touch()
    (tmp_path / f"kafka-{KAFKA}" / "libs").mkdir(parents=True)
    assert doctor.check_engine("litewitness").found.startswith("v1.2.3 at ")
    assert doctor.check_engine("kafka").found.startswith(f"{KAFKA} at ")


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
