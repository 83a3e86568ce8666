"""Times that a role waits for, each with what is to be done then."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count
from typing import Generic, TypeVar

from tallystick.runtime.effects import Effect, WakeAt

T = TypeVar("T")


class Alarms(Generic[T]):
    def __init__(self) -> None:
        self._times: list[tuple[float, int, T]] = []
        self._order = count()

    def set(self, time: float, what: T, effects: list[Effect]) -> None:
        """Remember it, and ask to be woken."""
        heapq.heappush(self._times, (time, next(self._order), what))
        effects.append(WakeAt(time))

    def due(self, now: float) -> Iterator[T]:
        """What its time has come for, the oldest first; each once."""
        while self._times and self._times[0][0] <= now:
            yield heapq.heappop(self._times)[2]
