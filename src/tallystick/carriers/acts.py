"""Signed requests at a node: each counts once, is judged as the act of its signer, and is noted for the ledger.

Threats: a recorded request sent again; an operator who writes against a principal what it did not do. Invariants: an
envelope is taken once within its window, across restarts; a refusal is held against a principal only where its own
signed request names the topic and the right that it lacks, and then that request goes with it as evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tallystick.carriers.scribe import ActNote, Scribe, window_entries
from tallystick.guards.route import Window
from tallystick.guards.rules import Act, GuardLimits, Rules
from tallystick.ledger.contracts.operations import OperatorRole
from tallystick.ledger.contracts.operations import asked as named_in
from tallystick.trust.envelope import Envelope
from tallystick.trust.right import Right


@dataclass(frozen=True)
class Asked:
    """A verified request: its envelope, where it came from, and the wall clock when it came."""

    envelope: Envelope
    host: str
    now: float


class Acts:
    """Single-threaded by the carrier's lock, except `of`."""

    def __init__(self, rules: Rules, scribe: Scribe, time_ms: Callable[[], int], limits: GuardLimits) -> None:
        """`time_ms` is the time of the newest block."""
        self._rules, self._scribe, self._time_ms = rules, scribe, time_ms
        self._window = Window(limits.delay_max_s, limits.skew_max_s, limits.window_share_max)
        self._window.restore(window_entries(scribe.recover()))

    def __len__(self) -> int:
        """How many requests are remembered."""
        return len(self._window)

    def check_new(self, asked: Asked) -> None:
        """The routing guard's word: `Refused` if the request was seen before, or cannot be known not to have been."""
        self._window.check(asked.envelope.principal, asked.envelope.nonce, asked.now)

    def of(self, asked: Asked) -> Act:
        """The request as the guards see it."""
        return Act(asked.envelope.principal, asked.host, asked.envelope.base_hash, self._time_ms())

    def note(
        self,
        asked: Asked,
        token: bytes,
        right: Right,
        role: OperatorRole,
        *,
        reason: str = "",
        partition: int = 0,
        first: int = 0,
        end: int = 0,
    ) -> None:
        """Write down what was asked for, and the `reason` if it was refused."""
        topic, operator = self._rules.topic(token), asked.envelope.principal
        if topic is None:  # a topic that does not exist has no history: count it, blame nobody
            self._scribe.count_junk(reason, int(right))
            return
        # Whatever the guard stumbled over first: the contract asks for the right alone, and so does the evidence.
        blamed = (
            reason not in ("", "blacklisted")
            and named_in(asked.envelope) == (token, int(right))
            and not self._rules.allows(operator, token, right, asked.host)
        )
        self._scribe.note(
            ActNote(
                operator=operator,
                role=role,
                token=token,
                operation=int(right),
                reason=reason,
                host=asked.host,
                partition=partition,
                first=first,
                end=end,
                time_ms=int(asked.now * 1000),
                request=asked.envelope.base_hash,
                nonce=asked.envelope.nonce,
                evidence=asked.envelope.evidence() if blamed else b"",
            )
        )
