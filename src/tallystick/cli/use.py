"""`tally use`: the identity that commands act as, chosen once."""

from __future__ import annotations

from pathlib import Path

import click

from tallystick.cli import output
from tallystick.cli.common import FOLDER


@click.command("use")
@click.argument("folder", metavar="[DIR]", type=FOLDER, required=False)
@click.option("--none", "forget", is_flag=True, help="Choose none any more.")
@output.json_option
def command(folder: Path | None, forget: bool, tell: output.Tell) -> None:
    """Let commands without --home act as the identity in DIR from now on; without DIR, say which one that is.

    --home and TALLY_HOME go before it. The choice is kept in XDG_CONFIG_HOME/tallystick/home (~/.config if that is not
    set), for you alone.

    \b
    Examples:
      tally use reader
      tally use
      tally use --none
    """
    from tallystick.identity.folder import use_home, used_home

    if folder is not None or forget:
        use_home(None if forget else folder)
    used = used_home()
    tell({"home": None if used is None else str(used)}, "no identity is chosen" if used is None else f"using {used}")
