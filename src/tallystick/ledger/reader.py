"""Reading a ledger's file: blocks, histories, audits, families of the state; nothing here is proved or written.

A reader has its own connection to the file or shares that of the one writer; it is not for several threads at once.
"""

from __future__ import annotations

from typing import Any

from tallystick import wire
from tallystick.errors import Misuse, Unavailable
from tallystick.ledger.audit import entries_of, find_history, matches
from tallystick.ledger.block import Block
from tallystick.ledger.contracts.state import R, State, Table
from tallystick.ledger.engine import AuditItem, HistoryItem, Query, Submitted
from tallystick.ledger.sqlite_store import LedgerStore, TransactionRow

_PAGE = 1000  # operations of a topic that an audit looks at together


class LedgerReader:
    """What is stored, as of the newest block; `view` is to be refreshed by whoever learns of a block."""

    def __init__(self, store: LedgerStore) -> None:
        self.store = store
        self.view = State(store.value)

    @property
    def height(self) -> int:
        height = self.store.last_height()
        assert height is not None
        return height

    def block(self, height: int) -> Block:
        return Block.decode(self._stored(height)[0])

    def note(self, height: int) -> bytes:
        return self._stored(height)[1]

    def row(self, number: int) -> TransactionRow:
        """A stored transaction; `Unavailable` where only its leaf came with a snapshot."""
        row = self.store.row(number)
        if row is None:
            raise Misuse(f"ledger: no transaction {number}")
        if not row.data:
            raise Unavailable(
                f"ledger: transaction {number} is older than the snapshot with which this node began",
                hint="ask a node that was there from the beginning",
            )
        return row

    def find(self, leaf: bytes) -> Submitted | None:
        found = self.store.find(leaf)
        return None if found is None else Submitted(leaf, *found)

    def blocks(self, first: int, most: int) -> list[tuple[bytes, list[bytes]]]:
        found = []
        for height in range(first, min(first + most, self.height + 1)):
            block = self.block(height)
            rows = self.store.rows(block.first, block.first + block.count)
            found.append((block.encoded, [row.data for row in rows]))
        return found

    def history(self, token: bytes, most: int, before: tuple[int, int] | None) -> list[HistoryItem]:
        return find_history(self.view, self._row_at, token, most, before)

    def audit(self, query: Query) -> list[AuditItem]:
        """By topic along its links, by principal along the index of mentions, else through the range."""
        if query.token is not None:
            return self._audit_topic(query, query.token)
        end_height = self.height + 1 if query.end_height is None else query.end_height
        first, end = self._first_number(query.first_height), self._first_number(end_height)
        if query.principal is not None:
            self.store.index_mentions()
            numbers = self.store.mentioning(query.principal, first, end)
        else:
            numbers = self.store.numbers(first, end, query.kind, query.refused)
        found: list[AuditItem] = []
        for number in numbers:
            row = self.row(number)
            time_ms = self.block(row.height).time_ms
            found += [item for item in entries_of(row, time_ms) if matches(query, item)]
            if len(found) >= query.most:
                break
        return found[: query.most]

    def scan(self, table: Table[R], *parts: bytes | int, most: int) -> list[tuple[tuple[Any, ...], R]]:
        found = self.store.values(table.prefix(*parts), most)
        return [(table.parts(key), table.read(wire.decode(value))) for key, value in found]

    def _stored(self, height: int) -> tuple[bytes, bytes]:
        found = self.store.block(height)
        if found is not None:
            return found
        newest = self.height
        if 0 <= height <= newest:
            raise Unavailable(
                f"ledger: block {height} is older than the snapshot with which this node began",
                hint="ask a node that was there from the beginning",
            )
        raise Misuse(f"ledger: no block at height {height}, the newest is {newest}")

    def _first_number(self, height: int) -> int:
        newest = self.height
        return self.block(height).first if height <= newest else self.block(newest).size

    def _row_at(self, height: int, index: int) -> TransactionRow:
        """The transaction that holds entry `index` of the block at `height`."""
        block = self.block(height)
        low, high = block.first, block.first + block.count - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.row(middle).first <= index else (low, middle - 1)
        return self.row(low)

    def _audit_topic(self, query: Query, token: bytes) -> list[AuditItem]:
        found: list[AuditItem] = []
        end = None if query.end_height is None else (query.end_height, 0)
        while len(found) < query.most:
            page = find_history(self.view, self._row_at, token, _PAGE, end)
            for item in page:
                if item.height < query.first_height:
                    return found
                row = self._row_at(item.height, item.index)
                time_ms = self.block(item.height).time_ms
                audited = entries_of(row, time_ms, item.index - row.first)
                found += [one for one in audited if matches(query, one)]
            if not page:
                break
            end = (page[-1].height, page[-1].index)
        return found[: query.most]
