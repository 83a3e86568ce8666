"""Schemas of a topic: their text from the authority, held to the ledger, which has their hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.errors import Forged

if TYPE_CHECKING:  # commands import what they need when they run
    from tallystick.client.session import Session
    from tallystick.ledger.contracts.state import RowReader
    from tallystick.record.schema import Schema


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
