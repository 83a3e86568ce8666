"""What the parts of a relay know besides: plans, keys, rights and routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tallystick.crypto.signatures import VerifyKey
from tallystick.parcel.parcel import Parcel
from tallystick.trust.plan import Plan


class Branches(NamedTuple):
    """Where a topic's subscribers are, seen from one relay."""

    nodes: tuple[bytes, ...]  # neighbouring virtual nodes
    subscribers: tuple[bytes, ...]  # its own clients with a live permit


NOWHERE = Branches((), ())


class Surroundings(Protocol):
    """For secrets on their way."""

    def plan(self, version: int) -> Plan | None: ...

    def key_of(self, principal: bytes) -> VerifyKey | None: ...

    def branches(self, tokens: Sequence[bytes], came_from: bytes | None) -> Branches: ...

    def may_publish(self, publisher: bytes, tokens: Sequence[bytes]) -> bool: ...

    def may_subscribe(self, subscriber: bytes, tokens: Sequence[bytes]) -> bool: ...  # to one of them


class ContentRoutes(Protocol):
    """For parcels on their way."""

    def plan(self, version: int) -> Plan | None: ...

    def branches(self, tokens: Sequence[bytes], came_from: bytes | None) -> Branches: ...

    def check_front(self, parcel: Parcel) -> None: ...  # the publish guard, as far as a header goes; raises `Refused`
