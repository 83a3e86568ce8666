"""`tally permit`: the leaves that the authority gave, as the ledger has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tallystick.cli import output
from tallystick.cli.common import Names, home_option, open_session, plural, show_time, table
from tallystick.errors import Misuse

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
@home_option
@output.json_option
def list_(everybody: bool, ended: bool, home: Path | None, as_json: bool) -> None:
    """List permits of the identity in --home.

    \b
    Examples:
      tally permit list --home car
      tally permit list --all --ended --json --home owner
    """
    from tallystick.ledger.contracts.kinds import EntryKind
    from tallystick.ledger.contracts.permits import PERMITS, Status
    from tallystick.trust.permit import Operation

    with open_session(home) as session:
        names = Names(session)
        now_ms = int(session.clock.now() * 1000)
        found: list[dict[str, Any]] = []
        for identifier, operation, token, principal, not_after_ms in _issued(
            session.node.audit(kind=int(EntryKind.ISSUE_PERMIT), most=_MOST)
        ):
            if principal != session.identity.principal and not everybody:
                continue
            row = session.view.row(PERMITS(identifier))
            state = "unknown" if row is None else Status(row.status).name.lower()
            if state == "issued" and not_after_ms <= now_ms:
                state = "expired"
            if state != "issued" and not ended:
                continue
            found.append(
                {
                    "permit": identifier.hex(),
                    "operation": Operation(operation).name.lower(),
                    "topic": names.topic_name(token),
                    "principal": names.principal_name(principal),
                    "state": state,
                    "until": show_time(not_after_ms),
                }
            )
    if as_json:
        output.result_json(found)
        return
    for line in table([list(one.values()) for one in found]):
        output.result(line)


def _issued(items: list[list[Any]]) -> list[tuple[bytes, int, bytes, bytes, int]]:
    from tallystick import wire

    return [tuple(wire.decode(item[5], "entry")[1:]) for item in items]


@command.command("undo")
@click.argument("permits", nargs=-1, required=True)
@home_option
@output.json_option
def undo(permits: tuple[str, ...], home: Path | None, as_json: bool) -> None:
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
    if as_json:
        output.result_json({"undone": list(permits)})
    else:
        output.result(f"gave back {plural(len(identifiers), 'permit')}")
