"""Anchors that this notary has yet to take over: those of others, or its own of before a crash.

A partition that cannot be read, or that holds other records than were anchored, keeps no other from going on: its
anchors wait here, in order, and are tried again after a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from tallystick.carriers.storage import Place
from tallystick.errors import TallystickError, Unavailable, Withheld
from tallystick.trust.promise import Anchor

log = logging.getLogger(__name__)

AGAIN_MS = 10_000  # before anchors that could not be taken over are tried again

Written = tuple[Anchor, int, int]  # with the number of its transaction, and its place in it


class BehindAnchors:
    """For one thread."""

    def __init__(
        self, trouble: Callable[[Place], TallystickError | None], take_over: Callable[[Place, Written, int], None]
    ) -> None:
        """`trouble` tells why a partition cannot be read now; `take_over(place, anchor, now_ms)` raises `Withheld`
        where it holds something else."""
        self._trouble, self._take_over = trouble, take_over
        self._waiting: dict[Place, list[Written]] = {}
        self._until_ms: dict[Place, int] = {}

    def __contains__(self, place: Place) -> bool:
        return place in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def catch_up(self, anchors: Iterable[Written], now_ms: int) -> None:
        """Take over what waits, and these."""
        for found in anchors:
            self._waiting.setdefault(Place(found[0].token, found[0].partition), []).append(found)
        for place in [one for one in self._waiting if self._until_ms.get(one, 0) <= now_ms]:
            if self._trouble(place) is not None:
                continue
            try:
                while self._waiting[place]:
                    self._take_over(place, self._waiting[place][0], now_ms)
                    self._waiting[place].pop(0)
            except (Unavailable, Withheld) as error:
                log.error("%s", error)
                self._until_ms[place] = now_ms + AGAIN_MS
                return  # it may have taken long: the others next time
            del self._waiting[place]
