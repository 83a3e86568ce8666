"""Attributes: which principal holds which attribute of which tenant, the epochs that keys for them are good for, and
what topics ask of whoever opens a column group.

Threat: a tenant that grants in another's namespace, or undoes another's grant; a withdrawal that nobody can show; an
authority that quietly goes on with an epoch that a withdrawal ended, or names one number twice. Invariant: a grant
lies under its tenant and is written by that tenant's owner alone; epochs of an authority count up by one, and one that
is still to come may be brought forward, never put off.

Threat: a tenant that grants to another's principal without end, until no key can be made of it all. From version 2 on a
tenant grants `foreign_attributes_max` attributes to a principal of another's; whoever holds an attribute, or owns the
tenant of its holder, drops it; and both may refuse whatever a tenant grants from then on. How much of a key others may
take is the authority's to bound, since only it knows the values. Left out: grants from before version 2 do not count.

Names and values are not here. A pseudonym stands for (principal, full name) under a key of the authority, so that two
principals with one attribute cannot be told; the commitment is salted, so that equal values look different. What is
seen: how many attributes of which tenant a principal has, when each came, went and ends. Left out: that a pseudonym
stands for a name of the tenant's own namespace; only the authority can tell, and makes no key of any other.

Policies of a topic are commitments. Threat: an authority, restored or dishonest, that hands out the keys of an older,
wider policy; a policy that somebody else than the owner set or lifted. Invariant: versions of a group's policy count up
by one under the owner's signature, and the ledger names the newest. The formula stays at the authority, since it gives
away who reads a topic; the commitment is salted.

    attribute/<tenant><principal><pseudonym>   [commitment, not after ms or 0, height]
    attribute-count/<tenant><principal>        how many the tenant granted to this principal of another's
    attribute-refusal/<holder><tenant>         height from which a principal, or a whole tenant, takes none of it
    attribute-epoch/<authority><u32 number>    [public key hash, not before ms, height]
    attribute-epochs/<authority>               the last number announced
    policy/<token><u8 group>                   [version, commitment or empty where lifted, height]
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tallystick.errors import Malformed, Refused
from tallystick.ledger.contracts import identity, settings, topics
from tallystick.ledger.contracts.state import ID, U8, U32, Call, Table, fields_of
from tallystick.trust.certificate import SubjectKind
from tallystick.trust.permit import LAST_EPOCH


class AttributeRow(NamedTuple):
    commitment: bytes
    not_after_ms: int  # or 0
    height: int


class AttributeEpochRow(NamedTuple):
    key_hash: bytes
    not_before_ms: int
    height: int


ATTRIBUTES = Table("attribute", AttributeRow, ID, ID, ID)  # by tenant, principal and pseudonym
ATTRIBUTE_EPOCHS = Table("attribute-epoch", AttributeEpochRow, ID, U32)  # by authority and number
LAST_ATTRIBUTE_EPOCHS = Table("attribute-epochs", int, ID)
_COUNTS = Table("attribute-count", int, ID, ID)  # by tenant and principal
ATTRIBUTE_REFUSALS = Table("attribute-refusal", int, ID, ID)  # by holder (a principal or a tenant) and granting tenant


class _Grant(NamedTuple):
    tenant: bytes
    principal: bytes
    pseudonym: bytes
    commitment: bytes
    not_after_ms: int
    home: bytes  # the tenant of the principal


def grant(call: Call, entry: list[Any]) -> None:
    """[44, tenant, principal, pseudonym, commitment, not after ms or 0]; a grant of the same attribute is replaced."""
    _put(call, _read_grant(call, entry))


def grant_2(call: Call, entry: list[Any]) -> None:
    """The same entry; to another tenant's principal within bounds, and unless it is refused there."""
    found = _read_grant(call, entry)
    key = ATTRIBUTES(*found[:3])
    if found.home != found.tenant:
        for holder in (found.principal, found.home):
            if call.state.get(ATTRIBUTE_REFUSALS(holder, found.tenant)) is not None:
                raise Refused("the holder takes no attributes of this tenant", reason="attributes-refused")
        count, most = _count(call, *found[:2]), settings.read(call.state, "foreign_attributes_max")
        if call.state.get(key) is None:
            if count >= most:
                raise Refused(
                    f"at most {most} attributes for a principal of another tenant", reason="too-many-attributes"
                )
            call.state.put(_COUNTS(*found[:2]), count + 1)
    _put(call, found)


def withdraw(call: Call, entry: list[Any]) -> None:
    """[45, tenant, principal, pseudonym]"""
    tenant, principal, pseudonym = _read_place(entry)
    _require_admin(call, tenant)
    _take(call, tenant, principal, pseudonym)


def withdraw_2(call: Call, entry: list[Any]) -> None:
    """The same entry."""
    withdraw(call, entry)
    _count_down(call, *_read_place(entry)[:2])


def drop(call: Call, entry: list[Any]) -> None:
    """[48, tenant, principal, pseudonym]: the holder lets go of it; by the holder, or the owner of its tenant."""
    tenant, principal, pseudonym = _read_place(entry)
    home = identity.require(call.state, principal).tenant
    if call.author != principal and not identity.is_tenant_admin(call.state, home, call.author):
        raise Refused("an attribute is dropped by its holder or its holder's tenant", reason="not-holder")
    _take(call, tenant, principal, pseudonym)
    _count_down(call, tenant, principal)


