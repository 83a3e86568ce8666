"""Operations: the history of every topic, one entry per act or aggregate (BPS 4.1, Table 3).

Threat: an act that leaves no trace; a history with an entry cut out; a node that ruins a principal's name with
refusals it invented, or writes histories of topics it does not carry. Invariant: an operation is written by a node
registered for the partition; it extends the topic's hash chain, which the state root covers, so a history is whole or
provably not. Scores fall only by evidence: the signed request itself, addressed to the author, fresh, never used
before, for an act that this contract, from its own state as it was when the request was made, refuses too. What only
the node can judge (rate, size, sequence) is recorded and has no effect. Nor has an unauthenticated operator
(`NOBODY`): junk enters as one aggregate per reason and window.

Threat: a principal that is ruined by its own honest readers. A right is withdrawn, and nine of them ask once more
before they can know; or all of them are started for a topic that it may not read. From version 2 on nothing counts that
was asked within `grace_ms` of the last change of the principal's rules there, and of a principal and topic one request
within `fall_window_ms`. What matters is when it was signed, so that a node cannot spread what came at once over many
windows; and the block's time where that is earlier, so that a clock that is ahead costs nothing.

To BPS Table 3 (operator, role, topic, operation, time, last operation) come the reason of a refusal, host, count,
offsets and the hash of the signed request; an aggregate holds the Merkle root of those hashes. The last operation's
place is not the author's to write: it is in the transaction's result.

    history/<token>     [height, index, count, chain] of the last operation
    evidence/<hash>     height at which a signed request was held against its principal
    fallen/<id><token>  block time at which that last happened to a principal on a topic; from version 2 on

A run of plain operations goes through the contract at once (`find_runs`). `operation` is the rule; this is the same
rule for entries that it takes without a second thought (accepted, no evidence, the one encoding:
`kernel.read_operations`), nearly all of what a busy node writes. What the rule asks of each entry is asked once of each
operator and each partition, because no plain operation changes the answer; what it adds up is added up by the kernel. A
run of which the rule would refuse any entry is not taken, and nothing was done: it then goes entry by entry, so that
the refusal names its entry as ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from hashlib import sha256
from typing import Any

from tallystick import wire
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Malformed, Refused
from tallystick.later import np
from tallystick.ledger.block import BATCH_MIN, CompiledLedger, Transaction, compiled_for, joined
from tallystick.ledger.contracts import access, identity, leases, reputation, settings, topics
from tallystick.ledger.contracts.access import HOST_CHARACTERS_MAX
from tallystick.ledger.contracts.state import (
    HASH,
    ID,
    NO_HISTORY,
    NOBODY,
    Call,
    Handler,
    HistoryLink,
    HistoryRow,
    State,
    Table,
)
from tallystick.trust.certificate import SubjectKind
from tallystick.trust.envelope import Envelope, check_evidence
from tallystick.trust.promise import PARTITIONS_MAX, REASON_CHARACTERS_MAX
from tallystick.trust.right import Right

COUNT_MAX = 1 << 32
NUMBER_MAX = (1 << 63) - 1
EVIDENCE_BYTES_MAX = 2048  # a signed request without its body; a longer one has a path nobody needs

# The exact types of an operation entry: one comparison instead of fourteen, since this is the busiest entry of all.
_SHAPE = [int, bytes, int, bytes, int, str, str, int, int, int, int, int, bytes, bytes]
_OPERATIONS = frozenset(int(op) for op in Right)
_CHAIN_HEAD = b"\x85" + wire.encode("history") + b"\x58\x20"
_HASH_HEAD = b"\x58\x20"
_number = lru_cache(maxsize=1 << 14)(wire.encode)  # the same few heights and indices again and again

# What a signed request asks for, by method and path: the part of the HTTP interface that evidence depends on.
_TARGET = re.compile(r"/v1/topics/([0-9a-f]{32})(?:/([a-z]+))?(?:/.*)?")
_ASKED = {
    ("POST", "parcels"): Right.WRITE,
    ("POST", "advertisements"): Right.WRITE,
    ("GET", "parcels"): Right.READ,
    ("POST", "subscriptions"): Right.READ,
    ("GET", None): Right.DESCRIBE,
    ("GET", "partitions"): Right.DESCRIBE,
    ("DELETE", None): Right.DELETE,
}


HISTORIES = Table("history", HistoryRow, ID)
EVIDENCE = Table("evidence", int, HASH)
FALLEN = Table("fallen", int, ID, ID)  # by principal and token


class OperatorRole(IntEnum):
    NONE = 0  # an operator that was not authenticated
    PUBLISHER = 1  # BPS: producer
    SUBSCRIBER = 2  # BPS: consumer


def operation(call: Call, entry: list[Any]) -> None:
    """Version 1."""
    _record(call, entry, _judge)


def operation_2(call: Call, entry: list[Any]) -> None:
    """Version 2: the same entry, judged with patience."""
    _record(call, entry, _judge_patiently)


def _record(call: Call, entry: list[Any], judge: Callable[[Call, bytes, bytes, int, bytes, bytes], None]) -> None:
    """[35, operator, role, token, operation, reason, host, count, partition, first, end, time ms, request, evidence]

    `reason` is empty for what was accepted; `first` and `end` are offsets; `request` is the hash of the signed
    request, or the Merkle root of `count` of them; `evidence` is that request, or empty.
    """
    if [*map(type, entry)] != _SHAPE:
        raise Malformed("operation: not the fields of an operation")
    _, operator, role, token, kind, reason, host, count, partition, first, end, time_ms, request, evidence = entry
    if not (
        len(operator) == len(token) == 16
        and len(request) == 32
        and kind in _OPERATIONS
        and 0 <= role <= 2
        and 0 < count <= COUNT_MAX
        and 0 <= partition < PARTITIONS_MAX
        and 0 <= first <= end <= NUMBER_MAX
        and 0 <= time_ms <= NUMBER_MAX
        and len(reason) <= REASON_CHARACTERS_MAX
        and len(host) <= HOST_CHARACTERS_MAX
        and len(evidence) <= EVIDENCE_BYTES_MAX
    ):
        raise Malformed("operation: a field is out of form or range")
    if operator != NOBODY and operator not in call.accepted:
        if call.state.get(b"identity/" + operator) is None:
            raise Refused(f"operator {operator.hex()} is not enrolled", reason="unknown-identity")
        call.accepted[operator] = 0
    if (token, partition) in call.carried or is_carried(call, token, partition, reason):
        link = call.links.get(token) or open_link(call, token)
        link.chain = next_chain(link.chain, call.height, call.first + call.index, call.entry_hash)
        link.indices.append(call.index)
    if not reason:
        if operator == NOBODY:
            raise Refused("nobody's act is never accepted", reason="wrong-operator")
        call.accepted[operator] += count
        return
    call.refused += 1
    if evidence:
        judge(call, operator, token, kind, request, evidence)


def is_carried(call: Call, token: bytes, partition: int, reason: str) -> bool:
    """Whether the operation belongs to a topic's history. Raises `Refused` unless the author may write it.

    A refused request may name a topic or partition that does not exist. It is recorded all the same, else one such
    request would spoil the batch that tells of it; but a topic that does not exist gets no history, else strangers
    would fill the state.
    """
    topic = call.state.row(topics.TOPICS(token))
    if topic is None:
        if not reason:
            raise Refused(f"topic {token.hex()} does not exist", reason="unknown-topic")
        if call.author_kind != SubjectKind.NODE:
            raise Refused("operations are written by nodes", reason="not-node")
        return False
    if reason and partition >= topic.partitions:
        partition = 0
    if not leases.carries(call, token, partition) and not leases.serves(call, token):
        raise Refused(f"author is no node of partition {partition} of topic {token.hex()}", reason="not-host")
    return True


def next_chain(chain: bytes, height: int, index: int, entry_hash: bytes) -> bytes:
    """chain' = SHA-256(wire ["history", chain, height, index, entry hash])."""
    parts = (_CHAIN_HEAD, chain, _number(height), _number(index), _HASH_HEAD, entry_hash)
    return sha256(b"".join(parts)).digest()


