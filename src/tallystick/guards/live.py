"""Live advertisements and subscriptions, by permit identifier.

On a log, subscribing is a state of the node (SEEDS on 002): publish needs a live advertisement, fetch a live
subscription, and undo deletes it at once. The carrier keeps them on disk and lends `load`; here is a bounded memory of
those in use. How many permits a principal may hold is the authority's to bound: each is on the ledger.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from tallystick.trust.permit import Permit


def _nothing(identifier: bytes) -> Permit | None:
    return None


class Live:
    def __init__(self, kept_max: int, load: Callable[[bytes], Permit | None] = _nothing) -> None:
        """`load` brings a live permit that is not in memory, or None if there is none."""
        self._kept_max = kept_max
        self._load = load
        self._permits: OrderedDict[bytes, Permit] = OrderedDict()

    def __len__(self) -> int:
        return len(self._permits)

    def add(self, permit: Permit) -> None:
        """Keep a checked permit."""
        self._permits[permit.identifier] = permit
        if len(self._permits) > self._kept_max:
            self._permits.popitem(last=False)

    def remove(self, identifier: bytes) -> None:
        self._permits.pop(identifier, None)

    def get(self, identifier: bytes) -> Permit | None:
        permit = self._permits.get(identifier)
        if permit is None:
            permit = self._load(identifier)
            if permit is not None:
                self.add(permit)
        else:
            self._permits.move_to_end(identifier)
        return permit
