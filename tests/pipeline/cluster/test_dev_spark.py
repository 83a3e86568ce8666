"""`tally dev spark`: a cluster that runs is found by its folder, and where none is, that is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tallystick.cli import main
from tallystick.engines.spark import SparkCluster
from tallystick.errors import Misuse


@pytest.mark.long
def test_a_running_cluster_is_found_again(cluster: SparkCluster, capsys: pytest.CaptureFixture[str]) -> None:
    before = [one.pid for one in (cluster.master, *cluster.workers)]
    assert main.run(["dev", "spark", "up", str(cluster.folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"master": cluster.url, "settings": str(cluster.conf), "workers": 2}
    assert [one.pid for one in (cluster.master, *cluster.workers)] == before
    assert main.run(["dev", "spark", "status", str(cluster.folder), "--json"]) == 0
    assert [one["process"] for one in json.loads(capsys.readouterr().out)] == before


def test_where_there_is_none_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["dev", "spark", "down", str(tmp_path)]) == 2
    assert f"{tmp_path}: no Spark cluster is here" in capsys.readouterr().err
    SparkCluster.create(tmp_path)
    with pytest.raises(Misuse, match="is here already"):
        SparkCluster.create(tmp_path)


def test_a_cluster_keeps_its_ports_and_says_what_of_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SparkCluster.create(tmp_path, workers=1)
    assert main.run(["dev", "spark", "status", str(tmp_path)]) == 4
    shown = capsys.readouterr()
    assert [line.split()[:2] for line in shown.out.splitlines()] == [["master", "away"], ["worker-1", "away"]]
    assert shown.err.endswith(f"hint: tally dev spark up {tmp_path}\n")
    assert main.run(["dev", "spark", "up", str(tmp_path), "--port", "7077"]) == 2
    assert "its ports were chosen when it was made" in capsys.readouterr().err