def settle(call: Call) -> None:
    """After the last entry: each topic's history and each operator's rise, written once however many entries."""
    for token, link in call.links.items():
        count = link.previous.operations + len(link.indices)
        call.state.put(HISTORIES(token), [call.height, call.first + link.indices[-1], count, link.chain])
    reputation.rise(call, call.accepted)


def open_link(call: Call, token: bytes) -> HistoryLink:
    before = call.state.row(HISTORIES(token)) or NO_HISTORY
    link = call.links[token] = HistoryLink(before, before.chain)
    return link


def _judge(call: Call, operator: bytes, token: bytes, kind: int, request: bytes, evidence: bytes) -> None:
    """Lower the operator's score if its own signed request proves that it asked for what it may not.

    Evidence that proves nothing has no effect, but stays: whoever reads the history sees who brought it.
    """
    created_ms = _misdeed_ms(call, operator, token, kind, request, evidence)
    # A right that was changed since the request proves nothing: it may have been there when it was asked for.
    if created_ms is not None and created_ms > access.changed_ms(call.state, operator, token):
        _convict(call, operator, request)


def _judge_patiently(call: Call, operator: bytes, token: bytes, kind: int, request: bytes, evidence: bytes) -> None:
    """As `_judge`, but for what the operator could not know yet, and for more than one fall in a window."""
    created_ms = _misdeed_ms(call, operator, token, kind, request, evidence)
    if created_ms is None:
        return
    asked_ms = min(created_ms, call.time_ms)
    known_ms = access.changed_ms(call.state, operator, token) + settings.read(call.state, "grace_ms")
    fallen_ms, window_ms = call.state.row(FALLEN(operator, token)), settings.read(call.state, "fall_window_ms")
    if asked_ms <= known_ms or (fallen_ms is not None and window_ms and asked_ms < fallen_ms + window_ms):
        return
    call.state.put(FALLEN(operator, token), call.time_ms)
    _convict(call, operator, request)


