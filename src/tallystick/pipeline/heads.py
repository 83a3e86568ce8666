"""Lane heads, remembered: a folder that saves a driver from asking the node for every lane of a range.

For each partition the heads that held at an offset, so that a range that begins there is joined without a request. The
files are the driver's own notes, as Spark's checkpoint is: whoever can write them can write the query's offsets too.
Without them, or where they do not parse, the node is asked and must prove.
"""

from __future__ import annotations

import logging

from tallystick import wire
from tallystick.client.reader import LaneHead
from tallystick.errors import Malformed
from tallystick.runtime.disk import RealDisk, read_all, write_atomic
from tallystick.wire import Fields, is_number

log = logging.getLogger(__name__)

KEPT = 3  # offsets of a partition: a replayed micro-batch begins before the newest one
_LANES_MAX = 1 << 20

Heads = dict[tuple[bytes, bytes], LaneHead]


class HeadCache:
    def __init__(self, folder: str) -> None:
        self._disk = RealDisk(folder)

    def save(self, token: bytes, partition: int, offset: int, heads: Heads) -> None:
        lanes = [
            [publisher, lane, head.sequence, head.parcel, head.header, head.signature, head.time_ms, int(head.closed)]
            for (publisher, lane), head in sorted(heads.items())
        ]
        prefix = f"{token.hex()}-{partition}-"
        with self._disk.held("lock"):  # queries may share the folder
            write_atomic(self._disk, f"{prefix}{offset}", wire.encode([1, offset, lanes]))
            offsets = [name.removeprefix(prefix) for name in self._disk.listdir("") if name.startswith(prefix)]
            for old in sorted(int(one) for one in offsets if is_number(one))[:-KEPT]:
                self._disk.remove(f"{prefix}{old}")

    def load(self, token: bytes, partition: int, offset: int) -> Heads | None:
        """The heads that held at `offset`, if they were noted."""
        name = f"{token.hex()}-{partition}-{offset}"
        if not self._disk.exists(name):
            return None
        try:
            fields = Fields.parse(read_all(self._disk, name), "lane heads", 3)
            fields.version(1)
            if fields.number() != offset:
                raise Malformed("lane heads: of another offset")
            return dict(_lane(item) for item in fields.items(_LANES_MAX))
        except Malformed as error:
            log.warning("%s: %s; the node is asked instead", name, error)
            return None


def _lane(item: object) -> tuple[tuple[bytes, bytes], LaneHead]:
    fields = Fields(item, "lane heads", 8)
    publisher, lane = fields.octets(16), fields.octets(16)
    sequence, parcel = fields.number(), fields.octets(32)
    header, signature, time_ms = fields.octets(at_most=1 << 16), fields.octets(64), fields.number()
    return (publisher, lane), LaneHead(sequence, parcel, header, signature, time_ms, bool(fields.number(1)))
