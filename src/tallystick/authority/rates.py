"""A bucket for each principal: how many requests it may make, whatever connections it uses.

Threat: a principal with a valid key that asks and asks; every permit costs a signature, a sync and an entry on the
ledger, every attribute key a multiplication for each of its parts. An empty bucket refuses that principal alone. Only
signed requests are counted, so nobody empties another's.
"""

from __future__ import annotations

from collections import OrderedDict

from tallystick.errors import Unavailable


class Rates:
    """`burst` requests, or parts, at once, then `per_s`; the least recent of more than `principals_max` start anew."""

    def __init__(self, per_s: float, burst: int, principals_max: int) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._principals_max = principals_max
        self._buckets: OrderedDict[bytes, tuple[float, float]] = OrderedDict()  # principal → requests left, at

    def charge(self, principal: bytes, now: float, count: int = 1) -> None:
        """Take `count` at `now` (seconds that never fall); `Unavailable` if the bucket has not that many."""
        left, at = self._buckets.pop(principal, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_s)
        allowed = left >= count
        self._buckets[principal] = (left - count if allowed else left, now)
        if len(self._buckets) > self._principals_max:
            self._buckets.popitem(last=False)
        if not allowed:
            raise Unavailable("too many requests of this principal", retry_after_s=(count - left) / self._per_s)
