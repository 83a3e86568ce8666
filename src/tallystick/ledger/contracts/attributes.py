"""Attributes: which principal holds which attribute of which tenant, the epochs that keys for them are good for, and
what topics ask of whoever opens a column group.

Threat: a tenant that grants in another's namespace, or undoes another's grant; a withdrawal that nobody can show; an
authority that quietly goes on with an epoch that a withdrawal ended, or names one number twice. Invariant: a grant
lies under its tenant and is written by that tenant's owner alone; epochs of an authority count up by one, and one that
is still to come may be brought forward, never put off.

Names and values are not here. A pseudonym stands for (principal, full name) under a key of the authority, so that two
principals with one attribute cannot be told; the commitment is salted, so that equal values look different. What is
seen: how many attributes of which tenant a principal has, when each came, went and ends. Left out: that a pseudonym
stands for a name of the tenant's own namespace; only the authority can tell, and makes no key of any other.

Policies of a topic are commitments. Threat: an authority, restored or dishonest, that hands out the keys of an older,
wider policy; a policy that somebody else than the owner set or lifted. Invariant: versions of a group's policy count up
by one under the owner's signature, and the ledger names the newest. The formula stays at the authority, since it gives
away who reads a topic; the commitment is salted.

    attribute/<tenant><principal><pseudonym>   [commitment, not after ms or 0, height]
    attribute-epoch/<authority><u32 number>    [public key hash, not before ms, height]
    attribute-epochs/<authority>               the last number announced
    policy/<token><u8 group>                   [version, commitment or empty where lifted, height]
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tallystick.errors import Malformed, Refused
from tallystick.ledger.contracts import identity, topics
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


def grant(call: Call, entry: list[Any]) -> None:
    """[44, tenant, principal, pseudonym, commitment, not after ms or 0]; a grant of the same attribute is replaced."""
    fields = fields_of(entry, "attribute", 6)
    tenant, principal, pseudonym = fields.octets(16), fields.octets(16), fields.octets(16)
    commitment, not_after_ms = fields.octets(32), fields.number()
    _require_admin(call, tenant)
    if identity.require(call.state, principal).kind != SubjectKind.PRINCIPAL:
        raise Refused(f"{principal.hex()} is not a principal", reason="not-principal")
    call.state.put(ATTRIBUTES(tenant, principal, pseudonym), [commitment, not_after_ms, call.height])


def withdraw(call: Call, entry: list[Any]) -> None:
    """[45, tenant, principal, pseudonym]"""
    fields = fields_of(entry, "attribute", 4)
    tenant, principal, pseudonym = fields.octets(16), fields.octets(16), fields.octets(16)
    _require_admin(call, tenant)
    key = ATTRIBUTES(tenant, principal, pseudonym)
    if call.state.get(key) is None:
        raise Refused("the principal has no such attribute of this tenant", reason="unknown-attribute")
    call.state.put(key, None)


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
