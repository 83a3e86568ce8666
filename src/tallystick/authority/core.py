"""What every part of the authority shares: its keys, its store, its view of the ledger, and the way entries go out.

How a decision is made durable, in this order: (1) what it needs is written to the store together with its entries
in the *queue*, in one SQLite transaction; (2) the entries go to the ledger; (3) the authority follows the ledger and
takes the decision as made when it sees it there; (4) the answer goes out. A crash after (1) finishes the way on the
next start; a crash after (2) finds the entries on the ledger. Nothing is granted that the store and the ledger do
not both know.

Decisions of many requests share one transaction on the ledger (BPS 4.5): while one waits for its block, the others
gather in the queue, and the next one takes them all along.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tallystick import wire
from tallystick.authority.answers import Caller, answer_info, key_hash
from tallystick.authority.ledger_view import LedgerView
from tallystick.authority.master import MasterKey
from tallystick.authority.settings import AuthorityLimits, AuthoritySettings
from tallystick.authority.store import AuthorityStore
from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Misuse, Refused, Unavailable
from tallystick.ledger.block import ENTRIES_MAX, compose
from tallystick.ledger.contracts.attributes import ATTRIBUTE_EPOCHS
from tallystick.ledger.contracts.epochs import EPOCHS, ERASURES
from tallystick.ledger.contracts.identity import IDENTITIES, NUMBERS
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.permits import PERMITS, Status
from tallystick.ledger.entries import announce_key
from tallystick.runtime.sources import Clock, Entropy
from tallystick.trust.certificate import Certificate
from tallystick.trust.trustfile import TrustFile

log = logging.getLogger(__name__)

KEYS_IN_FORCE = "keys_in_force"  # in `meta`: hashes of erasure periods' and policies' keys are announced
_REFUSED_MAX = 1_000  # refusals kept for those who wait
_TRANSACTION_BYTES = 2 << 20  # of entries; the ledger takes 3 MiB


class AuthorityKeys(NamedTuple):
    """What an authority signs with, who says that it may, and what its secrets are wrapped with."""

    certificate: Certificate
    signing: SigningKey
    master: MasterKey


@dataclass
class Core:
    keys: AuthorityKeys = field(repr=False)
    store: AuthorityStore
    ledger: LedgerView
    clock: Clock
    entropy: Entropy
    settings: AuthoritySettings
    limits: AuthorityLimits
    refused: dict[int, Refused] = field(default_factory=dict, init=False)  # place in the queue → why the ledger said no
    held: set[int] = field(default_factory=set, init=False)  # places in the queue that wait for the next attempt
    submitting: threading.Lock = field(default_factory=threading.Lock, init=False)
    following: threading.Lock = field(default_factory=threading.Lock, init=False)  # taken before the store's
    looks: int = field(default=0, init=False)  # times that somebody began to follow, with that lock
    version: int = field(default=0, init=False)  # the newest in this run: whoever waits for news compares it
    since_ms: int | None = field(default=None, init=False)  # of the first block taken over now that revokes something

    @property
    def trust(self) -> TrustFile:
        """By which checkpoints, and the certificates of newcomers, are judged."""
        return self.ledger.trust

    @property
    def instance(self) -> bytes:
        return self.keys.certificate.instance

    @property
    def now_ms(self) -> int:
        return int(self.clock.now() * 1000)

    @property
    def revoked_ms(self) -> int:
        """When a revocation that is taken over now must have had its effect: `revoke_s` after the block that holds it,
        or now if that has passed. A node that lies about its blocks' times can only bring it forward."""
        since_ms = self.now_ms if self.since_ms is None else min(self.since_ms, self.now_ms)
        return max(self.now_ms, since_ms + self.settings.revoke_s * 1000)

    def next_version(self) -> int:
        """A version above every earlier one: the clock's, so that a restored store does not count again."""
        self.version = self._rise("version", self.now_ms)
        return self.version

    def _rise(self, name: str, at_least: int) -> int:
        stored = self.store.meta(name)
        number = max(at_least, 0 if stored is None else int.from_bytes(stored, "big") + 1)
        self.store.set_meta(name, number.to_bytes(8, "big"))
        return number

    def touch(self, token: bytes) -> int:
        """Note that something about a topic changed. Returns the topic's new version."""
        version = self.next_version()
        self.store.write("UPDATE topics SET version = ?, due_ms = 0 WHERE token = ?", (version, token))
        return version

    def touch_all(self) -> int:
        """Note that something changed that concerns every topic. Returns their new version."""
        version = self.next_version()
        self.store.write("UPDATE topics SET version = ?", (version,))
        return version

    def seal_for(self, certificate: Certificate, caller: Caller, answer: bytes) -> bytes:
        """A secret answer to one request of one principal."""
        public = hpke.PublicKey.decode(certificate.sealing_key)
        return hpke.seal(public, answer, answer_info(self.instance, caller.principal, caller.nonce))

    # --- the queue, in the table `outbox` ---

    def queue(self, entries: Iterable[bytes]) -> int:
        """Put the entries of one decision in the queue, in the decision's own transaction. Returns its place."""
        with self.store.transaction():
            return self.store.insert("outbox", entries=wire.encode(list(entries)))

    def announce_key(self, token: bytes, name: bytes, public: bytes) -> None:
        """Queue the hash of a key to which publishers of a topic will seal. Nothing is queued before the ledger takes
        such hashes: when it does, those of all keys that count then are announced."""
        if self.store.meta(KEYS_IN_FORCE) is not None:
            self.queue([announce_key(token, name, key_hash(public))])

    def send_queue(self) -> None:
        """Bring everything in the queue to the ledger; returns when it is in a block or was refused.

        `Unavailable` leaves the queue as it is. The caller must not hold the store's lock.
        """
        with self.submitting:
            for number, data in self.store.rows("SELECT number, data FROM sent ORDER BY number"):
                self._submit(number, data)  # from before a crash or an outage
            self.held.clear()
            while True:
                rows = self.store.rows("SELECT place, entries FROM outbox WHERE number IS NULL ORDER BY place")
                waiting = [row for row in rows if row[0] not in self.held]
                if not waiting:
                    return
                self._send(_first_fitting(waiting))

    def _send(self, groups: list[tuple[int, list[bytes]]]) -> None:
        number, data = self._compose(groups)
        refusal = self._submit(number, data)
        if refusal is None:
            return
        if refusal.reason == "replayed" and self._skip_numbers(number):
            self._send(groups)
            return
        if len(groups) > 1:  # one of them spoilt it for all: each on its own
            for group in groups:
                self._send([group])
            return
        self._take_refusal(*groups[0], refusal)

    def _take_refusal(self, place: int, entries: list[bytes], refusal: Refused) -> None:
        """Drop a refused decision; but keep one that takes something away until the ledger proves that it is gone.

        Whoever stands between us and the ledger may say no to a revocation; it is sent again, perhaps to another.
        """
        log.warning("ledger refused an entry: %s (%s)", refusal, refusal.reason)
        with self.store.transaction():
            left = [entry for entry in entries if not self._is_so_already(entry)]
            if left:
                self.store.write("UPDATE outbox SET entries = ? WHERE place = ?", (wire.encode(left), place))
                self.held.add(place)
            else:
                self.store.write("DELETE FROM outbox WHERE place = ?", (place,))
        if len(self.refused) >= _REFUSED_MAX:
            self.refused.pop(next(iter(self.refused)), None)
        self.refused[place] = refusal

    def _is_so_already(self, entry: bytes) -> bool:
        """Whether the proven state is as the entry would make it. Entries that only add are taken to be done."""
        match wire.decode(entry, "queue"):
            case [EntryKind.UNDO_PERMIT | EntryKind.REVOKE_PERMIT, identifier]:
                permit = self.ledger.row(PERMITS(identifier))
                return permit is None or permit.status != Status.ISSUED
            case [EntryKind.END_EPOCH, token, number, *_]:
                epoch = self.ledger.row(EPOCHS(token, number))
                return epoch is None or epoch.end_ms != 0
            case [EntryKind.ATTRIBUTE_EPOCH, number, _, not_before_ms]:
                coming = self.ledger.row(ATTRIBUTE_EPOCHS(self.keys.certificate.subject, number))
                return coming is None or coming.not_before_ms <= max(not_before_ms, self.now_ms)
            case [EntryKind.ERASE, token, publisher, period]:
                return self.ledger.raw(ERASURES(token, publisher, period)) is not None
            case [EntryKind.REVOKE, subject, _]:
                identity = self.ledger.row(IDENTITIES(subject))
                return identity is None or identity.revoked != 0
        return True

    def _compose(self, groups: list[tuple[int, list[bytes]]]) -> tuple[int, bytes]:
        with self.store.transaction():
            number = self._rise("number", self.now_ms * 1000)
            entries = [entry for _, group in groups for entry in group]
            data = compose(self.instance, self.keys.certificate.subject, number, entries, self.keys.signing).data
            self.store.insert("sent", number=number, data=data)
            for place, _ in groups:
                self.store.write("UPDATE outbox SET number = ? WHERE place = ?", (number, place))
        return number, data

    def _skip_numbers(self, number: int) -> bool:
        """Go on above the number that the ledger knows. Returns whether that is any higher.

        It is after a restore with a clock that was set back: the store before it had sent more.
        """
        with self.store.transaction():
            last = self.ledger.row(NUMBERS(self.keys.certificate.subject)) or 0
            self.store.set_meta("number", max(last, number).to_bytes(8, "big"))
        return last >= number

    def _submit(self, number: int, data: bytes) -> Refused | None:
        """Submit one transaction and mark it done, or its groups as waiting again.

        One that the ledger has already, from before a crash, is taken again as if it were new.
        """
        try:
            self.ledger.client.submit(data)
        except Refused as refusal:
            with self.store.transaction():
                self.store.write("UPDATE outbox SET number = NULL WHERE number = ?", (number,))
                self.store.write("DELETE FROM sent WHERE number = ?", (number,))
            return refusal
        with self.store.transaction():
            self.store.write("DELETE FROM outbox WHERE number = ?", (number,))
            self.store.write("DELETE FROM sent WHERE number = ?", (number,))
        return None

    def check_sent(self, place: int) -> None:
        """Raise what the ledger said of a queued decision, if it refused it."""
        refusal = self.refused.pop(place, None)
        if refusal is not None:
            raise refusal
        if self.store.row("SELECT 1 FROM outbox WHERE place = ?", (place,)):
            raise Unavailable("the ledger has not taken the entries yet")


def _first_fitting(waiting: list[tuple[int, bytes]]) -> list[tuple[int, list[bytes]]]:
    """As many groups from the front as fit in one transaction."""
    groups: list[tuple[int, list[bytes]]] = []
    count = size = 0
    for place, encoded in waiting:
        entries = wire.decode(encoded, "queue")
        if len(entries) > ENTRIES_MAX:
            raise Misuse(f"queue: {len(entries)} entries in one decision, at most {ENTRIES_MAX}")
        count, size = count + len(entries), size + len(encoded)
        if groups and (count > ENTRIES_MAX or size > _TRANSACTION_BYTES):
            break
        groups.append((place, entries))
    return groups
