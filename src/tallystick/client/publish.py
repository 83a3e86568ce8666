"""The publisher: rows in, sealed parcels out, and nothing forgotten before the ledger vouches for it.

The numbers are those of docs/life-of-a-record.md. `produce`, `poll`, `flush` and `on_delivery` behave as Kafka's
producer does; `send` takes columns. A background thread does the work (`pump`); with `background=False` the caller's
`poll` does, which is how simulations and tests drive it.

Invariants: a parcel is in the spool, synced, before it is sent; a sequence of a lane is sealed once; a copy is
forgotten only when its inclusion under a verified anchor was checked. What a node refuses for good breaks the lane
(the next sequence can never follow), so the rest of the lane is failed or sealed again in a new lane that names the old
one's last stored head.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NoReturn

import pyarrow as pa

from tallystick.authority.client import AuthorityClient
from tallystick.carriers.carrier import Carrier, NotStored, Stored
from tallystick.client.author import Author
from tallystick.client.grants import Grants
from tallystick.client.identity import Identity
from tallystick.client.keeper import (
    RIGHT_HINT,
    RIGHT_REASONS,
    Held,
    KeptLane,
    LaneSecrets,
    draw_secrets,
    open_lane,
)
from tallystick.client.spool import Spool, Unsure
from tallystick.client.view import View
from tallystick.crypto.merkle import leaf_hash, verify_inclusion
from tallystick.errors import Forged, Misuse, Refused, TallystickError, Unavailable, Withheld
from tallystick.ledger import entries
from tallystick.parcel.header import Header, Kind, LaneRef, TopicRef
from tallystick.parcel.keys import LaneKey
from tallystick.parcel.open import open_batch, open_content
from tallystick.parcel.parcel import Parcel, VerifiedParcel
from tallystick.parcel.seal import Gap, Lane
from tallystick.parcel.verify import verify_own
from tallystick.record.batch import Batch
from tallystick.record.gather import to_batches
from tallystick.record.schema import Schema
from tallystick.runtime.clock import Clock
from tallystick.runtime.disk import Disk
from tallystick.runtime.entropy import Entropy
from tallystick.trust.permit import Operation
from tallystick.trust.promise import Promise

log = logging.getLogger(__name__)

SEALED_AT_ONCE = 32  # parcels under one hold of the lock and one sync of the spool
LET_GO_S = 0.0002  # a lock that is taken again at once is never handed over


@dataclass(frozen=True)
class PublisherSettings:
    acks: str = "stored"  # what a delivery waits for: stored (the promise) or anchored (the checked anchor)
    linger_s: float = 0.05  # how long a row waits for company
    batch_rows_max: int = 4_096  # beyond it sealing gains little
    parcel_bytes_max: int = 900 * 1024  # under Kafka's own limit of 1 MiB
    lanes: int = 1
    key: str | None = None  # the column by which rows are dealt to lanes
    codec: str = "lz4"
    spool_bytes_max: int = 256 << 20  # some hours of a busy vehicle
    spool_segment_bytes_max: int = 8 << 20  # what is deleted at once when all in it is anchored
    when_full: str = "block"  # or "gap": drop rows, and seal a gap that says so
    heartbeat_s: float = 30.0  # how long a lane may be silent
    lane_parcels_max: int = 65_536  # then the lane key is refreshed,
    lane_bytes_max: int = 16 << 30  # or after so many bytes
    request_parcels_max: int = 64
    request_bytes_max: int = 4 << 20
    anchor_check_s: float = 0.5
    promise_s: float = 180.0  # a promise without an anchor for so long is broken: the ledger gives nodes a minute
    retry_s: float = 0.5  # between attempts while the node cannot be reached
    keys_wait_ms: int = 20_000  # the long poll for news of keys; 0: they are asked for when a node refuses an epoch
    write: tuple[bytes, int] | None = None  # (write, batch): all rows are pending until the commit parcel lists them

    def __post_init__(self) -> None:
        if self.acks not in ("stored", "anchored"):
            raise Misuse(f'acks "{self.acks}" is unknown, expected stored or anchored')
        if self.when_full not in ("block", "gap"):
            raise Misuse(f'when_full "{self.when_full}" is unknown, expected block or gap')
        if not 1 <= self.lanes <= 64:
            raise Misuse(f"lanes: 1 to 64 expected, found {self.lanes}")


@dataclass(frozen=True)
class Delivery:
    """What became of rows: the parcel that holds them, and where it lies in each topic."""

    parcel: bytes
    lane: bytes
    sequence: int
    rows: int
    offsets: tuple[tuple[bytes, int, int], ...]  # (token, partition, offset)


OnDelivery = Callable[[TallystickError | None, Delivery | None], None]


@dataclass
class _Told:
    """Who waits for rows that may travel in several parcels: told once, when all are delivered or the first is not."""

    callbacks: list[OnDelivery]
    left: int  # parcels that are not delivered yet


@dataclass
class _Sent:
    """A sealed parcel on its way."""

    sequence: int
    parcel: bytes  # its hash
    rows: int
    size_bytes: int
    told: _Told
    ready: bool = False  # in the spool and synced: may be sent
    offsets: tuple[tuple[bytes, int, int], ...] = ()
    promises: tuple[Promise, ...] = ()
    promised_at: float = 0.0


@dataclass
class _LaneState:
    """A lane and its parcels in order: not yet stored, and stored but not yet anchored."""

    lane: Lane
    secrets: list[LaneSecrets]  # every lane key under which parcels wait, the newest last
    unsent: deque[_Sent] = field(default_factory=deque)
    stored: deque[_Sent] = field(default_factory=deque)
    locks_sent: set[bytes] = field(default_factory=set)
    parcels: int = 0  # under the present key
    size_bytes: int = 0
    last_ms: int = 0
    retired: bool = False  # drained, but takes nothing new
    stored_head: LaneRef | None = None
    end: int | None = None  # parcels from here on do not count: refused for good, or sealed again elsewhere
    replaces: bytes | None = None  # the lane whose rows were sealed again in this one


class Publisher:
    """Publishes rows of one schema to one topic, or to several at once.

    >>> with Publisher(identity, "brakes", session) as publisher:  # doctest: +SKIP
    ...     publisher.produce({"vin": "WVW…", "speed": 12.5})
    ...     publisher.flush()
    """

    def __init__(
        self,
        identity: Identity,
        topics: str | Sequence[str],
        *,
        carrier: Carrier,
        authority: AuthorityClient,
        view: View,
        disk: Disk,
        clock: Clock,
        entropy: Entropy,
        settings: PublisherSettings = PublisherSettings(),
        grants: Grants | None = None,
        author: Author | None = None,
        on_delivery: OnDelivery | None = None,
        background: bool = True,
    ) -> None:
        """`grants` keeps permits across starts, and `author` brings broken promises to the ledger, where given."""
        self._author, self._grants = author, grants
        self._identity, self._carrier, self._authority, self._view = identity, carrier, authority, view
        self._clock, self._entropy, self._settings = clock, entropy, settings
        self._on_delivery = on_delivery
        names = [topics] if isinstance(topics, str) else list(topics)
        obtained = [(self._obtain(name), name) for name in names]
        obtained.sort(key=lambda pair: pair[0].grant.token)
        self._held, self._names = [held for held, _ in obtained], [name for _, name in obtained]
        self._advertise()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._pumping = threading.Lock()
        self._rows: list[dict[str, Any]] = []
        self._row_callbacks: list[OnDelivery] = []
        self._since_ms = 0
        self._batches: deque[tuple[Batch, _Told]] = deque()  # cut, not yet dealt to lanes
        self._parts: deque[tuple[int, Batch, _Told]] = deque()  # dealt to the lane of this number, not yet sealed
        self._waiting_bytes = 0  # of both
        self._events: deque[tuple[OnDelivery, TallystickError | None, Delivery | None]] = deque()
        self._dropped = [0, 0, 0]  # rows, from ms, to ms
        self._next_lane = 0
        self._not_before = 0.0  # no sending before: the node asked for a pause
        self._anchors_at = 0.0
        self._failure: TallystickError | None = None
        self._vow: tuple[bytes, bytes, bytes] | None = None  # the last signature that held: node, signature, message
        self._spool = Spool(disk, settings.spool_segment_bytes_max)
        self._unsynced: list[_Sent] = []  # sealed, and not yet durable in the spool
        self._lanes: list[_LaneState] = self._recover()
        self._stopping = False
        self._threads: list[threading.Thread] = []
        if background:
            self._threads = [
                threading.Thread(target=self._run, args=(self._seal_part,), name="publisher seals", daemon=True),
                threading.Thread(target=self._run, args=(self._send_step,), name="publisher sends", daemon=True),
            ]
            for thread in self._threads:
                thread.start()
            if settings.keys_wait_ms:
                threading.Thread(target=self._follow_keys, name="publisher keys", daemon=True).start()

    def _obtain(self, name: str) -> Held:
        if self._grants is not None:
            return self._grants.obtain(Operation.ADVERTISE, name)
        return Held.of(self._authority.permit(Operation.ADVERTISE, name))

    def _advertise(self) -> None:
        """Show our permits to the node; where it cannot be reached, rows gather in the spool until it can."""
        try:
            for held in self._held:
                self._carrier.advertise(held.grant.permit)
        except Unavailable as error:
            if self._grants is None:
                raise
            log.warning("not advertised yet: %s", error)

    # ── 1. Gather ────────────────────────────────────────────────────────────────────────────────────────────────

    def produce(self, row: dict[str, Any], on_delivery: OnDelivery | None = None) -> None:
        """Take one row; it is checked against the schema when its batch is cut, at the latest by `flush`."""
        with self._lock:
            if not self._make_room():
                self._drop(1)
                return
            if not self._rows:
                self._since_ms = self._now_ms
            self._rows.append(row)
            if on_delivery is not None:
                self._row_callbacks.append(on_delivery)
            if len(self._rows) >= self._settings.batch_rows_max:
                self._cut_rows()
                self._changed.notify_all()

    def send(self, rows: Any, on_delivery: OnDelivery | None = None) -> None:
        """Take many rows at once: a list of dicts, Arrow, pandas, polars, or a dict of columns."""
        with self._lock:
            self._cut_rows()
            batch = to_batches(rows, self.schema.arrow)
            if batch.num_rows == 0:
                return
            if not self._make_room():
                self._drop(batch.num_rows)
                return
            self._take(batch, [on_delivery] if on_delivery is not None else [])
            self._changed.notify_all()

    def _cut_rows(self) -> None:
        """Turn waiting rows into a batch; a row that does not fit is a `Misuse` at the caller's own line."""
        if not self._rows:
            return
        rows, callbacks = self._rows, self._row_callbacks
        self._rows, self._row_callbacks = [], []
        self._take(to_batches(rows, self.schema.arrow), callbacks)

    def _take(self, batch: pa.RecordBatch, callbacks: list[OnDelivery]) -> None:
        """Cut to parcels' size and queue."""
        pieces = _cut(batch, self._settings.batch_rows_max, self._settings.parcel_bytes_max)
        told = _Told(callbacks, len(pieces))
        for piece in pieces:
            self._batches.append((Batch.of(self.schema, piece), told))
            self._waiting_bytes += piece.nbytes

    def _make_room(self) -> bool:
        """Whether another row may come: waits while the spool is full, or says no where gaps are wanted. Rows that
        wait because the spool's disk takes no more count as well."""
        self._check_failure()
        while self._spool.size_bytes + self._waiting_bytes >= self._settings.spool_bytes_max:
            if self._settings.when_full == "gap":
                return False
            if not self._threads:
                raise Unavailable("the spool is full", retry_after_s=self._settings.retry_s, hint="call poll")
            self._changed.wait(0.1)
            self._check_failure()
        return True

    def _drop(self, rows: int) -> None:
        """Count rows that had to be dropped; the gap is sealed when there is room again."""
        if not self._dropped[0]:
            self._dropped[1] = self._now_ms
        self._dropped[0] += rows
        self._dropped[2] = self._now_ms

    # ── 2. Seal ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _seal_step(self, parcels_max: int | None = None) -> bool:
        """Seal what is due and make it durable in the spool, a part at a time; whether anything was sealed."""
        with self._lock:
            try:
                self._seal_waiting(parcels_max)
            finally:
                sealed = self._sync_sealed()
            return sealed

    def _sync_sealed(self) -> bool:
        """Make what was sealed durable; from then on it may be sent. Whether there was anything."""
        sealed, self._unsynced = self._unsynced, []
        if sealed:
            self._spool.sync()
            for one in sealed:
                one.ready = True
            self._changed.notify_all()
        return bool(sealed)

    def _seal_waiting(self, parcels_max: int | None) -> None:
        """Seal what is due into lanes, and write it to the spool."""
        now_ms = self._now_ms
        if self._rows and now_ms - self._since_ms >= self._settings.linger_s * 1000:
            self._cut_rows()
        self._seal_gap()
        while self._batches and (parcels_max is None or len(self._parts) < parcels_max):
            batch, told = self._batches.popleft()
            parts = _deal(batch, self._settings.lanes, self._settings.key, self._next_lane)
            self._next_lane += 1
            told.left += len(parts) - 1
            self._parts.extend((lane, part, told) for lane, part in parts)
        while self._parts:
            number, part, told = self._parts[0]
            self._seal_rows(self._lane(number), part, told)
            self._parts.popleft()
            self._waiting_bytes = max(0, self._waiting_bytes - part.data.nbytes) if self._parts else 0
        for state in self._lanes:
            if not state.retired and now_ms - state.last_ms >= self._settings.heartbeat_s * 1000:
                self._refresh_if_due(state)
                with self._sealing(state) as (lane, entropy):
                    seen = self._view.accepted
                    self._spool_parcel(state, lane.seal_heartbeat(now_ms=now_ms, entropy=entropy, checkpoint=seen))

    def _seal_rows(self, state: _LaneState, part: Batch, told: _Told) -> None:
        with self._sealing(state) as (lane, entropy):
            batch = part.upgraded(lane.schema)  # the topic's schema may have grown while the rows waited
            seen, write = self._view.accepted, self._settings.write
            parcel = lane.seal(batch, now_ms=self._now_ms, entropy=entropy, checkpoint=seen, write=write)
            self._spool_parcel(state, parcel, part.rows, told)

    @contextmanager
    def _sealing(self, state: _LaneState) -> Iterator[tuple[Lane, bytes]]:
        """Seal and spool inside: if the disk does not take the parcel, nobody will ever see it, and the lane stays
        where it was."""
        lane = state.lane
        before = lane.sequence, lane.previous
        try:
            yield lane, self._entropy.bytes(32)
        except Unavailable:
            lane.sequence, lane.previous = before
            raise

    def _seal_gap(self) -> None:
        rows, from_ms, to_ms = self._dropped
        if not rows or self._spool.size_bytes >= self._settings.spool_bytes_max:
            return
        state = self._lane(0)
        gap = Gap(rows, from_ms, to_ms, "spool full")
        with self._sealing(state) as (lane, entropy):
            self._spool_parcel(state, lane.seal_gap(gap, now_ms=self._now_ms, entropy=entropy))
        self._dropped = [0, 0, 0]

    def commit(self, content: bytes, on_delivery: OnDelivery | None = None) -> None:
        """Seal the commit parcel of this publisher's write (parcel/commit.py). When this returns it is spooled, and
        will be sent, by this process or the next."""
        if self._settings.write is None:
            raise Misuse("only the publisher of a write commits", hint="set write")
        with self._lock:
            state = self._lane(0)
            with self._sealing(state) as (lane, entropy):
                seen, write = self._view.accepted, self._settings.write
                parcel = lane.seal_commit(content, now_ms=self._now_ms, entropy=entropy, checkpoint=seen, write=write)
                self._spool_parcel(state, parcel, 0, _Told([on_delivery] if on_delivery is not None else [], 1))
            self._sync_sealed()

    def last_commit(self) -> tuple[bytes, int] | None:
        """The write and batch of the last commit parcel that was sealed here, by whichever process; as far as no other
        parcel followed it."""
        with self._lock:
            for state in self._lanes:
                newest = None if state.retired else self._spool.newest(state.lane.lane)
                if newest is not None and newest.header.kind is Kind.COMMIT:
                    return newest.header.write
        return None

    def _lane(self, number: int) -> _LaneState:
        """The lane with this number, opened or refreshed as need be."""
        active = [state for state in self._lanes if not state.retired]
        if number < len(active):
            self._refresh_if_due(active[number])
            return active[number]
        state = self._open_lane()
        self._lanes.append(state)
        return state if number == len(active) else self._lane(number)

    def _open_lane(self, replaced: _LaneState | None = None) -> _LaneState:
        """A new lane, on record before anything is sealed in it."""
        lane, secrets = open_lane(
            self._identity,
            self._held,
            self._now_ms,
            self._entropy,
            codec=self._settings.codec,
            continues=None if replaced is None else replaced.stored_head,
        )
        state = _LaneState(lane, [secrets], last_ms=self._now_ms)
        state.replaces = None if replaced is None else replaced.lane.lane
        self._record(state)
        return state

    def _record(self, state: _LaneState) -> None:
        """Write down what a restart must know of a lane."""
        kept = KeptLane(state.lane, state.secrets, state.end, state.replaces)
        self._spool.put_lane(state.lane.lane, kept.encode(self._identity, self._entropy))

    def _refresh_if_due(self, state: _LaneState) -> None:
        """New keys where the epoch, the erasure period or the schema changed, or the old ones served long enough."""
        now_ms, settings = self._now_ms, self._settings
        schema = self.schema
        epochs = {held.grant.token: held.epoch(now_ms).number for held in self._held}
        same_epoch = all(epochs[topic.token] == topic.epoch for topic in state.lane.topics)
        erasable = self._held[0].is_erasable
        period = self._held[0].erasure_key(self._identity.principal, now_ms).period if erasable else None
        worn = state.parcels >= settings.lane_parcels_max or state.size_bytes >= settings.lane_bytes_max
        lane = state.lane
        if schema.hash == lane.schema.hash and same_epoch and period == state.secrets[-1].period and not worn:
            return
        fresh = draw_secrets(self._identity, lane.lane, self._held, schema, now_ms, self._entropy)
        before = lane.schema, lane.topics, lane.keys, state.secrets
        lane.change_schema(schema)
        lane.refresh(fresh.topics, fresh.keys)
        state.secrets = [*state.secrets, fresh] if state.unsent or state.stored else [fresh]
        try:
            self._record(state)
        except Unavailable:  # nothing may be sealed under a key that a restart would not find
            lane.schema, lane.topics, lane.keys, state.secrets = before
            raise
        state.parcels = state.size_bytes = 0

    def _spool_parcel(self, state: _LaneState, parcel: Parcel, rows: int = 0, told: _Told | None = None) -> None:
        """Written before it is sent: a retry sends the same bytes."""
        self._spool.append(parcel)
        size = len(parcel.header.encoded) + len(parcel.body) + 80
        sent = _Sent(parcel.header.sequence, parcel.hash, rows, size, told or _Told([], 1))
        state.unsent.append(sent)
        self._unsynced.append(sent)
        state.parcels += 1
        state.size_bytes += size
        state.last_ms = self._now_ms

    # ── 3. Send, past the guards ─────────────────────────────────────────────────────────────────────────────────

    def _send_lane(self, state: _LaneState) -> bool:
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
            except Refused as refusal:  # what is wrong with the locks is wrong with the parcels that need them
                with self._lock:
                    self._take_refusal(state, batch[0], NotStored(refusal.reason, str(refusal)))
                return False
            state.locks_sent.update(locks)
        outcomes = self._carrier.publish(topic.token, parcels)
        with self._lock:
            moved = False
            for one, outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, Stored):
                    self._take_promise(state, one, outcome)
                    moved = True
                else:
                    self._take_refusal(state, one, outcome)
                    break
            return moved

    def _next_request(self, state: _LaneState) -> list[_Sent]:
        taken: list[_Sent] = []
        size = 0
        for one in state.unsent:
            size += one.size_bytes
            if not one.ready:
                break
            if taken and (size > self._settings.request_bytes_max or len(taken) == self._settings.request_parcels_max):
                break
            taken.append(one)
        return taken

    def _take_refusal(self, state: _LaneState, one: _Sent, refusal: NotStored) -> None:
        """What to do about a refusal, by its reason."""
        match refusal.reason:
            case "ahead":  # the node has less than we thought: it said so, and parcels are still in the spool
                self._rewind(state, refusal.expected or 0)
            case "unknown-lock":
                state.locks_sent.clear()
            case "not-advertised" | "permit-ended" if not self._holds_permits(state):
                self._seal_again(state)  # under a permit of an earlier process, which has ended
            case "permit-ended":
                self._leave_permits(state)
            case "not-advertised":
                for held in self._held:
                    self._carrier.advertise(held.grant.permit)
            case "quota":
                self._pause(Unavailable(refusal.message, retry_after_s=30.0))
            case "epoch-over":
                self._leave_epoch(state, one)
            case reason if reason in RIGHT_REASONS:
                self._give_up(state, Refused(refusal.message, reason=refusal.reason, hint=RIGHT_HINT))
            case _:
                self._fail_lane(state, Refused(refusal.message, reason=refusal.reason))

    def _rewind(self, state: _LaneState, expected: int) -> None:
        """Send again from `expected` on, if the spool still has it."""
        again = [one for one in state.stored if one.sequence >= expected]
        if not again or again[0].sequence != expected:
            self._fail_lane(state, Forged(f"the node lost parcel {expected}, which it had promised", reason="lost"))
            return
        for one in reversed(again):
            state.stored.remove(one)
            state.unsent.appendleft(one)

    def _fail_lane(self, state: _LaneState, error: TallystickError) -> None:
        """Nothing can follow a parcel that was refused for good: fail what waits, and go on in a new lane."""
        log.warning("lane %s ends: %s", state.lane.lane.hex()[:8], error)
        failed = self._end_lane(state)
        for one in failed:
            self._report(one.told, error, None)

    def _end_lane(self, state: _LaneState) -> list[_Sent]:
        """Let nothing count that waits in a lane, here and after a restart; what waited."""
        waiting = list(state.unsent)
        state.end = waiting[0].sequence if waiting else state.lane.sequence
        try:
            self._record(state)
        except Unavailable:
            state.end = None
            raise
        state.unsent.clear()
        state.retired = True
        with suppress(Unavailable):  # what cannot be deleted now does no harm
            for one in waiting:
                self._spool.forget(state.lane.lane, one.sequence)
            self._drop_if_done(state)
        return waiting

    def _drop_if_done(self, state: _LaneState) -> None:
        if state.retired and not state.unsent and not state.stored and state in self._lanes:
            self._spool.drop_lane(state.lane.lane)
            self._lanes.remove(state)

    def _holds_permits(self, state: _LaneState) -> bool:
        held = {one.permit.identifier for one in self._held}
        return all(topic.permit in held for topic in self._spooled(state, state.unsent[0]).header.topics)

    def _leave_permits(self, state: _LaneState) -> None:
        """A permit of ours was revoked: where the right was given back since, seal again under a new one."""
        try:
            self._held = [self._obtain(name) for name in self._names]
        except Refused as refusal:
            self._give_up(state, refusal)
        self._seal_again(state)

    def _give_up(self, state: _LaneState, error: Refused) -> NoReturn:
        """End for good: every further request without the right, heartbeats too, is held against whoever signs it."""
        self._fail_lane(state, error)
        raise error

    def _leave_epoch(self, state: _LaneState, one: _Sent) -> None:
        """The node no longer takes the epoch of a parcel, or not yet: seal again, once we know of another epoch."""
        refused = self._spooled(state, one).header.topics
        if self._is_current(refused):
            self.update_keys()
        if self._is_current(refused):
            raise Unavailable("the authority has not told us of the next epoch yet", retry_after_s=1.0)
        self._seal_again(state)

    def _is_current(self, topics: Sequence[TopicRef]) -> bool:
        epochs = {held.grant.token: held.epoch(self._now_ms).number for held in self._held}
        return all(epochs[topic.token] == topic.epoch for topic in topics)

    def _spooled(self, state: _LaneState, one: _Sent) -> Parcel:
        return Parcel.decode(self._spool.read(state.lane.lane, one.sequence))

    def _seal_again(self, state: _LaneState) -> None:
        """Open our own parcels that wait and seal their rows again, in a new lane that names the last head of the old.
        The old sequences are never sealed twice, and no row counts twice: the new lane is written whole before the old
        one is ended, which is one durable step. If this process dies before it, the next one finds that the old lane
        was not ended and drops the new one, of which nothing was sent."""
        fresh = self._open_lane(state)
        ring, keys = _OwnRing(state.secrets), self._identity.own_keys
        try:
            for one in state.unsent:
                self._seal_copy(fresh, verify_own(self._spooled(state, one), keys), ring, state.lane.schema, one)
            self._sync_sealed()
            self._end_lane(state)
        except Unsure:
            raise
        except Unavailable:
            self._spool.drop_lane(fresh.lane.lane)
            raise
        self._lanes.append(fresh)

    def _seal_copy(self, fresh: _LaneState, parcel: VerifiedParcel, ring: _OwnRing, schema: Schema, one: _Sent) -> None:
        now_ms = self._now_ms
        with self._sealing(fresh) as (lane, entropy):
            if parcel.header.kind is Kind.DATA:
                batch = open_batch(parcel, ring, schema).upgraded(lane.schema)
                copy = lane.seal(batch, now_ms=now_ms, entropy=entropy, write=parcel.header.write)
                self._spool_parcel(fresh, copy, one.rows, one.told)
            elif parcel.header.kind is Kind.COMMIT and parcel.header.write is not None:
                content = open_content(parcel, ring)
                copy = lane.seal_commit(content, now_ms=now_ms, entropy=entropy, write=parcel.header.write)
                self._spool_parcel(fresh, copy, 0, one.told)
            elif parcel.header.kind is Kind.GAP:
                gap = Gap.decode(open_content(parcel, ring))
                self._spool_parcel(fresh, lane.seal_gap(gap, now_ms=now_ms, entropy=entropy))

    # ── 4. Store, promise, anchor ────────────────────────────────────────────────────────────────────────────────

    def _take_promise(self, state: _LaneState, one: _Sent, outcome: Stored) -> None:
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
            self._delivered(state, one)

    def _check_promises(self, state: _LaneState, one: _Sent, promises: Sequence[Promise]) -> None:
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

    def _check_anchors(self) -> None:
        """Forget what the ledger vouches for: one proved anchor per partition, one path per parcel."""
        places = {(token, partition) for s in self._lanes for one in s.stored for token, partition, _ in one.offsets}
        for token, partition in sorted(places):
            anchor = self._view.value(b"anchor/" + token + partition.to_bytes(4, "big"))
            if anchor is None:
                continue
            size, root = anchor[0], anchor[1]
            waiting = [
                (state, one, offset)
                for state in self._lanes
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
                with self._lock:
                    self._anchored(state, one, (token, partition, offset))

    def _take_verdict(self, state: _LaneState, one: _Sent, place: tuple[bytes, int, int]) -> bool:
        """Nobody promised it, and something else is anchored there: whether the notary says that it refused it. Then
        nothing behind it counts either, and it is dealt with as a refusal."""
        reason = self._carrier.verdict(*place)
        if not reason:
            return False
        with self._lock:
            if one in state.stored:
                again = [other for other in state.stored if other.sequence >= one.sequence]
                for other in reversed(again):
                    state.stored.remove(other)
                    state.unsent.appendleft(other)
                self._take_refusal(state, one, NotStored(reason, f"the notary refused offset {place[2]}: {reason}"))
        return True

    def _accuse(self) -> None:
        """Bring a promise that no anchor kept to the ledger: the node signed it, and the contract can judge it."""
        if self._author is None:
            return
        now = self._clock.monotonic()
        for state in self._lanes:
            for one in state.stored:
                if one.promises and now - one.promised_at > self._settings.promise_s:
                    promise, one.promises = one.promises[0], ()
                    log.error("offset %d was promised and is not anchored", promise.offset)
                    try:
                        self._author.write(entries.broken_promise(promise))
                    except Refused as error:
                        log.warning("the ledger does not hold the promise broken: %s", error)

    def _anchored(self, state: _LaneState, one: _Sent, place: tuple[bytes, int, int]) -> None:
        """One topic's anchor covers the parcel; when all do, the copy may go."""
        if one not in state.stored:
            return
        anchored = self._anchored_places.setdefault((state.lane.lane, one.sequence), set())
        anchored.add(place)
        if anchored != set(one.offsets):
            return
        del self._anchored_places[state.lane.lane, one.sequence]
        state.stored.remove(one)
        self._spool.forget(state.lane.lane, one.sequence)
        if self._settings.acks == "anchored":
            self._delivered(state, one)
        self._drop_if_done(state)
        self._changed.notify_all()

    def _delivered(self, state: _LaneState, one: _Sent) -> None:
        delivery = Delivery(one.parcel, state.lane.lane, one.sequence, one.rows, one.offsets)
        self._report(one.told, None, delivery)

    def _report(self, told: _Told, error: TallystickError | None, delivery: Delivery | None) -> None:
        if self._on_delivery is not None:
            self._events.append((self._on_delivery, error, delivery))
        told.left -= 1
        if error is not None or told.left == 0:
            self._events.extend((callback, error, delivery) for callback in told.callbacks)
            told.callbacks = []
        self._changed.notify_all()

    # ── The caller's side ────────────────────────────────────────────────────────────────────────────────────────

    def poll(self, timeout_s: float = 0.0) -> int:
        """Serve delivery callbacks, in the caller's thread; how many."""
        if not self._threads:
            self.pump()
        with self._lock:
            if not self._events and timeout_s > 0 and self._threads:
                self._changed.wait(timeout_s)
            events, self._events = self._events, deque()
        for callback, error, delivery in events:
            callback(error, delivery)
        return len(events)

    def flush(self, timeout_s: float | None = None) -> int:
        """Wait until everything produced so far is delivered; how many parcels and rows are not."""
        deadline = None if timeout_s is None else self._clock.monotonic() + timeout_s
        with self._lock:
            self._cut_rows()
            self._changed.notify_all()
        while self._pending:
            self._check_failure()
            self.poll(0.05)
            if deadline is not None and self._clock.monotonic() >= deadline:
                break
        self.poll()
        return self._pending

    def update_keys(self, wait_ms: int = 0) -> bool:
        """Ask the authority for news of epochs and schemas; whether there was any."""
        news = False
        for number, held in enumerate(self._held):
            update = self._authority.keys(held.permit.identifier, held.grant.version, wait_ms)
            if update is not None:
                with self._lock:
                    self._held[number] = held.updated(update)
                if self._grants is not None and not self._stopping:
                    self._grants.save(self._held[number], self._names[number])
                news = True
        return news

    def close(self, timeout_s: float = 30.0) -> None:
        """Deliver what waits, seal a closing parcel in every lane, and stop. What could not be sent stays spooled."""
        self.flush(timeout_s)
        with self._lock:
            for state in self._lanes:
                if not state.retired and state.lane.sequence:
                    self._refresh_if_due(state)
                    with self._sealing(state) as (lane, entropy):
                        self._spool_parcel(state, lane.seal_close(now_ms=self._now_ms, entropy=entropy))
                    state.retired = True
            self._changed.notify_all()
        self.flush(timeout_s)
        self.stop()

    def stop(self) -> None:
        """Stop without a closing parcel; what waits stays in the spool, and the next publisher goes on with it."""
        with self._lock:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:  # and not the one that may be in a long poll
            thread.join()
        self._spool.close()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── The driver ───────────────────────────────────────────────────────────────────────────────────────────────

    def pump(self) -> bool:
        """One round of work: seal what is due, send, check anchors. Whether anything moved."""
        try:
            self._seal_step()
        except Unsure:
            raise  # no retry mends the spool
        except Unavailable as error:
            self._pause(error)
        return self._send_step()

    def _seal_part(self) -> bool:
        """A part of what waits, and then a moment without the lock: the sender must get at what is sealed."""
        sealed = self._seal_step(SEALED_AT_ONCE)
        if sealed:
            self._clock.pause(LET_GO_S)
        return sealed

    def _send_step(self) -> bool:
        """Send what is sealed, and check anchors; whether anything moved."""
        with self._pumping:
            try:
                if self._clock.monotonic() < self._not_before:
                    return False
                moved = False
                for state in list(self._lanes):
                    moved |= self._send_lane(state)
                if self._clock.monotonic() >= self._anchors_at and any(state.stored for state in self._lanes):
                    self._anchors_at = self._clock.monotonic() + self._settings.anchor_check_s
                    self._check_anchors()
                    self._accuse()
                return moved
            except Unsure:
                raise
            except Unavailable as error:
                self._pause(error)
                return False
            except Withheld as error:
                if error.reason != "stale-head":
                    raise
                self._pause(Unavailable(str(error)))  # the ledger stood still: what was promised is still spooled
                return False

    def _run(self, step: Callable[[], bool]) -> None:
        """A thread's loop: the sealer seals while the sender waits for the node."""
        while not self._stopping:
            try:
                moved = step()
            except TallystickError as error:
                if not isinstance(error, Unavailable) or isinstance(error, Unsure):
                    self._fail(error)
                    return
                self._pause(error)
                moved = False
            if not moved:
                with self._lock:
                    self._changed.wait(min(self._settings.linger_s, 0.05) or 0.01)

    def _follow_keys(self) -> None:
        while not self._stopping:
            try:
                self.update_keys(self._settings.keys_wait_ms)
            except TallystickError as error:
                log.info("no news of keys: %s", error)
                self._clock.pause(self._settings.retry_s)

    def _pause(self, error: Unavailable) -> None:
        wait_s = self._settings.retry_s if error.retry_after_s is None else error.retry_after_s
        log.info("waiting %.1f s: %s", wait_s, error)
        self._not_before = self._clock.monotonic() + wait_s

    def _fail(self, error: TallystickError) -> None:
        """Something that no retry mends: everybody who waits is told."""
        log.error("the publisher stops: %s", error)
        with self._lock:
            self._failure = error
            for state in self._lanes:
                for one in state.unsent:
                    self._report(one.told, error, None)
            self._changed.notify_all()

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _recover(self) -> list[_LaneState]:
        """Take up the spool of an earlier process: its lanes go on, its parcels are sent again."""
        self._anchored_places: dict[tuple[bytes, int], set[tuple[bytes, int, int]]] = {}
        tokens = [held.grant.token for held in self._held]
        kept = {name: self._kept_lane(name) for name in self._spool.lanes()}
        states = []
        for name, one in kept.items():
            if [topic.token for topic in one.lane.topics] != tokens:
                continue  # of another publisher that shares this folder
            old = kept.get(one.replaces) if one.replaces is not None else None
            if old is not None and old.end is None:
                self._spool.drop_lane(name)  # the old lane still counts: nothing of this one was sent
                continue
            state = _LaneState(one.lane, one.secrets, last_ms=self._now_ms, end=one.end, replaces=one.replaces)
            newest = self._spool.newest(name)
            state.retired = one.end is not None or (newest is not None and newest.header.kind is Kind.CLOSE)
            for sequence in self._spool.kept(name):
                if one.end is not None and sequence >= one.end:
                    self._spool.forget(name, sequence)
                    continue
                data = self._spool.read(name, sequence)
                header = Parcel.decode(data).header
                state.unsent.append(_Sent(sequence, header.hash, header.count, len(data), _Told([], 1), ready=True))
            states.append(state)
        done = [state for state in states if state.retired and not state.unsent]
        for state in done:
            self._spool.drop_lane(state.lane.lane)
        return [state for state in states if state not in done]

    def _kept_lane(self, name: bytes) -> KeptLane:
        newest = self._spool.newest(name)
        return KeptLane.decode(self._identity, self._spool.lane_record(name), None if newest is None else newest.header)

    @property
    def schema(self) -> Schema:
        """The newest version of the topics' schema, as far as the authority's news have come."""
        return self._held[0].schemas[-1]

    @property
    def _pending(self) -> int:
        """Rows and batches that wait, and parcels that are not delivered."""
        with self._lock:
            waiting = len(self._rows) + len(self._batches) + len(self._parts)
            for state in self._lanes:
                waiting += len(state.unsent) + (len(state.stored) if self._settings.acks == "anchored" else 0)
            return waiting

    @property
    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)


