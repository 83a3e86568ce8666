"""Who orders a partition: reaching for its lease, renewing it, seeing to its anchors, and letting it go.

Relays take turns, by partition, so that they neither collide nor all wait for the same one. Who is suspected comes
after all others, and takes only what is free.

Threat: a holder that promises places and anchors nothing. And without any malice of its own: one whose tail nobody
signs, since an orderer before it forked its promises and the others keep the other parcels. Both would hold the
partition for ever, as what is promised waits for nothing. So a tail that is not anchored in time costs the lease: an
honest holder lets it run out, and lets all others try first; one that does not is called silent. Time counts only while
the ledger makes blocks.
"""

from __future__ import annotations

from typing import NamedTuple

from tallystick.carriers.overlay.keeping import OverlayStorage
from tallystick.carriers.overlay.station import RelayStation
from tallystick.carriers.registry import CarrierHost
from tallystick.carriers.storage import Place
from tallystick.ledger import entries
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.ledger.contracts.blame import is_suspected
from tallystick.ledger.contracts.leases import LEASES, LeaseRow
from tallystick.ledger.contracts.plans import EntrustedRow
from tallystick.ledger.contracts.state import NOBODY
from tallystick.ledger.contracts.topics import TOPICS
from tallystick.trust.plan import Plan

TURN_MS = 1_000  # how long a relay lets the one before it take a lease that is free
STUCK_MS = 5_000  # beyond the topic's pace: after this a holder lets go; others wait longer, by that and the lease
_STEP_MS = 3_000  # that count between two blocks, at most: a ledger that was away is nobody's fault


class _Waiting(NamedTuple):
    """A tail that is not anchored: under which fence, behind which size, and for how long."""

    fence: int
    size: int
    block_ms: int
    waited_ms: int


class Leading:
    """For the keeper's thread. What it returns is to be written, each list together."""

    def __init__(self, host: CarrierHost, storage: OverlayStorage) -> None:
        self._host, self._storage, self._read, self._me = host, storage, host.rules.read, host.signer.principal
        self._free_ms: dict[Place, int] = {}  # since when a lease is to be had
        self._waiting: dict[Place, _Waiting] = {}
        self._let_go: dict[Place, int] = {}  # by fence

    def lead(
        self, station: RelayStation, place: Place, word: EntrustedRow, plan: Plan, now_ms: int
    ) -> tuple[list[bytes], bytes | None]:
        """What to write for a partition that enters here: its lease, and a word against who holds it. As its holder,
        see to its anchor."""
        row, time_ms = self._read(LEASES(*place)) or LeaseRow(NOBODY, 0, 0, 0), self._host.block()[1]
        is_held, doubted = row.is_held(word, time_ms), is_suspected(self._read, self._me, plan.version)
        waited_ms = self._wait(place, row.fence, time_ms)
        if is_held and row.holder == self._me:
            self._free_ms.pop(place, None)
            self._offer(station, place, now_ms)
            if waited_ms > STUCK_MS or doubted:
                self._let_go[place] = row.fence
            elif row.end_ms - time_ms < word.lease_ms // 2:
                return [entries.lease(*place, row.fence)], None
            return [], None
        is_silent = is_held and is_suspected(self._read, row.holder, plan.version)
        if is_held and not is_silent and _is_too_long(waited_ms, word):
            return [], entries.suspect(plan.overlay, plan.version, row.holder)
        if is_held and (not is_silent or doubted):
            self._free_ms.pop(place, None)
            return [], None
        is_due = now_ms - self._free_ms.setdefault(place, now_ms) >= self._turn(place, plan, row, doubted) * TURN_MS
        return [entries.lease(*place, row.fence + 1)] if is_due else [], None

    def _turn(self, place: Place, plan: Plan, row: LeaseRow, doubted: bool) -> int:
        seat = plan.place(self._me)
        assert seat is not None
        size = len(seat[0].relays)
        turn = (place.token[0] + place.partition + seat[1]) % size
        return turn + size * (doubted + (self._let_go.get(place) == row.fence))

    def _wait(self, place: Place, fence: int, time_ms: int) -> int:
        """For how many milliseconds beyond its pace the tail has waited for an anchor that this relay lacks nothing
        below."""
        row, end, topic = self._read(ANCHORS(*place)), self._storage.end(place), self._read(TOPICS(place.token))
        size, old = 0 if row is None else row.size, self._waiting.get(place)
        if size > end or not self._storage.tail(place):
            self._waiting.pop(place, None)
            return 0
        if old is None or (old.fence, old.size) != (fence, size):
            old = _Waiting(fence, size, time_ms, 0)
        waited_ms = old.waited_ms + min(max(0, time_ms - old.block_ms), _STEP_MS)
        self._waiting[place] = _Waiting(fence, size, time_ms, waited_ms)
        return waited_ms - (0 if topic is None else topic.anchor_pace_ms)

    def _offer(self, station: RelayStation, place: Place, now_ms: int) -> None:
        """As the holder: ask the others to sign what has grown."""
        end, row = self._storage.end(place), self._read(ANCHORS(*place))
        size = end + len(self._storage.tail(place))
        is_behind = row is not None and row.size > end
        if size > end and not is_behind and self._host.rules.may_anchor(*place, now_ms):
            station.ask(lambda now: station.relay.anchoring.offer(place, size, now))


def _is_too_long(waited_ms: int, word: EntrustedRow) -> bool:
    """Whether a holder should have let go: it had time to see that it is stuck, and its lease time to run out."""
    return waited_ms > 2 * STUCK_MS + word.lease_ms
