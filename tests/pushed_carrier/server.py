"""The carrier at a node: its log keeps what is heard."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tallystick.carriers.carrier import Outcome, Pushed
from tallystick.carriers.log.store import LogStore
from tallystick.carriers.received import Receiver
from tallystick.carriers.registry import CarrierHost, CarrierSettings, Served
from tallystick.runtime.disk import Disk


class Air:
    """Carries whatever anybody sends, with the permits and locks that were sent before it, and remembers nothing else.
    Publishers send into it as into any carrier, and get no answer."""

    def __init__(self) -> None:
        self.parcels = deque[Pushed]()  # one for good: whoever adds to it may hold it while the node takes from it
        self.permits: list[bytes] = []
        self.locks: list[bytes] = []

    def advertise(self, permit: bytes) -> None:
        self.permits.append(permit)

    def put_locks(self, token: bytes, permit: bytes, locks: Sequence[bytes]) -> None:
        self.locks += locks

    def publish(self, token: bytes, parcels: Sequence[bytes]) -> list[Outcome]:
        self.parcels += [Pushed(parcel, tuple(self.permits), tuple(self.locks)) for parcel in parcels]
        return []

    def pushed(self) -> Sequence[Pushed]:
        return [self.parcels.popleft() for _ in range(len(self.parcels))]

    def close(self) -> None:
        """Nothing is open."""


AIR = Air()


def serve(settings: CarrierSettings, host: CarrierHost, disk: Disk) -> Served:
    store = LogStore(disk)
    front = host.front(store, store.journal, host.anchors())
    return Served(front, Receiver(AIR, front))
