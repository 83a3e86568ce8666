"""Erasure: key pairs that can be destroyed, one per (topic, publisher, period), for topics that say *erasable*.

Threat: data that must be forgotten but lies in an append-only log. Its lane keys need a second secret, sealed to a
pair that only the authority keeps; without it body and salts are lost while roots and receipts still verify.
Destroying is one SQLite transaction that overwrites the wrapped private half and queues the ledger's entry; a store
restored from an older backup applies the ledger's entries before it serves.

What is outside: whoever was handed the private half or opened the records, and backups. `erase` lists both: for each
permit the store remembers the highest key number that was handed out, for each backup the highest it holds.

A period's number is the second at which it was drawn (or one more than the last), not a count: a restored store must
not give a number a second key, and the ledger does not know the numbers that were never erased.
"""

from __future__ import annotations

from dataclasses import dataclass

from tallystick.authority.answers import Caller, Erased, erasure_key_name
from tallystick.authority.core import Core
from tallystick.authority.topics import Topics
from tallystick.crypto import hpke
from tallystick.errors import Misuse, Refused
from tallystick.ledger import entries
from tallystick.ledger.contracts.epochs import ERASURES
from tallystick.trust.permit import Operation

_RESTORE_GAP = 3600  # numbers skipped after a restore: more than were drawn ahead of the clock


@dataclass(frozen=True)
class ErasureKey:
    number: int
    publisher: bytes
    period: int
    public: bytes
    secret: bytes  # wrapped
    begins_ms: int
    ends_ms: int
    changed: int


