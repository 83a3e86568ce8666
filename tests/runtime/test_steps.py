"""A thread of steps: taken when it is woken, taken again after an error of ours, and none after the end."""

from __future__ import annotations

import threading

import pytest

from tallystick.errors import Unavailable
from tallystick.runtime.steps import Steps


def test_a_step_is_taken_when_it_is_woken_and_after_one_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    taken = threading.Semaphore(0)

    def step() -> None:
        taken.release()
        raise Unavailable("not now")

    steps = Steps(step, 3600.0, "worker")
    assert not steps.is_running
    steps.start()
    for _ in range(3):
        assert taken.acquire(timeout=5)
        steps.wake()
    steps.stop()
    assert not steps.is_running
    assert "worker: not now" in caplog.text


def test_one_that_never_started_is_stopped_all_the_same() -> None:
    Steps(lambda: None, 1.0, "idle").stop()
