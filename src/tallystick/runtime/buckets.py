"""Token buckets: so much at once, then so much a second, for each of many who ask. Time is handed in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from tallystick.errors import Unavailable

K = TypeVar("K", bound=Hashable)


class Rate(NamedTuple):
    per_s: float
    most: float  # at once, after a silence


class Buckets(Generic[K]):
    """One bucket for each key; the least recent of more than `kept_max` begin anew, full."""

    def __init__(self, kept_max: int) -> None:
        self._kept_max = kept_max
        self._buckets: OrderedDict[K, tuple[float, float]] = OrderedDict()  # what is left, and when

    def wait_s(self, key: K, rate: Rate, needed: float, now: float) -> float:
        """How long until the bucket holds what is needed; 0 if it does."""
        return max(0.0, (needed - self._left(key, rate, now)) / rate.per_s)

    def take(self, key: K, rate: Rate, count: float, now: float) -> None:
        """Take it, down to below nothing: what is missing is paid for before anything else."""
        left = self._left(key, rate, now) - count
        self._buckets.pop(key, None)
        self._buckets[key] = (left, now)
        if len(self._buckets) > self._kept_max:
            self._buckets.popitem(last=False)

    def charge(self, key: K, rate: Rate, count: float, now: float, needed: float | None = None) -> float:
        """Take `count` if the bucket holds that, or what is `needed`; how long to wait otherwise."""
        wait_s = self.wait_s(key, rate, count if needed is None else needed, now)
        self.take(key, rate, count if wait_s == 0 else 0, now)
        return wait_s

    def _left(self, key: K, rate: Rate, now: float) -> float:
        left, at = self._buckets.get(key, (rate.most, now))
        return min(rate.most, left + (now - at) * rate.per_s)


class Rates:
    """A bucket for each principal: `burst` requests, or parts, at once, then `per_s`, whatever connections it uses.

    Threat: a principal with a valid key that asks and asks. An empty bucket refuses that principal alone; only signed
    requests are counted, so nobody empties another's. The least recent of more than `principals_max` start anew.
    """

    def __init__(self, per_s: float, burst: int, principals_max: int) -> None:
        self._rate = Rate(per_s, burst)
        self._buckets: Buckets[bytes] = Buckets(principals_max)

    def charge(self, principal: bytes, now: float, count: int = 1) -> None:
        """Take `count` at `now` (seconds that never fall); `Unavailable` if the bucket has not that many."""
        wait_s = self._buckets.charge(principal, self._rate, count, now)
        if wait_s:
            raise Unavailable("too many requests of this principal", retry_after_s=wait_s)
