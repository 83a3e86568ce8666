"""Groups: members share a topic's partitions by leases, and offsets move by compare-and-set.

Threat: a broker or a stranger that moves a group's offsets; a member that was cut off and commits late; two members
that each believe they hold a partition. Invariant: every change of membership raises the fence; a commit counts only
with the present fence, by the member to whom the partition is dealt, from the offset that stands there, forward.
Going back is its own entry. Leases run in block time, and are looked at whenever the group is touched.

Partitions are dealt by position: all (token, partition) in order, to the members in order, in turn.

    group/<id>                           [tenant, owner, lease ms, fence, [token, …],
                                          [[principal, member, lease end ms], …]]
    offset/<id><token><u32 partition>    [offset, fence, principal, height]
"""

from __future__ import annotations

from typing import Any

from tallystick.errors import Malformed, Refused
from tallystick.ledger.contracts import access, identity, reputation, settings, topics
from tallystick.ledger.contracts.access import Operation
from tallystick.ledger.contracts.call import Call
from tallystick.ledger.contracts.state import State
from tallystick.trust.certificate import Kind
from tallystick.trust.promise import PARTITIONS_MAX
from tallystick.trust.signed import Fields

TOKENS_MAX = 64
MEMBERS_MAX = 1024


class Group:
    """A group as the state holds it."""

    __slots__ = ("fence", "identifier", "lease_ms", "members", "owner", "tenant", "tokens")

    def __init__(self, identifier: bytes, value: list[Any]) -> None:
        self.identifier = identifier
        self.tenant, self.owner, self.lease_ms, self.fence, self.tokens, self.members = value

    def live_at(self, time_ms: int) -> Group:
        """The group without members whose lease ran out; the fence rises if there were any."""
        live = [member for member in self.members if member[2] > time_ms]
        return self if len(live) == len(self.members) else self.with_members(live)

    def with_members(self, members: list[list[Any]]) -> Group:
        """Other members, the next fence."""
        value = [self.tenant, self.owner, self.lease_ms, self.fence + 1, self.tokens, sorted(members)]
        return Group(self.identifier, value)

    def store(self, state: State) -> None:
        value = [self.tenant, self.owner, self.lease_ms, self.fence, self.tokens, self.members]
        state.put(b"group/" + self.identifier, value)


def find(state: State, identifier: bytes) -> Group | None:
    value = state.get(b"group/" + identifier)
    return None if value is None else Group(identifier, value)


def create(call: Call, entry: list[Any]) -> None:
    """[50, group, lease ms, [token, …]]"""
    fields = Fields(entry, "group", 4)
    fields.number()
    identifier, lease_ms, tokens = fields.octets(16), fields.number(), fields.items(TOKENS_MAX, 1)
    if not all(type(token) is bytes and len(token) == 16 for token in tokens) or tokens != sorted(set(tokens)):
        raise Malformed("group: tokens in order, each once")
    least, most = settings.read(call.state, "lease_ms_min"), settings.read(call.state, "lease_ms_max")
    if not least <= lease_ms <= most:
        raise Refused(f"lease: {least} to {most} ms expected, found {lease_ms}", reason="out-of-range")
    if find(call.state, identifier) is not None:
        raise Refused(f"group {identifier.hex()} exists already", reason="group-exists")
    _require_read(call, tokens)
    Group(identifier, [call.author_tenant, call.author, lease_ms, 1, tokens, []]).store(call.state)


def join(call: Call, entry: list[Any]) -> None:
    """[51, group, member]: a process of the author takes part, or goes on taking part, for one lease."""
    group, member = _enter(call, entry, "join")
    _require_read(call, group.tokens)
    lease = [call.author, member, call.time_ms + group.lease_ms]
    others = [item for item in group.members if item[:2] != lease[:2]]
    if len(others) == len(group.members):
        if len(others) >= MEMBERS_MAX:
            raise Refused(f"at most {MEMBERS_MAX} members", reason="group-full")
        group = group.with_members([*others, lease])
    else:
        group.members = sorted([*others, lease])
    group.store(call.state)


def leave(call: Call, entry: list[Any]) -> None:
    """[52, group, member]"""
    group, member = _enter(call, entry, "leave")
    others = [item for item in group.members if item[:2] != [call.author, member]]
    if len(others) == len(group.members):
        raise Refused("the member is not in the group", reason="not-member")
    group.with_members(others).store(call.state)


