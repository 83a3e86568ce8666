"""What a relay has for clients that are not in the plan, until they collect it.

Threat: a client that never comes, one that comes under many names, and relays' frames for names that nobody has. So a
box is bounded and drops its oldest, there are so many boxes, and the least recent goes. What is dropped is missed:
subscribers complain, or pull.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from tallystick.runtime.queues import OutputQueue

BOXES_MAX = 4_096
BOX_BYTES_MAX = 1 << 20
BOX_FRAMES_MAX = 4_096


class Mailboxes:
    """For any thread."""

    def __init__(self, boxes_max: int = BOXES_MAX, box_bytes_max: int = BOX_BYTES_MAX) -> None:
        self._boxes_max, self._box_bytes_max = boxes_max, box_bytes_max
        self._boxes: OrderedDict[bytes, OutputQueue] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, client: bytes, frame: bytes) -> None:
        with self._lock:
            box = self._boxes.setdefault(client, OutputQueue(BOX_FRAMES_MAX, self._box_bytes_max))
            self._boxes.move_to_end(client)
            box.put(frame)
            if len(self._boxes) > self._boxes_max:
                self._boxes.popitem(last=False)

    def take(self, client: bytes, bytes_about: int = BOX_BYTES_MAX) -> list[bytes]:
        """The oldest frames, one at least if there is any, until there are about so many bytes."""
        with self._lock:
            box = self._boxes.get(client)
            if box is None:
                return []
            found = box.take(bytes_about)
            if not box:
                del self._boxes[client]
            return found
