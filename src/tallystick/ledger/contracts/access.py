"""Rights: principal P is allowed or denied operations O from host H on topic R (BPS 3.2, 4.3).

Threat: a tenant that grants itself a right on another's topic; an operator who edits the list. Invariant: a rule is
written only by the topic's owner or its tenant's owner; deny beats allow; no rule, no right. Patterns over topic
names are expanded to tokens before they come here: the ledger never sees a name.

`topics_with` is Algorithm 4 of BPS, one lookup: each principal has an index of its topics, kept with every change.

    right/<token><principal>   [block time of the last change, [[allow, operations, host], …] sorted]
    rights/<principal>         per topic token and one byte of operations that some host may, sorted, in one string
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tallystick.errors import Refused
from tallystick.ledger.contracts import identity, topics
from tallystick.ledger.contracts.state import ID, Call, State, Table, fields_of
from tallystick.trust.right import Right

RULES_MAX = 64  # per principal and topic: a handful of hosts
TOPICS_MAX = 16_384  # per principal: its index stays under 300 kB
HOST_CHARACTERS_MAX = 64  # an address, or a name of one label
ANY_HOST = "*"
_RECORD = 17


class RightRow(NamedTuple):
    """The rules for a principal on a topic."""

    changed_ms: int
    rules: list[list[Any]]  # [allow, operations, host], sorted


RIGHTS = Table("right", RightRow, ID, ID)  # by token and principal
INDEXES = Table("rights", bytes, ID)

ALL_OPERATIONS = 15


def grant(call: Call, entry: list[Any]) -> None:
    """[25, token, principal, allow, operations, host]"""
    token, principal, rule = _parse(entry, "grant")
    topics.require_owner(call, token)
    identity.require(call.state, principal)
    rules = _row(call.state, token, principal).rules
    if rule in rules:
        raise Refused("the rule exists already", reason="rule-exists")
    if len(rules) >= RULES_MAX:
        raise Refused(f"at most {RULES_MAX} rules for one principal and topic", reason="too-many-rules")
    _store(call, token, principal, sorted([*rules, rule]))


def withdraw(call: Call, entry: list[Any]) -> None:
    """[26, token, principal, allow, operations, host]: the rule as it was granted."""
    token, principal, rule = _parse(entry, "withdraw")
    topics.require_owner(call, token)
    rules = _row(call.state, token, principal).rules
    if rule not in rules:
        raise Refused("there is no such rule", reason="unknown-rule")
    _store(call, token, principal, [other for other in rules if other != rule])


def allowed(state: State, principal: bytes, token: bytes, operation: int, host: str) -> bool:
    """Whether the rules let `principal` do `operation` on the topic from `host`."""
    return decide(_row(state, token, principal).rules, operation, host)


def decide(rules: list[list[Any]], operation: int, host: str) -> bool:
    """Deny beats allow; silence is no."""
    matching = [allow for allow, operations, pattern in rules if operations & operation and pattern in (ANY_HOST, host)]
    return bool(matching) and all(matching)


def close(call: Call, entry: list[Any]) -> None:
    """[13, token], from version 2 of `topics` on: also by whoever has the right to delete the topic."""
    token = fields_of(entry, "close topic", 2).octets(16)
    topic = topics.require(call.state, token)
    if not granted(call.state, call.author, token) & Right.DELETE:
        topics.require_owner(call, token)
    topics.end(call, token, topic)


def granted(state: State, principal: bytes, token: bytes) -> int:
    """The operations that `principal` may do on the topic from at least one host."""
    return _some_host_may(_row(state, token, principal).rules)


def changed_ms(state: State, principal: bytes, token: bytes) -> int:
    """Block time of the last change of these rules, or 0 where there never were any."""
    return _row(state, token, principal).changed_ms


def topics_with(state: State, principal: bytes, operation: int) -> list[bytes]:
    """Algorithm 4 of BPS: the tokens on which `principal` may do `operation` from at least one host."""
    return indexed(state.row(INDEXES(principal)), operation)


def indexed(index: bytes | None, operation: int) -> list[bytes]:
    """The tokens of an index `rights/<principal>` that allow `operation`."""
    index = index or b""
    return [index[at : at + 16] for at in range(0, len(index), _RECORD) if index[at + 16] & operation]


def _parse(entry: list[Any], what: str) -> tuple[bytes, bytes, list[Any]]:
    fields = fields_of(entry, what, 6)
    token, principal = fields.octets(16), fields.octets(16)
    allow, operations = fields.number(1), fields.number(ALL_OPERATIONS, 1)
    host = fields.text(HOST_CHARACTERS_MAX)
    if not host or (ANY_HOST in host and host != ANY_HOST):
        raise Refused(f'host "{host}": a literal or {ANY_HOST} expected', reason="wrong-host")
    return token, principal, [allow, operations, host]


def _row(state: State, token: bytes, principal: bytes) -> RightRow:
    return state.row(RIGHTS(token, principal)) or RightRow(0, [])


def _store(call: Call, token: bytes, principal: bytes, rules: list[list[Any]]) -> None:
    # An emptied list stays, with its time: whoever judges an old request must know when the right was taken.
    call.state.put(RIGHTS(token, principal), [call.time_ms, rules])
    key = INDEXES(principal)
    index = call.state.get(key) or b""
    records = {index[at : at + 16]: index[at + 16] for at in range(0, len(index), _RECORD)}
    records.pop(token, None)
    if mask := _some_host_may(rules):
        records[token] = mask
    if len(records) > TOPICS_MAX:
        raise Refused(f"at most {TOPICS_MAX} topics for one principal", reason="too-many-topics")
    call.state.put(key, b"".join(t + bytes([records[t]]) for t in sorted(records)) or None)


def _some_host_may(rules: list[list[Any]]) -> int:
    hosts = {pattern for _, _, pattern in rules}
    return sum(op for op in Right if any(decide(rules, op, host) for host in hosts))
