"""How far each group of readers is behind, for whoever watches this node: parcels that lie here and that the group has
not done with, by the offsets on the ledger.

The ledger is asked on a thread, now and then, and `/metrics` shows what was found last: who watches waits for nobody,
and costs no search. What is told are pseudonyms that stand on the ledger for all to read; the groups of a mesh, which
do not, are not told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tallystick.carriers.storage import Place, Storage
from tallystick.ledger.contracts.anchors import RETIRED
from tallystick.ledger.contracts.groups import GROUPS, OFFSETS, GroupRow
from tallystick.ledger.engine import NodeLedger
from tallystick.runtime.counting import ranked

PAUSE_S = 15.0  # between two looks, as often as Prometheus collects
SHOWN_MAX = 100  # series; what further groups are behind is one sum
GROUPS_MAX = 20_000  # looked at; groups beyond are not told
ROWS_MAX = 100_000


class Lags:
    def __init__(self, ledger: NodeLedger, storage: Storage, shown_max: int = SHOWN_MAX) -> None:
        self._ledger, self._storage, self._shown_max = ledger, storage, shown_max
        self._told: dict[str, Any] = {"known": 0, "lag_parcels": {}}

    def snapshot(self) -> dict[str, Any]:
        return self._told

    def look(self) -> None:
        """Ask the ledger for groups and offsets; the rest is counted here."""
        groups = self._ledger.scan(GROUPS, most=GROUPS_MAX)
        offsets = dict(self._ledger.scan(OFFSETS, most=ROWS_MAX)) if groups else {}
        retired = dict(self._ledger.scan(RETIRED, most=ROWS_MAX)) if groups else {}
        places: dict[bytes, list[Place]] = defaultdict(list)
        for place in self._storage.places():
            places[place.token].append(place)

        def behind(identifier: bytes, row: GroupRow) -> Iterator[int]:
            for place in (one for token in row.tokens for one in places.get(token, ())):
                at, mark = offsets.get((identifier, *place)), retired.get((*place,))
                done = max(0 if at is None else at.offset, 0 if mark is None else mark.below)
                yield max(0, self._storage.end(place) - done)

        told = [(row.tenant, identifier.hex(), sum(behind(identifier, row))) for (identifier,), row in groups]
        self._told = {"known": len(groups), "lag_parcels": ranked(told, self._shown_max)}
