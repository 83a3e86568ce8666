"""Clocks that disagree: one time passes for all, but each machine has its own idea of what time it is."""

from __future__ import annotations

from tallystick.runtime.sources import ManualClock


class SkewedClock:
    """A clock that is `offset_s` off; its monotonic side is everybody's."""

    def __init__(self, true: ManualClock, offset_s: float = 0.0) -> None:
        self._true = true
        self.offset_s = offset_s

    def now(self) -> float:
        return self._true.now() + self.offset_s

    def monotonic(self) -> float:
        return self._true.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._true.sleep(seconds)

    def pause(self, seconds: float) -> None:
        self._true.pause(seconds)
