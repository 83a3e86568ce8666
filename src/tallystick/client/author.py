"""Writing to the ledger in one's own name: entries under one signature, with numbers that only rise.

The numbers of an identity are the microseconds of its clock. Several processes may write in one name (the members of a
group), and their clocks differ: whose number comes too late asks what the last one was and goes on above it. The ledger
judges numbers by the block that is being made and shows them from one that is published, so the number in the way may
not be shown yet. Then the author waits and tries again, as long as a block may take to be published; after that the
world is to blame, and the caller may try again later.

The answer is not believed far: a node that names a number in the far future would otherwise silence the identity.
"""

from __future__ import annotations

from typing import Protocol

from tallystick import wire
from tallystick.client.view import PUBLISHED_S
from tallystick.errors import Refused, Unavailable
from tallystick.identity.folder import Identity
from tallystick.ledger.contracts.identity import NUMBERS
from tallystick.ledger.proofs import StateProof
from tallystick.ledger.transaction import compose
from tallystick.runtime.clock import Clock

PAUSE_S = 0.25  # a few attempts while a block is made, and no flood while one is not
AHEAD_MAX_US = 3_600_000_000  # an hour: how far clocks of one name may differ


class SubmitLedger(Protocol):
    def submit(self, transaction: bytes) -> None: ...

    def state(self, key: bytes) -> StateProof: ...


class Author:
    """Writes entries in the name of an identity, under rising numbers."""

    def __init__(self, identity: Identity, ledger: SubmitLedger, clock: Clock) -> None:
        self._identity, self._ledger, self._clock = identity, ledger, clock
        self._last = 0

    @property
    def principal(self) -> bytes:
        return self._identity.principal

    def write(self, *entry: bytes) -> None:
        """Submit one transaction of these entries; returns when it is in a block.

        `Unavailable` if numbers of other processes of this name stay in the way; `Refused` as the contracts say.
        """
        identity = self._identity
        deadline = self._clock.monotonic() + PUBLISHED_S
        while True:
            now_us = int(self._clock.now() * 1_000_000)
            self._last = max(self._last + 1, now_us)
            transaction = compose(identity.instance, identity.principal, self._last, entry, identity.signing_key)
            try:
                return self._ledger.submit(transaction.data)
            except Refused as error:
                if error.reason != "replayed":
                    raise
                refusal = error
            shown = self._last_on_ledger()
            if shown > now_us + AHEAD_MAX_US:
                raise refusal
            if self._clock.monotonic() >= deadline:
                raise Unavailable(
                    f"ledger: numbers of other processes of this name were in the way for {PUBLISHED_S:g} s",
                    hint="the ledger makes no blocks, its witnesses are away, or too many write in this name",
                ) from refusal
            if shown <= self._last:  # it lies in a block that is not shown yet
                self._clock.pause(PAUSE_S)
            self._last = max(self._last, shown)

    def _last_on_ledger(self) -> int:
        value = self._ledger.state(NUMBERS(self.principal)).value
        number = 0 if value is None else wire.decode(value, "number")
        return number if type(number) is int else 0
