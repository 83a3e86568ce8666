"""Writing to the ledger in one's own name: entries under one signature, with numbers that only rise."""

from __future__ import annotations

from typing import Protocol

from tallystick.client.identity import Identity
from tallystick.ledger.transaction import compose
from tallystick.runtime.clock import Clock


class Submitter(Protocol):
    def submit(self, transaction: bytes) -> None: ...


class Author:
    """Writes entries in the name of an identity, under rising numbers."""

    def __init__(self, identity: Identity, ledger: Submitter, clock: Clock) -> None:
        self._identity, self._ledger, self._clock = identity, ledger, clock
        self._last = 0

    @property
    def principal(self) -> bytes:
        return self._identity.principal

    def write(self, *entry: bytes) -> None:
        """Submit one transaction of these entries; returns when it is in a block."""
        self._last = max(self._last + 1, int(self._clock.now() * 1_000_000))
        identity = self._identity
        transaction = compose(identity.instance, identity.principal, self._last, entry, identity.signing_key)
        self._ledger.submit(transaction.data)
