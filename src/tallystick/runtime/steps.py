"""A thread that takes one step after the other: whenever it is woken, and at the latest after a while.

    steps = Steps(work, 0.05, "fabric controller")
    steps.start()
    steps.wake()
    steps.stop()

What a step raises on purpose (`TallystickError`) is logged, and the next one is taken; all else ends the thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tallystick.errors import TallystickError

log = logging.getLogger(__name__)


class Steps:
    """`wake` may be called from any thread."""

    def __init__(self, step: Callable[[], None], pause_s: float, name: str) -> None:
        self._step, self._pause_s = step, pause_s
        self._bell, self._is_stopping = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._bell.set()

    def stop(self) -> None:
        """Return when the last step is done; it may never have started."""
        self._is_stopping = True
        self._bell.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._is_stopping:
            self._bell.clear()
            try:
                self._step()
            except TallystickError as error:
                log.warning("%s: %s", self._thread.name, error)
            self._bell.wait(self._pause_s)
