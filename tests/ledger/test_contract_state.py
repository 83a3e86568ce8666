"""What contracts read and change: taken back whole, given once, and never lost to the bound of what is remembered."""

from __future__ import annotations

from tallystick import wire
from tallystick.ledger.contracts.state import State

STORED = {b"a": wire.encode(1), b"b": wire.encode(2)}


def test_a_refused_transaction_leaves_what_the_block_and_the_file_had() -> None:
    state = State(STORED.get)
    state.put(b"a", 10)
    state.put(b"new", 11)
    state.keep()
    for key, value in ((b"a", 20), (b"a", 21), (b"b", None), (b"new", None), (b"other", 22)):
        state.put(key, value)
        assert state.get(key) == value
    state.discard()
    assert [state.get(key) for key in (b"a", b"b", b"new", b"other")] == [10, 2, 11, None]
    assert state.changes() == {b"a": wire.encode(10), b"new": wire.encode(11)}


def test_a_block_gives_its_changes_once_in_order_and_the_last_value_of_each() -> None:
    state = State(STORED.get)
    for key, value in ((b"z", 1), (b"b", None), (b"z", 2)):
        state.put(key, value)
        state.keep()
    assert list(state.changes().items()) == [(b"b", None), (b"z", wire.encode(2))]
    state.seal()
    assert state.changes() == {}
    assert (state.get(b"b"), state.get(b"z")) == (None, 2)


def test_a_block_that_was_not_stored_is_forgotten() -> None:
    state = State(STORED.get)
    state.put(b"a", 10)
    state.keep()
    state.put(b"b", 20)
    state.forget_block()
    assert (state.get(b"a"), state.get(b"b"), state.changes()) == (1, 2, {})


def test_what_is_not_stored_yet_survives_the_bound_of_the_memory() -> None:
    state = State(STORED.get, known_max=4)
    assert state.get(b"b") == 2
    state.put(b"kept", 1)
    state.keep()
    state.put(b"running", 2)
    state.put(b"b", 3)
    for number in range(20):
        assert state.get(b"absent %d" % number) is None
    assert [state.get(key) for key in (b"kept", b"running", b"b")] == [1, 2, 3]
    state.discard()
    assert [state.get(key) for key in (b"kept", b"running", b"b")] == [1, None, 2]
    assert state.changes() == {b"kept": wire.encode(1)}
