"""Erasures: which (topic, publisher, period) keys the authority destroyed.

Threat: an authority restored from a backup that serves a destroyed key again: it applies these marks first. What was
opened or exported before is outside.

    erasure/<token><publisher><u32 period>   [height, block time ms, authority]
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tallystick.errors import Refused
from tallystick.ledger.contracts import topics
from tallystick.ledger.contracts.state import ID, U32, Call, State, Table
from tallystick.wire import Fields


class ErasureRow(NamedTuple):
    height: int
    time_ms: int
    authority: bytes


ERASURES = Table("erasure", ErasureRow, ID, ID, U32)  # by token, publisher and period


def erase(call: Call, entry: list[Any]) -> None:
    """[75, token, publisher, period]; by the topic's authority."""
    fields = Fields(entry, "erasure", 4)
    fields.number()
    token, publisher, period = fields.octets(16), fields.octets(16), fields.number((1 << 32) - 1)
    topic = topics.require(call.state, token)
    call.require_authority_of(topic.tenant)
    if not topic.flags & topics.ERASABLE:
        raise Refused(f"topic {token.hex()} is not erasable", reason="not-erasable")
    key = ERASURES(token, publisher, period)
    if call.state.get(key) is not None:
        raise Refused("the period is erased already", reason="already-erased")
    call.state.put(key, [call.height, call.time_ms, call.author])


def is_erased(state: State, token: bytes, publisher: bytes, period: int) -> bool:
    return state.get(ERASURES(token, publisher, period)) is not None