def _misdeed_ms(call: Call, operator: bytes, token: bytes, kind: int, request: bytes, evidence: bytes) -> int | None:
    """When the operator signed a request for what it may not do now, or None where the evidence does not prove one.

    The host is the node's word alone, so only what the operator may do from no host at all counts against it.
    """
    envelope = _read_evidence(call.state, evidence)
    if envelope is None or envelope.base_hash != request or envelope.principal != operator:
        return None
    created_ms = envelope.created * 1000
    fresh = abs(call.time_ms - created_ms) <= settings.read(call.state, "evidence_age_ms")
    if envelope.node != call.author or not fresh or call.state.get(EVIDENCE(request)) is not None:
        return None
    if asked(envelope) != (token, kind) or reputation.is_blacklisted(call.state, operator):
        return None
    return None if access.granted(call.state, operator, token) & kind else created_ms


def _convict(call: Call, operator: bytes, request: bytes) -> None:
    call.state.put(EVIDENCE(request), call.height)
    reputation.fall(call, operator)


def asked(envelope: Envelope) -> tuple[bytes, int] | None:
    """Return the topic and the operation that a signed request names, or None where its target names none."""
    target = _TARGET.fullmatch(envelope.path)
    wanted = _ASKED.get((envelope.method, target[2])) if target else None
    return (bytes.fromhex(target[1]), int(wanted)) if target and wanted else None


