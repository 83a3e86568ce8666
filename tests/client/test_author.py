"""Writing in one name from several processes: numbers are judged by the open block, and shown from the last one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tallystick import wire
from tallystick.client import author
from tallystick.client.author import Author
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Refused
from tallystick.ledger.transaction import parse
from tallystick.runtime.clock import ManualClock

BLOCK_S = 1.0
IDENTITY: Any = SimpleNamespace(
    instance=bytes(32), principal=bytes(16), signing_key=SigningKey.from_seed(bytes(range(32)))
)


class Ledger:
    """One that has a number of another process in its open block, and shows it when that is made."""

    def __init__(self, clock: ManualClock, ahead_s: float) -> None:
        self._clock, self._made_at = clock, clock.monotonic() + BLOCK_S
        self._last = int((clock.now() + ahead_s) * 1_000_000)
        self.taken: list[int] = []

    def submit(self, transaction: bytes) -> None:
        number = parse(transaction).number
        if number <= self._last:
            raise Refused(f"a number above {self._last} expected, found {number}", reason="replayed")
        self.taken.append(number)

    def state(self, key: bytes) -> Any:
        shown = self._last if self._clock.monotonic() >= self._made_at else 0
        return SimpleNamespace(value=wire.encode(shown))


def test_a_number_of_the_open_block_is_waited_for() -> None:
    clock = ManualClock()
    ledger = Ledger(clock, ahead_s=30.0)
    Author(IDENTITY, ledger, clock).write(b"\x80")
    assert len(ledger.taken) == 1


def test_without_waiting_all_attempts_meet_the_same_open_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(author, "PAUSE_S", 0.0)
    clock = ManualClock()
    with pytest.raises(Refused, match="a number above"):
        Author(IDENTITY, Ledger(clock, ahead_s=30.0), clock).write(b"\x80")


def test_a_number_in_the_far_future_is_not_believed() -> None:
    """A node that named one would silence the identity for so long."""
    clock = ManualClock()
    with pytest.raises(Refused, match="a number above"):
        Author(IDENTITY, Ledger(clock, ahead_s=7200.0), clock).write(b"\x80")
