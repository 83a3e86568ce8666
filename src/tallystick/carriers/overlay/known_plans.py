"""What a client knows of overlays: which plan counts, who carries a topic, and which joint promises count.

Threat: relays that answer with promises of their own making: under a plan of theirs, of a virtual node that carries
another topic, with fewer signatures than it takes. So a joint promise is held to the ledger's rows alone, each proved.
Plans never change once they are written; what else is known is asked for again after `KNOWN_S`, and serves on while
the ledger cannot be asked: a plan that counts is announced many blocks before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tallystick.carriers.registry import ProvedRows
from tallystick.errors import Forged, Misuse, Unavailable, Withheld
from tallystick.ledger.contracts import plans
from tallystick.ledger.contracts.anchors import ANCHORS, AnchorRow
from tallystick.ledger.contracts.permits import PERMITS, Status
from tallystick.ledger.contracts.plans import ENTRUSTED, OVERLAYS, EntrustedRow
from tallystick.ledger.contracts.state import NOBODY, Key, R
from tallystick.runtime.sources import Clock
from tallystick.trust.permit import Permit
from tallystick.trust.plan import Plan
from tallystick.trust.promise import JointPromise

KNOWN_S = 5.0
KNOWN_MAX = 4_096  # a publisher has a handful of topics


class KnownPlans:
    def __init__(self, view: ProvedRows, clock: Clock) -> None:
        self._view, self._clock = view, clock
        self._kept: dict[object, tuple[float, Any]] = {}

    def entrusted(self, token: bytes) -> EntrustedRow | None:
        """Which overlay carries a topic, or None where its own nodes do."""
        row: EntrustedRow | None = self._known(("topic", token), lambda: self._row(ENTRUSTED(token)))
        return None if row is None or row.overlay == NOBODY else row

    def in_force(self, overlay: bytes) -> Plan:
        """Raises `Misuse` where the ledger has none."""
        plan: Plan | None = self._known(("overlay", overlay), lambda: self._in_force(overlay))
        if plan is None:
            raise Misuse(f"overlay {overlay.hex()}: the ledger has no plan in force", hint="tally overlay plan submit")
        return plan

    def plan(self, overlay: bytes, version: int) -> Plan | None:
        """A version that is kept on the ledger."""
        place = overlay, version
        if place not in self._kept:
            found = plans.find_plan(self._row, overlay, version)
            if found is None:
                return None
            self._keep(place, found)
        plan: Plan = self._kept[place][1]
        return plan

    def check_promise(self, promise: JointPromise) -> None:
        """Raise `Forged` unless enough relays of the virtual node that orders the topic signed it."""
        row, plan = self.entrusted(promise.token), self.plan(promise.overlay, promise.plan)
        if row is None or (row.overlay, row.node) != (promise.overlay, promise.node) or plan is None:
            raise Forged("promise: not of the virtual node that carries this topic", reason="bad-promise")
        promise.verify(plan)

    def is_ahead(self, promise: JointPromise) -> bool:
        """Whether its place is not anchored yet, as far as we know."""
        place = promise.token, promise.partition
        row: AnchorRow | None = self._known(("anchor", place), lambda: self._row(ANCHORS(*place)))
        return row is None or promise.offset >= row.size

    def is_issued(self, permit: Permit) -> bool:
        """Whether the ledger has the permit, and it was not ended."""
        row = self._row(PERMITS(permit.identifier))
        return row is not None and row.status == Status.ISSUED

    def _in_force(self, overlay: bytes) -> Plan | None:
        _, head = self._view.row_at(OVERLAYS(overlay))
        return plans.plan_at(self._row, overlay, head.height)

    def _row(self, key: Key[R], /) -> R | None:
        return self._view.row_at(key)[0]

    def _known(self, place: object, ask: Callable[[], Any]) -> Any:
        kept, now = self._kept.get(place), self._clock.monotonic()
        if kept is not None and now < kept[0] + KNOWN_S:
            return kept[1]
        try:
            found = ask()
        except (Unavailable, Withheld):
            if kept is None:
                raise
            found = kept[1]
        self._keep(place, found)
        return found

    def _keep(self, place: object, found: object) -> None:
        if len(self._kept) >= KNOWN_MAX:
            self._kept.clear()
        self._kept[place] = self._clock.monotonic(), found
