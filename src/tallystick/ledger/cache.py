"""Rights close at hand: rows of the state with an expiry, forgotten as soon as a block changes them (BPS 4.3).

Threat: a right that was taken and still works. Two bounds: `invalidate`, fed by every new block, forgets exactly what
the block changed; where blocks do not arrive, an entry ends after `expiry_ms` and is asked for again, and what cannot
be asked is refused (`Unavailable` passes through): the cache fails closed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from tallystick.ledger.block import Block
from tallystick.ledger.contracts import access
from tallystick.ledger.contracts.reputation import STANDINGS
from tallystick.ledger.contracts.table import Key, R

KEYS_MAX = 65_536  # some 20 MB
EXPIRY_MS = 10_000  # shorter than any revocation bound in use


class RightsCache:
    """Reads through `load` (one row of the state by its key); single-threaded."""

    def __init__(
        self, load: Callable[[Key[Any]], Any], *, expiry_ms: int = EXPIRY_MS, keys_max: int = KEYS_MAX
    ) -> None:
        self._load = load
        self._expiry_ms = expiry_ms
        self._keys_max = keys_max
        self._held: dict[bytes, tuple[int, Any]] = {}  # key → end of its time, row; oldest first
        self.hits = self.misses = 0

    def allowed(self, principal: bytes, token: bytes, operation: int, host: str, now_ms: int) -> bool:
        """Whether the rules let `principal` do `operation` on the topic from `host`."""
        row = self.get(access.RIGHTS(token, principal), now_ms)
        return row is not None and access.decide(row.rules, operation, host)

    def blacklisted(self, principal: bytes, now_ms: int) -> bool:
        row = self.get(STANDINGS(principal), now_ms)
        return row is not None and row.blacklisted != 0

    def topics_with(self, principal: bytes, operation: int, now_ms: int) -> list[bytes]:
        """Algorithm 4 of BPS, from the cache."""
        return access.indexed(self.get(access.INDEXES(principal), now_ms), operation)

    def get(self, key: Key[R], now_ms: int) -> R | None:
        """The row of any key of the state."""
        held = self._held.get(key)
        if held is not None and now_ms < held[0]:
            self.hits += 1
            known: R | None = held[1]
            return known
        self.misses += 1
        row: R | None = self._load(key)
        self._held.pop(key, None)
        if len(self._held) >= self._keys_max:
            del self._held[next(iter(self._held))]
        self._held[key] = (now_ms + self._expiry_ms, row)
        return row

    def invalidate(self, block: Block, keys: Collection[bytes]) -> None:
        """A block changed these keys; give it to an engine's `on_block`."""
        for key in keys:
            self._held.pop(key, None)
