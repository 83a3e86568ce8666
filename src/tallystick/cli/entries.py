"""What a command signs in the identity's name it shows first, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.cli import output
from tallystick.client.words import decode, describe

if TYPE_CHECKING:
    from tallystick.client.names import Names
    from tallystick.client.session import Session


def write(session: Session, names: Names, *entries: bytes) -> None:
    """Show these entries, then sign and submit them."""
    for entry in entries:
        output.note(f"signing {describe(decode(entry), names)}")
    session.author.write(*entries)
