"""What a role has for clients that no link leads to, until they collect it.

Threat: a client that never comes, one that comes under many names, and frames for names that nobody has. So a box is
bounded and drops its oldest; there are so many boxes, with so many bytes in all, and the least recent goes. What is
dropped is missed, as on any link.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from tallystick.runtime.queues import OutputQueue

BOXES_MAX = 4_096
BOX_BYTES_MAX = 1 << 20
BOX_FRAMES_MAX = 4_096
ALL_BYTES_MAX = 64 << 20


class Mailboxes:
    """For any thread."""

    def __init__(
        self, boxes_max: int = BOXES_MAX, box_bytes_max: int = BOX_BYTES_MAX, all_bytes_max: int = ALL_BYTES_MAX
    ) -> None:
        self._boxes_max, self._box_bytes_max, self._all_bytes_max = boxes_max, box_bytes_max, all_bytes_max
        self._boxes: OrderedDict[bytes, OutputQueue] = OrderedDict()
        self.bytes = 0
        self._lock = threading.Lock()

    def put(self, client: bytes, frame: bytes) -> None:
        with self._lock:
            box = self._boxes.setdefault(client, OutputQueue(BOX_FRAMES_MAX, self._box_bytes_max))
            self._boxes.move_to_end(client)
            self.bytes -= box.bytes
            box.put(frame)
            self.bytes += box.bytes
            while len(self._boxes) > self._boxes_max or self.bytes > self._all_bytes_max:
                self.bytes -= self._boxes.popitem(last=False)[1].bytes

    def take(self, client: bytes, bytes_about: int = BOX_BYTES_MAX) -> list[bytes]:
        """The oldest frames, one at least if there is any, until there are about so many bytes."""
        with self._lock:
            box = self._boxes.get(client)
            if box is None:
                return []
            self.bytes -= box.bytes
            found = box.take(bytes_about)
            self.bytes += box.bytes
            if not box:
                del self._boxes[client]
            return found
