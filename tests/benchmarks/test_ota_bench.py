"""The benchmark of objects and updates runs, and its rows are those that the page needs. No times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import harness
import ota
import ota_campaign
import ota_delta
import ota_fetch

from tallystick.objects.layout import chunks_file

ROWS = [
    *("fetch_three", "fetch_one", "fetch_limit"),
    *("overhead", "fetch_faults", "resume"),
    "memory_2g",
    "campaign",
]


@pytest.mark.long
def test_a_short_run_has_every_row(tmp_path: Path) -> None:
    """What was fetched is compared with what was put: a row that lies about its work ends with an error."""
    subjects = [f"--only={one}" for one in ota.SUBJECTS if one != "delta"]
    command = [sys.executable, ota.__file__, "--quick", *subjects, "--into", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert [row["name"] for row in harness.read(tmp_path, ota.SUITE)] == ROWS


def test_a_campaign_of_the_benchmark_ends_with_every_vehicle() -> None:
    ota_campaign.Rollout(ota_campaign.QUICK).run()


def test_both_arms_fetch_the_same_object(tmp_path: Path) -> None:
    shelf = ota_fetch.Shelf(tmp_path, ota_fetch.MB)
    with ota_fetch.serving(shelf.folder, 2) as servers:
        urls = [url for _, url in servers]
        ota_fetch.fetch(shelf.docket, ota_fetch.web(*urls), ota_fetch.Written(tmp_path, shelf.reference.key))
        fetched = (tmp_path / "fetched").read_bytes()
        ota_fetch.plain_get(urls[0], chunks_file(shelf.docket.root), tmp_path / "sealed")
    ota_fetch.open_all(shelf, tmp_path / "opened")
    assert (tmp_path / "opened").read_bytes() == fetched
    assert len(fetched) == ota_fetch.MB
    sealed = shelf.folder / chunks_file(shelf.docket.root)
    assert (tmp_path / "sealed").read_bytes() == sealed.read_bytes()


def test_what_cannot_be_fetched_is_told_and_leaves_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Offline, with an empty cache."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    found = list(ota_delta.rows(True, None, tmp_path))
    assert found == []
    assert "cannot be fetched" in capsys.readouterr().err
