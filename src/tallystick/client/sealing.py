"""Step 2 of docs/life-of-a-record.md, a publisher's side: batches become parcels of its lanes, in the spool.

Invariants: a sequence of a lane is sealed once; a parcel is in the spool, synced, before it may be sent; nothing is
sealed under a key that a restart would not find. Whoever seals has the publisher's turn to seal, and its lock: but for
`seal_rows`, which takes the lock where it needs it, and `sync`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tallystick.client.advertised import Advertised
from tallystick.client.deliveries import Told
from tallystick.client.identity import Identity
from tallystick.client.labelling import Labelling
from tallystick.client.lane_keys import LaneSecrets, draw_secrets, open_lane
from tallystick.client.lanes import Lanes, LaneState, Sent
from tallystick.client.policies import OwnPolicy, policy_state
from tallystick.client.settings import PublisherSettings
from tallystick.client.spool import Spool, Unsure
from tallystick.client.view import View
from tallystick.errors import Misuse, Unavailable
from tallystick.parcel.header import Header, Kind
from tallystick.parcel.keys import LaneKey
from tallystick.parcel.open import open_batch, open_content
from tallystick.parcel.parcel import Parcel, VerifiedParcel
from tallystick.parcel.seal import Gap, Lane, Packed
from tallystick.parcel.verify import verify_own
from tallystick.record.batch import Batch
from tallystick.record.schema import Schema
from tallystick.runtime.clock import Clock
from tallystick.runtime.entropy import Entropy


class Sealer:
    """Seals into the lanes of one publisher, opening and refreshing them as need be."""

    def __init__(
        self,
        identity: Identity,
        advertised: Advertised,
        labelling: Labelling,
        lanes: Lanes,
        spool: Spool,
        view: View,
        clock: Clock,
        entropy: Entropy,
        settings: PublisherSettings,
        lock: threading.RLock,
    ) -> None:
        self._identity, self._advertised, self._lanes, self._spool = identity, advertised, lanes, spool
        self._labelling, self._lock = labelling, lock
        self._view, self._clock, self._entropy, self._settings = view, clock, entropy, settings
        self.own_policy: OwnPolicy | None = None  # counts from the next parcel on
        self._unsynced: list[Sent] = []  # sealed, and not yet durable in the spool

    # ── Parcels ──────────────────────────────────────────────────────────────────────────────────────────────────

    def seal_rows(self, number: int, part: Batch, packed: Callable[[], Packed], told: Told) -> None:
        """Seal rows into the lane of this number; `packed` are the same rows, packed. Mostly without the lock, so that
        rows are taken and parcels sent meanwhile: a lane is used by whoever has the turn to seal, and nobody else."""
        with self._lock:
            state = self._lane(number)
            batch = part.upgraded(state.lane.schema)  # the topic's schema may have grown while the rows waited
            labels = self._labelling.labels(batch, state.lane.topics)
        with self._sealing(state) as (lane, entropy):
            rows = packed() if batch is part else batch
            seen, write = self._view.accepted, self._settings.write
            parcel = lane.seal(rows, now_ms=self._now_ms, entropy=entropy, checkpoint=seen, labels=labels, write=write)
            with self._lock:
                self._spool_parcel(state, parcel, part.rows, told)

    def seal_gap(self, gap: Gap) -> None:
        state = self._lane(0)
        with self._sealing(state) as (lane, entropy):
            self._spool_parcel(state, lane.seal_gap(gap, now_ms=self._now_ms, entropy=entropy))

    def seal_heartbeats(self) -> None:
        """One in each lane that was silent too long."""
        now_ms = self._now_ms
        for state in self._lanes.active:
            if now_ms - state.last_ms >= self._settings.heartbeat_s * 1000:
                self._refresh_if_due(state)
                with self._sealing(state) as (lane, entropy):
                    seen = self._view.accepted
                    self._spool_parcel(state, lane.seal_heartbeat(now_ms=now_ms, entropy=entropy, checkpoint=seen))

    def seal_commit(self, content: bytes, told: Told) -> None:
        """The commit parcel of the settings' write, durable when this returns."""
        if self._settings.write is None:
            raise Misuse("only the publisher of a write commits", hint="set write")
        state = self._lane(0)
        with self._sealing(state) as (lane, entropy):
            seen, write = self._view.accepted, self._settings.write
            parcel = lane.seal_commit(content, now_ms=self._now_ms, entropy=entropy, checkpoint=seen, write=write)
            self._spool_parcel(state, parcel, 0, told)
        self.sync()

    def seal_closes(self) -> None:
        """A closing parcel in every lane that has parcels; it takes nothing new afterwards."""
        for state in self._lanes.active:
            if state.lane.sequence:
                self._refresh_if_due(state)
                with self._sealing(state) as (lane, entropy):
                    self._spool_parcel(state, lane.seal_close(now_ms=self._now_ms, entropy=entropy))
                state.retired = True

    @property
    def has_unsynced(self) -> bool:
        """Whether anything is sealed that may not be sent yet."""
        return bool(self._unsynced)

    def sync(self) -> bool:
        """Make what was sealed durable; from then on it may be sent. Whether there was anything. A caller that does not
        hold the lock lets sealing go on while the disk works."""
        with self._lock:
            sealed, self._unsynced = self._unsynced, []
            unsynced = self._spool.unsynced()
        if not sealed:
            return False
        unsynced.sync()
        with self._lock:
            for one in sealed:
                one.ready = True
        return True

    @contextmanager
    def _sealing(self, state: LaneState) -> Iterator[tuple[Lane, bytes]]:
        """Seal and spool inside: if the disk does not take the parcel, nobody will ever see it, and the lane stays
        where it was."""
        lane = state.lane
        before = lane.sequence, lane.previous
        try:
            yield lane, self._entropy.bytes(32)
        except Unavailable:
            lane.sequence, lane.previous = before
            raise

    def _spool_parcel(self, state: LaneState, parcel: Parcel, rows: int = 0, told: Told | None = None) -> None:
        """Written before it is sent: a retry sends the same bytes."""
        self._spool.append(parcel)
        size = len(parcel.header.encoded) + len(parcel.body) + 80
        sent = Sent(parcel.header.sequence, parcel.hash, rows, size, told or Told([], 1))
        state.unsent.append(sent)
        self._unsynced.append(sent)
        state.parcels += 1
        state.size_bytes += size
        state.last_ms = self._now_ms

    # ── Lanes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _lane(self, number: int) -> LaneState:
        """The lane with this number, opened or refreshed as need be."""
        active = self._lanes.active
        if number < len(active):
            self._refresh_if_due(active[number])
            return active[number]
        state = self._open_lane()
        self._lanes.states.append(state)
        return state if number == len(active) else self._lane(number)

    def _open_lane(self, replaced: LaneState | None = None) -> LaneState:
        """A new lane, on record before anything is sealed in it."""
        lane, secrets = open_lane(
            self._identity,
            self._advertised.held,
            self._now_ms,
            self._entropy,
            codec=self._settings.codec,
            continues=None if replaced is None else replaced.stored_head,
            own=self.own_policy,
        )
        state = LaneState(lane, [secrets], last_ms=self._now_ms)
        state.replaces = None if replaced is None else replaced.lane.lane
        self._lanes.record(state)
        return state

    def _refresh_if_due(self, state: LaneState) -> None:
        """New keys where the epoch, the erasure period, a policy, the attribute epoch or the schema changed, or the old
        ones served long enough."""
        now_ms, settings, held = self._now_ms, self._settings, self._advertised.held
        lane, schema = state.lane, self._advertised.schema
        same_epoch = self._advertised.is_current(lane.topics, now_ms)
        period = held[0].erasure_key(self._identity.principal, now_ms).period if held[0].is_erasable else None
        worn = state.parcels >= settings.lane_parcels_max or state.size_bytes >= settings.lane_bytes_max
        same_locks = (period, policy_state(held, schema, self.own_policy, now_ms)) == (
            state.secrets[-1].period,
            state.secrets[-1].policies,
        )
        if schema.hash == lane.schema.hash and same_epoch and same_locks and not worn:
            return
        fresh = draw_secrets(self._identity, lane.lane, held, schema, now_ms, self._entropy, self.own_policy)
        before = lane.schema, lane.topics, lane.keys, state.secrets
        lane.change_schema(schema)
        lane.refresh(fresh.topics, fresh.keys)
        state.secrets = [*state.secrets, fresh] if state.unsent or state.stored else [fresh]
        try:
            self._lanes.record(state)
        except Unavailable:  # nothing may be sealed under a key that a restart would not find
            lane.schema, lane.topics, lane.keys, state.secrets = before
            raise
        state.parcels = state.size_bytes = 0

    # ── What must be sealed again ────────────────────────────────────────────────────────────────────────────────

    def seal_again(self, state: LaneState) -> None:
        """Open our own parcels that wait and seal their rows again, in a new lane that names the last head of the old.
        The old sequences are never sealed twice, and no row counts twice: the new lane is written whole before the old
        one is ended, which is one durable step. If this process dies before it, the next one finds that the old lane
        was not ended and drops the new one, of which nothing was sent."""
        fresh = self._open_lane(state)
        ring, keys = _OwnRing(state.secrets), self._identity.own_keys
        try:
            for one in state.unsent:
                parcel = verify_own(self._lanes.spooled(state, one), keys)
                self._seal_copy(fresh, parcel, ring, state.lane.schema, one)
            self.sync()
            self._lanes.end(state)
        except Unsure:
            raise
        except Unavailable:
            self._spool.drop_lane(fresh.lane.lane)
            raise
        self._lanes.states.append(fresh)

    def _seal_copy(self, fresh: LaneState, parcel: VerifiedParcel, ring: _OwnRing, schema: Schema, one: Sent) -> None:
        now_ms = self._now_ms
        with self._sealing(fresh) as (lane, entropy):
            if parcel.header.kind is Kind.DATA:
                batch = open_batch(parcel, ring, schema).upgraded(lane.schema)
                labels, write = self._labelling.labels(batch, lane.topics), parcel.header.write
                copy = lane.seal(batch, now_ms=now_ms, entropy=entropy, labels=labels, write=write)
                self._spool_parcel(fresh, copy, one.rows, one.told)
            elif parcel.header.kind is Kind.COMMIT and parcel.header.write is not None:
                content = open_content(parcel, ring)
                copy = lane.seal_commit(content, now_ms=now_ms, entropy=entropy, write=parcel.header.write)
                self._spool_parcel(fresh, copy, 0, one.told)
            elif parcel.header.kind is Kind.GAP:
                gap = Gap.decode(open_content(parcel, ring))
                self._spool_parcel(fresh, lane.seal_gap(gap, now_ms=now_ms, entropy=entropy))

    @property
    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)


class _OwnRing:
    """The publisher's own lane keys, in the place of a reader's ring."""

    def __init__(self, secrets: Sequence[LaneSecrets]) -> None:
        self._keys = {(key.locks, group): key for one in secrets for group, key in enumerate(one.keys)}

    def lane_key(self, header: Header, group: int) -> LaneKey:
        return self._keys[header.groups[group].locks, group]
