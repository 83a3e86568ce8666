"""EventGuard's Fig. 3, shrunken: who is hit by a flood, with the guard and without."""

from __future__ import annotations

import csv
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
REASONS = {"forged": "bad-signature", "replayed": "duplicate", "stale": "stale"}


@pytest.fixture(scope="module")
def fig03() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        return importlib.import_module("experiments.eventguard.fig03")


@pytest.fixture(scope="module")
def rows(fig03: Any) -> list[Any]:
    return list(fig03.run(fig03.SMALL))


def test_every_kind_of_message_and_flood_was_tried_on_both_topologies(rows: list[Any]) -> None:
    assert len({(row.topology, row.kind, row.flood, row.guards) for row in rows}) == len(rows) == 2 * 5 * 4 * 4


def test_with_the_guard_no_flood_travels_beyond_one_honest_node(rows: list[Any]) -> None:
    guarded = [row for row in rows if row.guards != "off" and row.flood != "fresh"]
    assert all(row.g_received >= row.copies for row in guarded)
    assert [row for row in guarded if row.x_received or row.x_hit] == []
    assert all(row.g_refused == f"{REASONS[row.flood]}:{row.g_received}" for row in guarded)


def test_without_the_guard_the_nodes_behind_are_hit(rows: list[Any]) -> None:
    bare = [row for row in rows if row.guards == "off"]
    assert all(row.x_hit >= 0.9 * row.x_nodes and row.x_received > row.copies for row in bare)


def test_what_is_signed_fresh_and_new_is_stopped_by_shares_and_blacklist_not_by_routing(
    rows: list[Any], fig03: Any
) -> None:
    fresh = {
        guards: [row for row in rows if (row.guards, row.flood) == (guards, "fresh")]
        for guards in ("route", "share", "blacklist")
    }
    assert all(row.x_received_least >= row.flooders * row.copies for row in fresh["route"])
    assert all(0 < row.x_accepted_most <= fig03.SMALL.share_max for row in fresh["share"])
    assert all(row.x_received == 0 for row in fresh["blacklist"])


def test_all_runs_land_in_the_band_and_a_run_is_a_function_of_its_seed(rows: list[Any], fig03: Any) -> None:
    assert [row for row in rows if not fig03.in_band(row, fig03.SMALL)] == []
    topology = fig03.drawn_topology(fig03.SMALL)
    again = fig03.run_one(topology, fig03.MessageKind.PUBLISH, fig03.Flood.FRESH, fig03.Guards.SHARE, fig03.SMALL)
    assert again in rows


def test_without_matplotlib_the_table_is_written_and_the_remedy_named(
    rows: list[Any], fig03: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert fig03.main(["--small", "--out", str(tmp_path)]) == 0
    with (tmp_path / "fig03.csv").open(encoding="utf-8") as file:
        told = list(csv.DictReader(file))
    assert [row["x_received"] for row in told] == [str(row.x_received) for row in rows]
    assert not (tmp_path / "fig03.png").exists()
    assert "hint: pip install matplotlib" in capsys.readouterr().err