class Erasure:
    def __init__(self, core: Core, topics: Topics) -> None:
        self._core, self._store, self._topics = core, core.store, topics

    def prepare(self, token: bytes, publisher: bytes) -> None:
        """Draw the publisher's current period and those ahead; inside the caller's transaction."""
        core, period_ms = self._core, self._core.settings.erasure_period_s * 1000
        living = core.store.rows(
            "SELECT begins_ms, ends_ms FROM erasure_keys"
            " WHERE token = ? AND publisher = ? AND secret IS NOT NULL AND ends_ms > ? ORDER BY begins_ms",
            (token, publisher, core.now_ms),
        )
        if not living or living[0][0] > core.now_ms:  # none yet, or the current one was erased
            end_ms = living[0][0] if living else core.now_ms + period_ms
            self._draw(token, publisher, core.now_ms, end_ms)
            living = living or [(core.now_ms, end_ms)]
        end_ms = living[-1][1]
        while end_ms <= core.now_ms + core.settings.erasure_ahead * period_ms:
            self._draw(token, publisher, end_ms, end_ms + period_ms)
            end_ms += period_ms

    def _draw(self, token: bytes, publisher: bytes, begins_ms: int, ends_ms: int) -> None:
        core = self._core
        known = "SELECT max(period) FROM erasure_keys WHERE token = ? AND publisher = ?"
        last = core.store.scalar(known, (token, publisher))
        floor = int.from_bytes(core.store.meta("period_floor") or b"", "big")
        period = max(core.now_ms // 1000, floor, (last or 0) + 1)
        private = hpke.PrivateKey.generate(core.entropy.bytes(32))
        public = private.public.encode()
        place = _place(publisher, period, public)
        secret = core.keys.master.wrap_key_pair(token, place, private.encode(), core.entropy)
        times = {"begins_ms": begins_ms, "ends_ms": ends_ms}
        self._insert(token, publisher=publisher, period=period, public=public, secret=secret, **times)
        core.announce_key(token, erasure_key_name(publisher, period), public)

    def announce_all(self) -> None:
        """Announce every key that may still be sealed to; inside the caller's transaction."""
        living = "secret IS NOT NULL AND erased = 0 AND ends_ms > ?"
        rows = self._store.rows(
            f"SELECT token, publisher, period, public FROM erasure_keys WHERE {living} ORDER BY number",  # noqa: S608
            (self._core.now_ms,),
        )
        for token, publisher, period, public in rows:
            self._core.announce_key(token, erasure_key_name(publisher, period), public)

    def _insert(self, token: bytes, **columns: bytes | int) -> None:
        self._store.insert("erasure_keys", token=token, changed=self._core.touch(token), **columns)

    def keys(self, token: bytes, seen: int, publisher: bytes | None = None) -> list[ErasureKey]:
        """The living pairs of a topic (or of one publisher on it) that changed since `seen`, oldest change first."""
        rows = self._store.rows(
            "SELECT number, publisher, period, public, secret, begins_ms, ends_ms, changed FROM erasure_keys"
            " WHERE token = ? AND changed > ? AND erased = 0 AND secret IS NOT NULL AND (? IS NULL OR publisher = ?)"
            " ORDER BY changed LIMIT ?",
            (token, seen, publisher, publisher, self._core.limits.erasure_keys_max),
        )
        return [ErasureKey(*row) for row in rows]

    def erased(self, token: bytes, seen: int) -> list[tuple[bytes, int]]:
        """(publisher, period) destroyed since `seen`."""
        erased = "token = ? AND changed > ? AND erased != 0 ORDER BY changed"
        return self._store.rows(f"SELECT publisher, period FROM erasure_keys WHERE {erased}", (token, seen))  # noqa: S608

    def seed(self, token: bytes, key: ErasureKey) -> bytes:
        """The private half. Raises `CannotOpen` if the row was moved or its public half exchanged."""
        return self._core.keys.master.unwrap_key_pair(token, _place(key.publisher, key.period, key.public), key.secret)

    # --- destroying ---

    def destroy(
        self, caller: Caller, token: bytes, publisher: bytes, periods: tuple[int, ...]
    ) -> tuple[Erased, int | None]:
        """Destroy the pairs of these periods, or all of the publisher's if none is named. Returns what was done, and
        its place in the queue."""
        if not self._topics.require_owned(caller, token).erasable:
            raise Refused(f"topic {token.hex()} is not erasable", reason="not-erasable")
        if len(periods) > self._core.limits.periods_max:
            raise Misuse(f"at most {self._core.limits.periods_max} periods at once")
        with self._store.transaction():
            all_of = "SELECT number, period, erased FROM erasure_keys WHERE token = ? AND publisher = ? ORDER BY period"
            rows = self._store.rows(all_of, (token, publisher))
            wanted = [row for row in rows if not periods or row[1] in periods]
            missing = set(periods) - {row[1] for row in wanted}
            if missing or not wanted:
                raise Refused("the publisher has no such period on this topic", reason="unknown-period")
            # The number of one destroyed before is still told: the answer may have been lost.
            first = wanted[0][0]
            fresh = [period for _, period, erased in wanted if not erased]
            for period in fresh:
                self._destroy(token, publisher, period)
            place = self._core.queue([entries.erase(token, publisher, one) for one in fresh]) if fresh else None
        done = tuple((publisher, period) for _, period, _ in wanted)
        handed = "SELECT DISTINCT principal FROM permits WHERE token = ? AND operation = ? AND handed >= ?"
        holders = self._store.column(f"{handed} ORDER BY principal", (token, int(Operation.SUBSCRIBE), first))
        backups = self._store.column("SELECT id FROM backups WHERE last_key >= ? ORDER BY time_ms", (first,))
        return Erased(done, holders, backups), place

    def _destroy(self, token: bytes, publisher: bytes, period: int) -> None:
        """Overwrite both halves; the number stays taken."""
        place, changed = {"token": token, "publisher": publisher, "period": period}, self._core.touch(token)
        self._store.update("erasure_keys", place, public=None, secret=None, erased=1, changed=changed)

    # --- what the ledger says ---

    def apply(self, token: bytes, publisher: bytes, period: int) -> None:
        """Destroy what the ledger says is destroyed, whoever it was that did it."""
        if self._core.ledger.raw(ERASURES(token, publisher, period)) is None:
            return
        known = "SELECT erased FROM erasure_keys WHERE token = ? AND publisher = ? AND period = ?"
        erased = self._store.scalar(known, (token, publisher, period))
        if erased is None:
            self._insert(token, publisher=publisher, period=period, begins_ms=0, ends_ms=0, erased=1)
        elif not erased:
            self._destroy(token, publisher, period)

    def skip_after_restore(self) -> None:
        """Let no period number be drawn that the store before the restore may have drawn."""
        floor = self._core.now_ms // 1000 + _RESTORE_GAP
        self._store.set_meta("period_floor", floor.to_bytes(8, "big"))


def _place(publisher: bytes, period: int, public: bytes) -> list[bytes | int | str]:
    return ["erasure", publisher, period, public]
