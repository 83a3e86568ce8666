"""Writes: (write, batch) → hash, the first wins; the compare-and-set of a streaming sink.

Threat: a batch that is run again, by another attempt of the same query, commits a second list of lanes. Invariant: a
batch of a write has one hash for ever. The set is kept per author, so that nobody takes another's place.

    write/<author><write><u64 batch>   [hash, height]
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tallystick.errors import Refused
from tallystick.ledger.contracts import access
from tallystick.ledger.contracts.state import ID, U64, Call, State, Table, fields_of
from tallystick.trust.right import Right


class WriteRow(NamedTuple):
    hash: bytes
    height: int


WRITES = Table("write", WriteRow, ID, ID, U64)  # by author, write and batch


def write(call: Call, entry: list[Any]) -> None:
    """[70, token, write, batch, hash]; the author may write to the topic."""
    fields = fields_of(entry, "write", 5)
    token, identifier, batch, digest = fields.octets(16), fields.octets(16), fields.number(), fields.octets(32)
    if not access.granted(call.state, call.author, token) & Right.WRITE:
        raise Refused(f"no right to write to topic {token.hex()}", reason="no-right")
    if winner(call.state, call.author, identifier, batch) is not None:
        raise Refused(f"batch {batch} of write {identifier.hex()} is taken", reason="batch-taken")
    call.state.put(WRITES(call.author, identifier, batch), [digest, call.height])


def winner(state: State, author: bytes, identifier: bytes, batch: int) -> bytes | None:
    """The hash that won this batch, or None."""
    row = state.row(WRITES(author, identifier, batch))
    return None if row is None else row.hash
