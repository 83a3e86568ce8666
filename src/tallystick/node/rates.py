"""The rate of a connection, charged before anybody is asked who it is: the first and cheapest of the guards' checks."""

from __future__ import annotations

from tallystick.runtime.router import Buckets, Rate
from tallystick.runtime.sources import Clock

CONNECTIONS_MAX = 65_536  # remembered; the oldest are forgotten, with a full allowance


class ConnectionRates:
    """By connection, for bytes and for requests; a burst of one second is allowed."""

    def __init__(self, clock: Clock, bytes_per_s: int, requests_per_s: int) -> None:
        self._clock = clock
        self._bytes_rate, self._requests_rate = Rate(bytes_per_s, bytes_per_s), Rate(requests_per_s, requests_per_s)
        self._bytes: Buckets[tuple[str, int]] = Buckets(CONNECTIONS_MAX)
        self._requests: Buckets[tuple[str, int]] = Buckets(CONNECTIONS_MAX)

    def charge(self, connection: tuple[str, int], n_bytes: int) -> float:
        """Seconds to wait before this request may come; 0 to go on."""
        now = self._clock.monotonic()
        # A body larger than one second's worth is let in once and paid for afterwards.
        wait_s = self._bytes.wait_s(connection, self._bytes_rate, 0, now)
        wait_s = max(wait_s, self._requests.wait_s(connection, self._requests_rate, 1, now))
        if wait_s == 0:
            self._bytes.take(connection, self._bytes_rate, n_bytes, now)
            self._requests.take(connection, self._requests_rate, 1, now)
        return wait_s
