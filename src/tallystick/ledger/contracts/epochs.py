"""Epochs: which key pair of a topic serves when, and which keys were destroyed. The ledger knows hashes of public
halves only.

Threat: an authority restored from a backup that draws an epoch a second time, so that one number names two keys;
an epoch that is quietly prolonged after a revocation. Invariant: numbers of a topic count up by one and are
announced once; an end is final.

Epochs are announced ahead. One begins at its time, or when the one before it ended early (revocation), whichever
comes first.

An erasure says that the authority destroyed the keys of a (topic, publisher, period). Threat: an authority restored
from a backup that serves a destroyed key again: it applies these marks first. What was opened or exported before is
outside.

    epoch/<token><u32 number>                [public key hash, not before ms, authority, end ms or 0, how]
    epochs/<token>                           the last number announced
    erasure/<token><publisher><u32 period>   [height, block time ms, authority]
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from tallystick.errors import Refused
from tallystick.ledger.contracts import topics
from tallystick.ledger.contracts.state import ID, U32, Call, State, Table, fields_of
from tallystick.trust.permit import LAST_EPOCH


class End(IntEnum):
    NONE = 0
    SCHEDULE = 1
    REVOCATION = 2


class EpochRow(NamedTuple):
    key_hash: bytes
    not_before_ms: int
    authority: bytes
    end_ms: int  # or 0
    how: int

    def begins_ms(self, before: EpochRow | None) -> int:
        """When it begins, behind the epoch `before` it."""
        early = before is not None and before.end_ms
        return min(self.not_before_ms, early) if early else self.not_before_ms


EPOCHS = Table("epoch", EpochRow, ID, U32)
LAST_EPOCHS = Table("epochs", int, ID)


def announce(call: Call, entry: list[Any]) -> None:
    """[20, token, epoch, public key hash, not before ms]; by the topic's authority."""
    fields = fields_of(entry, "epoch", 5)
    token, epoch = fields.octets(16), fields.number(LAST_EPOCH, 1)
    key_hash, not_before = fields.octets(32), fields.number()
    call.require_authority_of(topics.require(call.state, token).tenant)
    last = last_announced(call.state, token)
    if epoch != last + 1:
        raise Refused(f"epoch {last + 1} of topic {token.hex()} expected, found {epoch}", reason="wrong-epoch")
    before = call.state.row(EPOCHS(token, last))
    if before is not None and not_before < before.not_before_ms:
        raise Refused(f"epoch {epoch} cannot begin before epoch {last}", reason="wrong-epoch")
    call.state.put(EPOCHS(token, epoch), [key_hash, not_before, call.author, 0, int(End.NONE)])
    call.state.put(LAST_EPOCHS(token), epoch)


def end(call: Call, entry: list[Any]) -> None:
    """[21, token, epoch, how, time ms]: nothing is sealed under the epoch from then on."""
    fields = fields_of(entry, "end of epoch", 5)
    token, epoch = fields.octets(16), fields.number(LAST_EPOCH, 1)
    how, time_ms = fields.number(int(End.REVOCATION), int(End.SCHEDULE)), fields.number(at_least=1)
    call.require_authority_of(topics.require(call.state, token).tenant)
    row = call.state.row(EPOCHS(token, epoch))
    if row is None:
        raise Refused(f"epoch {epoch} of topic {token.hex()} was never announced", reason="wrong-epoch")
    if row.end_ms:
        raise Refused(f"epoch {epoch} of topic {token.hex()} ended already", reason="epoch-ended")
    call.state.put(EPOCHS(token, epoch), [*row._replace(end_ms=time_ms, how=how)])


def last_announced(state: State, token: bytes) -> int:
    """The last epoch of the topic, 0 before the first."""
    return state.row(LAST_EPOCHS(token)) or 0


def current(state: State, token: bytes, time_ms: int) -> int | None:
    """The epoch under which to seal at this time, or None."""
    for epoch in range(last_announced(state, token), 0, -1):
        row, before = state.row(EPOCHS(token, epoch)), state.row(EPOCHS(token, epoch - 1))
        assert row is not None  # numbers are announced one by one
        if row.begins_ms(before) <= time_ms:
            return None if row.end_ms and row.end_ms <= time_ms else epoch
    return None


class TopicKeyRow(NamedTuple):
    key_hash: bytes
    height: int


TOPIC_KEYS = Table("topic-key", TopicKeyRow, ID, ID)  # by token and the key's name


def announce_key(call: Call, entry: list[Any]) -> None:
    """[22, token, name, public key hash]: a key beside the epochs', of an erasure period or a topic policy; by the
    topic's authority. What is there already may be said again, and stays as it is."""
    fields = fields_of(entry, "key", 4)
    token, name, key_hash = fields.octets(16), fields.octets(16), fields.octets(32)
    call.require_authority_of(topics.require(call.state, token).tenant)
    known = call.state.row(TOPIC_KEYS(token, name))
    if known is None:
        call.state.put(TOPIC_KEYS(token, name), [key_hash, call.height])
    elif known.key_hash != key_hash:
        raise Refused(f"key {name.hex()} of topic {token.hex()} is another", reason="wrong-key")


class ErasureRow(NamedTuple):
    height: int
    time_ms: int
    authority: bytes


ERASURES = Table("erasure", ErasureRow, ID, ID, U32)  # by token, publisher and period


def erase(call: Call, entry: list[Any]) -> None:
    """[75, token, publisher, period]; by the topic's authority."""
    fields = fields_of(entry, "erasure", 4)
    token, publisher, period = fields.octets(16), fields.octets(16), fields.number((1 << 32) - 1)
    topic = topics.require(call.state, token)
    call.require_authority_of(topic.tenant)
    if not topic.flags & topics.ERASABLE:
        raise Refused(f"topic {token.hex()} is not erasable", reason="not-erasable")
    key = ERASURES(token, publisher, period)
    if call.state.get(key) is not None:
        raise Refused("the period is erased already", reason="already-erased")
    call.state.put(key, [call.height, call.time_ms, call.author])
