"""Epochs: which key pair of a topic serves when; the ledger knows hashes of public halves only.

Threat: an authority restored from a backup that draws an epoch a second time, so that one number names two keys;
an epoch that is quietly prolonged after a revocation. Invariant: numbers of a topic count up by one and are
announced once; an end is final.

Epochs are announced ahead. One begins at its time, or when the one before it ended early (revocation), whichever
comes first.

    epoch/<token><u32 number>   [public key hash, not before ms, authority, end ms or 0, how]
    epochs/<token>              the last number announced
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from tallystick.errors import Refused
from tallystick.ledger.contracts import topics
from tallystick.ledger.contracts.call import Call
from tallystick.ledger.contracts.state import State
from tallystick.trust.permit import LAST_EPOCH
from tallystick.trust.signed import Fields


class End(IntEnum):
    NONE = 0
    SCHEDULE = 1
    REVOCATION = 2


def announce(call: Call, entry: list[Any]) -> None:
    """[20, token, epoch, public key hash, not before ms]; by the topic's authority."""
    fields = Fields(entry, "epoch", 5)
    fields.number()
    token, epoch, key_hash, not_before = (
        fields.octets(16),
        fields.number(LAST_EPOCH, 1),
        fields.octets(32),
        fields.number(),
    )
    call.require_authority_of(topics.require(call.state, token).tenant)
    last = last_announced(call.state, token)
    if epoch != last + 1:
        raise Refused(f"epoch {last + 1} of topic {token.hex()} expected, found {epoch}", reason="wrong-epoch")
    if last and not_before < _epoch(call.state, token, last)[1]:
        raise Refused(f"epoch {epoch} cannot begin before epoch {last}", reason="wrong-epoch")
    call.state.put(_key(token, epoch), [key_hash, not_before, call.author, 0, int(End.NONE)])
    call.state.put(b"epochs/" + token, epoch)


def end(call: Call, entry: list[Any]) -> None:
    """[21, token, epoch, how, time ms]: nothing is sealed under the epoch from then on."""
    fields = Fields(entry, "end of epoch", 5)
    fields.number()
    token, epoch = fields.octets(16), fields.number(LAST_EPOCH, 1)
    how, time_ms = fields.number(int(End.REVOCATION), int(End.SCHEDULE)), fields.number(at_least=1)
    call.require_authority_of(topics.require(call.state, token).tenant)
    value = _epoch(call.state, token, epoch)
    if value is None:
        raise Refused(f"epoch {epoch} of topic {token.hex()} was never announced", reason="wrong-epoch")
    if value[3]:
        raise Refused(f"epoch {epoch} of topic {token.hex()} ended already", reason="epoch-ended")
    call.state.put(_key(token, epoch), [*value[:3], time_ms, how])


def last_announced(state: State, token: bytes) -> int:
    """The last epoch of the topic, 0 before the first."""
    return state.get(b"epochs/" + token) or 0


def current(state: State, token: bytes, time_ms: int) -> int | None:
    """The epoch under which to seal at this time, or None."""
    for epoch in range(last_announced(state, token), 0, -1):
        value = _epoch(state, token, epoch)
        before = _epoch(state, token, epoch - 1)
        begins = min(value[1], before[3]) if before is not None and before[3] else value[1]
        if begins <= time_ms:
            return None if value[3] and value[3] <= time_ms else epoch
    return None


def _epoch(state: State, token: bytes, epoch: int) -> Any:
    return state.get(_key(token, epoch))


def _key(token: bytes, epoch: int) -> bytes:
    return b"epoch/" + token + epoch.to_bytes(4, "big")
