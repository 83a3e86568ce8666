"""Reading back: a topic's history along its links, and entries for audit queries.

An operation's transaction holds, in its result, where the topic's operation before it lies; so a history costs what
it returns, not what the chain holds (BPS 4.1, Fig. 6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import unpack

from tallystick import wire
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.operations import HISTORIES
from tallystick.ledger.contracts.state import State
from tallystick.ledger.engine import AuditItem, HistoryItem, Query
from tallystick.ledger.sqlite_store import TransactionRow

_OPERATOR, _TOKEN, _REASON = 1, 3, 5  # fields of an operation


def find_history(
    state: State,
    row_at: Callable[[int, int], TransactionRow],
    token: bytes,
    most: int,
    before: tuple[int, int] | None,
) -> list[HistoryItem]:
    """Up to `most` operations of the topic, newest first, older than the place `before` if given."""
    head = state.row(HISTORIES(token))
    found: list[HistoryItem] = []
    count, height, index = (head.operations, head.height, head.entry) if head is not None else (0, 0, 0)
    while count and len(found) < most:
        row = row_at(height, index)
        entries = _entries(row)
        count, height, index, places = _link(row, token)
        for place in reversed(places):
            if before is None or (row.height, row.first + place) < before:
                found.append(HistoryItem(row.height, row.first + place, entries[place]))
    return found[:most]


def entries_of(row: TransactionRow, time_ms: int, only: int | None = None) -> Iterator[AuditItem]:
    """The entries of a stored transaction, or one of them."""
    entries = _entries(row)
    author = wire.decode(wire.decode(row.data)[0])[2]
    places = range(len(entries)) if only is None else (only,)
    for place, fields in zip(places, wire.decode_each([entries[place] for place in places]), strict=True):
        yield AuditItem(row.height, row.first + place, time_ms, author, fields[0], fields, entries[place])


def matches(query: Query, item: AuditItem) -> bool:
    is_operation = item.kind == EntryKind.OPERATION
    if query.kind is not None and item.kind != query.kind:
        return False
    if query.refused and not (is_operation and item.fields[_REASON]):
        return False
    if query.token is not None and not (is_operation and item.fields[_TOKEN] == query.token):
        return False
    if query.principal is not None:
        return item.author == query.principal or (is_operation and item.fields[_OPERATOR] == query.principal)
    return True


def _entries(row: TransactionRow) -> list[bytes]:
    entries: list[bytes] = wire.decode(row.data, "transaction")[2]
    return entries


def _link(row: TransactionRow, token: bytes) -> tuple[int, int, int, list[int]]:
    """Operations before this transaction, place of the last of them, and places of those in it."""
    for name, count, height, index, packed in wire.decode(row.result, "result"):
        if name == token:
            return count, height, index, list(unpack(f">{len(packed) // 2}H", packed))
    return 0, 0, 0, []
