"""The publisher: rows in, sealed parcels out, and nothing forgotten before the ledger vouches for it.

The numbers are those of docs/life-of-a-record.md: rows gather here (1), are sealed (2, sealing.py), sent past the
guards (3, sending.py) and held to the ledger (4, anchoring.py); lanes.py has what waits in between. `produce`, `poll`,
`flush` and `on_delivery` behave as Kafka's producer does; `send` takes columns. Background threads do the work; with
`background=False` the caller's `poll` does (`pump`), which is how simulations and tests drive it.

Invariants: a parcel is in the spool, synced, before it is sent; a sequence of a lane is sealed once; a copy is
forgotten only when its inclusion under a verified anchor was checked.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import sha256
from math import inf
from typing import Any

import pyarrow as pa

from tallystick.carriers.carrier import Carrier
from tallystick.client.advertised import Advertised, KeySource
from tallystick.client.anchoring import Anchoring
from tallystick.client.author import Author
from tallystick.client.deliveries import Delivery, OnDelivery, Reports, Told
from tallystick.client.grants import Grants
from tallystick.client.identity import Identity
from tallystick.client.keeper import without_right
from tallystick.client.labelling import Labelling
from tallystick.client.lanes import Lanes
from tallystick.client.packing import AHEAD, Packer
from tallystick.client.policies import OwnPolicy, PolicyText
from tallystick.client.sealing import Sealer
from tallystick.client.sending import Sender
from tallystick.client.settings import PublisherSettings
from tallystick.client.spool import Spool, Unsure
from tallystick.client.view import View
from tallystick.errors import Misuse, TallystickError, Unavailable, Withheld
from tallystick.parcel.header import Kind
from tallystick.parcel.seal import Gap, Packed
from tallystick.record.batch import Batch
from tallystick.record.gather import to_batches
from tallystick.record.schema import Schema
from tallystick.runtime.clock import Clock
from tallystick.runtime.disk import Disk
from tallystick.runtime.entropy import Entropy

__all__ = ["Delivery", "OnDelivery", "Publisher", "PublisherSettings"]

log = logging.getLogger(__name__)

HELD_S = 0.02  # how long the sealer keeps its turn, some parcels: who commits, or deals with a refusal, waits so long
LET_GO_S = 0.0002  # a lock that is taken again at once is never handed over


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
        authority: KeySource,
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
        self._clock, self._settings = clock, settings
        self._turn = threading.RLock()  # to seal: lanes and their keys. Taken before the lock, never under it
        self._lock = threading.RLock()  # rows, batches and parcels that wait; held for moments
        self._changed = threading.Condition(self._lock)
        self._pumping = threading.Lock()
        self._rows: list[dict[str, Any]] = []
        self._row_callbacks: list[OnDelivery] = []
        self._since_ms = 0
        self._batches: deque[tuple[Batch, int, Told]] = deque()  # cut, with its bytes, not yet dealt to lanes
        # Dealt to the lane of this number, and packed or about to be; not yet sealed.
        self._parts: deque[tuple[int, Batch, Callable[[], Packed], int, Told]] = deque()
        self._waiting_bytes = 0  # of both
        self._dropped = [0, 0, 0]  # rows, from ms, to ms
        self._next_lane = 0
        self._not_before = 0.0  # no sending before: the node asked for a pause
        self._anchors_at = 0.0
        self._failure: TallystickError | None = None
        self._advertised = Advertised(topics, carrier, authority, grants, self._lock)
        self._spool = spool = Spool(disk, settings.spool_segment_bytes_max)
        self._lanes = lanes = Lanes(identity, spool, entropy, self._advertised.tokens, self._now_ms)
        self._reports = Reports(on_delivery, self._changed)
        self._labelling = labelling = Labelling(self._advertised, entropy)
        self._sealer = Sealer(
            identity, self._advertised, labelling, lanes, spool, view, clock, entropy, settings, self._lock
        )
        self._sealer.own_policy = self._own_policy(settings.policy, settings.hide_policy)
        self._sender = Sender(
            identity,
            carrier,
            self._advertised,
            lanes,
            spool,
            self._sealer,
            self._reports,
            self._turn,
            self._lock,
            clock,
            settings,
            self._pause,
        )
        self._anchoring = Anchoring(
            carrier, view, author, lanes, spool, self._sender, self._turn, self._changed, clock, settings
        )
        self._packer = Packer(settings.codec, background=background)
        self._stopping = False
        self._threads: list[threading.Thread] = []
        if background:
            self._start()

    def _start(self) -> None:
        def seals() -> bool:
            return self._has_batches

        def sends() -> bool:
            return self._sealer.has_unsynced

        self._threads = [
            threading.Thread(target=self._run, args=(self._seal_part, seals), name="publisher seals", daemon=True),
            threading.Thread(target=self._run, args=(self._send_step, sends), name="publisher sends", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        if self._settings.keys_wait_ms:
            threading.Thread(target=self._follow_keys, name="publisher keys", daemon=True).start()

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
        schema = self.schema
        batch = to_batches(rows, schema.arrow)  # without the lock: what came before is sealed meanwhile
        with self._lock:
            self._cut_rows()
            if batch.num_rows == 0:
                return
            if not self._make_room():
                self._drop(batch.num_rows)
                return
            self._take(batch, schema, [on_delivery] if on_delivery is not None else [])
            self._changed.notify_all()

    def _cut_rows(self) -> None:
        """Turn waiting rows into a batch; a row that does not fit is a `Misuse` at the caller's own line."""
        if not self._rows:
            return
        rows, callbacks = self._rows, self._row_callbacks
        self._rows, self._row_callbacks = [], []
        schema = self.schema
        self._take(to_batches(rows, schema.arrow), schema, callbacks)

    def _take(self, batch: pa.RecordBatch, schema: Schema, callbacks: list[OnDelivery]) -> None:
        """Cut to parcels' size and queue; rows that share labels stay together."""
        rows_max, bytes_max = self._settings.batch_rows_max, self._settings.parcel_bytes_max
        pieces = [piece for group in self._labelling.grouped(batch) for piece in _cut(group, rows_max, bytes_max)]
        told = Told(callbacks, len(pieces))
        for piece, size in pieces:
            self._batches.append((Batch.of(schema, piece), size, told))
            self._waiting_bytes += size

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

    def _seal_step(self) -> bool:
        """Seal what is due and make it durable in the spool; whether anything was sealed."""
        with self._turn, self._lock:
            try:
                self._seal_waiting()
            finally:
                sealed = self._sealer.sync()
            return sealed

    def _seal_waiting(self, until: float = inf) -> None:
        """Seal what is due into lanes, and write it to the spool; what is left when time is up waits for the next."""
        with self._lock:
            if self._rows and self._now_ms - self._since_ms >= self._settings.linger_s * 1000:
                self._cut_rows()
            self._seal_gap()
        while self._has_batches and self._clock.monotonic() < until:
            with self._lock:
                while self._batches and len(self._parts) < AHEAD:
                    self._deal_next()
                number, part, packed, size, told = self._parts[0]
            self._sealer.seal_rows(number, part, packed, told)
            with self._lock:
                self._parts.popleft()
                self._waiting_bytes -= size
        with self._lock:
            self._sealer.seal_heartbeats()

    def _deal_next(self) -> None:
        """Deal the rows of the next batch to lanes."""
        batch, size, told = self._batches.popleft()
        parts = _deal(batch, self._settings.lanes, self._settings.key, self._next_lane)
        self._next_lane += 1
        told.left += len(parts) - 1
        shares = [size * part.rows // batch.rows for _, part in parts]
        shares[0] += size - sum(shares)
        for (lane, part), share in zip(parts, shares, strict=True):
            self._parts.append((lane, part, self._packer.pack(part, share), share, told))

    def _seal_gap(self) -> None:
        rows, from_ms, to_ms = self._dropped
        if not rows or self._spool.size_bytes >= self._settings.spool_bytes_max:
            return
        self._sealer.seal_gap(Gap(rows, from_ms, to_ms, "spool full"))
        self._dropped = [0, 0, 0]

    def commit(self, content: bytes, on_delivery: OnDelivery | None = None) -> None:
        """Seal the commit parcel of this publisher's write (parcel/commit.py). When this returns it is spooled, and
        will be sent, by this process or the next."""
        with self._turn, self._lock:
            self._sealer.seal_commit(content, Told([on_delivery] if on_delivery is not None else [], 1))
            self._changed.notify_all()

    def last_commit(self) -> tuple[bytes, int] | None:
        """The write and batch of the last commit parcel that was sealed here, by whichever process; as far as no other
        parcel followed it."""
        with self._lock:
            for state in self._lanes.active:
                newest = self._spool.newest(state.lane.lane)
                if newest is not None and newest.header.kind is Kind.COMMIT:
                    return newest.header.write
        return None

    def set_policy(self, policy: PolicyText | None, *, hide: bool | None = None) -> None:
        """Say anew who may open: a formula over attributes, formulas by column, or None. What was produced before is
        sealed under the old policy first; raises `Misuse` for one that cannot be, and then nothing changes."""
        with self._turn, self._lock:
            own = self._own_policy(policy, self._settings.hide_policy if hide is None else hide)
            self._cut_rows()
            self._seal_step()
            self._sealer.own_policy = own

    def _own_policy(self, policy: PolicyText | None, hide: bool) -> OwnPolicy | None:
        return OwnPolicy.of(policy, hide, self._advertised.held, self.schema)

    # ── The caller's side ────────────────────────────────────────────────────────────────────────────────────────

    def poll(self, timeout_s: float = 0.0) -> int:
        """Serve delivery callbacks, in the caller's thread; how many."""
        if not self._threads:
            self.pump()
        with self._lock:
            if not self._reports and timeout_s > 0 and self._threads:
                self._changed.wait(timeout_s)
            events = self._reports.take()
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
        return self._advertised.update(wait_ms)

    def close(self, timeout_s: float = 30.0) -> None:
        """Deliver what waits, seal a closing parcel in every lane, and stop. What could not be sent stays spooled."""
        self.flush(timeout_s)
        with self._turn, self._lock:
            self._sealer.seal_closes()
            self._changed.notify_all()
        self.flush(timeout_s)
        self.stop()

    def stop(self) -> None:
        """Stop without a closing parcel; what waits stays in the spool, and the next publisher goes on with it."""
        with self._lock:
            self._stopping = self._advertised.closed = True
            self._changed.notify_all()
        for thread in self._threads:  # and not the one that may be in a long poll
            thread.join()
        self._packer.close()
        self._sealer.sync()
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
        """A part of what waits, and then a moment in which somebody else may have the turn. Whether something is
        left."""
        with self._turn:
            self._seal_waiting(self._clock.monotonic() + HELD_S)
        with self._lock:
            left = self._has_batches
            if self._sealer.has_unsynced:
                self._changed.notify_all()
        if left:
            self._clock.pause(LET_GO_S)
        return left

    @property
    def _has_batches(self) -> bool:
        return bool(self._parts or self._batches)

    def _send_step(self) -> bool:
        """Make durable what is sealed, send it, and check anchors; whether anything moved."""
        with self._pumping:
            self._sealer.sync()
            try:
                if self._clock.monotonic() < self._not_before:
                    return False
                moved = False
                for state in list(self._lanes.states):
                    moved |= self._sender.send_lane(state)
                if self._clock.monotonic() >= self._anchors_at and any(state.stored for state in self._lanes.states):
                    self._anchors_at = self._clock.monotonic() + self._settings.anchor_check_s
                    self._anchoring.check()
                    self._anchoring.accuse()
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

    def _run(self, step: Callable[[], bool], is_due: Callable[[], bool]) -> None:
        """A thread's loop: the sealer seals while the sender waits for the disk and the node. `is_due` is asked under
        the lock: what came between the step and the waiting is not waited for."""
        while not self._stopping:
            failed = False
            try:
                moved = step()
            except TallystickError as error:
                if not isinstance(error, Unavailable) or isinstance(error, Unsure):
                    self._fail(error)
                    return
                self._pause(error)
                moved, failed = False, True
            with self._lock:
                if failed or not (moved or is_due()):
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
        error = without_right(error) or error  # whichever step met it first
        log.error("the publisher stops: %s", error)
        with self._lock:
            self._failure = error
            for state in self._lanes.states:
                for one in state.unsent:
                    self._reports.report(one.told, error, None)
            self._changed.notify_all()

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    @property
    def schema(self) -> Schema:
        """The newest version of the topics' schema, as far as the authority's news have come."""
        return self._advertised.schema

    @property
    def _pending(self) -> int:
        """Rows and batches that wait, and parcels that are not delivered."""
        with self._lock:
            waiting = len(self._rows) + len(self._batches) + len(self._parts)
            for state in self._lanes.states:
                waiting += len(state.unsent) + (len(state.stored) if self._settings.acks == "anchored" else 0)
            return waiting

    @property
    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)


def _cut(batch: pa.RecordBatch, rows_max: int, bytes_max: int) -> list[tuple[pa.RecordBatch, int]]:
    """Slices that fit a parcel even uncompressed, each with its bytes, about.

    What Arrow says of a slice's bytes takes as long as encrypting it, so it is asked of halves, as long as they are too
    large, and not of every slice: what is cut from a part that fits, fits.
    """
    rows, size = batch.num_rows, batch.nbytes
    if size <= bytes_max:
        per_row = size / max(1, rows)
        pieces = [batch.slice(first, rows_max) for first in range(0, rows, rows_max)]
        return [(piece, int(per_row * piece.num_rows)) for piece in pieces]
    if rows == 1:
        raise Misuse(
            f"a record of {size} bytes does not fit a parcel of {bytes_max}",
            hint="store large objects elsewhere and publish their hash, or raise parcel_bytes_max",
        )
    half = rows // 2
    if half > rows_max:
        half -= half % rows_max  # or a short parcel would stand in the middle
    return _cut(batch.slice(0, half), rows_max, bytes_max) + _cut(batch.slice(half), rows_max, bytes_max)


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