class _OwnRing:
    """The publisher's own lane keys, in the place of a reader's ring."""

    def __init__(self, secrets: Sequence[LaneSecrets]) -> None:
        self._keys = {(key.locks, group): key for one in secrets for group, key in enumerate(one.keys)}

    def lane_key(self, header: Header, group: int) -> LaneKey:
        return self._keys[header.groups[group].locks, group]


def _cut(batch: pa.RecordBatch, rows_max: int, bytes_max: int) -> list[pa.RecordBatch]:
    """Slices that fit a parcel even uncompressed."""
    per_row = max(1, batch.nbytes // max(1, batch.num_rows))
    rows = max(1, min(rows_max, bytes_max // per_row))
    pieces = []
    for first in range(0, batch.num_rows, rows):
        piece = batch.slice(first, rows)
        if piece.nbytes > bytes_max and piece.num_rows > 1:  # a few fat rows among thin ones
            pieces += _cut(piece, piece.num_rows // 2, bytes_max)
        elif piece.nbytes > bytes_max:
            raise Misuse(
                f"a record of {piece.nbytes} bytes does not fit a parcel of {bytes_max}",
                hint="store large objects elsewhere and publish their hash, or raise parcel_bytes_max",
            )
        else:
            pieces.append(piece)
    return pieces


def _deal(batch: Batch, lanes: int, key: str | None, turn: int) -> list[tuple[int, Batch]]:
    """The batch's rows for each lane: by key, or whole batches in turn."""
    if lanes == 1 or key is None:
        return [(turn % lanes, batch)]
    codes = batch.data.column(key).dictionary_encode()
    lane_of = [_lane_of(value, lanes) for value in codes.dictionary.to_pylist()]
    chosen: dict[int, list[int]] = {}
    for row, code in enumerate(codes.indices.to_pylist()):
        chosen.setdefault(0 if code is None else lane_of[code], []).append(row)
    return [(lane, Batch.of(batch.schema, batch.data.take(pa.array(rows)))) for lane, rows in sorted(chosen.items())]


def _lane_of(value: object, lanes: int) -> int:
    return int.from_bytes(sha256(repr(value).encode()).digest()[:8], "big") % lanes
