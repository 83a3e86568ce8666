"""The log carrier at a node: parcels lie on its own disk, and what has grown is anchored beside the operations."""

from __future__ import annotations

from tallystick.carriers.carrier import Can
from tallystick.carriers.log.store import LogStore
from tallystick.carriers.registry import CarrierHost, CarrierSettings, Served
from tallystick.carriers.storage import Growth
from tallystick.errors import Misuse
from tallystick.runtime.disk import Disk

CAN = Can.SENDING | Can.READING


def serve(settings: CarrierSettings, host: CarrierHost, disk: Disk) -> Served:
    if not settings.gateway:
        raise Misuse("a notary reads Kafka, and no Kafka is named", hint="set carrier = kafka://host:port")
    anchors = host.anchors()
    store = LogStore(disk, anchored={place: newest.size for place, newest in anchors.items()})
    front = host.front(store, store.journal, anchors)
    return Served(front, Growth(front.anchored))
