"""`tally keygen`: an age identity for backups, where age itself is not installed."""

from __future__ import annotations

from pathlib import Path

import click

from tallystick.cli import common, output
from tallystick.errors import Misuse


@click.command("keygen")
@common.output_option("The file to write, readable by you alone; it is never written over.")
@output.json_option
def command(file: Path, tell: output.Tell) -> None:
    """Make an age identity, as age-keygen does: the secret goes to a file, the recipient is printed.

    Whoever has the file opens what is encrypted to the recipient: keep it apart from the backups.

    \b
    Examples:
      tally keygen -o age.key
      tally authority backup fleet --to "$(tally keygen -o age.key)" -o fleet.age
    """
    import pyrage

    from tallystick.node.instance import write_secret

    identity = pyrage.x25519.Identity.generate()
    recipient = str(identity.to_public())
    created = output.show_time(common.now_ms())
    try:
        write_secret(file, f"# created: {created}\n# public key: {recipient}\n{identity}\n".encode())
    except OSError as error:
        raise Misuse(f"{file}: {error.strerror}", hint="name a file that you may write") from error
    advice = f"next: tally authority backup DIR --to {recipient} -o FILE"
    tell({"recipient": recipient, "file": str(file)}, recipient, note=advice)
