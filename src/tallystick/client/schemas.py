"""Schemas and policies of a topic: their text from the authority, held to the ledger, which has their hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.errors import Forged, Unavailable

if TYPE_CHECKING:  # commands import what they need when they run
    from tallystick.authority.answers import ListedPolicy
    from tallystick.client.session import Session
    from tallystick.ledger.contracts.attributes import PolicyRow
    from tallystick.ledger.contracts.state import RowReader
    from tallystick.policy.formula import Formula
    from tallystick.record.schema import Schema

LOST = "lost by the authority: set it again"  # instead of a policy


def newest_schema(session: Session, token: bytes) -> Schema:
    """The newest version of a topic's schema: its text from the authority, held to the ledger."""
    return held_schema(session.view.row, token, session.authority.schemas(token)[-1])


def held_schema(read: RowReader, token: bytes, encoded: bytes) -> Schema:
    """A version of a topic's schema that the authority told, held to the ledger, whose rows `read` brings. Raises
    `Forged`."""
    from tallystick.ledger.contracts.topics import SCHEMAS
    from tallystick.record.schema import Schema

    schema = Schema.decode(encoded)
    signed = read(SCHEMAS(token, schema.version))
    if signed is None or signed.hash != schema.hash:
        raise Forged(
            f"topic {token.hex()}: version {schema.version} of its schema is not the one that the ledger names",
            hint="nothing was signed; tell the authority's operator",
        )
    return schema


def held_policy(read: RowReader, token: bytes, told: ListedPolicy) -> Formula:
    """The policy of a column group that the authority told, held to the ledger, as `held_schema` is. Raises `Forged`,
    and `Unavailable` while the authority and the ledger are not at the same version."""
    from tallystick.ledger.contracts.attributes import POLICIES
    from tallystick.policy.formula import Formula

    row = read(POLICIES(token, told.group))
    if row is None or row.version != told.version:
        what = f"version {told.version} of the policy of its group {told.group}"
        raise Unavailable(f"topic {token.hex()}: {what} is not the ledger's newest", hint="one is behind: ask again")
    _check_commitment(row, token, told)
    return Formula.decode(told.formula)


def _check_commitment(row: PolicyRow, token: bytes, told: ListedPolicy) -> None:
    from tallystick.authority.answers import policy_commitment

    if row.commitment != policy_commitment(told.salt, token, told.group, told.version, told.formula):
        raise Forged(
            f"topic {token.hex()}: the policy of its group {told.group} is not the one that the ledger names",
            hint="set it again, and tell the authority's operator",
        )
