"""What protocol roles ask of their drivers, and what drivers tell them.

A role is a plain class whose `receive(event, now)` returns effects; it reads no clock and opens nothing. A
driver (a socket loop, a test, `network.Network`) carries the effects out in their order: a `StoreEffect` is
durable before a `Send` behind it leaves, so whoever stores first never answers for what a crash can take
back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Send:
    """Send `message` to the node named `to`; it may be lost, repeated, delayed or overtaken."""

    to: str
    message: Any


@dataclass(frozen=True, slots=True)
class StoreEffect:
    """Keep `value` under `key` through crashes; None forgets it."""

    key: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand `value` to the application above the role."""

    value: Any


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Give the role `Woken` at this time; a crash forgets it."""

    time: float


@dataclass(frozen=True, slots=True)
class Arrived:
    """An event: `message` arrived, by its own account from `sender`."""

    sender: str
    message: Any


@dataclass(frozen=True, slots=True)
class Woken:
    """An event: the role was started or started again, or a time it asked for has come."""


Effect = Send | StoreEffect | Deliver | WakeAt
Event = Arrived | Woken


class Role(Protocol):
    """One party of a protocol."""

    def receive(self, event: Event, now: float) -> Sequence[Effect]: ...
