"""The state that contracts read and change: wire values under byte keys `b"<family>/…"`.

What is known of it lies in one dictionary, stored or not, since a block reads many times as often as it writes; beside
it lie what the running transaction replaced there and which keys the open block changed. A refused transaction is taken
back whole; a finished block gives its changes once, so that a topic written 512 times in a block costs one encoding and
one path of the Merkle map.

A value is never changed in place: put a new one. None means absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tallystick import wire
from tallystick.ledger.contracts.table import Key, R

CACHE_KEYS_MAX = 100_000  # some 30 MB of decoded values

_MISSING: Any = object()


class State:
    """Contracts' view of the ledger's state; `load` reads the stored encoding of a key."""

    def __init__(self, load: Callable[[bytes], bytes | None]) -> None:
        self._load = load
        self._known: dict[bytes, Any] = {}
        self._block: set[bytes] = set()  # keys that the open block changed
        self._before: dict[bytes, Any] = {}  # what the running transaction replaced

    def get(self, key: bytes) -> Any:
        """The value under `key`, or None."""
        value = self._known.get(key, _MISSING)
        return value if value is not _MISSING else self._fetch(key)

    def row(self, key: Key[R]) -> R | None:
        """The row under a table's key, or None."""
        return key.read(self.get(key))

    def put(self, key: bytes, value: Any) -> None:
        """Set `key` for the running transaction; None removes it."""
        if key not in self._before:
            key = bytes(key)  # a table's key is more than its bytes
            self._before[key] = self._known.get(key, _MISSING)
        self._known[key] = value

    def keep(self) -> None:
        """The running transaction was accepted: its changes belong to the block."""
        self._block.update(self._before)
        self._before = {}

    def discard(self) -> None:
        """The running transaction was refused: nothing of it stays."""
        for key, value in self._before.items():
            if value is _MISSING:
                del self._known[key]
            else:
                self._known[key] = value
        self._before = {}

    def changes(self) -> dict[bytes, bytes | None]:
        """What the open block changed, encoded, in the order of the keys."""
        known = self._known
        return {key: None if known[key] is None else wire.encode(known[key]) for key in sorted(self._block)}

    def seal(self) -> None:
        """The open block is stored; what it changed is what will be read."""
        self._block = set()

    def forget_block(self) -> None:
        """The open block could not be stored: back to what is."""
        self._known, self._block, self._before = {}, set(), {}

    def refresh(self, keys: Iterable[bytes]) -> None:
        """These keys were changed in what is stored: read them again."""
        for key in keys:
            self._known.pop(key, None)

    def _fetch(self, key: bytes) -> Any:
        key = bytes(key)
        stored = self._load(key)
        value = None if stored is None else wire.decode(stored, "state value")
        if len(self._known) > CACHE_KEYS_MAX:
            changed = self._block | self._before.keys()
            self._known = {one: self._known[one] for one in changed}
        self._known[key] = value
        return value
