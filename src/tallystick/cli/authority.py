"""`tally authority`: status, backup and restore, by the operator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import output
from tallystick.cli.common import folder_argument, open_operator, require_instance, show_statistics
from tallystick.errors import Misuse, Unavailable

if TYPE_CHECKING:
    from tallystick.authority.backup import Backup

_FILE = click.Path(dir_okay=False, path_type=Path)


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
def status(folder: Path, as_json: bool) -> None:
    """Show what the running authority of DIR holds, and whether it serves.

    \b
    Examples:
      tally authority status fleet
    """
    show_statistics(require_instance(folder).authority, "authority", as_json)


@command.command("backup")
@folder_argument
@click.option("--to", "recipients", multiple=True, required=True, help="An age recipient, age1…; several may open it.")
@click.option("-o", "--output", "file", type=_FILE, required=True, help="The file to write; it is never written over.")
@output.json_option
def backup(folder: Path, recipients: tuple[str, ...], file: Path, as_json: bool) -> None:
    """Back the authority of DIR up, running or not, encrypted to age recipients.

    A backup opens only with an age identity of the recipients and the passphrase, which is not in it.

    \b
    Examples:
      age-keygen -o age.key
      tally authority backup fleet --to age1… -o fleet.age
    """
    from tallystick.node.instance import write_secret

    if file.exists():
        raise Misuse(f"{file} exists already", hint="name another file")
    made = _back_up(folder, list(recipients))
    write_secret(file, made.data)
    if as_json:
        output.result_json({"backup": made.identifier, "file": str(file), "bytes": len(made.data)})
    else:
        output.result(f"backup {made.identifier.hex()} in {file}: {len(made.data)} bytes")


def _back_up(folder: Path, recipients: list[str]) -> Backup:
    """By the running authority, whose store is its own; else from the store itself."""
    from tallystick.authority.backup import back_up
    from tallystick.authority.store import STORE_FILE, AuthorityStore
    from tallystick.runtime.sources import SystemClock, SystemEntropy

    authority = require_instance(folder).authority
    try:
        store = AuthorityStore(str(authority / STORE_FILE))
    except Unavailable:
        with open_operator(folder) as operator:
            return operator.back_up(recipients)
    try:
        return back_up(store, authority, recipients, int(SystemClock().now() * 1000), SystemEntropy())
    finally:
        store.close()


@command.command("restore")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@folder_argument
@click.option(
    "--identity",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="The file of an age identity, AGE-SECRET-KEY-1….",
)
@output.json_option
def restore(file: Path, folder: Path, identity: Path, as_json: bool) -> None:
    """Restore the authority from FILE into DIR/authority, which must not exist.

    The old one must be dead. The restored authority serves nothing until it has followed the ledger to today: what was
    erased, revoked and issued since the backup is taken over first.

    \b
    Examples:
      tally authority restore fleet.age fleet --identity age.key
      tally up fleet
    """
    from tallystick.authority.backup import restore as restore_backup

    lines = [line.strip() for line in identity.read_text(errors="replace").splitlines()]
    keys = [line for line in lines if line.startswith("AGE-SECRET-KEY-")]
    if not keys:
        raise Misuse(f"{identity}: no age identity is in it", hint="age-keygen makes one: AGE-SECRET-KEY-1…")
    made = restore_backup(file.read_bytes(), keys[0], require_instance(folder).authority)
    if as_json:
        output.result_json({"backup": made, "folder": str(folder)})
    else:
        output.result(f"restored backup {made.hex()} into {folder / 'authority'}")
        output.note(f"next: tally up {folder}; it serves when it has followed the ledger")
