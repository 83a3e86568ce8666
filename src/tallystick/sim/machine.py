"""What a machine of the simulation has of its own: a clock that disagrees with the others, and power that may fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tallystick.errors import Unavailable
from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.runtime.sources import ManualClock


class SkewedClock:
    """A clock that is `offset_s` off; its monotonic side is everybody's."""

    def __init__(self, true: ManualClock, offset_s: float = 0.0) -> None:
        self.offset_s = offset_s
        self._true = true
        self.monotonic, self.sleep, self.pause = true.monotonic, true.sleep, true.pause

    def now(self) -> float:
        return self._true.now() + self.offset_s


@contextmanager
def powered(disk: SeededDisk, die: Callable[[], None], what: str) -> Iterator[None]:
    """Let whatever happens inside after the power failed not have happened: `die`, and raise `Unavailable`."""
    try:
        yield
    except Exception:
        if not disk.is_off:
            raise
    if disk.is_off:
        die()
        raise Unavailable(f"the {what} lost its power")
