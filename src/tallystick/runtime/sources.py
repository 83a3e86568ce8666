"""What a process takes from outside itself: time and random bytes. Nothing else reads a clock or draws entropy.

Clocks. `now` is the wall clock, for everything that another machine will see; it may jump. `monotonic` never falls
and serves intervals. A `ManualClock` moves only when told, and wakes its sleepers in order of their time.

Entropy. `SeededEntropy` serves simulations and tests. Its stream is SHA-256 in counter mode over the seed, a function
of the seed and of the number of bytes drawn before, so a run replays exactly; whoever knows the seed knows
every byte.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import time
from hashlib import sha256
from itertools import count
from typing import Protocol

from tallystick.errors import Misuse


class Clock(Protocol):
    """What a driver knows of time."""

    def now(self) -> float:
        """Unix time in seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never falls."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return when `seconds` have passed."""
        ...

    def pause(self, seconds: float) -> None:
        """As `sleep`, for callers without an event loop: blocks the thread."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """A clock that moves only by `advance`; one event loop may sleep on it."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._start = now
        self._elapsed = 0.0
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._start + self._elapsed

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), woken))
        await woken

    def pause(self, seconds: float) -> None:
        """Whoever pauses has nothing else to wait for: time simply passes."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move forward and wake, earliest first, every sleeper whose time has come."""
        if seconds < 0:
            raise Misuse(f"a clock cannot go back: advance by {seconds} seconds")
        self._elapsed += seconds
        while self._sleepers and self._sleepers[0][0] <= self._elapsed:
            woken = heapq.heappop(self._sleepers)[2]
            if not woken.done():  # a cancelled sleeper stays in the heap until its time
                woken.set_result(None)


class Entropy(Protocol):
    """Where random bytes come from."""

    def bytes(self, n: int) -> bytes:
        """The next `n` random bytes."""
        ...


class SystemEntropy:
    """The operating system's generator, safe for keys."""

    def bytes(self, n: int) -> bytes:
        return os.urandom(n)


class SeededEntropy:
    """A deterministic stream for simulations and tests, never for keys that matter."""

    def __init__(self, seed: int | str) -> None:
        self._key = sha256(f"tallystick seeded entropy 1:{seed!r}".encode()).digest()
        self._counter = 0
        self._left = b""

    def bytes(self, n: int) -> bytes:
        chunks, have = [self._left], len(self._left)
        while have < n:
            chunks.append(sha256(self._key + self._counter.to_bytes(8, "big")).digest())
            self._counter += 1
            have += 32
        stream = b"".join(chunks)
        self._left = stream[n:]
        return stream[:n]