def _read_evidence(state: State, evidence: bytes) -> Envelope | None:
    def resolve(principal: bytes) -> VerifyKey | None:
        found = identity.find(state, principal)
        return None if found is None else VerifyKey(found.key)

    try:
        return check_evidence(evidence, resolve)
    except Refused:
        return None


@dataclass(frozen=True, slots=True)
class OperationRun:
    """Entries `[first, end)` of a transaction, all plain operations."""

    first: int
    end: int
    data: bytes  # of all the transaction's entries
    hashes: bytes  # of the run's
    rows: Any  # the run's, as `kernel.read_operations` gives them
    compiled: CompiledLedger

    def take(self, call: Call) -> bool:
        """Run all of it by version 1 or 2. Returns False, and changes nothing, where one of them would be refused."""
        kernel = self.compiled.kernel
        octets, nothing = np.frombuffer(self.data, np.uint8), np.zeros(len(self.rows), np.int64)
        tokens_at, operators_at, counts, partitions = (np.ascontiguousarray(column) for column in self.rows.T)
        operator_of, operator_firsts = kernel.number_keys(octets, operators_at, nothing)
        operators = self._names(operators_at[operator_firsts])
        if any(one not in call.accepted and call.state.get(b"identity/" + one) is None for one in operators):
            return False
        _, pair_firsts = kernel.number_keys(octets, tokens_at, partitions)
        pairs = zip(self._names(tokens_at[pair_firsts]), partitions[pair_firsts].tolist(), strict=True)
        if not all(_may_write(call, token, partition) for token, partition in pairs):
            return False
        sums = np.zeros(len(operators), np.int64)
        np.add.at(sums, operator_of, counts)
        for operator, count in zip(operators, sums.tolist(), strict=True):
            call.accepted[operator] = call.accepted.get(operator, 0) + count
        self._extend(call, octets, tokens_at, nothing)
        return True

    def _extend(self, call: Call, octets: Any, tokens_at: Any, nothing: Any) -> None:
        """Every topic's history by its operations of the run."""
        kernel = self.compiled.kernel
        token_of, firsts = kernel.number_keys(octets, tokens_at, nothing)
        links = [call.links.get(token) or open_link(call, token) for token in self._names(tokens_at[firsts])]
        chains = b"".join(link.chain for link in links)
        extended, entries = self.compiled.extend(chains, token_of, self.hashes, call.height, call.first + self.first)
        for number, (link, own) in enumerate(zip(links, entries, strict=True)):
            link.chain = extended[32 * number : 32 * number + 32]
            link.indices += [self.first + entry for entry in own]

    def _names(self, places: Any) -> list[bytes]:
        return [self.data[at : at + 16] for at in places.tolist()]


# How each version of the rule takes a run: a version that is not here would go entry by entry, without a word.
RUNS: dict[Handler, Callable[[OperationRun, Call], bool]] = {
    operation: OperationRun.take,
    operation_2: OperationRun.take,  # what it judges otherwise is never plain
}


def find_runs(transaction: Transaction) -> Iterator[OperationRun]:
    """The transaction's long runs of plain operations, in order, or none where there is no compiled way."""
    entries = transaction.entries
    found = compiled_for(len(entries))
    if found is None:
        return
    data, ends = joined(entries)
    rows = found.kernel.read_operations(data, ends, PARTITIONS_MAX, HOST_CHARACTERS_MAX, COUNT_MAX)
    borders = np.flatnonzero(np.diff(rows[:, 0] >= 0, prepend=False, append=False)).tolist()
    for first, end in zip(borders[::2], borders[1::2], strict=True):
        if end - first >= BATCH_MIN:
            hashes = transaction.entry_hashes[32 * first : 32 * end]
            yield OperationRun(first, end, data.tobytes(), hashes, rows[first:end], found)


def _may_write(call: Call, token: bytes, partition: int) -> bool:
    try:
        return (token, partition) in call.carried or is_carried(call, token, partition, "")
    except Refused:
        return False
