"""The guards' view of the ledger: rights, permits, epochs and topics out of its state.

`read` brings a state value by its key, through a cache that new blocks invalidate at once (ledger/cache.py, BPS 4.3);
what is decided here is only what the values mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tallystick.crypto.signatures import VerifyKey
from tallystick.guards.rules import Right, TopicRules
from tallystick.ledger.contracts import access
from tallystick.ledger.contracts.epochs import End
from tallystick.ledger.contracts.permits import Status
from tallystick.trust.certificate import Certificate, Kind

EPOCHS_BACK_MAX = 64  # how far an epoch may lie behind the newest before it is refused without a look

CURRENT_MS = 1_000  # how long the current epoch is remembered, unless it ends meanwhile


class LedgerRules:
    def __init__(self, instance: bytes, read: Callable[[bytes], Any], late_epochs: int = 1) -> None:
        """`late_epochs`: parcels of so many epochs that ended by schedule are still taken."""
        self.instance = instance
        self._read = read
        self._late_epochs = late_epochs
        self._current: dict[bytes, tuple[int, int, int]] = {}  # token → (epoch, from ms, until ms)

    def verify_key(self, subject: bytes) -> VerifyKey | None:
        """The key under which an enrolled, unrevoked subject signs its requests."""
        value = self._read(b"identity/" + subject)
        return None if value is None or value[6] == 0 or value[7] else VerifyKey(value[2])

    def node_key(self, subject: bytes) -> VerifyKey | None:
        """The key of an enrolled, unrevoked node; nobody else's word stands for its guards."""
        value = self._read(b"identity/" + subject)
        return None if value is None or value[0] != Kind.NODE else self.verify_key(subject)

    def authority(self, identifier: bytes) -> Certificate | None:
        value = self._read(b"identity/" + identifier)
        if value is None or value[0] != Kind.AUTHORITY or value[7]:
            return None
        kind, tenant, key, issuer, not_before, not_after, *_ = value
        # The ledger checked the certificate when it enrolled it; what the guards need of it is in the state.
        return Certificate(self.instance, Kind(kind), identifier, tenant, key, b"", not_before, not_after, issuer)

    def blacklisted(self, principal: bytes) -> bool:
        value = self._read(b"reputation/" + principal)
        return value is not None and value[3] != 0

    def convicted(self, principal: bytes, lane: bytes, sequence: int) -> bool:
        return self._read(b"equivocation/" + principal + lane + sequence.to_bytes(8, "big")) is not None

    def allows(self, principal: bytes, token: bytes, right: Right, host: str) -> bool:
        value = self._read(b"right/" + token + principal)
        return value is not None and access.decide(value[1], int(right), host)

    def topic(self, token: bytes) -> TopicRules | None:
        value = self._read(b"topic/" + token)
        return None if value is None else TopicRules(value[0], value[2], value[9] != 0)

    def schema_known(self, token: bytes, version: int, schema_hash: bytes) -> bool:
        value = self._read(b"schema/" + token + version.to_bytes(4, "big"))
        return value is not None and value[0] == schema_hash

    def permit_ended(self, identifier: bytes) -> bool:
        value = self._read(b"permit/" + identifier)
        return value is None or value[5] != Status.ISSUED

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
        last, until = self._read(b"epochs/" + token) or 0, time_ms + CURRENT_MS
        for epoch in range(last, max(0, last - EPOCHS_BACK_MAX), -1):
            value, before = self._epoch(token, epoch), self._epoch(token, epoch - 1)
            begins = min(value[1], before[3]) if before is not None and before[3] else value[1]
            if begins <= time_ms:
                self._current[token] = (epoch, begins, until)
                return epoch
            until = min(until, begins)
        return None

    def _was_ended(self, token: bytes, epoch: int, time_ms: int) -> bool:
        value = self._epoch(token, epoch)
        return value is None or 0 < value[3] <= time_ms

    def _was_revoked(self, token: bytes, epoch: int, time_ms: int) -> bool:
        value = self._epoch(token, epoch)
        return value is None or (value[4] == End.REVOCATION and value[3] <= time_ms)

    def _epoch(self, token: bytes, epoch: int) -> Any:
        return self._read(b"epoch/" + token + epoch.to_bytes(4, "big"))
