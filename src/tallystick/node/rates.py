"""The rate of a connection, charged before anybody is asked who it is: the first and cheapest of the guards' checks."""

from __future__ import annotations

from collections import OrderedDict

from tallystick.runtime.clock import Clock

CONNECTIONS_MAX = 65_536  # remembered; the oldest are forgotten, with a full allowance


class ConnectionRates:
    """Token buckets by connection, one for bytes and one for requests; a burst of one second is allowed."""

    def __init__(self, clock: Clock, bytes_per_s: int, requests_per_s: int) -> None:
        self._clock = clock
        self._rates = (float(bytes_per_s), float(requests_per_s))
        self._left: OrderedDict[tuple[str, int], tuple[float, float, float]] = OrderedDict()

    def charge(self, connection: tuple[str, int], n_bytes: int) -> float:
        """Seconds to wait before this request may come; 0 to go on."""
        now = self._clock.monotonic()
        bytes_left, requests_left, when = self._left.pop(connection, (*self._rates, now))
        bytes_left = min(self._rates[0], bytes_left + (now - when) * self._rates[0])
        requests_left = min(self._rates[1], requests_left + (now - when) * self._rates[1])
        wait_s = max(-bytes_left / self._rates[0], (1 - requests_left) / self._rates[1], 0.0)
        if wait_s == 0:
            # A body larger than one second's worth is let in once and paid for afterwards.
            bytes_left, requests_left = bytes_left - n_bytes, requests_left - 1
        self._left[connection] = (bytes_left, requests_left, now)
        if len(self._left) > CONNECTIONS_MAX:
            self._left.popitem(last=False)
        return wait_s
