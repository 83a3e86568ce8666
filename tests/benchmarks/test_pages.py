"""The pages say what the committed results say, and nothing that was measured stands outside a region."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import harness
import pages
import sizing

MARKED = re.compile(r"<!-- (?:table|of its time): .+? -->\n.*?<!-- end of table -->", re.DOTALL)
NUMBERED = re.compile(r"^\|.*\d.*$", re.MULTILINE)


def text_of(name: str) -> str:
    return (harness.ROOT / name).read_text(encoding="utf-8")


def row(name: str, ours: float, **fields: object) -> harness.Row:
    measured = asdict(harness.Result(name, ours, None, "parcels/s", None, None, 3))
    told = {"date": "2026-11-15", "load": 1.5, "commit": "abc1234", "machine": "a machine"}
    return {**measured, **told, **fields}


@pytest.mark.parametrize("name", pages.PAGES)
def test_every_region_is_what_the_command_writes(name: str) -> None:
    text = text_of(name)
    assert pages.REGION.search(text)
    assert pages.rewritten(text, pages.RESULTS) == text, "run make bench-pages"


@pytest.mark.parametrize("name", ["README.md", "docs/benchmarks.md", "docs/sizing.md"])
def test_every_table_with_numbers_is_in_a_region(name: str) -> None:
    text = text_of(name)
    assert NUMBERED.findall(MARKED.sub("", text)) == []
    assert text.count("<!-- end of table -->") == len(MARKED.findall(text))  # none is left open, or in another


def test_a_number_outside_a_region_would_be_seen() -> None:
    table = "| seal | 302 |"
    assert NUMBERED.findall(MARKED.sub("", f"before\n{table}\nafter")) == [table]
    assert NUMBERED.findall(MARKED.sub("", f"<!-- of its time: abc, 2026 -->\n{table}\n<!-- end of table -->")) == []


def test_a_changed_result_changes_the_page_and_only_within_its_region(tmp_path: Path) -> None:
    harness.merge(tmp_path, "spine", [row(name, 5142.0) for name in ("guard_8", "other")])
    page = "a\n<!-- table: spine guard_* -->\nold\n<!-- end of table -->\nb\n"
    written = pages.rewritten(page, tmp_path)
    assert "| guard_8 | 5,142 | parcels/s |" in written
    assert "*Measured at commit abc1234; 2026-11-15; load 1.5; a machine.*" in written
    assert "old" not in written
    assert "other" not in written
    assert written.startswith("a\n")
    assert written.endswith("\nb\n")
    assert pages.rewritten(written, tmp_path) == written
    harness.merge(tmp_path, "spine", [row("guard_8", 6000.0, commit="def5678+", load=3.0)])
    again = pages.rewritten(written, tmp_path)
    assert "6,000" in again
    assert "5,142" not in again
    assert "commit def5678+; 2026-11-15; load 3.0" in again


def test_a_table_of_rows_from_two_runs_names_both() -> None:
    rows = [row("guard_8", 1.0), row("guard_64", 2.0, commit="def5678", date="2026-11-16", load=10.5)]
    told = pages.caption(rows)
    assert told == ("*Measured at commits abc1234, def5678; 2026-11-15 to 2026-11-16; load 1.5 to 10.5; a machine.*")
    assert "load not noted;" in pages.caption([row("guard_8", 1.0, load=None)])
    assert "load 1.5, of some not noted;" in pages.caption([row("guard_8", 1.0), row("guard_64", 1.0, load=None)])


@pytest.mark.parametrize("name", ["spine nobody_*", "no such table", "sizing node"])
def test_a_table_that_cannot_be_made_is_an_error(name: str, tmp_path: Path) -> None:
    harness.merge(tmp_path, "spine", [row("guard_8", 1.0)])
    with pytest.raises(SystemExit, match="error"):
        pages.rewritten(f"<!-- table: {name} -->\n<!-- end of table -->", tmp_path)


def test_what_is_extrapolated_says_from_what(tmp_path: Path) -> None:
    harness.merge(tmp_path, "spine", harness.read(pages.RESULTS, "spine"))
    assert "Extrapolated from `guard_N`, `subscriber_N`, `bytes_N`, `ledger_bytes_N`." in pages.region(
        "sizing fleet", tmp_path
    )
    assert "Extrapolated from `ledger_bytes_N`." in pages.region("sizing ledger", tmp_path)  # not from its own days
    day = harness.table([row("ledger_day_each", 11.8, extrapolated="ledger_bytes_128")])
    assert "extrapolated from ledger_bytes_128" in day


def test_sizing_by_hand() -> None:
    rows = {
        "bytes_8": 100.0,
        "guard_8": 5000.0,
        "subscriber_8": 2500.0,
        "ledger_bytes_128": 150.0,
        "ledger_bytes_1": 1000.0,
    }
    spine = {name: {"ours": value} for name, value in rows.items()}
    assert sizing.log_gib(spine, 8) == pytest.approx(10_000 * 100 * 86_400 / 2**30)
    assert sizing.core_share(spine, "guard", 8) == pytest.approx(25.0)  # 1,250 parcels of the 5,000 that a core takes
    assert sizing.ledger_gib(spine, 8) == pytest.approx(1_250 * 150 * 86_400 / 2**30)  # 125 a commit: as 128
    assert sizing.ledger_gib(spine, 4096) == pytest.approx(10_000 / 4096 * 1000 * 86_400 / 2**30)  # alone


def test_the_rounds_spread_is_kept_and_a_single_round_has_none(tmp_path: Path) -> None:
    assert harness.compare("x", [1.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0], "ns").spread == (2.0, 4.0)
    assert harness.compare("x", [1.0, 2.0, 3.0, 4.0, 5.0], None, "ns").spread == (2.0, 4.0)
    assert harness.compare("x", [1.0], [2.0], "ns").spread is None
    (timed,) = harness.run([harness.Rate("x", lambda: sum(range(200_000)))], rounds=5)
    assert timed.spread is not None
    assert timed.spread[0] <= timed.ours <= timed.spread[1]
    harness.keep("spine", [timed], tmp_path)
    (kept,) = json.loads((tmp_path / "spine.json").read_text())
    assert {"name", "ours", "peer", "unit", "ratio", "target", "runs", "met", "date", "load"} <= kept.keys()
    assert kept["spread"] == list(timed.spread)
    assert kept["machine"]


def test_a_result_names_its_commit_and_whether_code_was_changed(
    tmp_path: Path,
) -> None:
    def git(*arguments: str) -> str:
        settings = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        return subprocess.run(
            ["git", *settings, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    for name in ("code.py", "page.md"):
        (tmp_path / name).write_text("1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    short = git("rev-parse", "--short", "HEAD")
    assert harness.commit.__wrapped__(tmp_path) == short
    (tmp_path / "page.md").write_text("2\n")  # as the pages are while results are brought onto them
    assert harness.commit.__wrapped__(tmp_path) == short
    (tmp_path / "code.py").write_text("2\n")
    assert harness.commit.__wrapped__(tmp_path) == f"{short}+"
