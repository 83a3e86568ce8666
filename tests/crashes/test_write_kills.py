"""A write that is killed between any two of its steps, or at random, is finished when it is run again: a row once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from actors import read_anchored
from kill_points import POINTS
from stack import READ, WRITE, Stack, python_path, wait_until
from writer_child import ROWS

from tallystick.client.session import Session
from tallystick.errors import Refused

HERE = Path(__file__).parent


class Writers:
    """The process that forks writers."""

    def __init__(self, home: Path, topic: str, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "writer_child.py"), str(home), topic, str(folder)],
            env={**os.environ, "PYTHONPATH": python_path(HERE.parent)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def start(self, batch: int, point: str = "") -> int:
        """Begin to write a batch; the writer's process."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{batch} {point}\n")
        self._process.stdin.flush()
        return int(self._line())

    def status(self) -> int:
        """The writer's exit status, when it has one."""
        return int(self._line())

    def close(self) -> None:
        self._process.communicate(timeout=20)


@contextmanager
def writing(folder: Path) -> Iterator[tuple[Writers, Session]]:
    """A topic of three partitions, writers to it and a reader of it."""
    with Stack(folder / "stack") as stack:
        owner, car, reader = stack.tenant("acme"), stack.principal("acme", "car"), stack.principal("acme", "reader")
        token = stack.topic(owner, "out", "seq int64 not null", partitions=3)
        stack.grant(owner, token, car, WRITE)
        stack.grant(owner, token, reader, READ)
        for session in (car, reader):
            wait_until(partial(_is_known, session, token))
        writers = Writers(car.identity.home, "out", folder / "writes")
        try:
            yield writers, reader
        finally:
            writers.close()


def _is_known(session: Session, token: bytes) -> bool:
    with suppress(Refused):
        return bool(session.authority.schemas(token))
    return False


def read(reader: Session) -> list[int]:
    """Every row that is anchored, as a subscriber gets them."""
    with reader.subscriber("out") as subscriber:
        return [row["seq"] for row in read_anchored(subscriber)]


def test_killed_at_every_point_a_batch_is_finished_by_the_next_run(tmp_path: Path) -> None:
    with writing(tmp_path) as (writers, reader):
        for batch, point in enumerate(POINTS):
            writers.start(batch, point)
            assert writers.status() == -signal.SIGKILL, point
            seen = read(reader)  # every batch before, and all of this one or nothing of it
            assert seen in (list(range(batch * ROWS)), list(range((batch + 1) * ROWS))), point
            for _ in range(2):  # and run once more though it was done: a driver that died before it could say so
                writers.start(batch)
                assert writers.status() == 0, point
        assert read(reader) == list(range(len(POINTS) * ROWS))


@pytest.mark.long
def test_killed_at_random_again_and_again_every_row_is_there_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    batches, kills = 6, 0
    with writing(tmp_path) as (writers, reader):
        for batch in range(batches):
            for patience in range(100):
                pid = writers.start(batch)
                if patience < 4:
                    time.sleep(rng.random() * 0.8)
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                status = writers.status()
                kills += status == -signal.SIGKILL
                if status == 0:
                    break
                assert status == -signal.SIGKILL
        assert kills >= 3
        assert read(reader) == list(range(batches * ROWS))
