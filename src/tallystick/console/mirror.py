"""The ledger as the viewer replayed it: every block from the genesis on, kept in the viewer's own folder.

Threat: a node that shows pages of its own making. Nothing on a page comes from the node but blocks, and each goes
through the contracts again (`ledger.fsck.Replay`). What was replayed counts only when its last block is the one under a
checkpoint that the viewer's memory accepted. Blocks that end in no such checkpoint are taken back whole: the file is as
it was, and `Trouble` tells what did not hold. A mirror in trouble goes on showing what it verified before, and its age.

The file is a ledger's own (`ledger.sqlite_store`), so an audit's indexes serve here too, and the next start goes on
where this one ended. It is as trustworthy as the folder in which it lies, as the checkpoint memory beside it is, and
holds no secret.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from tallystick.errors import Forged, Malformed, Misuse, Refused, TallystickError, Unavailable, Withheld
from tallystick.ledger.block import Block, Head
from tallystick.ledger.contracts.state import Key, R, Table
from tallystick.ledger.engine import AuditItem, HistoryItem, Query
from tallystick.ledger.fsck import Replay
from tallystick.ledger.proofs import decode_head, encode_head
from tallystick.ledger.sqlite_store import LedgerReader, LedgerStore, TransactionRow
from tallystick.trust.trustfile import TrustFile

log = logging.getLogger(__name__)

FILE = "ledger.sqlite"
PAUSE_S = 0.4  # between looks at the newest checkpoint: a block is to be seen within a second
_HEIGHTS_AT_ONCE = 64
KEPT_AT_ONCE = 20_000  # transactions that a file takes together while it catches up
_SCANNED_MAX = 1 << 20
WHO_IS_AWAY = "tally status says how node and authority are"
_ASK_ITS_OPERATOR = "ask the node's operator, another node or its witnesses; this home keeps what was accepted before"


class LedgerWay(Protocol):
    """What a mirror asks: a session's view for checkpoints, its node for blocks."""

    def refresh(self) -> Head: ...

    def blocks(self, first: int, most: int) -> list[tuple[bytes, list[bytes]]]: ...


@dataclass(frozen=True, slots=True)
class Trouble:
    """What stands in the way of a newer view."""

    reason: str  # "away", or the reason of what does not hold
    message: str
    hint: str
    since_ms: int

    @property
    def is_away(self) -> bool:
        """Whether the node only does not answer; else what it shows does not hold."""
        return self.reason == "away"


@dataclass(frozen=True, slots=True)
class Glance:
    """How far the mirror is; immutable, a new one with each change."""

    version: int = 0  # rises with each change
    head: Head | None = None  # the checkpoint under which everything shown lies
    replayed: int = -1  # the height of the last block that was replayed; above the head while it catches up
    target: int = 0  # the height that it is on its way to
    trouble: Trouble | None = None


