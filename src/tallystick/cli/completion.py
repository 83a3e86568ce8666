"""`tally completion`: the script that teaches a shell our commands and options."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from tallystick.cli import output

SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    Examples:
      eval "$(tally completion bash)"          in ~/.bashrc
      eval "$(tally completion zsh)"           in ~/.zshrc
      tally completion fish > ~/.config/fish/completions/tally.fish
    """
    root = ctx.find_root().command
    for line in SHELLS[shell](root, {}, "tally", "_TALLY_COMPLETE").source().splitlines():
        output.result(line)
