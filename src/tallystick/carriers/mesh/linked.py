"""What stands inside the link layer: a role that speaks to neighbours, what it says of them and what it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tallystick.runtime.effects import Effect, Event


class MeshEnd(Protocol):
    """What has to be known of a neighbour; entries of views have it."""

    @property
    def identity(self) -> bytes: ...

    @property
    def key(self) -> bytes:
        """The lasting one, of which the identity is the hash."""

    @property
    def address(self) -> str: ...


class Linked(Protocol):
    """A role that speaks to neighbours by the hex of their mesh identities."""

    def receive(self, event: Event, now: float) -> Sequence[Effect]: ...

    def entries(self) -> Sequence[MeshEnd]:
        """The neighbours with whom it keeps a link. Links to others end soon."""


@dataclass(frozen=True)
class LinkLost:
    """What the inner role gets as a message of a neighbour's, which no neighbour can send: these may not have arrived
    there. Where it is silent, it is lost itself."""

    messages: tuple[bytes, ...]
    is_silent: bool = False


@dataclass(frozen=True)
class MeshPass:
    """What this node shows where it knocks, at most 254 bytes, and how it judges what strangers show."""

    shown: bytes
    check: Callable[[bytes, bytes, float], None]  # of the stranger's lasting key, what it shows, now; raises `Refused`
