"""The owner's side of attributes and policies: what it drafts at the authority, and the entries it signs.

The owner draws the salts and computes the commitments itself. So it knows what it signs, and the authority can show
nothing else for it later: a commitment opens to one name and value, or to one formula.
"""

from __future__ import annotations

from tallystick.authority.attributes import attribute_commitment
from tallystick.authority.client import AuthorityClient
from tallystick.authority.policies import policy_commitment
from tallystick.errors import Forged
from tallystick.ledger import entries
from tallystick.policy.formula import Formula
from tallystick.policy.space import AttributeSet


def grant_entries(
    authority: AuthorityClient,
    tenant: bytes,
    principal: bytes,
    held: AttributeSet,
    salt: bytes,
    not_after_ms: int = 0,
) -> list[bytes]:
    """The entries that give `principal` these attributes of `tenant`; the salt has 32 fresh random bytes."""
    pseudonyms = authority.draft_attributes(principal, held.encode(), salt)
    if len(set(pseudonyms)) != len(held.values):
        raise Forged("attributes: the authority names another number of them")
    return [
        entries.grant_attribute(
            tenant, principal, pseudonym, attribute_commitment(salt, principal, name, value), not_after_ms
        )
        for pseudonym, (name, value) in zip(pseudonyms, held.values, strict=True)
    ]


def withdraw_entries(authority: AuthorityClient, tenant: bytes, principal: bytes, names: list[str]) -> list[bytes]:
    """The entries that take attributes back, by full or bare names."""
    return [
        entries.withdraw_attribute(tenant, principal, pseudonym)
        for pseudonym in authority.attribute_pseudonyms(principal, names)
    ]


def policy_entry(authority: AuthorityClient, token: bytes, group: int, formula: Formula | None, salt: bytes) -> bytes:
    """The entry that sets the policy of a column group, or lifts it; the salt has 32 fresh random bytes."""
    encoded = b"" if formula is None else formula.encode()
    version = authority.draft_policy(token, group, encoded, salt)
    commitment = policy_commitment(salt, token, group, version, encoded) if encoded else b""
    return entries.topic_policy(token, group, version, commitment)
