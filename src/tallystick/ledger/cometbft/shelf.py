"""The snapshots that a validator offers to those who join: cut beside consensus, kept in memory, the newest few."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from hashlib import sha256

from tallystick.abci import messages as m
from tallystick.errors import TallystickError
from tallystick.ledger.block import Block
from tallystick.ledger.cometbft.snapshot import FORMAT, Description, cut
from tallystick.ledger.sqlite_store import Store

log = logging.getLogger(__name__)


class Shelf:
    """Snapshots of the ledger in the file `path`, one every `every` blocks (0: none), `kept` of them."""

    def __init__(self, path: str, every: int, kept: int) -> None:
        self._path, self._every, self._kept = path, every, kept
        self._held: OrderedDict[int, tuple[Description, list[bytes]]] = OrderedDict()
        self._cutting: threading.Thread | None = None

    def close(self) -> None:
        if self._cutting is not None:
            self._cutting.join()

    def committed(self, block: Block) -> None:
        """To be called when `block` is stored and nothing after it: the file's version is held fast at once."""
        if not self._every or block.height % self._every:
            return
        if self._cutting is not None and self._cutting.is_alive():
            return  # the next one will do
        store = Store(self._path)
        store.hold()
        self._cutting = threading.Thread(target=self._cut, args=(store, block), name="snapshot", daemon=True)
        self._cutting.start()

    def list(self) -> m.ResponseListSnapshots:
        found = []
        for height, (description, _) in list(self._held.items()):
            encoded = description.encode()
            found.append(m.Snapshot(height, FORMAT, description.chunks, sha256(encoded).digest(), encoded))
        return m.ResponseListSnapshots(tuple(found))

    def chunk(self, height: int, format_: int, index: int) -> bytes:
        """Empty where there is no such chunk."""
        held = self._held.get(height)
        return held[1][index] if held is not None and format_ == FORMAT and index < len(held[1]) else b""

    def _cut(self, store: Store, block: Block) -> None:
        try:
            snapshot = cut(block, b"".join(store.leaves()), store.values(), store.count_values())
        except TallystickError:
            log.exception("the snapshot of height %d was not made", block.height)
            return
        finally:
            store.close()
        self._held[block.height] = snapshot
        while len(self._held) > self._kept:
            self._held.popitem(last=False)
