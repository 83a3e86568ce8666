"""A bucket for each principal: how many requests it may make, whatever connections it uses.

Threat: a principal with a valid key that asks and asks; every permit costs a signature, a sync and an entry on the
ledger, every attribute key a multiplication for each of its parts. An empty bucket refuses that principal alone. Only
signed requests are counted, so nobody empties another's.
"""

from __future__ import annotations

from tallystick.errors import Unavailable
from tallystick.runtime.router import Buckets, Rate


class Rates:
    """`burst` requests, or parts, at once, then `per_s`; the least recent of more than `principals_max` start anew."""

    def __init__(self, per_s: float, burst: int, principals_max: int) -> None:
        self._rate = Rate(per_s, burst)
        self._buckets: Buckets[bytes] = Buckets(principals_max)

    def charge(self, principal: bytes, now: float, count: int = 1) -> None:
        """Take `count` at `now` (seconds that never fall); `Unavailable` if the bucket has not that many."""
        wait_s = self._buckets.charge(principal, self._rate, count, now)
        if wait_s:
            raise Unavailable("too many requests of this principal", retry_after_s=wait_s)
