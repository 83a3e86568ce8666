"""One server as a fetch sees it: what it was asked for, until when, and how much the next request may ask for.

A server has two lanes, so that it sends while what it sent is verified; what both may ask for is `ASK_BYTES_MAX`
together. Its first requests are small, and each that comes doubles the next, so a server that turns out dead, slow or
lying has cost little. A lane that fails rests, each time twice as long, and begins again with a single chunk. The
deadline of a request is a time for the first byte and a floor rate for the rest: a server that drips (slow retrieval,
Uptane 2.1) is treated as one that is dead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tallystick.objects.ranges import ASK_BYTES_MAX, SEED_BYTES_MAX, RangeAsk, seed_file
from tallystick.runtime.effects import Send


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Bounds of a fetch."""

    floor_bytes_s: int = 32 * 1024  # a request below this rate is as good as lost: 512 KiB take at most 18 s
    grace_s: float = 2.0  # before the first byte, in every request
    lanes: int = 2  # requests to one server at a time
    ask_bytes_max: int = ASK_BYTES_MAX // 2  # of one request, or one chunk: in all lanes, what a lie can waste
    first_bytes: int = 128 * 1024  # of the first request in a lane
    rest_first_s: float = 1.0  # for a server that failed; doubled each time
    rest_max_s: float = 60.0
    patience_s: float = 180.0  # without anything new: several rests and deadlines


@dataclass(slots=True)
class RangeRequest:
    """Leaves `[first, end)`, of a subtree for slips and a run for chunks, and where in the file they lie."""

    file: Callable[[bytes], str]  # which of an object's files, by its root
    first: int = 0
    end: int = 0
    at: int = 0
    length: int = SEED_BYTES_MAX
    number: int = 0
    deadline: float = math.inf

    def is_overdue(self, now: float) -> bool:
        return self.deadline <= now


class ServerLane:
    """One request to a server at a time."""

    def __init__(self, name: str, limits: FetchLimits, only_chunks: bool) -> None:
        self.name, self._limits = name, limits
        self.asked: RangeRequest | None = None
        self.named = False  # it lied: nothing more is asked of it or heard from it
        self.only_chunks = self.had_seed_ask = only_chunks  # seed and slips are few: the first lane asks for them
        self.subtree = 0, 0  # whose slips it sends, in several requests where they are many
        self.gathered = bytearray()
        self.reach = limits.first_bytes  # bytes that the next request may ask for
        self.rests_until = -math.inf
        self.failures = 0  # since something came

    def awaits(self, sender: str, number: int) -> bool:
        return self.name == sender and self.asked is not None and self.asked.number == number

    def is_free(self, now: float) -> bool:
        return self.asked is None and self.rests_until <= now

    def ask(self, root: bytes, request: RangeRequest, number: int, now: float) -> Send:
        bulk = request.length if request.file is not seed_file else 0  # a seed is short, if it comes at all
        request.number, request.deadline = number, now + self._limits.grace_s + bulk / self._limits.floor_bytes_s
        self.asked = request
        return Send(self.name, RangeAsk(number, request.file(root), request.at, request.length).encode())

    def came(self) -> None:
        """It did what it was asked."""
        self.asked, self.failures = None, 0
        self.reach = min(2 * self.reach, self._limits.ask_bytes_max) or self._limits.first_bytes

    def rest(self, now: float) -> None:
        """It did not."""
        self.rests_until = now + min(self._limits.rest_first_s * (1 << min(self.failures, 20)), self._limits.rest_max_s)
        self.failures, self.reach = self.failures + 1, 0  # which is one chunk

    def take_back(self) -> RangeRequest | None:
        """What it was asked for, which is to be asked of others."""
        asked, self.asked = self.asked, None
        self.gathered.clear()
        return asked
