"""What the parts of a relay know besides: plans, keys, rights and routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tallystick.crypto.signatures import VerifyKey
from tallystick.parcel.header import Header
from tallystick.parcel.parcel import Parcel
from tallystick.trust.plan import Plan


class Branches(NamedTuple):
    """Where a topic's subscribers are, seen from one relay."""

    nodes: tuple[bytes, ...]  # neighbouring virtual nodes
    subscribers: tuple[bytes, ...]  # its own clients with a live permit


NOWHERE = Branches((), ())


class PlannedRoutes(Protocol):
    def plan(self, version: int) -> Plan | None: ...

    def branches(self, tokens: Sequence[bytes], came_from: bytes | None) -> Branches: ...


class Surroundings(PlannedRoutes, Protocol):
    """For secrets on their way."""

    def key_of(self, principal: bytes) -> VerifyKey | None: ...

    def may_publish(self, publisher: bytes, tokens: Sequence[bytes]) -> bool: ...

    def share_of(self, principal: bytes) -> bytes: ...  # by whose share it is counted: its tenant's

    def has_ended(self, permit: bytes) -> bool: ...

    def may_pull(self, subscriber: bytes, permit: bytes, tokens: Sequence[bytes], now: float) -> bool: ...


class ContentRoutes(PlannedRoutes, Protocol):
    """For parcels on their way."""

    def wanting(self, tokens: Sequence[bytes], came_from: bytes | None, header: Header) -> Branches: ...  # the body

    def check_front(self, parcel: Parcel) -> None: ...  # the publish guard, as far as a header goes; raises `Refused`
