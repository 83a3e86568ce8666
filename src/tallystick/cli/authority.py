"""`tally authority`: status, backup and restore, by the operator."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import common, output
from tallystick.cli.common import KNOWN_FILE, folder_argument, machine, open_operator, require_instance
from tallystick.errors import Misuse, Unavailable

if TYPE_CHECKING:
    from tallystick.authority.backup import Backup


@click.group("authority")
def command() -> None:
    """Show, back up and restore the authority of an instance.

    \b
    Examples:
      tally authority backup fleet --to age1… -o fleet.age
      tally authority restore fleet.age fleet --identity age.key
    """


@command.command("status")
@folder_argument
@output.json_option
def status(folder: Path, tell: output.Tell) -> None:
    """Show what the running authority of DIR holds, and whether it serves.

    \b
    Examples:
      tally authority status fleet
    """
    common.show_statistics(require_instance(folder).authority, "authority", tell)


@command.command("backup")
@folder_argument
@click.option("--to", "recipients", multiple=True, required=True, help="An age recipient, age1…; several may open it.")
@common.output_option("The file to write; it is never written over.")
@output.json_option
def backup(folder: Path, recipients: tuple[str, ...], file: Path, tell: output.Tell) -> None:
    """Back the authority of DIR up, running or not, encrypted to age recipients.

    A backup opens only with an age identity of the recipients and the passphrase, which is not in it.

    \b
    Examples:
      tally keygen -o age.key
      tally authority backup fleet --to age1… -o fleet.age
    """
    from tallystick.node.instance import write_secret

    made = _back_up(folder, list(recipients))
    write_secret(file, made.data)
    told = {"backup": made.identifier, "file": str(file), "bytes": len(made.data)}
    tell(told, f"backup {made.identifier.hex()} in {file}: {len(made.data)} bytes")


def _back_up(folder: Path, recipients: list[str]) -> Backup:
    """Ask the running authority, which has its store to itself; read the store where none runs."""
    from tallystick.authority.backup import back_up
    from tallystick.authority.store import STORE_FILE, AuthorityStore

    authority = require_instance(folder).authority
    try:
        store = AuthorityStore(str(authority / STORE_FILE))
    except Unavailable:
        with open_operator(folder) as operator:
            return operator.back_up(recipients)
    with closing(store):
        return back_up(store, authority, recipients, common.now_ms(), machine().entropy)


@command.command("restore")
@click.argument("file", type=KNOWN_FILE)
@folder_argument
@click.option("--identity", type=KNOWN_FILE, required=True, help="The file of an age identity, AGE-SECRET-KEY-1….")
@output.json_option
def restore(file: Path, folder: Path, identity: Path, tell: output.Tell) -> None:
    """Restore the authority from FILE into DIR/authority, which must not exist.

    The old one must be dead. The restored authority serves nothing until it has followed the ledger to today: what was
    erased, revoked and issued since the backup is taken over first.

    \b
    Examples:
      tally authority restore fleet.age fleet --identity age.key
      tally up fleet
    """
    from tallystick.authority.backup import AGE
    from tallystick.authority.backup import restore as restore_backup

    lines = [line.strip() for line in identity.read_text(errors="replace").splitlines()]
    keys = [line for line in lines if line.startswith("AGE-SECRET-KEY-")]
    if not keys:
        raise Misuse(
            f"{identity}: no age identity is in it",
            hint="tally keygen makes one, as age-keygen does: AGE-SECRET-KEY-1…",
        )
    folders, data = require_instance(folder), file.read_bytes()
    if not data.startswith(AGE):
        raise Misuse(f"{file}: it is no backup", hint="name a file that tally authority backup wrote")
    made = restore_backup(data, keys[0], folders.authority, common.read_trust(folders.trust).instance)
    line = f"restored backup {made.hex()} into {folder / 'authority'}"
    advice = f"next: tally up {folder}; it serves when it has followed the ledger"
    tell({"backup": made, "folder": str(folder)}, line, note=advice)
