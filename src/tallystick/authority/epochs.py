"""Epochs: drawing a topic's key pairs, announcing them ahead, and ending them early.

Threat: a subscriber whose right is gone but whose key is not. A revocation ends the current epoch `revoke_s` after the
block that holds it, on the ledger, or as soon as the authority hears of it if that is later. The next one, whose public
half every publisher has had for days, begins at that moment, and only then is its private half handed out: to those
whose permits are live. So whoever is revoked before that moment, not only the first, is outside, the bound holds for
each, and a topic gets at most one epoch per `revoke_s`.

Epochs that end by schedule are taken for `late_epochs` more; their end is simply the next one's beginning and has no
entry. A revocation ends those too, since the revoked holds their keys.

Threat: an authority restored from a backup that lacks the newest key pairs. Numbers are announced on the ledger, one
after the other, so none is drawn twice; those whose keys are lost are ended, and fresh ones follow.
"""

from __future__ import annotations

from dataclasses import dataclass

from tallystick.authority.answers import key_hash
from tallystick.authority.core import Core
from tallystick.crypto import hpke
from tallystick.errors import Forged
from tallystick.ledger import entries
from tallystick.ledger.contracts.epochs import EPOCHS, LAST_EPOCHS, End


@dataclass(frozen=True)
class Epoch:
    """One epoch of a topic, with the times at which it counts."""

    begins_ms: int
    ends_ms: int
    number: int
    public: bytes | None
    secret: bytes | None  # wrapped; None where it was lost
    not_before_ms: int
    end_ms: int  # 0 while it has no early end
    begun: int
    changed: int

    @property
    def is_lost(self) -> bool:
        return self.secret is None


