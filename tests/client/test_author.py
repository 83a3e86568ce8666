"""Writing in one name from several processes: numbers are judged by the open block, and shown from the last one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tallystick import wire
from tallystick.client.ties import PUBLISHED_S, Author
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Refused, Unavailable
from tallystick.ledger.block import parse
from tallystick.runtime.sources import ManualClock

IDENTITY: Any = SimpleNamespace(
    instance=bytes(32), principal=bytes(16), signing_key=SigningKey.from_seed(bytes(range(32)))
)


class Ledger:
    """One that has a number of another process in its open block, and shows it when that is made."""

    def __init__(self, clock: ManualClock, ahead_s: float, block_s: float) -> None:
        self._clock, self._made_at = clock, clock.monotonic() + block_s
        self._last = int((clock.now() + ahead_s) * 1_000_000)
        self.taken: list[int] = []
        self.refusals = 0

    def submit(self, transaction: bytes) -> None:
        number = parse(transaction).number
        if number <= self._last:
            self.refusals += 1
            raise Refused(f"a number above {self._last} expected, found {number}", reason="replayed")
        self._last = number
        self.taken.append(number)

    def state(self, key: bytes) -> Any:
        shown = self._last if self._clock.monotonic() >= self._made_at else 0
        return SimpleNamespace(value=wire.encode(shown))


@pytest.mark.parametrize("block_s", [1.0, PUBLISHED_S - 1.0])
def test_a_number_of_the_open_block_is_waited_for(block_s: float) -> None:
    """However slow the block is: seed 777000898 of the simulation met one that took longer than eight attempts."""
    clock = ManualClock()
    ledger = Ledger(clock, ahead_s=30.0, block_s=block_s)
    Author(IDENTITY, ledger, clock).write(b"\x80")
    assert len(ledger.taken) == 1


def test_a_block_that_is_not_made_is_the_worlds_fault_and_patience_has_an_end() -> None:
    clock = ManualClock()
    ledger = Ledger(clock, ahead_s=3000.0, block_s=60.0)
    author = Author(IDENTITY, ledger, clock)
    with pytest.raises(Unavailable, match="in the way"):
        author.write(b"\x80")
    assert PUBLISHED_S <= clock.monotonic() < PUBLISHED_S + 1.0
    assert ledger.refusals < 100  # it waited, and did not flood the node
    clock.advance(60.0)
    author.write(b"\x80")  # the same author goes on when the block is made
    assert len(ledger.taken) == 1


def test_a_clock_that_passes_the_number_in_the_way_need_not_wait_for_the_block() -> None:
    clock = ManualClock()
    ledger = Ledger(clock, ahead_s=3.0, block_s=60.0)
    Author(IDENTITY, ledger, clock).write(b"\x80")
    assert clock.monotonic() < 4.0


def test_a_number_in_the_far_future_is_not_believed() -> None:
    """A node that named one would silence the identity for so long."""
    clock = ManualClock()
    ledger = Ledger(clock, ahead_s=7200.0, block_s=1.0)
    author = Author(IDENTITY, ledger, clock)
    with pytest.raises(Refused, match="a number above"):
        author.write(b"\x80")
    ledger._last = 0
    author.write(b"\x80")
    assert ledger.taken[0] <= int(clock.now() * 1_000_000) + 60_000_000  # its own numbers have not moved
