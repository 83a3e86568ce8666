"""Step 3 of docs/life-of-a-record.md, a publisher's side: parcels go to the node, and refusals are dealt with.

What a node refuses for good breaks the lane (the next sequence can never follow), so the rest of the lane is failed, or
sealed again in a new lane that names the old one's last stored head. A promise is checked before it counts (step 4).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

from tallystick.carriers.carrier import Carrier, NotStored, Stored
from tallystick.client.advertised import Advertised
from tallystick.client.deliveries import Delivery, Reports
from tallystick.client.identity import Identity
from tallystick.client.keeper import RIGHT_HINT, RIGHT_REASONS
from tallystick.client.lanes import Lanes, LaneState, Sent
from tallystick.client.sealing import Sealer
from tallystick.client.settings import PublisherSettings
from tallystick.client.spool import Spool
from tallystick.errors import Forged, Refused, TallystickError, Unavailable
from tallystick.parcel.header import LaneRef
from tallystick.runtime.clock import Clock
from tallystick.trust.promise import Promise

log = logging.getLogger(__name__)

QUOTA_PAUSE_S = 30.0


class Sender:
    """Sends what is sealed and durable; takes the publisher's lock while it looks at lanes, and not while it waits for
    the node."""

    def __init__(
        self,
        identity: Identity,
        carrier: Carrier,
        advertised: Advertised,
        lanes: Lanes,
        spool: Spool,
        sealer: Sealer,
        reports: Reports,
        turn: threading.RLock,
        lock: threading.RLock,
        clock: Clock,
        settings: PublisherSettings,
        pause: Callable[[Unavailable], None],
    ) -> None:
        self._identity, self._carrier, self._advertised = identity, carrier, advertised
        self._lanes, self._spool, self._sealer, self._reports = lanes, spool, sealer, reports
        self._turn, self._lock, self._clock, self._settings, self._pause = turn, lock, clock, settings, pause
        self._vow: tuple[bytes, bytes, bytes] | None = None  # the last signature that held: node, signature, message

    def send_lane(self, state: LaneState) -> bool:
        """Send the next parcels of a lane; whether anything moved."""
        with self._lock:
            batch = self._next_request(state)
            if not batch:
                return False
            locks = [lock for one in state.secrets for lock in one.locks if lock not in state.locks_sent]
            parcels = [self._spool.read(state.lane.lane, one.sequence) for one in batch]
        topic = state.lane.topics[0]
        if locks:
            try:
                self._carrier.put_locks(topic.token, topic.permit, locks)
            except Refused as error:  # what is wrong with the locks is wrong with the parcels that need them
                self._refused(state, batch[0], NotStored(error.reason, str(error)))
                return False
            state.locks_sent.update(locks)
        for number, outcome in enumerate(self._carrier.publish(topic.token, parcels)):
            if isinstance(outcome, NotStored):
                self._refused(state, batch[number], outcome)
                return number > 0
            with self._lock:
                self._take_promise(state, batch[number], outcome)
        return True

    def _refused(self, state: LaneState, one: Sent, refusal: NotStored) -> None:
        with self._turn, self._lock:  # in this order: what is to be sealed again waits for its turn
            self.take_refusal(state, one, refusal)

    def _next_request(self, state: LaneState) -> list[Sent]:
        taken: list[Sent] = []
        size = 0
        for one in state.unsent:
            size += one.size_bytes
            if not one.ready:
                break
            if taken and (size > self._settings.request_bytes_max or len(taken) == self._settings.request_parcels_max):
                break
            taken.append(one)
        return taken

    # ── Promises ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _take_promise(self, state: LaneState, one: Sent, outcome: Stored) -> None:
        """Hold the node to its word: signed, for this parcel, for each of its topics."""
        if not outcome.offsets:  # where nobody promises, the anchor alone will tell
            self._check_promises(state, one, outcome.promises)
        one.promises, one.promised_at = outcome.promises, self._clock.monotonic()
        promised = tuple((promise.token, promise.partition, promise.offset) for promise in outcome.promises)
        one.offsets = outcome.offsets or promised
        state.unsent.popleft()
        state.stored.append(one)
        state.stored_head = LaneRef(state.lane.lane, one.sequence, one.parcel)
        if self._settings.acks == "stored":
            self.delivered(state, one)

    def _check_promises(self, state: LaneState, one: Sent, promises: Sequence[Promise]) -> None:
        keys = {node.subject: node.verify_key for node in self._identity.nodes}
        if [promise.token for promise in promises] != [topic.token for topic in state.lane.topics]:
            raise Forged("the node's promises are not for the parcel's topics", reason="bad-promise")
        for promise in promises:
            key = keys.get(promise.node)
            if key is None or promise.parcel != one.parcel or promise.instance != self._identity.instance:
                raise Forged("the node's promise is for another parcel, or another's", reason="bad-promise")
            vow = (promise.node, *promise.signed_statement())
            if vow != self._vow:  # the promises of one answer share a signature
                promise.verify(key)
                self._vow = vow

    def delivered(self, state: LaneState, one: Sent) -> None:
        delivery = Delivery(one.parcel, state.lane.lane, one.sequence, one.rows, one.offsets)
        self._reports.report(one.told, None, delivery)

    # ── Refusals ─────────────────────────────────────────────────────────────────────────────────────────────────

    def take_refusal(self, state: LaneState, one: Sent, refusal: NotStored) -> None:
        """What to do about a refusal, by its reason."""
        match refusal.reason:
            case "ahead":  # the node has less than we thought: it said so, and parcels are still in the spool
                self._rewind(state, refusal.expected or 0)
            case "unknown-lock":
                state.locks_sent.clear()
            case "not-advertised" | "permit-ended" if not self._holds_permits(state):
                self._sealer.seal_again(state)  # under a permit of an earlier process, which has ended
            case "permit-ended":
                self._leave_permits(state)
            case "not-advertised":
                self._advertised.show()
            case "quota":
                self._pause(Unavailable(refusal.message, retry_after_s=QUOTA_PAUSE_S))
            case "epoch-over":
                self._leave_epoch(state, one)
            case reason if reason in RIGHT_REASONS:
                self._give_up(state, Refused(refusal.message, reason=refusal.reason, hint=RIGHT_HINT))
            case _:
                self._fail_lane(state, Refused(refusal.message, reason=refusal.reason))

    def _rewind(self, state: LaneState, expected: int) -> None:
        """Send again from `expected` on, if the spool still has it."""
        again = [one for one in state.stored if one.sequence >= expected]
        if not again or again[0].sequence != expected:
            self._fail_lane(state, Forged(f"the node lost parcel {expected}, which it had promised", reason="lost"))
            return
        for one in reversed(again):
            state.stored.remove(one)
            state.unsent.appendleft(one)

    def _fail_lane(self, state: LaneState, error: TallystickError) -> None:
        """Nothing can follow a parcel that was refused for good: fail what waits, and go on in a new lane."""
        log.warning("lane %s ends: %s", state.lane.lane.hex()[:8], error)
        for one in self._lanes.end(state):
            self._reports.report(one.told, error, None)

    def _holds_permits(self, state: LaneState) -> bool:
        return self._advertised.covers(self._lanes.spooled(state, state.unsent[0]).header.topics)

    def _leave_permits(self, state: LaneState) -> None:
        """A permit of ours was revoked: where the right was given back since, seal again under a new one."""
        try:
            self._advertised.obtain_again()
        except Refused as refusal:
            self._give_up(state, refusal)
        self._sealer.seal_again(state)

    def _give_up(self, state: LaneState, error: Refused) -> NoReturn:
        """End for good: every further request without the right, heartbeats too, is held against whoever signs it."""
        self._fail_lane(state, error)
        raise error

    def _leave_epoch(self, state: LaneState, one: Sent) -> None:
        """The node no longer takes the epoch of a parcel, or not yet: seal again, once we know of another epoch."""
        refused = self._lanes.spooled(state, one).header.topics
        if self._advertised.is_current(refused, self._now_ms):
            self._advertised.update()
        if self._advertised.is_current(refused, self._now_ms):
            raise Unavailable("the authority has not told us of the next epoch yet", retry_after_s=1.0)
        self._sealer.seal_again(state)

    @property
    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)
