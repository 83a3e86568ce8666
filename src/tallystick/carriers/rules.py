"""The guards' view of the ledger: rights, permits, epochs and topics out of its state.

`read` brings a row of the state by its key, through a cache that new blocks invalidate at once (ledger/cache.py, BPS
4.3); what is decided here is only what the values mean.
"""

from __future__ import annotations

from typing import Protocol

from tallystick.crypto.signatures import VerifyKey
from tallystick.guards.rules import TopicRules
from tallystick.ledger.contracts import access
from tallystick.ledger.contracts.epochs import EPOCHS, LAST_EPOCHS, End
from tallystick.ledger.contracts.equivocation import EQUIVOCATIONS
from tallystick.ledger.contracts.identity import IDENTITIES
from tallystick.ledger.contracts.permits import PERMITS, Status
from tallystick.ledger.contracts.reputation import STANDINGS
from tallystick.ledger.contracts.table import Key, R
from tallystick.ledger.contracts.topics import SCHEMAS, TOPICS
from tallystick.trust.certificate import Certificate, SubjectKind
from tallystick.trust.right import Right

EPOCHS_BACK_MAX = 64  # how far an epoch may lie behind the newest before it is refused without a look

CURRENT_MS = 1_000  # how long the current epoch is remembered, unless it ends meanwhile


class RowReader(Protocol):
    def __call__(self, key: Key[R], /) -> R | None: ...


class LedgerRules:
    def __init__(self, instance: bytes, read: RowReader, late_epochs: int = 1) -> None:
        """`late_epochs`: parcels of so many epochs that ended by schedule are still taken."""
        self.instance = instance
        self._read = read
        self._late_epochs = late_epochs
        self._current: dict[bytes, tuple[int, int, int]] = {}  # token → (epoch, from ms, until ms)

    def verify_key(self, subject: bytes) -> VerifyKey | None:
        """The key under which an enrolled, unrevoked subject signs its requests."""
        row = self._read(IDENTITIES(subject))
        return None if row is None or row.enrolled == 0 or row.revoked else VerifyKey(row.key)

    def node_key(self, subject: bytes) -> VerifyKey | None:
        """The key of an enrolled, unrevoked node; nobody else's word stands for its guards."""
        row = self._read(IDENTITIES(subject))
        return None if row is None or row.kind != SubjectKind.NODE else self.verify_key(subject)

    def authority(self, identifier: bytes) -> Certificate | None:
        row = self._read(IDENTITIES(identifier))
        if row is None or row.kind != SubjectKind.AUTHORITY or row.revoked:
            return None
        # The ledger checked the certificate when it enrolled it; what the guards need of it is in the state.
        times = row.not_before_ms, row.not_after_ms
        return Certificate(
            self.instance, SubjectKind.AUTHORITY, identifier, row.tenant, row.key, b"", *times, row.issuer
        )

    def blacklisted(self, principal: bytes) -> bool:
        row = self._read(STANDINGS(principal))
        return row is not None and row.blacklisted != 0

    def convicted(self, principal: bytes, lane: bytes, sequence: int) -> bool:
        return self._read(EQUIVOCATIONS(principal, lane, sequence)) is not None

    def allows(self, principal: bytes, token: bytes, right: Right, host: str) -> bool:
        row = self._read(access.RIGHTS(token, principal))
        return row is not None and access.decide(row.rules, int(right), host)

    def topic(self, token: bytes) -> TopicRules | None:
        row = self._read(TOPICS(token))
        return None if row is None else TopicRules(row.tenant, row.partitions, row.closed != 0)

    def schema_known(self, token: bytes, version: int, schema_hash: bytes) -> bool:
        row = self._read(SCHEMAS(token, version))
        return row is not None and row.hash == schema_hash

    def permit_ended(self, identifier: bytes) -> bool:
        row = self._read(PERMITS(identifier))
        return row is None or row.status != Status.ISSUED

    def epoch_taken(self, token: bytes, epoch: int, time_ms: int) -> bool:
        """The current epoch, or one of the last `late_epochs` with no revocation since: a revoked reader holds the
        keys of every epoch up to the one that its revocation ended."""
        current = self._current_epoch(token, time_ms)
        if current is None or not 0 < epoch <= current or current - epoch > self._late_epochs:
            return False
        return not any(self._was_revoked(token, number, time_ms) for number in range(epoch, current + 1))

    def _current_epoch(self, token: bytes, time_ms: int) -> int | None:
        """The newest epoch that has begun; remembered for a moment, or until the next one begins."""
        known = self._current.get(token)
        if known is not None and known[1] <= time_ms < known[2] and not self._was_ended(token, known[0], time_ms):
            return known[0]
        last, until = self._read(LAST_EPOCHS(token)) or 0, time_ms + CURRENT_MS
        for epoch in range(last, max(0, last - EPOCHS_BACK_MAX), -1):
            row = self._read(EPOCHS(token, epoch))
            if row is None:
                return None
            begins = row.begins_ms(self._read(EPOCHS(token, epoch - 1)))
            if begins <= time_ms:
                self._current[token] = (epoch, begins, until)
                return epoch
            until = min(until, begins)
        return None

    def _was_ended(self, token: bytes, epoch: int, time_ms: int) -> bool:
        row = self._read(EPOCHS(token, epoch))
        return row is None or 0 < row.end_ms <= time_ms

    def _was_revoked(self, token: bytes, epoch: int, time_ms: int) -> bool:
        row = self._read(EPOCHS(token, epoch))
        return row is None or (row.how == End.REVOCATION and row.end_ms <= time_ms)
