"""A node that is asked to stop finishes what it is writing, and lets go of its folder."""

from __future__ import annotations

from pathlib import Path

from actors import Hand, Topic, stored
from stack import Stack, sqlite_ledger, wait_until


def test_a_write_under_way_gets_its_block_though_the_block_maker_is_gone(tmp_path: Path) -> None:
    """Its block is due two seconds later; without one the writer waits for half a minute."""
    with Stack(tmp_path) as stack:
        hand = Hand(Topic(stack, "acme").car, "brakes")
        stack._node_settings["window_ms"] = 2_000
        stack.stop_node()
        stack.start_node()
        stored(hand.send(hand.seal(1))[0])
        wait_until(lambda: sqlite_ledger(stack)._book.open is not None)
        stack.stop_node()
        assert not stack._node_thread.is_alive()
        stack._node_settings["window_ms"] = 5
        stack.start_node()
