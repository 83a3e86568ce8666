"""A stream whose driver and Python workers are killed at random points: nothing twice, nothing missing in the tables.

A seed decides whom and when. One seed in the suite; TALLY_KILL_SEEDS=20 tries that many.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from lake import Lake, rows
from searches import descendants, read
from stack import python_path, wait_until
from streams import arrived_seqs, run

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
SEEDS = range(int(os.environ.get("TALLY_KILL_SEEDS", "1")))
KILLS = 4
PARCELS, ROWS = 40, 5  # a parcel is a micro-batch


class Driver:
    """A stream in a process of its own, started again whenever it is found dead."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self._arguments, self._log = arguments, log
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def ensure(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.stop()
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "stream_child.py"), *self._arguments],
                env={**os.environ, "PYTHONPATH": python_path(HERE, HERE.parent)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.starts += 1

    @property
    def is_dead(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def workers(self) -> list[int]:
        """The processes that run tasks, and the one they are forked from."""
        assert self._process is not None
        return [pid for pid in descendants(self._process.pid) if b"tallystick.pipeline.daemon" in read(pid, "cmdline")]

    def stop(self) -> None:
        """Kill the driver, the JVM and the workers."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(20)


@contextmanager
def driven(arguments: list[str], log: Path) -> Iterator[Driver]:
    driver = Driver(arguments, log)
    try:
        yield driver
    finally:
        driver.stop()


@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_is_killed_nothing_is_twice_and_nothing_missing(lake: Lake, tmp_path: Path, seed: int) -> None:
    topic, out, checkpoint = lake.topic(f"killed-{seed}"), tmp_path / "out", tmp_path / "checkpoint"
    everything = list(range(PARCELS * ROWS))
    topic.publish(rows(everything), batch_rows_max=ROWS)
    chance, killed = random.Random(seed), {"driver": 0, "worker": 0}
    arguments = [str(lake.home), topic.name, str(checkpoint), str(out), str(tmp_path / "events")]
    log, struck = tmp_path / "child.log", False  # struck: it may still die of a worker that was killed
    with driven(arguments, log) as driver:
        for number in range(KILLS):
            driver.ensure()
            begun = _batches(out) + chance.randint(1, 4)

            def has_begun(begun: int = begun) -> bool:
                return _batches(out) >= begun or driver.is_dead

            wait_until(has_begun, 300)
            assert struck or not driver.is_dead, log.read_text()
            time.sleep(chance.random() * 0.5)  # anywhere in a batch
            workers = driver.workers()
            struck = not (number == KILLS - 1 or chance.random() < 0.3 or not workers)
            if not struck:
                driver.stop()
                killed["driver"] += 1
            else:
                with suppress(ProcessLookupError):  # it may have ended by itself
                    os.kill(chance.choice(workers), signal.SIGKILL)
                    killed["worker"] += 1
    assert driver.starts <= KILLS, log.read_text()
    assert 0 < _batches(out) < PARCELS, "killed in the middle of the stream"
    print(f"seed {seed}: {killed}, {driver.starts} starts, {_batches(out)} of {PARCELS} batches when it was left")
    run(topic.stream(maxParcelsPerTrigger="10"), out, checkpoint)
    assert arrived_seqs(out) == everything


def _batches(out: Path) -> int:
    """How many batches are written, or begun."""
    return len(list(out.glob("batch=*")))
