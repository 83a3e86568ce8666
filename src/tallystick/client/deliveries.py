"""What became of a publisher's rows, and who is told of it.

Rows that were handed over together may travel in several parcels: who waits for them is told once, when all are
delivered or the first is not. Callbacks run in the caller's own thread, when it polls.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tallystick.errors import TallystickError


@dataclass(frozen=True)
class Delivery:
    """What became of rows: the parcel that holds them, and where it lies in each topic."""

    parcel: bytes
    lane: bytes
    sequence: int
    rows: int
    offsets: tuple[tuple[bytes, int, int], ...]  # (token, partition, offset)


OnDelivery = Callable[[TallystickError | None, Delivery | None], None]
Event = tuple[OnDelivery, TallystickError | None, Delivery | None]


@dataclass
class Told:
    """Who waits for rows that may travel in several parcels."""

    callbacks: list[OnDelivery]
    left: int  # parcels that are not delivered yet


class Reports:
    """The events that wait for the caller; under the publisher's lock, which `changed` is of."""

    def __init__(self, on_delivery: OnDelivery | None, changed: threading.Condition) -> None:
        self._on_delivery, self._changed = on_delivery, changed
        self._events: deque[Event] = deque()

    def report(self, told: Told, error: TallystickError | None, delivery: Delivery | None) -> None:
        if self._on_delivery is not None:
            self._events.append((self._on_delivery, error, delivery))
        told.left -= 1
        if error is not None or told.left == 0:
            self._events.extend((callback, error, delivery) for callback in told.callbacks)
            told.callbacks = []
        self._changed.notify_all()

    def take(self) -> deque[Event]:
        events, self._events = self._events, deque()
        return events

    def __len__(self) -> int:
        return len(self._events)
