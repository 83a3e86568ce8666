"""Messages that wait: for a role, in turn; for a peer, the newest; and the frames in which they travel.

Threat: a peer that sends more than its part, so that others are not heard; a peer that does not read, so that what is
for it fills the memory; a length that promises more than anybody may send. So a role hears its peers in turn, one
message of each, and whoever has the most waiting is not read from while there is too much (000, Fig. 9: one input
queue); every peer has an output queue of its own, which drops its oldest when it is full, and never makes anybody
wait; and a frame is bounded before anything of it is kept.

A frame is its length, 4 bytes, most significant first, and as many bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from tallystick.errors import Malformed

LENGTH_BYTES = 4
_KEPT_BYTES = 100  # about what Python needs for a message beside its bytes, so that empty ones are not free


def framed_message(message: bytes) -> bytes:
    return len(message).to_bytes(LENGTH_BYTES, "big") + message


class FrameReader:
    """Takes bytes as they come and gives the messages in them; keeps at most one that is not whole."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields what is whole now. Raises `Malformed` at a length above `bytes_max`."""
        self._held += data
        at, end = 0, len(self._held)
        try:
            while end - at >= LENGTH_BYTES:
                start = at + LENGTH_BYTES
                length = int.from_bytes(self._held[at:start], "big")
                if length > self.bytes_max:
                    raise Malformed(f"frame: at most {self.bytes_max} bytes expected, {length} announced")
                if end - start < length:
                    break
                at = start + length
                yield bytes(self._held[start:at])
        finally:
            del self._held[:at]


class InputQueue:
    """What waits for the role, by sender. Holds at most twice `bytes_max` and what is read at once, if those who are
    to pause do."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._waiting: dict[str, deque[bytes]] = {}  # none of them empty
        self._held: dict[str, int] = {}
        self._turns: deque[str] = deque()

    def __bool__(self) -> bool:
        return bool(self._turns)

    def waiting(self, sender: str) -> int:
        return len(self._waiting.get(sender, ()))

    def held(self, sender: str) -> int:
        """In bytes, about."""
        return self._held.get(sender, 0)

    def put(self, sender: str, message: bytes) -> None:
        self._waiting.setdefault(sender, deque()).append(message)
        self._weigh(sender, len(message) + _KEPT_BYTES)
        self._line_up(sender)

    def take(self) -> tuple[str, bytes] | None:
        """Sender and message of whoever's turn it is; None if nobody has any."""
        if not self._turns:
            return None
        sender = self._turns.popleft()
        message = self._waiting[sender].popleft()
        self._weigh(sender, -len(message) - _KEPT_BYTES)
        if self._waiting[sender]:
            self._line_up(sender)
        else:
            del self._waiting[sender], self._held[sender]
        return sender, message

    def forget(self, sender: str) -> None:
        """Drop what a sender has waiting."""
        self._waiting.pop(sender, None)
        self.bytes -= self._held.pop(sender, 0)
        self._turns = deque(name for name in self._turns if name != sender)

    def must_pause(self, sender: str) -> bool:
        """Whether to stop reading: there is too much, and this sender has no less of it than an equal part."""
        return self.bytes > self._bytes_max and self._parts_of(sender) >= self._bytes_max

    def may_resume(self, sender: str) -> bool:
        """True at the latest when nothing of this sender waits."""
        return self.bytes <= self._bytes_max // 2 or self._parts_of(sender) <= self._bytes_max // 2

    def _parts_of(self, sender: str) -> int:
        """As much as there would be if everybody who has something waiting had as much as this one."""
        return self.held(sender) * len(self._held)

    def _weigh(self, sender: str, bytes_more: int) -> None:
        self.bytes += bytes_more
        self._held[sender] = self._held.get(sender, 0) + bytes_more

    def _line_up(self, sender: str) -> None:
        """A sender stands in line once, however much it has waiting."""
        if sender not in self._turns:
            self._turns.append(sender)


class OutputQueue:
    """What waits for one peer: the newest messages, as many as the bounds allow."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.bytes = 0
        self.dropped = 0
        self._messages_max, self._bytes_max = messages_max, bytes_max
        self._waiting: deque[bytes] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: bytes) -> None:
        self._waiting.append(message)
        self.bytes += len(message)
        while len(self._waiting) > self._messages_max or self.bytes > self._bytes_max:
            self.bytes -= len(self._waiting.popleft())
            self.dropped += 1

    def take(self, bytes_about: int) -> list[bytes]:
        """The oldest messages, one at least if there is any, until there are about so many bytes."""
        taken: list[bytes] = []
        while self._waiting and bytes_about > 0:
            taken.append(self._waiting.popleft())
            self.bytes -= len(taken[-1])
            bytes_about -= len(taken[-1]) + LENGTH_BYTES
        return taken
