"""The publisher: rows in, sealed parcels out, and nothing forgotten before the ledger vouches for it.

The numbers are those of docs/life-of-a-record.md. Rows gather here (1). What becomes of them is decided in outbox.py;
one hand seals (2, `hands.Sealer`), the other sends past the guards (3) and holds what was stored to the ledger (4,
`hands.Sender`). Each hand has a thread of its own, or, with `background=False`, the caller's `poll` moves both
(`pump`), which is how simulations and tests drive it. `produce`, `poll`, `flush` and `on_delivery` behave as Kafka's
producer does; `send` takes columns.

Invariants: a parcel is in the spool, synced, before it is sent; a sequence of a lane is sealed once; a copy is
forgotten only when its inclusion under a verified anchor was checked.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import accumulate
from typing import Any

import pyarrow as pa

from tallystick.client.grants import Advertised, without_right
from tallystick.client.hands import Sealer, Sender
from tallystick.client.lane_keys import Labelling, OwnPolicy, PolicyText
from tallystick.client.outbox import (
    ChangePolicy,
    CloseLanes,
    Commit,
    Delivery,
    OnDelivery,
    Outbox,
    PublisherStatistics,
    Rows,
    SendingEffect,
    SendParcels,
    Spooled,
    Waiter,
)
from tallystick.client.settings import PublisherSettings
from tallystick.client.spool import RowsMark, Spool, UnsureSpool
from tallystick.client.ties import Ties
from tallystick.errors import Forged, Misuse, TallystickError, Unavailable, Withheld
from tallystick.policy.content import read_content
from tallystick.record.batch import Batch
from tallystick.record.gather import to_batches
from tallystick.record.schema import Schema
from tallystick.runtime.disk import Disk

__all__ = ["Delivery", "OnDelivery", "Publisher", "PublisherSettings"]

log = logging.getLogger(__name__)

_LAST_STEP_S = 0.2  # a hand that is idle needs some of it to hear that it ends


class Publisher:
    """Publishes rows of one schema to one topic, or to several at once.

    >>> with Publisher(session, "brakes", disk) as publisher:  # doctest: +SKIP
    ...     publisher.produce({"vin": "WVW…", "speed": 12.5})
    ...     publisher.flush()
    """

    def __init__(
        self,
        ties: Ties,
        topics: str | Sequence[str],
        disk: Disk,
        settings: PublisherSettings = PublisherSettings(),
        *,
        on_delivery: OnDelivery | None = None,
        background: bool = True,
    ) -> None:
        """The spool is on `disk`."""
        self.warnings: tuple[str, ...] = ()  # what its carrier has to say of the topics
        self._clock, self._settings = ties.clock, settings
        self._lock = threading.RLock()  # rows that gather, and the outbox; held for moments
        self._changed = threading.Condition(self._lock)
        self._rows: list[dict[str, Any]] = []
        self._row_callbacks: list[OnDelivery] = []
        self._since_ms = 0
        self._next_lane = 0
        self._advertised = Advertised(topics, ties)
        own = OwnPolicy.of(settings.policy, settings.hide_policy, self._advertised.held, self.schema)
        self._say(own)
        self._labelling = Labelling(self._advertised, ties.entropy)
        self._spool = Spool(disk, settings.spool_segment_bytes_max)
        self._outbox = Outbox(settings, self._advertised, on_delivery)
        self._sealer = Sealer(ties, self._advertised, self._labelling, self._spool, settings, background=background)
        self._sealer.own_policy = own
        self._sender = Sender(ties, self._advertised, self._spool, self._outbox)
        for lane in self._sealer.recover():
            self._outbox.recover(*lane, now=self._clock.monotonic())
        self._stopping = False
        self._threads: list[threading.Thread] = []
        if background:
            self._threads = [
                _started("publisher seals", self._run, self._seal_next, lambda: self._outbox.has_orders),
                _started("publisher sends", self._run, self._send_round, lambda: self._outbox.unsynced() is not None),
            ]
            if settings.keys_wait_ms:
                _started("publisher keys", self._follow_keys)

    @property
    def tokens(self) -> list[bytes]:
        """Of its topics."""
        return [one.grant.token for one in self._advertised.held]

    def _say(self, own: OwnPolicy | None) -> None:
        """To a carrier that matches: what will be published, and who may get it."""
        schema, content = self.schema, self._settings.content
        policy = b"" if own is None else own.for_routing(schema, self._advertised.held)
        self._advertised.say(read_content(content, schema.arrow).encode() if content else b"", policy)

    # ── 1. Gather ────────────────────────────────────────────────────────────────────────────────────────────────

    def produce(self, row: dict[str, Any], on_delivery: OnDelivery | None = None) -> None:
        """Take one row; it is checked against the schema when its batch is cut, at the latest by `flush`."""
        with self._lock:
            if not self._make_room(1):
                return
            if not self._rows:
                self._since_ms = self._now_ms
            self._rows.append(row)
            if on_delivery is not None:
                self._row_callbacks.append(on_delivery)
            if len(self._rows) >= self._settings.batch_rows_max:
                self._cut_rows()
                self._changed.notify_all()

    def send(self, rows: Any, on_delivery: OnDelivery | None = None, *, mark: str | None = None) -> None:
        """Take many rows at once: a list of dicts, Arrow, pandas, polars, or a dict of columns. After a crash the spool
        has the `mark` of the last rows that were sealed (`Spool.marked`), and how many of those sent with it were."""
        schema = self.schema
        batch = to_batches(rows, schema.arrow)  # without the lock: what came before is sealed meanwhile
        with self._lock:
            self._cut_rows()
            if batch.num_rows and self._make_room(batch.num_rows):
                self._take(batch, schema, [on_delivery] if on_delivery is not None else [], mark)
                self._changed.notify_all()

    def _cut_rows(self) -> None:
        """Turn waiting rows into a batch; a row that does not fit is a `Misuse` at the caller's own line."""
        if not self._rows:
            return
        rows, callbacks = self._rows, self._row_callbacks
        self._rows, self._row_callbacks = [], []
        schema = self.schema
        self._take(to_batches(rows, schema.arrow), schema, callbacks)

    def _take(
        self, batch: pa.RecordBatch, schema: Schema, callbacks: list[OnDelivery], mark: str | None = None
    ) -> None:
        """Cut to parcels' size, deal to lanes and order; rows that share labels stay together."""
        settings, waiter, orders = self._settings, Waiter(callbacks), list[Rows]()
        groups = self._labelling.grouped(batch)
        for group in groups:
            for piece, size in _cut(group, settings.batch_rows_max, settings.parcel_bytes_max):
                for number, part in _deal(Batch.of(schema, piece), settings, self._next_lane):
                    orders.append(Rows(number, part, size * part.rows // piece.num_rows, waiter))
                self._next_lane += 1
        waiter.left = len(orders)
        if mark is not None:
            in_order = len(groups) == 1 and (settings.lanes == 1 or settings.key is None)
            sealed = [*accumulate(one.batch.rows for one in orders)]
            for one, rows in zip(orders, sealed, strict=True):
                one.mark = RowsMark(mark, rows if in_order or rows == batch.num_rows else -1)
        self._outbox.order(*orders)

    def _make_room(self, rows: int) -> bool:
        """Whether so many rows may come: waits while the spool is full, or drops them where gaps are wanted. Rows that
        wait because the spool's disk takes no more count as well."""
        self._check_failure()
        while self._spool.size_bytes + self._outbox.waiting_bytes >= self._settings.spool_bytes_max:
            if self._settings.when_full == "gap":
                self._outbox.drop(rows, self._now_ms)
                return False
            if not self._threads:
                raise Unavailable("the spool is full", retry_after_s=self._settings.retry_s, hint="call poll")
            self._changed.wait(0.1)
            self._check_failure()
        return True

    # ── The caller's side ────────────────────────────────────────────────────────────────────────────────────────

    def commit(self, content: bytes, on_delivery: OnDelivery | None = None) -> None:
        """Seal the commit parcel of this publisher's write (parcel/commit.py). When this returns it is spooled, and
        will be sent, by this process or the next."""
        if self._settings.write is None:
            raise Misuse("only the publisher of a write commits", hint="set write")
        order = Commit(content, Waiter([on_delivery] if on_delivery is not None else []))
        with self._telling():
            self._outbox.order(order)
        try:
            while not self._is_kept(order):
                pass
        except TallystickError:
            with self._lock:
                self._outbox.withdraw(order)
            raise

    def _is_kept(self, order: Commit) -> bool:
        """Whether a commit is durable; waits a little for it, or without threads seals it."""
        with self._lock:
            if self._outbox.is_kept(order):
                return True
            self._check_failure()
            if self._threads:
                self._changed.wait(0.05)
        if not self._threads:
            self._seal_step()
        return False

    def last_commit(self) -> tuple[bytes, int] | None:
        """The write and batch of the last commit parcel that was sealed here, by whichever process; as far as no other
        parcel followed it."""
        return self._sealer.last_commit()

    def set_policy(self, policy: PolicyText | None, *, hide: bool | None = None) -> None:
        """Say anew who may open: a formula over attributes, formulas by column, or None. What was produced before is
        sealed under the old policy first. Raises `Misuse` for one that cannot be, and then nothing changes."""
        hide = self._settings.hide_policy if hide is None else hide
        own = OwnPolicy.of(policy, hide, self._advertised.held, self.schema)
        with self._telling():
            self._cut_rows()
            self._outbox.order(ChangePolicy(own))
        self._say(own)

    def poll(self, timeout_s: float = 0.0) -> int:
        """Serve delivery callbacks, in the caller's thread. Returns how many there were."""
        if not self._threads:
            self.pump()
        with self._lock:
            if not self._outbox.reports and timeout_s > 0 and self._threads:
                self._changed.wait(timeout_s)
            reports, self._outbox.reports = self._outbox.reports, []
        for callback, error, delivery in reports:
            callback(error, delivery)
        return len(reports)

    def flush(self, timeout_s: float | None = None) -> int:
        """Wait until everything produced so far is delivered. Returns how many parcels and rows are not."""
        deadline = None if timeout_s is None else self._clock.monotonic() + timeout_s
        with self._telling():
            self._cut_rows()
        while self._pending:
            self._check_failure()
            self.poll(0.05)
            if deadline is not None and self._clock.monotonic() >= deadline:
                break
        self.poll()
        return self._pending

    def update_keys(self, wait_ms: int = 0) -> bool:
        """Ask the authority for news of epochs and schemas. Returns whether there was any."""
        return self._advertised.update(wait_ms)

    def statistics(self) -> PublisherStatistics:
        """What waits where, and what happened so far."""
        with self._lock:
            return self._outbox.statistics(len(self._rows), self._spool.size_bytes)

    def close(self, timeout_s: float = 30.0) -> None:
        """Deliver what waits, seal a closing parcel in every lane, and stop, all in `timeout_s`. What could not be sent
        stays spooled."""
        until = self._clock.monotonic() + timeout_s
        self.flush(timeout_s)
        with self._telling():
            self._outbox.order(CloseLanes())
        self.flush(max(0.0, until - self._clock.monotonic()))
        self.stop(max(0.0, until - self._clock.monotonic()))

    def stop(self, timeout_s: float | None = None) -> None:
        """Stop without a closing parcel; what waits stays in the spool, and the next publisher goes on with it. A
        request that is under way is waited for, but no longer than `timeout_s`: what it sends, the next one may send
        again."""
        with self._telling():
            self._stopping = self._advertised.closed = True
        if self._threads:  # and not the one that may be in a long poll
            sealing, sending = self._threads
            sealing.join()
            sending.join(None if timeout_s is None else max(timeout_s, _LAST_STEP_S))
        self._sealer.close()
        self._spool.sync()
        if not any(thread.is_alive() for thread in self._threads):
            self._spool.close()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── The driver ───────────────────────────────────────────────────────────────────────────────────────────────

    def pump(self) -> bool:
        """One round of work: seal what is due, send, check anchors, and deal with what was refused. Whether anything
        moved."""
        with self._patience():
            self._seal_step()
        moved = False
        with self._patience():
            moved = self._send_round()
        if self._outbox.remedies:
            with self._patience():
                self._seal_step()
        self._check_failure()
        return moved

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """Wait out what the world denies for now. An unsure spool is raised: no retry mends it."""
        try:
            yield
        except UnsureSpool:
            raise
        except Unavailable as error:
            self._pause(error)
        except Withheld as error:
            if error.reason != "stale-head":
                raise
            self._pause(Unavailable(str(error)))  # the ledger stood still: what was promised is still spooled

    def _pause(self, error: Unavailable) -> None:
        with self._lock:
            self._outbox.pause(error, self._clock.monotonic())

    def _seal_step(self) -> None:
        """Seal what is due and make it durable in the spool."""
        try:
            while self._seal_next():
                pass
        finally:
            with self._lock:
                effect = self._outbox.unsynced()
            if effect is not None:
                self._send_next(effect)

    def _seal_next(self) -> bool:
        """The sealing hand's next effect; whether there was one."""
        with self._lock:
            if self._rows and self._now_ms - self._since_ms >= self._settings.linger_s * 1000:
                self._cut_rows()
            has_room = self._spool.size_bytes < self._settings.spool_bytes_max
            effect = self._outbox.next_seal(self._clock.monotonic(), has_room=has_room)
        if effect is None:
            return False
        sealed: list[Spooled] = []
        failure: TallystickError | None = None
        try:
            self._sealer.carry_out(effect, sealed)
        except TallystickError as error:
            failure = error
        with self._telling():
            self._outbox.sealed(effect, sealed, self._clock.monotonic(), failure)
        if failure is not None and not isinstance(effect, Commit):  # its caller is told
            raise failure
        return True

    def _send_round(self) -> bool:
        """What the sending hand has to do, with one request for each lane. Whether anything was stored."""
        before, served = self._outbox.counts["stored"], set[bytes]()
        while True:
            with self._lock:
                effect = None if self._stopping else self._outbox.next_send(self._clock.monotonic(), served)
            if effect is None:
                return self._outbox.counts["stored"] > before
            self._send_next(effect)
            if isinstance(effect, SendParcels):
                served.add(effect.lane)

    def _send_next(self, effect: SendingEffect) -> None:
        """Carry out an effect of the sending hand, and tell what came of it."""
        tell = self._sender.carry_out(effect)
        with self._telling():
            tell()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Tell the outbox what came of an effect, and whoever waits that something did."""
        with self._lock:
            yield
            self._changed.notify_all()

    def _run(self, step: Callable[[], bool], is_due: Callable[[], bool]) -> None:
        """A hand's thread. `is_due` is asked under the lock: what came between the step and the waiting is not waited
        for."""
        while not self._stopping:
            moved: bool | None = None  # None: the world denied something
            try:
                with self._patience():
                    moved = step()
            except TallystickError as error:  # no retry mends it, whichever hand met it first
                with self._telling():
                    self._outbox.fail(without_right(error) or error)
            with self._lock:
                if self._outbox.failure is not None:
                    return
                if moved is None or not (moved or is_due()):
                    self._changed.wait(min(self._settings.linger_s, 0.05) or 0.01)

    def _follow_keys(self) -> None:
        while not self._stopping:
            try:
                self.update_keys(self._settings.keys_wait_ms)
            except Forged as error:  # the authority itself gives out a wrong key: nothing more is sealed
                with self._telling():
                    self._outbox.fail(error)
                return
            except TallystickError as error:
                log.info("no news of keys: %s", error)
                self._clock.pause(self._settings.retry_s)

    def _check_failure(self) -> None:
        if self._outbox.failure is not None:
            raise self._outbox.failure

    @property
    def schema(self) -> Schema:
        """The newest version of the topics' schema, as far as the authority's news have come."""
        return self._advertised.schema

    @property
    def _pending(self) -> int:
        """Rows and orders that wait, and parcels that are not delivered."""
        with self._lock:
            return len(self._rows) + self._outbox.pending

    @property
    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)


def _started(name: str, work: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
    thread.start()
    return thread


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
            hint="put it into an object and publish its reference (session.objects.put, tally object put), "
            "or raise parcel_bytes_max",
        )
    half = rows // 2
    if half > rows_max:
        half -= half % rows_max  # or a short parcel would stand in the middle
    return _cut(batch.slice(0, half), rows_max, bytes_max) + _cut(batch.slice(half), rows_max, bytes_max)


def _deal(batch: Batch, settings: PublisherSettings, turn: int) -> list[tuple[int, Batch]]:
    """The batch's rows for each lane: by key, or whole batches in turn."""
    lanes, key = settings.lanes, settings.key
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
