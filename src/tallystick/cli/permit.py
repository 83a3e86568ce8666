"""`tally permit`: the leaves that the authority gave, as the ledger has them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import output
from tallystick.cli.common import home_option, open_session, with_session
from tallystick.client.names import Names
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session

_MOST = 10_000


@click.group("permit")
def command() -> None:
    """List permits and give them back. Publishers and subscribers ask for permits by themselves.

    \b
    Examples:
      tally permit list --home car
      tally permit undo 3f2a… --home car
    """


@command.command("list")
@click.option("--all", "everybody", is_flag=True, help="Those of every principal, not only of this identity.")
@click.option("--ended", is_flag=True, help="Undone, revoked and expired ones too.")
@with_session
@output.json_option
def list_(session: Session, everybody: bool, ended: bool, tell: output.Tell) -> None:
    """List permits of the identity in --home.

    \b
    Examples:
      tally permit list --home car
      tally permit list --all --ended --json --home owner
    """
    from tallystick import wire
    from tallystick.ledger.contracts.kinds import EntryKind
    from tallystick.ledger.contracts.permits import PERMITS, Status
    from tallystick.trust.permit import Operation

    names, found = Names(session), []
    now_ms = int(session.clock.now() * 1000)
    for *_, entry in session.node.audit(kind=int(EntryKind.ISSUE_PERMIT), most=_MOST):
        _, identifier, operation, token, principal, not_after_ms = wire.decode(entry, "entry")
        if principal != session.identity.principal and not everybody:
            continue
        row = session.view.row(PERMITS(identifier))
        state = "unknown" if row is None else Status(row.status).name.lower()
        if state == "issued" and not_after_ms <= now_ms:
            state = "expired"
        if state == "issued" or ended:
            found.append(
                {
                    "permit": identifier.hex(),
                    "operation": Operation(operation).name.lower(),
                    "topic": names.topic_name(token),
                    "principal": names.principal_name(principal),
                    "state": state,
                    "until": output.show_time(not_after_ms),
                }
            )
    none = "no permits; tally publish and tally subscribe ask for one, and --ended shows those that are over"
    tell(found, *output.table([list(one.values()) for one in found]), none=none)


@command.command("undo")
@click.argument("permits", nargs=-1, required=True)
@home_option
@output.json_option
def undo(permits: tuple[str, ...], home: Path | None, tell: output.Tell) -> None:
    """Give PERMITS of the identity in --home back: on the ledger, at once and for good.

    After an unsubscription the topic's next epoch begins, so that the keys held open nothing that comes.

    \b
    Examples:
      tally permit undo 3f2ac9… --home car
    """
    from tallystick.ledger import entries

    try:
        identifiers = [bytes.fromhex(text) for text in permits]
    except ValueError:
        raise Misuse("a permit's identifier is 32 hexadecimal digits", hint="tally permit list shows them") from None
    with open_session(home) as session:
        session.author.write(*(entries.undo_permit(identifier) for identifier in identifiers))
    tell({"undone": list(permits)}, f"gave back {output.plural(len(identifiers), 'permit')}")
