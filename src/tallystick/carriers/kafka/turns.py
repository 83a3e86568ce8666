"""Whose turn it is: notaries of one instance share the partitions, and take over from one that is silent.

Every notary reads every partition and keeps every tree; what is dealt is the dear part, judging and writing. Each
partition has an order of its topic's nodes of its own, by hash, so that the work spreads evenly and a node that comes
or goes moves its share alone. The first judges at once, each next one when no anchor came for `PATIENCE_MS` more. Who
took over goes on at once, until an anchor of somebody else's shows that another is back.

No election and no lease: two that judge at the same time do no harm, since the ledger takes the first anchor and tells
the other `anchor-moved`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tallystick.carriers.storage import Place
from tallystick.crypto.symmetric import named_hash

PATIENCE_MS = 2_000  # some blocks of a busy chain


class Turns:
    """For one notary, `me`."""

    def __init__(self, me: bytes) -> None:
        self._me = me
        self._since_ms: dict[Place, int] = {}  # when records were first seen to wait there
        self._taken: set[Place] = set()  # taken over

    def is_due(self, place: Place, nodes: Sequence[bytes], now_ms: int) -> bool:
        """Whether this notary judges what waits in `place` now; `nodes` are those that may."""
        waited_ms = now_ms - self._since_ms.setdefault(place, now_ms)
        return place in self._taken or waited_ms >= PATIENCE_MS * rank(place, nodes, self._me)

    def wrote(self, place: Place) -> None:
        """This notary's anchor is on the ledger."""
        self._since_ms.pop(place, None)
        self._taken.add(place)

    def followed(self, place: Place) -> None:
        """Somebody else's is."""
        self._since_ms.pop(place, None)
        self._taken.discard(place)


def rank(place: Place, nodes: Sequence[bytes], me: bytes) -> int:
    """How many of these nodes come first in a partition."""
    where = place.token + place.partition.to_bytes(4, "big")
    order = sorted(nodes, key=lambda node: named_hash("tallystick turn 1", where + node))
    return order.index(me) if me in order else len(order)
