"""Rights close at hand: values of the state with an expiry, forgotten as soon as a block changes them (BPS 4.3).

Threat: a right that was taken and still works. Two bounds: `invalidate`, fed by every new block, forgets exactly what
the block changed; where blocks do not arrive, an entry ends after `expiry_ms` and is asked for again, and what cannot
be asked is refused (`Unavailable` passes through): the cache fails closed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from tallystick.ledger.block import Block
from tallystick.ledger.contracts import access

KEYS_MAX = 65_536  # some 20 MB
EXPIRY_MS = 10_000  # shorter than any revocation bound in use


class RightsCache:
    """Reads through `load` (one value of the state by its key); single-threaded."""

    def __init__(self, load: Callable[[bytes], Any], *, expiry_ms: int = EXPIRY_MS, keys_max: int = KEYS_MAX) -> None:
        self._load = load
        self._expiry_ms = expiry_ms
        self._keys_max = keys_max
        self._held: dict[bytes, tuple[int, Any]] = {}  # key → end of its time, value; oldest first
        self.hits = self.misses = 0

    def allowed(self, principal: bytes, token: bytes, operation: int, host: str, now_ms: int) -> bool:
        """Whether the rules let `principal` do `operation` on the topic from `host`."""
        value = self.get(b"right/" + token + principal, now_ms)
        return value is not None and access.decide(value[1], operation, host)

    def blacklisted(self, principal: bytes, now_ms: int) -> bool:
        value = self.get(b"reputation/" + principal, now_ms)
        return value is not None and value[3] != 0

    def topics_with(self, principal: bytes, operation: int, now_ms: int) -> list[bytes]:
        """Algorithm 4 of BPS, from the cache."""
        return access.indexed(self.get(b"rights/" + principal, now_ms), operation)

    def get(self, key: bytes, now_ms: int) -> Any:
        """The value of any key of the state."""
        held = self._held.get(key)
        if held is not None and now_ms < held[0]:
            self.hits += 1
            return held[1]
        self.misses += 1
        value = self._load(key)
        self._held.pop(key, None)
        if len(self._held) >= self._keys_max:
            del self._held[next(iter(self._held))]
        self._held[key] = (now_ms + self._expiry_ms, value)
        return value

    def invalidate(self, block: Block, keys: Collection[bytes]) -> None:
        """A block changed these keys; give it to an engine's `on_block`."""
        for key in keys:
            self._held.pop(key, None)
