"""The snapshots that a validator offers to those who join: cut beside consensus, kept on disk, the newest few.

They lie beside the ledger's file, `ledger.snapshots/` beside `ledger.sqlite`: `<height>.<chunk>` for each chunk, and
`<height>.description`, written last, so that a snapshot is there whole or not at all. The folder is all there is to
know: another process (`tally chain snapshot --now`) may cut one while the validator runs, and the validator offers it.
Nobody need trust these files, since who joins checks every chunk.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tallystick.abci import messages as m
from tallystick.errors import TallystickError, Unavailable
from tallystick.ledger.block import Block
from tallystick.ledger.cometbft.snapshot import FORMAT, Description, cut
from tallystick.ledger.reader import LedgerReader
from tallystick.ledger.sqlite_store import LedgerStore
from tallystick.runtime.disk import RealDisk, read_all, write_atomic

log = logging.getLogger(__name__)

_DESCRIPTION = "description"


@dataclass(frozen=True)
class HeldSnapshot:
    """A snapshot on disk."""

    height: int
    chunks: int
    size_bytes: int
    hash: bytes  # of its description


class Shelf:
    """Snapshots of the ledger in the file `path`, one every `every` blocks (0: none), `kept` of them."""

    def __init__(self, path: str, every: int, kept: int) -> None:
        self._path, self._every, self._kept = path, every, kept
        self.folder = Path(path).with_suffix(".snapshots")
        self._disk = RealDisk(self.folder)
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
        store = LedgerStore(self._path)
        store.hold()
        self._cutting = threading.Thread(target=self._cut, args=(store, block), name="snapshot", daemon=True)
        self._cutting.start()

    def take(self) -> int:
        """Cut one of the file as it is now, whoever else writes to it. Returns its height."""
        store = LedgerStore(self._path, create=False)
        try:
            store.hold()
            height = store.last_height() or 0
            self._keep(store, LedgerReader(store).block(height))
            return height
        except OSError as error:
            raise Unavailable(f"{self.folder}: the snapshot was not written: {error}") from error
        finally:
            store.close()

    def held(self) -> list[HeldSnapshot]:
        """Those that are whole, the oldest first."""
        found = []
        for offered in self.offered().snapshots:
            with suppress(FileNotFoundError):  # it went while we looked
                sizes = [self._disk.size(f"{offered.height}.{part}") for part in (_DESCRIPTION, *range(offered.chunks))]
                found.append(HeldSnapshot(offered.height, offered.chunks, sum(sizes), offered.hash))
        return found

    def offered(self) -> m.ResponseListSnapshots:
        found = []
        for height in self._heights():
            try:
                encoded = read_all(self._disk, f"{height}.{_DESCRIPTION}")
                chunks = Description.decode(encoded).chunks
            except (TallystickError, OSError) as error:
                log.warning("the snapshot of height %d cannot be offered: %s", height, error)
                continue
            found.append(m.Snapshot(height, FORMAT, chunks, sha256(encoded).digest(), encoded))
        return m.ResponseListSnapshots(tuple(found))

    def chunk(self, height: int, format_: int, index: int) -> bytes:
        """Empty where there is no such chunk."""
        if format_ != FORMAT or height not in self._heights():
            return b""
        with suppress(OSError):
            return read_all(self._disk, f"{height}.{index}")
        return b""

    def forget_above(self, height: int) -> None:
        """Drop those of blocks that the file does not have: they were taken back, or the file is another one."""
        self._remove([one for one in self._heights() if one > height])

    def _cut(self, store: LedgerStore, block: Block) -> None:
        try:
            self._keep(store, block)
        except (TallystickError, OSError):
            log.exception("the snapshot of height %d was not made", block.height)
        finally:
            store.close()

    def _keep(self, store: LedgerStore, block: Block) -> None:
        height = block.height
        with self._disk.held("lock"):
            if height in self._heights():
                return
            description, chunks = cut(block, b"".join(store.leaves()), store.values(), store.count_values())
            for index, chunk in enumerate(chunks):
                write_atomic(self._disk, f"{height}.{index}", chunk)
            write_atomic(self._disk, f"{height}.{_DESCRIPTION}", description.encode())
            kept = self._heights()[-self._kept :]
            self._remove([one for one in self._heights(part="") if one < kept[0]])

    def _heights(self, part: str = _DESCRIPTION) -> list[int]:
        """Heights that have this part; those of which there is anything, with an empty one."""
        names = [name.partition(".") for name in self._disk.listdir("") if name != "lock"]
        return sorted({int(height) for height, _, rest in names if part in ("", rest)})

    def _remove(self, heights: list[int]) -> None:
        """Descriptions first: what is half gone is not offered."""
        names = [name for name in self._disk.listdir("") if name != "lock" and int(name.partition(".")[0]) in heights]
        for name in sorted(names, key=lambda name: not name.endswith(_DESCRIPTION)):
            with suppress(FileNotFoundError):
                self._disk.remove(name)
