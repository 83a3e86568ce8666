"""Groups' offsets shown in Kafka, so that its own tools see how far behind a group is.

Threat: somebody moves a group's offset in Kafka (BPS 2.3, threat 2), so that whoever believes it reads rows twice or
never. Members believe the ledger, where an offset moves by its holder's own signed entry. What stands in Kafka is a
copy, written by the notary for direct readers and a gateway's alike, under the group's identifier in hex; no principal
has Kafka's leave to commit. A copy that nobody of ours moved is a drift: told, and put back.

Of several notaries one may be a block ahead. What lies between where this one last saw the copy and where the ledger
has the offset now may be another's, and is brought up to date without a word; what lies outside, twice in a row, is
not. Left out: a copy that was moved before the notary started, or moved and put back between two looks.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tallystick.carriers.kafka.administration import Administration, Spot
from tallystick.errors import TallystickError

log = logging.getLogger(__name__)

GROUPS_AT_ONCE = 64  # a look; with more groups than that each has its turn
REFRESH_LOOKS = 20_000  # some hours: Kafka forgets an idle group's offsets after a week (offsets.retention.minutes)


@dataclass(frozen=True)
class Moved:
    """An offset that stands elsewhere in Kafka than on the ledger."""

    spot: Spot
    found: int
    expected: int


class Offsets:
    """One notary's copies; an offset that is not there is taken for 0, as Kafka's tools take it."""

    def __init__(self, kafka: Administration) -> None:
        self._kafka = kafka
        self._looks = self._turn = 0
        self._stood: dict[Spot, int] = {}  # where Kafka and the ledger last agreed
        self._odd: dict[Spot, int] = {}  # found elsewhere at the last look
        self._told: dict[Spot, int] = {}

    def check(self, wanted: Mapping[Spot, int]) -> list[Moved]:
        """Bring Kafka to what the ledger says of some groups, in turn. Returns what was moved behind the ledger's
        back."""
        groups = self._next_groups({spot.group for spot in wanted})
        found, stale, moved = self._kafka.group_offsets(sorted(groups)), dict[Spot, int](), list[Moved]()
        self._looks += 1
        for spot, expected in wanted.items():
            if spot.group not in groups:
                continue
            shown = found.get(spot, 0)
            if shown == expected:
                self._agree(spot, shown)
                if expected and self._looks % REFRESH_LOOKS == 0:
                    stale[spot] = expected
            elif self._may_be_ours(spot, shown, expected):
                stale[spot] = expected
            elif self._odd.get(spot) != shown:
                self._odd[spot] = shown
            else:
                stale[spot] = expected
                if self._told.get(spot) != shown:
                    self._told[spot] = shown
                    moved.append(Moved(spot, shown, expected))
        for group in sorted({spot.group for spot in stale}):
            self._put({spot: offset for spot, offset in stale.items() if spot.group == group})
        return moved

    def _may_be_ours(self, spot: Spot, shown: int, expected: int) -> bool:
        stood = self._stood.get(spot)
        return stood is None or min(stood, expected) <= shown <= max(stood, expected)

    def _next_groups(self, groups: Collection[bytes]) -> set[bytes]:
        waiting = sorted(groups)
        self._turn %= max(1, len(waiting))
        chosen = (waiting[self._turn :] + waiting[: self._turn])[:GROUPS_AT_ONCE]
        self._turn += len(chosen)
        return set(chosen)

    def _put(self, offsets: Mapping[Spot, int]) -> None:
        try:
            self._kafka.set_group_offsets(offsets)
        except TallystickError as error:  # somebody reads in the group's name now: it is told, and tried again
            log.warning("%s", error)
            return
        for spot, offset in offsets.items():
            self._agree(spot, offset)

    def _agree(self, spot: Spot, offset: int) -> None:
        self._stood[spot] = offset
        self._odd.pop(spot, None)
        self._told.pop(spot, None)
