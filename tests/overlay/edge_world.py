"""An edge of three relays as its client sees it: each answers requests as a relay does, or as a liar likes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from carrying_world import promised
from makers import INSTANCE, token
from overlays import Claimant, advertiser
from sharing_world import chain, key_of

from tallystick.carriers.carrier import Fetch, Fetched, NotStored, Outcome, Stored
from tallystick.carriers.overlay.direct import OverlayCarrier
from tallystick.carriers.registry import Wayfarer
from tallystick.carriers.remote import RemoteNode
from tallystick.errors import Unavailable
from tallystick.ledger.contracts.anchors import ANCHORS, AnchorRow
from tallystick.ledger.contracts.plans import ENTRUSTED, OVERLAYS, PLANS, EntrustedRow, OverlayRow, PlanRow
from tallystick.parcel.locks import lock_hash
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.sources import SystemClock, SystemEntropy
from tallystick.trust.plan import Plan
from tallystick.trust.promise import Promise

TOKEN = token("brakes")


@dataclass
class Rows:
    """The ledger, as a view of it has proved it."""

    plan: Plan
    held: dict[bytes, Any] = field(default_factory=dict)
    asked: int = 0

    def __post_init__(self) -> None:
        overlay = self.plan.overlay
        self.held |= {
            OVERLAYS(overlay): OverlayRow(1, [], 1, self.plan.version),
            PLANS(overlay, self.plan.version): PlanRow(0, self.plan.encode()),
            ENTRUSTED(TOKEN): EntrustedRow(overlay, self.plan.nodes[0].identifier, 10_000, 1, 1),
        }

    def row_at(self, key: Any, /) -> Any:
        self.asked += 1
        return self.held.get(key), SimpleNamespace(height=100)

    def anchor(self, size: int) -> None:
        self.held[ANCHORS(TOKEN, 0)] = AnchorRow(size, bytes(32), 1, 1, bytes(16))


class EdgeRelay:
    """Answers as an honest relay does; `lies` stand in the place of its methods, by name."""

    def __init__(self, edge: Edge, index: int) -> None:
        self.edge, self.index = edge, index
        self.name = edge.plan.nodes[0].relays[index - 1].identifier
        self.lies: dict[str, Callable[..., Any]] = {}
        self.took: list[tuple[str, Any]] = []
        self.anchored: dict[bytes, int] = {}  # parcels it has anchored, and where

    def _do(self, what: str, given: Any, honest: Callable[[], Any]) -> Any:
        self.took.append((what, given))
        return self.lies[what](given) if what in self.lies else honest()

    def publish(self, token: bytes, parcels: Sequence[bytes]) -> list[Outcome]:
        found: list[Outcome] = self._do("publish", parcels, lambda: [self.store(Parcel.decode(one)) for one in parcels])
        return found

    def store(self, parcel: Parcel) -> Outcome:
        if parcel.hash in self.anchored:
            return Stored((self.promise(parcel, self.anchored[parcel.hash]),))
        return Stored((promised(self.edge.plan, parcel, parcel.header.sequence),))

    def promise(self, parcel: Parcel, offset: int) -> Promise:
        return Promise(INSTANCE, self.name, TOKEN, 0, offset, parcel.hash, 1, 1).sign(key_of(self.name))

    def advertise(self, permit: bytes) -> None:
        self._do("advertise", permit, lambda: None)

    def subscribe(self, permit: bytes) -> None:
        self._do("subscribe", permit, lambda: None)

    def undo(self, order: bytes) -> None:
        self._do("undo", order, lambda: None)

    def put_locks(self, token: bytes, permit: bytes, locks: Sequence[bytes]) -> None:
        self._do("put_locks", locks, lambda: self.edge.locks.update({lock_hash(one): one for one in locks}))

    def lock(self, name: bytes) -> bytes:
        found: bytes = self._do("lock", name, lambda: self.edge.locks[name])
        return found

    def fetch(self, wanted: Fetch) -> Fetched:
        found: Fetched = self._do("fetch", wanted, lambda: Fetched(0, (b"parcel",), 1, (), 1))
        return found

    def inclusion(self, token: bytes, partition: int, size: int, offsets: Sequence[int]) -> list[list[bytes]]:
        found: list[list[bytes]] = self._do("inclusion", offsets, lambda: [[b"path"] for _ in offsets])
        return found

    def exchange_frames(self, frames: Sequence[bytes]) -> list[bytes]:
        found: list[bytes] = self._do("exchange_frames", frames, list)
        return found

    def calls(self, what: str) -> list[Any]:
        return [given for name, given in self.took if name == what]


class Hasty(SystemClock):
    """Pauses are short: nothing gets better in them."""

    def pause(self, seconds: float) -> None:
        super().pause(seconds / 100)


class Edge:
    def __init__(self) -> None:
        self.plan = chain((3, 3))
        self.rows, self.locks = Rows(self.plan), dict[bytes, bytes]()
        self.relays = [EdgeRelay(self, index) for index in (1, 2, 3)]
        self.car: Claimant = advertiser("car", self.plan.nodes[0].identifier)
        self.hung = threading.Event()  # set: whoever hangs goes on

    def each(self) -> dict[bytes, EdgeRelay]:
        return {relay.name: relay for relay in self.relays}

    def ask_another(self) -> int:
        return len(self.relays)

    def carrier(self) -> OverlayCarrier:
        node, sources = cast(RemoteNode, self), (Hasty(), SystemEntropy())
        who = Wayfarer(node, self.car.permit.principal, self.car.key, self.rows, *sources)
        return OverlayCarrier(self.plan.overlay, self.car.edge, who, self.rows)

    def hang(self, _: Any) -> Any:
        self.hung.wait(20)
        raise Unavailable("hung")


def dead(_: Any) -> Any:
    raise Unavailable("connection refused")


def refuses(reason: str, expected: int | None = None) -> Callable[[Any], list[Outcome]]:
    return lambda parcels: [NotStored(reason, reason, expected) for _ in parcels]
