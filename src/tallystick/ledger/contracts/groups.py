"""Groups: members share a topic's partitions by leases, and offsets move by compare-and-set.

Threat: a broker or a stranger that moves a group's offsets; a member that was cut off and commits late; two members
that each believe they hold a partition. Invariant: every change of membership raises the fence; a commit counts only
with the present fence, by the member to whom the partition is dealt, from the offset that stands there, forward.
Going back is its own entry. Since version 2 an offset lies at most `AHEAD_MAX` beyond what is anchored: members may
read what is only stored, and nobody skips what is yet to come. Leases run in block time, and are looked at whenever the
group is touched.

Partitions are dealt by position: all (token, partition) in order, to the members in order, in turn.

    group/<id>                           [tenant, owner, lease ms, fence, [token, …],
                                          [[principal, member, lease end ms], …]]
    offset/<id><token><u32 partition>    [offset, fence, principal, height]
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tallystick.errors import Malformed, Refused
from tallystick.ledger.contracts import access, anchors, identity, reputation, settings, topics
from tallystick.ledger.contracts.state import ID, U32, Call, State, Table, fields_of
from tallystick.trust.certificate import SubjectKind
from tallystick.trust.promise import PARTITIONS_MAX
from tallystick.trust.right import Right

TOKENS_MAX = 64
MEMBERS_MAX = 1024
AHEAD_MAX = 1 << 20  # parcels that are stored and not yet anchored: a quarter of an hour of a thousand a second


class GroupRow(NamedTuple):
    tenant: bytes
    owner: bytes
    lease_ms: int
    fence: int
    tokens: list[bytes]
    members: list[list[Any]]  # [principal, member, lease end ms], sorted

    def live_at(self, time_ms: int) -> GroupRow:
        """The group without members whose lease ran out; the fence rises if there were any."""
        live = [member for member in self.members if member[2] > time_ms]
        return self if len(live) == len(self.members) else self.with_members(live)

    def with_members(self, members: list[list[Any]]) -> GroupRow:
        """Other members, the next fence."""
        return self._replace(fence=self.fence + 1, members=sorted(members))


class OffsetRow(NamedTuple):
    """Where a group goes on in a partition, and under which fence it was moved there."""

    offset: int
    fence: int
    principal: bytes
    height: int


GROUPS = Table("group", GroupRow, ID)
OFFSETS = Table("offset", OffsetRow, ID, ID, U32)  # by group, token and partition


def find(state: State, identifier: bytes) -> GroupRow | None:
    return state.row(GROUPS(identifier))


def create(call: Call, entry: list[Any]) -> None:
    """[50, group, lease ms, [token, …]]"""
    fields = fields_of(entry, "group", 4)
    identifier, lease_ms, tokens = fields.octets(16), fields.number(), fields.items(TOKENS_MAX, 1)
    if not all(type(token) is bytes and len(token) == 16 for token in tokens) or tokens != sorted(set(tokens)):
        raise Malformed("group: tokens in order, each once")
    settings.check_lease(call.state, lease_ms)
    if find(call.state, identifier) is not None:
        raise Refused(f"group {identifier.hex()} exists already", reason="group-exists")
    _require_read(call, tokens)
    call.state.put(GROUPS(identifier), [*GroupRow(call.author_tenant, call.author, lease_ms, 1, tokens, [])])


def join(call: Call, entry: list[Any]) -> None:
    """[51, group, member]: a process of the author takes part, or goes on taking part, for one lease."""
    identifier, group, member = _enter(call, entry, "join")
    _require_read(call, group.tokens)
    lease = [call.author, member, call.time_ms + group.lease_ms]
    others = [item for item in group.members if item[:2] != lease[:2]]
    if len(others) == len(group.members):
        if len(others) >= MEMBERS_MAX:
            raise Refused(f"at most {MEMBERS_MAX} members", reason="group-full")
        group = group.with_members([*others, lease])
    else:
        group = group._replace(members=sorted([*others, lease]))
    call.state.put(GROUPS(identifier), [*group])


def leave(call: Call, entry: list[Any]) -> None:
    """[52, group, member]"""
    identifier, group, member = _enter(call, entry, "leave")
    others = [item for item in group.members if item[:2] != [call.author, member]]
    if len(others) == len(group.members):
        raise Refused("the member is not in the group", reason="not-member")
    call.state.put(GROUPS(identifier), [*group.with_members(others)])


def commit(call: Call, entry: list[Any]) -> None:
    """[53, group, member, token, partition, fence, old, new]"""
    identifier, group, member, token, partition, fence, old, new = _offset_fields(call, entry)
    if fence != group.fence:
        raise Refused(f"fence {group.fence} expected, found {fence}", reason="fenced")
    if holder(call.state, group, token, partition) != (call.author, member):
        raise Refused(f"partition {partition} is dealt to another member", reason="not-holder")
    if new <= old:
        raise Refused(f"from {old} to {new} is no way forward", reason="offset-back")
    _move(call, identifier, group, token, partition, old, new)


def reset(call: Call, entry: list[Any]) -> None:
    """[54, group, member, token, partition, fence, old, new]: to any offset; by the group's or its tenant's owner."""
    identifier, group, _, token, partition, fence, old, new = _offset_fields(call, entry)
    if call.author != group.owner and not identity.is_tenant_admin(call.state, group.tenant, call.author):
        raise Refused("only the group's owner goes back", reason="not-owner")
    if fence != group.fence:
        raise Refused(f"fence {group.fence} expected, found {fence}", reason="fenced")
    _move(call, identifier, group, token, partition, old, new)


def commit_2(call: Call, entry: list[Any]) -> None:
    """As `commit`, to an offset that may exist."""
    _check_ahead(call, entry)
    commit(call, entry)


def reset_2(call: Call, entry: list[Any]) -> None:
    """As `reset`, to an offset that may exist."""
    _check_ahead(call, entry)
    reset(call, entry)


def _check_ahead(call: Call, entry: list[Any]) -> None:
    _, _, _, token, partition, _, _, new = _offset_fields(call, entry)
    anchor = call.state.row(anchors.ANCHORS(token, partition))
    anchored = 0 if anchor is None else anchor.size
    if new > anchored + AHEAD_MAX:
        message = f"offset {new} of partition {partition} is far beyond the {anchored} parcels that are anchored"
        raise Refused(message, reason="offset-ahead")


def offset(state: State, identifier: bytes, token: bytes, partition: int) -> int:
    """Where the group goes on reading."""
    row = state.row(OFFSETS(identifier, token, partition))
    return 0 if row is None else row.offset


def deal(state: State, group: GroupRow) -> dict[tuple[bytes, int], tuple[bytes, bytes]]:
    """(token, partition) → (principal, member), for the members as they stand."""
    if not group.members:
        return {}
    places = [(token, p) for token in group.tokens for p in range(topics.require(state, token).partitions)]
    members = [(principal, member) for principal, member, _ in group.members]
    return {place: members[i % len(members)] for i, place in enumerate(places)}


def holder(state: State, group: GroupRow, token: bytes, partition: int) -> tuple[bytes, bytes] | None:
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


def _enter(call: Call, entry: list[Any], what: str) -> tuple[bytes, GroupRow, bytes]:
    """The group's identifier, the group as it stands, and the member."""
    fields = fields_of(entry, what, 3)
    identifier = fields.octets(16)
    return identifier, _require_group(call, identifier), fields.octets(16)


