"""Live advertisements and subscriptions, by permit identifier.

On a log, subscribing is a state of the node (SEEDS.md on 002): publish needs a live advertisement, fetch a live
subscription, and undo deletes it at once. Each principal has a bounded share. The node keeps them on disk; here they
are in memory and pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tallystick.errors import Refused
from tallystick.trust.permit import Operation, Permit


class Live:
    def __init__(self, share_max: int) -> None:
        self._share_max = share_max
        self._permits: dict[bytes, Permit] = {}
        self._share: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._permits)

    def __iter__(self) -> Iterator[Permit]:
        return iter(self._permits.values())

    def add(self, permit: Permit) -> bool:
        """Keep a checked permit; False if it was live already."""
        if permit.identifier in self._permits:
            return False
        if self._share[permit.principal] >= self._share_max:
            raise Refused(f"at most {self._share_max} live permits for one principal", reason="too-many-permits")
        self._permits[permit.identifier] = permit
        self._share[permit.principal] += 1
        return True

    def remove(self, identifier: bytes) -> Permit | None:
        permit = self._permits.pop(identifier, None)
        if permit is not None:
            self._share[permit.principal] -= 1
            if not self._share[permit.principal]:
                del self._share[permit.principal]
        return permit

    def get(self, identifier: bytes) -> Permit | None:
        return self._permits.get(identifier)

    def of(self, principal: bytes, token: bytes, operation: Operation) -> Permit | None:
        """A live permit of this principal for the operation on the topic."""
        for permit in self._permits.values():
            if (permit.principal, permit.token, permit.operation) == (principal, token, operation):
                return permit
        return None
