"""Permits by identifier: issued, undone, revoked.

Threat: an identifier issued twice (by an authority restored from a backup, or to two principals); a permit without
the right behind it; an undone permit that comes back. Invariant: an identifier is used once; issuing needs the
right (subscribe: READ, advertise: WRITE, both DESCRIBE); undone and revoked are final.

    permit/<id>   [operation, token, principal, authority, not after ms, status, height of the status]
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from tallystick.errors import Refused
from tallystick.ledger.contracts import access, identity, topics
from tallystick.ledger.contracts.state import ID, Call, State, Table, fields_of
from tallystick.trust.permit import Operation
from tallystick.trust.right import Right

_NEEDED = {
    Operation.SUBSCRIBE: Right.READ | Right.DESCRIBE,
    Operation.ADVERTISE: Right.WRITE | Right.DESCRIBE,
}


class PermitRow(NamedTuple):
    operation: int
    token: bytes
    principal: bytes
    authority: bytes
    not_after_ms: int
    status: int
    height: int  # of the status


PERMITS = Table("permit", PermitRow, ID)


class Status(IntEnum):
    ISSUED = 1
    UNDONE = 2  # by its holder
    REVOKED = 3  # by the authority


def issue(call: Call, entry: list[Any]) -> None:
    """[30, identifier, operation, token, principal, not after ms]; by the topic's authority."""
    fields = fields_of(entry, "permit", 6)
    identifier, operation = fields.octets(16), Operation(fields.number(2, 1))
    token, principal, not_after = fields.octets(16), fields.octets(16), fields.number()
    call.require_authority_of(topics.require(call.state, token).tenant)
    identity.require(call.state, principal).check_live(call.time_ms)
    if call.state.get(PERMITS(identifier)) is not None:
        raise Refused(f"permit {identifier.hex()} was issued already", reason="permit-exists")
    granted = access.granted(call.state, principal, token)
    if granted & _NEEDED[operation] != _NEEDED[operation]:
        raise Refused(f"principal {principal.hex()} has no right to {operation.name.lower()}", reason="no-right")
    row = PermitRow(int(operation), token, principal, call.author, not_after, int(Status.ISSUED), call.height)
    call.state.put(PERMITS(identifier), [*row])


def undo(call: Call, entry: list[Any]) -> None:
    """[31, identifier]; by its holder, or by the authority that was shown the undo token."""
    row = _take(call, entry)
    if call.author != row.principal:
        call.require_authority_of(topics.require(call.state, row.token).tenant)
    call.state.put(PERMITS(entry[1]), [*row._replace(status=int(Status.UNDONE), height=call.height)])


def revoke(call: Call, entry: list[Any]) -> None:
    """[32, identifier]; by the topic's authority."""
    row = _take(call, entry)
    call.require_authority_of(topics.require(call.state, row.token).tenant)
    call.state.put(PERMITS(entry[1]), [*row._replace(status=int(Status.REVOKED), height=call.height)])


def status(state: State, identifier: bytes) -> Status | None:
    row = state.row(PERMITS(identifier))
    return None if row is None else Status(row.status)


def _take(call: Call, entry: list[Any]) -> PermitRow:
    fields = fields_of(entry, "permit", 2)
    identifier = fields.octets(16)
    row = call.state.row(PERMITS(identifier))
    if row is None:
        raise Refused(f"permit {identifier.hex()} was never issued", reason="unknown-permit")
    if row.status != Status.ISSUED:
        raise Refused(f"permit {identifier.hex()} is {Status(row.status).name.lower()} already", reason="permit-ended")
    return row