class Mirror:
    """Follows a ledger from a thread of its own; pages read it from others."""

    def __init__(
        self, folder: Path, first: TrustFile, now_ms: Callable[[], int], kept_at_once: int = KEPT_AT_ONCE
    ) -> None:
        """`folder` holds what an earlier mirror kept. `first` is the genesis."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path, self._first, self._now_ms, self._kept_at_once = folder / FILE, first, now_ms, kept_at_once
        self._reading = threading.RLock()  # of the reading connection
        self._listeners: list[Callable[[], object]] = []
        self.at = Glance()
        self._open()

    def _open(self, *, anew: bool = False) -> None:
        """Go on with what lies in the folder, if it is whole, and nothing is to be made anew."""
        if not anew:
            try:
                self._read()
            except (Malformed, Misuse) as error:
                log.warning("%s is not whole and is made anew: %s", self._path, error)
                anew = True
        if anew:  # not above, where the error still holds the old file open: it would take the new log with it
            for file in self._path.parent.glob(f"{FILE}*"):
                file.unlink()
            self._read()
        self._reader = LedgerReader(LedgerStore(str(self._path), create=False), indexing=False)

    def _read(self) -> None:
        self._path.touch(mode=0o600)  # and so are the files that SQLite puts beside it
        self._store = LedgerStore(str(self._path))
        try:
            self._replay, kept = self._take_up(), self._store.meta("checked")
            head = decode_head(kept) if isinstance(kept, bytes) else None
        except TallystickError:
            self._store.close()
            raise
        if head is not None and head.height == self._replay.height - 1:  # the last block lies under what was accepted
            self.at = replace(self.at, head=head, replayed=head.height, target=head.height)

    def _take_up(self) -> Replay:
        height = self._store.last_height()
        if height is None:
            return Replay(self._first)
        block = LedgerReader(self._store).block(height)
        return Replay.resume(block, self._store.leaves(), self._store.values(), self._first)

    # Following.

    def follow(self, way: LedgerWay) -> bool:
        """Come up to the newest checkpoint. Returns whether there was anything new. Raises what stands in the way, when
        it was noted for the pages."""
        try:
            head = way.refresh()
            known = self.at.head
            if known is not None:
                _check_goes_on(known, head)
            is_new = known is None or head.height > known.height
            if is_new:
                self._replay_to(head, way)
                self._store.index_mentions()
        except TallystickError as error:
            self._note_trouble(error)
            raise
        if is_new or self.at.trouble is not None:
            self.tell(head=head if is_new else known, replayed=head.height, target=head.height, trouble=None)
        return is_new

    def _replay_to(self, head: Head, way: LedgerWay) -> None:
        try:
            while self._replay.height <= head.height:
                with self._store.db:  # all of it, or nothing
                    self._replay_some(head, way)
        except Exception as error:  # whatever it is: what was replayed is ahead of the file
            if self.at.head is None and isinstance(error, Forged | Malformed):
                with self._reading:  # nothing was ever checked, and what was replayed ends in no checkpoint
                    self.close()
                    self._open(anew=True)
            else:
                self._replay = self._take_up()
            raise

    def _replay_some(self, head: Head, way: LedgerWay) -> None:
        """Up to the checkpoint. The first time, when nothing is shown before the end, as many blocks as a file takes
        together: whoever is interrupted goes on there."""
        before = self._replay.size
        while self._replay.height <= head.height:
            if self.at.head is None and self._replay.size - before >= self._kept_at_once:
                return
            height = self._replay.height
            most = min(_HEIGHTS_AT_ONCE, head.height + 1 - height)
            answer = way.blocks(height, most)
            if not answer:
                raise Unavailable(f"the node shows a checkpoint of height {head.height}, and not block {height}")
            for encoded, transactions in answer[:most]:
                self._take(encoded, transactions, head)
            if head.height - self._replay.height > _HEIGHTS_AT_ONCE:
                self.tell(replayed=self._replay.height - 1, target=head.height)
        self._replay.check_head(head)
        self._store.set_meta("checked", encode_head(head))

    def _take(self, encoded: bytes, transactions: Sequence[bytes], head: Head) -> None:
        block = Block.decode(encoded)
        self._replay.begin(block)
        steps = [self._replay.step(data) for data in transactions]
        self._replay.end()
        rows = [TransactionRow.of(one.transaction, one.result, one.number, one.height, one.first) for one in steps]
        note = head.note if block.height == head.height else b""
        changes = self._replay.changed if block.height else self._replay.values
        self._store.write_block(block.height, encoded, note, rows, changes)

    def _note_trouble(self, error: TallystickError) -> None:
        reason, remedy = "away", f"{WHO_IS_AWAY}; it is asked again all the time"
        if isinstance(error, Refused):
            reason, remedy = error.reason, _ASK_ITS_OPERATOR
        old = self.at.trouble
        since_ms = old.since_ms if old is not None and old.reason == reason else self._now_ms()
        trouble = Trouble(reason, str(error), error.hint or remedy, since_ms)
        if trouble != old:
            self.tell(trouble=trouble)

    def tell(self, **changes: Any) -> None:
        """Something is new: in how far the mirror is, or beside the ledger."""
        with self._reading:
            self.at = replace(self.at, version=self.at.version + 1, **changes)
            self._reader.view = type(self._reader.view)(self._reader.store.value)
        for listener in list(self._listeners):
            listener()

    # Reading.

    @contextmanager
    def listening(self, listener: Callable[[], object]) -> Iterator[None]:
        """Within the block `listener` is called, by any thread, when there is a new `at`."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def row(self, key: Key[R]) -> R | None:
        with self._reading:
            return self._reader.view.row(key)

    def scan(
        self, table: Table[R], *parts: bytes | int, most: int = _SCANNED_MAX, after: bytes = b""
    ) -> list[tuple[tuple[Any, ...], R]]:
        """The rows of a table whose keys begin with these parts and lie behind the key `after`, in order."""
        with self._reading:
            return self._reader.scan(table, *parts, most=most, after=after)

    def block(self, height: int) -> Block:
        """Raises `Misuse` where there is none yet."""
        with self._reading:
            return self._reader.block(height)

    def block_entries(self, height: int) -> list[AuditItem]:
        return self.audit(Query(first_height=height, end_height=height + 1, most=_SCANNED_MAX))

    def audit(self, query: Query) -> list[AuditItem]:
        with self._reading:
            return self._reader.audit(query)

    def history(self, token: bytes, most: int, before: tuple[int, int] | None = None) -> list[HistoryItem]:
        """Operations of a topic, newest first, below the place `before`: all that there are, since all was replayed."""
        with self._reading:
            return self._reader.history(token, most, before)

    def newest(self, most: int, before: int | None = None, query: Query = Query()) -> tuple[list[AuditItem], int]:
        """As `LedgerReader.newest`."""
        with self._reading:
            return self._reader.newest(query, most, before)

    def close(self) -> None:
        with self._reading:
            self._reader.store.close()
            self._store.close()


def _check_goes_on(known: Head, head: Head) -> None:
    """The viewer's memory has seen to this before, as long as nobody lost it."""
    if head.height < known.height:
        told = f"ledger: height {known.height} was verified here, {head.height} is shown"
        raise Withheld(told, reason="rollback", hint=_ASK_ITS_OPERATOR)
    if head.height == known.height and (head.root, head.state_root) != (known.root, known.state_root):
        told = f"ledger: the checkpoint of height {head.height} that is shown is not the one that was verified here"
        raise Withheld(told, reason="split-view", hint=_ASK_ITS_OPERATOR)
