"""A stream from topic to topic whose driver is killed in the middle of its steps, again and again: every row once.

What each step leaves behind is tested without Spark (tests/crashes/test_write_kills.py); here with Spark's own batches,
attempts and commits around it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lake import Lake, Topic, rows, seqs
from stack import python_path
from test_spark_sink import delivered, delivered_seqs, stream

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
POINTS = ["part stored", "set won", "commit parcel stored"]


def run_child(source: Topic, topic: Topic, folder: Path, point: str, batch: int) -> int:
    """The exit status of a driver that dies at this point of this batch."""
    homes = [str(source.lake.home), source.name, str(source.lake.car.identity.home), topic.name]
    arguments = [*homes, str(folder / "checkpoint"), str(folder / "events"), point, str(batch)]
    with open(folder / f"{point}.log", "wb") as log:
        child = subprocess.Popen(
            [sys.executable, str(HERE / "sink_child.py"), *arguments],
            env={**os.environ, "PYTHONPATH": python_path(HERE, HERE.parent)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        return child.wait(600)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait(20)


def test_killed_in_task_and_commit_every_row_arrives_once(lake: Lake, tmp_path: Path) -> None:
    source, topic = lake.topic("sink-from"), lake.topic("sink-onto", partitions=2)
    source.publish_parcels(range(7))  # and the closing parcel: four batches of two
    for batch, point in enumerate(POINTS):
        status = run_child(source, topic, tmp_path, point, batch)
        assert status == -signal.SIGKILL, (tmp_path / f"{point}.log").read_text()
        assert delivered_seqs(topic) in ([*range(2 * batch)], [*range(2 * batch + 2)]), point
    assert (tmp_path / "events" / "failed").exists()
    stream(topic, source.stream(maxParcelsPerTrigger="2"), tmp_path / "checkpoint")
    assert delivered(topic) == rows(range(7))
    assert seqs(topic.read()) == list(range(7))
