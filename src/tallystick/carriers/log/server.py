"""The log carrier at a node: parcels lie on its own disk, and what has grown is anchored beside the operations."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tallystick.carriers.carrier import Can
from tallystick.carriers.log.storage import LogStorage
from tallystick.carriers.log.store import LogStore
from tallystick.carriers.registry import CarrierHost, CarrierSettings, Served
from tallystick.carriers.storage import Growth, Place
from tallystick.errors import Misuse
from tallystick.runtime.disk import Disk

log = logging.getLogger(__name__)

CAN = Can.SENDING | Can.READING


def serve(settings: CarrierSettings, host: CarrierHost, disk: Disk) -> Served:
    if not settings.gateway:
        raise Misuse("a notary reads Kafka, and no Kafka is named", hint="set carrier = kafka://host:port")
    anchors = host.anchors()
    store = open_store(disk, {place: newest.size for place, newest in anchors.items()})
    front = host.front(LogStorage(store), store.journal, anchors)
    return Served(front, Growth(front.anchored))


def open_store(disk: Disk, sizes: Mapping[Place, int]) -> LogStore:
    """The store, which may be no shorter than these; what its recovery found is logged."""
    store = LogStore(disk, anchored=sizes)
    for line in store.recovery.lines():
        log.warning("log: %s", line)
    return store
