"""Step 4 of docs/life-of-a-record.md, a publisher's side: a copy is forgotten only when its inclusion under a verified
anchor was checked, and a promise that no anchor kept is brought to the ledger.
"""

from __future__ import annotations

import logging
import threading

from tallystick.carriers.carrier import Carrier, NotStored
from tallystick.client.author import Author
from tallystick.client.lanes import Lanes, LaneState, Sent
from tallystick.client.sending import Sender
from tallystick.client.settings import PublisherSettings
from tallystick.client.spool import Spool
from tallystick.client.view import View
from tallystick.crypto.merkle import leaf_hash, verify_inclusion
from tallystick.errors import Forged, Refused
from tallystick.ledger import entries
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.runtime.clock import Clock

log = logging.getLogger(__name__)

Place = tuple[bytes, int, int]  # token, partition, offset


class Anchoring:
    """Holds what was stored to the ledger."""

    def __init__(
        self,
        carrier: Carrier,
        view: View,
        author: Author | None,
        lanes: Lanes,
        spool: Spool,
        sender: Sender,
        turn: threading.RLock,
        changed: threading.Condition,
        clock: Clock,
        settings: PublisherSettings,
    ) -> None:
        """`author` brings broken promises to the ledger, where given; `turn` is that to seal, `changed` is of the
        publisher's lock."""
        self._carrier, self._view, self._author = carrier, view, author
        self._lanes, self._spool, self._sender = lanes, spool, sender
        self._turn, self._changed, self._clock, self._settings = turn, changed, clock, settings
        self._places: dict[tuple[bytes, int], set[Place]] = {}  # of (lane, sequence): where it is anchored already

    def check(self) -> None:
        """Forget what the ledger vouches for: one proved anchor per partition, one path per parcel."""
        states = self._lanes.states
        places = {(token, partition) for s in states for one in s.stored for token, partition, _ in one.offsets}
        for token, partition in sorted(places):
            anchor = self._view.row(ANCHORS(token, partition))
            if anchor is None:
                continue
            size, root = anchor.size, anchor.root
            waiting = [
                (state, one, offset)
                for state in self._lanes.states
                for one in state.stored
                for place in [(token, partition)]
                for *there, offset in one.offsets
                if tuple(there) == place and offset < size
            ]
            if not waiting:
                continue
            paths = self._carrier.inclusion(token, partition, size, [offset for _, _, offset in waiting])
            for (state, one, offset), path in zip(waiting, paths, strict=True):
                try:
                    verify_inclusion(leaf_hash(one.parcel), offset, size, path, root)
                except Forged:
                    if one.promises or not self._take_verdict(state, one, (token, partition, offset)):
                        raise
                    return
                with self._changed:
                    self._anchored(state, one, (token, partition, offset))

    def _take_verdict(self, state: LaneState, one: Sent, place: Place) -> bool:
        """Nobody promised it, and something else is anchored there: whether the notary says that it refused it. Then
        nothing behind it counts either, and it is dealt with as a refusal."""
        reason = self._carrier.verdict(*place)
        if not reason:
            return False
        with self._turn, self._changed:
            if one in state.stored:
                again = [other for other in state.stored if other.sequence >= one.sequence]
                for other in reversed(again):
                    state.stored.remove(other)
                    state.unsent.appendleft(other)
                refusal = NotStored(reason, f"the notary refused offset {place[2]}: {reason}")
                self._sender.take_refusal(state, one, refusal)
        return True

    def _anchored(self, state: LaneState, one: Sent, place: Place) -> None:
        """One topic's anchor covers the parcel; when all do, the copy may go."""
        if one not in state.stored:
            return
        anchored = self._places.setdefault((state.lane.lane, one.sequence), set())
        anchored.add(place)
        if anchored != set(one.offsets):
            return
        del self._places[state.lane.lane, one.sequence]
        state.stored.remove(one)
        self._spool.forget(state.lane.lane, one.sequence)
        if self._settings.acks == "anchored":
            self._sender.delivered(state, one)
        self._lanes.drop_if_done(state)
        self._changed.notify_all()

    def accuse(self) -> None:
        """Bring a promise that no anchor kept to the ledger: the node signed it, and the contract can judge it."""
        if self._author is None:
            return
        now = self._clock.monotonic()
        for state in self._lanes.states:
            for one in state.stored:
                if one.promises and now - one.promised_at > self._settings.promise_s:
                    promise = one.promises[0]
                    log.error("offset %d was promised and is not anchored", promise.offset)
                    try:
                        self._author.write(entries.broken_promise(promise))
                    except Refused as error:
                        log.warning("the ledger does not hold the promise broken: %s", error)
                    one.promises = ()  # not before: the accused node carries the accusation, and may be away