def _require_group(call: Call, identifier: bytes) -> GroupRow:
    group = find(call.state, identifier)
    if group is None:
        raise Refused(f"group {identifier.hex()} does not exist", reason="unknown-group")
    if call.author_tenant != group.tenant or call.author_kind != SubjectKind.PRINCIPAL:
        raise Refused("a group's members are principals of its tenant", reason="wrong-tenant")
    return group.live_at(call.time_ms)


def _offset_fields(call: Call, entry: list[Any]) -> tuple[bytes, GroupRow, bytes, bytes, int, int, int, int]:
    fields = fields_of(entry, "offset", 8)
    identifier = fields.octets(16)
    group, member, token = _require_group(call, identifier), fields.octets(16), fields.octets(16)
    partition, fence, old, new = fields.number(PARTITIONS_MAX - 1), fields.number(), fields.number(), fields.number()
    if token not in group.tokens or partition >= topics.require(call.state, token).partitions:
        raise Refused("the group does not read this partition", reason="unknown-partition")
    return identifier, group, member, token, partition, fence, old, new


def _move(call: Call, identifier: bytes, group: GroupRow, token: bytes, partition: int, old: int, new: int) -> None:
    found = offset(call.state, identifier, token, partition)
    if found != old:
        raise Refused(f"offset {old} expected, {found} stands there", reason="offset-moved")
    call.state.put(GROUPS(identifier), [*group])
    call.state.put(OFFSETS(identifier, token, partition), [*OffsetRow(new, group.fence, call.author, call.height)])


def _require_read(call: Call, tokens: list[bytes]) -> None:
    if reputation.is_blacklisted(call.state, call.author):
        raise Refused("the principal is blacklisted", reason="blacklisted")
    for token in tokens:
        topics.require(call.state, token)
        if not access.granted(call.state, call.author, token) & Right.READ:
            raise Refused(f"no right to read topic {token.hex()}", reason="no-right")
