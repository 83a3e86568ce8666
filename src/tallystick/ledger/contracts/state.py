"""The state that contracts read and change: wire values under byte keys `b"<family>/…"`.

Three layers lie over the stored values: what was read (a cache), what the open block changed, what the running
transaction changed. A refused transaction is discarded whole; a finished block gives its changes once, so that a
topic written 512 times in a block costs one encoding and one path of the Merkle map.

A value is never changed in place: put a new one. None means absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tallystick import wire

CACHE_KEYS_MAX = 100_000  # some 30 MB of decoded values

_MISSING: Any = object()


class State:
    """Contracts' view of the ledger's state; `load` reads the stored encoding of a key."""

    def __init__(self, load: Callable[[bytes], bytes | None]) -> None:
        self._load = load
        self._read: dict[bytes, Any] = {}
        self._block: dict[bytes, Any] = {}
        self._transaction: dict[bytes, Any] = {}

    def get(self, key: bytes) -> Any:
        """The value under `key`, or None."""
        value = self._transaction.get(key, _MISSING)
        if value is not _MISSING:
            return value
        value = self._block.get(key, _MISSING)
        if value is not _MISSING:
            return value
        value = self._read.get(key, _MISSING)
        return value if value is not _MISSING else self._fetch(key)

    def put(self, key: bytes, value: Any) -> None:
        """Set `key` for the running transaction; None removes it."""
        self._transaction[key] = value

    def keep(self) -> None:
        """The running transaction was accepted: its changes belong to the block."""
        self._block.update(self._transaction)
        self._transaction = {}

    def discard(self) -> None:
        """The running transaction was refused: nothing of it stays."""
        self._transaction = {}

    def changes(self) -> dict[bytes, bytes | None]:
        """What the open block changed, encoded, in the order of the keys."""
        block = self._block
        return {key: None if block[key] is None else wire.encode(block[key]) for key in sorted(block)}

    def seal(self) -> None:
        """The open block is stored; what it changed is what will be read."""
        if len(self._read) + len(self._block) > CACHE_KEYS_MAX:
            self._read = {}
        self._read.update(self._block)
        self._block = {}

    def forget_block(self) -> None:
        """The open block could not be stored: back to what is."""
        self._block, self._transaction, self._read = {}, {}, {}

    def refresh(self, keys: Iterable[bytes]) -> None:
        """These keys were changed in what is stored: read them again."""
        for key in keys:
            self._read.pop(key, None)

    def _fetch(self, key: bytes) -> Any:
        stored = self._load(key)
        value = None if stored is None else wire.decode(stored, "state value")
        if len(self._read) > CACHE_KEYS_MAX:
            self._read = {}
        self._read[key] = value
        return value
