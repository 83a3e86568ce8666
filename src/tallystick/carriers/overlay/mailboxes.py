"""What a relay has for clients that are not in the plan, until they collect it.

Threat: a client that never comes, one that comes under many names, and relays' frames for names that nobody has. So a
box is bounded and drops its oldest, there are so many boxes, and the least recent goes. What is dropped is missed:
subscribers complain, and get it again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque

BOXES_MAX = 4_096
BOX_BYTES_MAX = 1 << 20


class Mailboxes:
    """For any thread."""

    def __init__(self, boxes_max: int = BOXES_MAX, box_bytes_max: int = BOX_BYTES_MAX) -> None:
        self._boxes_max, self._box_bytes_max = boxes_max, box_bytes_max
        self._boxes: OrderedDict[bytes, deque[bytes]] = OrderedDict()
        self._lock = threading.Lock()
        self.dropped = 0

    def put(self, client: bytes, frame: bytes) -> None:
        with self._lock:
            box = self._boxes.setdefault(client, deque())
            self._boxes.move_to_end(client)
            box.append(frame)
            while sum(map(len, box)) > self._box_bytes_max:
                box.popleft()
                self.dropped += 1
            if len(self._boxes) > self._boxes_max:
                self.dropped += len(self._boxes.popitem(last=False)[1])

    def take(self, client: bytes, bytes_max: int = BOX_BYTES_MAX) -> list[bytes]:
        """The oldest frames, as many as fit, and at least one if there is any."""
        found: list[bytes] = []
        with self._lock:
            box = self._boxes.get(client, deque())
            while box and (not found or sum(map(len, found)) + len(box[0]) <= bytes_max):
                found.append(box.popleft())
            if not box:
                self._boxes.pop(client, None)
        return found
