"""The routing guard (EventGuard 4.7): no flood travels beyond one honest hop.

Three steps, the third from the context since the seed breaks off: remember identifiers for `delay_max_s`; a signed
time in every envelope; refuse what is older, or further in the future than the allowed skew. ElGamal's r could not be
taken by another signer, a chosen identifier can: duplicates are keyed by (signer, identifier), so nobody burns
another's.

Memory is bounded per principal: a full share refuses that principal alone and forgets nothing early. Only verified
envelopes enter, so junk fills nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from tallystick.errors import Refused


class Window:
    """Identifiers of envelopes seen within `delay_max_s + 2 * skew_max_s`, by signer."""

    def __init__(self, delay_max_s: float, skew_max_s: float, share_max: int) -> None:
        self._keep_s = delay_max_s + 2 * skew_max_s
        self._share_max = share_max
        self._seen: dict[bytes, set[bytes]] = {}
        self._order: deque[tuple[float, bytes, bytes]] = deque()

    def check(self, signer: bytes, identifier: bytes, now: float) -> None:
        """Remember a verified envelope's identifier. Raises `Refused` if it was seen, or the signer's share is full."""
        self._forget(now)
        seen = self._seen.setdefault(signer, set())
        if identifier in seen:
            raise Refused("the request was made already", reason="duplicate")
        if len(seen) >= self._share_max:
            raise Refused(f"more than {self._share_max} requests within {self._keep_s:g} s", reason="too-many-requests")
        seen.add(identifier)
        self._order.append((now, signer, identifier))

    def entries(self) -> Iterator[tuple[float, bytes, bytes]]:
        """What to keep across a restart: (when seen, signer, identifier)."""
        return iter(self._order)

    def restore(self, entries: Iterable[tuple[float, bytes, bytes]]) -> None:
        """Take up what an earlier process had seen."""
        for entry in sorted(set(entries)):
            seen = self._seen.setdefault(entry[1], set())
            if entry[2] not in seen:  # one request may have left several notes
                seen.add(entry[2])
                self._order.append(entry)

    def __len__(self) -> int:
        return len(self._order)

    def _forget(self, now: float) -> None:
        while self._order and self._order[0][0] < now - self._keep_s:
            _, signer, identifier = self._order.popleft()
            seen = self._seen[signer]
            seen.discard(identifier)
            if not seen:
                del self._seen[signer]
