"""Entropy: the only source of random bytes.

`SeededEntropy` serves simulations and tests. Its stream is SHA-256 in counter mode over the seed, a function
of the seed and of the number of bytes drawn before, so a run replays exactly; whoever knows the seed knows
every byte.
"""

from __future__ import annotations

import os
from hashlib import sha256
from typing import Protocol


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