class Epochs:
    def __init__(self, core: Core) -> None:
        self._core, self._store = core, core.store

    def announced(self, token: bytes) -> list[Epoch]:
        """The topic's announced epochs in order."""
        rows = self._store.rows(
            "SELECT epoch, public, secret, not_before_ms, end_ms, begun, changed FROM epochs"
            " WHERE token = ? AND announced = 1 ORDER BY epoch",
            (token,),
        )
        begins = [min(row[3], rows[at - 1][4]) if at and rows[at - 1][4] else row[3] for at, row in enumerate(rows)]
        after = [*begins[1:], rows[-1][3] + self._core.settings.epoch_s * 1000] if rows else []
        return [Epoch(begins[at], row[4] or after[at], *row) for at, row in enumerate(rows)]

    def current(self, token: bytes, known: list[Epoch] | None = None) -> Epoch | None:
        """The epoch under which to seal now; as the contract `epochs.current` has it."""
        now_ms = self._core.now_ms
        for epoch in reversed(self.announced(token) if known is None else known):
            if epoch.begins_ms <= now_ms:
                return None if epoch.end_ms and epoch.end_ms <= now_ms else epoch
        return None

    def seed(self, token: bytes, epoch: Epoch) -> bytes:
        """The private half. Raises `CannotOpen` if the row was moved or its public half exchanged."""
        assert epoch.secret is not None
        assert epoch.public is not None
        return self._core.keys.master.unwrap_key_pair(token, _place(epoch.number, epoch.public), epoch.secret)

    def check_public(self, token: bytes, epoch: Epoch) -> bytes:
        """The public half, if it is the one that was drawn with the private half."""
        self.seed(token, epoch)
        assert epoch.public is not None
        return epoch.public

    def draw(self, token: bytes, number: int) -> tuple[bytes, bytes]:
        """Public half and wrapped private half of an epoch that is to be announced."""
        private = hpke.PrivateKey.generate(self._core.entropy.bytes(32))
        public = private.public.encode()
        secret = self._core.keys.master.wrap_key_pair(
            token, _place(number, public), private.encode(), self._core.entropy
        )
        return public, secret

    # --- what time and revocation bring ---

    def tick(self) -> None:
        """Do what is due on all topics."""
        rows = self._store.rows("SELECT token FROM topics WHERE due_ms <= ? AND closed = 0", (self._core.now_ms,))
        for (token,) in rows:
            with self._store.transaction():
                self._tick(token)

    def tick_topic(self, token: bytes) -> None:
        """Do what is due on one topic, in the caller's transaction: who asks for keys as soon as an epoch has begun
        shall not wait for the next round of work."""
        due = "SELECT 1 FROM topics WHERE token = ? AND due_ms <= ? AND closed = 0"
        if self._store.row(due, (token, self._core.now_ms)):
            self._tick(token)

    def _tick(self, token: bytes) -> None:
        """Prepare what is due, begin what has come, and note when to look again."""
        self._replace_lost(token)
        self._prepare(token)
        self._begin(token)
        current = self.current(token)
        # After a restore the schedule has a hole until the announced beginnings; no key serves that long.
        if current is not None and current.begins_ms + 2 * self._core.settings.epoch_s * 1000 <= self._core.now_ms:
            self.rekey(token)
        coming = [one.begins_ms for one in self.announced(token) if one.begins_ms > self._core.now_ms]
        due_ms = min([self._core.now_ms + self._core.settings.epoch_s * 1000, *coming])
        self._store.write("UPDATE topics SET due_ms = ? WHERE token = ?", (due_ms, token))

    def _prepare(self, token: bytes) -> None:
        core, settings = self._core, self._core.settings
        known = self.announced(token)
        current = self.current(token, known)
        wanted = settings.epochs_ahead + (current.number if current else known[-1].number if known else 1)
        newest = "SELECT epoch, not_before_ms, secret IS NULL FROM epochs WHERE token = ? ORDER BY epoch DESC LIMIT 1"
        last = core.store.row(newest, (token,))
        number, begins_ms, lost = last or (0, core.now_ms - settings.epoch_s * 1000, 0)
        group = []
        while number < wanted:
            number += 1
            # Behind a lost epoch the next one takes its place, at its time or when it is ended.
            begins_ms = begins_ms if lost else max(begins_ms + settings.epoch_s * 1000, core.now_ms)
            lost = 0
            public, secret = self.draw(token, number)
            self._insert(token, number, begins_ms, public=public, secret=secret)
            group.append(entries.announce_epoch(token, number, key_hash(public), begins_ms))
        if group:
            core.queue(group)

    def _begin(self, token: bytes) -> None:
        now_ms = self._core.now_ms
        for epoch in self.announced(token):
            if epoch.begins_ms <= now_ms and not epoch.begun:
                self._update(token, epoch.number, begun=1)

    def rekey(self, token: bytes) -> None:
        """End the current epoch, and the late ones still taken, `revoke_s` after what revokes; once per `revoke_s`."""
        core = self._core
        current = self.current(token)
        if current is None or current.end_ms:
            return  # an end is under way: whoever lost its permit meanwhile gets no key of the next one either
        oldest = current.number - core.settings.late_epochs
        ending = [one for one in self.announced(token) if oldest <= one.number <= current.number and not one.end_ms]
        self._end(token, ending, core.revoked_ms)

    def _replace_lost(self, token: bytes) -> None:
        """End the epochs, current and coming, whose keys this store does not have."""
        now_ms = self._core.now_ms
        lost = [one for one in self.announced(token) if one.is_lost and not one.end_ms and one.ends_ms > now_ms]
        if lost:
            self._end(token, lost, now_ms + self._core.settings.revoke_s * 1000)

    def _end(self, token: bytes, epochs: list[Epoch], end_ms: int) -> None:
        for epoch in epochs:
            self._update(token, epoch.number, end_ms=end_ms)
        self._core.queue([entries.end_epoch(token, one.number, End.REVOCATION, end_ms) for one in epochs])
        self._update(token, epochs[-1].number + 1)  # its beginning moved: publishers must hear of it

    # --- what the ledger says ---

    def apply(self, token: bytes, number: int) -> None:
        """Take over what the ledger holds of one epoch."""
        store, found = self._store, self._core.ledger.row(EPOCHS(token, number))
        if found is None:
            return
        hashed, not_before_ms, _, end_ms, _ = found
        row = store.row("SELECT public, announced, end_ms FROM epochs WHERE token = ? AND epoch = ?", (token, number))
        if row is None:
            self._insert(token, number, not_before_ms)
        elif row[0] is not None and key_hash(row[0]) != hashed:
            if row[1]:
                raise Forged(f"epoch {number} of topic {token.hex()}: the store holds another key than the ledger")
            # A restored store had drawn this number itself and not yet announced it: its pair never serves.
            self._update(token, number, public=None, secret=None)
        known_end = end_ms or (0 if row is None else row[2])
        store.write(
            "UPDATE epochs SET announced = 1, not_before_ms = ?, end_ms = ?, changed = ?"
            " WHERE token = ? AND epoch = ? AND (announced = 0 OR not_before_ms != ? OR end_ms != ?)",
            (not_before_ms, known_end, self._core.touch(token), token, number, not_before_ms, known_end),
        )

    def adopt(self, token: bytes, public: bytes, secret: bytes) -> None:
        """Epoch 1 of a topic that has just become live, with the pair its draft was given."""
        self._insert(token, 1, self._core.now_ms, public=public, secret=secret)
        if self._core.ledger.raw(LAST_EPOCHS(token)) is None:  # else a restored store meets its own announcement
            self._core.queue([entries.announce_epoch(token, 1, key_hash(public), self._core.now_ms)])

    def _update(self, token: bytes, number: int, **values: object) -> None:
        changed = self._core.touch(token)
        self._store.update("epochs", {"token": token, "epoch": number}, changed=changed, **values)

    def _insert(self, token: bytes, number: int, begins_ms: int, **halves: bytes) -> None:
        changed = self._core.touch(token)
        self._store.insert("epochs", token=token, epoch=number, not_before_ms=begins_ms, changed=changed, **halves)


def _place(number: int, public: bytes) -> list[bytes | int | str]:
    return ["epoch", number, public]
