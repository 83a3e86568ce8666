"""Several nodes, of which one lies or lags: what does not hold is asked of the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tallystick.client.ties import View
from tallystick.errors import Forged, Refused, Unavailable, Withheld
from tallystick.ledger.proofs import Lagging
from tallystick.runtime.address import Address
from tallystick.runtime.client import HttpClient
from tallystick.runtime.sources import ManualClock, SeededEntropy


class Nodes:
    """As a client sees them: one is asked until it is told to ask another. Also the memory that judges their notes."""

    def __init__(self, *notes: bytes) -> None:
        self._notes, self._turn, self.asked = notes, 0, 0
        self.clock = ManualClock(1_000.0)
        self.head = SimpleNamespace(time_ms=1_000_000, height=7)  # that is known

    def checkpoint(self) -> bytes:
        self.asked += 1
        return self._notes[self._turn]

    def ask_another(self) -> int:
        self._turn = (self._turn + 1) % len(self._notes)
        return len(self._notes)

    def consistency(self, old: int, new: int) -> list[bytes]:
        return []

    def accept(self, note: bytes, consistency: Any, *, since: int, may_lag: bool) -> Any:
        if note == b"forged":
            raise Forged("checkpoint: not the ledger's")
        if note == b"behind":
            raise Lagging("it lags") if may_lag else Withheld("it went back", reason="rollback")
        return SimpleNamespace(time_ms=0 if note == b"old" else 1_000_000, height=7)

    def view(self) -> View:
        given: Any = self
        return View(given, given, self.clock, 60.0, self.ask_another, len(self._notes))


def test_a_checkpoint_is_taken_from_the_first_node_that_shows_a_good_one() -> None:
    nodes = Nodes(b"forged", b"old", b"good")
    assert nodes.view().refresh().height == 7
    assert nodes.asked == 3
    nodes.view().refresh()
    assert nodes.asked == 4  # who answered well is asked first


def test_where_none_does_the_last_refusal_stands() -> None:
    nodes = Nodes(b"forged", b"forged", b"old")
    with pytest.raises(Withheld):
        nodes.view().refresh()
    assert nodes.asked == 3
    alone = Nodes(b"forged")
    with pytest.raises(Refused):
        alone.view().refresh()
    assert alone.asked == 1


def test_nodes_that_lag_are_waited_for_and_not_accused() -> None:
    nodes = Nodes(b"behind", b"good")
    assert nodes.view().refresh().height == 7
    behind = Nodes(b"behind", b"behind")
    with pytest.raises(Unavailable, match="it lags"):
        behind.view().refresh()
    assert behind.asked == 2
    behind.clock.advance(61.0)  # nothing newer came for so long as a tail may be withheld
    with pytest.raises(Withheld, match="it went back"):
        behind.view().refresh()
    with pytest.raises(Withheld, match="it went back"):  # who alone shows the ledger has nobody to lag behind
        Nodes(b"behind").view().refresh()


def test_a_client_of_several_nodes_has_one_for_each() -> None:
    addresses = [Address(f"http://127.0.0.1:{7000 + n}", bytes([n // 2]) * 16) for n in range(3)]
    clock = ManualClock(0.0)
    with HttpClient(addresses, None, clock, SeededEntropy(1)) as client:
        assert client.ask_another() == 3
        alone = client.each()
        assert [one.ask_another() for one in alone.values()] == [2, 1]  # two addresses of one node are one node
        assert client.each() is alone
        with client.within(5.0):
            assert all(one._conversation.until == clock.monotonic() + 5.0 for one in alone.values())
        assert all(one._conversation.until == float("inf") for one in alone.values())