def commit(call: Call, entry: list[Any]) -> None:
    """[53, group, member, token, partition, fence, old, new]"""
    group, member, token, partition, fence, old, new = _offset_fields(call, entry)
    if fence != group.fence:
        raise Refused(f"fence {group.fence} expected, found {fence}", reason="fenced")
    if holder(call.state, group, token, partition) != (call.author, member):
        raise Refused(f"partition {partition} is dealt to another member", reason="not-holder")
    if new <= old:
        raise Refused(f"from {old} to {new} is no way forward", reason="offset-back")
    _move(call, group, token, partition, old, new)


def reset(call: Call, entry: list[Any]) -> None:
    """[54, group, member, token, partition, fence, old, new]: to any offset; by the group's or its tenant's owner."""
    group, _, token, partition, fence, old, new = _offset_fields(call, entry)
    if call.author != group.owner and not identity.is_tenant_admin(call.state, group.tenant, call.author):
        raise Refused("only the group's owner goes back", reason="not-owner")
    if fence != group.fence:
        raise Refused(f"fence {group.fence} expected, found {fence}", reason="fenced")
    _move(call, group, token, partition, old, new)


def offset(state: State, identifier: bytes, token: bytes, partition: int) -> int:
    """Where the group goes on reading."""
    value = state.get(_offset_key(identifier, token, partition))
    return 0 if value is None else int(value[0])


def deal(state: State, group: Group) -> dict[tuple[bytes, int], tuple[bytes, bytes]]:
    """(token, partition) → (principal, member), for the members as they stand."""
    if not group.members:
        return {}
    places = [(token, p) for token in group.tokens for p in range(topics.require(state, token).partitions)]
    members = [(principal, member) for principal, member, _ in group.members]
    return {place: members[i % len(members)] for i, place in enumerate(places)}


def holder(state: State, group: Group, token: bytes, partition: int) -> tuple[bytes, bytes] | None:
    """To whom `deal` gives this partition."""
    position = 0
    for other in group.tokens:
        partitions = topics.require(state, other).partitions
        if other == token:
            if partition >= partitions or not group.members:
                return None
            principal, member, _ = group.members[(position + partition) % len(group.members)]
            return principal, member
        position += partitions
    return None


def _enter(call: Call, entry: list[Any], what: str) -> tuple[Group, bytes]:
    fields = Fields(entry, what, 3)
    fields.number()
    group = _require_group(call, fields.octets(16))
    return group, fields.octets(16)


def _require_group(call: Call, identifier: bytes) -> Group:
    group = find(call.state, identifier)
    if group is None:
        raise Refused(f"group {identifier.hex()} does not exist", reason="unknown-group")
    if call.author_tenant != group.tenant or call.author_kind != Kind.PRINCIPAL:
        raise Refused("a group's members are principals of its tenant", reason="wrong-tenant")
    return group.live_at(call.time_ms)


def _offset_fields(call: Call, entry: list[Any]) -> tuple[Group, bytes, bytes, int, int, int, int]:
    fields = Fields(entry, "offset", 8)
    fields.number()
    group, member, token = _require_group(call, fields.octets(16)), fields.octets(16), fields.octets(16)
    partition, fence, old, new = fields.number(PARTITIONS_MAX - 1), fields.number(), fields.number(), fields.number()
    if token not in group.tokens or partition >= topics.require(call.state, token).partitions:
        raise Refused("the group does not read this partition", reason="unknown-partition")
    return group, member, token, partition, fence, old, new


def _move(call: Call, group: Group, token: bytes, partition: int, old: int, new: int) -> None:
    found = offset(call.state, group.identifier, token, partition)
    if found != old:
        raise Refused(f"offset {old} expected, {found} stands there", reason="offset-moved")
    group.store(call.state)
    key = _offset_key(group.identifier, token, partition)
    call.state.put(key, [new, group.fence, call.author, call.height])


def _require_read(call: Call, tokens: list[bytes]) -> None:
    if reputation.is_blacklisted(call.state, call.author):
        raise Refused("the principal is blacklisted", reason="blacklisted")
    for token in tokens:
        topics.require(call.state, token)
        if not access.granted(call.state, call.author, token) & Operation.READ:
            raise Refused(f"no right to read topic {token.hex()}", reason="no-right")


def _offset_key(identifier: bytes, token: bytes, partition: int) -> bytes:
    return b"offset/" + identifier + token + partition.to_bytes(4, "big")