def refuse(call: Call, entry: list[Any]) -> None:
    """[49, holder, tenant, 1 or 0]: this principal, or everybody of this tenant, takes no attributes of `tenant` from
    now on, or takes them again; by the principal, or the owner of its tenant."""
    fields = fields_of(entry, "refusal", 4)
    holder, tenant, is_refused = fields.octets(16), fields.octets(16), fields.number(1)
    if call.author != holder and not identity.is_tenant_admin(call.state, holder, call.author):
        raise Refused("attributes are refused by who holds them, or its tenant", reason="not-holder")
    key = ATTRIBUTE_REFUSALS(holder, tenant)
    if is_refused == (call.state.get(key) is not None):
        raise Refused(f"it is {'refused' if is_refused else 'not refused'} already", reason="no-change")
    call.state.put(key, call.height if is_refused else None)


def _read_grant(call: Call, entry: list[Any]) -> _Grant:
    fields = fields_of(entry, "attribute", 6)
    tenant, principal, pseudonym = fields.octets(16), fields.octets(16), fields.octets(16)
    commitment, not_after_ms = fields.octets(32), fields.number()
    _require_admin(call, tenant)
    holder = identity.require(call.state, principal)
    if holder.kind != SubjectKind.PRINCIPAL:
        raise Refused(f"{principal.hex()} is not a principal", reason="not-principal")
    return _Grant(tenant, principal, pseudonym, commitment, not_after_ms, holder.tenant)


def _read_place(entry: list[Any]) -> tuple[bytes, bytes, bytes]:
    fields = fields_of(entry, "attribute", 4)
    return fields.octets(16), fields.octets(16), fields.octets(16)


def _put(call: Call, found: _Grant) -> None:
    call.state.put(ATTRIBUTES(*found[:3]), [found.commitment, found.not_after_ms, call.height])


def _take(call: Call, tenant: bytes, principal: bytes, pseudonym: bytes) -> None:
    key = ATTRIBUTES(tenant, principal, pseudonym)
    if call.state.get(key) is None:
        raise Refused("the principal has no such attribute of this tenant", reason="unknown-attribute")
    call.state.put(key, None)


def _count(call: Call, tenant: bytes, principal: bytes) -> int:
    return call.state.row(_COUNTS(tenant, principal)) or 0


def _count_down(call: Call, tenant: bytes, principal: bytes) -> None:
    if count := _count(call, tenant, principal):
        call.state.put(_COUNTS(tenant, principal), count - 1 or None)


def announce(call: Call, entry: list[Any]) -> None:
    """[47, epoch, public key hash, not before ms]; by the authority whose keys they are.

    An announced epoch that has not begun is named again to begin earlier: so ends the one before it.
    """
    fields = fields_of(entry, "attribute epoch", 4)
    epoch, key_hash, not_before_ms = fields.number(LAST_EPOCH, 1), fields.octets(32), fields.number()
    call.require_authority_of(call.author_tenant)
    last = call.state.row(LAST_ATTRIBUTE_EPOCHS(call.author)) or 0
    if not 1 <= epoch <= last + 1:
        raise Refused(f"attribute epoch {last + 1} expected, found {epoch}", reason="wrong-epoch")
    known = call.state.row(ATTRIBUTE_EPOCHS(call.author, epoch))
    if known is not None and (
        known.key_hash != key_hash or not not_before_ms < known.not_before_ms or call.time_ms >= known.not_before_ms
    ):
        raise Refused(f"attribute epoch {epoch} can only be brought forward before it begins", reason="wrong-epoch")
    before = call.state.row(ATTRIBUTE_EPOCHS(call.author, epoch - 1))
    if before is not None and not_before_ms < before.not_before_ms:
        raise Refused(f"attribute epoch {epoch} cannot begin before epoch {epoch - 1}", reason="wrong-epoch")
    call.state.put(ATTRIBUTE_EPOCHS(call.author, epoch), [key_hash, not_before_ms, call.height])
    call.state.put(LAST_ATTRIBUTE_EPOCHS(call.author), max(last, epoch))


def _require_admin(call: Call, tenant: bytes) -> None:
    if not identity.is_tenant_admin(call.state, tenant, call.author):
        raise Refused(f"only the owner of tenant {tenant.hex()} grants its attributes", reason="not-owner")


GROUP_MAX = 255


class PolicyRow(NamedTuple):
    version: int
    commitment: bytes  # empty where the policy was lifted
    height: int


POLICIES = Table("policy", PolicyRow, ID, U8)  # by token and column group


def policy(call: Call, entry: list[Any]) -> None:
    """[46, token, group, version, commitment or empty]; by the topic's owner. An empty one lifts the policy."""
    fields = fields_of(entry, "topic policy", 5)
    token, group, version = fields.octets(16), fields.number(GROUP_MAX), fields.number((1 << 32) - 1, 1)
    commitment = fields.octets(at_most=32)
    if len(commitment) not in (0, 32):
        raise Malformed("topic policy: a commitment of 32 bytes, or none, expected")
    topics.require_owner(call, token)
    known = call.state.row(POLICIES(token, group)) or PolicyRow(0, b"", 0)
    if version != known.version + 1:
        raise Refused(f"topic policy: version {known.version + 1} expected, found {version}", reason="wrong-version")
    if not commitment and not known.commitment:
        raise Refused(f"column group {group} has no policy to lift", reason="no-policy")
    call.state.put(POLICIES(token, group), [version, commitment, call.height])
